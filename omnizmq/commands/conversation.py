"""`omnizmq chat` without a prompt, on a terminal: turn after turn, until the end of input.

Ctrl-C during an answer aborts that turn and no more; at the prompt it ends the conversation.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omnizmq.commands.asking import Asked
from omnizmq.commands.failure import EXIT_FAILED
from omnizmq.commands.turn import Turn, new_id
from omnizmq.commands.wave import WaveFile
from omnizmq.errors import RouterLostError

if TYPE_CHECKING:
    from omnizmq import AsyncClient


async def converse(client: AsyncClient, asked: Asked) -> int:
    """The exit code. A turn that fails or is interrupted is said so, and forgotten; without a router there is none."""
    history: list[dict[str, Any]] = []
    turns = 0
    click.echo("Type a message; Ctrl-D ends.", err=True)
    while True:
        try:
            line = await _read_line()
        except EOFError:
            click.echo(err=True)
            return 0
        except UnicodeDecodeError as error:
            click.echo(f"omnizmq chat: that line is not UTF-8: {error.reason}", err=True)
            continue
        if not line.strip():
            continue
        turns += 1
        message = asked.user(line)
        output = _numbered(asked.output, turns)
        turn = Turn(new_id(), "text" in asked.modalities, None if output is None else WaveFile(output), write)
        turn.interrupted = not await _unless_interrupted(asked.ask(client, [*history, message], turn))
        asked.tell(turn)
        if isinstance(turn.error, RouterLostError):
            return EXIT_FAILED
        if turn.succeeded and turn.text:
            history += [message, {"role": "assistant", "content": turn.text}]


def write(text: str) -> None:
    """A piece of an answer, on the terminal at once."""
    click.echo(text, nl=False)


async def _read_line() -> str:
    """`input` in a thread of its own that nobody waits for, so that Ctrl-C ends the program at once."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        try:
            text = input("you> ")
        except (EOFError, UnicodeDecodeError) as error:
            loop.call_soon_threadsafe(line.set_exception, error)
        else:
            loop.call_soon_threadsafe(line.set_result, text)

    threading.Thread(target=read, daemon=True).start()
    return await line


async def _unless_interrupted(turn: Coroutine[Any, Any, None]) -> bool:
    """Whether the turn came to its end. SIGINT cancels it meanwhile; before and after, SIGINT is what it was."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(turn)
    before = signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:  # the conversation ends
        task.cancel()
        await asyncio.wait([task])
        raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
    if task.cancelled():
        return False
    await task
    return True


def _numbered(output: Path | None, turn: int) -> Path | None:
    """reply.wav, reply-2.wav, …"""
    if output is None or turn == 1:
        return output
    return output.with_name(f"{output.stem}-{turn}{output.suffix}")
