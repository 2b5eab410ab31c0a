"""T2 on real deployments: faults outside the engines. Stopped processes, callers that do not read or are gone, a full
disk. As in `test_trace_drills`, the look comes when the request stands still.
"""

from __future__ import annotations

import asyncio
import resource
import signal
from dataclasses import replace

import pytest
from support.drill import STAGES, back, status_when, stopped, stopped_process, words
from support.drill_caller import caller
from support.running import Asking, Running, kill
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
    over,
    steps,
    still_unregistered,
)
from support.trace_watch import Document, Expected, Watch

from omnizmq import AsyncClient
from omnizmq.errors import SlowReaderError

pytestmark = pytest.mark.usefixtures("no_leaks")


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
                asking = Asking(client, words("w", 10_000), request_id=id_)
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
                asking = Asking(client, words("w", 10_000), request_id=id_)
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

        drilled((*CALM, *HELD), drill)


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
            with caller("stop", count=1, name="stopped", length=60) as process:
                document = await watch.when("stopped", lambda seen: waits_for_its_caller(seen, "code2wav"))
                right = Expected(("caller_reads",), "code2wav", "code2wav/0", owner="client")
                watch.judge("stopped", "paused", document, right)
                kill(process.pid, signal_)
                if signal_ == signal.SIGCONT:
                    assert await asyncio.to_thread(process.line) == "1 whole"
                    return await ended(watch, "stopped", COMPLETE)
                return await ended(watch, "stopped", replace(right, causes=("caller_gone",), owner=None))

        drilled((*CALM, *WINDOW), drill)

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
            with caller("stream", count=1, name="gone", length=10_000) as process:
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

        drilled((*CALM, *HELD), drill)


def stands_as_workers_say(document: Document, case: Case) -> bool:
    """No fact of it is known."""
    said = answer(document, case.stage)
    return said is not None and [edge["made"] for edge in said["edges"]] == [case.number - 1]
