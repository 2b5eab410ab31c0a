"""One story, told to the cores: `tell_all` returns what did not hold, or None."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from omnizmq import protocol as wire
from omnizmq.config import Config, EdgeConfig, RouterConfig, StageConfig
from omnizmq.launcher.supervisor import Order, Spawn, Supervisor
from omnizmq.router import messages as msg
from omnizmq.workers.ring import Peer
from sim.checks import Checks
from sim.clients import SimClient
from sim.engine import Book
from sim.fate import Violation
from sim.network import Log, Network
from sim.plane import Plane
from sim.router import SimRouter
from sim.schedule import START, Schedule, share
from sim.story import Kill, Limits, Stop, Story
from sim.worker import SimWorker

QUIET_WITHIN_S = 90.0
"""Virtual seconds after the last thing that goes wrong; a request that lives then waits for ever."""

LOOK_S = 0.4
LOAD_S = 0.3
"""What a worker takes to load, at most."""


def config_of(story: Story) -> Config:
    limits = story.limits
    own = {name: getattr(limits, name) for name in Limits.__struct_fields__}
    input_timeout_s, step_timeout_s = own.pop("input_timeout_s"), own.pop("step_timeout_s")
    return Config(
        name="sim",
        stage=[
            StageConfig(
                name=stage.name,
                engine="simulated",
                final_output=stage.final,
                replicas=stage.replicas,
                max_inflight=stage.inflight,
                max_registered=stage.registered,
                policy=stage.policy,
                ready=stage.ready,
                step_timeout_s=step_timeout_s,
            )
            for stage in story.stages
        ],
        edge=[
            EdgeConfig(
                source=edge.source,
                target=edge.target,
                mode=edge.mode,
                window_chunks=edge.window,
                input_timeout_s=input_timeout_s,
            )
            for edge in story.edges
        ],
        router=RouterConfig(**own),
    )


class World:
    """`workers` are all incarnations that ever were."""

    def __init__(self, story: Story, log: Log | None = None) -> None:
        self.story = story
        self.schedule = Schedule()
        self.network = Network(story, self.schedule, log)
        self.stages = {stage.name: stage for stage in story.stages}
        self.by_id = {request.id: request for request in story.requests}
        self.config = config_of(story)
        self.book = Book()
        self.planes: dict[Peer, Plane] = {}
        self.workers: dict[Peer, SimWorker] = {}
        self.supervisor = Supervisor(self.config)
        self.down: set[Peer] = set()  # processes that have ended
        self._violation: Violation | None = None
        self._fails_start: set[str] = set()
        self.router = SimRouter(self)
        self.checks = Checks(self)
        self.reasons = self.checks.reasons
        self.clients = [SimClient(self, n) for n in range(story.clients)]

    # --- Telling ---------------------------------------------------------------------------------------------------

    def tell_all(self) -> Violation | None:
        try:
            self._begin()
            self._go_on()
        except Violation as violation:
            return violation
        except Exception as error:  # noqa: BLE001 (whatever a core raises is a finding)
            last = traceback.extract_tb(error.__traceback__)[-1]
            name = f"{type(error).__name__} in {last.name}"
            return Violation(name, "".join(traceback.format_exception(error)))
        finally:
            for worker in self.workers.values():
                worker.plane.close()
        return None

    def _begin(self) -> None:
        """All replicas are ready, then the story begins."""
        self.router.handle(msg.Ticked())
        self.obey(self.supervisor.start(self.schedule.now), at_once=True)
        for request in self.story.requests:
            client = self.clients[request.client]
            self.schedule.at(START + request.at, client.asks, request)
            if request.abort is not None:
                self.schedule.at(START + request.abort_at, client.aborts, request)
        for kill in self.story.kills:
            self.schedule.at(START + kill.at, self._kill, kill)
        for n, order in enumerate(self.story.orders):
            frame = wire.Operate(1000 + n, order.action, order.target, order.timeout_s, order.force)
            self.schedule.at(START + order.at, self.clients[order.client].orders, frame)
        for stop in self.story.stops:
            self.schedule.at(START + stop.at, self._stop, stop)
        for closing in self.story.closings:
            self.schedule.at(START + closing.at, self.router.handle, msg.DrainAsked())
            stopping = msg.StopAsked("the deployment is stopping")
            self.schedule.at(START + closing.at + closing.stops, self.router.handle, stopping)
        for end in self.story.ends:
            self.schedule.at(START + end.at, self._end_client, end.client, end.how)

    def _go_on(self) -> None:
        last = START + self.story.last_moment()
        self.schedule.at(last, self._look, last + QUIET_WITHIN_S)
        self._over = False
        step = self.schedule.step
        while not self._over:
            step()
            if self._violation is not None:
                raise self._violation

    def violate(self, violation: Violation) -> None:
        self._violation = self._violation or violation

    def note(self, who: str, what: object) -> None:
        if self.network.log is not None:
            self.network.log(who, what)

    def _look(self, until: float) -> None:
        """Whether it is quiet."""
        if not self._busy():
            self.checks.at_the_end()
            self._over = True
        elif self.schedule.now > until:
            raise Violation("waits for ever", self.where())
        else:
            self.schedule.after(LOOK_S, self._look, until)

    def _busy(self) -> bool:
        core = self.router.core
        callers = [caller for client in self.clients if client.gone_at is None for caller in client.callers.values()]
        return bool(
            self.network.flying
            or self.router.waiting
            or any(client.gone_at is None and client.unanswered for client in self.clients)
            or len(core.requests)
            or len(core.operations)
            or not all(caller.done for caller in callers)
            or any(replica.inflight for replica in core.pools.replicas.values())
            or any(worker.alive and worker.leftovers() for worker in self.workers.values())
        )

    def where(self) -> str:
        """Where everything is that has not ended."""
        lines = [f"{self.network.flying} frames are under way"] if self.network.flying else []
        for request in self.router.core.requests:
            lines += [f"attempt {n}: {attempt.lifecycle.story()}" for n, attempt in request.attempts.items()]
        for worker in self.workers.values():
            if worker.alive:
                for work in worker.gate._work.values():
                    lines.append(f"{worker.peer[0]}#{worker.peer[1]}: {work.engine_id} is {work.state.value}")
                lines += worker.leftovers()
        for client in self.clients:
            lines += [f"{name} is not done" for name, caller in client.callers.items() if not caller.done]
        lines += self.checks._left_in_router()
        return "\n  ".join(["", *lines])

    # --- Processes -------------------------------------------------------------------------------------------------

    def obey(self, orders: list[Order], *, at_once: bool = False) -> None:
        for order in orders:
            if isinstance(order, Spawn):
                self._spawn((order.replica, order.incarnation), at_once=at_once)
        due = self.supervisor.next_due()
        if due is not None:
            self.schedule.at(due + 0.01, self._restart)

    def _launcher_waits(self, call: Callable[..., None], *args: Any) -> bool:
        """It is in the router's process."""
        until = self.router.stopped_until
        if until > self.schedule.now:
            self.schedule.at(until, call, *args)
            return True
        return False

    def _restart(self) -> None:
        if not self._launcher_waits(self._restart):
            self.obey(self.supervisor.ticked(self.schedule.now))

    def _spawn(self, peer: Peer, *, at_once: bool) -> None:
        self.note(f"{peer[0]}#{peer[1]}", "is started")
        self.router.handle(msg.ReplicaStarting(*peer, 1000 + peer[1]))
        if at_once:
            self._loaded(peer)
            self.router.worker_sent(peer, wire.Heartbeat(peer[1], "idle", round(START * 1e9), "", [], 0, 0, 0))
        elif peer[0] in self._fails_start:
            self._fails_start.discard(peer[0])
            self.schedule.after(0.05, self.dies, peer, "it did not start")
        else:
            self.schedule.after(LOAD_S * share(self.story.seed, f"{peer} loads"), self._loaded, peer)

    def _loaded(self, peer: Peer) -> None:
        if peer in self.down:
            return
        worker = self.workers[peer] = SimWorker(self, peer)
        self.router.worker_joins(peer)
        worker.start()

    def _kill(self, kill: Kill) -> None:
        incarnation = self.router.core.pools.replicas[kill.replica].incarnation
        if kill.fails_start:
            self._fails_start.add(kill.replica)
        self.dies((kill.replica, incarnation), "killed", told=kill.told)

    def _stop(self, stop: Stop) -> None:
        self.note(stop.who, f"is stopped for {stop.seconds} s")
        if stop.who == "router":
            self.router.stops(stop.seconds)
            return
        worker = self.workers.get((stop.who, self.router.core.pools.replicas[stop.who].incarnation))
        if worker is not None and worker.alive:
            worker.stopped_until = self.schedule.now + stop.seconds
            if stop.seconds > self.story.limits.heartbeat_timeout_s:
                self.reasons.on_death(worker.peer)
                self.schedule.at(worker.stopped_until, self.reasons.on_silence, worker.peer)

    def dies(self, peer: Peer, why: str, told: float = 0.001) -> None:
        """At once. Its connections end, and the launcher hears of it, each in its own time."""
        if peer in self.down:
            return
        self.down.add(peer)
        self.note(f"{peer[0]}#{peer[1]}", f"dies: {why}")
        self.reasons.on_death(peer)
        worker = self.workers.get(peer)
        if worker is not None:
            worker.die()
        left = 0.001 + 0.02 * share(self.story.seed, f"{peer} left")
        self.schedule.after(left, self.router.worker_left, peer)
        self.schedule.after(0.0005 + told, self._exits, peer, why)

    def restarts(self, peer: Peer) -> None:
        """In good order: all that it has said arrives."""
        worker = self.workers.get(peer)
        if peer in self.down or worker is None:
            return
        self.down.add(peer)
        self.note(f"{peer[0]}#{peer[1]}", "is restarted")
        self.reasons.on_restart(peer)
        self.supervisor.restarting(peer[0])
        worker.ends()
        self.schedule.after(0.3, self.router.worker_left, peer)
        self.schedule.after(0.3, self._exits, peer, "restarted")

    def _exits(self, peer: Peer, why: str) -> None:
        if self._launcher_waits(self._exits, peer, why):
            return
        self.note(f"{peer[0]}#{peer[1]}", f"has been reaped: {why}")
        self.down.add(peer)
        self.router.worker_left(peer)
        self.router.worker_exited(peer, why)
        self.obey(self.supervisor.exited(peer[0], why, self.schedule.now))

    def _end_client(self, n: int, how: str) -> None:
        client = self.clients[n]
        if client.gone_at is not None:
            return
        self.note(client.identity.decode(), f"is gone: {how}")
        for caller in client.callers.values():
            self.checks.fates[caller.request.id].aborted = True
        {"killed": client.killed, "bye": client.says_goodbye, "dropped": client.is_dropped}[how]()


def run(story: Story, log: Log | None = None) -> Violation | None:
    """What did not hold when the story was told; None: all did."""
    return World(story, log).tell_all()
