"""Qwen3-Omni's three stages on a tiny random checkpoint with images, beside the library's own whole model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="not installed: the extra `transformers`")
pytest.importorskip("transformers", reason="not installed: the extra `transformers`")

import torch
from PIL import Image
from support.noise import sound, wave_file
from support.pictures import file, noise
from support.qwen3_omni import GREEDY, NAMES, Made, Reference, Stages, make, received

from omnizmq.errors import InvalidRequestError, LaunchError, StageError
from omnizmq.protocol import AudioPart, ImagePart, Message, Prompt, TextPart
from omnizmq.workers.engine import Engine, EngineRequest
from omnizmq.workers.engines.hf.checkpoint import INDEX
from omnizmq.workers.engines.qwen3_omni import tiny
from omnizmq.workers.engines.qwen3_omni.rows import tokens_chunk

pytestmark = pytest.mark.transformers

ROUNDING = 1e-4
TOKENS, FRAMES = 20, 30
PARAMS = {"thinker": {"max_tokens": TOKENS}, "talker": {**GREEDY, "max_tokens": FRAMES + 1, "speaker": "aiden"}}
IMAGE = tiny.make_tokenizer().convert_tokens_to_ids("<|image_pad|>")

WIDE, TALL, SMALL = noise(200, 130, 1), noise(96, 250, 2), noise(20, 15, 3)
SOUND = sound(1.3)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny.ensure(tmp_path_factory.mktemp("models"), 0)


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Reference:
    return Reference(checkpoint)


@pytest.fixture(scope="module")
def engines(checkpoint: Path) -> Iterator[dict[str, Engine]]:
    made = {name: make(name, checkpoint) for name in NAMES}
    yield made
    for engine in made.values():
        engine.close()


def asked(text: str, *images: Image.Image | bytes, sounds: Sequence[np.ndarray] = ()) -> Prompt:
    files = [image if isinstance(image, bytes) else file(image) for image in images]
    parts = [TextPart(text), *map(ImagePart, files), *(AudioPart(wave_file(samples)) for samples in sounds)]
    return Prompt(None, [Message("user", parts)], None)


def expected(
    reference: Reference, text: str, *images: Image.Image, sounds: Sequence[np.ndarray] = (), tokens: int = TOKENS
) -> Made:
    """What the library's model makes of the same."""
    inputs: dict[str, torch.Tensor] = {}
    seen: list[int] = []
    heard: list[int] = []
    if images:
        inputs, seen = reference.pixels(images)
    if sounds:
        features, heard = reference.features([samples[:, 0] for samples in sounds])
        inputs |= features
    return reference.generate(reference.ids(text, heard, seen), tokens, FRAMES + 1, "aiden", **inputs)


def answer(engines: dict[str, Engine], prompt: Prompt, **params: dict[str, Any]) -> Made:
    stages = Stages(engines)
    stages.add("one", prompt, **(params or PARAMS))
    stages.run()
    return stages.made["one"]


def same(made: Made, whole: Made) -> bool:
    return made.tokens == whole.tokens and np.array_equal(made.codes, whole.codes)


CASES: dict[str, tuple[tuple[Image.Image, ...], tuple[np.ndarray, ...]]] = {
    "wide": ((WIDE,), ()),
    "tall": ((TALL,), ()),
    "scaled up": ((SMALL,), ()),
    "two": ((WIDE, TALL), ()),
    "three": ((TALL, SMALL, WIDE), ()),
    "with a sound": ((WIDE,), (SOUND,)),
    "two with two sounds": ((SMALL, TALL), (SOUND, sound(0.4))),
}


class TestTheSameAsTheWholeModel:
    @pytest.mark.parametrize("name", CASES)
    def test_tokens_and_codes_are_equal_and_the_wave_but_for_rounding(
        self, engines: dict[str, Engine], reference: Reference, name: str
    ) -> None:
        images, sounds = CASES[name]
        made = answer(engines, asked("Hello!", *images, sounds=sounds))
        whole = expected(reference, "Hello!", *images, sounds=sounds)
        assert made.tokens == whole.tokens
        assert np.array_equal(made.codes, whole.codes)
        assert made.wave.size == whole.wave.size
        assert np.abs(made.wave - whole.wave).max() < ROUNDING

    def test_they_say_enough_to_tell_images_apart(self, engines: dict[str, Engine]) -> None:
        answers = [answer(engines, asked("Hello!", image)) for image in (WIDE, noise(200, 130, 4), noise(130, 200, 5))]
        assert len({tuple(made.tokens) for made in answers}) == 3
        assert len({made.codes.tobytes() for made in answers}) == 3

    def test_an_image_of_an_earlier_turn_is_still_seen(self, engines: dict[str, Engine], reference: Reference) -> None:
        """The Talker skips what is not the user's, and counts positions without it."""
        turns = [
            Message("system", [TextPart("Be kind to everybody.")]),
            Message("user", [ImagePart(file(WIDE)), TextPart("What?")]),
            Message("assistant", [TextPart("babebi")]),
            Message("user", [TextPart("And"), ImagePart(file(TALL)), TextPart("now?")]),
        ]
        image = {"type": "image"}
        said = [
            {"role": "system", "content": "Be kind to everybody."},
            {"role": "user", "content": [image, {"type": "text", "text": "What?"}]},
            {"role": "assistant", "content": "babebi"},
            {"role": "user", "content": [{"type": "text", "text": "And"}, image, {"type": "text", "text": "now?"}]},
        ]
        inputs, counts = reference.pixels([WIDE, TALL])
        whole = reference.generate(reference.ids_of(said, counts), TOKENS, FRAMES + 1, "aiden", **inputs)
        assert same(answer(engines, Prompt(None, turns, None)), whole)

    def test_what_is_larger_than_the_checkpoint_takes_is_scaled_down(
        self, checkpoint: Path, reference: Reference, tmp_path: Path
    ) -> None:
        """To pixels that `preprocessor_config.json` says, here 16 tokens."""
        narrow = configured(checkpoint, tmp_path, max_pixels=1 << 14)
        made = {"thinker": make("thinker", narrow)}
        image = noise(250, 200, 6)
        there = answer(made, asked("Hello!", image), thinker={"max_tokens": TOKENS})
        assert there.usage["thinker"]["prompt_tokens"] == len(reference.ids("Hello!", (), [12]))
        whole = expected(Reference(narrow), "Hello!", image)
        assert there.tokens == whole.tokens


class TestBatching:
    def test_with_an_image_and_without_each_makes_what_the_whole_model_makes(
        self, engines: dict[str, Engine], reference: Reference
    ) -> None:
        """Together, of different lengths; two come late, and one is aborted in the middle."""
        asking: dict[str, tuple[tuple[Image.Image, ...], tuple[np.ndarray, ...]]] = {
            "text": ((), ()),
            "image": ((WIDE,), ()),
            "sound": ((), (SOUND,)),
            "both": ((TALL,), (SOUND,)),
            "two": ((WIDE, SMALL), ()),
            "cut": ((TALL,), ()),
        }
        together = Stages(engines)
        for n, (name, (images, sounds)) in enumerate(asking.items()):
            if name not in ("both", "two"):
                together.add(name, asked(f"Hello {n}!", *images, sounds=sounds), **PARAMS)
        for round_number, _ in enumerate(together.rounds()):
            for n, name in ((3, "both"), (4, "two")):
                if round_number == 2 + n:
                    images, sounds = asking[name]
                    together.add(name, asked(f"Hello {n}!", *images, sounds=sounds), **PARAMS)
            if round_number == 12:
                together.abort("cut")
        for n, (name, (images, sounds)) in enumerate(asking.items()):
            if name != "cut":
                whole = expected(reference, f"Hello {n}!", *images, sounds=sounds)
                assert same(together.made[name], whole), name


class TestWhatItWouldBeWithout:
    """Each of these says something else: the tests above see it."""

    @pytest.fixture
    def own(self, engines: dict[str, Engine], checkpoint: Path) -> dict[str, Engine]:
        return {**engines, "thinker": make("thinker", checkpoint), "talker": make("talker", checkpoint)}

    def test_features_for_the_first_layers(
        self, own: dict[str, Engine], reference: Reference, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        encoders = own["thinker"]._model._encoders
        see = encoders.see
        for left in (0, 1):
            monkeypatch.setattr(encoders, "see", lambda patches, left=left: (see(patches)[0], see(patches)[1][:left]))
            assert answer(own, asked("Hello!", WIDE)).tokens != expected(reference, "Hello!", WIDE).tokens

    def test_rows_and_columns_in_the_thinker(
        self, own: dict[str, Engine], reference: Reference, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "omnizmq.workers.engines.qwen3_omni.axes.positions", lambda count, _: np.tile(np.arange(count), (3, 1))
        )
        assert answer(own, asked("Hello!", WIDE)).tokens != expected(reference, "Hello!", WIDE).tokens

    def test_rows_and_columns_in_the_talker(
        self, own: dict[str, Engine], reference: Reference, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "omnizmq.workers.engines.qwen3_omni.talker_model.positions",
            lambda count, _: np.tile(np.arange(count), (3, 1)),
        )
        made, whole = answer(own, asked("Hello!", WIDE)), expected(reference, "Hello!", WIDE)
        assert made.tokens == whole.tokens
        assert not np.array_equal(made.codes, whole.codes)

    @pytest.mark.parametrize("stage", ["thinker", "talker"])
    def test_the_shift_of_what_follows(
        self, own: dict[str, Engine], reference: Reference, monkeypatch: pytest.MonkeyPatch, stage: str
    ) -> None:
        where = {"thinker": "axes.shift", "talker": "talker_model.shift"}[stage]
        monkeypatch.setattr(f"omnizmq.workers.engines.qwen3_omni.{where}", lambda _: 0)
        assert not same(answer(own, asked("Hello!", WIDE)), expected(reference, "Hello!", WIDE))

    def test_another_hidden_layer(self, own: dict[str, Engine], reference: Reference) -> None:
        own["thinker"]._model._accepted -= 1
        made, whole = answer(own, asked("Hello!", WIDE)), expected(reference, "Hello!", WIDE)
        assert made.tokens == whole.tokens
        assert not np.array_equal(made.codes, whole.codes)


class TestRefusals:
    @pytest.mark.parametrize(
        ("prompt", "line"),
        [
            (asked("?", b"nonsense"), "an image cannot be read: it is no file of PNG, JPEG, WEBP"),
            (asked("?", b""), "an image cannot be read"),
            (asked("?", file(noise(80, 80))[:300]), "an image is damaged"),
            (asked("?", noise(1, 300)), "an image of 1 x 300 pixels is too long: one side may be 200 times the other"),
            (asked("?", noise(400, 320)), "an image of 400 x 320 pixels takes 120 tokens: a slot holds 100, text and"),
            (asked("?", *[noise(256, 224)] * 2), "2 of the prompt's 2 images take 112 tokens: a slot holds 100"),
            (asked("?", *[SMALL] * 17, b"nonsense"), "17 of the prompt's 18 images take 102 tokens: a slot holds 100"),
            (asked("?", noise(320, 310)), r"the prompt has 11\d tokens: a slot holds 100"),
            (asked("<|image_pad|>"), "the prompt has 1 placeholders of images, and 0 images"),
            (asked("<|image_pad|>", WIDE), "the prompt has 2 placeholders of images, and 1 images"),
            (
                asked("<|video_pad|>"),
                "this thinker takes text, sound and images: the prompt has a placeholder of videos",
            ),
            (Prompt(None, None, [5, IMAGE]), "the prompt has 1 placeholders of images, and 0 images"),
        ],
    )
    def test_what_cannot_be_seen_is_refused(self, checkpoint: Path, prompt: Prompt, line: str) -> None:
        with pytest.raises(InvalidRequestError, match=line) as refused:
            Stages({"thinker": make("thinker", checkpoint, slot_tokens=100)}).add("one", prompt)
        assert "\n" not in refused.value.message

    def test_more_pixels_than_are_scaled_down_are_refused_by_the_header(self, checkpoint: Path, tmp_path: Path) -> None:
        thinker = make("thinker", configured(checkpoint, tmp_path, max_pixels=1 << 14))
        thinker.add(EngineRequest("one", asked("?", noise(256, 256)), {}))
        with pytest.raises(InvalidRequestError, match="256 x 257 pixels is too large: it may have 65536 pixels"):
            thinker.add(EngineRequest("two", asked("?", file(noise(256, 257))[:60]), {}))

    @pytest.mark.parametrize(
        ("ids", "grids", "line"),
        [
            ([5, IMAGE, IMAGE], [], "sent 0 sizes of images that are not the prompt's: there are tokens of images"),
            ([5, IMAGE, IMAGE], [(2, 2)], "sent 1 sizes of images that are not the prompt's: the image at 1"),
            ([5, IMAGE, IMAGE], [(0, 2)], "grids that are no int32"),
        ],
    )
    def test_a_thinker_that_says_other_sizes_is_told(
        self, engines: dict[str, Engine], ids: list[int], grids: list[tuple[int, int]], line: str
    ) -> None:
        talker = engines["talker"]
        talker.add(EngineRequest("one", None, {}))
        with pytest.raises(StageError, match=line):
            talker.feed("one", "thinker", received(tokens_chunk(ids, torch.zeros(2, tiny.HIDDEN), grids)))
        talker.abort("one")


class TestLoading:
    @pytest.mark.parametrize(
        ("values", "line"),
        [
            ({"patch_size": 14}, "patch_size is 14, and the vision encoder's patch_size is 16"),
            ({"merge_size": 4}, "merge_size is 4, and the vision encoder's spatial_merge_size is 2"),
            ({"max_pixels": "many"}, "size.longest_edge is 'many': it must be a number of pixels"),
            ({"min_pixels": 0}, "size.shortest_edge is 0: it must be a number of pixels"),
        ],
    )
    def test_a_preprocessor_of_another_model_is_refused(
        self, checkpoint: Path, tmp_path: Path, values: dict[str, Any], line: str
    ) -> None:
        with pytest.raises(LaunchError, match=line):
            make("thinker", configured(checkpoint, tmp_path, **values))

    def test_without_a_vision_encoder_its_tensors_are_named(self, checkpoint: Path, tmp_path: Path) -> None:
        copy = configured(checkpoint, tmp_path)
        index = json.loads((copy / INDEX).read_bytes())["weight_map"]
        left = {name: shard for name, shard in index.items() if not name.startswith("thinker.visual.")}
        assert len(left) < len(index)
        (copy / INDEX).write_text(json.dumps({"weight_map": left}))
        with pytest.raises(LaunchError, match=r"the checkpoint lacks model\.visual\..* and \d+ more"):
            make("thinker", copy)

    def test_without_a_preprocessor_it_is_said_so(self, checkpoint: Path, tmp_path: Path) -> None:
        copy = configured(checkpoint, tmp_path)
        (copy / "preprocessor_config.json").unlink()
        with pytest.raises(LaunchError, match=r"preprocessor of .* cannot be used: ") as refused:
            make("thinker", copy)
        assert "\n" not in refused.value.message


def configured(checkpoint: Path, folder: Path, **values: Any) -> Path:
    """A copy with these values in its `preprocessor_config.json`."""
    copy = Path(shutil.copytree(checkpoint, folder / "copy"))
    config = copy / "preprocessor_config.json"
    config.write_text(json.dumps({**json.loads(config.read_bytes()), **values}))
    return copy
