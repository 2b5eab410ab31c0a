"""The client's table: frames in, what its callers get out, which credits go back, and when a record goes (A3, A4, B1,
C3, C4, F6)."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from omnizmq import protocol as wire
from omnizmq.errors import (
    InvalidRequestError,
    OmnizmqError,
    OverloadedError,
    ProtocolError,
    RouterLostError,
    SlowReaderError,
    StageError,
)
from omnizmq.frontend.core import Answer, ClientTable, Connected, Credit, OutputKind, Rejected, Signal, Wake
from omnizmq.frontend.output import RequestOutput

RID = "demo-0123456789abcdef"


def delivery(text: str | None, *, stage: str = "thinker", last: bool = False, rid: str = RID) -> wire.Delivery:
    return wire.Delivery(rid, stage, "text", None if text is None else wire.Text(text), last)


def terminal(reason: str = "stop", *, error: wire.ErrorInfo | None = None, rid: str = RID) -> wire.Terminal:
    usage: dict[str, dict[str, int | float]] = {"thinker": {"completion_tokens": 2}}
    return wire.Terminal(rid, "code2wav", "audio", reason, error, usage, ["talker"], {"talker": "no words"})


def welcome(window: int = 1024, window_bytes: int = 8 << 20) -> wire.Welcome:
    return wire.Welcome(wire.VERSION, "demo", 5, [], 1, window, window_bytes, 10.0)


def table(kind: OutputKind = "delta", window: int = 1024, window_bytes: int = 8 << 20) -> ClientTable:
    made = ClientTable()
    made.handle(welcome(window, window_bytes))
    made.open(RID, "demo", kind)
    return made


def taken(of: ClientTable, rid: str = RID) -> list[RequestOutput | OmnizmqError]:
    """All that can be taken now."""
    items = []
    while of.is_open(rid) and (item := of.take(rid)) is not None:
        items.append(item)
    return items


class TestDeliveries:
    def test_c3_each_output_is_there_as_soon_as_it_came_under_the_callers_own_id(self) -> None:
        client = table()
        assert client.handle(delivery("a ")) == [Wake(RID)]
        (output,) = taken(client)
        assert output == RequestOutput(RID, "demo", "thinker", "text", text="a ")
        assert taken(client) == []

    def test_c3_the_end_of_a_stage_and_the_end_of_the_request_are_two_outputs(self) -> None:
        client = table()
        client.handle(delivery("a ", last=True))
        client.handle(terminal())
        last, end = taken(client)
        assert isinstance(last, RequestOutput)
        assert isinstance(end, RequestOutput)
        assert (last.stage_finished, last.finished) == (True, False)
        assert (end.stage_finished, end.finished) == (False, True)
        assert (end.text, end.audio) == (None, None)

    def test_a2_the_terminal_bears_stage_usage_and_notes(self) -> None:
        client = table()
        client.handle(terminal("length"))
        (end,) = taken(client)
        assert end == RequestOutput(
            RID,
            "demo",
            "code2wav",
            "audio",
            finished=True,
            finish_reason="length",
            usage={"thinker": {"completion_tokens": 2}},
            usage_incomplete=("talker",),
            notes={"talker": "no words"},
        )

    def test_audio_is_float32_at_its_rate(self) -> None:
        client = table()
        samples = np.array([0.5, -1.0], "<f4")
        client.handle(wire.Delivery(RID, "code2wav", "audio", wire.Audio(samples.tobytes(), 24_000), False))
        (output,) = taken(client)
        assert isinstance(output, RequestOutput)
        assert output.audio is not None
        assert (output.audio.dtype, output.sample_rate, output.text) == (np.float32, 24_000, None)
        assert output.audio.tolist() == [0.5, -1.0]

    def test_final_outputs_come_once_a_stage_and_whole(self) -> None:
        client = table("final")
        for frame in (delivery("a "), delivery("b ", stage="captions"), delivery("c", last=True)):
            client.handle(frame)
        (whole,) = taken(client)
        assert isinstance(whole, RequestOutput)
        assert (whole.text, whole.stage, whole.stage_finished) == ("a c", "thinker", True)
        client.handle(delivery(None, stage="captions", last=True))
        (other,) = taken(client)
        assert isinstance(other, RequestOutput)
        assert (other.text, other.stage) == ("b ", "captions")
        client.handle(delivery("d", last=True))  # nothing of the first whole is kept
        (again,) = taken(client)
        assert isinstance(again, RequestOutput)
        assert again.text == "d"

    def test_of_a_whole_the_tokens_are_those_of_all_its_parts(self) -> None:
        client = table("final")
        tokens = [wire.TokenLogprob(text, -1.0, []) for text in (b"a", b"b")]
        for token, last in zip(tokens, (False, True), strict=True):
            part = wire.TextWithLogprobs(token.token.decode(), [token])
            client.handle(wire.Delivery(RID, "thinker", "text", part, last))
        (whole,) = taken(client)
        assert isinstance(whole, RequestOutput)
        assert (whole.text, whole.logprobs) == ("ab", tokens)

    def test_a_stage_that_made_nothing_ends_with_nothing(self) -> None:
        for kind in ("delta", "final"):
            client = table(kind)  # type: ignore[arg-type]
            client.handle(delivery(None, last=True))
            (output,) = taken(client)
            assert isinstance(output, RequestOutput)
            assert (output.text, output.audio, output.stage_finished) == (None, None, True)


def read(of: ClientTable, rid: str = RID) -> list[Signal]:
    """The caller takes what there is, and is back for more after each."""
    signals: list[Signal] = []
    while of.is_open(rid) and of.take(rid) is not None:
        signals += of.back(rid)
    return signals


class TestB1:
    """A credit is due when an eighth of a final stage's window has been consumed."""

    def test_b1_an_output_is_consumed_when_its_caller_is_back_for_more(self) -> None:
        client = table(window=8)
        assert client.handle(delivery("a")) == [Wake(RID)]
        assert client.back(RID) == []  # nothing was taken
        client.take(RID)
        assert client.back(RID) == [Credit(RID, "thinker", 1)]
        assert client.back(RID) == []  # and once only
        assert client.take(RID) is None
        assert client.back(RID) == []

    def test_b1_what_was_taken_before_one_comes_back_counts_too(self) -> None:
        client = table(window=16)
        for _ in range(3):
            client.handle(delivery("a"))
            client.take(RID)
        assert client.back(RID) == [Credit(RID, "thinker", 2)]

    @pytest.mark.parametrize(("window", "every"), [(1, 1), (8, 1), (15, 1), (16, 2), (1024, 128)])
    def test_b1_credits_come_an_eighth_of_the_window_apart_and_say_how_many_there_were(
        self, window: int, every: int
    ) -> None:
        client = table(window=window)
        for _ in range(3 * every):
            client.handle(delivery("a"))
        assert read(client) == [Credit(RID, "thinker", every * n) for n in (1, 2, 3)]

    def test_b1_bytes_of_content_count_as_well(self) -> None:
        client = table(window_bytes=80)
        for text in ("x" * 9, "x", "é" * 5, "x" * 9, "x" * 30):
            client.handle(delivery(text))
        assert read(client) == [Credit(RID, "thinker", 2), Credit(RID, "thinker", 3), Credit(RID, "thinker", 5)]
        sound = wire.Audio(bytes(12), 24_000)
        client.handle(wire.Delivery(RID, "code2wav", "audio", sound, False))
        assert read(client) == [Credit(RID, "code2wav", 1)]

    def test_b1_each_stage_has_a_window_of_its_own(self) -> None:
        client = table(window=16)
        for stage in ("thinker", "code2wav", "thinker", "thinker", "code2wav", "thinker"):
            client.handle(delivery("a", stage=stage))
        assert read(client) == [Credit(RID, "thinker", 2), Credit(RID, "code2wav", 2), Credit(RID, "thinker", 4)]

    def test_b1_an_end_without_content_is_a_delivery_too(self) -> None:
        client = table(window=16)
        client.handle(delivery("a"))
        client.handle(delivery(None, last=True))
        assert read(client) == [Credit(RID, "thinker", 2)]

    def test_b1_what_goes_into_a_whole_is_consumed_when_it_comes(self) -> None:
        client = table("final", window=16)
        assert client.handle(delivery("a")) == []
        assert client.handle(delivery("b")) == [Credit(RID, "thinker", 2)]
        client.handle(welcome(window=8))
        assert client.handle(delivery("c")) == [Credit(RID, "thinker", 3)]
        assert client.handle(delivery("d", last=True)) == [Credit(RID, "thinker", 4), Wake(RID)]
        (whole,) = taken(client)
        assert isinstance(whole, RequestOutput)
        assert whole.text == "abcd"
        assert client.back(RID) == []  # it has been counted

    def test_b1_no_credit_goes_for_a_request_that_has_ended(self) -> None:
        for end in (terminal(), terminal("abort"), wire.Bye("stopped"), wire.Refused(RID, FULL)):
            client = table(window=8)
            client.handle(delivery("a"))
            client.handle(delivery("b"))
            client.take(RID)
            client.handle(end)
            assert client.back(RID) == []
            assert read(client) == []
            assert client.back(RID) == []

    def test_b1_one_caller_that_does_not_read_takes_no_credit_from_another(self) -> None:
        client = table(window=8)
        client.open("slow-1", "slow", "delta")
        for _ in range(20):
            client.handle(delivery("a"))
            client.handle(delivery("a", rid="slow-1"))
        assert len(read(client)) == 20

    def test_b1_until_the_windows_are_known_each_output_is_worth_a_credit(self) -> None:
        client = ClientTable()
        client.open(RID, "demo", "delta")
        client.handle(delivery("a"))
        assert read(client) == [Credit(RID, "thinker", 1)]


FULL = wire.ErrorInfo("overloaded", "256 wait", None, None, True)


class TestC4:
    """Exactly one terminal, and nothing after it."""

    @pytest.mark.parametrize(
        "late",
        [
            delivery("x"),
            terminal(),
            terminal("abort"),
            wire.Refused(RID, wire.ErrorInfo("overloaded", "x", None, None, True)),
        ],
        ids=lambda frame: type(frame).__name__,
    )
    def test_c4_what_comes_after_the_terminal_is_dropped_and_counted(self, late: wire.RouterToClient) -> None:
        client = table()
        client.handle(terminal())
        assert client.handle(late) == []
        assert client.late == 1
        assert len(taken(client)) == 1
        assert client.handle(late) == []
        assert client.late == 2

    def test_c4_an_error_is_raised_as_what_it_was_with_the_stage_at_fault(self) -> None:
        client = table()
        client.handle(delivery("a "))
        client.handle(terminal("error", error=wire.ErrorInfo("stage_error", "boom", "talker", "talker/0", False)))
        first, error = taken(client)
        assert isinstance(first, RequestOutput)
        assert isinstance(error, StageError)
        assert (error.message, error.stage, error.replica) == ("boom", "talker", "talker/0")

    def test_b1_a_slow_reader_is_told_so(self) -> None:
        client = table()
        info = wire.ErrorInfo("slow_reader", "1024 outputs unread for 30 s", "thinker", "thinker/0", False)
        client.handle(terminal("error", error=info))
        (error,) = taken(client)
        assert isinstance(error, SlowReaderError)
        assert (error.message, error.replica, error.retriable) == ("1024 outputs unread for 30 s", "thinker/0", False)

    def test_a2_a_refusal_is_raised_and_ends_the_record(self) -> None:
        client = table()
        client.handle(wire.Refused(RID, wire.ErrorInfo("overloaded", "256 wait", None, None, True)))
        (error,) = taken(client)
        assert isinstance(error, OverloadedError)
        assert len(client) == 0

    def test_frames_of_a_request_that_nobody_opened_are_dropped(self) -> None:
        client = ClientTable()
        assert client.handle(delivery("x")) == []
        assert client.handle(terminal()) == []
        assert client.late == 2


class TestA4:
    """The record stays until its consumer has received the terminal."""

    def test_a4_a_record_goes_with_the_terminal_that_was_taken_and_not_before(self) -> None:
        client = table()
        client.handle(delivery("a "))
        client.handle(terminal("abort"))
        assert client.has_ended(RID)
        assert client.is_open(RID)
        assert isinstance(client.take(RID), RequestOutput)
        assert client.is_open(RID)
        end = client.take(RID)
        assert isinstance(end, RequestOutput)
        assert end.finish_reason == "abort"
        assert not client.is_open(RID)
        assert len(client) == 0

    def test_a3_partial_outputs_come_before_the_terminal_of_an_abort(self) -> None:
        for kind, expected in (("delta", ["a ", "b", None]), ("final", ["a b"])):
            client = table(kind)  # type: ignore[arg-type]
            client.handle(delivery("a "))
            client.handle(delivery("b"))
            client.handle(delivery(None, last=True))
            client.handle(terminal("abort"))
            *partial, end = taken(client)
            assert [output.text for output in partial if isinstance(output, RequestOutput)] == expected
            assert isinstance(end, RequestOutput)
            assert end.finished

    def test_a7_a_consumer_that_went_away_leaves_no_record(self) -> None:
        client = table()
        client.handle(delivery("a "))
        client.forget(RID)
        assert len(client) == 0
        assert client.has_ended(RID)
        client.forget(RID)
        client.handle(terminal())
        assert client.late == 1

    def test_s1_a_request_is_opened_once(self) -> None:
        with pytest.raises(ValueError, match="is open already"):
            table().open(RID, "demo", "delta")


class TestF6:
    def test_f6_a_lost_router_ends_every_live_request_with_router_lost(self) -> None:
        client = table()
        client.open("other-1", "other", "delta")
        client.open("done-1", "done", "delta")
        client.handle(delivery("a "))
        client.handle(terminal(rid="done-1"))
        assert client.lost("its process ended") == [Wake(RID), Wake("other-1")]
        first, error = taken(client)
        assert isinstance(first, RequestOutput)
        assert isinstance(error, RouterLostError)
        assert error.message == "the router is gone: its process ended"
        assert isinstance(taken(client, "other-1")[0], RouterLostError)
        (done,) = taken(client, "done-1")
        assert isinstance(done, RequestOutput)
        assert done.finished
        assert len(client) == 0

    def test_f6_it_is_said_once(self) -> None:
        client = table()
        assert client.lost("one") == [Wake(RID)]
        assert client.lost("two") == []
        assert client.handle(wire.Bye("three")) == []
        assert len(taken(client)) == 1

    def test_f6_a_router_that_says_goodbye_is_lost(self) -> None:
        client = table()
        assert client.handle(wire.Bye("the deployment has stopped")) == [Wake(RID)]
        (error,) = taken(client)
        assert isinstance(error, RouterLostError)

    def test_f6_a_router_that_refuses_the_connection_lets_nobody_wait(self) -> None:
        """It has forgotten this client, and will say nothing more about its requests."""
        client = table()
        refused = wire.Refused("", wire.ErrorInfo("protocol_error", "this is another launch", None, None, False))
        rejected, wake = client.handle(refused)
        assert isinstance(rejected, Rejected)
        assert isinstance(rejected.error, ProtocolError)
        assert wake == Wake(RID)
        (error,) = taken(client)
        assert isinstance(error, RouterLostError)


class TestAnswers:
    def test_a1_an_abort_is_acknowledged_by_its_call(self) -> None:
        assert table().handle(wire.AbortAck(7, 2)) == [Answer(7, 2)]

    def test_a_status_is_answered_by_its_call(self) -> None:
        assert table().handle(wire.Status(8, b"{}")) == [Answer(8, b"{}")]

    def test_an_order_is_answered_by_its_call_with_what_kept_it_from_being_done(self) -> None:
        assert table().handle(wire.Operated(9, None)) == [Answer(9, None)]
        (answer,) = table().handle(wire.Operated(9, wire.ErrorInfo("invalid_request", "no", "talkr", None, False)))
        assert isinstance(answer, Answer)
        assert isinstance(answer.value, InvalidRequestError)
        assert (answer.call, answer.value.message, answer.value.stage) == (9, "no", "talkr")

    def test_a_welcome_connects(self) -> None:
        assert table().handle(welcome()) == [Connected(welcome())]


class TableMachine(RuleBasedStateMachine):
    """Random frames for several requests. The model: for each open request, what its caller has still to get and the
    credit that each of it is worth (stage, bytes), and for each of its stages what was consumed since the last credit.
    """

    keys = st.sampled_from(["a-1"] * 6 + ["b-1", "c-1"])

    def __init__(self) -> None:
        super().__init__()
        self.client = ClientTable()
        self.client.handle(welcome(window=23, window_bytes=31))  # a credit for two outputs, or for three bytes
        self.owed: dict[str, deque[tuple[str, tuple[str, int] | None]]] = {}
        self.parts: dict[tuple[str, str], str] = {}
        self.kinds: dict[str, OutputKind] = {}
        self.over: set[str] = set()
        self.taken: dict[str, list[tuple[str, int]]] = {}  # by a caller that is not back
        self.consumed: dict[tuple[str, str], tuple[int, int, int]] = {}  # all; outputs, bytes since the last credit
        self.late = 0

    @rule(rid=keys, kind=st.sampled_from(["delta", "delta", "final"]))
    def open(self, rid: str, kind: OutputKind) -> None:
        if rid in self.owed:
            return
        self.client.open(rid, rid[0], kind)
        self.owed[rid], self.kinds[rid] = deque(), kind

    def _arrives(
        self, rid: str, what: str, signals: list[Signal], *, ends: bool, worth: tuple[str, int] | None = None
    ) -> None:
        if rid not in self.owed or rid in self.over:
            self.late += 1
            assert signals == []
            return
        if ends:
            self.over.add(rid)
        self.owed[rid].append((what, worth))
        assert signals == [Wake(rid)]

    def _consumes(self, rid: str, stage: str, nbytes: int) -> list[Signal]:
        """The credit that this brings, if any."""
        if rid in self.over:
            return []
        total, outputs, size = self.consumed.get((rid, stage), (0, 0, 0))
        total, outputs, size = total + 1, outputs + 1, size + nbytes
        due = outputs >= 2 or size >= 3
        self.consumed[rid, stage] = (total, 0, 0) if due else (total, outputs, size)
        return [Credit(rid, stage, total)] if due else []

    @rule(
        rid=keys,
        stage=st.sampled_from(["s", "s", "t"]),
        text=st.sampled_from(["x", "yy", "éé", "", None]),
        last=st.booleans(),
    )
    def delivers(self, rid: str, stage: str, text: str | None, last: bool) -> None:
        signals = self.client.handle(delivery(text, stage=stage, last=last, rid=rid))
        nbytes = len((text or "").encode())
        worth: tuple[str, int] | None = (stage, nbytes)
        if self.kinds.get(rid) == "final" and rid in self.owed and rid not in self.over:
            credits = self._consumes(rid, stage, nbytes)
            whole = self.parts.pop((rid, stage), "") + (text or "")
            if not last:
                self.parts[(rid, stage)] = whole
                assert signals == credits
                return
            assert signals[: len(credits)] == credits
            text, worth, signals = whole, None, signals[len(credits) :]
        self._arrives(rid, f"{stage} {text or ''} {last}", signals, ends=False, worth=worth)

    @rule(rid=keys, reason=st.sampled_from(["stop", "abort", "error"]))
    def ends(self, rid: str, reason: str) -> None:
        error = wire.ErrorInfo("stage_error", "boom", None, None, False) if reason == "error" else None
        signals = self.client.handle(terminal(reason, error=error, rid=rid))
        self._arrives(rid, reason, signals, ends=True)

    @rule(rid=keys)
    def refuses(self, rid: str) -> None:
        self._arrives(rid, "refused", self.client.handle(wire.Refused(rid, FULL)), ends=True)

    @precondition(lambda self: len(self.owed) > 1)
    @rule(now=st.integers(0, 5))
    def router_is_lost(self, now: int) -> None:
        if now:
            return
        live = [rid for rid in self.owed if rid not in self.over]
        assert self.client.lost("gone") == [Wake(rid) for rid in live]
        for rid in live:
            self.over.add(rid)
            self.owed[rid].append(("lost", None))

    @rule(rid=keys)
    def takes(self, rid: str) -> None:
        if rid not in self.owed:
            return
        item = self.client.take(rid)
        if not self.owed[rid]:
            assert item is None
            return
        what, worth = self.owed[rid].popleft()
        assert _said(item) == what
        if worth is not None:
            self.taken.setdefault(rid, []).append(worth)
        if rid in self.over and not self.owed[rid]:
            self._gone(rid)

    @rule(rid=keys)
    def comes_back(self, rid: str) -> None:
        expected = [credit for worth in self.taken.pop(rid, ()) for credit in self._consumes(rid, *worth)]
        assert self.client.back(rid) == expected

    @rule(rid=keys)
    def goes_away(self, rid: str) -> None:
        self.client.forget(rid)
        self._gone(rid)

    def _gone(self, rid: str) -> None:
        for table in (self.owed, self.kinds, self.taken):
            table.pop(rid, None)
        self.over.discard(rid)
        self.parts = {key: text for key, text in self.parts.items() if key[0] != rid}
        self.consumed = {key: counts for key, counts in self.consumed.items() if key[0] != rid}

    @invariant()
    def the_table_is_what_the_model_says(self) -> None:
        assert len(self.client) == len(self.owed)
        assert self.client.late == self.late
        for rid in ("a-1", "b-1", "c-1"):
            assert self.client.is_open(rid) is (rid in self.owed)
            assert self.client.has_ended(rid) is (rid not in self.owed or rid in self.over)


def _said(item: RequestOutput | OmnizmqError | None) -> str:
    match item:
        case OverloadedError():
            return "refused"
        case RouterLostError():
            return "lost"
        case StageError():
            return "error"
        case RequestOutput(finished=True, finish_reason=str(reason)):
            return reason
        case RequestOutput():
            return f"{item.stage} {item.text or ''} {item.stage_finished}"
    raise AssertionError(item)


TableMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, derandomize=True)
TestB1AndC4AgainstAModel = TableMachine.TestCase
