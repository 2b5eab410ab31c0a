"""What a worker answers when it is asked where a request is (T1). Pure: it reads the gate's tables and changes nothing.

What the trace's facts cannot say is said here: how things stand now. The router asks the bound workers of one request
when somebody looks at it, and never on a request's way.
"""

from __future__ import annotations

from omnizmq import protocol as wire
from omnizmq.workers.caller import CallerEdge
from omnizmq.workers.edges import InEdge, OutEdge
from omnizmq.workers.messages import StageAsked
from omnizmq.workers.outgoing import Outgoing
from omnizmq.workers.ring import Ring
from omnizmq.workers.running import Running
from omnizmq.workers.work import Work

GONE = "GONE"
"""Instead of a state: the worker does not hold that attempt."""

MAX_HOLDERS = 3
"""So many requests that hold a ring are named."""


class Answers:
    """Of one worker incarnation."""

    def __init__(self, incarnation: int, ring: Ring, outgoing: Outgoing, running: Running) -> None:
        self._incarnation = incarnation
        self._ring = ring
        self._outgoing = outgoing
        self._running = running

    def of(self, asked: StageAsked, work: Work | None, now_ns: int) -> wire.StageAnswer:
        """`work` None: the attempt that was asked about is not here."""
        frame = asked.frame
        return wire.StageAnswer(
            call=frame.call,
            request_id=frame.request_id,
            attempt=frame.attempt,
            incarnation=self._incarnation,
            state=GONE if work is None else work.state.value,
            at_ns=now_ns,
            since_ns=0 if work is None else work.since_ns,
            running=self._running.holding,
            slots=self._running.slots,
            waiting=self._running.waiting,
            engine=asked.engine,
            engine_since_ns=asked.engine_since_ns,
            engaged=work is not None and work.engine_id in asked.at_work_on,
            made_ns=0 if work is None else work.moved_ns,
            outputs=0 if work is None or work.caller is None else work.caller.sent + len(work.caller.waiting),
            inputs=[] if work is None else [_input(edge) for edge in work.sources.values()],
            edges=[] if work is None else [self._edge(work, edge) for edge in work.targets.values()],
            caller=None if work is None or work.caller is None else _caller(work.caller),
        )

    def _edge(self, work: Work, edge: OutEdge) -> wire.EdgeState:
        others = [holder for holder in self._ring.holders(edge.peer) if holder != work.submit.request_id]
        return wire.EdgeState(
            target=edge.target.stage,
            replica=edge.target.replica,
            mode=edge.target.mode,
            made=edge.sent + len(edge.waiting),
            sent=edge.sent,
            consumed=edge.consumed,
            window=edge.target.window,
            bytes=edge.bytes,
            ended=edge.ended,
            closed=edge.closed,
            last_ns=edge.last_ns,
            full=self._outgoing.cause(work, edge) if edge.full else None,
            full_since_ns=edge.full_ns or 0,
            held_bytes=self._ring.held(edge.peer),
            quota_bytes=self._ring.quota(edge.peer),
            holders=others[:MAX_HOLDERS],
        )


def _input(edge: InEdge) -> wire.InputState:
    source = edge.source
    return wire.InputState(
        source=source.stage,
        replica=source.replica,
        mode=source.mode,
        received=edge.received,
        taken=edge.taken,
        ended=edge.ended,
        closed=edge.closed,
        last_ns=edge.came_ns,
    )


def _caller(caller: CallerEdge) -> wire.CallerState:
    return wire.CallerState(
        sent=caller.sent,
        consumed=caller.consumed,
        window=caller.window,
        unread_bytes=caller.unread_bytes,
        window_bytes=caller.window_bytes,
        waiting=len(caller.waiting),
        full=caller.full,
        since_ns=caller.since_ns,
    )
