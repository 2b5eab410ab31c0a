"""The client's table: frames in, what its callers get out (A4, B1, C4, P4, F6). Pure.

A request's record exists before its submission is sent (S1) and until its consumer has taken the terminal, or the error
that stands for it (A4). Frames for requests that are not in the table are counted in `late` and dropped.

Credits (B1): a delivery has been consumed when its consumer has taken it and is `back` for more; one that goes into a
whole (`output_kind="final"`) when it arrives. A credit for a stage is due when an eighth of the window has been
consumed since the last one, in outputs or in bytes of content; none is once the request has ended.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, assert_never

from omnizmq import protocol as wire
from omnizmq.errors import OmnizmqError, RouterLostError
from omnizmq.frontend.output import RequestOutput

OutputKind = Literal["delta", "final"]

CREDITS_A_WINDOW = 8
"""More would cost more frames; fewer would let a stage wait for its caller before the window is used."""


class Wake(NamedTuple):
    """Something can be taken for this request."""

    request_id: str


class Credit(NamedTuple):
    """The router is to hear that so many deliveries of this final stage have been consumed, counted from the first."""

    request_id: str
    stage: str
    outputs: int


class Answer(NamedTuple):
    """A call of ours was answered: an abort with a count, a status or a question about a request with JSON, one about a
    request that is not live and an order with None; or with its error."""

    call: int
    value: int | bytes | OmnizmqError | None


class Connected(NamedTuple):
    welcome: wire.Welcome


class Rejected(NamedTuple):
    """The router refused the connection itself."""

    error: OmnizmqError


Signal = Wake | Credit | Answer | Connected | Rejected


class _Item(NamedTuple):
    """What a caller can take. `stage` None: no credit is owed for it."""

    what: RequestOutput | OmnizmqError
    stage: str | None = None
    nbytes: int = 0


@dataclass(slots=True)
class _Stage:
    """A final stage of one request."""

    parts: list[wire.Content] = field(default_factory=list)  # of its whole, for kind "final"
    consumed: int = 0  # deliveries
    outputs: int = 0  # of these, since the last credit
    nbytes: int = 0  # of content, since the last credit


@dataclass(slots=True)
class _Record:
    external_id: str
    kind: OutputKind
    items: deque[_Item] = field(default_factory=deque)
    stages: dict[str, _Stage] = field(default_factory=dict)
    taken: list[_Item] = field(default_factory=list)  # by a consumer that is not back yet
    ended: bool = False

    def stage(self, name: str) -> _Stage:
        return self.stages.setdefault(name, _Stage())


class ClientTable:
    """All requests of one connection. Until a `Welcome` names the windows, every delivery is worth a credit."""

    def __init__(self) -> None:
        self.late = 0
        self._records: dict[str, _Record] = {}
        self._credit_outputs = 1
        self._credit_bytes = 1

    def __len__(self) -> int:
        return len(self._records)

    def open(self, request_id: str, external_id: str, kind: OutputKind) -> None:
        if request_id in self._records:
            raise ValueError(f"{request_id} is open already")
        self._records[request_id] = _Record(external_id, kind)

    def handle(self, frame: wire.RouterToClient) -> list[Signal]:
        match frame:
            case wire.Delivery():
                return self._delivered(frame)
            case wire.Terminal():
                return self._ended(frame)
            case wire.Refused():
                return self._refused(frame)
            case wire.AbortAck():
                return [Answer(frame.call, frame.matched)]
            case wire.Status() | wire.Traced():
                return [Answer(frame.call, frame.json)]
            case wire.Operated():
                return [Answer(frame.call, None if frame.error is None else frame.error.exception())]
            case wire.Welcome():
                return self._welcomed(frame)
            case wire.Ping():
                return []
            case wire.Bye():
                return self.lost(frame.reason)
            case _:
                assert_never(frame)

    def lost(self, why: str) -> list[Signal]:
        """F6: the router is gone; every request that has not ended ends so."""
        signals: list[Signal] = []
        for request_id, record in self._records.items():
            if not record.ended:
                signals += self._end(request_id, record, RouterLostError(f"the router is gone: {why}"))
        return signals

    def take(self, request_id: str) -> RequestOutput | OmnizmqError | None:
        """The next output, the error that ends the request, or None: nothing yet. The last one clears the record."""
        record = self._records[request_id]
        if not record.items:
            return None
        item = record.items.popleft()
        if item.stage is not None:
            record.taken.append(item)
        if isinstance(item.what, OmnizmqError) or item.what.finished:
            del self._records[request_id]
        return item.what

    def back(self, request_id: str) -> list[Signal]:
        """Its consumer is back for more: what it took before has been consumed, and the router may have to hear of it.
        Nothing happens for a request whose record is cleared."""
        record = self._records.get(request_id)
        signals: list[Signal] = []
        if record is not None:
            for item in record.taken:
                assert item.stage is not None
                signals += self._consumed(request_id, record, item.stage, item.nbytes)
            record.taken.clear()
        return signals

    def is_open(self, request_id: str) -> bool:
        """Whether its consumer has not taken the end yet."""
        return request_id in self._records

    def has_ended(self, request_id: str) -> bool:
        """Whether the end is here, taken or not."""
        record = self._records.get(request_id)
        return record is None or record.ended

    def forget(self, request_id: str) -> None:
        """Its consumer has gone away and its end has been waited for."""
        self._records.pop(request_id, None)

    # --- Credits (B1) ----------------------------------------------------------------------------------------------

    def _welcomed(self, frame: wire.Welcome) -> list[Signal]:
        self._credit_outputs = max(1, frame.output_window // CREDITS_A_WINDOW)
        self._credit_bytes = max(1, frame.output_window_bytes // CREDITS_A_WINDOW)
        return [Connected(frame)]

    def _consumed(self, request_id: str, record: _Record, name: str, nbytes: int) -> list[Signal]:
        """One more delivery of this stage."""
        if record.ended:
            return []
        stage = record.stage(name)
        stage.consumed += 1
        stage.outputs += 1
        stage.nbytes += nbytes
        if stage.outputs < self._credit_outputs and stage.nbytes < self._credit_bytes:
            return []
        stage.outputs = stage.nbytes = 0
        return [Credit(request_id, name, stage.consumed)]

    # --- Frames ----------------------------------------------------------------------------------------------------

    def _live(self, request_id: str) -> _Record | None:
        record = self._records.get(request_id)
        if record is None or record.ended:
            self.late += 1
            return None
        return record

    def _delivered(self, frame: wire.Delivery) -> list[Signal]:
        record = self._live(frame.request_id)
        if record is None:
            return []
        if record.kind == "final":
            return self._kept(record, frame)
        content = [] if frame.content is None else [frame.content]
        record.items.append(_Item(_output(record, frame, content), frame.stage, wire.content_bytes(frame.content)))
        return [Wake(frame.request_id)]

    def _kept(self, record: _Record, frame: wire.Delivery) -> list[Signal]:
        """For the whole, which is complete with the stage's end."""
        credits = self._consumed(frame.request_id, record, frame.stage, wire.content_bytes(frame.content))
        stage = record.stage(frame.stage)
        if frame.content is not None:
            stage.parts.append(frame.content)
        if not frame.stage_finished:
            return credits
        record.items.append(_Item(_output(record, frame, stage.parts)))
        stage.parts = []
        return [*credits, Wake(frame.request_id)]

    def _ended(self, frame: wire.Terminal) -> list[Signal]:
        record = self._live(frame.request_id)
        if record is None:
            return []
        if frame.error is not None:
            return self._end(frame.request_id, record, frame.error.exception())
        return self._end(frame.request_id, record, RequestOutput.terminal(frame, record.external_id))

    def _refused(self, frame: wire.Refused) -> list[Signal]:
        if not frame.request_id:  # no request of this connection will hear anything any more
            return [Rejected(frame.error.exception()), *self.lost(frame.error.message)]
        record = self._live(frame.request_id)
        return [] if record is None else self._end(frame.request_id, record, frame.error.exception())

    def _end(self, request_id: str, record: _Record, end: RequestOutput | OmnizmqError) -> list[Signal]:
        record.ended = True
        record.items.append(_Item(end))
        return [Wake(request_id)]


def _output(record: _Record, frame: wire.Delivery, content: list[wire.Content]) -> RequestOutput:
    return RequestOutput.of(
        frame.request_id, record.external_id, frame.stage, frame.modality, content, frame.stage_finished
    )
