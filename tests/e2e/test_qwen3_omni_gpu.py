"""The tiny Qwen3-Omni on a GPU, for which one is needed. Not run yet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="not installed: the extra `transformers`")
pytest.importorskip("transformers", reason="not installed: the extra `transformers`")

import torch
from support.qwen3_omni import GREEDY, NAMES, Made, Reference, Stages, make
from support.running import Asking, Running, collect, eventually, kill, launched, text_of, until
from support.stress import visible

from omnizmq import AsyncClient
from omnizmq.errors import OverloadedError, ReplicaLostError
from omnizmq.protocol import Prompt
from omnizmq.shm.ring import RingReader, RingWriter
from omnizmq.workers.engine import Engine
from omnizmq.workers.engines.pinned import PinnedRings
from omnizmq.workers.engines.qwen3_omni import tiny

pytestmark = [
    pytest.mark.transformers,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: torch.cuda.is_available() is False"),
]

CONFIG = "qwen3_omni_tiny"
ON_GPU = tuple(f'stage.{stage}.devices=["cuda:0"]' for stage in NAMES)
SHORT, LONG = "Hello!", "babebi " * 20
PARAMS = {"thinker": {"max_tokens": 60}, "talker": {**GREEDY, "max_tokens": 101, "speaker": "ethan"}}
ROUNDING = 1e-3
MIB = 1 << 20


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.ensure(tmp_path_factory.mktemp("models"), 0)


def engines(checkpoint: Path, **options: object) -> dict[str, Engine]:
    return {
        name: make(name, checkpoint, device=("cuda:0",), **({} if name == "code2wav" else options)) for name in NAMES
    }


def together(engines: dict[str, Engine], prompts: list[str]) -> list[Made]:
    stages = Stages(engines)
    for n, prompt in enumerate(prompts):
        stages.add(str(n), Prompt(prompt, None, None), **PARAMS)
    stages.run()
    return list(stages.made.values())


class TestTheSameAsTheWholeModel:
    def test_in_float32_tokens_and_codes_are_equal(self, checkpoint: Path) -> None:
        reference = Reference(checkpoint, torch.float32, "cuda:0")
        for text, made in zip((SHORT, LONG), together(engines(checkpoint), [SHORT, LONG]), strict=True):
            whole = reference.generate(reference.ids(text), 60, 101, "ethan")
            assert made.tokens == whole.tokens
            assert np.array_equal(made.codes, whole.codes)
            assert made.wave.size == whole.wave.size
            assert np.abs(made.wave - whole.wave).max() < ROUNDING

    def test_in_bfloat16_they_begin_alike(self, checkpoint: Path) -> None:
        """Which kernels round how depends on shapes, so two ways of computing may part after a while."""
        reference = Reference(checkpoint, torch.bfloat16, "cuda:0")
        (made,) = together(engines(checkpoint, dtype="bfloat16"), [SHORT])
        whole = reference.generate(reference.ids(SHORT), 60, 101, "ethan")
        assert made.error is None
        assert made.tokens[:8] == whole.tokens[:8]
        assert made.wave.size == 1920 * made.codes.shape[1] - 555


class TestPinnedRings:
    def test_w3_a_ring_is_page_locked_between_pin_and_unpin(self) -> None:
        rings, writer = PinnedRings(torch.device("cuda:0")), RingWriter(MIB)
        place = torch.from_numpy(np.frombuffer(writer.memory, np.float32))
        assert not place.is_pinned()
        rings.pin(writer.memory)
        assert place.is_pinned()
        made = torch.arange(place.numel(), dtype=torch.float32, device="cuda:0")
        place.copy_(made, non_blocking=True)
        torch.cuda.synchronize()
        assert torch.equal(place.to("cuda:0", non_blocking=True), made)
        rings.unpin(writer.memory)
        assert not place.is_pinned()
        del place
        writer.close()

    @pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
    def test_w3_one_that_is_read_too_or_it_is_refused_and_nothing_breaks(self) -> None:
        rings, writer = PinnedRings(torch.device("cuda:0")), RingWriter(MIB)
        writer.memory[:4] = b"ring"
        reader = RingReader(writer.id, writer.segment, MIB, lambda: None)
        memory = reader.memory
        try:
            rings.pin(memory)
        except RuntimeError as error:
            assert "cudaHostRegister" in str(error)  # noqa: PT017 (either way is right)
        else:
            assert torch.from_numpy(np.frombuffer(memory, np.uint8)).is_pinned()
            rings.unpin(memory)
        assert bytes(torch.from_numpy(np.frombuffer(memory, np.uint8)[:4].copy()).to("cuda:0").tolist()) == b"ring"
        reader.close()
        writer.close()


@contextmanager
def little_left(nbytes: int) -> Iterator[None]:
    """All of the GPU's memory is taken, but for so much."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(free - nbytes, dtype=torch.uint8, device="cuda:0")
    yield
    del held
    torch.cuda.empty_cache()


def test_f1_a_prompt_for_which_there_is_no_memory_fails_alone(checkpoint: Path) -> None:
    """Attention over its 7,000 tokens takes 49 million elements, a layer."""
    thinker = {"thinker": make("thinker", checkpoint, device=("cuda:0",), slots=4, slot_tokens=8192)}
    (alone,) = together(thinker, [SHORT])  # with whatever libraries take at their first call
    with little_left(64 * MIB):
        made = together(thinker, [SHORT, "x" * 7000, SHORT])
    assert isinstance(made[1].error, OverloadedError)
    assert "out of memory" in made[1].error.message
    assert made[0].tokens == made[2].tokens == alone.tokens
    again = together(thinker, ["x" * 7000])
    assert again[0].error is None


class TestDeployment:
    """Three processes on one GPU."""

    pytestmark = pytest.mark.usefixtures("no_leaks")

    def test_it_says_what_the_library_says(self, checkpoint: Path) -> None:
        reference = Reference(checkpoint, torch.float32, "cuda:0")
        whole = reference.generate(reference.ids(SHORT), 64, 101, "ethan")

        async def use(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                outputs = await collect(client, SHORT, params=PARAMS | {"thinker": {"max_tokens": 64}})
                assert text_of(outputs) == reference.tokenizer.decode(whole.tokens, skip_special_tokens=True)
                sound = np.concatenate([output.audio for output in outputs if output.audio is not None])
                assert sound.size == whole.wave.size
                assert np.abs(sound - whole.wave).max() < ROUNDING

        with launched(CONFIG, *ON_GPU) as deployment:
            asyncio.run(use(deployment))

    def test_f2_an_assert_on_the_device_ends_the_worker_and_another_one_serves(self) -> None:
        """A real one: `lost_gpu` looks up what is not there."""

        async def use(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                error = await Asking(client, SHORT, params=PARAMS).error()
                assert isinstance(error, ReplicaLostError)
                assert "its GPU cannot be used any more: CUDA error: device-side assert" in error.message
                await until(lambda: deployment.replica("talker/0")["state"] == "ready", timeout_s=90)
                assert text_of(await collect(client, SHORT, params=PARAMS))

        sets = ('stage.talker.engine="lost_gpu"', 'stage.talker.options.fails="advance"', 'router.redrive="never"')
        with visible(), launched(CONFIG, *ON_GPU, *sets) as deployment:
            asyncio.run(use(deployment))

    def test_f6_kill_9_of_all_leaves_no_memory_of_the_gpu_taken(self) -> None:
        torch.zeros(1, device="cuda:0")
        torch.cuda.empty_cache()
        before, _ = torch.cuda.mem_get_info()
        with launched(CONFIG, *ON_GPU) as deployment:
            taken = before - torch.cuda.mem_get_info()[0]
            assert taken > 64 * MIB
            for pid in (deployment.pid, *deployment.worker_pids()):
                kill(pid)
            deployment.process.wait(20)
            assert eventually(lambda: before - torch.cuda.mem_get_info()[0] < taken / 10, timeout_s=20)
