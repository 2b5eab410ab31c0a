"""Every ring of a real deployment is given to the engines that map it, and given back, whoever dies (W3, F2)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.running import Running, collect, eventually, kill, launched, text_of
from support.stress import visible

from omnizmq import AsyncClient

pytestmark = pytest.mark.usefixtures("no_leaks")

STAGES = ("thinker", "talker", "code2wav")
SETS = (*(f'stage.{stage}.engine="pinning"' for stage in STAGES), "router.restart_delay_s=0.05")


class Notes:
    """What the engines have written down."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self._file.read_text().splitlines()] if self._file.exists() else []

    def held(self) -> Counter[tuple[str, str]]:
        """Mappings that are pinned now: by stage, and whether it reads or writes there."""
        held: Counter[tuple[str, str]] = Counter()
        for call, stage, kind, *_ in self.lines():
            held[stage, kind] += 1 if call == "pin" else -1
        return +held

    def of(self, pid: int) -> list[str]:
        """The calls of one process, with their addresses."""
        return [f"{call} {address}" for call, _, _, process, address, _ in self.lines() if process == str(pid)]


ALL = Counter(
    [("thinker", "writes"), ("talker", "writes"), ("talker", "reads"), ("code2wav", "reads")],
)


async def _speak(deployment: Running) -> str:
    async with AsyncClient.connect(deployment.name) as client:
        return text_of(await collect(client, "one two three"))


def speak(deployment: Running) -> None:
    assert asyncio.run(_speak(deployment)) == "one two three"


def is_back(replica: dict[str, Any]) -> bool:
    """The first incarnation may still be called ready when its consumers know of its death."""
    return (replica["state"], replica["incarnation"]) == ("ready", 2)


def becomes(notes: Notes, expected: Counter[tuple[str, str]]) -> Callable[[], bool]:
    return lambda: notes.held() == expected


def test_w3_f2_each_mapping_is_given_once_and_given_back(home: Path) -> None:
    notes = Notes(home / "pinned")
    with visible(PINNED=str(home / "pinned")), launched("synthetic", *SETS) as deployment:
        speak(deployment)
        assert eventually(becomes(notes, ALL)), notes.lines()
        assert {(kind, int(size)) for _, _, kind, _, _, size in notes.lines()} == {
            ("reads", 16 << 20),
            ("writes", 16 << 20),
        }
        talker, dead = deployment.worker_pid("talker/0"), deployment.worker_pid("thinker/0")
        (mapped,) = [
            address for call, _, kind, pid, address, _ in notes.lines() if (kind, pid) == ("reads", str(talker))
        ]
        kill(dead)
        assert eventually(lambda: notes.of(talker)[-1] == f"unpin {mapped}"), notes.lines()
        assert eventually(lambda: is_back(deployment.replica("thinker/0")), timeout_s=30)
        speak(deployment)
        assert eventually(becomes(notes, ALL + Counter([("thinker", "writes")]))), "the dead one gave nothing back"
        last = [deployment.worker_pid(f"{stage}/0") for stage in STAGES]
        assert deployment.stop() == 0
    for pid in last:
        calls = Counter(notes.of(pid))
        assert all(calls[f"unpin {call.split()[1]}"] == count for call, count in calls.items()), notes.lines()
