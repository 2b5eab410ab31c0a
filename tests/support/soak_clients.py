"""The client processes of a soak, as their driver sees them: started, replaced, stopped, and what they write judged."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from support.soak_ask import Ask
from support.soak_journal import Began, Ended, Line, Reader
from support.soak_mishaps import Mishaps

STOP_LIMIT_S = 120.0


@dataclass
class Client:
    """`asks`: it is connected. `live` are requests that have begun and not ended."""

    process: subprocess.Popen[bytes]
    journal: Reader
    asks: bool = False
    live: set[str] = field(default_factory=set)


@dataclass
class Tally:
    """`ends`: fate -> how -> requests. `cut`: requests whose client was killed. `incomplete`: successes without the
    usage of all stages. `firsts`: seconds until the first output, of requests without a fate."""

    begun: int = 0
    cut: int = 0
    incomplete: int = 0
    outputs: int = 0
    ends: dict[str, Counter[str]] = field(default_factory=dict)
    firsts: list[float] = field(default_factory=list)

    @property
    def ended(self) -> int:
        return sum(sum(hows.values()) for hows in self.ends.values())

    def add(self, ask: Ask, end: Ended) -> None:
        self.outputs += end.outputs
        self.incomplete += bool(end.incomplete)
        self.ends.setdefault(ask.fate, Counter())[end.how] += 1
        if end.first_s is not None and ask.fate == "whole" and ask.output_kind == "delta":
            self.firsts.append(end.first_s)


class Clients:
    """`broken(external_id, text)` hears of requests that ended as they must not."""

    def __init__(
        self,
        deployment: str,
        seed: int,
        home: Path,
        callers: int,
        mishaps: Mishaps,
        broken: Callable[[str, str], None],
        tally: Tally,
    ) -> None:
        self._deployment = deployment
        self._seed = seed
        self._home = home
        self._callers = callers
        self._mishaps = mishaps
        self._broken = broken
        self._tally = tally
        self._clients: dict[int, Client] = {}
        self._started = 0

    @property
    def numbers(self) -> list[int]:
        """Of those that are connected."""
        return [number for number, client in self._clients.items() if client.asks]

    def pid(self, number: int) -> int:
        return self._clients[number].process.pid

    def start(self) -> None:
        """One more."""
        number = self._started
        self._started += 1
        journal = self._home / f"client-{number}.jsonl"
        log = self._home / f"client-{number}.log"
        arguments = (self._deployment, self._seed, number, self._callers, journal)
        with open(log, "wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "support.soak_client", *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
            )
        self._clients[number] = Client(process, Reader(journal))

    async def replace(self, number: int) -> None:
        """Kill one and start another. What it had begun has no end that anybody hears of."""
        client = self._clients.pop(number, None)
        if client is None:  # it has ended by itself, which has been told
            return
        client.process.kill()
        await asyncio.to_thread(client.process.wait)
        self._read(client)
        self._tally.cut += len(client.live)
        _let_go(client)
        self.start()

    def look(self) -> None:
        """Judge what has ended since, and see that all are there."""
        for number, client in list(self._clients.items()):
            self._read(client)
            status = client.process.poll()
            if status is not None:
                self._gone(number, f"ended with {status} in the middle")

    async def stop(self) -> None:
        """Each brings what is under way to its end, and ends."""
        for client in self._clients.values():
            assert client.process.stdin is not None
            client.process.stdin.close()
        for number, client in list(self._clients.items()):
            try:
                status = await asyncio.to_thread(client.process.wait, STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                client.process.kill()
                status = await asyncio.to_thread(client.process.wait)
            self._read(client)
            if status or client.live:
                self._gone(number, f"ended with {status}")
            else:
                _let_go(self._clients.pop(number))

    def kill_all(self) -> None:
        while self._clients:
            _, client = self._clients.popitem()
            client.process.kill()
            client.process.wait()
            _let_go(client)

    def _gone(self, number: int, how: str) -> None:
        client = self._clients.pop(number)
        log = (self._home / f"client-{number}.log").read_text()
        self._broken(f"client {number}", f"{how}, with {len(client.live)} requests under way; {log[-2000:]}")
        _let_go(client)

    def _read(self, client: Client) -> None:
        for line in client.journal.read():
            self._note(client, line)

    def _note(self, client: Client, line: Line) -> None:
        match line:
            case Began():
                client.asks = True
                self._tally.begun += 1
                client.live.add(line.external_id)
            case Ended():
                if line.external_id not in client.live:
                    self._broken(line.external_id, "it ended twice")
                client.live.discard(line.external_id)
                self._tally.add(Ask.of(line.external_id), line)
                why = self._mishaps.unexplained(line)
                if why is not None:
                    self._broken(line.external_id, f"{why}: {line}")


def _let_go(client: Client) -> None:
    assert client.process.stdin is not None
    client.process.stdin.close()
