"""Who strikes in a soak: at workers with signals, at the deployment with an operator's orders, at clients.

Each plays cards from a shuffled deck with pauses between them, so that every sort of mishap comes in every round.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

from omnizmq import AsyncClient
from support.running import alive, omnizmq
from support.soak_clients import Clients
from support.soak_config import ELDERS, GRACE_S, MIDDLE, SILENCE_S
from support.soak_mishaps import Kind, Mishaps
from support.stress_faults import Process
from support.stress_watch import replicas_of

Cards = Mapping[str, tuple[int, Callable[[], Awaitable[None]]]]
"""How often each comes in a round."""

Broken = Callable[[str, str], None]
"""Hears who did not behave, and how."""

STOPPED_S = (0.05, 2.5)
FROZEN_S = (0.1, 1.0)
REPLACED_S = SILENCE_S + 15.0
CONNECTED_S = 20.0
DRAIN_S = 4.0
FORCED_S = 0.5
ORDER_LIMIT_S = 120.0
"""Of a command, with the replicas that start meanwhile."""


class Deck:
    """`rounds` counts those that are over."""

    def __init__(self, random: Random, cards: Cards, gap_s: tuple[float, float], *, brief: bool) -> None:
        """`brief`: each card once a round."""
        self.rounds = 0
        self._random = random
        self._cards = {name: (1, play) for name, (_, play) in cards.items()} if brief else cards
        self._gap_s = gap_s
        self._over = asyncio.Event()

    async def play(self) -> None:
        """Until `stop`; the card on the table is played to its end."""
        while not self._over.is_set():
            hand = [name for name, (count, _) in self._cards.items() for _ in range(count)]
            self._random.shuffle(hand)
            for name in hand:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._over.wait(), self._random.uniform(*self._gap_s))
                if self._over.is_set():
                    return
                with suppress(ProcessLookupError, FileNotFoundError):  # whom it was for has just ended
                    await self._cards[name][1]()
            self.rounds += 1

    def stop(self) -> None:
        self._over.set()


class Workers:
    """Signals at worker processes."""

    def __init__(self, random: Random, client: AsyncClient, mishaps: Mishaps, broken: Broken) -> None:
        self.cards: Cards = {
            "kill": (5, self._kill_one),
            "stop": (5, self._stop_one),
            "kill one that is stopped": (1, self._kill_stopped),
            "stop until it is replaced": (1, self._silence),
            "kill all of a stage": (1, self._kill_stage),
        }
        self._random = random
        self._client = client
        self._mishaps = mishaps
        self._broken = broken

    async def _kill_one(self) -> None:
        for replica in await self._picked(spared=ELDERS):
            with opened(replica["pid"]) as process:
                self._kill(process, replica, "worker killed")

    async def _kill_stage(self) -> None:
        """Its requests wait until one is back."""
        for replica in [one for one in await self._ready() if one["id"].startswith(f"{MIDDLE}/")]:
            with suppress(ProcessLookupError), opened(replica["pid"]) as process:
                self._kill(process, replica, "worker killed, with all of its stage")

    async def _stop_one(self) -> None:
        """For less than the router waits."""
        for replica in await self._picked():
            sort = "worker stopped for a while"
            with opened(replica["pid"]) as process, self._mishap("stop", replica, sort), stopped(process):
                await asyncio.sleep(self._random.uniform(*STOPPED_S))

    async def _kill_stopped(self) -> None:
        for replica in await self._picked(spared=ELDERS):
            with opened(replica["pid"]) as process, stopped(process):
                await asyncio.sleep(self._random.uniform(*STOPPED_S))
                self._kill(process, replica, "worker killed while stopped")

    async def _silence(self) -> None:
        """F2: the router has to end it."""
        for replica in await self._picked(spared=ELDERS):
            sort = "worker stopped until replaced"
            with opened(replica["pid"]) as process, self._mishap("death", replica, sort), stopped(process):
                deadline = time.monotonic() + REPLACED_S
                while alive(replica["pid"]) and time.monotonic() < deadline:
                    await asyncio.sleep(0.1)
                if alive(replica["pid"]):
                    self._broken(replica["id"], f"stopped for {REPLACED_S} s and not replaced")

    def _kill(self, process: Process, replica: dict[str, Any], sort: str) -> None:
        with self._mishap("death", replica, sort):
            process.send(signal.SIGKILL)

    @contextmanager
    def _mishap(self, kind: Kind, replica: dict[str, Any], sort: str) -> Iterator[None]:
        mishap = self._mishaps.begin(kind, replica["id"], sort)
        try:
            yield
        finally:
            self._mishaps.end(mishap)

    async def _picked(self, spared: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        """One, if there is one."""
        found = [one for one in await self._ready() if one["id"] not in spared]
        return [self._random.choice(found)] if found else []

    async def _ready(self) -> list[dict[str, Any]]:
        """Who loads is left alone: its death would only make it load longer."""
        return [one for one in replicas_of(await self._client.status()) if one["pid"] and one["state"] == "ready"]


class Operator:
    """Commands of `omnizmq`, as one would type them. They may be refused: a replica may just have died."""

    def __init__(self, random: Random, deployment: str, mishaps: Mishaps, broken: Broken) -> None:
        self.cards: Cards = {
            "restart a stage": (2, self._restart),
            "restart by force": (1, self._restart_by_force),
            "drain": (2, self._drain),
        }
        self._random = random
        self._deployment = deployment
        self._mishaps = mishaps
        self._broken = broken

    async def _restart(self) -> None:
        await self._order("restart", MIDDLE)

    async def _restart_by_force(self) -> None:
        await self._order("restart", self._one(), "--force", "--timeout", str(FORCED_S))

    async def _drain(self) -> None:
        target = self._one()
        await self._order("drain", target, "--timeout", str(DRAIN_S))
        await asyncio.sleep(self._random.uniform(0.1, 1.5))
        if await self._order("drain", target, "--undo"):
            self._broken(target, "drain --undo failed")

    def _one(self) -> str:
        return self._random.choice((f"{MIDDLE}/0", f"{MIDDLE}/1"))

    async def _order(self, action: str, target: str, *options: str) -> int:
        kind: Kind = "force" if "--force" in options else "order"
        mishap = self._mishaps.begin(kind, target, " ".join((action, *options[:1])))
        arguments = (action, target, *options, "--connect", self._deployment)
        done = await asyncio.to_thread(omnizmq, *arguments, timeout_s=ORDER_LIMIT_S)
        self._mishaps.end(mishap)
        if done.returncode == 1:
            self._mishaps.counts[f"{action}, refused or too late"] += 1
        elif done.returncode:
            self._broken(target, f"omnizmq {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
        return done.returncode


class Crowd:
    """What happens to client processes. The first one is never killed."""

    def __init__(self, random: Random, clients: Clients, mishaps: Mishaps) -> None:
        self.cards: Cards = {
            "kill": (2, self._kill),
            "freeze": (3, self._freeze),
            "freeze beyond the grace": (1, self._freeze_long),
            "kill one that is frozen": (1, self._kill_frozen),
        }
        self._random = random
        self._clients = clients
        self._mishaps = mishaps

    async def _kill(self) -> None:
        number = await self._picked(spared=(0,))
        self._mishaps.counts["client killed"] += 1
        await self._clients.replace(number)

    async def _freeze(self) -> None:
        await self._frozen(await self._picked(), self._random.uniform(*FROZEN_S), "client stopped for a while")

    async def _freeze_long(self) -> None:
        await self._frozen(await self._picked(), GRACE_S + 2.5, "client stopped beyond the grace")

    async def _kill_frozen(self) -> None:
        number = await self._picked(spared=(0,))
        with opened(self._clients.pid(number)) as process, stopped(process):
            await asyncio.sleep(self._random.uniform(0.1, GRACE_S + 1))
            self._mishaps.counts["client killed while stopped"] += 1
            await self._clients.replace(number)

    async def _frozen(self, number: int, seconds: float, sort: str) -> None:
        with opened(self._clients.pid(number)) as process:
            mishap = self._mishaps.begin("freeze", str(number), sort)
            with stopped(process):
                await asyncio.sleep(seconds)
            self._mishaps.end(mishap)

    async def _picked(self, spared: tuple[int, ...] = ()) -> int:
        """Who has just been started is waited for: one that is stopped while it connects would give up."""
        deadline = time.monotonic() + CONNECTED_S
        while not (found := [number for number in self._clients.numbers if number not in spared]):
            if time.monotonic() > deadline:
                raise ProcessLookupError("no client")
            await asyncio.sleep(0.1)
        return self._random.choice(found)


@contextmanager
def opened(pid: int) -> Iterator[Process]:
    """Raises `ProcessLookupError` or `FileNotFoundError` where there is no such process of this soak."""
    process = Process(pid)
    try:
        yield process
    finally:
        process.close()


@contextmanager
def stopped(process: Process) -> Iterator[None]:
    process.send(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send(signal.SIGCONT)
