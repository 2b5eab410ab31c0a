"""What befell the processes of a soak, by its own doing; and whether that explains how a request ended."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from support.soak_ask import Ask
from support.soak_config import GRACE_S, MIDDLE, TEXT, WINDOW
from support.soak_journal import Ended

Kind = Literal["death", "force", "stop", "order", "freeze"]
"""Of a worker: its death, an operator's order that may end it in the middle, a stop for a while, any other order. Of a
client: a stop for a while."""

LOST: tuple[Kind, ...] = ("death", "force")
OUT: tuple[Kind, ...] = (*LOST, "order")
FROZEN: tuple[Kind, ...] = ("freeze",)

NOTICED_S = 2.0
"""The router hears of a death within this time; until then it binds requests to the dead."""

OUTAGE_S = 20.0
"""A replica that has died, or was drained or restarted, serves again after this time."""

KEPT_S = 300.0
"""No request that is still to be judged began longer ago than that."""

LATE_S = 8.0
"""A request ends so soon after its deadline, as its caller sees it on a busy machine."""


@dataclass
class Mishap:
    """`target`: a stage, a replica, or the number of a client. It may still be going on."""

    kind: Kind
    target: str
    began: float
    ended: float = inf

    @property
    def stage(self) -> str:
        return self.target.partition("/")[0]


@dataclass
class Mishaps:
    """`counts`: of each sort. `deaths`: of workers, by our hand."""

    counts: Counter[str] = field(default_factory=Counter)
    deaths: int = 0
    _all: list[Mishap] = field(default_factory=list)

    def begin(self, kind: Kind, target: str, sort: str) -> Mishap:
        mishap = Mishap(kind, target, time.monotonic())
        self.counts[sort] += 1
        self.deaths += kind == "death"
        self._all = [one for one in self._all if one.ended > mishap.began - KEPT_S]
        self._all.append(mishap)
        return mishap

    def end(self, mishap: Mishap) -> None:
        mishap.ended = time.monotonic()

    def death(self, replica: str, sort: str) -> None:
        self.end(self.begin("death", replica, sort))

    def met(self, kinds: Collection[Kind], since: float, until: float) -> list[Mishap]:
        return [one for one in self._all if one.kind in kinds and one.began <= until and one.ended >= since]

    # --- Judging -----------------------------------------------------------------------------------------------------

    def unexplained(self, end: Ended) -> str | None:
        """Why that request may not have ended like this. None: it may."""
        if end.wrong is not None:
            return end.wrong
        ask = Ask.of(end.external_id)
        good = self._may(ask, end)
        return None if good else f"{end.how} is not explained by anything that befell it"

    def _may(self, ask: Ask, end: Ended) -> bool:
        match end.how:
            case "stop" | "length":
                return self._may_succeed(ask, end)
            case "abort":
                return ask.fate == "abort"
            case "cancelled":
                return ask.fate == "cancel"
            case "deadline_exceeded":
                return ask.deadline_s is not None and end.at - end.began >= ask.deadline_s
            case "slow_reader":
                return self._may_be_slow(ask, end)
            case "stage_error":
                return (ask.fate, end.stage) == ("faulty", TEXT) and "told to fail" in end.message
            case "input_timeout":
                return (ask.fate, end.stage) == ("quiet", MIDDLE) and f"{MIDDLE}->" in end.message
            case "unavailable":
                return end.outputs == 0 and self._was_out(end)
            case _:
                return False

    def _may_succeed(self, ask: Ask, end: Ended) -> bool:
        """With usage that is incomplete where a replica of that stage was lost, or the deadline passed when the outputs
        were complete; never read where any replica was lost, for another attempt has another grace."""
        if ask.fate in ("faulty", "quiet"):
            return False
        lost = {one.stage for one in self.met(LOST, end.began - NOTICED_S, end.at)}
        past_s = end.at - end.began - (inf if ask.deadline_s is None else ask.deadline_s)
        if past_s < 0 and not lost.issuperset(end.incomplete):
            return False
        if ask.fate == "never" and ask.outputs > WINDOW + 1:
            return bool(lost)
        return past_s < LATE_S or self._frozen_s(end) > 0

    def _may_be_slow(self, ask: Ask, end: Ended) -> bool:
        """Who never reads is slow once the grace is over; who was frozen for about as long may be."""
        if ask.output_kind == "final" or end.at - end.began < GRACE_S:
            return self._frozen_s(end) > GRACE_S / 2
        return ask.fate == "never" or self._frozen_s(end) > GRACE_S / 2

    def _frozen_s(self, end: Ended) -> float:
        """The longest time for which its client was stopped meanwhile."""
        client = end.external_id.split("-")[2]
        frozen = [one for one in self.met(FROZEN, end.began, end.at) if one.target == client]
        return max((min(one.ended, end.at) - one.began for one in frozen), default=0.0)

    def _was_out(self, end: Ended) -> bool:
        """Whether that stage may have had nobody alive."""
        since = end.began - OUTAGE_S
        return any(one.stage == end.stage for one in self.met(OUT, since, end.at))
