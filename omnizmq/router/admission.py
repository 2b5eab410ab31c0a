"""Who gets replicas, and when: at once where there is room, else in the order of the queue (B1, B2, F2, F4). Pure.

A stage that has no live replica ends the wait of those that need it at once; or, with `redrive = "wait"`, when it has
had none for `redrive_wait_s`. New requests are refused meanwhile all the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from omnizmq.config import RouterConfig
from omnizmq.errors import OverloadedError, UnavailableError
from omnizmq.protocol import Value
from omnizmq.router.pools import Binding, Pools
from omnizmq.router.queue import Line, Queue
from omnizmq.router.request import Request
from omnizmq.router.table import Table

STARVING = 4
"""A request that has waited so many times `priority_age_s` keeps the places that it needs from all behind it."""


_LACK = ("why", "lacks", "replicas")


class Admission:
    """The door to the pools of one deployment."""

    def __init__(self, pools: Pools, requests: Table, limits: RouterConfig) -> None:
        self.queue = Queue(limits.priority_age_s)
        self._pools = pools
        self._requests = requests
        self._limits = limits
        self._kept: set[str] = set()  # stages whose places a starving request keeps
        self._unserved: dict[Line, float] = {}  # since when nobody serves a line's stages

    @property
    def concerned(self) -> bool:
        """Whether anything can come of `decide` when a place has become free."""
        return bool(self.queue or self._kept)

    def due(self, now: float) -> bool:
        """Whether something comes of `decide` though nothing has happened."""
        at = self.next()
        return at is not None and now >= at

    def bind_new(self, request: Request) -> dict[str, Binding] | None:
        """A replica for every stage; None: it has to wait, behind those that wait already for the same places.

        Raises `UnavailableError` (F4), and `OverloadedError` where it would wait and the queue is full.
        """
        self._pools.check(request.plan.names, request.shunned)
        waits = request.line in self.queue.lines or not self._kept.isdisjoint(request.plan.names)
        bound = None if waits else self._bind(request)
        if bound is None and len(self.queue) >= self._limits.max_queued:
            raise OverloadedError(
                f"the queue is full: {len(self.queue)} wait already (router.max_queued); try again shortly"
            )
        return bound

    def wait(self, request: Request, now: float) -> None:
        priority = request.submit.priority
        self.queue.add(request.id, request.line, priority=priority, arrived=request.arrived, since=now)

    def lack(self, request: Request) -> dict[str, Value]:
        """Why one that waits has no replicas: the stage that has none for it, or those before it (T2)."""
        queue, plan = self.queue, request.plan
        lack = self._pools.lack(plan.names, request.submit.affinity, request.shunned)
        where: dict[str, Value] = {"why": "behind"} if lack is None else dict(zip(_LACK, lack, strict=True))
        since_ns = int(queue.since(request.id) * 1e9)
        return where | {"ahead": queue.ahead(request.id), "since_ns": since_ns}

    def decide(self, now: float) -> Iterator[tuple[Request, dict[str, Binding] | UnavailableError]]:
        """In the order of the queue: those that have their replicas now, which have left it, and those that nobody will
        serve, which are to be taken out of it. Who starves for want of room keeps places."""
        kept = self._kept = set()
        before, self._unserved = self._unserved, {}
        patience = STARVING * self._limits.priority_age_s
        for line, waiting in self.queue.heads():
            request = self._requests.get(waiting.request_id)
            assert request is not None
            try:
                self._pools.check(line.stages, line.shunned)
            except UnavailableError as error:
                since = before.get(line, now)
                if now >= self._until(since):
                    yield request, error
                else:
                    self._unserved[line] = since
                continue
            if not kept.isdisjoint(line.stages):
                continue
            bound = self._bind(request)
            if bound is not None:
                self.queue.remove(request.id)
                yield request, bound
            elif now - waiting.since > patience and self._pools.serves(line.stages, line.shunned):
                kept.update(line.stages)

    def next(self) -> float | None:
        """When it is due, if ever."""
        return min(map(self._until, self._unserved.values()), default=None)

    def forgive(self, slept_s: float) -> None:
        """The router itself was stopped for so long."""
        for line in self._unserved:
            self._unserved[line] += slept_s

    def _until(self, unserved_since: float) -> float:
        return unserved_since + (self._limits.redrive_wait_s if self._limits.redrive == "wait" else 0.0)

    def _bind(self, request: Request) -> dict[str, Binding] | None:
        plan = request.plan
        idle = [name for name in plan.names if plan.incoming[name]]
        key, affinity = request.attempt.key, request.submit.affinity
        return self._pools.bind(key, plan.names, affinity, idle=idle, shunned=request.shunned)
