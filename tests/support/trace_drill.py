"""Drills of the verdict: a request is made to stand still at a known place, looked at, ended, and looked at again (T2).

"It stands still" is read off the facts and the workers' answers, of which the verdict is made, and never off the
verdict: so many outputs made here, nothing more to come from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from omnizmq import AsyncClient
from support.drill import STAGES, cancel_the_rest, words
from support.running import Asking, Running, launched
from support.trace_watch import Document, Expected, Watch

CALM = (
    "router.heartbeat_interval_s=0.1",
    "router.heartbeat_timeout_s=60",
    "router.restart_delay_s=0.02",
    "router.max_restart_delay_s=0.05",
    "router.terminal_grace_s=3600",
)
"""Nobody is given up while it is looked at."""

Found = dict[str, Expected]
"""What is right of requests that have ended, by their ids."""

STEP_NS = 1_100_000_000
"""A step that has taken so long is one to be named."""


@dataclass(frozen=True)
class Case:
    """A request that stands still before output `number` of `stage`."""

    id: str
    stage: str
    number: int
    length: int  # of its prompt, in words
    modalities: tuple[str, ...] = ("text", "audio")
    begun: str = (
        "running"  # how far the stage has come with its first output: it is not stepped while it waits for time
    )

    @property
    def replica(self) -> str:
        return f"{self.stage}/0"

    @property
    def prompt(self) -> str:
        return words("w", self.length)

    @property
    def planned(self) -> tuple[str, ...]:
        return STAGES if "audio" in self.modalities else STAGES[:1]

    @property
    def boundaries(self) -> tuple[str, ...]:
        """Those that can be the last: what the stage did last, or what stages beside it did meanwhile."""
        text, last = "text" in self.modalities, self.stage == "code2wav"
        given = "published" if last or self.planned == (self.stage,) else "first_output"
        own = self.begun if self.number == 1 else given
        found = [f"{self.stage} {own}"]
        if self.stage != "thinker":
            found += ["thinker finished", "thinker delivered"]
        if last:
            found.append("talker finished")
        if not last and self.number > 1 and self.planned == STAGES:
            found.append("code2wav published")
            found += ["thinker published"] if text else []
        return tuple(found)

    def stands(self, document: Document) -> bool:
        """What is upstream has finished, the stage has made all before its `number`, and so have those behind it."""
        at = self.planned.index(self.stage)
        upstream = all("finished" in steps(document, name) for name in self.planned[:at])
        return upstream and all(made(document, name) == self.number - 1 for name in self.planned[at:])

    def expected(self, *causes: str) -> Expected:
        """While it stands still, the stage itself being the one that has to move."""
        return Expected(causes, self.stage, self.replica, owner=self.replica, boundaries=self.boundaries)

    def ended(self, *causes: str) -> Expected:
        """Of the same request, after it has ended without its outputs."""
        return replace(self.expected(*causes), owner=None)


COMPLETE = Expected(("complete",), complete=True, boundaries=("terminal",))

HOLD = Case("hold-at-talker-x", "talker", 2, 3)
"""With `HELD` it keeps its place in the Talker, and makes nothing more."""


def steps(document: Document, stage: str) -> list[str]:
    """The events of a stage's last attempt."""
    last = max((event["attempt"] for event in document["events"]), default=0)
    return [one["event"] for one in document["events"] if one.get("stage") == stage and one["attempt"] == last]


def events(document: Document) -> list[str]:
    return [event["event"] for event in document["events"]]


def answer(document: Document, stage: str) -> Document | None:
    """What the stage's worker says now. None: nothing."""
    found: Document | None = ((document.get("live") or {"stages": {}})["stages"].get(stage) or {}).get("answer")
    return found


def made(document: Document, stage: str) -> int | None:
    """Outputs that the stage has made, as its worker says; None: it says nothing."""
    said = answer(document, stage)
    if said is None or "registered" not in steps(document, stage):
        return None
    given = [] if said["caller"] is None else [said["outputs"]]
    count = max([*given, *(edge["made"] for edge in said["edges"])], default=0)
    known = "first_output" if said["caller"] is None else "published"
    return count if not count or known in steps(document, stage) else None


def engine(document: Document, stage: str) -> tuple[str, int]:
    """What its engine does, and for how long, in nanoseconds."""
    said = answer(document, stage)
    return ("", 0) if said is None else (said["engine"], said["at_ns"] - said["engine_since_ns"])


def in_long_step(document: Document, stage: str) -> bool:
    state, for_ns = engine(document, stage)
    return state == "stepping" and for_ns > STEP_NS


def alone_unfinished(document: Document, stage: str) -> bool:
    """All stages but this one have reported, or were never given the request."""
    stages = (document["live"] or {"stages": {}})["stages"]
    return [name for name, one in stages.items() if one["submitted"] and not one["finished"]] == [stage]


def over(document: Document) -> bool:
    """It has ended, and every stage has said so."""
    return document["state"] == "ended" and "cleaned" in events(document)


def does_not_answer(document: Document, replica_id: str) -> bool:
    return "received" in events(document) and replica_id in (document["live"] or {"silent": []})["silent"]


def still_unregistered(document: Document, stage: str) -> bool:
    return does_not_answer(document, f"{stage}/0") and "submitted" in steps(document, stage)


def cases(fault: str, number: int, *, modalities: bool = False) -> Iterator[Case]:
    """On each stage the first output; or a middle one and the last. With `modalities` also for those who ask for less.

    A request of as many words as that number is struck at its last output, a longer one in the middle."""
    for stage in STAGES:
        for where, length in (("first", 3),) if number == 1 else (("middle", 6), ("last", number)):
            name = f"{fault}-at-{stage}-{where}"
            yield Case(name, stage, number, length)
            if modalities:
                yield Case(f"{name}-audio", stage, number, length, ("audio",))
                if stage == "thinker":
                    yield Case(f"{name}-text", stage, number, length, ("text",))


def struck(fault: str, number: int, stages: Sequence[str] = STAGES) -> tuple[str, ...]:
    """Settings: on each stage, this fault at this output of the requests that name the stage."""
    return tuple(
        f"stage.{stage}.options.{option}"
        for stage in stages
        for option in (f"{fault}={number}", f"fault_only=-at-{stage}-")
    )


HELD = struck("silent_at", 2)


def ask(client: AsyncClient, case: Case, **options: Any) -> Asking:
    return Asking(client, case.prompt, request_id=case.id, modalities=list(case.modalities), **options)


async def ended(watch: Watch, id_: str, right: Expected) -> Found:
    watch.judge(id_, "ended", await watch.when(id_, over), right)
    return {id_: right}


async def aborted(watch: Watch, client: AsyncClient, asking: Asking, id_: str, right: Expected) -> Found:
    """It is aborted, and named as it was while it stood still."""
    await client.abort(id_)
    assert await asking.error() is None
    return await ended(watch, id_, replace(right, causes=("aborted",), owner=None, says=()))


def drilled(
    sets: Sequence[str],
    drill: Callable[[Watch, AsyncClient, Running], Awaitable[Found]],
    config: str = "synthetic",
) -> None:
    """A deployment of its own, drilled and stopped. `drill` returns what is right of the requests that have ended: when
    nothing of the deployment is left, their traces still say it."""

    async def whole(deployment: Running, watch: Watch) -> Found:
        async with AsyncClient.connect(deployment.name) as client:
            try:
                return await drill(watch, client, deployment)
            except BaseException:
                await cancel_the_rest()
                raise

    with launched(config, *sets) as deployment:
        watch = Watch(deployment.name)
        after = asyncio.run(whole(deployment, watch))
        assert deployment.status()["counters"]["router_errors"] == 0
        assert deployment.stop() == 0
    for number, (id_, expected) in enumerate(after.items()):
        document = watch.look(id_) if number else watch.look_from_outside(id_)
        watch.judge(id_, "deployment gone", document, expected)
    watch.all_right()
