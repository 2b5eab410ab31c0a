"""Qwen3-Omni's three stages on a tiny random checkpoint, beside the library's own whole model. About a minute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="not installed: the extra `transformers`")
pytest.importorskip("transformers", reason="not installed: the extra `transformers`")

import torch
from support.noise import sound, wave_file
from support.qwen3_omni import GREEDY, Made, Reference, Stages, make

from omnizmq.errors import InvalidRequestError, StageError
from omnizmq.protocol import AudioPart, Message, Prompt, TextPart
from omnizmq.workers.engine import Engine, EngineRequest
from omnizmq.workers.engines.qwen3_omni import tiny
from omnizmq.workers.engines.qwen3_omni.rows import tokens_chunk

pytestmark = pytest.mark.transformers

FRAMES = 219
ROUNDING = 1e-4
"""Of samples in -1..1. The wave's mean is over a hundred times larger."""

SHORT = "Hello!"
LONG = "babebi " * 20
THINKER_TOKENS = {SHORT: 60, LONG: 90}


def said(text: str) -> Prompt:
    return Prompt(text, None, None)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny.ensure(tmp_path_factory.mktemp("models"), 7)


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Reference:
    return Reference(checkpoint)


@pytest.fixture(scope="module")
def references(reference: Reference) -> dict[str, Made]:
    return {
        text: reference.generate(reference.ids(text), most, FRAMES + 1, "ethan")
        for text, most in THINKER_TOKENS.items()
    }


@pytest.fixture(scope="module")
def engines(checkpoint: Path) -> Iterator[dict[str, Engine]]:
    made = {
        "thinker": make("thinker", checkpoint),
        "talker": make("talker", checkpoint),
        "code2wav": make("code2wav", checkpoint),
    }
    yield made
    for engine in made.values():
        engine.close()


def answer(engines: dict[str, Engine], prompt: Prompt, **params: dict[str, Any]) -> Made:
    stages = Stages(engines)
    stages.add("one", prompt, **params)
    stages.run()
    return stages.made["one"]


def greedy(engines: dict[str, Engine], text: str, speaker: str = "ethan") -> Made:
    return answer(
        engines,
        said(text),
        thinker={"max_tokens": THINKER_TOKENS[text]},
        talker={**GREEDY, "max_tokens": FRAMES + 1, "speaker": speaker},
    )


class TestTheSameAsTheWholeModel:
    @pytest.mark.parametrize(("text", "initial", "following"), [(SHORT, 1, 7), (LONG, 4, 25)])
    def test_tokens_and_codes_are_equal_and_the_wave_but_for_rounding(
        self,
        checkpoint: Path,
        engines: dict[str, Engine],
        references: dict[str, Made],
        text: str,
        initial: int,
        following: int,
    ) -> None:
        """The first frames leave before the last token, and change nothing by that."""
        talker = make("talker", checkpoint, initial_chunk_frames=initial, chunk_frames=following)
        made, whole = greedy({**engines, "talker": talker}, text), references[text]
        assert made.tokens == whole.tokens
        assert np.array_equal(made.codes, whole.codes)
        assert [chunk.shape[1] for chunk in made.chunks[:2]] == [initial, following]
        assert made.wave.size == whole.wave.size
        assert np.abs(made.wave - whole.wave).max() < ROUNDING < np.abs(whole.wave).mean() / 100
        assert made.events.index("frames") < len(made.events) - 1 - made.events[::-1].index("token")

    def test_they_say_enough_to_tell_them_apart(self, references: dict[str, Made]) -> None:
        assert max(len(set(made.tokens)) for made in references.values()) >= 20
        assert min(made.codes.shape[1] for made in references.values()) >= 200
        assert len(np.unique(references[SHORT].codes, axis=1).T) > 100

    def test_another_speaker_says_it_differently(self, engines: dict[str, Engine], references: dict[str, Made]) -> None:
        made = greedy(engines, SHORT, speaker="Chelsie")
        assert made.tokens == references[SHORT].tokens
        assert not np.array_equal(made.codes, references[SHORT].codes)

    def test_another_projection_says_it_differently(
        self, checkpoint: Path, engines: dict[str, Engine], references: dict[str, Made]
    ) -> None:
        talker = make("talker", checkpoint)
        network = talker._model._model
        network.text_projection = network.hidden_projection
        made = greedy({**engines, "talker": talker}, SHORT)
        assert not np.array_equal(made.codes, references[SHORT].codes)


def asked(text: str, *files: bytes) -> Prompt:
    return Prompt(None, [Message("user", [TextPart(text), *(AudioPart(file) for file in files)])], None)


SOUNDS = (sound(2.3), sound(0.7))


@pytest.fixture(scope="module")
def heard(reference: Reference) -> Made:
    inputs, counts = reference.features([samples[:, 0] for samples in SOUNDS])
    assert counts == [30, 9]
    return reference.generate(reference.ids(SHORT, counts), 25, 60, "aiden", **inputs)


class TestHearing:
    PARAMS = {"thinker": {"max_tokens": 25}, "talker": {**GREEDY, "max_tokens": 60, "speaker": "aiden"}}

    def test_with_sounds_tokens_and_codes_are_equal(self, engines: dict[str, Engine], heard: Made) -> None:
        made = answer(engines, asked(SHORT, *map(wave_file, SOUNDS)), **self.PARAMS)
        assert made.tokens == heard.tokens
        assert np.array_equal(made.codes, heard.codes)
        assert made.wave.size == heard.wave.size
        assert np.abs(made.wave - heard.wave).max() < ROUNDING

    def test_another_hidden_layer_says_it_differently(
        self, checkpoint: Path, engines: dict[str, Engine], heard: Made
    ) -> None:
        thinker = make("thinker", checkpoint)
        thinker._model._accepted -= 1
        made = answer({**engines, "thinker": thinker}, asked(SHORT, *map(wave_file, SOUNDS)), **self.PARAMS)
        assert made.tokens == heard.tokens
        assert not np.array_equal(made.codes, heard.codes)

    @pytest.mark.parametrize("seconds", [(0.7, 2.3, 0.15), (1.004, 1.001), (1.0, 0.999)])
    def test_features_are_those_of_the_librarys_batch(
        self, engines: dict[str, Engine], reference: Reference, seconds: Sequence[float]
    ) -> None:
        """To the last bit, at every length; the silence after the shorter ones is not there."""
        waves = [sound(length) for length in seconds]
        inputs, counts = reference.features([samples[:, 0] for samples in waves])
        made = engines["thinker"]._prompts._hearing.features([wave_file(samples) for samples in waves], 9)
        mask = inputs["feature_attention_mask"].bool()
        assert torch.equal(made.values, inputs["input_features"].permute(0, 2, 1)[mask].T)
        assert (made.frames, made.tokens) == (mask.sum(1).tolist(), counts)

    @pytest.mark.parametrize(("rate", "channels"), [(44_100, 2), (8_000, 1), (16_000, 3)])
    def test_any_rate_and_number_of_channels_is_heard(
        self, engines: dict[str, Engine], rate: int, channels: int
    ) -> None:
        prompt = asked(SHORT, wave_file(sound(2.3, rate, channels), rate))
        made = answer({"thinker": engines["thinker"]}, prompt, thinker={"max_tokens": 2})
        assert made.usage["thinker"]["prompt_tokens"] == 45

    @pytest.mark.parametrize(
        ("prompt", "line"),
        [
            (asked(SHORT, b"RIFFnonsense"), "a sound cannot be read"),
            (asked(SHORT, wave_file(sound(0.01))), r"a sound of 0\.01 s is not usable: it must have 0\.1 to 9 s"),
            (asked(SHORT, wave_file(sound(30))), r"a sound of 30\.00 s is not usable"),
            (asked(SHORT, wave_file(sound(8.9))), r"the prompt has 131 tokens: a slot holds 118"),
            (
                asked(SHORT, *[wave_file(sound(5))] * 2),
                r"the prompt's 2 sounds have 10\.00 s: together they may have 9 s",
            ),
            (asked("<|audio_pad|>"), "the prompt has 1 placeholders of sounds, and 0 sounds"),
        ],
    )
    def test_what_cannot_be_heard_is_refused(self, checkpoint: Path, prompt: Prompt, line: str) -> None:
        with pytest.raises(InvalidRequestError, match=line):
            Stages({"thinker": make("thinker", checkpoint, slot_tokens=118)}).add("one", prompt)

    def test_a_thinker_that_sends_no_rows_is_told_from_a_silent_one(self, engines: dict[str, Engine]) -> None:
        talker = engines["talker"]
        talker.add(EngineRequest("one", None, {}))
        audio = tiny.make_tokenizer().convert_tokens_to_ids("<|audio_pad|>")
        with pytest.raises(StageError, match="1 positions of sound or images, and the thinker sent 0 rows"):
            talker.feed("one", "thinker", tokens_chunk([audio]))
        talker.abort("one")

    def test_what_is_no_token_of_the_talkers_is_told_from_one(self, engines: dict[str, Engine]) -> None:
        """Of a thinker with another vocabulary; on a GPU, to look it up would end the process."""
        talker = engines["talker"]
        for chunks in ([[5, 9999]], [[5, 6], [-1]]):
            talker.add(EngineRequest("one", None, {}))
            *good, bad = (tokens_chunk(ids) for ids in chunks)
            for chunk in good:
                talker.feed("one", "thinker", chunk)
            with pytest.raises(StageError, match=f"the thinker sent token id {chunks[-1][-1]}, which is none"):
                talker.feed("one", "thinker", bad)
            talker.abort("one")


class TestBatching:
    PROMPTS = [SHORT, LONG, "What?", "ba " * 7, "One two three", "Zu ne ko", "?", "user assistant system"]

    def params(self, n: int) -> dict[str, dict[str, Any]]:
        """Every other one is drawn, with a seed of its own."""
        drawn = {"temperature": 0.9, "top_k": 20, "seed": n} if n % 2 else GREEDY
        return {
            "thinker": {**drawn, "max_tokens": 12 + 5 * n},
            "talker": {**drawn, "max_tokens": 30 + 3 * n, "speaker": tiny.SPEAKERS[n % 3]},
        }

    def test_eight_together_make_what_each_makes_alone(self, engines: dict[str, Engine]) -> None:
        """Three of them come late, and one is aborted in the middle."""
        together = Stages(engines)
        for n in range(5):
            together.add(str(n), said(self.PROMPTS[n]), **self.params(n))
        for round_number, _ in enumerate(together.rounds()):
            if round_number in (6, 9, 13):
                n = {6: 5, 9: 6, 13: 7}[round_number]
                together.add(str(n), said(self.PROMPTS[n]), **self.params(n))
            if round_number == 15:
                together.abort("2")
        aborted = together.made.pop("2")
        assert "talker" not in aborted.reasons
        assert 0 < len(aborted.tokens) < 22
        for name, made in together.made.items():
            alone = answer(engines, said(self.PROMPTS[int(name)]), **self.params(int(name)))
            assert made.tokens == alone.tokens, name
            assert np.array_equal(made.codes, alone.codes), name
            assert made.text == alone.text
            assert made.wave.size == alone.wave.size
        assert len({tuple(made.tokens) for made in together.made.values()}) == 7

    def test_requests_beyond_the_slots_wait_for_one(self, checkpoint: Path) -> None:
        thinker = make("thinker", checkpoint, slots=2)
        stages = Stages({"thinker": thinker})
        for n in range(5):
            stages.add(str(n), said(SHORT), thinker={"max_tokens": 3 + n})
        stages.run()
        first = stages.made["0"].tokens
        assert [len(made.tokens) for made in stages.made.values()] == [3, 4, 5, 6, 7]
        assert all(made.tokens[:3] == first for made in stages.made.values())


class TestSpeech:
    @pytest.mark.parametrize("frames", range(1, 31))
    def test_a_streamed_wave_has_as_many_samples_as_one_decode(self, engines: dict[str, Engine], frames: int) -> None:
        from omnizmq.workers.engines.hf.wave import WaveStream

        model = engines["code2wav"]._model
        codes = torch.randint(tiny.CODES, (1, tiny.GROUPS, 47), generator=torch.Generator().manual_seed(7))
        with torch.inference_mode():
            whole = model.network(codes)[0, 0].numpy()
        stream = WaveStream(model)
        wave = np.concatenate([stream.push(part) for part in codes.split(frames, dim=2)])
        assert wave.size == whole.size == 47 * 1920 - 555 == stream.samples
        assert np.abs(wave - whole).max() < ROUNDING

    def test_a_talker_without_a_seed_of_the_callers_repeats_itself(self, engines: dict[str, Engine]) -> None:
        def codes(**params: Any) -> np.ndarray:
            return answer(engines, said(SHORT), thinker={"max_tokens": 8}, talker={"max_tokens": 30, **params}).codes

        assert np.array_equal(codes(), codes())
        assert not np.array_equal(codes(), codes(seed=1))

    @pytest.mark.parametrize(
        ("prompt", "most", "note"),
        [
            (said(SHORT), 1, "the answer is empty"),
            (Prompt(None, [Message("system", [TextPart("Be kind.")])], None), 5, "no user turn"),
            (Prompt(None, None, [5, 6, 7]), 5, "opens no assistant turn"),
        ],
    )
    def test_nothing_to_say_ends_in_good_order(
        self, engines: dict[str, Engine], prompt: Prompt, most: int, note: str
    ) -> None:
        made = answer(engines, prompt, thinker={"max_tokens": most})
        assert len(made.tokens) == most
        assert made.wave.size == 0
        assert note in made.notes["talker"]
        assert made.reasons == {"thinker": "length", "talker": "stop", "code2wav": "stop"}

    def test_an_unknown_speaker_is_refused_with_those_that_there_are(self, engines: dict[str, Engine]) -> None:
        with pytest.raises(InvalidRequestError, match='speaker "bob" is unknown; there are aiden, chelsie, ethan'):
            Stages(engines).add("one", said(SHORT), talker={"speaker": "bob"})
        engines["thinker"].abort("one")


class TestSaying:
    """`say`: the Talker gets what it would have got of an answer with these tokens."""

    SPOKEN = 8

    @pytest.mark.parametrize("prompt", [said(LONG), asked(SHORT, *map(wave_file, SOUNDS))], ids=["text", "sounds"])
    def test_it_sounds_as_an_answer_of_the_same_tokens(
        self, engines: dict[str, Engine], reference: Reference, prompt: Prompt
    ) -> None:
        talker = {**GREEDY, "max_tokens": 60}
        chosen = answer(engines, prompt, thinker={"max_tokens": self.SPOKEN + 1}, talker=talker)
        text = reference.tokenizer.decode(chosen.tokens[: self.SPOKEN])
        made = answer(engines, prompt, thinker={"say": text}, talker=talker)
        assert made.text == text
        assert made.tokens == [*chosen.tokens[: self.SPOKEN], reference.model.config.im_end_token_id]
        assert np.array_equal(made.codes, chosen.codes)
        assert np.array_equal(made.wave, chosen.wave)
        assert made.reasons["thinker"] == "stop"
        assert made.usage["thinker"]["completion_tokens"] == self.SPOKEN + 1

    def test_words_are_said_as_they_are_written(self, engines: dict[str, Engine], reference: Reference) -> None:
        """Neither limits nor stop texts cut them, and what is written as a special token is none."""
        text = "  One is red. <|im_end|>\n日本 🎉 "
        stages = Stages({"thinker": engines["thinker"]})
        stages.add("one", said(SHORT), thinker={"say": text, "max_tokens": 1, "stop": ["red"]})
        stages.add("beside", said(SHORT), thinker={"max_tokens": 5})
        stages.run()
        made = stages.made["one"]
        assert made.text == text
        end = reference.model.config.im_end_token_id
        assert made.tokens.index(end) == len(made.tokens) - 1
        alone = answer({"thinker": engines["thinker"]}, said(SHORT), thinker={"max_tokens": 5})
        assert stages.made["beside"].tokens == alone.tokens

    @pytest.mark.parametrize(
        ("say", "line"),
        [
            (7, "parameter say = 7 is not usable: it must be a text of 1 to 65536 characters, not blank"),
            (" ", "not blank"),
            ("ba" * 20, "the prompt has 13 tokens and the text to say 21: a slot holds 30"),
            ("ba" * 400, r"the text to say has 800 characters, \d+ tokens at least: a slot holds 30"),
        ],
    )
    def test_what_cannot_be_said_is_refused(self, checkpoint: Path, say: Any, line: str) -> None:
        with pytest.raises(InvalidRequestError, match=line):
            Stages({"thinker": make("thinker", checkpoint, slot_tokens=30)}).add(
                "one", said(SHORT), thinker={"say": say}
            )


class TestText:
    def test_text_is_what_the_tokenizer_makes_of_all_tokens(
        self, engines: dict[str, Engine], reference: Reference
    ) -> None:
        made = answer(engines, said(LONG), thinker={"max_tokens": 80, "temperature": 2.0, "seed": 3})
        assert "\ufffd" in made.text  # stray bytes
        assert made.text == reference.tokenizer.decode(made.tokens, skip_special_tokens=True)

    def test_a_stop_text_ends_the_answer_and_is_no_part_of_it(
        self, engines: dict[str, Engine], reference: Reference, references: dict[str, Made]
    ) -> None:
        whole = reference.tokenizer.decode(references[SHORT].tokens)
        made = answer(engines, said(SHORT), thinker={"stop": [whole[9:13], "never said"]}, talker={"max_tokens": 5})
        assert made.text == whole[:9]
        assert made.reasons["thinker"] == "stop"
        assert made.tokens == references[SHORT].tokens[: len(made.tokens)]

    def test_an_answer_ends_with_its_slot(self, checkpoint: Path) -> None:
        stages = Stages({"thinker": make("thinker", checkpoint, slot_tokens=20)})
        stages.add("one", said(SHORT))
        stages.run()
        made = stages.made["one"]
        assert made.usage["thinker"] == {"prompt_tokens": 13, "completion_tokens": 7}
        assert made.reasons["thinker"] == "length"

    @pytest.mark.parametrize(
        ("prompt", "line"),
        [
            (said("ba" * 40), "the prompt has 48 tokens: a slot holds 30"),
            (said("ba" * 400), r"the prompt has \d+ characters, \d+ tokens at least: a slot holds 30"),
            (Prompt(None, None, [5, 999]), "token id 999 is none of this model's"),
        ],
    )
    def test_a_prompt_that_cannot_be_used_is_refused(self, checkpoint: Path, prompt: Prompt, line: str) -> None:
        with pytest.raises(InvalidRequestError, match=line):
            Stages({"thinker": make("thinker", checkpoint, slot_tokens=30)}).add("one", prompt)

    def test_abort_frees_the_slot(self, checkpoint: Path) -> None:
        thinker = make("thinker", checkpoint, slots=1)
        stages = Stages({"thinker": thinker})
        stages.add("one", said(SHORT))
        stages.add("two", said(SHORT), thinker={"max_tokens": 4})
        next(stages.rounds())
        (output,) = thinker.abort("one")
        assert output.finish_reason == "abort"
        assert output.usage["completion_tokens"] == 1
        assert thinker.has_work("two")
        assert thinker.abort("one") == []
