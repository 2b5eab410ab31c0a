"""`omnizmq chat`: one turn, or a conversation on a terminal."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omnizmq.commands import loop, options, wave
from omnizmq.commands.asking import Asked, split_param
from omnizmq.commands.conversation import converse, write
from omnizmq.commands.failure import EXIT_INTERRUPTED
from omnizmq.commands.turn import Turn, new_id
from omnizmq.errors import InvalidRequestError, NotFoundError, OmnizmqError, PromptTooLargeError

if TYPE_CHECKING:
    from omnizmq import AsyncClient

DEFAULT_OUTPUT = "reply.wav"
OWN_CONFIG = "embedded"


@click.command()
@click.argument("prompt", required=False)
@click.option("--modalities", metavar="LIST", help="text, audio or text,audio. Default: text; both with --output.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE.wav", help=f"Default: {DEFAULT_OUTPUT}.")
@click.option("--config", metavar="FILE", help="Start an own deployment of this configuration.")
@click.option("--set", "sets", multiple=True, metavar="K=V", help="Override a value of the own deployment.")
@options.connect
@click.option("--system", metavar="TEXT", help="A system message before the prompt.")
@click.option(
    "--image", "images", multiple=True, type=click.Path(path_type=Path), metavar="FILE", help="An image to ask about."
)
@click.option(
    "--audio", "audios", multiple=True, type=click.Path(path_type=Path), metavar="FILE", help="A sound to ask about."
)
@click.option("--max-tokens", type=click.IntRange(1), metavar="N", help="At most N tokens of text.")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="For every stage that draws at random.")
@click.option("--param", "params", multiple=True, metavar="STAGE.KEY=VALUE", help="A sampling parameter of a stage.")
@click.option("--request-id", metavar="ID", help="Your own id, for `abort` and `trace`.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), metavar="S", help="Give up after S seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def chat(prompt: str | None, modalities: str | None, output: Path | None, **options: Any) -> None:
    """Ask PROMPT (`-`: standard input); read the answer, and hear it from a WAV file.

    Uses the running deployment when there is one, else starts the embedded one for itself. Without PROMPT, on a
    terminal, it is a conversation. --image and --audio may be given more than once, and need no words beside them.
    """
    wanted = _modalities(modalities, output)
    if "audio" not in wanted and output is not None:
        raise click.UsageError(f"--output {output} needs sound: add audio to --modalities")
    if "audio" in wanted and output is None:
        output = Path(DEFAULT_OUTPUT)
    asked = Asked(modalities=wanted, output=output, **options)
    if prompt is None and sys.stdin.isatty():
        if asked.files:
            sys.exit(_one_turn(asked, ""))
        if asked.as_json:
            raise click.UsageError("--json needs a PROMPT")
        _check(asked, None)
        status = _run(_chat(asked, None, None))
        if status == EXIT_INTERRUPTED:
            click.echo(err=True)
        sys.exit(status)
    sys.exit(_one_turn(asked, prompt))


def _modalities(given: str | None, output: Path | None) -> list[str]:
    """Names are checked by the deployment, which knows what it has (P2)."""
    if given is None:
        return ["text", "audio"] if output is not None else ["text"]
    names = [name.strip() for name in given.split(",") if name.strip()]
    if not names:
        raise click.UsageError("--modalities is empty: give text, audio or text,audio")
    return names


def _one_turn(asked: Asked, prompt: str | None) -> int:
    """The exit code. With `--json` there is one document, whatever happens."""
    sound = None if asked.output is None else wave.WaveFile(asked.output)
    turn = Turn(asked.request_id or new_id(), "text" in asked.modalities, sound, _nowhere if asked.as_json else write)
    try:
        text = _prompt(prompt, asked)
        _check(asked, text)
        turn.interrupted = _run(_chat(asked, text, turn)) == EXIT_INTERRUPTED
    except OmnizmqError as error:
        turn.error = error
    status = asked.tell(turn)
    if asked.as_json:
        click.echo(json.dumps(turn.document()))
    return status


def _nowhere(text: str) -> None:
    """With `--json` the text is in the document."""


def _prompt(given: str | None, asked: Asked) -> str:
    from omnizmq.protocol import CONTENT_BYTES

    text = given
    if given is None or given == "-":
        data = sys.stdin.buffer.read(CONTENT_BYTES + 1)
        if len(data) > CONTENT_BYTES:
            raise InvalidRequestError(f"standard input has more than {CONTENT_BYTES} bytes, which no prompt may have")
        try:
            text = data.decode().removesuffix("\n")
        except UnicodeDecodeError as error:
            raise InvalidRequestError(
                f"standard input is not UTF-8: byte {error.start} is {data[error.start]:#04x}"
            ) from None
    if text is None or not (text.strip() or asked.files):
        raise InvalidRequestError("the prompt is empty: give PROMPT, or pipe one in")
    return text


def _check(asked: Asked, text: str | None) -> None:
    """What can be refused before a deployment is looked for."""
    from omnizmq.frontend.prompts import as_prompt
    from omnizmq.protocol import check_external_id

    if asked.config is not None and asked.connect is not None:
        raise InvalidRequestError("--config starts an own deployment, --connect uses a running one: give one of them")
    if asked.output is not None:
        wave.check_writable(asked.output)
    if asked.request_id is not None:
        check_external_id(asked.request_id)
    for setting in asked.params:
        split_param(setting)
    if asked.system is not None:
        as_prompt([{"role": "system", "content": asked.system}])
    as_prompt([asked.user(text or "")])


# --- Running -------------------------------------------------------------------------------------------------------


def _run(running: Coroutine[Any, Any, int]) -> int:
    try:
        return loop.run(running)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return EXIT_INTERRUPTED


async def _chat(asked: Asked, text: str | None, turn: Turn | None) -> int:
    """SIGTERM ends it in good order, as Ctrl-C does."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    preloading = asyncio.create_task(asyncio.to_thread(wave.preload)) if asked.output is not None else None
    with _progress(asked.as_json) as progress:
        client = _client(asked, text, progress)
        await client.__aenter__()
    try:
        if preloading is not None:
            await preloading
        if turn is None or text is None:
            return await converse(client, asked)
        await asked.ask(client, [asked.user(text)], turn)
        return 0
    finally:
        await client.close()


def _client(asked: Asked, text: str | None, progress: Any) -> AsyncClient:
    """The deployment that runs, else an own one."""
    from omnizmq import AsyncClient, remote, runtime

    if asked.config is None:
        far = asked.connect is not None and remote.is_file(asked.connect)
        try:
            name = asked.connect if far else runtime.find(asked.connect).name
        except NotFoundError:
            if asked.connect is not None or runtime.running():
                raise
        else:
            if asked.sets:
                raise InvalidRequestError(f"--set cannot change {name}, which runs already: give --config as well")
            return AsyncClient.connect(name)
    config = asked.config or OWN_CONFIG
    _check_own(config, asked, text)
    return AsyncClient.launch(config, sets=asked.sets, progress=progress)


def _check_own(config: str, asked: Asked, text: str | None) -> None:
    """What can be refused before an own deployment loads for seconds."""
    from omnizmq.config import load
    from omnizmq.frontend.prompts import as_prompt
    from omnizmq.pipeline import Pipeline

    loaded = load(config, asked.sets)
    Pipeline(loaded).plan(asked.modalities)
    size = 0 if text is None else as_prompt([asked.user(text)]).size()
    if size > loaded.router.max_prompt_bytes:
        raise PromptTooLargeError.of(size, loaded.router.max_prompt_bytes)


@contextmanager
def _progress(quiet: bool) -> Iterator[Any]:
    """What the stages load, on stderr: a line that is rewritten on a terminal, else nothing."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    stages: dict[str, str] = {}
    with Console(stderr=True).status("starting") as line:

        def show(replica: str, text: str) -> None:
            stages[replica] = text
            line.update("  ".join(f"{name}: {what}" for name, what in stages.items()))

        yield show
