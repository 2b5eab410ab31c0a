"""Clients and their callers: the table is `omnizmq.frontend.core`'s, what `omnizmq.frontend.client` does around it is
done here, and callers read as the story says.

A caller that never reads takes everything at last, when its request has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnizmq import protocol as wire
from omnizmq.errors import OmnizmqError
from omnizmq.frontend.core import ClientTable, Credit, Signal, Wake
from sim.network import Way
from sim.schedule import share
from sim.story import Request

if TYPE_CHECKING:
    from sim.world import World

PAUSE_S = 2.5
"""How long a pausing reader pauses."""


class Caller:
    """`async for` over one request, or `list` of it."""

    def __init__(self, client: SimClient, request: Request) -> None:
        self.client = client
        self.request = request
        self.done = False
        self.reading = True
        self._due = False
        self._items = 0
        self._held = False  # by a caller that has taken something and is not back
        self._abandoned = False

    def asks(self) -> None:
        request, client = self.request, self.client
        client.table.open(request.id, request.external, request.kind)
        client.to_router.put(
            wire.Submit(
                request_id=request.id,
                external_id=request.external,
                prompt=wire.Prompt(request.external, None, None),
                modalities=request.modalities,
                params={},
                priority=request.priority,
                deadline_s=request.deadline_s,
                affinity=request.affinity,
                window=client.world.story.limits.output_window,
                at_ns=round(client.world.schedule.now * 1e9),
                traceparent=None,
            )
        )
        self.reading = request.reader != "never"

    def wake(self) -> None:
        if self._due or self.done:
            return
        if not self.reading and not self.client.table.has_ended(self.request.id):
            return
        self._due = True
        self.client.world.schedule.after(self._pace(), self._read)

    def _pace(self) -> float:
        request = self.request
        if request.reader == "slow":
            return request.read_s
        if request.reader == "pausing" and self._items == request.reads:
            return PAUSE_S
        return 0.0002 * share(self.client.world.story.seed, f"{request.id} reads {self._items}")

    def _read(self) -> None:
        self._due = False
        client, request_id = self.client, self.request.id
        if self.done or not client.alive:
            return
        if self._abandoned:
            self._wait_for_end()
            return
        if self._held:
            self._held = False
            client.obey(client.table.back(request_id))
        item = client.table.take(request_id)
        if item is None:
            return
        self._items += 1
        client.world.checks.on_item(self.request, item)
        if isinstance(item, OmnizmqError) or item.finished:
            self.done = True
            return
        self._held = True
        self.wake()

    def abort(self) -> None:
        if self.done or not self.client.alive:
            return
        request = self.request
        if request.abort == "cancel":
            self._abandon()
            return
        self.client.world.reasons.on_abort(request)
        self.client.call(request.external if request.abort == "external" else request.id)

    def _abandon(self) -> None:
        """As `AsyncClient.generate` does when its caller is cancelled."""
        self._abandoned = self.reading = True
        if not self.client.table.has_ended(self.request.id):
            self.client.world.reasons.on_abort(self.request)
            self.client.to_router.put(wire.Abort(0, self.request.id))
        self._wait_for_end()

    def _wait_for_end(self) -> None:
        if self.client.table.has_ended(self.request.id):
            self.client.table.forget(self.request.id)
            self.done = True


class SimClient:
    """One process with one connection."""

    def __init__(self, world: World, n: int) -> None:
        self.world = world
        self.identity = f"client{n}".encode()
        self.alive = True
        self.gone_at: float | None = None
        self.table = ClientTable()
        self.callers: dict[str, Caller] = {}
        name = self.identity.decode()
        self.to_router = Way(world.network, f"{name} router", wire.client_to_router, self._router_hears)
        self.from_router = Way(world.network, f"router {name}", wire.router_to_client, self._hears)
        self._calls = 0
        self.unanswered: set[int] = set()
        world.router.client_joins(self.identity, self.from_router)

    def asks(self, request: Request) -> None:
        if not self.alive or self.gone_at is not None:
            return
        caller = self.callers[request.id] = Caller(self, request)
        self.world.reasons.on_ask(request)
        caller.asks()

    def aborts(self, request: Request) -> None:
        caller = self.callers.get(request.id)
        if caller is not None and self.gone_at is None:
            caller.abort()

    def call(self, either_id: str) -> None:
        self._calls += 1
        self.unanswered.add(self._calls)
        self.to_router.put(wire.Abort(self._calls, either_id))

    def orders(self, frame: wire.Operate) -> None:
        if self.alive and self.gone_at is None:
            self.unanswered.add(frame.call)
            self.to_router.put(frame)

    def _router_hears(self, frame: wire.ClientToRouter) -> None:
        self.world.router.client_sent(self.identity, frame)

    def _hears(self, frame: wire.RouterToClient) -> None:
        if not self.alive:
            return
        if isinstance(frame, wire.AbortAck | wire.Operated):
            self.unanswered.discard(frame.call)
        elif isinstance(frame, wire.Delivery) and self.callers[frame.request_id].request.kind == "final":
            self.world.checks.on_kept(frame.request_id, frame.stage)
        self.obey(self.table.handle(frame))

    def obey(self, signals: list[Signal]) -> None:
        for signal in signals:
            if isinstance(signal, Wake):
                caller = self.callers[signal.request_id]
                caller.wake()
            elif isinstance(signal, Credit):
                self.to_router.put(wire.Consumed(signal.request_id, signal.stage, signal.outputs))

    # --- Its end ---------------------------------------------------------------------------------------------------

    def killed(self) -> None:
        """Its process: what it had sent arrives in part, and the router hears of its end later."""
        world = self.world
        self.alive = False
        self.gone_at = world.schedule.now
        cut = world.schedule.now + (0.0, 0.001, 1.0)[int(3 * share(world.story.seed, f"{self.identity!r} cut"))]
        self.to_router.cut(cut)
        self.from_router.cut(0)
        told = 0.001 + 0.05 * share(world.story.seed, f"{self.identity!r} told")
        world.schedule.after(told, world.router.client_gone, self.identity, "its process ended")

    def says_goodbye(self) -> None:
        """In good order, with requests that have not ended."""
        self.gone_at = self.world.schedule.now
        self.to_router.put(wire.Bye("the client closes"))
        self.obey(self.table.lost("this client is closed"))
        self.from_router.cut(0)

    def is_dropped(self) -> None:
        self.gone_at = self.world.schedule.now
        self.world.router.give_up(self.identity)
