"""The client's table: frames in, what its callers get out, and when a record goes (A3, A4, C3, C4, F6)."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from omnizmq import protocol as wire
from omnizmq.errors import OmnizmqError, OverloadedError, ProtocolError, RouterLostError, StageError
from omnizmq.frontend.core import Answer, ClientTable, Connected, OutputKind, Rejected, Wake
from omnizmq.frontend.output import RequestOutput

RID = "demo-0123456789abcdef"


def delivery(text: str | None, *, stage: str = "thinker", last: bool = False, rid: str = RID) -> wire.Delivery:
    return wire.Delivery(rid, stage, "text", None if text is None else wire.Text(text), last)


def terminal(reason: str = "stop", *, error: wire.ErrorInfo | None = None, rid: str = RID) -> wire.Terminal:
    usage: dict[str, dict[str, int | float]] = {"thinker": {"completion_tokens": 2}}
    return wire.Terminal(rid, "code2wav", "audio", reason, error, usage, ["talker"], {"talker": "no words"})


def table(kind: OutputKind = "delta") -> ClientTable:
    made = ClientTable()
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

    def test_b1_what_was_consumed_is_counted_in_deliveries_whatever_the_caller_is_handed(self) -> None:
        for kind, counts in (("delta", [1, 2, 3]), ("final", [3])):
            client = table(kind)  # type: ignore[arg-type]
            for frame in (delivery("a "), delivery("b "), delivery("c", last=True)):
                client.handle(frame)
            assert client.consumed(RID) == 0
            seen = []
            while client.take(RID) is not None:
                seen.append(client.consumed(RID))
            assert seen == counts

    def test_a_stage_that_made_nothing_ends_with_nothing(self) -> None:
        for kind in ("delta", "final"):
            client = table(kind)  # type: ignore[arg-type]
            client.handle(delivery(None, last=True))
            (output,) = taken(client)
            assert isinstance(output, RequestOutput)
            assert (output.text, output.audio, output.stage_finished) == (None, None, True)


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

    def test_a_welcome_connects(self) -> None:
        welcome = wire.Welcome(1, "demo", 5, [], 1, 8, 1 << 20)
        assert table().handle(welcome) == [Connected(welcome)]


class TableMachine(RuleBasedStateMachine):
    """Random frames for several requests. The model: for each open request, what its caller has still to get."""

    keys = st.sampled_from(["a-1"] * 6 + ["b-1", "c-1"])

    def __init__(self) -> None:
        super().__init__()
        self.client = ClientTable()
        self.owed: dict[str, deque[str]] = {}
        self.parts: dict[tuple[str, str], str] = {}
        self.kinds: dict[str, OutputKind] = {}
        self.over: set[str] = set()
        self.late = 0

    @rule(rid=keys, kind=st.sampled_from(["delta", "final"]))
    def open(self, rid: str, kind: OutputKind) -> None:
        if rid in self.owed:
            return
        self.client.open(rid, rid[0], kind)
        self.owed[rid], self.kinds[rid] = deque(), kind

    def _arrives(self, rid: str, what: str, signals: list[object], *, ends: bool) -> None:
        if rid not in self.owed or rid in self.over:
            self.late += 1
            assert signals == []
            return
        if ends:
            self.over.add(rid)
        self.owed[rid].append(what)
        assert signals == [Wake(rid)]

    @rule(
        rid=keys,
        stage=st.sampled_from(["s", "s", "t"]),
        text=st.sampled_from(["x", "yy", "", None]),
        last=st.booleans(),
    )
    def delivers(self, rid: str, stage: str, text: str | None, last: bool) -> None:
        signals = self.client.handle(delivery(text, stage=stage, last=last, rid=rid))
        if self.kinds.get(rid) == "final" and rid in self.owed and rid not in self.over:
            whole = self.parts.pop((rid, stage), "") + (text or "")
            if not last:
                self.parts[(rid, stage)] = whole
                assert signals == []
                return
            text = whole
        self._arrives(rid, f"{stage} {text or ''} {last}", list(signals), ends=False)

    @rule(rid=keys, reason=st.sampled_from(["stop", "abort", "error"]))
    def ends(self, rid: str, reason: str) -> None:
        error = wire.ErrorInfo("stage_error", "boom", None, None, False) if reason == "error" else None
        signals = self.client.handle(terminal(reason, error=error, rid=rid))
        self._arrives(rid, reason, list(signals), ends=True)

    @rule(rid=keys)
    def refuses(self, rid: str) -> None:
        info = wire.ErrorInfo("overloaded", "full", None, None, True)
        self._arrives(rid, "refused", list(self.client.handle(wire.Refused(rid, info))), ends=True)

    @precondition(lambda self: len(self.owed) > 1)
    @rule(now=st.integers(0, 5))
    def router_is_lost(self, now: int) -> None:
        if now:
            return
        live = [rid for rid in self.owed if rid not in self.over]
        assert self.client.lost("gone") == [Wake(rid) for rid in live]
        for rid in live:
            self.over.add(rid)
            self.owed[rid].append("lost")

    @rule(rid=keys)
    def takes(self, rid: str) -> None:
        if rid not in self.owed:
            return
        item = self.client.take(rid)
        if not self.owed[rid]:
            assert item is None
            return
        assert _said(item) == self.owed[rid].popleft()
        if rid in self.over and not self.owed[rid]:
            self._gone(rid)

    @rule(rid=keys)
    def goes_away(self, rid: str) -> None:
        self.client.forget(rid)
        self._gone(rid)

    def _gone(self, rid: str) -> None:
        self.owed.pop(rid, None)
        self.kinds.pop(rid, None)
        self.over.discard(rid)
        self.parts = {key: text for key, text in self.parts.items() if key[0] != rid}

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
TestC4AgainstAModel = TableMachine.TestCase
