"""The embedded Thinker without its model: what it is asked, which slot it takes, how an answer ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from omnizmq.errors import ConfigError, InvalidRequestError, StageError
from omnizmq.protocol import AudioPart, ImagePart, Message, Prompt, TextPart
from omnizmq.workers.engine import EngineContext
from omnizmq.workers.engines import hibari, smollm
from omnizmq.workers.engines.smollm_generation import QUEUED_DELTAS, Generation
from omnizmq.workers.engines.smollm_given import Given
from omnizmq.workers.engines.smollm_prompt import EXAMPLES, SYSTEM, chat, is_long, sampling
from omnizmq.workers.engines.smollm_slots import Slots


def context(**changes: Any) -> EngineContext:
    plain = {
        "stage": "thinker",
        "model": "",
        "device": (),
        "options": {},
        "sources": (),
        "targets": (),
        "final_output": "text",
        "max_inflight": 4,
        "private_dir": Path("/nowhere"),
        "wake": lambda: None,
        "progress": lambda _: None,
    }
    return EngineContext(**{**plain, **changes})


def said(role: str, *parts: TextPart | AudioPart | ImagePart) -> Message:
    return Message(role, list(parts))


class TestPrompt:
    def test_text_follows_the_system_line_and_the_examples(self) -> None:
        turns = chat(Prompt("Hi.", None, None))
        assert turns[0] == {"role": "system", "content": SYSTEM}
        assert len(turns) == 2 + 2 * len(EXAMPLES)
        assert turns[-1] == {"role": "user", "content": "Hi."}

    def test_a_conversation_follows_them_too(self) -> None:
        messages = [
            said("user", TextPart("A")),
            said("assistant", TextPart("B")),
            said("user", TextPart("C, "), TextPart("D")),
        ]
        assert [turn["content"] for turn in chat(Prompt(None, messages, None))[-3:]] == ["A", "B", "C, D"]

    def test_a_system_message_of_the_callers_replaces_them(self) -> None:
        messages = [said("system", TextPart("S")), said("user", TextPart("Q"))]
        assert chat(Prompt(None, messages, None)) == [
            {"role": "system", "content": "S"},
            {"role": "user", "content": "Q"},
        ]

    @pytest.mark.parametrize(
        ("prompt", "why"),
        [
            (None, "needs a prompt"),
            (Prompt("", None, None), "the prompt is empty"),
            (Prompt(" \n", None, None), "the prompt is empty"),
            (Prompt(None, [], None), "the last message must be the user's"),
            (Prompt(None, [said("user", TextPart("A")), said("assistant", TextPart("B"))], None), "must be the user's"),
            (
                Prompt(
                    None,
                    [said("user", TextPart("A")), said("system", TextPart("B")), said("user", TextPart("C"))],
                    None,
                ),
                "only be the first",
            ),
            (Prompt(None, [said("tool", TextPart("A"))], None), "'tool' is unknown"),
            (Prompt(None, [said("user", AudioPart(b"RIFF"))], None), "has an audio part"),
            (Prompt(None, [said("user", ImagePart(b"PNG"))], None), "has an image part"),
            (Prompt(None, None, [1, 2]), "not token ids"),
        ],
    )
    def test_what_it_cannot_take_is_refused_in_one_line(self, prompt: Prompt | None, why: str) -> None:
        with pytest.raises(InvalidRequestError, match=why) as caught:
            chat(prompt)
        assert "\n" not in caught.value.message

    def test_only_what_the_caller_said_makes_a_prompt_long(self) -> None:
        assert not is_long(chat(Prompt("Hi.", None, None)))
        assert is_long(chat(Prompt("Hi. " * 300, None, None)))


class TestSampling:
    def test_greedy_and_bounded_by_default(self) -> None:
        assert sampling({}) == {"max_tokens": 256, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}

    def test_given_values_pass(self) -> None:
        given = {"max_tokens": 5, "temperature": 1, "top_p": 0.9, "top_k": 40, "seed": 7, "stop": ["a", "b"]}
        assert sampling(given) == {**given, "min_p": 0.0}
        assert sampling({"stop": "a", "seed": None})["stop"] == ["a"]

    @pytest.mark.parametrize(
        ("params", "why"),
        [
            (
                {"max_token": 5},
                r"max_token is unknown \(did you mean max_tokens\?\); known are max_tokens, say, seed, stop",
            ),
            ({"max_tokens": 0}, "max_tokens = 0 is not usable: it must be a whole number from 1"),
            ({"max_tokens": 1.5}, "whole number"),
            ({"max_tokens": True}, "whole number"),
            ({"temperature": -0.1}, "a number from 0 to 2"),
            ({"temperature": float("nan")}, "a number from 0 to 2"),
            ({"temperature": "hot"}, "temperature = 'hot' is not usable"),
            ({"top_p": 1.1}, "a number from 0 to 1"),
            ({"top_k": -1}, "whole number from 0"),
            ({"seed": -1}, "whole number from 0"),
            ({"stop": [""]}, "a list of up to 16 texts, none empty"),
            ({"stop": ["x"] * 17}, "up to 16"),
            ({"stop": {"a": 1}}, "a list"),
            ({"say": 7}, "say = 7 is not usable: it must be a text of 1 to 65536 characters, not blank"),
            ({"say": ""}, "not blank"),
            ({"say": " \n"}, "not blank"),
            ({"say": "x" * 65537}, "1 to 65536 characters"),
        ],
    )
    def test_others_are_refused_with_what_would_do(self, params: dict[str, Any], why: str) -> None:
        with pytest.raises(InvalidRequestError, match=why):
            sampling(params)


class TestSlots:
    def test_prompts_are_computed_one_at_a_time_in_order(self) -> None:
        slots: Slots[str] = Slots(3)
        for key in "abcd":
            slots.wait(key, long=False)
        assert slots.next() == ("a", 2)
        assert slots.next() is None
        slots.prefilled("a")
        assert slots.next() == ("b", 1)
        slots.forget("c")
        slots.leave("b")
        assert slots.next() == ("d", 1)

    def test_r4_a_request_begins_until_its_prompt_is_computed(self) -> None:
        slots: Slots[str] = Slots(1)
        slots.wait("a", long=False)
        slots.wait("b", long=False)
        assert slots.next() == ("a", 0)
        assert [slots.begins(key) for key in ("a", "b", "nobody")] == [True, True, False]
        slots.prefilled("a")
        assert [slots.begins(key) for key in "ab"] == [False, True], "it has a slot, and is expected to answer"
        slots.forget("b")
        slots.leave("a")
        assert [slots.begins(key) for key in "ab"] == [False, False]

    def test_the_slot_left_last_is_taken_first(self) -> None:
        slots: Slots[str] = Slots(3)
        for _ in range(3):
            slots.wait("a", long=False)
            assert slots.next() == ("a", 2)
            slots.leave("a")

    def test_a_short_prompt_overtakes_a_long_one_in_a_lower_slot(self) -> None:
        slots: Slots[str] = Slots(3)
        slots.wait("long", long=True)
        assert slots.next() == ("long", 2)
        slots.wait("long too", long=True)
        slots.wait("short", long=False)
        slots.wait("short too", long=False)
        assert slots.next() == ("short", 1)
        assert slots.next() is None
        slots.prefilled("short")
        assert slots.next() == ("short too", 0)
        slots.prefilled("short too")
        slots.leave("long")
        assert slots.next() == ("long too", 2)

    def test_no_slot_below_a_long_prompt_no_start_beside_it(self) -> None:
        slots: Slots[str] = Slots(2)
        slots.wait("first", long=False)
        assert slots.next() == ("first", 1)
        slots.prefilled("first")
        slots.wait("long", long=True)
        assert slots.next() == ("long", 0)
        slots.leave("first")
        slots.wait("short", long=False)
        assert slots.next() is None

    def test_a_full_table_lets_nobody_in(self) -> None:
        slots: Slots[str] = Slots(1)
        slots.wait("a", long=False)
        assert slots.next() == ("a", 0)
        slots.prefilled("a")
        slots.wait("b", long=True)
        assert slots.next() is None
        slots.leave("a")
        assert slots.next() == ("b", 0)
        assert slots.free == 0


def item(text: str | None = None, finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}, "finish_reason": finish_reason}]}


PROGRESS = {**item(), "prompt_progress": {"total": 9, "cache": 4, "processed": 5}}
USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
}


class Script:
    """A server that plays items, and says at which one the callback stopped it."""

    def __init__(self, *items: Any) -> None:
        self.items = items
        self.stopped_at: int | None = None

    def handle_chat_completions(self, body: Mapping[str, Any], callback: Callable[[Any], bool]) -> object:  # noqa: ARG002
        for at, played in enumerate(self.items):
            if isinstance(played, Exception):
                raise played
            if callback(played):
                self.stopped_at = at
                break
        return None


@pytest.fixture
def generation() -> Iterator[Generation]:
    made = Generation({}, wake=lambda: None, prefilled=lambda _: None)
    yield made
    made.cancel()


class TestGeneration:
    def test_an_answer_is_its_deltas_reason_and_usage(self, generation: Generation) -> None:
        assert not generation.has_news
        generation.run(Script(PROGRESS, item(None), item("He"), item("llo"), item(None, "stop"), USAGE), slot=0)
        assert generation.has_news
        news = generation.take()
        assert (news.text, news.finish_reason, news.error) == ("Hello", "stop", None)
        assert news.usage == {"prompt_tokens": 9, "completion_tokens": 2, "cached_tokens": 4}

    def test_a_prompt_is_computed_when_its_progress_is_whole(self) -> None:
        heard: list[Generation] = []
        generation = Generation({}, wake=lambda: None, prefilled=heard.append)
        generation.run(Script(PROGRESS), slot=0)
        assert heard == []
        whole = {**item(), "prompt_progress": {"total": 9, "cache": 4, "processed": 9}}
        generation.run(Script(whole), slot=0)
        assert heard == [generation]

    def test_a_prompt_beyond_a_slot_is_the_callers_fault(self, generation: Generation) -> None:
        error = {"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 3000, "n_ctx": 2048}
        generation.run(Script({"error": error}, {"error": error}), slot=0)
        news = generation.take()
        assert isinstance(news.error, InvalidRequestError)
        assert "3000 tokens" in news.error.message
        assert "a slot holds 2048" in news.error.message

    @pytest.mark.parametrize(
        ("items", "error", "why"),
        [
            ([{"error": {"code": 400, "message": "bad"}}], InvalidRequestError, "bad"),
            ([{"error": {"code": 500, "message": "bad"}}], StageError, "bad"),
            ([{"surprise": 1}], StageError, "KeyError: 'choices'"),
            ([item("x", "no such reason")], StageError, "no such reason"),
            ([item("x")], StageError, "without saying why"),
            ([RuntimeError("boom")], StageError, "RuntimeError: boom"),
        ],
    )
    def test_no_failure_is_swallowed(
        self, generation: Generation, items: list[Any], error: type[Exception], why: str
    ) -> None:
        generation.run(Script(*items), slot=0)
        news = generation.take()
        assert isinstance(news.error, error)
        assert why in str(news.error)

    def test_a_full_queue_blocks_until_it_is_read(self, generation: Generation) -> None:
        script = Script(*[item("x")] * (QUEUED_DELTAS + 5), item(None, "stop"))
        thread = threading.Thread(target=generation.run, args=(script, 0), daemon=True)
        thread.start()
        text = ""
        while (news := generation.take()).finish_reason is None:
            assert len(news.text) <= QUEUED_DELTAS
            text += news.text
        thread.join()
        assert text + news.text == "x" * (QUEUED_DELTAS + 5)

    def test_t1_it_goes_on_until_its_end_or_until_nobody_takes_what_it_made(self) -> None:
        seen: list[bool] = []
        generation = Generation({}, wake=lambda: seen.append(generation.goes_on), prefilled=lambda _: None)
        assert generation.goes_on, "it waits for a slot"
        script = Script(*[item("x")] * QUEUED_DELTAS)
        thread = threading.Thread(target=generation.run, args=(script, 0), daemon=True)
        thread.start()
        thread.join()
        assert seen == [True] * (QUEUED_DELTAS - 1) + [False, False], "the last delta fills the queue, then it ends"
        generation.take()
        assert not generation.goes_on

    def test_a2_a_cancelled_answer_ends_while_it_waits_for_room(self, generation: Generation) -> None:
        script = Script(*[item("x")] * (QUEUED_DELTAS + 5))
        thread = threading.Thread(target=generation.run, args=(script, 0), daemon=True)
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        generation.cancel()
        thread.join(5)
        assert script.stopped_at == QUEUED_DELTAS
        assert generation.take().error is None

    def test_one_cancelled_before_its_start_asks_nothing(self, generation: Generation) -> None:
        script = Script(item("x"))
        generation.cancel()
        generation.run(script, slot=0)
        assert generation.take().text == ""


class TestGiven:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("Red is warm.", ["Red", " is", " warm."]),
            (" a  b \n", [" a", "  b \n"]),
            ("\nÜber\n\nuns", ["\nÜber", "\n\nuns"]),
        ],
    )
    def test_the_text_comes_word_by_word_and_whole(self, text: str, words: list[str]) -> None:
        given, came = Given(text), []
        while given.has_news:
            came.append(given.take())
        assert [news.text for news in came] == words
        assert "".join(words) == text
        assert [news.finish_reason for news in came] == [None] * (len(words) - 1) + ["stop"]
        assert came[-1].usage == {"prompt_tokens": 0, "completion_tokens": len(words), "cached_tokens": 0}

    def test_a2_one_that_is_cancelled_says_no_more(self) -> None:
        given = Given("Red is warm.")
        given.take()
        given.cancel()
        assert not given.has_news
        assert given.take().text == ""
        assert given.take().usage["completion_tokens"] == 1


class TestCreate:
    @pytest.mark.parametrize("create", [smollm.create, hibari.create])
    def test_a_missing_package_names_the_command_that_installs_it(
        self, create: Callable[[EngineContext], object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        here = context(options={"role": "talker"}, sources=("thinker",), final_output=None)
        with pytest.raises(ConfigError, match="not installed: run `omnizmq install embedded`"):
            create(here if create is hibari.create else context())

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"options": {"slot": 4}}, r"stage.thinker.options.slot is unknown \(did you mean slots\?\)"),
            ({"options": {"slots": 0}}, "stage.thinker.options.slots = 0 is not usable: it must be a whole number"),
            ({"sources": ("other",)}, "takes prompts, not edges"),
            ({"final_output": "audio"}, 'smollm makes "text"'),
        ],
    )
    def test_a_wrong_configuration_of_smollm_is_refused(self, changes: dict[str, Any], why: str) -> None:
        with pytest.raises(ConfigError, match=why):
            smollm.create(context(**changes))

    @pytest.mark.parametrize("role", [None, "singer", 3, ["talker"]])
    def test_hibari_needs_a_role(self, role: object) -> None:
        with pytest.raises(ConfigError, match=r'options.role = .* it must be "talker" or "code2wav"'):
            hibari.create(context(options={"role": role}))
