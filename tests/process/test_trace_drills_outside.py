"""T2 on real deployments: faults outside the engines. Stopped processes, callers that do not read or are gone, full
rings and windows, no room, no replica, a full disk. As in `test_trace_drills`, the look comes when it stands still.
"""

from __future__ import annotations

import asyncio
import resource
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from support.drill import STAGES, back, bound_together, replica, status_when, stopped, stopped_process, words
from support.drill_caller import caller
from support.running import Asking, Running, kill, omnizmq
from support.trace_drill import (
    CALM,
    Case,
    Found,
    answer,
    ask,
    does_not_answer,
    drilled,
    ended,
    events,
    in_long_step,
    made,
    over,
    steps,
    still_unregistered,
    struck,
)
from support.trace_watch import Document, Expected, Watch

from omnizmq import AsyncClient
from omnizmq.errors import SlowReaderError

pytestmark = pytest.mark.usefixtures("no_leaks")

COMPLETE = Expected(("complete",), complete=True, boundaries=("terminal",))
SILENT = struck("silent_at", 2)
"""`hold-at-talker-…` keeps its place in the Talker, and makes nothing more."""


async def aborted(watch: Watch, client: AsyncClient, asking: Asking, id_: str, right: Expected) -> Found:
    """It is aborted, and named as it was while it stood still."""
    await client.abort(id_)
    assert await asking.error() is None
    return await ended(watch, id_, replace(right, causes=("aborted",), owner=None, says=()))


class TestStoppedProcesses:
    def test_t2_a_worker_that_was_stopped_before_it_registered(self) -> None:
        async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
            found = {}
            for stage in STAGES:
                id_ = f"unregistered-{stage}"
                async with stopped(client, f"{stage}/0"):
                    asking = Asking(client, "one two three", request_id=id_)
                    document = await watch.when(id_, lambda seen, at=stage: still_unregistered(seen, at))
                    first = STAGES[STAGES.index(stage) + 1 :]
                    boundaries = (f"{stage} submitted", *(f"{name} registered" for name in ("talker", *first)))
                    right = Expected(("worker_silent",), stage, f"{stage}/0", f"{stage}/0", boundaries)
                    watch.judge(id_, "stopped", document, right)
                assert await asking.error() is None
                found |= await ended(watch, id_, COMPLETE)
            return found

        drilled(CALM, drill)

    def test_t2_a_worker_that_was_stopped_in_the_middle_and_the_abort_that_it_does_not_confirm(self) -> None:
        async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
            found = {}
            for stage in STAGES:
                id_ = f"stopped-{stage}"
                asking = Asking(client, words("w", 1000), request_id=id_)
                await asking.has(6)
                async with stopped(client, f"{stage}/0"):
                    right = Expected(("worker_silent",), stage, f"{stage}/0", f"{stage}/0")
                    document = await watch.when(id_, lambda seen, at=stage: does_not_answer(seen, f"{at}/0"))
                    watch.judge(id_, "stopped", document, right)
                    await client.abort(id_)
                    document = await watch.when(id_, lambda seen, at=stage: unconfirmed(seen, at))
                    watch.judge(id_, "aborting", document, replace(right, causes=("abort_confirm",)))
                assert await asking.error() is None
                found |= await ended(watch, id_, replace(right, causes=("aborted",), owner=None))
            return found

        drilled((*CALM, "stage.thinker.options.interval_ms=20"), drill)

    def test_t2_a_stopped_worker_that_was_given_up(self) -> None:
        async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
            found = {}
            for stage in STAGES:
                id_ = f"given-up-{stage}"
                asking = Asking(client, words("w", 1000), request_id=id_)
                await asking.has(4)
                async with stopped(client, f"{stage}/0"):
                    assert await asking.error() is not None
                found |= await ended(watch, id_, Expected(("replica_lost",), stage, f"{stage}/0"))
                await back(client, f"{stage}/0", 2)
            return found

        late = ("router.heartbeat_timeout_s=1", "router.redrive=never", "stage.thinker.options.interval_ms=20")
        drilled((*CALM, *late), drill)

    def test_t2_the_router_was_stopped(self) -> None:
        case = Case("quiet-at-talker-middle", "talker", 2, 3)

        async def drill(watch: Watch, client: AsyncClient, deployment: Running) -> Found:
            asking = ask(client, case)
            await watch.when(case.id, case.stands)
            with stopped_process(deployment.pid):
                document = await asyncio.to_thread(watch.look_from_outside, case.id)
                assert document["live"] is None
                right = Expected(("router_silent",), owner="router", boundaries=case.boundaries)
                watch.judge(case.id, "router stopped", document, right)
            return await aborted(watch, client, asking, case.id, case.expected("engine"))

        drilled((*CALM, *SILENT), drill)


def unconfirmed(document: Document, stage: str) -> bool:
    stages = (document["live"] or {"stages": {}})["stages"]
    pending = [name for name, one in stages.items() if not one["finished"]]
    return "abort_asked" in events(document) and pending == [stage] and does_not_answer(document, f"{stage}/0")


WINDOW = ("router.output_window=2", "router.slow_reader_grace_s=3600")


class TestCallers:
    @pytest.mark.parametrize(("modality", "stage"), [("text", "thinker"), ("audio", "code2wav")])
    def test_t2_a_caller_that_does_not_read(self, modality: str, stage: str) -> None:
        async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
            outputs = client.generate(words("w", 12), request_id="unread", modalities=[modality])
            await anext(outputs)
            document = await watch.when("unread", lambda seen: waits_for_its_caller(seen, stage))
            right = Expected(("caller_reads",), stage, f"{stage}/0", owner="client")
            watch.judge("unread", "paused", document, right)
            await client.abort("unread")
            async for _ in outputs:
                pass
            return await ended(watch, "unread", replace(right, causes=("aborted",), owner=None))

        drilled((*CALM, *WINDOW), drill)

    @pytest.mark.parametrize("signal_", [signal.SIGCONT, signal.SIGKILL])
    def test_t2_a_caller_that_was_stopped(self, signal_: signal.Signals) -> None:
        """It goes on and gets all, or it dies."""

        async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:  # noqa: ARG001 (another one asks)
            with caller("stream", count=1, name="stopped", length=60) as process:
                with stopped_process(process.pid):
                    document = await watch.when("stopped", lambda seen: waits_for_its_caller(seen, "code2wav"))
                    right = Expected(("caller_reads",), "code2wav", "code2wav/0", owner="client")
                    watch.judge("stopped", "paused", document, right)
                    if signal_ == signal.SIGKILL:
                        kill(process.pid, signal_)
                if signal_ == signal.SIGCONT:
                    assert await asyncio.to_thread(process.line) == "1 whole"
                    return await ended(watch, "stopped", COMPLETE)
                return await ended(watch, "stopped", replace(right, causes=("caller_gone",), owner=None))

        drilled((*CALM, *WINDOW, "stage.thinker.options.interval_ms=50"), drill)

    def test_t2_a_slow_reader(self) -> None:
        async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
            outputs = client.generate(words("w", 12), request_id="slow", modalities=["audio"])
            await anext(outputs)
            await watch.when("slow", over)
            with pytest.raises(SlowReaderError):
                async for _ in outputs:
                    pass
            return await ended(watch, "slow", Expected(("slow_reader",), "code2wav", "code2wav/0"))

        drilled((*CALM, "router.output_window=2", "router.slow_reader_grace_s=0.5"), drill)

    def test_t2_a_caller_that_is_gone_while_a_worker_does_not_confirm(self) -> None:
        async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
            with caller("stream", count=1, name="gone", length=60) as process:
                async with stopped(client, "talker/0"):
                    kill(process.pid, signal.SIGKILL)
                    document = await watch.when("gone", lambda seen: unconfirmed(seen, "talker"))
                    right = Expected(("abort_confirm",), "talker", "talker/0", "talker/0", says=("disconnect",))
                    watch.judge("gone", "aborting", document, right)
                return await ended(watch, "gone", Expected(("caller_gone",), "talker", "talker/0"))

        drilled((*CALM, "stage.thinker.options.interval_ms=50"), drill)


def waits_for_its_caller(document: Document, stage: str) -> bool:
    said = answer(document, stage)
    return said is not None and said["state"] == "PAUSED" and "paused" in steps(document, stage)


HOLD = Case("hold-at-talker-x", "talker", 2, 3)
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
            asking = Asking(client, words("w", 400), request_id="full")
            await asking.has(4)
            async with stopped(client, "talker/0"):
                document = await watch.when("full", lambda seen: stuck_behind(seen, word))
                right = Expected(("worker_silent",), "talker", "talker/0", "talker/0")
                watch.judge("full", "parked", document, right)
            return await let_go(watch, client, asking, "full")

        drilled((*CALM, *sets, "stage.thinker.options.interval_ms=10"), drill)

    def test_t2_a_ring_that_another_request_fills(self) -> None:
        async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
            asked = {id_: Asking(client, words("w", 400), request_id=id_) for id_ in ("first", "second")}
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

        drilled((*CALM, *SILENT, *ONE_SLOT, "edge.thinker->talker.window_chunks=2"), drill)


async def let_go(watch: Watch, client: AsyncClient, asking: Asking, id_: str) -> Found:
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
            right = Expected(("queue",), "talker", None, "router", boundaries=("queued",), says=("talker",))
            for place in range(2):
                id_ = f"waits-{place}"
                asked[id_] = Asking(client, "one two", request_id=id_)
                document = await watch.when(id_, waits_for_room)
                assert document["live"]["queue"]["ahead"] == place
                watch.judge(id_, "queued", document, replace(right, says=("1 wait",) if place else ()))
            for id_, asking in asked.items():
                found |= await aborted(watch, client, asking, id_, right)
            return found | await aborted(watch, client, holding, HOLD.id, HOLD.expected())

        drilled((*CALM, *SILENT, "stage.talker.max_inflight=1", "stage.talker.max_registered=1"), drill)

    @pytest.mark.parametrize("how", ["drained", "dead"])
    def test_t2_one_replica_is_full_and_the_other_is_out_of_service(self, how: str) -> None:
        async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
            await out_of_service(client, "talker/1", how)
            holding = ask(client, HOLD)
            await watch.when(HOLD.id, HOLD.stands)
            asking = Asking(client, "one two", request_id="waits")
            document = await watch.when("waits", waits_for_room)
            said = ("talker/1", "drain") if how == "drained" else ("talker/1", "dead")
            right = Expected(("queue",), "talker", None, "router", boundaries=("queued",), says=said)
            watch.judge("waits", "queued", document, right)
            found = await aborted(watch, client, asking, "waits", right)
            return found | await aborted(watch, client, holding, HOLD.id, HOLD.expected())

        few = ("stage.talker.replicas=2", "stage.talker.max_inflight=1", "stage.talker.max_registered=1")
        slow = ("router.restart_delay_s=3600", "router.max_restart_delay_s=3600", "router.redrive_wait_s=7200")
        drilled((*CALM, *SILENT, *few, *slow), drill)

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


class TestAFullDisk:
    def test_t2_what_was_lost_is_said_and_nothing_that_it_could_refute(self) -> None:
        """The router may make no file longer: what it would write is lost, while router and workers answer."""
        unwritten = replace(HOLD, id="unwritten-at-talker-x")

        async def drill(watch: Watch, client: AsyncClient, deployment: Running) -> Found:
            asking = ask(client, HOLD)
            await watch.when(HOLD.id, HOLD.stands)
            limits = resource.prlimit(deployment.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(deployment.pid, resource.RLIMIT_FSIZE, (0, limits[1]))
            other = ask(client, unwritten)
            document = await watch.when(unwritten.id, lambda seen: stands_as_workers_say(seen, unwritten))
            live = Expected(("engine",), "talker", "talker/0", "talker/0", says=("no row",), timed=False)
            watch.judge(unwritten.id, "unwritten", document, live)
            before = (await client.status())["trace"]["rows_dropped"]
            await client.abort(HOLD.id)
            assert await asking.error() is None
            await status_when(
                client, lambda seen: seen["trace"]["rows_dropped"] > before and seen["live_requests"] == 1
            )
            document = await watch.when(HOLD.id, lambda seen: seen["live"] is None)
            lost = Expected(("unknown",), boundaries=HOLD.boundaries)
            watch.judge(HOLD.id, "its end is lost", document, lost)
            resource.prlimit(deployment.pid, resource.RLIMIT_FSIZE, limits)
            await client.abort(unwritten.id)
            assert await other.error() is None
            document = await watch.when(HOLD.id, lambda seen: "dropped" in events(seen))
            lost = replace(lost, says=("lost", "row"))
            watch.judge(HOLD.id, "the loss is known", document, lost)
            return {HOLD.id: lost}

        drilled((*CALM, *SILENT), drill)


def stands_as_workers_say(document: Document, case: Case) -> bool:
    """No fact of it is known."""
    said = answer(document, case.stage)
    return said is not None and [edge["made"] for edge in said["edges"]] == [case.number - 1]


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

        drilled((*CALM, *SILENT, f"edge.thinker->talker.mode={mode}"), drill)

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
        """It fills its edge, so that the source is parked, and the other branches wait for that."""

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
