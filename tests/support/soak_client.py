"""One client process of a soak: so many callers, each asking one request after the other, everything heard verified.

    python -m support.soak_client DEPLOYMENT SEED NUMBER CALLERS JOURNAL

It ends in good order when its standard input does: what is under way is brought to its end first.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
import time
from contextlib import aclosing, suppress
from pathlib import Path
from random import Random

import msgspec

from omnizmq import AsyncClient
from omnizmq.errors import OmnizmqError, RouterLostError
from support.soak_ask import NEVER_S, Ask, Fate, draw
from support.soak_heard import Heard
from support.soak_journal import Began, Ended, Writer

LIMIT_S = 100.0
"""A request that has not ended by then is stuck."""

REST_S = 0.25
"""The longest pause of a caller between two requests."""

REFUSED_REST_S = 0.3
TRIM_S = 1.0


class Caller:
    """Asks over one connection."""

    def __init__(self, client: AsyncClient, journal: Writer) -> None:
        self._client = client
        self._journal = journal

    async def ask(self, external_id: str) -> Ended:
        """One request to its end, which is in the journal then."""
        ask = Ask.of(external_id)
        heard = Heard(ask)
        began = time.monotonic()
        self._journal.write(Began(external_id, began))
        first: list[float] = []
        reading = asyncio.create_task(self._read(ask, heard, first))
        leaving = asyncio.create_task(self._leave(ask, reading))
        end = await self._end_of(ask, heard, reading, began)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        if first:
            end = msgspec.structs.replace(end, first_s=round(first[0] - began, 6))
        self._journal.write(end)
        return end

    async def _read(self, ask: Ask, heard: Heard, first: list[float]) -> None:
        outputs = self._client.generate(
            ask.prompt,
            modalities=ask.modalities,
            params=ask.params,
            request_id=ask.external_id,
            deadline_s=ask.deadline_s,
            priority=ask.priority,
            affinity=ask.external_id,
            output_kind=ask.output_kind,
        )
        async with aclosing(outputs):
            async for output in outputs:
                heard.take(output)
                if not first:
                    first.append(time.monotonic())
                    if ask.fate == "never":
                        await asyncio.sleep(NEVER_S)
                if ask.fate == "slow":
                    await asyncio.sleep(ask.pause_s)

    async def _leave(self, ask: Ask, reading: asyncio.Task[None]) -> None:
        if ask.fate in ("abort", "cancel"):
            await asyncio.sleep(ask.patience_s)
        if ask.fate == "abort":
            with suppress(RouterLostError):  # the request hears of it too
                await self._client.abort(ask.external_id)
        elif ask.fate == "cancel":
            reading.cancel()

    async def _end_of(self, ask: Ask, heard: Heard, reading: asyncio.Task[None], began: float) -> Ended:
        done, _ = await asyncio.wait([reading], timeout=LIMIT_S)
        now = time.monotonic()
        if not done:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            return Ended(ask.external_id, began, now, "stuck", heard.outputs)
        try:
            reading.result()
        except asyncio.CancelledError:
            return Ended(ask.external_id, began, now, "cancelled", heard.outputs, wrong=heard.wrong)
        except OmnizmqError as error:
            where = error.stage, error.replica, error.message
            wrong = heard.wrong or ("an error after the terminal" if heard.end else None)
            return Ended(ask.external_id, began, now, error.code, heard.outputs, *where, wrong=wrong)
        heard.ended()
        if heard.end is None:
            return Ended(ask.external_id, began, now, "nothing", heard.outputs, wrong=heard.wrong)
        how, incomplete = str(heard.end.finish_reason), heard.end.usage_incomplete
        return Ended(ask.external_id, began, now, how, heard.outputs, incomplete=incomplete, wrong=heard.wrong)


class Process:
    """All callers of this process."""

    def __init__(self, seed: int, number: int) -> None:
        self._seed = seed
        self._number = number
        self._asked = 0
        self._over = asyncio.Event()

    async def run(self, deployment: str, callers: int, journal: Path) -> None:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._stdin_ended)
        writer = Writer(journal)
        async with AsyncClient.connect(deployment) as client:
            caller = Caller(client, writer)
            await asyncio.gather(_trim(self._over), *(self._go_on(caller, n) for n in range(callers)))
        writer.close()

    def _stdin_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        self._over.set()

    async def _go_on(self, caller: Caller, number: int) -> None:
        rng = Random(f"{self._seed}/{self._number}/{number}")
        while not self._over.is_set():
            end = await caller.ask(self._name(draw(rng)))
            rest = REFUSED_REST_S if end.how in ("unavailable", "overloaded") else rng.uniform(0, REST_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), rest)

    def _name(self, fate: Fate) -> str:
        self._asked += 1
        return f"{fate}-{self._seed}-{self._number}-{self._asked}"


async def _trim(over: asyncio.Event) -> None:
    """What was compared is given back to the system, so that memory which is measured is memory that is held: errors
    and their tracebacks make cycles, whose collection would else be minutes apart."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None and not over.is_set():
        gc.collect()
        trim(0)
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), TRIM_S)


def main() -> None:
    deployment, seed, number, callers, journal = sys.argv[1:]
    asyncio.run(Process(int(seed), int(number)).run(deployment, int(callers), Path(journal)))


if __name__ == "__main__":
    main()
