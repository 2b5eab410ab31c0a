"""The requests of a stress: asked again and again, and each one's end judged by its plan and by who was killed."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from random import Random

from omnizmq import AsyncClient, RequestOutput
from omnizmq.errors import (
    OmnizmqError,
    OverloadedError,
    ReplicaLostError,
    RouterLostError,
    StageError,
    UnavailableError,
)
from support.stress_content import CALM, Plan
from support.stress_engine import CORRUPT, PLANNED
from support.stress_faults import Faults
from support.stress_figures import Figures
from support.stress_watch import not_quiet

LIMIT_S = 45.0
"""A request that has not ended by then, or that nobody has taken, is stuck."""

IN_FLIGHT = 24
WARM_UP = 48
RETRY_S = 0.05
PATIENCE_S = 0.3


class Requests:
    """Of one deployment. Its owner sets `router_killed`."""

    def __init__(self, client: AsyncClient, name: str, figures: Figures, faults: Faults) -> None:
        self.router_killed = False
        self._client = client
        self._name = name
        self._figures = figures
        self._faults = faults
        self._random = Random(f"requests {name}")
        self._asked = 0
        self._running: list[asyncio.Task[None]] = []
        self._going_on = False

    async def calm(self) -> None:
        """Some that have to end well."""
        await asyncio.gather(*(self._ask(CALM) for _ in range(WARM_UP)))

    def start(self) -> None:
        """From here on, until `stop` or a problem, so many are always in flight."""
        self._going_on = True
        self._running = [asyncio.create_task(self._go_on()) for _ in range(IN_FLIGHT)]

    async def stop(self) -> None:
        """Every one has ended."""
        self._going_on = False
        await asyncio.gather(*self._running)

    async def _go_on(self) -> None:
        while self._going_on and not self._figures.problems:
            await self._ask("")

    async def _ask(self, calm: str) -> None:
        """One request to its end. One that is refused, since a stage has nobody alive, is asked again."""
        self._asked += 1
        self._figures.requests += 1
        external_id = f"{calm}{self._name}-{self._asked}"
        deadline = time.monotonic() + LIMIT_S
        while not await self._try(external_id):
            self._figures.ends["refused"] += 1
            if time.monotonic() > deadline:
                await self._stuck(f"nobody has taken {external_id} for {LIMIT_S} s")
                return
            await asyncio.sleep(RETRY_S)

    async def _try(self, external_id: str) -> bool:
        """Whether it was taken. Whatever it ends with is judged."""
        plan = Plan.of(external_id)
        outputs: list[RequestOutput] = []
        started = time.monotonic()
        reading = asyncio.create_task(self._read(external_id, outputs))
        try:
            async with asyncio.timeout(LIMIT_S):
                await self._leave_early(external_id, plan, reading)
                await asyncio.shield(reading)
        except TimeoutError:
            await self._stuck(f"request {external_id} has not ended after {LIMIT_S} s")
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        except asyncio.CancelledError:
            self._figures.ends["cancelled"] += 1
        except (UnavailableError, OverloadedError):
            return self.router_killed
        except OmnizmqError as error:
            self._judge_error(external_id, plan, error, started)
        else:
            self._judge(external_id, plan, outputs)
        return True

    async def _read(self, external_id: str, outputs: list[RequestOutput]) -> None:
        """All there is; more after the end would show."""
        async for output in self._client.generate("x", request_id=external_id, affinity=external_id):
            outputs.append(output)

    async def _leave_early(self, external_id: str, plan: Plan, reading: asyncio.Task[None]) -> None:
        if plan.fate in ("abort", "cancel"):
            await asyncio.sleep(self._random.uniform(0, PATIENCE_S))
        if plan.fate == "abort":
            with suppress(RouterLostError):  # `reading` says so too
                await self._client.abort(external_id)
        elif plan.fate == "cancel":
            reading.cancel()

    async def _stuck(self, what: str) -> None:
        self._figures.deadlocks += 1
        self._figures.problem(True, what)
        if self._figures.deadlocks == 1:
            self._figures.problem(True, f"meanwhile {not_quiet(await self._client.status())}")

    # --- Judging -----------------------------------------------------------------------------------------------------

    def _judge(self, external_id: str, plan: Plan, outputs: list[RequestOutput]) -> None:
        ends = [output for output in outputs if output.finished]
        text = "".join(output.text or "" for output in outputs)
        reason = ends[-1].finish_reason if ends else None
        self._figures.ends[str(reason)] += 1
        self._figures.problem(len(ends) != 1 or not outputs[-1].finished, f"{external_id} had {len(ends)} ends")
        good = (reason, text) == ("stop", plan.text) or (reason == "abort" and plan.fate == "abort")
        self._figures.problem(not good, f"{external_id}, to be {plan}, ended with {reason} and {text!r}")

    def _judge_error(self, external_id: str, plan: Plan, error: OmnizmqError, started: float) -> None:
        match error:
            case StageError() if error.message.startswith(CORRUPT):
                good, end = False, "corrupt"
            case StageError():
                good, end = error.message == PLANNED and plan.fate == "fail", "failed as planned"
            case ReplicaLostError():
                good, end = self._faults.excuse(error.replica, started), "replica_lost"
            case RouterLostError():
                good, end = self.router_killed, "router_lost"
            case _:
                good, end = False, error.code
        self._figures.ends[end if good or end == "corrupt" else f"{error.code}, unexpected"] += 1
        what = f"{external_id}, to be {plan}, ended with {error.code} of {error.replica}: {error}"
        self._figures.problem(not good, what)
