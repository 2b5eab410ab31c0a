"""One worker incarnation: gate, engine thread and data plane, put together as `omnizmq.workers.worker` does.

The engine thread takes its orders some time after the gate gives them, is busy for as long as its engine says, and what
it has made is heard of later: whatever comes meanwhile overtakes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from omnizmq import protocol as wire
from omnizmq.shm.ring import RingWriter
from omnizmq.workers import messages as m
from omnizmq.workers.core import Gate
from omnizmq.workers.peers import Peers
from omnizmq.workers.ring import Peer, Share
from omnizmq.workers.runner import EngineRunner
from sim.engine import SimEngine
from sim.network import Way
from sim.plane import Plane
from sim.schedule import chance, share

if TYPE_CHECKING:
    from sim.world import World

AHEAD = 2
"""Turns of the engine thread that may be unheard (`omnizmq.workers.thread`)."""


class SimWorker:
    """`alive`: its process runs. Nothing of a dead one acts any more; what it has sent may still be under way."""

    def __init__(self, world: World, peer: Peer) -> None:
        self.world = world
        self.peer = peer
        self.alive = True
        self.stage = world.stages[peer[0].partition("/")[0]]
        self.orders: deque[m.EngineCommand] = deque()
        self.hung = False
        self.stopped_until = 0.0
        self.engine = SimEngine(
            world.story,
            self.stage,
            world.book,
            world.by_id,
            now=lambda: world.schedule.now,
            wake_at=lambda when: world.schedule.at(when, self.wake),
            violated=world.checks.violated,
            struck=world.reasons.struck,
        )
        self.gate = self._gate()
        self.runner = EngineRunner(self.engine, self._engine_clock)
        self.plane = Plane(
            world.network,
            peer,
            world.planes,
            self._ring(),
            self._peer_sent,
            world.checks.on_edge,
            lambda: self.stopped_until,
        )
        self.peers = Peers(self.plane, self.stage.name, peer[0], self._later)  # type: ignore[arg-type]
        self._name = f"{peer[0]}#{peer[1]}"
        self.to_router = Way(
            world.network, f"{self._name} router", wire.worker_to_router, self._router_hears, replays=True
        )
        self._turn_due = False
        self._asleep_until = 0.0
        self._turns = 0
        self._unheard = 0
        self._heard_at = 0.0
        self._started_ns = 0

    def _gate(self) -> Gate:
        edges, stage, limits = self.world.story.edges, self.stage, self.world.story.limits
        return Gate(
            stage.name,
            *self.peer,
            stage.ready,
            [edge.target for edge in edges if edge.source == stage.name],
            self._shares(),
            slots=stage.inflight,
            priority_age_s=limits.priority_age_s,
            reader_grace_s=limits.slow_reader_grace_s,
            input_timeouts_s={edge.source: limits.input_timeout_s for edge in edges if edge.target == stage.name},
        )

    def _shares(self) -> dict[str, Share]:
        replicas = {stage.name: stage.replicas for stage in self.world.story.stages}
        edges = [edge for edge in self.world.story.edges if edge.source == self.stage.name and edge.mode != "relay"]
        return {edge.target: Share(edge.ring, edge.ring // replicas[edge.target]) for edge in edges if edge.ring}

    def _ring(self) -> RingWriter | None:
        size = sum(one.capacity for one in self._shares().values())
        return RingWriter(size) if size else None

    # --- Its process -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """It has loaded."""
        self.beat()

    def die(self) -> None:
        """At once, with all that it has not sent, and a part of what it has."""
        self.alive = False
        self.to_router.cut(self._last_words(self.to_router.name))
        self.plane.die(self._last_words)
        self.orders.clear()

    def ends(self) -> None:
        """In good order: what it has said arrives."""
        self.alive = False
        self.plane.die(lambda _: self.world.schedule.now + 1.0)
        self.orders.clear()

    def _waits(self, call: Callable[..., None], *args: Any) -> bool:
        """Whether the process is stopped (SIGSTOP): then this happens when it goes on."""
        if self.stopped_until > self.world.schedule.now:
            self.world.schedule.at(self.stopped_until, call, *args)
            return True
        return False

    def _last_words(self, name: str) -> float:
        """Until when what was sent on this way may arrive: it may be nothing, a part, or all."""
        dice = chance(self.world.story.seed, f"{name} ends")
        return self.world.schedule.now + (0.0, 0.0005, 0.005, 1.0)[dice % 4]

    def beat(self) -> None:
        if not self.alive or self._waits(self.beat):
            return
        state, since_ns = self.runner.state
        if self.hung or self._asleep_until > self.world.schedule.now:
            state = "stepping"
            since_ns = self._started_ns
        rings = self.gate.rings()
        self.to_router.put(
            wire.Heartbeat(self.peer[1], state, since_ns, "", rings, self.gate.late, 0, self.gate.discarded)
        )
        self.handle(m.Ticked())
        self.world.schedule.after(self.world.story.limits.heartbeat_interval_s, self.beat)

    # --- The gate --------------------------------------------------------------------------------------------------

    def router_sent(self, frame: wire.RouterToWorker) -> None:
        if self.alive and not isinstance(frame, wire.Welcome | wire.Ping | wire.Refused):
            self.handle(m.RouterSent(frame))

    def _peer_sent(self, peer: Peer, frame: wire.OnEdge | wire.ConsumerToProducer, data: m.SlotData) -> None:
        self.handle(m.PeerSent(*peer, frame, data))

    def _later(self, event: m.GateEvent) -> None:
        self.world.schedule.after(0.0, self.handle, event)

    def handle(self, event: m.GateEvent) -> None:
        if not self.alive:
            return
        for command in self.gate.handle(event, round(self.world.schedule.now * 1e9)):
            if isinstance(command, m.ToRouter):
                self.world.checks.on_report(self.peer, command.frame)
                self.to_router.put(command.frame)
            elif isinstance(command, m.PlaneCommand):
                self.peers.carry_out(command)
            else:
                self.orders.append(command)
                self.wake()

    def _router_hears(self, frame: wire.WorkerToRouter) -> None:
        self.world.router.worker_sent(self.peer, frame)

    # --- The engine thread -----------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There may be something to do."""
        if self._turn_due or not self.alive or self.hung:
            return
        self._turn_due = True
        self._turns += 1
        delay = 0.0001 + 0.001 * share(self.world.story.seed, f"{self._name} turn {self._turns}") ** 2
        self.world.schedule.at(max(self.world.schedule.now, self._asleep_until) + delay, self._turn)

    def _engine_clock(self) -> int:
        return round((self.world.schedule.now + self.engine.spent) * 1e9)

    def _turn(self) -> None:
        if not self.alive or self._waits(self._turn):
            return
        if self._unheard >= AHEAD:
            self._turn_due = False  # `_heard` wakes it
            return
        self.engine.spent = 0.0
        self._started_ns = round(self.world.schedule.now * 1e9)
        events: list[m.EngineEvent] = []
        while self.orders and self.engine.fate is None:
            events += self.runner.obey(self.orders.popleft())
        made = self.runner.round()
        if self.engine.fate == "crash":
            self.world.dies(self.peer, "the engine crashed", told=0.001)
            return
        if self.engine.fate == "hang":
            self.hung = True
            return
        events += made or ()
        self._asleep_until = self.world.schedule.now + self.engine.spent
        self._turn_due = False
        if events:
            self._unheard += 1
            hop = 0.0001 + 0.0005 * share(self.world.story.seed, f"{self._name} said {self._turns}")
            self._heard_at = max(self._heard_at, self._asleep_until + hop)
            self.world.schedule.at(self._heard_at, self._heard, events)
        if made is not None:
            self.wake()

    def _heard(self, events: list[m.EngineEvent]) -> None:
        if not self.alive or self._waits(self._heard, events):
            return
        for event in events:
            self.handle(event)
        self._unheard -= 1
        self.wake()

    # --- What is left ----------------------------------------------------------------------------------------------

    def leftovers(self) -> list[str]:
        """Whatever it still holds of any request (B3)."""
        left = {
            "requests at the gate": self.gate.live,
            "requests in the runner": len(self.runner._requests),
            "requests in the engine": len(self.engine.jobs),
            "orders": len(self.orders),
            "bytes in rings": sum(use.used + use.spilled for use in self.gate.rings()),
            "requests in line for a ring": sum(map(len, self.gate._ring._lines.values())),
            "views of rings": 0 if self.plane.holds_nothing() else 1,
        }
        return [f"{self._name} has {count} {what}" for what, count in left.items() if count]
