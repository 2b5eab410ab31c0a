"""The synthetic engine: what it makes, when it ends, and every fault on demand."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnizmq.errors import ConfigError, InvalidRequestError, LaunchError, StageError
from omnizmq.protocol import AudioPart, Message, Param, Prompt, TextPart
from omnizmq.workers.engine import Audio, Chunk, Engine, EngineContext, EngineRequest, StageOutput
from omnizmq.workers.engines.alarm import Alarm
from omnizmq.workers.engines.synthetic import create
from omnizmq.workers.engines.synthetic_pattern import (
    audio_pattern,
    difference,
    pattern,
    text_pattern,
    tone,
    words_of,
)

SAY_HELLO = Prompt("Say hello, please", None, None)


@dataclass
class Drive:
    """Runs an engine as a worker would: steps what has work, and sleeps until `wake` where nothing has."""

    engine: Engine
    woken: threading.Event
    outputs: dict[str, list[StageOutput]] = field(default_factory=dict)

    def add(
        self, request_id: str, prompt: Prompt | None = None, external_id: str | None = None, **params: Param
    ) -> None:
        self.outputs[request_id] = []
        external_id = request_id if external_id is None else external_id
        self.engine.add(EngineRequest(request_id, prompt, params, external_id=external_id))

    def step(self) -> list[StageOutput]:
        """One round over all that has work."""
        ready = [request_id for request_id in self.outputs if self.engine.has_work(request_id)]
        made = self.engine.step(ready) if ready else []
        for output in made:
            self.outputs[output.request_id].append(output)
        return made

    def drain(self) -> None:
        """Until nothing has work now."""
        while self.step():
            pass

    def finish(self, request_id: str) -> list[StageOutput]:
        """Until this request has ended; time passes only in waiting for `wake`."""
        while not self.ended(request_id):
            self.woken.clear()
            if not self.step():
                assert self.woken.wait(10), f"{request_id} has no work and nobody wakes"
        return self.outputs[request_id]

    def ended(self, request_id: str) -> bool:
        last = self.outputs[request_id][-1:]
        return any(output.finish_reason is not None or output.error is not None for output in last)

    def feed(self, request_id: str, source: str, count: int, first: int = 1, external_id: str | None = None) -> None:
        for seq in range(first, first + count):
            data = pattern(external_id or request_id, source, seq, 256)
            self.engine.feed(request_id, source, Chunk({"seq": seq}, {"data": data}))


Build = Callable[..., Drive]


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    drives: list[Drive] = []

    def make(
        stage: str = "thinker",
        sources: Sequence[str] = (),
        targets: Sequence[str] = (),
        final: str | None = None,
        **options: Any,
    ) -> Drive:
        woken = threading.Event()
        said: list[str] = []
        context = EngineContext(
            stage=stage,
            model="",
            device=(),
            options=options,
            sources=tuple(sources),
            targets=tuple(targets),
            final_output=final,
            max_inflight=64,
            private_dir=tmp_path,
            wake=woken.set,
            progress=said.append,
        )
        drive = Drive(create(context), woken)
        drives.append(drive)
        return drive

    yield make
    for drive in drives:
        drive.engine.close()
    assert "synthetic-alarm" not in {thread.name for thread in threading.enumerate()}


def contents(outputs: Sequence[StageOutput]) -> list[Any]:
    return [output.content for output in outputs]


def chunks(outputs: Sequence[StageOutput], target: str) -> list[Chunk]:
    return [chunk for output in outputs for chunk in output.chunks.get(target, ())]


class TestSource:
    def test_chunks_with_a_pattern_for_every_target(self, build: Build) -> None:
        drive = build(targets=("a", "b"), chunks=3, chunk_bytes=20)
        drive.add("r1", SAY_HELLO)
        outputs = drive.finish("r1")
        assert contents(outputs) == [None, None, None]
        for target in ("a", "b"):
            made = chunks(outputs, target)
            assert [dict(chunk.meta) for chunk in made] == [{"seq": 1}, {"seq": 2}, {"seq": 3}]
            for seq, chunk in enumerate(made, 1):
                assert chunk.arrays["data"].dtype == np.uint8
                assert chunk.arrays["data"].tolist() == pattern("r1", "thinker", seq, 20).tolist()

    def test_c3_the_last_output_ends_the_output_and_the_stage(self, build: Build) -> None:
        drive = build(chunks=2)
        drive.add("r1", SAY_HELLO)
        first, last = drive.finish("r1")
        assert (first.ended, first.finish_reason, dict(first.usage)) == (False, None, {})
        assert (last.ended, last.finish_reason) == (True, "stop")
        assert last.usage == {"prompt_tokens": 3, "completion_tokens": 2}
        assert not drive.engine.has_work("r1")

    def test_text_content(self, build: Build) -> None:
        drive = build(final="text", chunks=2, chunk_bytes=7)
        drive.add("r1", SAY_HELLO)
        made = contents(drive.finish("r1"))
        assert made == [text_pattern("r1", "thinker", 1, 7), text_pattern("r1", "thinker", 2, 7)]
        assert all(re.fullmatch("[0-9a-f]{7}", text) for text in made)

    def test_audio_content(self, build: Build) -> None:
        drive = build(final="audio", chunks=2, chunk_bytes=96)
        drive.add("r1", SAY_HELLO)
        outputs = drive.finish("r1")
        for seq, output in enumerate(outputs, 1):
            assert isinstance(output.content, Audio)
            assert output.content.sample_rate == 24_000
            assert output.content.samples.dtype == np.float32
            assert output.content.samples.shape == (24,)
            assert np.abs(output.content.samples).max() <= 1
            assert np.array_equal(output.content.samples, audio_pattern("r1", "thinker", seq, 96))
        assert outputs[-1].usage["audio_s"] == pytest.approx(0.002)

    def test_no_chunks_at_all(self, build: Build) -> None:
        drive = build(final="text", chunks=0)
        drive.add("r1", SAY_HELLO)
        (only,) = drive.finish("r1")
        assert (only.content, only.ended, only.finish_reason, only.note) == (None, True, "stop", None)

    def test_a_second_attempt_makes_the_same_bytes(self, build: Build) -> None:
        made = []
        for request_id in ("r1/1/thinker", "r1/2/thinker"):
            drive = build(final="text", targets=("a",))
            drive.add(request_id, SAY_HELLO, external_id="r1", seed=7)
            outputs = drive.finish(request_id)
            made.append((contents(outputs), [chunk.arrays["data"].tolist() for chunk in chunks(outputs, "a")]))
        assert made[0] == made[1]

    def test_a_stage_without_sources_needs_a_prompt(self, build: Build) -> None:
        with pytest.raises(InvalidRequestError, match="stage thinker: a prompt was expected"):
            build().add("r1")


class TestEcho:
    def test_text_repeats_the_prompts_words(self, build: Build) -> None:
        drive = build(final="text", targets=("a",), echo=True)
        drive.add("r1", Prompt("  Say hello,\n please ", None, None))
        outputs = drive.finish("r1")
        assert contents(outputs) == ["  Say", " hello,", "\n please "]
        assert len(chunks(outputs, "a")) == 3
        assert outputs[-1].usage == {"prompt_tokens": 3, "completion_tokens": 3}

    def test_of_a_conversation_the_last_message(self, build: Build) -> None:
        drive = build(final="text", echo=True)
        system = Message("system", [TextPart("Be kind")])
        user = Message("user", [AudioPart(b"..."), TextPart("Good day"), TextPart("to you")])
        drive.add("r1", Prompt(None, [system, user], None))
        assert contents(drive.finish("r1")) == ["Good", " day", " to", " you"]

    def test_of_token_ids_their_numbers(self, build: Build) -> None:
        drive = build(final="text", echo=True)
        drive.add("r1", Prompt(None, None, [5, 17]))
        assert contents(drive.finish("r1")) == ["5", " 17"]

    @pytest.mark.parametrize("text", ["", "  \n"])
    def test_nothing_to_say_is_a_success_with_a_note(self, build: Build, text: str) -> None:
        drive = build(final="text", echo=True)
        drive.add("r1", Prompt(text, None, None))
        (only,) = drive.finish("r1")
        assert (only.content, only.finish_reason) == (None, "stop")
        assert only.note == "nothing to say: the prompt has no words"

    def test_audio_without_sources_makes_its_chunks_whatever_the_prompt(self, build: Build) -> None:
        drive = build(final="audio", chunks=2, echo=True)
        drive.add("r1", Prompt("", None, None))
        outputs = drive.finish("r1")
        assert [output.content is not None for output in outputs] == [True, True]
        assert outputs[-1].note is None

    def test_audio_is_a_tone_of_100_ms_a_chunk(self, build: Build) -> None:
        drive = build("code2wav", sources=("talker",), final="audio", echo=True)
        drive.add("r1")
        drive.feed("r1", "talker", 3)
        drive.engine.end_of_input("r1", "talker")
        outputs = drive.finish("r1")
        sound = [output.content for output in outputs if isinstance(output.content, Audio)]
        assert [audio.samples.shape for audio in sound] == [(2400,)] * 3
        assert np.array_equal(sound[1].samples, tone(2))
        assert outputs[-1].usage["audio_s"] == pytest.approx(0.3)
        spectrum = np.abs(np.fft.rfft(sound[0].samples))
        assert int(spectrum.argmax()) * 10 == 440
        whole = np.concatenate([audio.samples for audio in sound])
        assert np.abs(np.diff(whole)).max() < 0.2 * 2 * np.pi * 460 / 24_000 * 1.01


class TestFed:
    @pytest.mark.parametrize("each", [1, 3])
    def test_outputs_follow_the_input(self, build: Build, each: int) -> None:
        drive = build("talker", sources=("thinker",), targets=("c",), chunks_per_input=each)
        drive.add("r1")
        drive.drain()
        assert drive.outputs["r1"] == []
        drive.feed("r1", "thinker", 2)
        drive.drain()
        assert len(drive.outputs["r1"]) == 2 * each
        assert not any(output.ended for output in drive.outputs["r1"])
        drive.engine.end_of_input("r1", "thinker")
        outputs = drive.finish("r1")
        assert (outputs[-1].ended, outputs[-1].finish_reason, outputs[-1].content) == (True, "stop", None)
        assert [chunk.meta["seq"] for chunk in chunks(outputs, "c")] == list(range(1, 2 * each + 1))
        assert outputs[-1].usage == {"prompt_tokens": 0, "completion_tokens": 2 * each}

    def test_the_last_output_carries_the_end_when_it_is_known_in_time(self, build: Build) -> None:
        drive = build("talker", sources=("thinker",))
        drive.add("r1")
        drive.feed("r1", "thinker", 2)
        drive.engine.end_of_input("r1", "thinker")
        assert [output.finish_reason for output in drive.finish("r1")] == [None, "stop"]

    def test_two_sources_must_both_end(self, build: Build) -> None:
        drive = build("c", sources=("a", "b"))
        drive.add("r1")
        drive.feed("r1", "a", 2)
        drive.feed("r1", "b", 1)
        drive.engine.end_of_input("r1", "a")
        drive.drain()
        assert len(drive.outputs["r1"]) == 3
        assert not drive.ended("r1")
        drive.engine.end_of_input("r1", "b")
        assert drive.finish("r1")[-1].finish_reason == "stop"

    def test_input_that_ends_empty(self, build: Build) -> None:
        drive = build("talker", sources=("thinker",))
        drive.add("r1")
        drive.engine.end_of_input("r1", "thinker")
        (only,) = drive.finish("r1")
        assert (only.ended, only.finish_reason) == (True, "stop")

    def test_r5_a_consumer_that_ends_early_ignores_what_still_comes(self, build: Build) -> None:
        drive = build("talker", sources=("thinker",), chunks_per_input=2)
        drive.add("r1", max_tokens=3)
        drive.feed("r1", "thinker", 2)
        assert [output.finish_reason for output in drive.finish("r1")] == [None, None, "length"]
        drive.feed("r1", "thinker", 1, first=3)
        drive.engine.end_of_input("r1", "thinker")
        assert not drive.engine.has_work("r1")

    def test_a_whole_pipeline_agrees(self, build: Build) -> None:
        """What one engine makes, the next one verifies."""
        thinker = build("thinker", targets=("talker",), chunks=5)
        talker = build("talker", sources=("thinker",), final="text", echo=True)
        thinker.add("r1/1/thinker", SAY_HELLO, external_id="r1", seed=9)
        talker.add("r1/1/talker", external_id="r1")
        for chunk in chunks(thinker.finish("r1/1/thinker"), "talker"):
            talker.engine.feed("r1/1/talker", "thinker", chunk)
        talker.engine.end_of_input("r1/1/talker", "thinker")
        outputs = talker.finish("r1/1/talker")
        assert (len(outputs), outputs[-1].finish_reason) == (5, "stop")


class TestVerification:
    GOOD = Chunk({"seq": 1}, {"data": pattern("r1", "thinker", 1, 256)})

    def refusal(self, drive: Drive, chunk: Chunk, edge: str = "thinker") -> str:
        drive.add("r1")
        drive.engine.feed("r1", edge, chunk)
        (output,) = drive.finish("r1")
        assert isinstance(output.error, StageError)
        assert output.error.stage == "talker"
        assert not drive.engine.has_work("r1")
        return output.error.message

    @pytest.mark.parametrize("flipped", [0, 8, 255])
    def test_one_wrong_byte(self, build: Build, flipped: int) -> None:
        data = self.GOOD.arrays["data"].copy()
        data[flipped] ^= 1
        message = self.refusal(build("talker", sources=("thinker",)), replace(self.GOOD, arrays={"data": data}))
        assert message == (
            "corrupt chunk 1 from thinker: its 256 bytes are not the pattern of this request, stage, sequence and size"
        )

    @pytest.mark.parametrize(
        "data",
        [
            pattern("r2", "thinker", 1, 256),
            pattern("r1", "talker", 1, 256),
            pattern("r1", "thinker", 2, 256),
            pattern("r1", "thinker", 1, 256, seed=1),
            pattern("r1", "thinker", 1, 256)[:-8],
            np.roll(pattern("r1", "thinker", 1, 256), 8),
            np.zeros(256, np.uint8),
        ],
    )
    def test_what_belongs_elsewhere(self, build: Build, data: np.ndarray[Any, Any]) -> None:
        message = self.refusal(build("talker", sources=("thinker",)), Chunk({"seq": 1}, {"data": data}))
        assert message.startswith("corrupt chunk 1 from thinker: its ")

    @pytest.mark.parametrize(
        ("chunk", "problem"),
        [
            (Chunk({"seq": 1}, {}), "it has no array 'data' of uint8"),
            (Chunk({"seq": 1}, {"data": np.zeros(3, np.int8)}), "it has no array 'data' of uint8"),
            (Chunk({"seq": 1}, {"data": np.zeros((2, 2), np.uint8)}), "it has no array 'data' of uint8"),
            (Chunk({"seq": 2}, GOOD.arrays), "its seq is 2"),
            (Chunk({}, GOOD.arrays), "its seq is None"),
            (Chunk({"seq": 1, "seed": "x"}, GOOD.arrays), "its seed is 'x'"),
        ],
    )
    def test_what_is_no_synthetic_chunk(self, build: Build, chunk: Chunk, problem: str) -> None:
        message = self.refusal(build("talker", sources=("thinker",)), chunk)
        assert message == f"corrupt chunk 1 from thinker: {problem}"

    def test_the_first_bad_chunk_is_named_and_others_go_on(self, build: Build) -> None:
        drive = build("talker", sources=("thinker",))
        drive.add("r1")
        drive.add("r2")
        drive.feed("r1", "thinker", 1)
        drive.feed("r1", "thinker", 2, first=3)
        drive.feed("r2", "thinker", 1)
        drive.engine.end_of_input("r2", "thinker")
        error = drive.finish("r1")[-1].error
        assert error is not None
        assert error.message == "corrupt chunk 2 from thinker: its seq is 3"
        assert drive.finish("r2")[-1].finish_reason == "stop"

    def test_empty_chunks_agree(self) -> None:
        assert pattern("r1", "a", 1, 0).shape == (0,)
        assert difference(Chunk({"seq": 1}, {"data": pattern("r1", "a", 1, 0)}), "r1", "a", 1) is None

    def test_no_eight_bytes_recur(self) -> None:
        words = pattern("r1", "thinker", 1, 1 << 20).view("<u8")
        assert len(np.unique(words)) == len(words)


class TestTime:
    def test_first_delay_and_interval_wait_for_wake_without_spinning(self, build: Build) -> None:
        drive = build(chunks=3, first_delay_ms=60, interval_ms=40)
        start = time.monotonic()
        drive.add("r1", SAY_HELLO)
        steps = 0
        made_at = []
        while not drive.ended("r1"):
            drive.woken.clear()
            steps += 1
            if drive.step():
                made_at.append(time.monotonic() - start)
            else:
                assert drive.woken.wait(10)
        assert steps <= 2 * 3 + 1
        assert made_at[0] >= 0.06
        assert made_at[1] >= 0.06 + 0.04
        assert made_at[2] >= 0.06 + 2 * 0.04

    def test_the_first_delay_of_a_fed_stage_counts_from_its_first_chunk(self, build: Build) -> None:
        drive = build("talker", sources=("thinker",), first_delay_ms=50)
        drive.add("r1")
        assert not drive.woken.wait(0.06)
        start = time.monotonic()
        drive.feed("r1", "thinker", 1)
        assert not drive.engine.has_work("r1")
        drive.engine.end_of_input("r1", "thinker")
        drive.finish("r1")
        assert time.monotonic() - start >= 0.05

    def test_c2_the_report_comes_after_the_end_of_the_output(self, build: Build) -> None:
        drive = build(final="text", targets=("a",), chunks=2, terminal_delay_ms=50)
        drive.add("r1", SAY_HELLO)
        start = time.monotonic()
        drive.drain()
        first, last = drive.outputs["r1"]
        assert not first.ended
        assert (last.ended, last.finish_reason, dict(last.usage)) == (True, None, {})
        assert last.content is not None
        assert len(last.chunks["a"]) == 1
        report = drive.finish("r1")[-1]
        assert time.monotonic() - start >= 0.05
        assert (report.content, dict(report.chunks), report.finish_reason) == (None, {}, "stop")
        assert report.usage["completion_tokens"] == 2

    def test_batches_take_turns(self, build: Build) -> None:
        drive = build(chunks=2, max_batch=2)
        for request_id in ("r3", "r2", "r1"):
            drive.add(request_id, SAY_HELLO)
        turns = [[output.request_id for output in drive.step()] for _ in range(3)]
        assert turns == [["r3", "r2"], ["r1", "r3"], ["r2", "r1"]]

    def test_an_alarm_calls_at_the_earliest_time_and_once(self) -> None:
        called = threading.Semaphore(0)
        alarm = Alarm(called.release)
        start = time.monotonic()
        alarm.set(start + 60)
        alarm.set(start + 0.03)
        alarm.set(start + 30)
        assert called.acquire(timeout=10)
        assert 0.03 <= time.monotonic() - start < 5
        assert not called.acquire(timeout=0.05)
        alarm.close()
        alarm.close()


class TestParameters:
    def test_max_tokens_cuts(self, build: Build) -> None:
        drive = build(final="text", echo=True)
        drive.add("r1", SAY_HELLO, max_tokens=2)
        outputs = drive.finish("r1")
        assert contents(outputs) == ["Say", " hello,"]
        assert outputs[-1].finish_reason == "length"

    @pytest.mark.parametrize("limit", [3, 4, None])
    def test_max_tokens_that_do_not_cut(self, build: Build, limit: int | None) -> None:
        drive = build(final="text", echo=True)
        drive.add("r1", SAY_HELLO, max_tokens=limit, seed=None)
        assert drive.finish("r1")[-1].finish_reason == "stop"

    def test_seed_changes_the_pattern_and_travels(self, build: Build) -> None:
        drive = build(targets=("a",), chunks=1)
        drive.add("r1", SAY_HELLO, seed=3)
        (chunk,) = chunks(drive.finish("r1"), "a")
        assert dict(chunk.meta) == {"seq": 1, "seed": 3}
        assert np.array_equal(chunk.arrays["data"], pattern("r1", "thinker", 1, 256, seed=3))

    @pytest.mark.parametrize(
        ("params", "problem"),
        [
            ({"max_tokens": 0}, "max_tokens = 0: a whole number from 1 was expected"),
            ({"max_tokens": True}, "max_tokens = True: a whole number from 1 was expected"),
            ({"max_tokens": "3"}, "max_tokens = '3': a whole number from 1 was expected"),
            ({"seed": 1.5}, "seed = 1.5: a whole number was expected"),
            ({"max_token": 3}, "unknown parameter 'max_token': did you mean 'max_tokens'?"),
            ({"temperature": 0}, "unknown parameter 'temperature': known are logprobs, max_tokens, seed"),
        ],
    )
    def test_others_are_refused(self, build: Build, params: dict[str, Any], problem: str) -> None:
        drive = build()
        with pytest.raises(InvalidRequestError, match=f"^{re.escape(f'stage thinker: {problem}')}$"):
            drive.add("r1", SAY_HELLO, **params)
        assert not drive.engine.has_work("r1")

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"chunk": 3}, "stage.thinker.options.chunk: unknown key: did you mean 'chunks'?"),
            ({"chunks": -1}, "stage.thinker.options.chunks: -1: a whole number from 0 to 1000000 was expected"),
            ({"crash_at": 0}, "stage.thinker.options.crash_at: 0: a whole number from 1 to 1000000 was expected"),
            ({"echo": 1}, "stage.thinker.options.echo: 1: true or false was expected"),
            ({"interval_ms": "x"}, 'stage.thinker.options.interval_ms: "x": a number from 0 to 3600000 was expected'),
            ({"fault_only": 7}, "stage.thinker.options.fault_only: 7: a string was expected"),
        ],
    )
    def test_bad_options_are_refused(self, build: Build, options: dict[str, Any], problem: str) -> None:
        with pytest.raises(ConfigError, match=f"^{re.escape(problem)}$"):
            build(**options)


class TestAbort:
    def test_a1_it_is_forgotten_and_tells_its_usage(self, build: Build) -> None:
        drive = build(final="text", chunks=5)
        drive.add("r1", SAY_HELLO)
        drive.step()
        (output,) = drive.engine.abort("r1")
        assert (output.content, output.finish_reason) == (None, "abort")
        assert output.usage == {"prompt_tokens": 3, "completion_tokens": 1}
        assert not drive.engine.has_work("r1")
        assert drive.engine.step(["r1"]) == []

    def test_a5_of_an_unknown_or_ended_request(self, build: Build) -> None:
        drive = build(chunks=1)
        assert drive.engine.abort("r1") == []
        drive.add("r1", SAY_HELLO)
        drive.finish("r1")
        assert drive.engine.abort("r1") == []


class TestFaults:
    def test_f1_fail_at_ends_its_own_request(self, build: Build) -> None:
        drive = build(final="text", chunks=4, fail_at=3, fault_only="bad")
        for request_id in ("bad-1", "good"):
            drive.add(request_id, SAY_HELLO)
        outputs = drive.finish("bad-1")
        assert len(contents(outputs)) == 3
        error = outputs[-1].error
        assert isinstance(error, StageError)
        assert (error.message, error.stage) == ("told to fail at output 3 (fail_at)", "thinker")
        assert drive.finish("good")[-1].finish_reason == "stop"
        assert drive.engine.abort("bad-1") == []

    def test_silent_at_stops_one_request_for_good(self, build: Build) -> None:
        drive = build(chunks=4, silent_at=2, fault_only="quiet")
        drive.add("quiet", SAY_HELLO)
        drive.add("loud", SAY_HELLO)
        assert drive.finish("loud")[-1].finish_reason == "stop"
        drive.drain()
        assert len(drive.outputs["quiet"]) == 1
        assert not drive.engine.has_work("quiet")
        assert drive.engine.abort("quiet")[0].usage["completion_tokens"] == 1

    def test_slow_at_takes_a_second(self, build: Build) -> None:
        drive = build(chunks=2, slow_at=2)
        drive.add("r1", SAY_HELLO)
        drive.step()
        start = time.monotonic()
        drive.step()
        assert time.monotonic() - start >= 1
        assert drive.ended("r1")

    def test_fault_once_strikes_once_for_all_engines_of_the_deployment(self, build: Build) -> None:
        reasons = []
        for request_id in ("r1", "r2"):
            drive = build(fail_at=1, fault_once=True)
            drive.add(request_id, SAY_HELLO)
            reasons.append(drive.finish(request_id)[-1].finish_reason)
        assert reasons == [None, "stop"]

    def test_fault_once_is_not_spent_on_others(self, build: Build) -> None:
        drive = build(fail_at=1, fault_once=True, fault_only="bad")
        for request_id, reason in (("good", "stop"), ("bad", None), ("bad-again", "stop")):
            drive.add(request_id, SAY_HELLO)
            assert drive.finish(request_id)[-1].finish_reason == reason

    def test_stages_strike_apart(self, build: Build) -> None:
        for stage in ("a", "b"):
            drive = build(stage, fail_at=1, fault_once=True)
            drive.add("r1", SAY_HELLO)
            assert drive.finish("r1")[-1].error is not None

    def test_f5_fail_start_after_its_delay(self, build: Build) -> None:
        start = time.monotonic()
        with pytest.raises(LaunchError, match="the synthetic engine was told not to start: fail_start = true"):
            build(fail_start=True, start_delay_ms=50)
        assert time.monotonic() - start >= 0.05

    PROCESS = """
import sys, pathlib
from omnizmq.protocol import Prompt
from omnizmq.workers.engine import EngineContext, EngineRequest
from omnizmq.workers.engines.synthetic import create
private, options = pathlib.Path(sys.argv[1]), eval(sys.argv[2])
said = lambda text: print(text, flush=True)
engine = create(EngineContext("thinker", "", (), options, (), (), None, 1, private, lambda: None, said))
engine.add(EngineRequest("r1", Prompt("x", None, None), {}, external_id="r1"))
for _ in range(3):
    print(engine.step(["r1"])[0].finish_reason, flush=True)
"""

    def start(self, private: Path, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", self.PROCESS, str(private), repr(options)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def test_f2_crash_at_kills_the_worker_and_fault_once_spares_the_next(self, tmp_path: Path) -> None:
        first = self.start(tmp_path, chunks=3, crash_at=2, fault_once=True)
        assert first.communicate()[0] == "None\n"
        assert first.returncode == -signal.SIGKILL
        second = self.start(tmp_path, chunks=3, crash_at=2, fault_once=True)
        assert second.communicate()[0] == "None\nNone\nstop\n"
        assert second.returncode == 0

    def test_f2_hang_at_never_returns(self, tmp_path: Path) -> None:
        process = self.start(tmp_path, chunks=3, hang_at=2)
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "None\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)
            process.kill()

    def test_a_slow_start_tells_its_progress(self, tmp_path: Path) -> None:
        process = self.start(tmp_path, chunks=3, start_delay_ms=600)
        lines = process.communicate()[0].splitlines()
        assert lines[0] == "start_delay_ms: 0.6 s left"
        assert lines[-1] == "stop"


@pytest.mark.parametrize("text", ["a", " a b ", "a\n\nb\tc", "ein Wort — noch eines"])
def test_words_joined_are_the_text_again(text: str) -> None:
    assert "".join(words_of(Prompt(text, None, None))) == text


class TestBusy:
    """R4: what waits for time is busy, what was told to be silent or waits for input is not."""

    def test_r4_a_request_that_waits_for_time_is_busy_with_it(self, build: Build) -> None:
        drive = build(chunks=2, first_delay_ms=3_600_000)
        drive.add("r1", SAY_HELLO)
        assert not drive.engine.has_work("r1")
        assert drive.engine.busy_with("r1")

    def test_r4_a_request_that_is_silent_is_not(self, build: Build) -> None:
        drive = build(chunks=2, silent_at=1)
        drive.add("r1", SAY_HELLO)
        drive.step()
        assert not drive.engine.has_work("r1")
        assert not drive.engine.busy_with("r1")

    def test_b1_a_request_that_waits_for_input_is_not(self, build: Build) -> None:
        drive = build("talker", sources=("thinker",))
        drive.add("r1")
        assert not drive.engine.busy_with("r1")
        assert not drive.engine.busy_with("nobody")
