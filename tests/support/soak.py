"""A soak: one deployment under mixed load and mishaps, for minutes or an hour, that has to stay right and to stay flat.

    cd tests && python -m support.soak --minutes 60 --seed 7

What must hold: whatever was heard is what had to be heard; every request had one end, a good one or one that its own
mishap explains; nothing that is measured grew; and when the load is over, all tables are empty, nobody holds more
descriptors than before, and nothing is left behind. The seed decides what is asked and which mishap comes next; the
machine decides when.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from omnizmq import AsyncClient
from omnizmq.errors import OmnizmqError
from support import leaks
from support.running import OMNIZMQ, Running, omnizmq
from support.soak_client import Caller
from support.soak_clients import Clients
from support.soak_config import ELDERS, HEARTBEAT_S, TRACE_MIB, toml
from support.soak_faults import Crowd, Deck, Operator, Workers
from support.soak_journal import Writer
from support.soak_mishaps import Mishaps
from support.soak_report import Report
from support.soak_watch import sample
from support.stress import visible
from support.stress_watch import Descriptors, miscounted, quiet, replicas_of

NAME = "soak"
CALM = 48
EVERY_S = 1.0
MOST_PROBLEMS = 20
"""With so many there is no need to go on."""


@dataclass(frozen=True)
class Plan:
    """`brief`: each mishap once a round, with short pauses between them. At least one round is played."""

    seed: int
    seconds: float
    clients: int = 4
    callers: int = 8
    brief: bool = False

    def gap(self, least: float, most: float) -> tuple[float, float]:
        return (least / 10, most / 10) if self.brief else (least, most)


class Soak:
    """`home` has the runtime and state directories. `say` hears of problems as they come, and of each minute."""

    def __init__(self, home: Path, plan: Plan, say: Callable[[str], object]) -> None:
        self.report = Report(plan.seed, TRACE_MIB)
        self._home = home
        self._plan = plan
        self._say = say
        self._mishaps = Mishaps(self.report.mishaps)
        self._stories: list[asyncio.Task[None]] = []

    def run(self) -> Report:
        root = self._home / "run" / "omnizmq"
        root.mkdir(mode=0o700, exist_ok=True)
        before = leaks.look(root)
        config = self._home / "soak.toml"
        config.write_text(toml(NAME))
        with visible(), deployed(config, self._home / "launch.log") as deployment:
            try:
                asyncio.run(self._live(deployment))
            except OmnizmqError as error:  # the router, most likely
                self._broken("the deployment", f"{error.code}: {error}")
            status = deployment.stop()
            if status:
                self._broken("the deployment", f"ended with status {status}")
        for left in leaks.settle(before, root):
            self._broken("left behind", left)
        return self.report

    async def _live(self, deployment: Running) -> None:
        clients = Clients(
            NAME, self._plan.seed, self._home, self._plan.callers, self._mishaps, self._broken, self.report.tally
        )
        async with AsyncClient.connect(NAME) as client:
            descriptors = Descriptors(client, deployment.pid)
            await self._calm(client, 0)
            await self._is_quiet(client, "after the start")
            await descriptors.remember()
            try:
                await self._under_load(client, clients, deployment.pid)
                await clients.stop()
            finally:
                clients.kill_all()
            await self._is_quiet(client, "after the load")
            await self._calm(client, 1)  # who is new has met all the others as well
            await self._is_quiet(client, "after the last requests")
            for grown in await descriptors.grown():
                self._broken("descriptors", grown)
            self._audit(await client.status())
        await asyncio.gather(*self._stories)

    async def _calm(self, client: AsyncClient, turn: int) -> None:
        """Some requests in peace."""
        journal = Writer(self._home / "calm.jsonl")
        caller = Caller(client, journal)
        names = [f"calm-{self._plan.seed}-driver{turn}-{number}" for number in range(CALM)]
        for end in await asyncio.gather(*map(caller.ask, names)):
            why = self._mishaps.unexplained(end)
            if why is not None:
                self._broken(end.external_id, f"{why}: {end}")
        journal.close()

    async def _is_quiet(self, client: AsyncClient, when: str) -> None:
        going = await quiet(client, HEARTBEAT_S)
        if going:
            self._broken("the deployment", f"not quiet {when}: {going}")

    async def _under_load(self, client: AsyncClient, clients: Clients, router_pid: int) -> None:
        for _ in range(self._plan.clients):
            clients.start()
        decks = self._decks(client, clients)
        playing = [asyncio.create_task(deck.play()) for deck in decks]
        began = time.monotonic()
        while not self._is_over(decks, time.monotonic() - began):
            clients.look()
            for task in playing:
                if task.done():
                    task.result()  # whoever strikes has failed: so has the soak
            await self._measure(client, clients, router_pid, time.monotonic() - began)
            await asyncio.sleep(EVERY_S)
        self.report.seconds = time.monotonic() - began
        for deck in decks:
            deck.stop()
        await asyncio.gather(*playing)

    def _decks(self, client: AsyncClient, clients: Clients) -> list[Deck]:
        plan = self._plan
        workers = Workers(Random(f"{plan.seed} workers"), client, self._mishaps, self._broken)
        operator = Operator(Random(f"{plan.seed} operator"), NAME, self._mishaps, self._broken)
        crowd = Crowd(Random(f"{plan.seed} crowd"), clients, self._mishaps)
        return [
            Deck(Random(f"{plan.seed} deck 1"), workers.cards, plan.gap(1.0, 5.0), brief=plan.brief),
            Deck(Random(f"{plan.seed} deck 2"), operator.cards, plan.gap(5.0, 15.0), brief=plan.brief),
            Deck(Random(f"{plan.seed} deck 3"), crowd.cards, plan.gap(2.0, 8.0), brief=plan.brief),
        ]

    def _is_over(self, decks: list[Deck], seconds: float) -> bool:
        if len(self.report.problems) >= MOST_PROBLEMS:
            return True
        return seconds >= self._plan.seconds and all(deck.rounds for deck in decks)

    async def _measure(self, client: AsyncClient, clients: Clients, router_pid: int, at: float) -> None:
        trace = self._home / "state" / "omnizmq" / NAME / "trace.db"
        others = {"router": router_pid}
        if 0 in clients.numbers:
            others["client/0"] = clients.pid(0)
        self.report.samples.append((at, sample(await client.status(), others, trace)))
        if len(self.report.samples) % 60 == 0:
            self._say(self.report.line(at))

    def _audit(self, status: dict[str, Any]) -> None:
        """What the counters of a quiet deployment must say."""
        self.report.counters = status["counters"]
        wrong = miscounted(status)
        if wrong:
            self._broken("counters", wrong)
        lost = status["counters"]["replicas_lost"]
        if lost > self._mishaps.deaths:
            self._broken("counters", f"{lost} replicas were lost, and only {self._mishaps.deaths} were killed")
        for replica in replicas_of(status):
            if replica["id"] in ELDERS and replica["restarts"]:
                self._broken(replica["id"], f"it has been replaced {replica['restarts']} times, and nobody killed it")

    def _broken(self, who: str, how: str) -> None:
        """A problem. Where it is a request's, its trace is kept, before others push it out."""
        self.report.problems.append(f"{who}: {how}")
        self._say(f"PROBLEM {who}: {how}")
        if who.count("-") == 3 and len(self._stories) < MOST_PROBLEMS:
            self._stories.append(asyncio.get_running_loop().create_task(self._keep_story(who)))

    async def _keep_story(self, external_id: str) -> None:
        told = await asyncio.to_thread(omnizmq, "trace", external_id, "--connect", NAME)
        (self._home / f"trace-{external_id}.txt").write_text(told.stdout + told.stderr)


@contextmanager
def deployed(config: Path, log: Path) -> Iterator[Running]:
    """As `support.running.launched`; what the launcher says goes to a file, for it is more than a pipe holds."""
    with open(log, "wb") as errors:
        process = subprocess.Popen(
            [*OMNIZMQ, "launch", "--config", str(config), "--name", NAME, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if '"endpoint"' not in line:
            raise RuntimeError(f"the deployment did not start: {log.read_text()}")
        yield Running(process, json.loads(line))
    finally:
        process.stdout.close()
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def main() -> int:
    """0: all was well. Progress and problems go to stderr, the report to stdout, and as JSON into a file."""
    parser = argparse.ArgumentParser(description="Soak of one deployment; prints its report as Markdown.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--clients", type=int, default=Plan.clients, help="processes")
    parser.add_argument("--callers", type=int, default=Plan.callers, help="of each, one request at a time")
    parser.add_argument("--report", type=Path, help="the JSON; default: a new file in the directory for such files")
    asked = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="oz-"))
    (home / "run").mkdir(mode=0o700)
    sys.stderr.write(f"seed {asked.seed}, {asked.minutes:g} minutes, in {home}\n")
    plan = Plan(asked.seed, 60 * asked.minutes, asked.clients, asked.callers)
    with patch.dict(os.environ, {"XDG_RUNTIME_DIR": str(home / "run"), "XDG_STATE_HOME": str(home / "state")}):
        report = Soak(home, plan, lambda text: sys.stderr.write(text + "\n")).run()
    problems = report.conclude()
    path = asked.report or Path(tempfile.gettempdir()) / f"omnizmq-soak-{asked.seed}.json"
    path.write_text(json.dumps(report.document(), ensure_ascii=False))
    sys.stdout.write(report.markdown() + "\n")
    sys.stderr.write(f"{path} has the figures\n")
    if problems:
        sys.stderr.write(
            "\n".join([*problems, f"failed (seed {asked.seed}); logs, traces and journals are in {home}\n"])
        )
        return 1
    sys.stderr.write("passed: all was right, nothing grew, nothing was left\n")
    shutil.rmtree(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
