"""`omnizmq chat`: one turn, or a conversation on a terminal."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omnizmq.commands.turn import Turn
from omnizmq.commands.wave import WaveFile, check_writable
from omnizmq.errors import InvalidRequestError, NotFoundError

if TYPE_CHECKING:
    from omnizmq import AsyncClient

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
DEFAULT_OUTPUT = "reply.wav"
OWN_CONFIG = "embedded"


@dataclass(frozen=True)
class _Asked:
    """The options of one call."""

    modalities: list[str]
    output: Path | None
    config: str | None
    sets: tuple[str, ...]
    connect: str | None
    system: str | None
    audio: Path | None
    max_tokens: int | None
    seed: int | None
    params: tuple[str, ...]
    request_id: str | None
    timeout: float | None
    as_json: bool


@click.command()
@click.argument("prompt", required=False)
@click.option("--modalities", metavar="LIST", help="text, audio or text,audio. Default: text; both with --output.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE.wav", help=f"Default: {DEFAULT_OUTPUT}.")
@click.option("--config", metavar="FILE", help="Start an own deployment of this configuration.")
@click.option("--set", "sets", multiple=True, metavar="K=V", help="Override a value of the own deployment.")
@click.option("--connect", metavar="NAME", help="The deployment's name or endpoint; default: the only one.")
@click.option("--system", metavar="TEXT", help="A system message before the prompt.")
@click.option("--audio", type=click.Path(path_type=Path), metavar="FILE", help="A sound file to ask about.")
@click.option("--max-tokens", type=click.IntRange(1), metavar="N", help="At most N tokens of text.")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="For every stage that draws at random.")
@click.option("--param", "params", multiple=True, metavar="STAGE.KEY=VALUE", help="A sampling parameter of a stage.")
@click.option("--request-id", metavar="ID", help="Your own id, for `abort` and `trace`.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), metavar="S", help="Give up after S seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def chat(prompt: str | None, modalities: str | None, output: Path | None, **options: Any) -> None:
    """Ask PROMPT (`-`: standard input); read the answer, and hear it from a WAV file.

    Uses the running deployment when there is one, else starts the embedded one for itself. Without PROMPT, on a
    terminal, it is a conversation.
    """
    wanted = _modalities(modalities, output)
    if "audio" in wanted and output is None:
        output = Path(DEFAULT_OUTPUT)
    if output is not None:
        check_writable(output)
    asked = _Asked(modalities=wanted, output=output if "audio" in wanted else None, **options)
    if asked.config is not None and asked.connect is not None:
        raise click.UsageError("--config starts an own deployment, --connect uses a running one: give one of them")
    text = _prompt(prompt)
    if text is None and asked.as_json:
        raise click.UsageError("--json needs a PROMPT")
    sys.exit(_run(asked, text))


def _modalities(given: str | None, output: Path | None) -> list[str]:
    """Names are checked by the deployment, which knows what it has (P2)."""
    if given is None:
        return ["text", "audio"] if output is not None else ["text"]
    names = [name.strip() for name in given.split(",") if name.strip()]
    if not names:
        raise click.UsageError("--modalities is empty: give text, audio or text,audio")
    return names


def _prompt(given: str | None) -> str | None:
    """None: a conversation."""
    if given is None and sys.stdin.isatty():
        return None
    if given not in (None, "-"):
        return given
    data = sys.stdin.buffer.read()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"standard input is not UTF-8: byte {error.start} is {data[error.start]:#04x}"
        ) from None
    if given is None and not text.strip():
        raise click.UsageError("no prompt: give PROMPT, or pipe one in")
    return text


def _run(asked: _Asked, text: str | None) -> int:
    """SIGTERM ends a turn as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return asyncio.run(_chat(asked, text))
    except KeyboardInterrupt:
        click.echo("omnizmq chat: interrupted", err=True)
        return EXIT_INTERRUPTED


async def _chat(asked: _Asked, text: str | None) -> int:
    with _progress(asked.as_json) as progress:
        client = _client(asked, text, progress)
        await client.__aenter__()
    try:
        if text is not None:
            return await _one_turn(client, asked, text)
        return await _conversation(client, asked)
    finally:
        await client.close()


def _client(asked: _Asked, text: str | None, progress: Any) -> AsyncClient:
    from omnizmq import AsyncClient, runtime

    if asked.config is None:
        try:
            return AsyncClient.connect(runtime.find(asked.connect).name)
        except NotFoundError:
            if asked.connect is not None or runtime.running():
                raise
    config = asked.config or OWN_CONFIG
    _check_own(config, asked, text)
    return AsyncClient.launch(config, sets=asked.sets, progress=progress)


def _check_own(config: str, asked: _Asked, text: str | None) -> None:
    """What can be refused before an own deployment loads for seconds."""
    from omnizmq.config import load
    from omnizmq.frontend.prompts import as_prompt
    from omnizmq.pipeline import Pipeline
    from omnizmq.protocol import check_external_id

    loaded = load(config, asked.sets)
    Pipeline(loaded).plan(asked.modalities)
    if asked.request_id is not None:
        check_external_id(asked.request_id)
    size = 0 if text is None else as_prompt(text).size()
    if size > loaded.router.max_prompt_bytes:
        limit = loaded.router.max_prompt_bytes
        raise InvalidRequestError(f"the prompt has {size} bytes; this deployment takes at most {limit}")


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


async def _one_turn(client: AsyncClient, asked: _Asked, text: str) -> int:
    turn = await _ask(client, asked, [_user(asked, text)], asked.output, asked.request_id)
    if asked.as_json:
        click.echo(json.dumps(turn.document(), ensure_ascii=False))
    return _tell(turn, asked)


async def _conversation(client: AsyncClient, asked: _Asked) -> int:
    """Until the end of input. A turn that fails is said so, and forgotten."""
    history: list[dict[str, Any]] = []
    turns = 0
    click.echo("Type a message; Ctrl-D ends.", err=True)
    while True:
        try:
            line = await _read_line()
        except EOFError:
            click.echo(err=True)
            return 0
        if not line.strip():
            continue
        turns += 1
        message = _user(asked, line)
        turn = await _ask(client, asked, [*history, message], _numbered(asked.output, turns), None)
        _tell(turn, asked)
        if turn.error is None and turn.text:
            history += [message, {"role": "assistant", "content": turn.text}]


async def _read_line() -> str:
    """`input` in a thread of its own that nobody waits for, so that Ctrl-C ends the program at once."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        try:
            text = input("you> ")
        except EOFError as error:
            loop.call_soon_threadsafe(line.set_exception, error)
        else:
            loop.call_soon_threadsafe(line.set_result, text)

    threading.Thread(target=read, daemon=True).start()
    return await line


async def _ask(
    client: AsyncClient,
    asked: _Asked,
    messages: list[dict[str, Any]],
    output: Path | None,
    request_id: str | None,
) -> Turn:
    external_id = request_id or f"chat-{secrets.token_hex(4)}"
    system = [{"role": "system", "content": asked.system}] if asked.system is not None else []
    wave = None if output is None else WaveFile(output)
    turn = Turn(external_id, "text" in asked.modalities, wave, (lambda _: None) if asked.as_json else _write)
    outputs = client.generate(
        system + messages,
        modalities=asked.modalities,
        params=_params(client.stages, asked),
        request_id=external_id,
        deadline_s=asked.timeout,
    )
    await turn.consume(outputs)
    if not asked.as_json and turn.text:
        _write("\n")
    return turn


def _write(text: str) -> None:
    click.echo(text, nl=False)


def _user(asked: _Asked, text: str) -> dict[str, Any]:
    if asked.audio is None:
        return {"role": "user", "content": text}
    try:
        data = asked.audio.read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"--audio {asked.audio} cannot be read: {error.strerror}") from error
    return {"role": "user", "content": [{"type": "text", "text": text}, {"type": "audio", "data": data}]}


def _numbered(output: Path | None, turn: int) -> Path | None:
    """reply.wav, reply-2.wav, …"""
    if output is None or turn == 1:
        return output
    return output.with_name(f"{output.stem}-{turn}{output.suffix}")


def _params(stages: dict[str, str | None], asked: _Asked) -> dict[str, dict[str, Any]]:
    params: dict[str, dict[str, Any]] = {stage: {} for stage in stages}
    for stage, modality in stages.items():
        if asked.seed is not None:
            params[stage]["seed"] = asked.seed
        if asked.max_tokens is not None and modality == "text":
            params[stage]["max_tokens"] = asked.max_tokens
    for setting in asked.params:
        key, equals, value = setting.partition("=")
        stage, dot, name = key.partition(".")
        if not (equals and dot and name):
            raise InvalidRequestError(f"--param {setting!r} is not STAGE.KEY=VALUE, such as thinker.temperature=0.7")
        params.setdefault(stage, {})[name] = _value(value)
    return params


def _value(text: str) -> Any:
    """As TOML and JSON write it; what is neither is a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _tell(turn: Turn, asked: _Asked) -> int:
    """What a person wants to know besides the text, on stderr; and the exit code."""
    for stage, note in (turn.terminal.notes if turn.terminal is not None else {}).items():
        click.echo(f"note from {stage}: {note}", err=True)
    sound = turn.wave.document() if turn.wave is not None else None
    if sound is not None and not asked.as_json:
        click.echo(f"wrote {sound['path']} ({sound['seconds']} s, {sound['sample_rate']} Hz)", err=True)
    if turn.error is not None:
        click.echo(f"omnizmq chat: {turn.error.message}", err=True)
        return EXIT_USAGE if isinstance(turn.error, InvalidRequestError) else EXIT_FAILED
    if turn.finish_reason == "abort":
        click.echo(f"omnizmq chat: {turn.external_id} was aborted", err=True)
        return EXIT_FAILED
    return 0
