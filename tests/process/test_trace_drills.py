"""T2 on real deployments: each fault of the synthetic engine on each stage, at the first, a middle and the last output.

The verdict has to name cause, stage, replica, whose move it is and the last boundary while the request stands still,
after it has ended, and when its deployment is gone. `trace_drill` says how that is known without the verdict.
"""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from support.drill import STAGES, back, ready, replica
from support.running import Asking, Running, kill
from support.trace_drill import (
    CALM,
    COMPLETE,
    STEP_NS,
    Case,
    Found,
    alone_unfinished,
    answer,
    ask,
    cases,
    drilled,
    ended,
    engine,
    events,
    in_long_step,
    over,
    steps,
    struck,
)
from support.trace_watch import Document, Expected, Watch

from omnizmq import AsyncClient
from omnizmq.errors import DeadlineExceededError

pytestmark = pytest.mark.usefixtures("no_leaks")

WHERE = pytest.mark.parametrize("number", [1, 3])


@WHERE
def test_t2_an_engine_that_makes_nothing_more_is_named(number: int) -> None:
    """At once, and after it has lasted."""

    async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
        asked = {case: ask(client, case) for case in cases("silent", number, modalities=True)}
        for case in asked:
            watch.judge(case.id, "stuck", await watch.when(case.id, case.stands), case.expected("engine"))
        for case in asked:
            document = await watch.when(case.id, lambda seen, at=case: stands_for_long(seen, at))
            watch.judge(case.id, "stuck for long", document, case.expected("engine"))
        found = {}
        for case, asking in asked.items():
            await client.abort(case.id)
            assert await asking.error() is None
            found |= await ended(watch, case.id, case.ended("aborted"))
        return found

    drilled((*CALM, *struck("silent_at", number)), drill)


def stands_for_long(document: Document, case: Case) -> bool:
    said = answer(document, case.stage)
    return case.stands(document) and said is not None and said["at_ns"] - said["made_ns"] > STEP_NS


def test_t2_a_step_that_does_not_end_is_said_to_be_of_others_where_it_is() -> None:
    case = Case("hang-at-talker-middle", "talker", 2, 3)

    async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
        asked = {case.id: ask(client, case)}
        document = await watch.when(case.id, lambda seen: case.stands(seen) and in_long_step(seen, "talker"))
        watch.judge(case.id, "stuck", document, case.expected("stuck_step"))
        assert "other requests" not in document["verdict"]["text"]
        asked["behind"] = Asking(client, "one two", request_id="behind")
        document = await watch.when("behind", lambda seen: in_long_step(seen, "talker") and has_all_text(seen))
        right = Expected(("stuck_step",), "talker", "talker/0", "talker/0")
        watch.judge("behind", "stuck", document, replace(right, says=("which is for other requests",)))
        kill((await replica(client, "talker/0"))["pid"], signal.SIGKILL)
        found = {}
        for id_, asking in asked.items():
            assert await asking.error() is not None
            found |= await ended(watch, id_, Expected(("replica_lost",), "talker", "talker/0"))
        return found

    drilled((*CALM, "router.redrive=never", *struck("hang_at", 2)), drill)


def has_all_text(document: Document) -> bool:
    return "finished" in steps(document, "thinker")


@WHERE
def test_t2_an_engine_that_is_in_one_step_for_long_is_named_and_so_is_its_death(number: int) -> None:
    """Middle: it is killed. Last: its request is aborted, which nobody confirms, and then it is killed."""

    async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
        found = {}
        for count, case in enumerate(cases("hang", number)):
            asking = ask(client, case)
            document = await watch.when(case.id, lambda seen, at=case: at.stands(seen) and in_long_step(seen, at.stage))
            watch.judge(case.id, "stuck", document, case.expected("stuck_step"))
            aborted = case.id.endswith("-last")
            if aborted:
                await aborting(watch, client, case)
            pid = (await replica(client, case.replica))["pid"]
            kill(pid, signal.SIGKILL)
            error = await asking.error()
            assert (error is None) == aborted
            right = case.ended("aborted") if aborted else case.ended("replica_lost")
            found |= await ended(watch, case.id, right)
            await back(client, case.replica, 2 + (count % 2 if number > 1 else 0))
        return found

    drilled((*CALM, "router.abort_timeout_s=3600", "router.redrive=never", *struck("hang_at", number)), drill)


async def aborting(watch: Watch, client: AsyncClient, case: Case) -> None:
    """Its end is asked for, and the stage that hangs does not confirm it."""
    assert await client.abort(case.id) == 1
    others = tuple(f"{name} finished" for name in case.planned if name != case.stage)  # they confirm after it was asked
    pending = replace(case.expected("abort_confirm"), boundaries=("abort_asked", *others))
    document = await watch.when(
        case.id, lambda seen: alone_unfinished(seen, case.stage) and "abort_asked" in events(seen)
    )
    watch.judge(case.id, "aborting", document, pending)


@WHERE
def test_t2_a_long_step_is_said_while_it_lasts(number: int) -> None:
    """It lasts a second, and then its request goes on. Where nobody looked in time, another one is asked."""

    async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
        found = {}
        for case in cases("slow", number):
            for again in range(5):
                one = replace(case, id=f"{case.id}-{again}")
                asking = ask(client, one)
                document = await watch.when(one.id, lambda seen, at=one: over(seen) or in_step(seen, at))
                in_time = not over(document)
                if in_time:
                    watch.judge(one.id, "in the step", document, one.expected("engine", "stuck_step"))
                assert await asking.error() is None
                found |= await ended(watch, one.id, COMPLETE)
                if in_time:
                    break
            else:
                raise AssertionError(f"{case.id}: no step was long enough to be seen")
        return found

    drilled((*CALM, *struck("slow_at", number)), drill)


def in_step(document: Document, case: Case) -> bool:
    state, for_ns = engine(document, case.stage)
    return case.stands(document) and state == "stepping" and for_ns > STEP_NS / 10


@WHERE
def test_t2_a_stage_that_fails_is_named_with_its_error(number: int) -> None:
    async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
        asked = {case: ask(client, case) for case in cases("fail", number, modalities=True)}
        found = {}
        for case, asking in asked.items():
            assert await asking.error() is not None
            right = replace(case.ended("stage_error"), boundaries=(), says=(f"told to fail at output {number}",))
            found |= await ended(watch, case.id, right)
        return found

    drilled((*CALM, *struck("fail_at", number)), drill)


@WHERE
def test_t2_a_replica_that_dies_is_named_where_there_is_no_second_try(number: int) -> None:
    async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
        found = {}
        for count, case in enumerate(cases("crash", number)):
            asking = ask(client, case)
            assert await asking.error() is not None
            right = replace(case.ended("replica_lost"), boundaries=())
            found |= await ended(watch, case.id, right)
            await back(client, case.replica, 2 + (count % 2 if number > 1 else 0))
        return found

    drilled((*CALM, "router.redrive=never", *struck("crash_at", number)), drill)


@pytest.mark.parametrize("stage", STAGES)
def test_t2_a_request_whose_replica_died_waits_for_it_to_be_back(stage: str) -> None:
    """It is not back for an hour."""
    case = next(one for one in cases("crash", 3) if one.stage == stage)

    async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
        asking = ask(client, case)
        document = await watch.when(case.id, lambda seen: "redriven" in events(seen) and (seen["live"] or {})["queue"])
        again = Expected(("redrive",), stage, case.replica, owner=case.replica, boundaries=("queued",))
        watch.judge(case.id, "waiting", document, again)
        await client.abort(case.id)
        assert await asking.error() is None
        return await ended(watch, case.id, replace(again, causes=("aborted",), owner=None, says=()))

    long = ("router.restart_delay_s=3600", "router.max_restart_delay_s=3600", "router.redrive_wait_s=7200")
    drilled((*CALM, *long, "router.redrive=wait", *struck("crash_at", 3)), drill)


def test_t2_a_request_that_was_driven_again_says_what_the_first_attempt_was_lost_to() -> None:
    once = [f"stage.{stage}.options.fault_once=true" for stage in STAGES]

    async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
        found = {}
        for case in cases("crash", 1):
            assert await ask(client, case).error() is None
            lost = Expected(("complete",), complete=True, boundaries=("terminal",), says=(f"{case.stage}/", "attempt"))
            found |= await ended(watch, case.id, lost)
            for number in (0, 1):
                await ready(client, f"{case.stage}/{number}")
        return found

    two = [f"stage.{stage}.replicas=2" for stage in STAGES]
    drilled((*CALM, *once, *two, *struck("crash_at", 1)), drill)


@pytest.mark.parametrize("stage", STAGES)
def test_t2_a_report_that_withholds_the_terminal_is_named(stage: str) -> None:
    whole = [Case(f"late-{stage}", stage, 4, 3), Case(f"late-{stage}-audio", stage, 4, 3, ("audio",))]
    whole += [Case(f"late-{stage}-text", stage, 4, 3, ("text",))] if stage == "thinker" else []

    async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
        asked = {case: ask(client, case) for case in whole}
        found = {}
        for case, asking in asked.items():
            document = await watch.when(case.id, lambda seen, at=case: withheld(seen, at))
            watch.judge(case.id, "withheld", document, replace(case.expected("report"), boundaries=("withheld",)))
            await client.abort(case.id)
            assert await asking.error() is None
            found |= await ended(watch, case.id, replace(case.ended("aborted"), boundaries=("withheld",)))
        return found

    drilled((*CALM, f"stage.{stage}.options.terminal_delay_ms=3600000"), drill)


def withheld(document: Document, case: Case) -> bool:
    return alone_unfinished(document, case.stage) and "withheld" in events(document)


@pytest.mark.parametrize("stage", STAGES)
def test_t2_a_report_that_was_given_up_is_named(stage: str) -> None:
    case = Case(f"late-{stage}", stage, 4, 3)

    async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
        assert await ask(client, case).error() is None
        right = Expected(("complete",), stage, case.replica, complete=True, boundaries=("terminal",), says=("usage",))
        document = await watch.when(case.id, lambda seen: seen["state"] == "ended")
        watch.judge(case.id, "ended", document, right)
        return {case.id: right}

    delay = f"stage.{stage}.options.terminal_delay_ms=3600000"
    drilled((*CALM, delay, "router.terminal_grace_s=0.2", "router.abort_timeout_s=0.5"), drill)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("option", "number"), [("first_delay_ms", 1), ("interval_ms", 2)])
def test_t2_an_engine_that_takes_its_time_is_named(stage: str, option: str, number: int) -> None:
    """Nothing is asked of it before its time has come. Two requests are aborted, one runs into its deadline."""
    both = Case(f"long-{stage}", stage, number, 3, begun=("input_ready", "running"))
    audio = replace(both, id=f"long-{stage}-audio", modalities=("audio",))
    late = replace(audio, id=f"late-{stage}-audio")

    async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
        ends = ask(client, late, deadline_s=1)
        asked = {case: ask(client, case) for case in (audio, both)}
        found = {}
        for case, asking in asked.items():
            watch.judge(case.id, "stuck", await watch.when(case.id, case.stands), case.expected("engine"))
            await client.abort(case.id)
            assert await asking.error() is None
            found |= await ended(watch, case.id, case.ended("aborted"))
        assert isinstance(await ends.error(), DeadlineExceededError)
        return found | await ended(watch, late.id, late.ended("deadline_exceeded"))

    drilled((*CALM, f"stage.{stage}.options.{option}=3600000"), drill)
