"""Looks at requests as a user does, by `omnizmq trace ID --json`, and says what is wrong with a verdict (T2).

Each look is compared with what the drill knows by itself: who was made to stop, and after which output. All looks of a
test are judged before it fails, and are printed in one table: `python -m pytest -rP` shows those that were right, too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from click.testing import CliRunner

from omnizmq.cli import group
from support.running import document as only_document
from support.running import omnizmq

Document = dict[str, Any]
LIMIT_S = 40.0


@dataclass(frozen=True)
class Expected:
    """What a verdict has to say. Of `causes` and `boundaries` any is right; no boundaries: whichever."""

    causes: tuple[str, ...]
    stage: str | None = None
    replica: str | None = None
    owner: str | None = None
    boundaries: tuple[str, ...] = ()
    complete: bool = False
    reason: str | None = None
    says: tuple[str, ...] = ()
    timed: bool = True  # it says since when, if it is somebody's move

    def mistakes(self, document: Document) -> list[str]:
        """One for each part of the verdict that is another one."""
        verdict = document["verdict"]
        wanted = {"stage": self.stage, "replica": self.replica, "owner": self.owner, "complete": self.complete}
        wanted["reason_no_output"] = self.reason
        found = [f"{key} {verdict[key]!r}, not {value!r}" for key, value in wanted.items() if verdict[key] != value]
        if verdict["cause"] not in self.causes:
            found.append(f"cause {verdict['cause']!r}, not {' or '.join(self.causes)}")
        if self.boundaries and verdict["last_boundary"] not in self.boundaries:
            found.append(f"boundary {verdict['last_boundary']!r}, not {' or '.join(self.boundaries)}")
        named = self.replica or self.stage
        found += [
            f"{word!r} is not in the text" for word in (*self.says, named) if word and word not in verdict["text"]
        ]
        if self.owner is not None and self.timed and not _is_past(verdict["since_ms"], document["live"]):
            found.append(f"since_ms {verdict['since_ms']!r}")
        return found


def _is_past(since_ms: float | None, live: Document | None) -> bool:
    return since_ms is not None and since_ms >= 0 and (live is None or since_ms * 1e6 <= live["now_ns"])


@dataclass
class Watch:
    """At one deployment, by its name."""

    name: str
    looks: list[str] = field(default_factory=list)
    wrong: int = 0

    def look(self, id_: str) -> Document:
        """By the command, in this process. Nothing is known yet: an empty document."""
        done = CliRunner().invoke(group, ["trace", id_, "--json", "--connect", self.name])
        found: Document = json.loads(done.stdout) if done.exit_code == 0 else {}
        return found

    def look_from_outside(self, id_: str) -> Document:
        """By the command, in a process of its own."""
        return only_document(omnizmq("trace", id_, "--json", "--connect", self.name))

    async def when(self, id_: str, holds: Callable[[Document], bool]) -> Document:
        """The first look at which that holds. It must be about facts and answers, never about the verdict."""
        found: Document = {}
        try:
            async with asyncio.timeout(LIMIT_S):
                while not (found := await asyncio.to_thread(self.look, id_)) or not holds(found):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{id_} was never so: {json.dumps(found)}") from None
        return found

    def judge(self, case: str, when: str, document: Document, expected: Expected) -> None:
        """Keep what is wrong with this look until `all_right`."""
        mistakes = expected.mistakes(document)
        verdict = document["verdict"]
        got = f"{verdict['cause']} at {verdict['replica'] or verdict['stage']}, {verdict['last_boundary']}"
        self.looks.append(f"{'WRONG' if mistakes else 'right'}  {case}, {when}: {got}: {verdict['text']}")
        self.looks += [f"       {mistake}" for mistake in mistakes]
        self.wrong += bool(mistakes)

    def all_right(self) -> None:
        """Fails where a look was wrong."""
        table = "\n".join(self.looks)
        assert not self.wrong, f"{self.wrong} wrong:\n{table}"
        print(table)  # noqa: T201 (the table of a test that passes)
