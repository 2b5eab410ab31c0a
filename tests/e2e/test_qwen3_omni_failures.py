"""What fails, fails alone: where memory is short, and where output is no number; a lost GPU is nobody's (F1, F2)."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

pytest.importorskip("torch", reason="not installed: the extra `transformers`")
pytest.importorskip("transformers", reason="not installed: the extra `transformers`")

import torch
from support.qwen3_omni import Made, Stages, make

from omnizmq.errors import OverloadedError, StageError
from omnizmq.protocol import AudioPart, Message, Prompt
from omnizmq.workers.engine import Engine, EngineBrokenError, EngineRequest
from omnizmq.workers.engines.hf.sampling import Sampler
from omnizmq.workers.engines.qwen3_omni import talker, thinker, tiny

pytestmark = pytest.mark.transformers

PROMPTS = ["Hello!", "ba " * 7, "What?", "One two three"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny.ensure(tmp_path_factory.mktemp("models"), 0)


@pytest.fixture
def engines(checkpoint: Path) -> Iterator[dict[str, Any]]:
    made = {name: make(name, checkpoint, **({} if name == "code2wav" else {"slots": 4})) for name in ROLES}
    yield made
    for engine in made.values():
        engine.close()


ROLES = ("thinker", "talker", "code2wav")


def params(n: int) -> dict[str, dict[str, Any]]:
    """Drawn, with a seed of its own: a draw too many or too few would show."""
    drawn = {"temperature": 0.9, "top_k": 20, "repetition_penalty": 1.5, "seed": n}
    return {"thinker": {**drawn, "max_tokens": 8 + 2 * n}, "talker": {**drawn, "max_tokens": 12 + 2 * n}}


def together(engines: dict[str, Engine], count: int = len(PROMPTS)) -> list[Made]:
    stages = Stages(engines)
    for n in range(count):
        stages.add(str(n), Prompt(PROMPTS[n], None, None), **params(n))
    stages.run()
    return list(stages.made.values())


@pytest.fixture(scope="module")
def alone(checkpoint: Path) -> list[Made]:
    engines = {name: make(name, checkpoint) for name in ROLES}
    made = []
    for n, prompt in enumerate(PROMPTS):
        stages = Stages(engines)
        stages.add(str(n), Prompt(prompt, None, None), **params(n))
        stages.run()
        made.append(stages.made[str(n)])
    return made


def assert_same(made: Made, expected: Made) -> None:
    assert made.error is None
    assert made.tokens == expected.tokens
    assert np.array_equal(made.codes, expected.codes)
    assert made.wave.size == expected.wave.size


def failing(engine: Any, method: str, fails: Callable[[int, tuple[Any, ...]], bool], error: Callable[[], Any]) -> None:
    """Of its model: the method computes, and then raises where `fails(number of the call, its arguments)` says so."""
    model = engine._model
    sound, calls = getattr(model, method), iter(range(1 << 30))

    def spoiled(*given: Any) -> Any:
        made = sound(*given)
        if fails(next(calls), given):
            error()
        return made

    setattr(model, method, spoiled)


def no_memory() -> None:
    torch.empty(1 << 60)


def out_of_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def out_of_numpy() -> None:
    np.empty(1 << 50)


class Spoiled:
    """Stands where something is called, and raises; it has what that has."""

    def __init__(self, sound: Any, error: Callable[[], None]) -> None:
        self._sound = sound
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sound, name)

    def __call__(self, *_: Any, **__: Any) -> None:
        self._error()


def lost() -> None:
    raise torch.AcceleratorError("CUDA error: device-side assert triggered\nand more")


PARTS: dict[str, dict[str, Callable[[Any], torch.nn.Module]]] = {
    "thinker": {"layers": lambda model: model.model.language_model, "head": lambda model: model.lm_head},
    "talker": {
        "layers": lambda model: model.model,
        "head": lambda model: model.codec_head,
        "last group": lambda model: model.code_predictor.lm_head[-1],
    },
}
"""Of a stage's network, what computes batches."""


def crowded(module: torch.nn.Module) -> list[int]:
    """From now on it computes one row at a time and has no memory for more. Returns how many it refused, each time."""
    refused = []

    def look(_: torch.nn.Module, given: tuple[torch.Tensor, ...], named: dict[str, Any]) -> None:
        rows = len(given[0] if given else named["inputs_embeds"])
        if rows > 1:
            refused.append(rows)
            no_memory()

    module.register_forward_pre_hook(look, with_kwargs=True)
    return refused


class TestMemory:
    @pytest.mark.parametrize("error", [no_memory, out_of_memory])
    def test_f1_a_prompt_for_which_there_is_none_fails_alone_and_may_be_asked_again(
        self, engines: dict[str, Any], alone: list[Made], error: Callable[[], None]
    ) -> None:
        failing(engines["thinker"], "prefill", lambda call, _: call == 1, error)
        made = together(engines)
        assert isinstance(made[1].error, OverloadedError)
        assert made[1].error.retriable
        for n in (0, 2, 3):
            assert_same(made[n], alone[n])
        assert_same(together(engines)[1], alone[1])

    @pytest.mark.parametrize(("role", "part"), [(role, part) for role, parts in PARTS.items() for part in parts])
    def test_f1_a_batch_that_does_not_fit_is_computed_in_parts(
        self, engines: dict[str, Any], alone: list[Made], role: str, part: str
    ) -> None:
        """With the same draws, although some had been drawn when it failed."""
        refused = crowded(PARTS[role][part](engines[role]._model._model))
        for made, expected in zip(together(engines), alone, strict=True):
            assert_same(made, expected)
        assert refused

    @pytest.mark.parametrize("stage", [thinker, talker], ids=["thinker", "talker"])
    def test_f1_a_choice_that_does_not_fit_too(
        self, engines: dict[str, Any], alone: list[Made], stage: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sound = stage.finite  # what follows the draws
        refused = []

        def spoiled(logits: torch.Tensor) -> torch.Tensor:
            if len(logits) > 1:
                refused.append(len(logits))
                no_memory()
            return sound(logits)

        monkeypatch.setattr(stage, "finite", spoiled)
        for made, expected in zip(together(engines), alone, strict=True):
            assert_same(made, expected)
        assert refused

    @pytest.mark.parametrize("role", ["thinker", "talker"])
    def test_f1_a_token_that_is_chosen_again_was_not_seen_before(
        self, engines: dict[str, Any], alone: list[Made], role: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Memory is short where tokens are noted for the repetition penalty: of the second request of each batch."""
        engine, saw = engines[role], Sampler.saw
        choose, noted, refused = engine._choose, [], []

        def choosing(requests: Sequence[Any], *logits: torch.Tensor) -> None:
            noted[:] = [len(requests), 0]
            choose(requests, *logits)
            noted.clear()

        def spoiled(sampler: Sampler, tokens: Sequence[int], vocabulary: int) -> None:
            saw(sampler, tokens, vocabulary)
            if noted and noted[0] > 1:
                noted[1] += 1
                if noted[1] == 2:
                    refused.append(noted[0])
                    no_memory()

        monkeypatch.setattr(engine, "_choose", choosing)
        monkeypatch.setattr(Sampler, "saw", spoiled)
        for made, expected in zip(together(engines), alone, strict=True):
            assert_same(made, expected)
        assert refused

    @pytest.mark.parametrize("error", [no_memory, out_of_numpy])
    def test_f1_a_sound_that_cannot_be_prepared_may_be_asked_again(
        self, engines: dict[str, Any], error: Callable[[], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = io.BytesIO()
        soundfile.write(file, np.zeros(16_000, np.float32), 16_000, format="WAV")
        prompt = Prompt(None, [Message("user", [AudioPart(file.getvalue())])], None)
        thinker = engines["thinker"]
        with monkeypatch.context() as short:
            short.setattr(thinker._prompts._hearing, "_extractor", Spoiled(thinker._prompts._hearing._extractor, error))
            with pytest.raises(OverloadedError) as refused:
                thinker.add(EngineRequest("one", prompt, {}))
        assert refused.value.retriable
        thinker.add(EngineRequest("one", prompt, {}))

    def test_f1_only_who_does_not_fit_alone_fails(self, engines: dict[str, Any], alone: list[Made]) -> None:
        slots: list[int] = []

        def fails(call: int, given: tuple[Any, ...]) -> bool:
            slots[:] = slots or given[0][1:2]
            return call >= 3 and slots[0] in given[0]

        failing(engines["thinker"], "decode", fails, out_of_memory)
        made = together(engines)
        failed = [n for n, one in enumerate(made) if one.error is not None]
        assert len(failed) == 1
        assert isinstance(made[failed[0]].error, OverloadedError)
        for n in range(len(PROMPTS)):
            if n not in failed:
                assert_same(made[n], alone[n])

    def test_f1_sound_too(self, engines: dict[str, Any]) -> None:
        failing(engines["code2wav"], "wave", lambda call, _: call == 1, no_memory)
        made = together(engines)
        failed = [n for n, one in enumerate(made) if one.error is not None]
        assert len(failed) == 1
        assert isinstance(made[failed[0]].error, OverloadedError)


class TestNumbers:
    def test_f1_output_that_is_not_finite_is_its_requests_failure_and_harms_nobody_after_it(
        self, engines: dict[str, Any], alone: list[Made]
    ) -> None:
        """Its slot holds what is no number; who gets it next is batched with longer ones, and sees none of that."""
        model = engines["thinker"]._model
        sound = model.prefill

        def spoiled(slot: int, asked: Any) -> Any:
            logits, rows = sound(slot, asked)
            for held in (*model.slots.keys, *model.slots.values):
                held[slot] = torch.nan
            return logits * torch.nan, rows

        model.prefill = spoiled
        for made in together(engines):
            assert isinstance(made.error, StageError)
            assert "the model's output is not finite" in made.error.message
        model.prefill = sound
        for made, expected in zip(together(engines), alone, strict=True):
            assert_same(made, expected)

    @pytest.mark.parametrize("method", ["logits", "wave"])
    def test_f1_codes_and_sound_too(self, engines: dict[str, Any], alone: list[Made], method: str) -> None:
        model = engines["talker" if method == "logits" else "code2wav"]._model
        sound = getattr(model, method)
        spoils = iter([True])

        def spoiled(given: Any) -> Any:
            made = sound(given)
            if next(spoils, False):
                made[0] = np.nan
            return made

        setattr(model, method, spoiled)
        made = together(engines)
        failed = [n for n, one in enumerate(made) if one.error is not None]
        assert len(failed) == 1
        assert "the model's output is not finite" in str(made[failed[0]].error)
        for n in {*range(len(PROMPTS))} - {*failed}:
            assert_same(made[n], alone[n])


class TestOthers:
    def test_f1_an_exception_of_one_prompt_is_its_own(self, engines: dict[str, Any], alone: list[Made]) -> None:
        def shapes() -> None:
            torch.zeros(2) @ torch.zeros(3)

        failing(engines["thinker"], "prefill", lambda call, _: call == 2, shapes)
        failing(engines["talker"], "begin", lambda call, _: call == 0, shapes)
        made = together(engines)
        assert [type(one.error) for one in made] == [StageError, type(None), StageError, type(None)]
        for n in (1, 3):
            assert_same(made[n], alone[n])

    @pytest.mark.parametrize(
        ("role", "method"),
        [
            ("thinker", "prefill"),
            ("thinker", "decode"),
            ("talker", "begin"),
            ("talker", "frames"),
            ("code2wav", "wave"),
        ],
    )
    def test_f2_a_lost_gpu_is_no_requests_failure(self, engines: dict[str, Any], role: str, method: str) -> None:
        failing(engines[role], method, lambda call, _: call == 1, lost)
        with pytest.raises(EngineBrokenError, match="its GPU cannot be used any more: CUDA error: device-side assert"):
            together(engines)
