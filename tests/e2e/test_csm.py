"""CSM's two stages on a tiny random checkpoint, beside the library's own whole model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="not installed: the extra `transformers`")
pytest.importorskip("transformers", reason="not installed: the extra `transformers`")

import torch
from safetensors.torch import load_file, save_file
from support.csm import NAMES, Reference, make
from support.qwen3_omni import GREEDY, Made, Stages

from omnizmq.errors import InvalidRequestError, LaunchError
from omnizmq.protocol import AudioPart, ImagePart, Message, Prompt, TextPart
from omnizmq.workers.engine import Engine, StageOutput
from omnizmq.workers.engines.csm import tiny
from omnizmq.workers.engines.hf.wave import WaveStream

pytestmark = pytest.mark.transformers

FRAMES = 220
ROUNDING = 1e-4
"""Of samples in -1..1. The wave's mean is over a hundred times larger."""

SHORT = "Hello!"
LONG = "babebi " * 20


def said(text: str) -> Prompt:
    return Prompt(text, None, None)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny.ensure(tmp_path_factory.mktemp("models"), 0)


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Reference:
    return Reference(checkpoint)


@pytest.fixture(scope="module")
def references(reference: Reference) -> dict[str, Made]:
    return {text: reference.generate(reference.ids(text), FRAMES) for text in (SHORT, LONG)}


@pytest.fixture(scope="module")
def engines(checkpoint: Path) -> Iterator[dict[str, Engine]]:
    made = {name: make(name, checkpoint) for name in NAMES}
    yield made
    for engine in made.values():
        engine.close()


def answer(engines: dict[str, Engine], prompt: Prompt, **talker: Any) -> Made:
    stages = Stages(engines)
    stages.add("one", prompt, talker=talker)
    stages.run()
    return stages.made["one"]


class TestTheSameAsTheWholeModel:
    @pytest.mark.parametrize(("text", "initial", "following"), [(SHORT, 1, 7), (LONG, 4, 25)])
    def test_codes_are_equal_and_the_wave_but_for_rounding(
        self,
        checkpoint: Path,
        engines: dict[str, Engine],
        references: dict[str, Made],
        text: str,
        initial: int,
        following: int,
    ) -> None:
        talker = make("talker", checkpoint, initial_chunk_frames=initial, chunk_frames=following)
        made, whole = answer({**engines, "talker": talker}, said(text), **GREEDY, max_tokens=FRAMES), references[text]
        assert np.array_equal(made.codes, whole.codes)
        assert [chunk.shape[1] for chunk in made.chunks[:2]] == [initial, following]
        assert made.wave.size == whole.wave.size
        assert np.abs(made.wave - whole.wave).max() < ROUNDING < np.abs(whole.wave).mean() / 100
        assert made.usage["talker"]["frames"] == FRAMES

    def test_they_say_enough_to_tell_them_apart(self, references: dict[str, Made]) -> None:
        assert all(len(np.unique(made.codes, axis=1).T) > 100 for made in references.values())
        assert not np.array_equal(references[SHORT].codes, references[LONG].codes)

    def test_another_speaker_is_the_librarys_too(self, engines: dict[str, Engine], reference: Reference) -> None:
        made = answer(engines, said(SHORT), **GREEDY, max_tokens=30, speaker=7)
        assert np.array_equal(made.codes, reference.generate(reference.ids(SHORT, 7), 30).codes)
        assert not np.array_equal(made.codes, answer(engines, said(SHORT), **GREEDY, max_tokens=30).codes)

    def test_another_depth_decoder_says_it_differently(
        self, checkpoint: Path, engines: dict[str, Engine], references: dict[str, Made]
    ) -> None:
        talker = make("talker", checkpoint)
        heads = talker._model._model.depth_decoder.codebooks_head.weight
        heads.data = heads.data.flip(0)
        made = answer({**engines, "talker": talker}, said(SHORT), **GREEDY, max_tokens=FRAMES)
        assert not np.array_equal(made.codes[1:], references[SHORT].codes[1:])


class TestBatching:
    TEXTS = [SHORT, LONG, "What?", "ba " * 7, "One two three", "Zu ne ko", "?", "a b c"]

    def params(self, n: int) -> dict[str, Any]:
        """Every other one is drawn, with a seed of its own."""
        drawn = {"temperature": 0.9, "top_k": 20, "seed": n} if n % 2 else GREEDY
        return {**drawn, "max_tokens": 30 + 3 * n, "speaker": n}

    def test_eight_together_make_what_each_makes_alone(self, engines: dict[str, Engine]) -> None:
        """Three of them come late, and one is aborted in the middle."""
        together = Stages(engines)
        late = {6: 5, 9: 6, 13: 7}
        for n in range(5):
            together.add(str(n), said(self.TEXTS[n]), talker=self.params(n))
        for round_number, _ in enumerate(together.rounds()):
            if round_number in late:
                n = late[round_number]
                together.add(str(n), said(self.TEXTS[n]), talker=self.params(n))
            if round_number == 15:
                together.abort("2")
        aborted = together.made.pop("2")
        assert not aborted.reasons
        assert 0 < aborted.codes.shape[1] < 36
        for name, made in together.made.items():
            alone = answer(engines, said(self.TEXTS[int(name)]), **self.params(int(name)))
            assert np.array_equal(made.codes, alone.codes), name
            assert made.wave.size == alone.wave.size == 1920 * (30 + 3 * int(name))
        assert len({made.codes.tobytes() for made in together.made.values()}) == 7

    def test_a_slot_is_given_on_by_an_abort(self, checkpoint: Path) -> None:
        talker = make("talker", checkpoint, slots=1)
        stages = Stages({"talker": talker})
        stages.add("one", said(SHORT))
        stages.add("two", said(SHORT), talker={"max_tokens": 9})
        next(stages.rounds())
        (output,) = talker.abort("one")
        assert (output.finish_reason, output.usage["completion_tokens"]) == ("abort", 1)
        assert talker.abort("one") == []
        outputs: list[StageOutput] = []
        while talker.has_work("two"):
            outputs += talker.step(["two"])
        assert (outputs[-1].finish_reason, outputs[-1].usage["completion_tokens"]) == ("length", 9)


class TestFailures:
    def test_one_that_has_no_memory_fails_alone(self, checkpoint: Path, engines: dict[str, Engine]) -> None:
        """In a step of the whole batch, which is computed again in halves; what is drawn does not change by that."""
        talker = make("talker", checkpoint)
        advance = talker._model.advance

        def crowded(slots: Any, starts: Any, frames: Any) -> torch.Tensor:
            if any(start >= 149 for start in starts):  # LONG has 145 tokens
                raise torch.OutOfMemoryError("CUDA out of memory")
            return advance(slots, starts, frames)

        talker._model.advance = crowded
        together = Stages({**engines, "talker": talker})
        texts = {"0": SHORT, "1": LONG, "2": "What?"}
        for n, text in texts.items():
            together.add(n, said(text), talker={"max_tokens": 20, "seed": int(n)})
        together.run()
        failed = together.made.pop("1")
        assert failed.error is not None
        assert failed.error.code == "overloaded"
        assert failed.codes.shape[1] == 4
        for n, made in together.made.items():
            assert np.array_equal(made.codes, answer(engines, said(texts[n]), max_tokens=20, seed=int(n)).codes)

    def test_output_that_is_no_number_is_that_requests_error(
        self, checkpoint: Path, engines: dict[str, Engine]
    ) -> None:
        talker = make("talker", checkpoint)
        question = tiny.make_tokenizer().convert_tokens_to_ids("?")
        talker._model._model.embed_text_tokens.weight.data[question] = torch.nan
        together = Stages({**engines, "talker": talker})
        for n, text in enumerate((SHORT, "What?", SHORT)):
            together.add(str(n), said(text), talker={**GREEDY, "max_tokens": 9})
        together.run()
        assert "the model's output is not finite" in str(together.made["1"].error)
        assert np.array_equal(together.made["0"].codes, together.made["2"].codes)
        assert together.made["0"].codes.shape[1] == 9


class TestSpeech:
    @pytest.mark.parametrize("frames", range(1, 31))
    def test_a_streamed_wave_has_as_many_samples_as_one_decode(
        self, engines: dict[str, Engine], reference: Reference, frames: int
    ) -> None:
        vocoder = engines["code2wav"]._model
        codes = torch.randint(tiny.CODES, (1, tiny.GROUPS, 47), generator=torch.Generator().manual_seed(7))
        with torch.inference_mode():
            whole = reference.model.codec_model.decode(codes).audio_values[0, 0].numpy()
        stream = WaveStream(vocoder)
        wave = np.concatenate([stream.push(part) for part in codes.split(frames, dim=2)])
        assert wave.size == whole.size == 47 * 1920 == stream.samples
        assert np.abs(wave - whole).max() < ROUNDING

    @pytest.mark.parametrize("before", [0, 6])
    def test_a_frame_of_ends_alone_ends_the_reply_and_is_no_sound(
        self, checkpoint: Path, engines: dict[str, Engine], before: int
    ) -> None:
        """The end is code 0 of every group, which is what a model without a preference chooses."""
        talker = make("talker", checkpoint)
        stages = Stages({**engines, "talker": talker})
        stages.add("one", said(SHORT), talker=GREEDY)
        rounds = stages.rounds()
        for _ in range(before):
            next(rounds)
        network = talker._model._model
        network.lm_head.weight.data.zero_()
        network.depth_decoder.codebooks_head.weight.data.zero_()
        for _ in rounds:
            pass
        made = stages.made["one"]
        assert made.reasons == {"talker": "stop", "code2wav": "stop"}
        assert made.wave.size == before * 1920
        assert made.usage["talker"]["completion_tokens"] == before + 1

    def test_a_reply_ends_with_its_slot(self, checkpoint: Path, engines: dict[str, Engine]) -> None:
        talker = make("talker", checkpoint, slot_tokens=20)
        made = answer({**engines, "talker": talker}, said(SHORT), **GREEDY)
        assert made.usage["talker"] == {"prompt_tokens": 11, "completion_tokens": 9, "frames": 9}
        assert made.reasons["talker"] == "length"

    def test_a_text_sounds_the_same_twice_unless_its_seed_differs(self, engines: dict[str, Engine]) -> None:
        once, twice, other = (answer(engines, said(SHORT), max_tokens=20, **seed) for seed in ({}, {}, {"seed": 1}))
        assert np.array_equal(once.codes, twice.codes)
        assert not np.array_equal(once.codes, other.codes)


def messages(*turns: tuple[str, Any]) -> Prompt:
    return Prompt(None, [Message(role, [part]) for role, part in turns], None)


class TestPrompts:
    def test_the_last_turn_is_what_is_said(self, engines: dict[str, Engine]) -> None:
        talk = messages(("user", TextPart("Hi")), ("assistant", TextPart("Yes?")), ("user", TextPart(SHORT)))
        made = answer(engines, talk, **GREEDY, max_tokens=9)
        assert np.array_equal(made.codes, answer(engines, said(SHORT), **GREEDY, max_tokens=9).codes)

    @pytest.mark.parametrize(
        ("prompt", "params", "line"),
        [
            (said("ba" * 40), {}, "the text has 85 tokens: a slot holds 30, the speech included"),
            (said("ba" * 400), {}, r"the prompt has 835 characters, \d+ tokens at least: a slot holds 30"),
            (said("  "), {}, "there is nothing to say: the text is empty"),
            (Prompt(None, None, [5, 999]), {}, "token id 999 is none of this model's 260"),
            (messages(("user", ImagePart(b""))), {}, "the last message must be the user's, of text alone"),
            (messages(("user", AudioPart(b""))), {}, "the last message must be the user's, of text alone"),
            (messages(("assistant", TextPart("Hi"))), {}, "the last message must be the user's, of text alone"),
            (messages(("system", TextPart("Be kind")), ("user", TextPart("Hi"))), {}, "it follows no system message"),
            (said(SHORT), {"speaker": "bob"}, "parameter speaker = 'bob' is not usable: it must be a whole number"),
            (said(SHORT), {"repetition_penalty": 1.1}, "parameter repetition_penalty is unknown"),
        ],
    )
    def test_what_cannot_be_said_is_refused(
        self, checkpoint: Path, prompt: Prompt, params: dict[str, Any], line: str
    ) -> None:
        with pytest.raises(InvalidRequestError, match=line):
            Stages({"talker": make("talker", checkpoint, slot_tokens=30)}).add("one", prompt, talker=params)


TALKER, CODEC, TIED, OTHER = (
    "backbone_model.layers.1.mlp.up_proj.weight",
    "codec_model.decoder.layers.3.block.1.conv.weight",
    "depth_decoder.model.embed_tokens.weight",
    "backbone_model.embed_tokens.embed_audio_tokens.weight",
)


def rewritten(checkpoint: Path, folder: Path, changed: dict[str, torch.Tensor | None]) -> Path:
    """A copy in one file, with tensors added, or taken out."""
    tensors: dict[str, torch.Tensor] = {}
    for shard in checkpoint.glob("*.safetensors"):
        tensors |= load_file(shard)
    tensors.update({name: tensor for name, tensor in changed.items() if tensor is not None})
    save_file({name: tensor for name, tensor in tensors.items() if changed.get(name, tensor) is not None}, folder / "w")
    (folder / "w").rename(folder / "model.safetensors")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_bytes((checkpoint / name).read_bytes())
    return folder


class TestLoading:
    @pytest.mark.parametrize(("role", "own"), [("talker", TALKER), ("code2wav", CODEC)])
    def test_a_missing_tensor_is_named(self, checkpoint: Path, tmp_path: Path, role: str, own: str) -> None:
        with pytest.raises(LaunchError, match=r"the checkpoint lacks .*(mlp\.up_proj|block\.1\.conv)\.weight"):
            make(role, rewritten(checkpoint, tmp_path, {own: None}))

    def test_either_of_two_tables_that_are_one_is_enough(
        self, checkpoint: Path, engines: dict[str, Engine], tmp_path: Path
    ) -> None:
        table = next(t[TIED] for f in checkpoint.glob("*.safetensors") if TIED in (t := load_file(f)))
        talker = make("talker", rewritten(checkpoint, tmp_path, {TIED: None, OTHER: table}))
        made = answer({**engines, "talker": talker}, said(SHORT), **GREEDY, max_tokens=9)
        assert np.array_equal(made.codes, answer(engines, said(SHORT), **GREEDY, max_tokens=9).codes)

    def test_an_unknown_tensor_is_named(self, checkpoint: Path, tmp_path: Path) -> None:
        extra = {"backbone_model.extra.weight": torch.zeros(2)}
        with pytest.raises(LaunchError, match=r"has unknown tensors: .*backbone_model\.extra\.weight"):
            make("talker", rewritten(checkpoint, tmp_path, extra))

    @pytest.mark.parametrize(
        ("template", "line"), [("{% if %}", "TemplateSyntaxError"), ("{{ messages[0].nobody() }}", "UndefinedError")]
    )
    def test_a_template_that_does_not_work_is_found_at_the_start(
        self, checkpoint: Path, tmp_path: Path, template: str, line: str
    ) -> None:
        folder = rewritten(checkpoint, tmp_path, {})
        (folder / "chat_template.jinja").write_text(template)
        with pytest.raises(LaunchError, match=f"cannot be loaded as a talker: {line}"):
            make("talker", folder)

    def test_a_checkpoint_without_a_tokenizer_is_refused(self, checkpoint: Path, tmp_path: Path) -> None:
        folder = rewritten(checkpoint, tmp_path, {})
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).unlink()
        with pytest.raises(LaunchError, match=r"the tokenizer of .* cannot be used"):
            make("talker", folder)

    @pytest.mark.parametrize("role", NAMES)
    def test_a_stage_loads_without_the_others_shards(self, checkpoint: Path, tmp_path: Path, role: str) -> None:
        index = json.loads((checkpoint / "model.safetensors.index.json").read_bytes())["weight_map"]
        own = {name for name in index if name.startswith("codec_model.") == (role == "code2wav")}
        folder = rewritten(checkpoint, tmp_path, dict.fromkeys(set(index) - own))
        make(role, folder).close()

    def test_the_same_seed_makes_the_same_checkpoint(self, checkpoint: Path, tmp_path: Path) -> None:
        again = tiny.ensure(tmp_path, 0)
        assert sorted(f.name for f in again.iterdir()) == sorted(f.name for f in checkpoint.iterdir())
        for file in checkpoint.iterdir():
            assert (again / file.name).read_bytes() == file.read_bytes(), file.name
        assert sum(file.stat().st_size for file in checkpoint.iterdir()) < 2_000_000
