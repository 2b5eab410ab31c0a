"""Sounds and images for Qwen3-Omni's Thinker on vLLM: the engine alone, in the environment of vLLM, beside the library.

The cache is small and steps are short: prompts are computed in pieces, several in a step, and some a second time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines import context

from omnizmq.errors import ConfigError, InvalidRequestError, StageError
from omnizmq.protocol import AudioPart, ImagePart, Message, Prompt, TextPart
from omnizmq.workers.engine import Chunk, EngineRequest, StageOutput

pytest.importorskip("vllm", reason="this environment has no vllm: `make test-vllm` runs it in one that has")

import torch
from PIL import Image
from support.noise import sound, wave_file
from support.pictures import file, noise
from support.qwen3_omni import Reference

from omnizmq.workers.engines.qwen3_omni import tiny
from omnizmq.workers.engines.vllm.engine import create
from omnizmq.workers.engines.vllm.generation import Generation
from omnizmq.workers.engines.vllm.named_rows import NUMBERS, named, split

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]  # vLLM warns of its own dependencies

BLOCK = 32
BLOCK_BYTES = BLOCK * 3 * 2 * 2 * 32 * 4  # layers, keys and values, heads, their size, float32
OPTIONS = {
    "max_model_len": 256,
    "dtype": "float32",
    "block_size": BLOCK,
    "kv_cache_memory_bytes": 12 * BLOCK_BYTES,
    "max_num_batched_tokens": 48,
}
TOKENS = 20
ROUNDING = 1e-4
SOUND, WIDE, TALL = sound(1.3), noise(200, 130, 1), noise(96, 250, 2)

Case = tuple[str, tuple[Image.Image, ...], tuple[np.ndarray, ...]]
CASES: dict[str, Case] = {
    "text": ("Hello!", (), ()),
    "sound": ("Hello!", (), (SOUND,)),
    "backwards": ("Hello!", (), (SOUND[::-1].copy(),)),  # as many tokens as the other
    "image": ("What is that?", (WIDE,), ()),
    "all": ("And now?", (TALL, WIDE), (SOUND, sound(0.4))),
}


@dataclass
class Whole:
    """What the library's model makes of a case. `rows`: hidden states of its items."""

    ids: list[int]
    tokens: list[int]
    rows: torch.Tensor


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.ensure(tmp_path_factory.mktemp("models"), 0)


@pytest.fixture(scope="module")
def whole(checkpoint: Path) -> dict[str, Whole]:
    reference = Reference(checkpoint)
    return {name: _whole(reference, *case) for name, case in CASES.items()}


def _whole(reference: Reference, text: str, images: Sequence[Image.Image], sounds: Sequence[np.ndarray]) -> Whole:
    pixels, seen = reference.pixels(images) if images else ({}, [])
    features, heard = reference.features([samples[:, 0] for samples in sounds]) if sounds else ({}, [])
    ids = reference.ids(text, heard, seen)
    config = reference.model.config.thinker_config
    layer = reference.model.thinker.model.layers[reference.model.config.talker_config.accept_hidden_layer - 1]
    made: list[torch.Tensor] = []
    hook = layer.register_forward_hook(lambda _, __, hidden: made.append(hidden))
    tokens = reference.generate(ids, TOKENS, 2, "aiden", **pixels, **features).tokens
    hook.remove()
    items = [at for at, token in enumerate(ids) if token in (config.audio_token_id, config.image_token_id)]
    return Whole(ids, tokens, made[0][0, items])


@pytest.fixture(scope="module")
def engine(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generation]:
    made = create(
        replace(
            context("thinker", private_dir=tmp_path_factory.mktemp("p"), targets=("talker",), **OPTIONS),
            model=str(checkpoint),
            max_inflight=8,
        )
    )
    assert isinstance(made, Generation)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "engine" in request.fixturenames:
        engine = request.getfixturevalue("engine")
        assert not engine._answers
        assert not engine._items._wanted
        assert not engine._engine.has_unfinished_requests()


def asked(request_id: str, case: Case, **params: Any) -> EngineRequest:
    text, images, sounds = case
    parts = [TextPart(text), *(ImagePart(file(image)) for image in images)]
    parts += [AudioPart(wave_file(samples)) for samples in sounds]
    given = {"temperature": 0.0, "max_tokens": TOKENS, **params}
    return EngineRequest(request_id, Prompt(None, [Message("user", parts)], None), given)


@dataclass
class Handed:
    """What went to the Talker, and the last output."""

    prompt: Chunk
    tokens: list[int]
    last: StageOutput
    text: str

    @property
    def rows(self) -> torch.Tensor:
        rows = self.prompt.content()["rows"]
        out = np.empty(rows.shape, rows.dtype)
        rows.copy_to(out)  # type: ignore[union-attr]
        return torch.from_numpy(out)


def finish(engine: Generation, *ready: str) -> dict[str, Handed]:
    outputs: dict[str, list[StageOutput]] = {request_id: [] for request_id in ready}
    going = list(ready)
    while going:
        for output in engine.step(going):
            assert output.error is None
            outputs[output.request_id].append(output)
            if output.finish_reason is not None:
                going.remove(output.request_id)
    return {request_id: _handed(made) for request_id, made in outputs.items()}


def _handed(outputs: list[StageOutput]) -> Handed:
    prompt, *others = [chunk for output in outputs for chunk in output.chunks.get("talker", ())]
    tokens = [token for chunk in others for token in chunk.arrays["ids"].tolist()]
    return Handed(prompt, tokens, outputs[-1], "".join(str(output.content or "") for output in outputs))


def alone(engine: Generation, case: Case, **params: Any) -> Handed:
    engine.add(asked("alone", case, **params))
    return finish(engine, "alone")["alone"]


def close(rows: torch.Tensor, others: torch.Tensor) -> bool:
    return rows.shape == others.shape and bool((rows - others).abs().max() < ROUNDING)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("request_number", "first"), [(0, 0), (255, 256), (65_535, 254), (NUMBERS - 1, NUMBERS - 3)])
def test_a_row_says_whose_it_is_in_any_dtype(dtype: torch.dtype, request_number: int, first: int) -> None:
    rows = torch.randn(3, 12).to(dtype)
    names, embeddings, added = split(named(rows, request_number, first)[1:], 4)
    assert names.tolist() == [[request_number, first + 1], [request_number, first + 2]]
    assert torch.equal(torch.cat((embeddings, *added), 1), rows[1:])
    assert [layer.shape for layer in added] == [(2, 4)] * 2
    assert split(named(rows, request_number, first), 12)[2] == ()


def test_tokens_and_hidden_states_are_the_librarys(engine: Generation, whole: dict[str, Whole]) -> None:
    """All at once. The two that differ in a sound alone say something else."""
    for name, case in CASES.items():
        engine.add(asked(name, case))
    handed = finish(engine, *CASES)
    for name, expected in whole.items():
        assert handed[name].tokens == expected.tokens
        assert handed[name].prompt.arrays["ids"].tolist() == expected.ids
        assert ("rows" in handed[name].prompt.content()) == (name != "text")
        if name != "text":
            assert close(handed[name].rows, expected.rows)
    assert handed["all"].prompt.arrays["grids"].tolist() == [[8, 3], [4, 6]]
    assert handed["sound"].tokens != handed["backwards"].tokens
    assert not close(handed["sound"].rows, handed["backwards"].rows)
    usage = handed["all"].last.usage
    counts = len(whole["all"].ids), 22, 48
    assert (usage["prompt_tokens"], usage["prompt_audio_tokens"], usage["prompt_image_tokens"]) == counts


def test_a_prompt_is_computed_in_pieces(engine: Generation) -> None:
    """Longer than a step: the first token comes in the second one, and with it the prompt's chunk."""
    engine.add(asked("long", CASES["all"]))
    outputs = [engine.step(["long"]) for _ in range(3)]
    assert [len(made) for made in outputs] == [0, 1, 1]
    assert engine.abort("long")


def test_asked_again_its_hidden_states_are_there_and_the_text_before_is_cached(engine: Generation) -> None:
    text, images, sounds = CASES["image"]
    case = ("Listen, and look carefully: " + text, images, sounds)
    first, second = (alone(engine, case) for _ in range(2))
    assert second.tokens == first.tokens
    assert close(second.rows, first.rows)
    before = first.prompt.arrays["ids"].tolist().index(_image(engine))
    assert second.last.usage["cached_tokens"] == before // BLOCK * BLOCK > 0


def _image(engine: Generation) -> int:
    token: int = engine._prompts._image  # type: ignore[attr-defined]
    return token


def test_without_a_talker_what_is_cached_is_told_apart_by_its_content(
    engine: Generation, whole: dict[str, Whole], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine._items, "_take", None)
    for name, cached in (("all", 0), ("all", 64), ("sound", 0), ("sound", 0), ("backwards", 0)):
        made = alone(engine, CASES[name])
        assert made.tokens == whole[name].tokens
        assert made.last.usage.get("cached_tokens", 0) == cached
    cut = ("Hello!", (WIDE, TALL), CASES["all"][2])  # the first block has an image as large in tokens, another one
    assert alone(engine, cut).last.usage.get("cached_tokens", 0) == 0


def test_what_is_computed_again_after_a_preemption_changes_nothing(
    engine: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each needs half of the cache."""
    params = {"max_tokens": 100, "ignore_eos": True}
    names = ["all", "image", "backwards"]
    expected = {name: alone(engine, CASES[name], **params) for name in names}
    scheduler = engine._engine.engine_core.engine_core.scheduler
    preempted: list[str] = []
    preempt = scheduler._preempt_request

    def seen(request: Any, *others: Any, **named: Any) -> Any:
        preempted.append(request.request_id)
        return preempt(request, *others, **named)

    monkeypatch.setattr(scheduler, "_preempt_request", seen)
    for name in names:
        engine.add(asked(name, CASES[name], **params))
    handed = finish(engine, *names)
    assert preempted
    for name in names:
        assert handed[name].tokens == expected[name].tokens
        assert close(handed[name].rows, expected[name].rows)


def test_one_that_is_aborted_within_its_prompt_leaves_the_others_theirs(
    engine: Generation, whole: dict[str, Whole]
) -> None:
    engine.add(asked("gone", CASES["all"]))
    engine.add(asked("stays", CASES["image"]))
    assert engine.step(["gone", "stays"]) == []
    (last,) = engine.abort("gone")
    assert last.usage["completion_tokens"] == 0
    handed = finish(engine, "stays")["stays"]
    assert handed.tokens == whole["image"].tokens
    assert close(handed.rows, whole["image"].rows)


def test_an_answer_that_is_given_has_the_prompts_hidden_states_before_it(
    engine: Generation, whole: dict[str, Whole]
) -> None:
    """Its prompt is computed, in two steps, and no answer."""
    engine.add(asked("alone", CASES["all"], say="babebi"))
    outputs = [engine.step(["alone"]) for _ in range(2)]
    assert outputs == [[], []]
    assert not engine._engine.has_unfinished_requests()
    made = finish(engine, "alone")["alone"]
    assert made.text == "babebi"
    assert close(made.rows, whole["all"].rows)
    assert made.last.usage["completion_tokens"] == len(made.tokens) == 4


def test_where_an_encoder_fails_that_request_alone_ends(
    engine: Generation, whole: dict[str, Whole], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("no such frames")

    monkeypatch.setattr(engine._items._encoders, "hear", fail)  # type: ignore[union-attr]
    engine.add(asked("fails", CASES["sound"]))
    engine.add(asked("stays", CASES["image"]))
    (failed,) = engine.step(["fails"])
    assert isinstance(failed.error, StageError)
    assert failed.error.message == "ValueError: no such frames"
    assert finish(engine, "stays")["stays"].tokens == whole["image"].tokens


def test_hidden_states_that_do_not_come_are_told(engine: Generation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine._items, "_take", lambda: None)
    engine.add(asked("one", CASES["sound"]))
    (output,) = engine.step(["one"])
    assert isinstance(output.error, StageError)
    assert output.error.message == "vLLM gave no hidden states of the prompt's sounds and images"


@pytest.mark.parametrize(
    ("case", "line"),
    [
        (("?", (noise(600, 500),), ()), "an image of 600 x 500 pixels takes 304 tokens: a slot holds 255"),
        (("?", (), (sound(30.0),)), "a sound of 30.00 s is not usable: it must have 0.1 to 20 s"),
        (("?" * 300, (WIDE,), ()), "tokens: from 1 to 255 were expected"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(engine: Generation, case: Case, line: str) -> None:
    with pytest.raises(InvalidRequestError, match=line) as refused:
        engine.add(asked("one", case))
    assert "\n" not in refused.value.message


def test_how_items_come_is_not_the_stages_to_say(checkpoint: Path) -> None:
    line = "stage.thinker.options.limit_mm_per_prompt cannot be set: sounds and images come ready"
    with pytest.raises(ConfigError, match=line):
        create(replace(context("thinker", limit_mm_per_prompt={"image": 1}), model=str(checkpoint)))
