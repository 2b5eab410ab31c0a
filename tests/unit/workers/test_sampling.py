"""What may be drawn, and with which weights, beside the library's own processors of logits."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="not installed: the extra `transformers`")
pytest.importorskip("transformers", reason="not installed: the extra `transformers`")

from transformers import (  # noqa: E402
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from omnizmq.workers.engines.hf.sampling import Sampler, Sampling, generator  # noqa: E402

pytestmark = pytest.mark.transformers

CPU = torch.device("cpu")
VOCABULARY = 40
SEEN = [3, 3, 17, 20]


def logits(seed: int = 0) -> Any:
    return 3 * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed))


def library(sampling: Sampling, given: Any) -> Any:
    """Weights of all tokens, by the processors in the order of its `generate`."""
    processors = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)])
    processors.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        processors.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        processors.append(TopPLogitsWarper(sampling.top_p))
    return processors(torch.tensor([SEEN]), given[None].clone())[0].softmax(-1)


def sampler(sampling: Sampling, seed: int = 0) -> Sampler:
    made = Sampler(sampling, generator(CPU, seed))
    made.saw(SEEN, VOCABULARY)
    return made


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(0.7),
        Sampling(1.0, top_k=5),
        Sampling(1.0, top_k=1),
        Sampling(1.0, top_k=VOCABULARY + 9),
        Sampling(1.3, top_p=0.6),
        Sampling(1.0, top_p=0.01),
        Sampling(1.0, repetition_penalty=1.8),
        Sampling(1.0, repetition_penalty=0.4),
        Sampling(0.9, top_k=12, top_p=0.8, repetition_penalty=1.3),
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", range(5))
def test_the_weights_of_a_draw_are_the_librarys(sampling: Sampling, seed: int) -> None:
    given = logits(seed)
    assert torch.allclose(sampler(sampling).weights(given), library(sampling, given), atol=1e-6)


def test_draws_come_by_their_weights() -> None:
    sampling, count = Sampling(0.9, top_k=12, top_p=0.8, repetition_penalty=1.3), 20_000
    given, drawing = logits(), sampler(sampling)
    drawn = torch.stack([drawing.choose(given) for _ in range(count)])
    expected = library(sampling, given)
    share = torch.bincount(drawn, minlength=VOCABULARY) / count
    assert torch.all(share[expected == 0] == 0)
    assert torch.all((share - expected).abs() <= 5 * (expected / count).sqrt())


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-40, 1e-6])
@pytest.mark.parametrize("seed", range(5))
def test_hardly_any_temperature_is_none(temperature: float, seed: int) -> None:
    given = 1e4 * logits(seed)
    greedy = library(Sampling(1.0, repetition_penalty=1.5), given).argmax()
    assert sampler(Sampling(temperature, top_p=0.9, repetition_penalty=1.5)).choose(given) == greedy
    assert sampler(Sampling(2e-5, top_p=0.9, repetition_penalty=1.5)).choose(given) == greedy
