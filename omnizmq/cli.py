"""The command line: `omnizmq COMMAND`. Thin: each command is a file of `omnizmq/commands`, imported when it is called.

Exit codes: 0 done, 1 the request or the deployment failed, timed out or was aborted, 2 wrong usage, configuration or
request, 130 interrupted. A failure is one clear line on stderr, never a traceback; with `--json` it is one document on
stdout as well, `{"error": {…}}`, also where the rest of the command line is not usable. A command that raises says no
more about it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from importlib import import_module

import click

from omnizmq import interrupts
from omnizmq.commands.failure import EXIT_FAILED, EXIT_INTERRUPTED, INTERRUPTED, document, said, status_of
from omnizmq.errors import InvalidRequestError, OmnizmqError

COMMANDS = {
    "launch": "Start a deployment: the router and its workers.",
    "chat": "Ask something; read the answer and hear it.",
    "trace": "Where a request is or was, and why.",
    "status": "What a deployment is doing.",
    "abort": "End a request.",
    "restart": "Replace a stage's processes without losing a request.",
    "drain": "Let a replica take no new requests.",
    "replay": "Feed a recording to a fresh router, and compare.",
    "check": "Validate a configuration.",
    "install": "Install the packages of an extra.",
}


class _Commands(click.Group):
    """Knows the names and one line of help each; loads a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"omnizmq.commands.{cmd_name}"), cmd_name)
        interrupts.release()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(f"{error.message} There are: {', '.join(COMMANDS)}.", ctx) from None


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="omnizmq", prog_name="omnizmq")
def group() -> None:
    """omnizmq serves omni-modality models: text, sound and images in, text and speech out."""


def main() -> None:
    """The whole command; `__main__` calls it."""
    _open_standard_streams()
    try:
        status = _run()
    except BrokenPipeError:
        _discard_stdout()
        status = EXIT_FAILED
    except OSError as error:
        _discard_stdout()
        status = _say(f"the output cannot be read or written: {error.strerror}", EXIT_FAILED)
    sys.exit(status)


def _run() -> int:
    """The exit code. `OSError`: standard input or output is of no use."""
    try:
        return _call()
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        return _refused(InvalidRequestError(re.sub(r"\s*\n\s*", " ", error.format_message())))
    except (click.Abort, KeyboardInterrupt):
        return _failed({"error": INTERRUPTED}, "interrupted", EXIT_INTERRUPTED)
    except OmnizmqError as error:
        return _refused(error)
    except OSError as error:
        if error.filename is None:
            raise
        return _refused(OmnizmqError(f"{error.filename} cannot be read or written: {error.strerror}"))


def _call() -> int:
    """Click, and the command. `KeyboardInterrupt` for whatever an interrupt became."""
    try:
        status = group.main(prog_name="omnizmq", standalone_mode=False)
    except Exception:
        if interrupts.came():
            raise KeyboardInterrupt from None
        raise
    return status if isinstance(status, int) else 0


def _refused(error: OmnizmqError) -> int:
    return _failed(document(error), said(error), status_of(error))


def _failed(found: dict[str, object], message: str, status: int) -> int:
    """The line, and the document where one is wanted: by a command line that may be one that cannot be parsed."""
    options = sys.argv[: sys.argv.index("--")] if "--" in sys.argv else sys.argv
    if "--json" in options:
        try:
            click.echo(json.dumps(found))
        except OSError:  # the line says what went wrong first
            _discard_stdout()
    return _say(message, status)


def _open_standard_streams() -> None:
    """A caller may have closed them; a socket that got their number would be written to."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 (for the life of the process)


def _discard_stdout() -> None:
    """Nobody can read it; what is still buffered must not fail again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(message: str, status: int) -> int:
    command = next((word for word in sys.argv[1:] if word in COMMANDS), None)
    click.echo(f"omnizmq{' ' + command if command else ''}: {message}", err=True)
    return status
