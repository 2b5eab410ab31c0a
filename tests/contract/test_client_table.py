"""A1, A3, A4, B1, C3, C4, F6 at the client: frames go in as messages, in any order that a router or a race brings."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from omnizmq import protocol as wire
from omnizmq.errors import OmnizmqError, RouterLostError, StageError
from omnizmq.frontend.core import Answer, ClientTable, Credit, OutputKind, Signal, Wake
from omnizmq.frontend.output import RequestOutput

RID = "demo-0123456789abcdef"
STAGES = ("thinker", "code2wav")
WINDOW, WINDOW_BYTES = 1024, 8 << 20


class Caller:
    """A client's table with one request, behind a connection. `credits` are those that go back over it."""

    def __init__(self, kind: OutputKind = "delta", window: int = WINDOW, window_bytes: int = WINDOW_BYTES) -> None:
        self.table = ClientTable()
        self.got: list[RequestOutput | OmnizmqError] = []
        self.credits: list[Credit] = []
        self._packer = wire.Packer()
        self._unpacker = wire.Unpacker(wire.router_to_client)
        self.hears(wire.Welcome(wire.VERSION, "demo", 5, [], 1 << 20, window, window_bytes, 10.0))
        self.table.open(RID, "demo", kind)

    def hears(self, *frames: wire.RouterToClient) -> list[Signal]:
        signals: list[Signal] = []
        for frame in frames:
            for message in self._packer.pack(frame):
                whole = self._unpacker.unpack(message)
                if whole is not None:
                    signals += self.table.handle(whole)
        return self._sends(signals)

    def takes(self) -> bool:
        """One output, and is back for more; whether there was one."""
        item = self.table.take(RID) if self.table.is_open(RID) else None
        if item is None:
            return False
        self.got.append(item)
        self._sends(self.table.back(RID))
        return True

    def takes_all(self) -> list[RequestOutput | OmnizmqError]:
        while self.takes():
            pass
        return self.got

    def _sends(self, signals: list[Signal]) -> list[Signal]:
        """Credits go; the rest is told."""
        self.credits += [signal for signal in signals if isinstance(signal, Credit)]
        return [signal for signal in signals if not isinstance(signal, Credit)]

    def text(self, stage: str) -> str:
        return "".join(item.text or "" for item in self.got if isinstance(item, RequestOutput) and item.stage == stage)

    def ends(self) -> list[RequestOutput | OmnizmqError]:
        return [item for item in self.got if isinstance(item, OmnizmqError) or item.finished]


def said(stage: str, text: str | None, *, last: bool = False) -> wire.Delivery:
    return wire.Delivery(RID, stage, "text", None if text is None else wire.Text(text), last)


def terminal(reason: str = "stop", error: wire.ErrorInfo | None = None) -> wire.Terminal:
    return wire.Terminal(RID, "code2wav", "audio", reason, error, {}, [], {})


BOOM = wire.ErrorInfo("stage_error", "boom", "talker", "talker/0", False)
ends = st.sampled_from(
    [
        terminal("stop"),
        terminal("length"),
        terminal("abort"),
        terminal("error", BOOM),
        wire.Refused(RID, wire.ErrorInfo("overloaded", "256 wait", None, None, True)),
        wire.Bye("the deployment has stopped"),
        wire.Refused("", wire.ErrorInfo("protocol_error", "another launch", None, None, False)),
    ]
)
words = st.lists(st.tuples(st.sampled_from(STAGES), st.text(max_size=5)), max_size=8)


class TestC3:
    @settings(derandomize=True)
    @given(words=words, kind=st.sampled_from(["delta", "final"]))
    def test_c3_data_is_never_withheld_and_the_end_of_a_stage_is_not_the_end_of_the_request(
        self, words: list[tuple[str, str]], kind: OutputKind
    ) -> None:
        caller = Caller(kind)
        for stage, text in words:
            caller.hears(said(stage, text))
            if kind == "delta":
                last = caller.takes_all()[-1]
                assert isinstance(last, RequestOutput)
                assert (last.stage, last.text, last.finished) == (stage, text, False)
        for stage in STAGES:
            caller.hears(said(stage, None, last=True))
            last = caller.takes_all()[-1]
            assert isinstance(last, RequestOutput)
            assert (last.stage, last.stage_finished, last.finished) == (stage, True, False)
            assert caller.text(stage) == "".join(text for at, text in words if at == stage)
        assert caller.ends() == []
        caller.hears(terminal())
        assert caller.takes_all()[-1] == caller.ends()[0]
        assert len(caller.ends()) == 1

    def test_c3_a_large_output_arrives_whole(self) -> None:
        caller = Caller()
        text = "word " * (1 << 19)
        caller.hears(said("thinker", text, last=True), terminal())
        caller.takes_all()
        assert caller.text("thinker") == text


class TestC4:
    @settings(max_examples=300, derandomize=True)
    @given(
        before=words,
        end=ends,
        after=st.lists(st.one_of(ends, words.map(lambda pairs: said(*(pairs or [("thinker", "x")])[0]))), max_size=6),
        taken_between=st.booleans(),
        kind=st.sampled_from(["delta", "final"]),
    )
    def test_c4_exactly_one_end_and_nothing_after_it(
        self,
        before: list[tuple[str, str]],
        end: wire.RouterToClient,
        after: list[wire.RouterToClient],
        taken_between: bool,
        kind: OutputKind,
    ) -> None:
        caller = Caller(kind)
        caller.hears(*(said(stage, text) for stage, text in before), end)
        if taken_between:
            caller.takes_all()
        signals = caller.hears(*after)
        caller.takes_all()
        assert len(caller.ends()) == 1
        assert caller.got[-1] is caller.ends()[0]
        assert not any(isinstance(signal, Wake) for signal in signals)
        about_requests = [frame for frame in after if not isinstance(frame, wire.Bye) and frame.request_id]  # type: ignore[union-attr]
        assert caller.table.late == len(about_requests)
        assert len(caller.table) == 0

    def test_c4_a_result_that_races_a_lost_router_stands(self) -> None:
        caller = Caller()
        caller.hears(said("thinker", "all", last=True), terminal(), wire.Bye("stopped"))
        *_, end = caller.takes_all()
        assert isinstance(end, RequestOutput)
        assert end.finish_reason == "stop"


class TestAbort:
    def test_a1_each_abort_is_acknowledged_by_its_own_call(self) -> None:
        caller = Caller()
        assert caller.hears(wire.AbortAck(2, 0), wire.AbortAck(1, 1)) == [Answer(2, 0), Answer(1, 1)]
        assert len(caller.table) == 1

    @settings(derandomize=True)
    @given(words=words, kind=st.sampled_from(["delta", "final"]))
    def test_a3_partial_outputs_come_first_then_the_terminal_alone(
        self, words: list[tuple[str, str]], kind: OutputKind
    ) -> None:
        """As the router sends them: what exists, the marks of ends, the terminal."""
        caller = Caller(kind)
        stages = {stage for stage, _ in words}
        caller.hears(*(said(stage, text) for stage, text in words))
        caller.hears(*(said(stage, None, last=True) for stage in STAGES if stage in stages), terminal("abort"))
        *partial, end = caller.takes_all()
        for stage in stages:
            assert caller.text(stage) == "".join(text for at, text in words if at == stage)
        assert isinstance(end, RequestOutput)
        assert (end.finished, end.finish_reason, end.text, end.audio) == (True, "abort", None, None)
        assert not any(isinstance(item, OmnizmqError) or item.finished for item in partial)
        assert bool(partial) is bool(words)

    def test_a4_the_record_stays_until_the_terminal_was_taken(self) -> None:
        caller = Caller()
        caller.hears(said("thinker", "a"), terminal("abort"))
        while caller.table.is_open(RID):
            assert len(caller.table) == 1
            assert caller.table.take(RID) is not None
        assert len(caller.table) == 0


class TestF6:
    def test_f6_every_caller_of_a_lost_router_hears_it_and_what_had_come_before(self) -> None:
        caller = Caller()
        caller.table.open("other-1", "other", "final")
        caller.hears(said("thinker", "some"))
        assert caller.table.lost("its process ended") == [Wake(RID), Wake("other-1")]
        first, error = caller.takes_all()
        assert isinstance(first, RequestOutput)
        assert isinstance(error, RouterLostError)
        assert error.retriable
        assert isinstance(caller.table.take("other-1"), RouterLostError)
        assert len(caller.table) == 0


class TestF1:
    def test_f1_an_error_is_raised_with_code_stage_replica_and_whether_a_retry_can_help(self) -> None:
        caller = Caller()
        caller.hears(terminal("error", BOOM))
        (error,) = caller.takes_all()
        assert isinstance(error, StageError)
        assert (error.code, error.stage, error.replica, error.retriable) == ("stage_error", "talker", "talker/0", False)


class TestB1:
    """A stage that stops at its caller's window and goes on with credits, as a gate does."""

    @settings(max_examples=200, derandomize=True)
    @given(
        texts=st.lists(st.text(max_size=12), max_size=60),
        window=st.integers(1, 40),
        window_bytes=st.integers(1, 60),
        kind=st.sampled_from(["delta", "final"]),
    )
    def test_b1_a_caller_that_reads_gets_everything_through_any_window(
        self, texts: list[str], window: int, window_bytes: int, kind: OutputKind
    ) -> None:
        """Credits are exact: what has been consumed, never more; and they come before a stage would have to wait for
        a caller who has read all there is."""
        caller = Caller(kind, window, window_bytes)
        sent = 0
        while sent < len(texts):
            credited = caller.credits[-1].outputs if caller.credits else 0
            unread = [len(text.encode()) for text in texts[credited:sent]]
            assert len(unread) < window, "it waits for a credit that will not come"
            assert sum(unread) < window_bytes, "it waits for a credit that will not come"
            caller.hears(said("thinker", texts[sent]))
            sent += 1
            caller.takes_all()
            assert all(credit.outputs <= sent for credit in caller.credits)
        caller.hears(said("thinker", None, last=True), terminal())
        caller.takes_all()
        assert caller.text("thinker") == "".join(texts)
        counts = [credit.outputs for credit in caller.credits]
        assert counts == sorted(set(counts))

    def test_b1_a_caller_that_does_not_read_gives_no_credit(self) -> None:
        caller = Caller(window=8)
        caller.hears(*(said("thinker", "x") for _ in range(8)))
        assert caller.credits == []
        assert caller.takes()
        assert caller.credits == [Credit(RID, "thinker", 1)]

    def test_b1_credits_cost_eight_frames_a_window(self) -> None:
        caller = Caller()
        for _ in range(4 * WINDOW):
            caller.hears(said("thinker", "word "))
            caller.takes()
        assert [credit.outputs for credit in caller.credits] == list(range(128, 4 * WINDOW + 1, 128))

    def test_b1_terminals_and_errors_need_no_credit(self) -> None:
        for end in (terminal("stop"), terminal("abort"), terminal("error", BOOM)):
            caller = Caller(window=2)
            caller.hears(said("thinker", "a"), said("thinker", "b"), end)
            caller.takes_all()
            assert len(caller.got) == 3
            assert caller.credits == []
            assert len(caller.table) == 0
