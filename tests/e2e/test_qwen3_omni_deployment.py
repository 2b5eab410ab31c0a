"""The tiny Qwen3-Omni as a caller meets it: three processes, from the shipped configuration."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

pytest.importorskip("torch", reason="not installed: the extra `transformers`")
pytest.importorskip("transformers", reason="not installed: the extra `transformers`")

import torch
from support.noise import sound, wave_file
from support.pictures import file, noise
from support.qwen3_omni import Made, Reference
from support.running import (
    Asking,
    Held,
    Running,
    collect,
    eventually,
    kill,
    launched,
    omnizmq,
    samples_of,
    shared,
    text_of,
    until,
)

from omnizmq import AsyncClient, RequestOutput
from omnizmq.errors import InvalidRequestError
from omnizmq.workers.engines.qwen3_omni import tiny

pytestmark = pytest.mark.transformers

CONFIG = "qwen3_omni_tiny"
PROMPT = "Hello!"
LATE = "babebi " * 20
ROUNDING = 1e-4


@pytest.fixture(scope="module")
def deployment() -> Iterator[Running]:
    with shared(CONFIG, "router.output_window=1") as running:
        yield running


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Reference, Made]:
    """What the library's model makes of the prompt, in this process."""
    torch.set_num_threads(1)
    reference = Reference(tiny.ensure(tmp_path_factory.mktemp("models"), 0))
    return reference, reference.generate(reference.ids(PROMPT), 64, 101, "ethan")


def ask(deployment: Running, use: Callable[[AsyncClient], Awaitable[None]]) -> None:
    """Run a caller to its end; afterwards every table of the deployment is empty (B3)."""

    async def connected() -> None:
        async with AsyncClient.connect(deployment.name) as client:
            await use(client)

    asyncio.run(connected())
    assert eventually(deployment.idle)


def sound_of(outputs: list[RequestOutput]) -> np.ndarray:
    return np.concatenate([output.audio for output in outputs if output.audio is not None])


def greedy(speaker: str = "ethan") -> dict[str, dict[str, Any]]:
    return {"thinker": {"temperature": 0.0}, "talker": {"temperature": 0.0, "speaker": speaker}}


def test_three_processes_make_what_the_whole_model_makes(deployment: Running, whole: tuple[Reference, Made]) -> None:
    reference, expected = whole

    async def use(client: AsyncClient) -> None:
        outputs = await collect(client, PROMPT, params=greedy())
        assert text_of(outputs) == reference.tokenizer.decode(expected.tokens, skip_special_tokens=True)
        sound = sound_of(outputs)
        assert sound.size == expected.wave.size
        assert np.abs(sound - expected.wave).max() < ROUNDING
        assert outputs[-1].usage["thinker"]["completion_tokens"] == len(expected.tokens)
        assert outputs[-1].usage["talker"]["frames"] == expected.codes.shape[1]

    ask(deployment, use)


def test_images_and_a_sound_beside_text_make_what_the_whole_model_makes(
    deployment: Running, whole: tuple[Reference, Made]
) -> None:
    """Three callers at once. Sizes of images go to the Talker over the edge."""
    reference, text_alone = whole
    images, heard = [noise(200, 130, 1), noise(96, 250, 2)], sound(1.3)
    said, seen = {"type": "text", "text": PROMPT}, [{"type": "image", "data": file(image)} for image in images]
    parts = [said, *seen, {"type": "audio", "data": wave_file(heard)}]
    pixels, counts = reference.pixels(images)
    features, tokens = reference.features([heard[:, 0]])
    both = reference.generate(reference.ids(PROMPT, tokens, counts), 64, 101, "ethan", **pixels, **features)
    one, (count, _) = reference.pixels(images[:1])[0], counts
    alone = reference.generate(reference.ids(PROMPT, (), [count]), 64, 101, "ethan", **one)

    async def use(client: AsyncClient) -> None:
        prompts: list[Any] = [PROMPT, [{"role": "user", "content": parts}], [{"role": "user", "content": parts[:2]}]]
        asking = [Asking(client, prompt, params=greedy()) for prompt in prompts]
        for one, expected in zip(asking, (text_alone, both, alone), strict=True):
            assert await one.error() is None
            assert text_of(one.outputs) == reference.tokenizer.decode(expected.tokens, skip_special_tokens=True)
            wave = sound_of(one.outputs)
            assert wave.size == expected.wave.size
            assert np.abs(wave - expected.wave).max() < ROUNDING
            assert one.outputs[-1].usage["talker"]["frames"] == expected.codes.shape[1]
        assert asking[1].outputs[-1].usage["thinker"]["prompt_image_tokens"] == sum(counts)

    ask(deployment, use)


def test_callers_at_once_get_what_each_gets_alone_and_one_is_aborted(deployment: Running) -> None:
    async def use(client: AsyncClient) -> None:
        asked = {"ethan": PROMPT, "chelsie": LATE, "aiden": "ba " * 7}
        first = [Asking(client, prompt, params=greedy(speaker)) for speaker, prompt in list(asked.items())[:2]]
        cut = Held(client, LATE, after=3, request_id="cut", params={"talker": {"seed": 3}})
        await cut.has(3)
        late = Asking(client, asked["aiden"], params=greedy("aiden"))
        await client.abort("cut")
        assert await cut.error() is None
        assert cut.outputs[-1].finish_reason == "abort"
        for asking, (speaker, prompt) in zip((*first, late), asked.items(), strict=True):
            assert await asking.error() is None
            alone = await collect(client, prompt, params=greedy(speaker))
            assert text_of(asking.outputs) == text_of(alone)
            assert sound_of(asking.outputs).size == sound_of(alone).size
            assert np.abs(sound_of(asking.outputs) - sound_of(alone)).max() < ROUNDING

    ask(deployment, use)


def test_the_first_sound_comes_before_the_last_text(deployment: Running) -> None:
    async def use(client: AsyncClient) -> None:
        outputs = await collect(client, LATE, params=greedy())
        order = [
            "sound" if output.audio is not None else "text"
            for output in outputs
            if output.audio is not None or output.text
        ]
        assert order.index("sound") < len(order) - 1 - order[::-1].index("text")

    ask(deployment, use)


def test_an_answer_without_words_is_silent_and_says_so(deployment: Running) -> None:
    async def use(client: AsyncClient) -> None:
        outputs = await collect(client, PROMPT, params={"thinker": {"max_tokens": 1}})
        assert samples_of(outputs) == 0
        assert outputs[-1].finish_reason == "length"
        assert outputs[-1].notes["talker"] == "nothing to say: the answer is empty"

    ask(deployment, use)


@pytest.mark.parametrize(
    ("prompt", "params", "stage", "line"),
    [
        (PROMPT, {"talker": {"speaker": "bob"}}, "talker", 'speaker "bob" is unknown; there are aiden, chelsie, ethan'),
        ("word " * 2000, {}, "thinker", "a slot holds 2048"),
        (PROMPT, {"code2wav": {"speed": 2}}, "code2wav", "parameter speed is unknown"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    deployment: Running, prompt: str, params: dict[str, Any], stage: str, line: str
) -> None:
    async def use(client: AsyncClient) -> None:
        with pytest.raises(InvalidRequestError, match=line) as refused:
            await collect(client, prompt, params=params)
        assert refused.value.stage == stage

    ask(deployment, use)


def test_a_killed_talker_loads_again_and_speaks(deployment: Running) -> None:
    async def use(client: AsyncClient) -> None:
        before = await collect(client, PROMPT, params=greedy())
        kill(deployment.worker_pid("talker/0"))
        await until(lambda: _again(deployment.replica("talker/0")), timeout_s=90)
        after = await collect(client, PROMPT, params=greedy())
        assert np.array_equal(sound_of(after), sound_of(before))

    ask(deployment, use)


def _again(replica: dict[str, Any]) -> bool:
    return replica["restarts"] == 1 and replica["state"] == "ready"


@pytest.mark.usefixtures("deployment")
def test_a_sound_file_is_heard_and_the_answer_written(tmp_path: Path) -> None:
    question, wav = tmp_path / "question.flac", tmp_path / "answer.wav"
    soundfile.write(question, np.random.default_rng(0).normal(0, 0.1, (22_050, 2)), 22_050)
    options = ["--audio", str(question), "--output", str(wav), "--json", "--seed", "7", "--max-tokens", "20"]
    done = omnizmq("chat", "What is that?", "--modalities", "text,audio", *options)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["usage"]["thinker"]["prompt_tokens"] == 21 + 13 + 2  # the turns, a second, its marks
    sound, rate = soundfile.read(wav)
    assert rate == 24_000
    assert len(sound) == 1920 * answer["usage"]["talker"]["frames"] - 555


@pytest.mark.usefixtures("deployment")
def test_an_image_file_is_seen(tmp_path: Path) -> None:
    image = tmp_path / "image.jpg"
    noise(200, 130).save(image)
    done = omnizmq("chat", "What is that?", "--image", str(image), "--json", "--max-tokens", "5")
    assert done.returncode == 0, done.stderr
    usage = json.loads(done.stdout)["usage"]["thinker"]
    assert usage["prompt_image_tokens"] == 6 * 4
    assert usage["prompt_tokens"] == 21 + 24 + 2  # the turns, a token for each 32 x 32 pixels, its marks


@pytest.mark.usefixtures("deployment")
def test_several_files_and_no_words(tmp_path: Path) -> None:
    images, sounds = [tmp_path / f"{n}.png" for n in range(2)], [tmp_path / f"{n}.wav" for n in range(2)]
    for image in images:
        noise(64, 64).save(image)
    for path in sounds:
        soundfile.write(path, np.zeros(16_000), 16_000)
    files = [part for image in images for part in ("--image", str(image))]
    files += [part for sound in sounds for part in ("--audio", str(sound))]
    done = omnizmq("chat", "", *files, "--json", "--max-tokens", "5")
    assert done.returncode == 0, done.stderr
    usage = json.loads(done.stdout)["usage"]["thinker"]
    assert usage["prompt_image_tokens"] == 2 * 4
    assert usage["prompt_tokens"] == 21 - 13 + 2 * (4 + 2) + 2 * (13 + 2)  # without the words; with all marks


@pytest.mark.usefixtures("deployment")
def test_an_image_that_is_none_is_refused_in_one_line(tmp_path: Path) -> None:
    image = tmp_path / "image.png"
    image.write_bytes(b"nonsense")
    done = omnizmq("chat", "What is that?", "--image", str(image))
    assert done.returncode != 0
    assert done.stderr == "omnizmq chat: an image cannot be read: it is no file of PNG, JPEG, WEBP\n"


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("/nowhere", 'model = "/nowhere": no such directory'),
        ("{folder}", "has no config.json"),
    ],
)
def test_a_model_that_cannot_be_used_is_said_at_the_start(home: Path, model: str, line: str) -> None:
    (home / "empty").mkdir()
    setting = f"model={model.format(folder=home / 'empty')}"
    done = omnizmq("chat", PROMPT, "--config", CONFIG, "--set", setting, "--json")
    assert done.returncode in (1, 2)
    assert line in json.loads(done.stdout)["error"]["message"]


NARROW = (
    "stage.talker.max_inflight=1",
    "stage.talker.options.initial_chunk_frames=1",
    "stage.talker.options.chunk_frames=1",
    "edge.talker->code2wav.window_chunks=1",
)


def test_b1_who_waits_for_room_gives_its_slot_to_who_can_go_on(deployment: Running) -> None:
    """Each has the one slot again and again, whenever another's edge is full, and says what it says alone."""
    prompts = ("Hello!", "babebi", "ba " * 7)
    params = {"thinker": {"temperature": 0.0, "max_tokens": 8}, "talker": {"temperature": 0.0, "max_tokens": 12}}

    async def use(client: AsyncClient, alone: AsyncClient) -> None:
        asked = [Asking(client, prompt, params=params) for prompt in prompts]
        for asking, prompt in zip(asked, prompts, strict=True):
            assert await asking.error() is None
            expected = await collect(alone, prompt, params=params)
            assert text_of(asking.outputs) == text_of(expected)
            assert np.abs(sound_of(asking.outputs) - sound_of(expected)).max() < ROUNDING

    async def main(narrow: Running) -> None:
        async with AsyncClient.connect(narrow.name) as client, AsyncClient.connect(deployment.name) as alone:
            await use(client, alone)

    with launched(CONFIG, *NARROW, name="narrow") as narrow:
        asyncio.run(main(narrow))
        assert eventually(narrow.idle)


def test_b1_who_waits_for_its_caller_gives_its_slot_to_another() -> None:
    async def main(one: Running) -> None:
        async with AsyncClient.connect(one.name) as client:
            slow = client.generate(LATE, params={"thinker": {"max_tokens": 40}}, modalities=["text"])
            read = [await anext(slow)]
            await until(lambda: one.status()["paused"] == 1)
            other = Asking(client, PROMPT, params={"thinker": {"max_tokens": 8}}, modalities=["text"])
            assert await other.error() is None
            read += [output async for output in slow]
            again = await collect(client, LATE, params={"thinker": {"max_tokens": 40}}, modalities=["text"])
            assert text_of(read) == text_of(again)

    with launched(CONFIG, "stage.thinker.max_inflight=1", "router.output_window=8", name="one") as one:
        asyncio.run(main(one))
        assert eventually(one.idle)
