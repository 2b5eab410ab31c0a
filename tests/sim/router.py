"""The router: its core, and what `omnizmq.router.server` does for it with sockets, done with the network's ways."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from omnizmq import protocol as wire
from omnizmq.router import messages as msg
from omnizmq.router.core import RouterCore
from omnizmq.workers.ring import Peer
from sim.network import Way

if TYPE_CHECKING:
    from sim.world import World

MIN_TICK_S = 0.001


class SimRouter:
    """`workers` and `clients` are the ways to those that it can reach, as far as it has heard."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.core = RouterCore(world.config)
        self.workers: dict[Peer, Way] = {}
        self.clients: dict[bytes, Way] = {}
        self._inputs: deque[msg.Input] = deque()
        self._busy = False
        self._tick_at = math.inf
        self.stopped_until = 0.0

    def handle(self, event: msg.Input) -> None:
        """What an effect brings about is fed after all effects."""
        self._inputs.append(event)
        if not self._busy and self.stopped_until <= self.world.schedule.now:
            self._handle_all()

    @property
    def waiting(self) -> int:
        """Inputs that it has not looked at."""
        return len(self._inputs)

    def stops(self, seconds: float) -> None:
        """For so long (SIGSTOP)."""
        self.stopped_until = self.world.schedule.now + seconds
        self.world.schedule.at(self.stopped_until, self._handle_all)

    def _handle_all(self) -> None:
        self._busy = True
        while self._inputs:
            event = self._inputs.popleft()
            effects = self.core.handle(event, self.world.schedule.now)
            self.world.checks.on_router(event, effects)
            for effect in effects:
                self._carry_out(effect)
        self._busy = False
        self._arm()

    def _arm(self) -> None:
        wanted = self.core.next_tick()
        if wanted < self._tick_at:
            self._tick_at = wanted
            self.world.schedule.at(max(wanted, self.world.schedule.now + MIN_TICK_S), self._tick, wanted)

    def _tick(self, wanted: float) -> None:
        if wanted == self._tick_at:
            self._tick_at = math.inf
            self.handle(msg.Ticked())

    def _carry_out(self, effect: msg.Effect) -> None:
        world = self.world
        match effect:
            case msg.ToClient():
                way = self.clients.get(effect.client)
                if way is not None:
                    way.put(effect.frame)
            case msg.ToWorker():
                self._to_worker(effect)
            case msg.KillReplica():
                world.reasons.on_kill((effect.replica, effect.incarnation), effect.why)
                world.schedule.after(0.0, world.dies, (effect.replica, effect.incarnation), effect.why)
            case msg.RestartReplica():
                world.schedule.after(0.0, world.restarts, (effect.replica, effect.incarnation))
            case msg.ReplicaReady():
                world.obey(world.supervisor.ready(effect.replica, world.schedule.now))
            case msg.ReplicaFailed():
                incarnation = self.core.pools.replicas[effect.replica].incarnation
                world.schedule.after(0.0, world.dies, (effect.replica, incarnation), effect.why)
            case msg.Drained():
                world.checks.on_drained()
            case _:
                pass  # records, and what loads, are for people

    def _to_worker(self, effect: msg.ToWorker) -> None:
        way = self.workers.get((effect.replica, effect.incarnation))
        if way is not None:
            way.put(effect.frame)
        elif isinstance(effect.frame, wire.SubmitStage | wire.FeedStage):
            about = effect.frame.request_id, effect.frame.attempt
            self.handle(msg.WorkerUnreachable(effect.replica, effect.incarnation, *about, "it is not connected"))

    # --- Workers ---------------------------------------------------------------------------------------------------

    def worker_joins(self, peer: Peer) -> None:
        worker = self.world.workers[peer]
        way = Way(
            self.world.network,
            f"router {peer[0]}#{peer[1]}",
            wire.router_to_worker,
            worker.router_sent,
            stopped_until=lambda: worker.stopped_until,
        )
        self.workers[peer] = way
        self.handle(msg.WorkerJoined(*peer, f"ipc://{peer[0]}-{peer[1]}"))

    def worker_sent(self, peer: Peer, frame: wire.WorkerToRouter) -> None:
        self.handle(msg.WorkerSent(*peer, frame))

    def worker_left(self, peer: Peer) -> None:
        """Its socket says so, sooner or later than the launcher."""
        self.workers.pop(peer, None)

    def worker_exited(self, peer: Peer, why: str) -> None:
        self.handle(msg.ReplicaExited(*peer, why))

    # --- Clients ---------------------------------------------------------------------------------------------------

    def client_joins(self, identity: bytes, way: Way) -> None:
        self.clients[identity] = way
        limits = self.world.config.router
        stages = [wire.StageInfo(stage.name, stage.final_output) for stage in self.core.pipeline.stages]
        window, window_bytes = limits.output_window, limits.output_window_mib << 20
        way.put(wire.Welcome(wire.VERSION, "sim", 1, stages, limits.max_prompt_bytes, window, window_bytes, 10.0))

    def client_sent(self, identity: bytes, frame: wire.ClientToRouter) -> None:
        if identity not in self.clients:
            return  # it would be refused
        if isinstance(frame, wire.Bye):
            self.client_gone(identity, "said goodbye")
        else:
            self.handle(msg.ClientSent(identity, frame))

    def client_gone(self, identity: bytes, why: str) -> None:
        if self.clients.pop(identity, None) is not None:
            self.handle(msg.ClientGone(identity, why))

    def give_up(self, identity: bytes) -> None:
        """Its queue was full: what waited for it is lost, and it hears a goodbye."""
        way = self.clients.get(identity)
        if way is not None:
            self.client_gone(identity, "the client does not read")
            way.put(wire.Bye("the client does not read"))
