"""The soak, for seconds: `make soak` does the same for minutes or an hour. What must hold is said in `support.soak`.

Its checks are tested as well: whatever is right passes them, and they find each thing that would be wrong.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.running import eventually
from support.soak import Plan, Soak
from support.soak_ask import Ask
from support.soak_clients import Clients, Tally
from support.soak_config import GRACE_S, MIDDLE, SOUND, SOUND_BYTES, TEXT, WINDOW
from support.soak_flat import FLOOR, LEAST, rows, table
from support.soak_heard import Heard
from support.soak_journal import Began, Ended, Line, Reader, Writer
from support.soak_mishaps import LATE_S, Kind, Mishaps
from support.soak_watch import FILES, OWN
from support.stress import visible

from omnizmq import RequestOutput

SEED = 7


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.timeout(240)
def test_b3_c4_f2_under_load_and_mishaps_all_is_right_and_nothing_is_left(home: Path) -> None:
    report = Soak(home, Plan(SEED, seconds=1, clients=3, callers=4, brief=True), print).run()
    assert report.conclude() == [], report.markdown()
    assert report.tally.begun == report.tally.ended + report.tally.cut
    assert report.tally.ends["whole"]["stop"] > 0
    assert report.counters["replicas_lost"] > 0
    assert {"client killed", "client killed while stopped", "client stopped beyond the grace"} <= set(report.mishaps)
    assert {"restart", "restart --force", "drain --timeout", "drain --undo"} <= set(report.mishaps)


@pytest.mark.usefixtures("no_leaks")
def test_control_a_client_that_ends_by_itself_is_a_problem(home: Path) -> None:
    found: list[str] = []
    clients = Clients("nowhere", SEED, home, 1, Mishaps(), lambda who, how: found.append(f"{who}: {how}"), Tally())

    def gone() -> bool:
        clients.look()
        return bool(found)

    with visible():
        clients.start()
    assert eventually(gone, 30)
    clients.look()
    assert len(found) == 1
    assert found[0].startswith("client 0: ended with 1 in the middle")
    assert "nowhere" in found[0]


# --- What is heard ---------------------------------------------------------------------------------------------------


def ask_like(**wanted: object) -> Ask:
    """The first one without a fate that has these attributes."""
    asks = (Ask.of(f"whole-{SEED}-0-{number}") for number in range(10_000))
    return next(ask for ask in asks if all(getattr(ask, name) == value for name, value in wanted.items()))


BOTH: dict[str, object] = {"modalities": ("text", "audio"), "output_kind": "delta"}


def told(ask: Ask) -> list[RequestOutput]:
    """All that has to be heard of it, as deltas."""
    ids = "r", ask.external_id
    words = [word if n == 0 else f" {word}" for n, word in enumerate(ask.words[: ask.outputs])]
    texts = [RequestOutput(*ids, TEXT, "text", text=word) for word in words]
    parts = np.split(ask.sound, 2 * ask.outputs)
    sounds = [RequestOutput(*ids, SOUND, "audio", audio=part, sample_rate=24_000) for part in parts]
    outputs: list[RequestOutput] = []
    for stage in (texts if TEXT in ask.finals else [], sounds if SOUND in ask.finals else []):
        outputs += [*stage[:-1], *(replace(last, stage_finished=True) for last in stage[-1:])]
    last, ran = (SOUND, (TEXT, MIDDLE, SOUND)) if SOUND in ask.finals else (TEXT, (TEXT,))
    usage = {stage: {"completion_tokens": 1} for stage in ran}
    modality = ask.finals[last]
    end = RequestOutput(*ids, last, modality, finished=True, finish_reason=ask.reason, usage=usage)
    return [*outputs, end]


def wrong(ask: Ask, outputs: Sequence[RequestOutput]) -> str | None:
    heard = Heard(ask)
    for output in outputs:
        heard.take(output)
    heard.ended()
    return heard.wrong


class TestHeard:
    @pytest.mark.parametrize("number", range(40))
    def test_what_is_right_passes(self, number: int) -> None:
        ask = Ask.of(f"whole-{SEED}-1-{number}")
        assert wrong(ask, told(ask)) is None

    def test_the_whole_at_once_passes(self) -> None:
        ask = ask_like(**{**BOTH, "output_kind": "final"})
        first, *_, end = told(ask)
        whole = [
            replace(first, text=ask.text, stage_finished=True),
            RequestOutput("r", ask.external_id, SOUND, "audio", audio=ask.sound, stage_finished=True),
        ]
        assert wrong(ask, [*whole, end]) is None

    @pytest.mark.parametrize("at", [0, 1, -2, -1])
    def test_what_is_missing_is_found(self, at: int) -> None:
        ask = ask_like(**BOTH, limit=None)
        outputs = told(ask)
        assert len(outputs) > 4
        del outputs[at]
        assert wrong(ask, outputs) is not None

    @pytest.mark.parametrize("at", [0, 1, -2, -1])
    def test_what_comes_twice_is_found(self, at: int) -> None:
        ask = ask_like(**BOTH, limit=None)
        outputs = told(ask)
        outputs.insert(at, outputs[at])
        assert wrong(ask, outputs) is not None

    def test_another_text_is_found(self) -> None:
        ask = ask_like(**BOTH)
        first, *rest = told(ask)
        other = "?" * len(first.text or "")
        found = wrong(ask, [replace(first, text=other), *rest])
        assert found == f"text {other!r} where {first.text!r} had to come"

    def test_one_other_sample_is_found(self) -> None:
        ask = ask_like(**BOTH)
        outputs = told(ask)
        audio = np.array(outputs[-3].audio)
        audio[SOUND_BYTES // 8] += 1e-4
        outputs[-3] = replace(outputs[-3], audio=audio)
        assert "are not the engine's" in str(wrong(ask, outputs))

    def test_an_output_that_was_not_asked_for_is_found(self) -> None:
        ask = ask_like(modalities=("audio",), output_kind="delta")
        (text, *_) = told(dataclasses.replace(ask, modalities=None))
        assert "was not asked for" in str(wrong(ask, [text, *told(ask)]))

    def test_usage_of_other_stages_is_found(self) -> None:
        ask = ask_like(**BOTH)
        *outputs, end = told(ask)
        usage = {stage: end.usage[stage] for stage in (TEXT, MIDDLE)}
        assert "usage" in str(wrong(ask, [*outputs, replace(end, usage=usage)]))
        assert wrong(ask, [*outputs, replace(end, usage=usage, usage_incomplete=(SOUND,))]) is None

    def test_another_finish_reason_and_another_last_stage_are_found(self) -> None:
        ask = ask_like(**BOTH)
        *outputs, end = told(ask)
        assert wrong(ask, [*outputs, replace(end, finish_reason="length")]) is not None
        assert wrong(ask, [*outputs, replace(end, stage=TEXT)]) is not None


# --- How it ended ----------------------------------------------------------------------------------------------------


def ended(how: str, fate: str = "whole", seconds: float = 1.0, **more: Any) -> Ended:
    """A request of client 3 that has just ended. It may have to be like `ask_like`."""
    now = time.monotonic()
    return Ended(f"{fate}-{SEED}-3-1", now - seconds, now, how, **more)


def with_mishap(kind: Kind, target: str, seconds: float = 0.5) -> Mishaps:
    """One that began so long ago and goes on."""
    mishaps = Mishaps()
    mishaps.begin(kind, target, "any").began -= seconds
    return mishaps


class TestMishaps:
    @pytest.mark.parametrize(
        "end",
        [
            ended("stop"),
            ended("length"),
            ended("abort", "abort"),
            ended("stop", "abort"),
            ended("cancelled", "cancel"),
            ended("stop", "late"),
            ended("deadline_exceeded", "late"),
            ended("stop", "late", incomplete=(TEXT,)),
            ended("stage_error", "faulty", stage=TEXT, message="told to fail at output 2 (fail_at)"),
            ended("input_timeout", "quiet", stage=MIDDLE, message=f"edge {MIDDLE}->{SOUND}: …"),
            ended("slow_reader", "never", GRACE_S + 1),
        ],
    )
    def test_what_its_fate_explains_is_no_problem(self, end: Ended) -> None:
        assert Mishaps().unexplained(end) is None

    @pytest.mark.parametrize(
        "end",
        [
            ended("stop", wrong="text 'a' where 'b' had to come"),
            ended("stop", incomplete=(MIDDLE,)),
            ended("stop", "late", 0.001, incomplete=(TEXT,)),
            ended("stop", "faulty"),
            ended("stop", "quiet"),
            ended("stop", "late", 0.4 + LATE_S + 1),
            ended("abort"),
            ended("cancelled"),
            ended("deadline_exceeded"),
            ended("deadline_exceeded", "late", 0.001),
            ended("slow_reader", seconds=60),
            ended("slow_reader", "slow", 60),
            ended("slow_reader", "never", GRACE_S / 2),
            ended("stage_error"),
            ended("stage_error", "faulty", stage=MIDDLE, message="corrupt chunk 1"),
            ended("input_timeout"),
            ended("input_timeout", "quiet", stage=TEXT, message=f"edge {TEXT}->{MIDDLE}: …"),
            ended("unavailable", stage=MIDDLE),
            ended("replica_lost", stage=MIDDLE),
            ended("router_lost"),
            ended("overloaded"),
            ended("internal_error"),
            ended("stuck"),
            ended("nothing"),
        ],
    )
    def test_what_nothing_explains_is_one(self, end: Ended) -> None:
        assert Mishaps().unexplained(end) is not None

    def test_a_death_explains_a_refusal_by_its_stage_alone(self) -> None:
        mishaps = with_mishap("death", f"{MIDDLE}/0")
        assert mishaps.unexplained(ended("unavailable", stage=MIDDLE)) is None
        assert mishaps.unexplained(ended("unavailable", stage=SOUND)) is not None
        assert mishaps.unexplained(ended("unavailable", stage=MIDDLE, outputs=1)) is not None
        assert mishaps.unexplained(ended("stop", incomplete=(MIDDLE,))) is None
        assert mishaps.unexplained(ended("stop", incomplete=(MIDDLE, TEXT))) is not None
        assert mishaps.unexplained(ended("replica_lost", stage=MIDDLE)) is not None  # it is driven again
        for kind in ("stop", "order", "freeze"):
            assert with_mishap(kind, f"{MIDDLE}/0").unexplained(ended("stop", incomplete=(MIDDLE,))) is not None

    def test_a_frozen_client_explains_its_own_slow_readers_alone(self) -> None:
        end = ended("slow_reader", "whole", 30)
        delta = Ask.of(end.external_id).output_kind == "delta"
        assert delta
        assert with_mishap("freeze", "3", GRACE_S).unexplained(end) is None
        assert with_mishap("freeze", "3", GRACE_S / 4).unexplained(end) is not None
        assert with_mishap("freeze", "4", GRACE_S).unexplained(end) is not None
        assert with_mishap("stop", f"{TEXT}/1", GRACE_S).unexplained(end) is not None

    def test_who_never_reads_has_to_end_so_where_nothing_befell_it(self) -> None:
        numbers = (f"never-{SEED}-3-{number}" for number in range(100))
        ask = next(ask for ask in map(Ask.of, numbers) if ask.outputs > WINDOW + 1)
        end = Ended(ask.external_id, time.monotonic() - 20, time.monotonic(), "stop")
        assert Mishaps().unexplained(end) is not None
        assert with_mishap("death", f"{TEXT}/0").unexplained(end) is None


# --- What grew -------------------------------------------------------------------------------------------------------


class TestFlat:
    SECONDS = 400

    @classmethod
    def grown(cls, name: str, values: Iterable[float]) -> list[str]:
        samples = [(float(at), {name: float(value)}) for at, value in enumerate(values)]
        found = rows(samples, start=cls.SECONDS / 5)
        assert all(row.first is not None for row in found)
        assert table(found).count("**grew**") == sum(row.grew for row in found)
        return [row.name for row in found if row.grew]

    def test_a_leak_is_found_and_a_warm_up_is_none(self) -> None:
        at, name = np.arange(self.SECONDS), f"router {OWN}"
        noise = np.random.default_rng(SEED).normal(0, 0.5, self.SECONDS)
        assert self.grown(name, 40 + 4 * at / self.SECONDS + noise) == [name + FLOOR]
        assert self.grown(name, 40 + 60 * at / self.SECONDS + noise) == [name, name + FLOOR]
        assert self.grown(name, 40 - 20 * np.exp(-at / 20) + noise) == []
        assert self.grown(name, 40 + 30 * (at % 5 == 0) + noise) == []
        assert self.grown(name, 50 - 10 * at / self.SECONDS + noise) == []

    def test_a_leak_below_what_passes_through_is_found(self) -> None:
        at, name = np.arange(self.SECONDS), f"{SOUND}/1 {OWN}"
        load = np.random.default_rng(SEED).exponential(8, self.SECONDS)
        assert self.grown(name, 26 + load) == []
        assert name + FLOOR in self.grown(name, 26 + load + 4 * at / self.SECONDS)

    def test_descriptors_and_tables_that_only_rise_are_found(self) -> None:
        at, name = np.arange(self.SECONDS), f"{TEXT}/1 {FILES}"
        assert self.grown(name, 50 + at // 40) == [name]
        assert self.grown(name, 50 + at % 3) == []
        assert self.grown("leftovers", at // 20) == ["leftovers"]
        assert self.grown("leftovers", at % 7) == []

    def test_with_few_samples_nothing_is_said(self) -> None:
        samples = [(float(at), {"queued": float(at)}) for at in range(4 * LEAST - 8)]
        (row,) = rows(samples, start=0)
        assert (row.first, row.last, row.grew) == (None, None, False)


class TestJournal:
    def test_what_is_written_is_read_once_and_a_line_that_was_cut_is_not(self, tmp_path: Path) -> None:
        path = tmp_path / "journal"
        reader = Reader(path)
        assert reader.read() == []
        writer = Writer(path)
        lines: list[Line] = [Began("whole-7-0-1", 1.5), Ended("whole-7-0-1", 1.5, 2.5, "stop", incomplete=("a", "b"))]
        for line in lines:
            writer.write(line)
        writer.close()
        assert reader.read() == lines
        with open(path, "ab") as file:
            file.write(b'{"type":"Began","external_id":"who')
        assert reader.read() == []
