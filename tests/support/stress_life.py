"""One deployment of a stress, from its start to its end, which is a signal or a kill of the router."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

from omnizmq import AsyncClient
from support import leaks
from support.running import Running, alive, kill, launched
from support.stress_content import EDGES, SINK, SOURCE, STAGES
from support.stress_faults import Faults
from support.stress_figures import Figures
from support.stress_requests import Requests
from support.stress_tally import corruptions, total
from support.stress_watch import Descriptors, miscounted, quiet, replicas_of, used_bytes

HEARTBEAT_S = 0.2
END_LIMIT_S = 10.0


@dataclass(frozen=True)
class Share:
    """Of one life: so many chunks and kills, at least."""

    chunks: int
    kills: int


class Life:
    """`home` has the runtime and state directories. What happens is added to `figures`."""

    def __init__(self, home: Path, figures: Figures, share: Share, *, ends_by_kill: bool) -> None:
        self._home = home
        self._figures = figures
        self._share = share
        self._ends_by_kill = ends_by_kill
        self._name = f"{figures.seed}-{figures.lives}"
        self._random = Random(self._name)
        self._tally = home / f"tally-{figures.lives}"
        self._faults = Faults(Random(f"faults {self._name}"), max(0, share.kills - ends_by_kill))

    def run(self) -> None:
        self._tally.mkdir()
        root = self._home / "run" / "omnizmq"
        root.mkdir(mode=0o700, exist_ok=True)
        before = leaks.look(root)
        path = self._home / f"life-{self._figures.lives}.toml"
        path.write_text(toml(self._random, self._name, self._tally))
        with launched(str(path)) as deployment:
            asyncio.run(self._live(deployment))
            if alive(deployment.pid):
                status = deployment.stop()
                self._figures.problem(status != 0, f"the deployment ended with status {status}")
        left = leaks.settle(before, root)
        self._figures.leaks += len(left)
        self._figures.problem(bool(left), f"left behind: {'; '.join(left)}")
        self._count()

    def _count(self) -> None:
        figures, counts, found = self._figures, total(self._tally), corruptions(self._tally)
        figures.chunks += counts["arrived"]
        figures.released += counts["released"] + counts["released_elsewhere"]
        figures.corrupt += len(found)
        figures.problems += found
        figures.worker_kills += len(self._faults.deaths)
        figures.stops += self._faults.stops

    async def _live(self, deployment: Running) -> None:
        async with AsyncClient.connect(deployment.name) as client, AsyncClient.connect(deployment.name) as watcher:
            requests = Requests(client, self._name, self._figures, self._faults)
            if await self._is_whole(deployment, requests, watcher) and self._ends_by_kill:
                await self._kill_router(deployment, requests, watcher)

    async def _is_whole(self, deployment: Running, requests: Requests, watcher: AsyncClient) -> bool:
        """Requests in peace, under faults, and in peace again: everything is as it was before the faults."""
        descriptors = Descriptors(watcher, deployment.pid)
        await requests.calm()
        if not await self._is_quiet(watcher, "after the start"):
            return False
        await descriptors.remember()
        await self._under_faults(requests, watcher)
        if not await self._is_quiet(watcher, "after the faults"):
            return False
        await requests.calm()  # those who are new have met all the others as well
        if not await self._is_quiet(watcher, "after the last requests"):
            return False
        grown = await descriptors.grown()
        self._figures.leaks += len(grown)
        self._figures.problem(bool(grown), "; ".join(grown))
        wrong = miscounted(await watcher.status())
        self._figures.problem(bool(wrong), wrong)
        return not self._figures.problems

    async def _is_quiet(self, watcher: AsyncClient, when: str) -> bool:
        going = await quiet(watcher, HEARTBEAT_S)
        self._figures.deadlocks += "live_requests" in going
        self._figures.problem(bool(going), f"not quiet {when}: {going}")
        return not going

    async def _under_faults(self, requests: Requests, watcher: AsyncClient) -> None:
        striking = asyncio.create_task(self._faults.run(watcher))
        requests.start()
        while not self._figures.problems and not (striking.done() and self._has_share):
            used = used_bytes(await watcher.status())
            self._figures.peak_ring_bytes = max(self._figures.peak_ring_bytes, used)
            await asyncio.sleep(HEARTBEAT_S / 2)
        striking.cancel()
        await requests.stop()
        await asyncio.gather(striking, return_exceptions=True)

    @property
    def _has_share(self) -> bool:
        return total(self._tally)["arrived"] >= self._share.chunks

    async def _kill_router(self, deployment: Running, requests: Requests, watcher: AsyncClient) -> None:
        """Under load. Every request hears of it, and every worker ends."""
        workers = [one["pid"] for one in replicas_of(await watcher.status())]
        requests.start()
        await asyncio.sleep(self._random.uniform(0.05, 1.0))
        requests.router_killed = True
        self._figures.router_kills += 1
        kill(deployment.pid)
        await requests.stop()
        deadline = time.monotonic() + END_LIMIT_S
        while (left := [pid for pid in workers if alive(pid)]) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        self._figures.problem(bool(left), f"workers {left} outlived the router")


def toml(random: Random, name: str, tally: Path) -> str:
    """One source, two consumers of the same chunks, a join of both. Any replica meets any of the next, by affinity."""
    parts = [
        f'name = "stress-{name}"\n[router]\nheartbeat_interval_s = {HEARTBEAT_S}\nheartbeat_timeout_s = 30\n'
        "restart_delay_s = 0.01\nmax_restart_delay_s = 0.05"
    ]
    for stage in STAGES:
        replicas = 2 if stage == SOURCE else random.choice((1, 1, 2))
        final = 'final_output = "text"\n' if stage == SINK else ""
        parts.append(
            f'[[stage]]\nname = "{stage}"\nengine = "stress"\nreplicas = {replicas}\nmax_inflight = 16\n{final}'
            f'policy = "affinity"\noptions = {{ seed = "{name}", tally = "{tally}" }}'
        )
    for source, target in EDGES:
        mode = random.choice(("chunk", "chunk", "chunk", "payload"))
        window, ring = random.choice((1, 2, 8, 32)), random.choice((1, 1, 2))
        parts.append(
            f'[[edge]]\nfrom = "{source}"\nto = "{target}"\nmode = "{mode}"\n'
            f"window_chunks = {window}\nring_mib = {ring}"
        )
    return "\n\n".join(parts) + "\n"
