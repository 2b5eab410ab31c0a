"""What the contract says of operators' orders: the part of `router_model` that drains and restarts replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omnizmq import protocol as wire
from omnizmq.router import messages as msg

Said = tuple[str, str, object]
"""To whom, about what, and the frame or order."""


@dataclass
class ModelOrder:
    client: str | None  # None: he has been answered
    frame: wire.Operate
    todo: list[Any]
    since: float
    awaits: int = 0  # the incarnation of the first one that ends its turn
    told: bool = False
    out_of_service: bool = False  # the first one, before its turn
    quiet: float | None = None  # since when nothing is bound to the first one


class ModelOrders:
    """`replicas` are the model's."""

    def __init__(self, replicas: Mapping[str, Any]) -> None:
        self.replicas = replicas
        self.orders: list[ModelOrder] = []
        self._said: list[Said] = []

    def said(self) -> list[Said]:
        """What has been said since the last time."""
        said, self._said = self._said, []
        return said

    def asked(self, client: str, frame: wire.Operate, now: float, *, draining: bool) -> None:
        meant = [one for one in self.replicas.values() if frame.target in (one.name, one.stage)]
        whole_stage = frame.target not in self.replicas
        code = None
        if draining:
            code = "unavailable"
        elif not meant or (frame.action != "restart" and (whole_stage or frame.force)):
            code = "invalid_request"
        drains = [one for one in self.orders if one.frame.action == "drain" and one.todo[0] in meant]
        in_the_way = [one for one in self.orders if frame.action == "drain" or one not in drains]
        busy = [replica for order in in_the_way for replica in order.todo]
        if code is not None:
            pass
        elif any(one is other for one in meant for other in busy) or (frame.action == "drain" and not meant[0].serves):
            code = "unavailable"
        if code is None and frame.action != "drain":  # whoever waits for the end of a drain there waits in vain
            for order in drains:
                self._end(order, "unavailable")
        if code is not None or frame.action == "resume":
            if code is None:
                meant[0].drained = False
                meant[0].state = "ready" if meant[0].state == "draining" else meant[0].state
            self._answer(client, frame, code)
            return
        order = ModelOrder(client, frame, meant, now)
        self.orders.append(order)
        if frame.action == "drain":
            meant[0].drained, meant[0].state = True, "draining"
        else:
            self._take_turn(order, now)

    def stop(self) -> None:
        for order in self.orders:
            self._answer(order.client, order.frame, "unavailable")
            order.client, order.todo = None, order.todo[:1]
        going_on = []
        for order in self.orders:
            first = order.todo[0]
            if order.frame.action == "restart" and (first.state != "draining" or order.told):
                going_on.append(order)
            elif order.frame.action == "restart":
                self._as_before(order)
        self.orders = going_on

    def look(self, now: float) -> None:
        for order in list(self.orders):
            while order in self.orders and self._step(order, now):
                pass

    def _step(self, order: ModelOrder, now: float) -> bool:
        """Whether the next replica's turn has begun."""
        first, frame = order.todo[0], order.frame
        late = now > order.since + frame.timeout_s
        if frame.action == "drain":
            if not first.bound or late:
                self._end(order, "unavailable" if first.bound else None)
            return False
        if first.incarnation >= order.awaits:
            return self._came_back(order, now)
        if first.serves and not order.told:
            order.quiet = None if first.bound else now if order.quiet is None else order.quiet
            late = late and bool(first.bound or first.unread)
            read = order.quiet is not None and first.told > order.quiet and not first.unread
            if read or (late and frame.force):
                order.told, first.ordered = True, first.incarnation
                self._said.append(("launcher", first.name, msg.RestartReplica(first.name, first.incarnation)))
            elif late:
                self._as_before(order)
                self._end(order, "unavailable")
        return False

    def _came_back(self, order: ModelOrder, now: float) -> bool:
        first = order.todo[0]
        if first.state == "starting":
            return False
        first.returning = False
        if first.state != "ready":
            self._end(order, "unavailable")
            return False
        order.todo = order.todo[1:]
        if order.todo:
            self._take_turn(order, now)
        else:
            self._end(order, None)
        return bool(order.todo)

    def _take_turn(self, order: ModelOrder, now: float) -> None:
        first = order.todo[0]
        order.since, order.told, order.quiet = now, False, None
        order.awaits = first.incarnation + (first.state != "starting")
        order.out_of_service = first.drained
        first.drained, first.returning = False, True
        if first.state == "ready":
            first.state = "draining"

    def _as_before(self, order: ModelOrder) -> None:
        """Nothing has been done to the first one, so it is as the operator left it."""
        first = order.todo[0]
        first.returning, first.drained = False, order.out_of_service
        first.state = "draining" if order.out_of_service else "ready"

    def _end(self, order: ModelOrder, code: str | None) -> None:
        self.orders.remove(order)
        self._answer(order.client, order.frame, code)

    def _answer(self, client: str | None, frame: wire.Operate, code: str | None) -> None:
        if client is None:
            return
        error = None if code is None else wire.ErrorInfo(code, "", None, None, code == "unavailable")
        self._said.append((client, "", wire.Operated(frame.call, error)))
