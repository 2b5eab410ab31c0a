"""An operator's orders about replicas: drain one, resume it, restart one or a whole stage, one after another. Pure.

A restart loses no request: a replica takes no new ones, its own end, what it has sent is read out of its ring, its
process ends, and only when its next incarnation is ready does the next replica follow. Who has not ended in time stops
the restart, and everything serves as before; or is ended there with the process, where the order says so, and follows
the policy of re-drive (F2).

Who gave an order need not stay: what has begun is brought to its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from omnizmq import protocol as wire
from omnizmq.errors import InvalidRequestError, OmnizmqError, UnavailableError
from omnizmq.router.messages import Effect, RestartReplica, ToClient
from omnizmq.router.pools import Pools, Replica

MOST_TIMEOUT_S = 86_400


@dataclass
class _Order:
    client: bytes | None  # None: he has his answer
    frame: wire.Operate
    todo: list[Replica]  # the first one is at work
    since: float  # when that was begun
    incarnation: int = 0  # of the first one; the next is awaited
    told: bool = False  # its process has been told to end
    idle: float | None = None  # since when nothing is bound to it
    drained: bool = False  # it was out of service before


class Operations:
    """All orders of a deployment. `look` is to be called whenever a replica may have changed, and as time goes."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._orders: list[_Order] = []

    def __len__(self) -> int:
        return len(self._orders)

    def ask(self, client: bytes, frame: wire.Operate, now: float) -> Iterator[Effect]:
        try:
            replicas = self._meant(frame)
            self._check_idle(replicas, frame)
            if frame.action != "drain":
                yield from self._end_drains(replicas, frame)
            if frame.action == "resume":
                _resume(replicas[0])
            elif frame.action == "drain":
                _drain(replicas[0])
        except OmnizmqError as error:
            yield _operated(client, frame, error)
            return
        if frame.action == "resume":
            yield _operated(client, frame, None)
            return
        order = _Order(client, frame, replicas, now)
        self._orders.append(order)
        if frame.action == "restart":
            _begin(order, now)
        yield from self.look(now)

    def look(self, now: float) -> Iterator[Effect]:
        for order in list(self._orders):
            yield from self._step(order, now)

    def forgive(self, slept_s: float) -> None:
        """The router itself was stopped for so long: nobody could end meanwhile that it could have seen."""
        for order in self._orders:
            order.since += slept_s

    def stop(self, why: str) -> Iterator[Effect]:
        """No other replica's turn follows. Whoever still serves serves on, and is waited for where it has been told to
        come back."""
        for order in list(self._orders):
            if order.client is not None:
                yield _operated(order.client, order.frame, UnavailableError(why))
            order.client = None
            del order.todo[1:]
            if order.frame.action == "drain":
                self._orders.remove(order)
            elif order.todo[0].state == "draining" and not order.told:
                _serve_as_before(order)
                self._orders.remove(order)

    # --- Checks ----------------------------------------------------------------------------------------------------

    def _meant(self, frame: wire.Operate) -> list[Replica]:
        """Raises `InvalidRequestError`."""
        replica, pool = self._pools.replicas.get(frame.target), self._pools.by_stage.get(frame.target)
        if not 0 <= frame.timeout_s <= MOST_TIMEOUT_S:
            raise InvalidRequestError(f"timeout_s is {frame.timeout_s}: 0 to {MOST_TIMEOUT_S} seconds were expected")
        if frame.force and frame.action != "restart":
            raise InvalidRequestError(f"force belongs to a restart, not to {frame.action}")
        if replica is not None:
            return [replica]
        if pool is not None and frame.action == "restart":
            return list(pool)
        if pool is not None:
            its = ", ".join(replica.id for replica in pool)
            raise InvalidRequestError(f"{frame.action} takes one replica, not a stage: {frame.target} has {its}")
        known = ", ".join(self._pools.replicas)
        raise InvalidRequestError(f"{frame.action} {frame.target[:80]!r}: no such replica; there are {known}")

    def _end_drains(self, replicas: list[Replica], frame: wire.Operate) -> Iterator[Effect]:
        """Who waits for the end of a drain waits in vain: a later order means something else."""
        for order in [order for order in self._orders if order.frame.action == "drain" and order.todo[0] in replicas]:
            text = f"{order.todo[0].id}: a later {frame.action} has ended the drain"
            yield from self._end(order, UnavailableError(text))

    def _check_idle(self, replicas: list[Replica], frame: wire.Operate) -> None:
        """Raises `UnavailableError` where another order is at work. A drain gives way to any other order."""
        for order in self._orders:
            gives_way = order.frame.action == "drain" and frame.action != "drain"
            for replica in replicas:
                if replica in order.todo and not gives_way:
                    raise UnavailableError(f"{replica.id}: a {order.frame.action} is under way; wait for its end")

    # --- Steps -----------------------------------------------------------------------------------------------------

    def _step(self, order: _Order, now: float) -> Iterator[Effect]:
        if order.frame.action == "drain":
            yield from self._step_drain(order, now)
            return
        replica = order.todo[0]
        if replica.incarnation > order.incarnation:
            yield from self._returned(order, replica, now)
        elif replica.state in ("ready", "draining") and not order.told:
            yield from self._let_go(order, replica, now)

    def _step_drain(self, order: _Order, now: float) -> Iterator[Effect]:
        replica = order.todo[0]
        if not replica.inflight:
            yield from self._end(order, None)
        elif now - order.since > order.frame.timeout_s:
            text = f"{_left(replica, order.frame)}; it takes no new ones and is still draining"
            yield from self._end(order, UnavailableError(text, stage=replica.stage, replica=replica.id))

    def _let_go(self, order: _Order, replica: Replica, now: float) -> Iterator[Effect]:
        """Wait for its requests, then end its process."""
        late = now - order.since > order.frame.timeout_s and (replica.inflight or replica.unread)
        if replica.inflight:
            order.idle = None
        elif order.idle is None:
            order.idle = now
        # A heartbeat that came after the last report was sent after it: what it says of the ring is true now.
        read = order.idle is not None and replica.engine_told > order.idle and not replica.unread
        if read or (late and order.frame.force):
            order.told = True
            replica.ordered = replica.incarnation
            yield RestartReplica(replica.id, replica.incarnation)
        elif late:
            _serve_as_before(order)
            text = f"{_left(replica, order.frame)}; it was not restarted"
            yield from self._end(order, UnavailableError(text, stage=replica.stage, replica=replica.id))

    def _returned(self, order: _Order, replica: Replica, now: float) -> Iterator[Effect]:
        """Its next incarnation has been started."""
        if replica.state == "ready":
            replica.returning = False
            order.todo.pop(0)
            if not order.todo:
                yield from self._end(order, None)
                return
            _begin(order, now)
            yield from self._step(order, now)
        elif replica.state in ("dead", "stuck"):
            replica.returning = False
            text = f"{replica.id} did not come back: its process ended before it was ready (see its log)"
            yield from self._end(order, UnavailableError(text, stage=replica.stage, replica=replica.id))

    def _end(self, order: _Order, error: OmnizmqError | None) -> Iterator[Effect]:
        self._orders.remove(order)
        if order.client is not None:
            yield _operated(order.client, order.frame, error)


def _begin(order: _Order, now: float) -> None:
    """With the first one of those to do."""
    replica = order.todo[0]
    order.since, order.told, order.idle = now, False, None
    order.incarnation = replica.incarnation - (replica.state == "starting")
    order.drained = replica.drained
    replica.drained, replica.returning = False, True
    if replica.state == "ready":
        replica.state = "draining"


def _serve_as_before(order: _Order) -> None:
    replica = order.todo[0]
    replica.drained, replica.returning = order.drained, False
    replica.state = "draining" if order.drained else "ready"


def _drain(replica: Replica) -> None:
    if replica.state not in ("ready", "draining"):
        raise UnavailableError(f"{replica.id} is {replica.state}: only a ready replica can be drained")
    replica.drained, replica.state = True, "draining"


def _resume(replica: Replica) -> None:
    replica.drained = False
    if replica.state == "draining":
        replica.state = "ready"


def _left(replica: Replica, frame: wire.Operate) -> str:
    after = f"after {frame.timeout_s:g} s"
    if not replica.inflight and replica.unread:
        return f"{replica.unread} bytes that {replica.id} has sent are still in use by their consumers {after}"
    left = len(replica.inflight)
    return f"{left} {'request is' if left == 1 else 'requests are'} left on {replica.id} {after}"


def _operated(client: bytes, frame: wire.Operate, error: OmnizmqError | None) -> ToClient:
    return ToClient(client, wire.Operated(frame.call, None if error is None else wire.ErrorInfo.of(error)))
