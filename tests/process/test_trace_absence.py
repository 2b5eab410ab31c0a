"""T2 on real deployments: text and no audio. The trace says which it was: the Talker not registered, no input, no codec
frames, no sound made of them, not asked for, or the caller gone.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support.drill import STAGES, heard, sounds, stopped, words
from support.drill_caller import caller
from support.running import Asking, Running, kill
from support.trace_drill import CALM, Case, Found, ask, drilled, ended, over, steps, still_unregistered, struck
from support.trace_engine import trace_engines
from support.trace_watch import Expected, Watch

from omnizmq import AsyncClient

pytestmark = pytest.mark.usefixtures("no_leaks")

LOSSES = [
    ("thinker-no-chunks", "no_chunks", "thinker", "no chunk of it to talker"),
    ("talker-no-output", "no_output", "talker", "3 chunks from thinker"),
    ("talker-no-chunks", "no_output", "talker", "3 chunks from thinker"),
    ("code2wav-no-output", "no_output", "code2wav", "3 chunks from talker"),
    ("code2wav-no-content", "no_output", "code2wav", "3 chunks from talker"),
]
"""What is lost, the reason, where it was lost, and what else is said."""


async def text_alone(asking: Asking, length: int = 3) -> None:
    """The caller had its text, and no sound."""
    await asking.error()
    assert (heard(asking.outputs), sounds(asking.outputs)) == (length, 0)


@pytest.mark.parametrize("mode", ["chunk", "payload", "relay"])
def test_t2_a_complete_request_whose_audio_was_lost(home: Path, mode: str) -> None:
    async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
        found = {}
        for id_, reason, stage, said in LOSSES:
            await text_alone(Asking(client, words("w", 3), request_id=id_))
            right = Expected(("complete",), stage, f"{stage}/0", complete=True, reason=reason, says=(said,))
            found |= await ended(watch, id_, right)
        return found

    with trace_engines(home):
        engines = [f"stage.{stage}.engine=lossy" for stage in STAGES]
        drilled((*CALM, *engines, f"edge.thinker->talker.mode={mode}"), drill)


def test_t2_what_the_request_did_not_ask_for() -> None:
    async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
        text = Asking(client, "one two three", request_id="text", modalities=["text"])
        await text_alone(text)
        says = ("talker and code2wav", "text alone")
        found = await ended(
            watch, "text", Expected(("complete",), "code2wav", complete=True, reason="filtered", says=says)
        )
        sound = Asking(client, "one two three", request_id="audio", modalities=["audio"])
        await sound.error()
        assert (heard(sound.outputs), sounds(sound.outputs)) == (0, 3)
        return found | await ended(watch, "audio", Expected(("complete",), complete=True))

    drilled(CALM, drill)


def test_t2_a_talker_that_is_not_registered() -> None:
    """It is fed when the text is complete, so only then it is submitted."""

    async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
        async with stopped(client, "talker/0"):
            asking = Asking(client, "one two three", request_id="unregistered")
            document = await watch.when("unregistered", lambda seen: still_unregistered(seen, "talker"))
            assert "finished" in steps(document, "thinker")
            boundaries = ("talker submitted", "thinker delivered", "thinker finished")
            right = Expected(("worker_silent",), "talker", "talker/0", "talker/0", boundaries)
            watch.judge("unregistered", "stopped", document, right)
            await client.abort("unregistered")
            await text_alone(asking)
            await text_alone(Asking(client, "one two three", request_id="late", deadline_s=1))
            right = Expected(("deadline_exceeded",), "talker", "talker/0", None, boundaries)
            document = await watch.when("late", lambda seen: seen["state"] == "ended")
            watch.judge("late", "ended", document, right)
        return {"late": right}

    drilled((*CALM, "edge.thinker->talker.mode=relay", "router.abort_timeout_s=0.2"), drill)


@pytest.mark.parametrize("stage", ["talker", "code2wav"])
def test_t2_a_caller_that_is_gone_before_there_was_any_sound(stage: str) -> None:
    """It has all its text when it dies."""
    case = Case(f"gone-at-{stage}-x", stage, 1, 3)

    async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:  # noqa: ARG001 (another one asks)
        with caller("stream", count=1, name=case.id, length=3) as process:
            document = await watch.when(case.id, case.stands)
            assert "delivered" in steps(document, "thinker")
            watch.judge(case.id, "stuck", document, case.expected("engine"))
            kill(process.pid, signal.SIGKILL)
            return await ended(watch, case.id, case.ended("caller_gone"))

    drilled((*CALM, *struck("silent_at", 1)), drill)


@pytest.mark.parametrize("stage", ["talker", "code2wav"])
def test_t2_a_stage_that_makes_nothing_until_the_deadline(stage: str) -> None:
    case = Case(f"mute-at-{stage}-x", stage, 1, 3)
    late = Case(f"late-at-{stage}-x", stage, 1, 3)

    async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
        ends, asking = ask(client, late, deadline_s=1), ask(client, case)
        watch.judge(case.id, "stuck", await watch.when(case.id, case.stands), case.expected("engine"))
        await client.abort(case.id)
        for one in (asking, ends):
            await text_alone(one)
        return await ended(watch, late.id, late.ended("deadline_exceeded"))

    drilled((*CALM, *struck("silent_at", 1)), drill)


def test_t2_a_talker_that_fails_when_the_text_is_there() -> None:
    case = Case("broken-at-talker-x", "talker", 1, 3)

    async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
        asking = ask(client, case)
        assert await asking.error() is not None
        assert sounds(asking.outputs) == 0
        await watch.when(case.id, over)
        right = Expected(("stage_error",), "talker", "talker/0", says=("told to fail",))
        return await ended(watch, case.id, right)

    drilled((*CALM, *struck("fail_at", 1), "stage.talker.options.first_delay_ms=300"), drill)
