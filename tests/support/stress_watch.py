"""What a deployment holds when nothing happens: tables, rings, descriptors, mappings."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from omnizmq import AsyncClient

QUIET_LIMIT_S = 20.0
SETTLE_LIMIT_S = 10.0
TABLES = ("live_requests", "bindings", "queued", "leftovers")
ENDS = ("finished", "aborted", "failed")
FAULTS = ("bad_frames", "router_errors")


class Held(NamedTuple):
    """By a process: open descriptors by kind, and mappings of anonymous shared memory."""

    descriptors: Counter[str]
    mappings: int


def held(pid: int) -> Held:
    """Raises `OSError` when the process has ended."""
    kinds: Counter[str] = Counter()
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        try:
            kinds[_kind(os.readlink(f"/proc/{pid}/fd/{descriptor}"))] += 1
        except FileNotFoundError:  # closed meanwhile
            continue
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return Held(kinds, sum("/memfd:" in line for line in maps))


def _kind(target: str) -> str:
    """`socket`, `pipe`, `anon_inode`, `memfd` or `file`."""
    if target.startswith("/"):
        return "memfd" if target.startswith("/memfd:") else "file"
    return target.partition(":")[0]


def ring_rows(status: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = status.get("rings", [])
    return rows


def used_bytes(status: dict[str, Any]) -> int:
    return sum(row["used_bytes"] for row in ring_rows(status))


def replicas_of(status: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for stage in status["stages"].values() for one in stage["replicas"]]


def not_quiet(status: dict[str, Any]) -> str:
    """What is still going on. Empty: nothing."""
    going = [f"{key} {status[key]}" for key in TABLES if status[key]]
    going += [f"{one['id']} is {one['state']}" for one in replicas_of(status) if one["state"] != "ready"]
    going += [
        f"{row['replica']} holds {row['used_bytes']} bytes for {row['edge']}"
        for row in ring_rows(status)
        if row["used_bytes"]
    ]
    return ", ".join(going)


def miscounted(status: dict[str, Any]) -> str:
    """What the counters of a quiet deployment say that cannot be. Empty: nothing."""
    counters = status["counters"]
    ended = sum(counters[name] for name in ENDS)
    wrong = [f"{name} {counters[name]}" for name in FAULTS if counters[name]]
    wrong += [f"{counters['requests']} requests had {ended} ends"] * (counters["requests"] != ended)
    return ", ".join(wrong)


async def quiet(client: AsyncClient, heartbeat_s: float) -> str:
    """Wait until nothing goes on, and still does not when every worker has spoken again. Empty: so it is."""
    deadline = time.monotonic() + QUIET_LIMIT_S
    seen = 0
    while True:
        going = not_quiet(await client.status())
        seen = 0 if going else seen + 1
        if seen == 3 or (going and time.monotonic() > deadline):
            return going
        await asyncio.sleep(1.1 * heartbeat_s if seen else 0.05)


class Descriptors:
    """The most that a worker of each stage, and the router, held in an early quiet moment, when all had met all."""

    def __init__(self, client: AsyncClient, router_pid: int) -> None:
        self._client = client
        self._router_pid = router_pid
        self._most: dict[str, Held] = {}

    async def remember(self) -> None:
        for stage, processes in (await self._now()).items():
            kinds: Counter[str] = Counter()
            for one in processes:
                kinds |= one.descriptors
            self._most[stage] = Held(kinds, max(one.mappings for one in processes))

    async def grown(self) -> list[str]:
        """Who holds more now, when what is closing has had time to close."""
        deadline = time.monotonic() + SETTLE_LIMIT_S
        while (more := self._compare(await self._now())) and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        return more

    def _compare(self, now: dict[str, list[Held]]) -> list[str]:
        more = []
        for stage, processes in now.items():
            for one in processes:
                extra = one.descriptors - self._most[stage].descriptors
                if extra:
                    more.append(
                        f"{stage} holds {dict(extra)} more descriptors than {dict(self._most[stage].descriptors)}"
                    )
                if one.mappings > self._most[stage].mappings:
                    more.append(f"{stage} has {one.mappings} mappings, not {self._most[stage].mappings}")
        return more

    async def _now(self) -> dict[str, list[Held]]:
        stages = (await self._client.status())["stages"]
        found = {stage: [held(one["pid"]) for one in stages[stage]["replicas"]] for stage in stages}
        return {**found, "router": [held(self._router_pid)]}
