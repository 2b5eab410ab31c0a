"""T2 on real deployments: full windows and rings, no slot, no place, no replica in service; edges that are fed
once, and graphs that are no chain. As in `test_trace_drills`, the look comes when the request stands still.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from support.drill import bound_together, replica, status_when, stopped, words
from support.running import Asking, Running, kill, omnizmq
from support.trace_drill import (
    CALM,
    COMPLETE,
    HELD,
    HOLD,
    Case,
    Found,
    aborted,
    answer,
    ask,
    does_not_answer,
    drilled,
    ended,
    events,
    in_long_step,
    made,
    steps,
    still_unregistered,
    struck,
)
from support.trace_watch import Document, Expected, Watch

from omnizmq import AsyncClient

pytestmark = pytest.mark.usefixtures("no_leaks")

ONE_SLOT = ("stage.talker.max_inflight=1", "stage.talker.max_registered=8")
RING = ("stage.thinker.options.chunk_bytes=150000", "edge.thinker->talker.ring_mib=1")


class TestFullEdges:
    def test_t2_a_window_that_a_consumer_in_a_long_step_does_not_empty(self) -> None:
        async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
            case = Case("hang-at-talker-first", "talker", 1, 12)
            asking = ask(client, case)
            document = await watch.when(
                case.id, lambda seen: parked(seen, "thinker", "credit") and in_long_step(seen, "talker")
            )
            right = Expected(("stuck_step",), "talker", "talker/0", "talker/0")
            watch.judge(case.id, "parked", document, right)
            kill((await replica(client, "talker/0"))["pid"], signal.SIGKILL)
            assert await asking.error() is not None
            return await ended(watch, case.id, Expected(("replica_lost",), "talker", "talker/0"))

        window = "edge.thinker->talker.window_chunks=2"
        drilled((*CALM, window, "router.redrive=never", *struck("hang_at", 1)), drill)

    @pytest.mark.parametrize("edge", ["window", "ring"])
    def test_t2_an_edge_whose_consumer_is_stopped(self, edge: str) -> None:
        sets = ("edge.thinker->talker.window_chunks=2",) if edge == "window" else RING
        word = "credit" if edge == "window" else "ring"

        async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
            asking = Asking(client, words("w", 10_000), request_id="full")
            await asking.has(4)
            async with stopped(client, "talker/0"):
                document = await watch.when("full", lambda seen: stuck_behind(seen, word))
                right = Expected(("worker_silent",), "talker", "talker/0", "talker/0")
                watch.judge("full", "parked", document, right)
                return await let_go(watch, client, asking, "full")

        drilled((*CALM, *sets, "stage.thinker.options.interval_ms=10"), drill)

    def test_t2_a_ring_that_another_request_fills(self) -> None:
        async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
            asked = {id_: Asking(client, words("w", 10_000), request_id=id_) for id_ in ("first", "second")}
            for asking in asked.values():
                await asking.has(4)
            async with stopped(client, "talker/0"):
                documents = [await watch.when(id_, lambda seen: stuck_behind(seen, "ring", "line")) for id_ in asked]
                right = Expected(("worker_silent",), "talker", "talker/0", "talker/0")
                for id_, document in zip(asked, documents, strict=True):
                    watch.judge(id_, "parked", document, right)
                found = {}
                for id_, asking in asked.items():
                    found |= await let_go(watch, client, asking, id_)
                return found

        drilled((*CALM, *RING, "stage.thinker.options.interval_ms=10"), drill)

    def test_t2_a_window_whose_consumer_waits_for_a_slot(self) -> None:
        async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
            async with bound_together(client, 2):
                first = ask(client, HOLD)
                second = Asking(client, words("w", 12), request_id="second")
            await watch.when(HOLD.id, HOLD.stands)
            document = await watch.when("second", without_slot)
            right = Expected(("slot",), "talker", "talker/0", "talker/0", says=("slot",))
            watch.judge("second", "no slot", document, right)
            found = await aborted(watch, client, second, "second", right)
            return found | await aborted(watch, client, first, HOLD.id, HOLD.expected())

        drilled((*CALM, *HELD, *ONE_SLOT, "edge.thinker->talker.window_chunks=2"), drill)


async def let_go(watch: Watch, client: AsyncClient, asking: Asking, id_: str) -> Found:
    """While the Talker is still stopped: a moment after, another stage may be what is awaited."""
    await client.abort(id_)
    assert await asking.error() is None
    return await ended(watch, id_, Expected(("aborted",), "talker", "talker/0"))


def parked(document: Document, stage: str, *why: str) -> bool:
    said = answer(document, stage)
    return said is not None and said["state"] == "PARKED" and any(edge["full"] in why for edge in said["edges"])


def stuck_behind(document: Document, *why: str) -> bool:
    return does_not_answer(document, "talker/0") and parked(document, "thinker", *why)


def without_slot(document: Document) -> bool:
    """Its Talker has input and no slot, and its Thinker's edge is full."""
    said = answer(document, "talker")
    return said is not None and said["state"] == "QUEUED" and parked(document, "thinker", "credit")


class TestNoRoom:
    def test_t2_all_places_are_taken_and_others_are_before_it(self) -> None:
        async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
            holding = ask(client, HOLD)
            await watch.when(HOLD.id, HOLD.stands)
            found, asked = {}, {}
            right = Expected(("queue",), "talker", None, "talker/0", boundaries=("queued",), says=("talker",))
            for place in range(2):
                id_ = f"waits-{place}"
                asked[id_] = Asking(client, "one two", request_id=id_)
                document = await watch.when(id_, waits_for_room)
                assert document["live"]["queue"]["ahead"] == place
                watch.judge(id_, "queued", document, replace(right, says=("1 wait",) if place else ()))
            for id_, asking in asked.items():
                found |= await aborted(watch, client, asking, id_, right)
            return found | await aborted(watch, client, holding, HOLD.id, HOLD.expected())

        drilled((*CALM, *HELD, "stage.talker.max_inflight=1", "stage.talker.max_registered=1"), drill)

    @pytest.mark.parametrize("how", ["drained", "dead"])
    def test_t2_one_replica_is_full_and_the_other_is_out_of_service(self, how: str) -> None:
        async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
            await out_of_service(client, "talker/1", how)
            holding = ask(client, HOLD)
            await watch.when(HOLD.id, HOLD.stands)
            asking = Asking(client, "one two", request_id="waits")
            document = await watch.when("waits", waits_for_room)
            said = ("talker/1", "drain") if how == "drained" else ("talker/1", "dead")
            right = Expected(("queue",), "talker", None, "talker", boundaries=("queued",), says=said)
            watch.judge("waits", "queued", document, right)
            found = await aborted(watch, client, asking, "waits", right)
            return found | await aborted(watch, client, holding, HOLD.id, HOLD.expected())

        few = ("stage.talker.replicas=2", "stage.talker.max_inflight=1", "stage.talker.max_registered=1")
        slow = ("router.restart_delay_s=3600", "router.max_restart_delay_s=3600", "router.redrive_wait_s=7200")
        drilled((*CALM, *HELD, *few, *slow), drill)

    @pytest.mark.parametrize("how", ["drained", "dead"])
    def test_t2_no_replica_is_in_service(self, how: str) -> None:
        """F4: it is refused, and that is all that becomes of it."""

        async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
            await out_of_service(client, "talker/0", how)
            assert await Asking(client, "one two", request_id="refused").error() is not None
            right = Expected(("refused",), boundaries=("refused",), says=("unavailable", "talker"))
            document = await watch.when("refused", lambda seen: seen["state"] == "ended")
            watch.judge("refused", "ended", document, right)
            return {"refused": right}

        slow = ("router.restart_delay_s=3600", "router.max_restart_delay_s=3600", "router.redrive_wait_s=7200")
        drilled((*CALM, *slow), drill)


def waits_for_room(document: Document) -> bool:
    return "queued" in events(document) and document["live"] is not None and document["live"]["queue"] is not None


async def out_of_service(client: AsyncClient, id_: str, how: str) -> None:
    if how == "drained":
        assert (await asyncio.to_thread(omnizmq, "drain", id_)).returncode == 0
        return
    kill((await replica(client, id_))["pid"])
    stage, _, number = id_.partition("/")
    await status_when(client, lambda seen: seen["stages"][stage]["replicas"][int(number)]["state"] == "dead")


class TestOtherEdges:
    @pytest.mark.parametrize("mode", ["relay", "payload"])
    def test_t2_an_edge_that_is_fed_once(self, mode: str) -> None:
        """Nothing of the Talker before the Thinker has ended."""

        async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
            found = {}
            for case in (Case("x-at-thinker-x", "thinker", 2, 3), Case("x-at-talker-x", "talker", 2, 3)):
                asking = ask(client, case)
                document = await watch.when(case.id, lambda seen, at=case: made(seen, at.stage) == 1)
                right = replace(case.expected("engine"), boundaries=())
                watch.judge(case.id, "stuck", document, right)
                found |= await aborted(watch, client, asking, case.id, right)
            return found

        drilled((*CALM, *HELD, f"edge.thinker->talker.mode={mode}"), drill)

    def test_t2_a_stage_that_is_stopped_before_a_relay_reaches_it(self) -> None:
        async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
            async with stopped(client, "talker/0"):
                asking = Asking(client, "one two three", request_id="relayed")
                document = await watch.when("relayed", lambda seen: still_unregistered(seen, "talker"))
                right = Expected(("worker_silent",), "talker", "talker/0", "talker/0")
                watch.judge("relayed", "stopped", document, right)
            assert await asking.error() is None
            return await ended(watch, "relayed", COMPLETE)

        drilled((*CALM, "edge.thinker->talker.mode=relay"), drill)


CHUNKS = 3
FORKED = f"""
name = "forked"
[[stage]]
name = "source"
engine = "synthetic"
options = {{ chunks = {CHUNKS} }}
[[stage]]
name = "left"
engine = "synthetic"
[[stage]]
name = "right"
engine = "synthetic"
[[stage]]
name = "join"
engine = "synthetic"
final_output = "audio"
[[stage]]
name = "side"
engine = "synthetic"
final_output = "text"
[[edge]]
from = "source"
to = "left"
[[edge]]
from = "source"
to = "right"
[[edge]]
from = "left"
to = "join"
[[edge]]
from = "right"
to = "join"
[[edge]]
from = "source"
to = "side"
"""
"""A stage that feeds three, and one that two feed: `source` > `left`, `right`, `side`; `left`, `right` > `join`."""

FORKED_STAGES = ("source", "left", "right", "join", "side")


class TestGraphs:
    @pytest.mark.parametrize("number", [1, 2])
    def test_t2_the_stage_of_a_graph_that_makes_nothing_more(self, home: Path, number: int) -> None:
        async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
            found = {}
            for stage in FORKED_STAGES:
                id_ = f"x-at-{stage}-x"
                asking = Asking(client, "x", request_id=id_)
                document = await watch.when(id_, lambda seen, at=stage: silent_in_graph(seen, at, number))
                right = Expected(("engine",), stage, f"{stage}/0", f"{stage}/0")
                watch.judge(id_, "stuck", document, right)
                found |= await aborted(watch, client, asking, id_, right)
            return found

        drilled((*CALM, *struck("silent_at", number, FORKED_STAGES)), drill, forked(home))

    def test_t2_the_branch_of_a_graph_whose_worker_is_stopped(self, home: Path) -> None:
        """The source is not submitted before all that it feeds have registered, so the other branches wait as well."""

        async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
            found = {}
            for stage in ("left", "right", "side"):
                id_ = f"stopped-{stage}"
                async with stopped(client, f"{stage}/0"):
                    asking = Asking(client, "x", request_id=id_)
                    document = await watch.when(id_, lambda seen, at=stage: still_unregistered(seen, at))
                    right = Expected(("worker_silent",), stage, f"{stage}/0", f"{stage}/0")
                    watch.judge(id_, "stopped", document, right)
                assert await asking.error() is None
                found |= await ended(watch, id_, COMPLETE)
            return found

        drilled(CALM, drill, forked(home))


def forked(home: Path) -> str:
    path = home / "forked.toml"
    path.write_text(FORKED)
    return str(path)


def silent_in_graph(document: Document, stage: str, number: int) -> bool:
    """It has made all before its `number`, those that it feeds have made of that what they can, and the others have
    ended. `join` makes one for each chunk of either, once it has had one of both."""
    before = number - 1
    joined = before + CHUNKS if before else 0
    behind = {
        "source": {"left": before, "right": before, "side": before, "join": 2 * before},
        "left": {"join": joined},
        "right": {"join": joined},
    }.get(stage, {})
    if any(made(document, name) != count for name, count in {stage: before, **behind}.items()):
        return False
    return all("finished" in steps(document, name) for name in FORKED_STAGES if name not in (stage, *behind))
