"""The client's table: frames in, what its callers get out (A4, C4, P4, F6). Pure.

A request's record exists before its submission is sent (S1) and until its consumer has taken the terminal, or the error
that stands for it (A4). Frames for requests that are not in the table are counted in `late` and dropped.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, assert_never

from omnizmq import protocol as wire
from omnizmq.errors import OmnizmqError, RouterLostError
from omnizmq.frontend.output import RequestOutput

OutputKind = Literal["delta", "final"]


class Wake(NamedTuple):
    """Something can be taken for this request."""

    request_id: str


class Answer(NamedTuple):
    """A call of ours was answered: an abort with a count, a status with JSON."""

    call: int
    value: int | bytes


class Connected(NamedTuple):
    welcome: wire.Welcome


class Rejected(NamedTuple):
    """The router refused the connection itself."""

    error: OmnizmqError


Signal = Wake | Answer | Connected | Rejected


@dataclass
class _Record:
    external_id: str
    kind: OutputKind
    items: deque[tuple[RequestOutput | OmnizmqError, int]] = field(default_factory=deque)  # and deliveries in it
    parts: dict[str, list[wire.Content]] = field(default_factory=dict)  # stage -> content, for kind "final"
    ended: bool = False
    delivered: int = 0  # of which nothing is in `items` yet
    consumed: int = 0


class ClientTable:
    """All requests of one connection."""

    def __init__(self) -> None:
        self.late = 0
        self._records: dict[str, _Record] = {}

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
            case wire.Status():
                return [Answer(frame.call, frame.json)]
            case wire.Operated():
                return []
            case wire.Welcome():
                return [Connected(frame)]
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
                record.ended = True
                record.items.append((RouterLostError(f"the router is gone: {why}"), 0))
                signals.append(Wake(request_id))
        return signals

    def take(self, request_id: str) -> RequestOutput | OmnizmqError | None:
        """The next output, the error that ends the request, or None: nothing yet. The last one clears the record."""
        record = self._records[request_id]
        if not record.items:
            return None
        item, deliveries = record.items.popleft()
        record.consumed += deliveries
        if isinstance(item, OmnizmqError) or item.finished:
            del self._records[request_id]
        return item

    def consumed(self, request_id: str) -> int:
        """The router's deliveries that its consumer has taken (B1), of a request that has not been cleared."""
        return self._records[request_id].consumed

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
        record.delivered += 1
        content = [] if frame.content is None else [frame.content]
        if record.kind == "final":
            parts = record.parts.setdefault(frame.stage, [])
            parts += content
            if not frame.stage_finished:
                return []
            content = record.parts.pop(frame.stage)
        output = RequestOutput.of(
            frame.request_id, record.external_id, frame.stage, frame.modality, content, frame.stage_finished
        )
        record.items.append((output, record.delivered))
        record.delivered = 0
        return [Wake(frame.request_id)]

    def _ended(self, frame: wire.Terminal) -> list[Signal]:
        record = self._live(frame.request_id)
        if record is None:
            return []
        record.ended = True
        if frame.error is not None:
            record.items.append((frame.error.exception(), 0))
        else:
            record.items.append((RequestOutput.terminal(frame, record.external_id), 0))
        return [Wake(frame.request_id)]

    def _refused(self, frame: wire.Refused) -> list[Signal]:
        if not frame.request_id:  # no request of this connection will hear anything any more
            return [Rejected(frame.error.exception()), *self.lost(frame.error.message)]
        record = self._live(frame.request_id)
        if record is None:
            return []
        record.ended = True
        record.items.append((frame.error.exception(), 0))
        return [Wake(frame.request_id)]
