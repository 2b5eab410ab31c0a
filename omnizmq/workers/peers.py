"""What the gate orders towards other workers, carried out: frames sent, slots written and freed.

What cannot be done comes back to the gate as an event, `later`: after the orders that were given together with it.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from functools import partial
from typing import TypeVar, assert_never

import msgspec

from omnizmq import protocol as wire
from omnizmq.errors import ProtocolError, StageError
from omnizmq.transport import PeerGoneError
from omnizmq.workers.chunks import fill_slot
from omnizmq.workers.dataplane import DataPlane
from omnizmq.workers.engine import EngineBrokenError
from omnizmq.workers.messages import (
    DropPeer,
    EngineFailed,
    FreeSlot,
    GateEvent,
    MeetConsumer,
    PeerSent,
    PeerUnreachable,
    PlaneCommand,
    SlotUnwritten,
    ToConsumer,
    ToProducer,
    WriteSlot,
)

log = logging.getLogger(__name__)

F = TypeVar("F", bound=wire.OnEdge | wire.BackOnEdge)


class Peers:
    """Of one worker. `later` hands an event to its gate, after what the gate has just ordered. Raises nothing but an
    array's `EngineBrokenError`."""

    def __init__(self, plane: DataPlane, stage: str, replica: str, later: Callable[[GateEvent], None]) -> None:
        self._plane = plane
        self._stage = stage
        self._replica = replica
        self._later = later

    def carry_out(self, command: PlaneCommand) -> None:
        match command:
            case ToConsumer():
                self._to_consumer(command.target, command.frame)
            case ToProducer():
                self._sent(command.source, partial(self._plane.to_producer, command.source), command.frame)
            case MeetConsumer():
                self._reached(command.target, partial(self._plane.meet, command.target, command.quota))
            case WriteSlot():
                self._write(command)
            case FreeSlot():
                self._plane.free(command.slot)
            case DropPeer():
                self._plane.drop((command.replica, command.incarnation))
            case _:
                assert_never(command)

    def _to_consumer(self, target: wire.Target, frame: wire.OnEdge) -> bool:
        return self._sent(target, partial(self._plane.to_consumer, target), frame)

    def _sent(self, peer: wire.Source | wire.Target, send: Callable[[F], None], frame: F) -> bool:
        """Whether it is on its way; else the gate will hear of it."""
        try:
            return self._reached(peer, partial(send, frame))
        except ProtocolError as error:  # its request fails; an end that was reported stands
            log.error("%s", error.message)
            engine_id = wire.make_engine_id(frame.request_id, frame.attempt, self._stage)
            self._later(EngineFailed(engine_id, StageError(error.message)))
            return False

    def _reached(self, peer: wire.Source | wire.Target, send: Callable[[], None]) -> bool:
        try:
            send()
        except PeerGoneError as error:
            self._later(PeerUnreachable(peer.replica, peer.incarnation, str(error)))
            return False
        return True

    # --- Slots -----------------------------------------------------------------------------------------------------

    def _write(self, command: WriteSlot) -> None:
        """The bytes first, then who may read them."""
        try:
            spill = self._plane.write(command.slot, partial(fill_slot, command.chunk))
        except EngineBrokenError:  # about no chunk
            raise
        except BaseException as error:  # noqa: BLE001 (F1: an engine's own array may raise anything)
            self._unwritten(command, error)
            return
        for target, frame in command.sends:
            if not self._to_consumer(target, msgspec.structs.replace(frame, spill=spill)):
                unread = wire.SlotsFreed([command.slot.seq])
                self._later(PeerSent(target.replica, target.incarnation, unread))

    def _unwritten(self, command: WriteSlot, error: BaseException) -> None:
        """Instead of the chunk its consumers get the error, before anything else about this request (R3)."""
        text = error.message if isinstance(error, StageError) else f"{type(error).__name__}: {error}"
        log.error("no chunk of %s was sent\n%s", command.engine_id, "".join(traceback.format_exception(error)))
        failure = StageError(text, stage=self._stage, replica=self._replica)
        for target, frame in command.sends:
            ids = frame.request_id, frame.attempt, frame.incarnation, frame.source
            self._to_consumer(target, wire.EdgeFailed(*ids, wire.ErrorInfo.of(failure)))
        self._later(SlotUnwritten(command.engine_id, command.slot, failure))
