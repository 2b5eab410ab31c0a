"""From a seed to its story (`tell`): small graphs of any shape, few requests, mostly one or two things that go wrong.

Short and cheap stories find more in a minute than long ones; and among them are always some in which nothing goes
wrong, some in which everything does, and some with many requests.
"""

from __future__ import annotations

import random
from typing import Literal

import msgspec

from sim.story import (
    RING_CHUNK,
    Abort,
    ClientEnd,
    Closing,
    Edge,
    Fault,
    FaultKind,
    Final,
    Kill,
    Limits,
    Net,
    Order,
    Reader,
    Request,
    Stage,
    Stop,
    Story,
)

_SHAPES: list[tuple[str, list[str]]] = [
    ("a", []),
    ("ab", ["ab"]),
    ("ab", ["ab"]),
    ("ab", ["ab"]),
    ("abc", ["ab", "bc"]),
    ("abc", ["ab", "bc"]),
    ("abc", ["ac", "bc"]),
    ("abc", ["ab", "ac"]),
    ("abc", ["ab", "bc", "ac"]),
    ("abcd", ["ab", "bc", "cd"]),
    ("abcd", ["ab", "ac", "bd", "cd"]),
    ("abcd", ["ab", "bc", "bd", "cd"]),
]
_KINDS: list[FaultKind] = [
    "add", "feed", "raise", "error", "wrong", "unwritable", "silent", "hang",
    "crash", "crash", "slow", "late", "late", "fickle",
]  # fmt: skip


class _Teller:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = random.Random(seed)

    def maybe(self, part: float) -> bool:
        return self.dice.random() < part

    def between(self, low: float, high: float) -> float:
        return round(low + self.dice.random() * (high - low), 4)

    def story(self) -> Story:
        deadly = self.maybe(0.4)
        stages, edges = self._graph(many=self.maybe(0.75 if deadly else 0.3))
        clients = self.dice.choice([1, 1, 2, 3])
        busy = self.dice.choice([0.02, 0.1, 0.4])
        many = 20 if self.maybe(0.01) else self.dice.choice([1, 1, 2, 2, 2, 3, 3, 4, 5, 8])
        unruly = self.maybe(0.6)
        requests = [self._request(n, clients, stages, busy, unruly=unruly) for n in range(1, many + 1)]
        if self.maybe(0.15):
            requests = self._in_two_waves(requests)
        names = [stage.name for stage in stages]
        faults = [self._fault(requests, names) for _ in range(self.dice.choice([0, 0, 0, 1, 1, 2, 3]))]
        kills = [self._kill(stages, busy) for _ in range(self.dice.choice([0, 1, 1, 2, 3]) if deadly else 0)]
        orders = [self._order(n % clients, stages, busy) for n in range(2) if self.maybe(0.08)]
        if orders and self.maybe(0.5):  # once it has come back
            kills.append(self._kill_again(orders[0], stages))
            requests = self._in_two_waves(requests)
        ends = [self._end(n, busy) for n in range(clients) if unruly and self.maybe(0.15)]
        if deadly:
            faults += self._deadly_faults(requests, stages)
        limits = self._limits()
        stops = [self._stop(stages, limits, busy)] if self.maybe(0.07) else []
        if stops:  # whoever is stopped cannot hear that a caller has read
            limits = msgspec.structs.replace(limits, slow_reader_grace_s=6.0)
        return Story(
            seed=self.seed,
            stages=stages,
            edges=edges,
            limits=limits,
            clients=clients,
            requests=self._bounded(requests, faults, edges),
            faults=faults,
            kills=kills,
            ends=ends,
            orders=sorted(orders, key=lambda order: order.at),
            stops=stops,
            closings=[self._closing(busy)] if self.maybe(0.05) else [],
            net=self._net(),
        )

    def _graph(self, *, many: bool) -> tuple[list[Stage], list[Edge]]:
        dice = self.dice
        names, arrows = dice.choice(_SHAPES)
        rings = self.maybe(0.25)
        stages = []
        for name in names:
            sink = not any(arrow[0] == name for arrow in arrows)
            sounds: list[Final] = ["text", "audio"]
            final = dice.choice(sounds) if sink or self.maybe(0.4) else None
            inflight = dice.choice([1, 2, 3, 8])
            stages.append(
                Stage(
                    name=name,
                    final=final,
                    replicas=dice.choice([1, 2, 2, 2]) if many else 1,
                    inflight=inflight,
                    registered=inflight * dice.choice([1, 2, 4]),
                    ready=dice.choice(["all", "all", "any"]),
                    policy=dice.choice(["round_robin", "least_loaded", "least_loaded", "affinity"]),
                    step_s=dice.choice([0.0002, 0.001, 0.004]),
                )
            )
        edges = [
            Edge(
                source=arrow[0],
                target=arrow[1],
                mode=dice.choice(["chunk", "chunk", "chunk", "payload", "relay"]),
                window=dice.choice([1, 2, 3, 8]),
                ring=RING_CHUNK * dice.choice([2, 3, 5]) if rings else 0,
            )
            for arrow in arrows
        ]
        return stages, edges

    def _limits(self) -> Limits:
        dice = self.dice
        return Limits(
            heartbeat_interval_s=1.0,
            heartbeat_timeout_s=dice.choice([2.5, 4.0]),
            abort_timeout_s=dice.choice([0.05, 0.5, 2.0]),
            terminal_grace_s=dice.choice([0.0, 0.05, 0.5, 2.0]),
            max_queued=dice.choice([0, 2, 100, 100]),
            output_window=dice.choice([1, 2, 3, 8, 20]),
            slow_reader_grace_s=dice.choice([1.0, 2.0, 6.0]),
            redrive=dice.choice(["never", "other", "other", "wait"]),
            redrive_wait_s=dice.choice([0.2, 2.0, 20.0]),
            max_attempts=dice.choice([1, 2, 3, 3]),
            priority_age_s=dice.choice([0.05, 1.0, 5.0]),
            restart_delay_s=dice.choice([0.0, 0.05, 0.5]),
            max_restart_delay_s=1.0,
            input_timeout_s=dice.choice([0.8, 2.0]),
            step_timeout_s=dice.choice([1.5, 3.0]),
        )

    def _request(self, n: int, clients: int, stages: list[Stage], busy: float, *, unruly: bool) -> Request:
        dice = self.dice
        at = self.between(0, busy)
        abort: Abort | None = dice.choice(["external", "request", "cancel"]) if unruly and self.maybe(0.25) else None
        reader: Reader = "quick"
        if unruly and self.maybe(0.35):
            reader = dice.choice(["slow", "slow", "pausing", "never"])
        return Request(
            n=n,
            client=dice.randrange(clients),
            at=at,
            external=dice.choice(["twin", "twin", "twins"]) if self.maybe(0.2) else f"r{n}",
            modalities=self._modalities(stages),
            kind=dice.choice(["delta", "delta", "delta", "final"]),
            size=dice.choice([0, 1, 5, 20, 40]),
            pieces=dice.choice([1, 2, 3, 4, 6]),
            stops_after=dice.choice([0, 1, 2]) if self.maybe(0.15) else None,
            priority=dice.choice([0, 0, 0, 1, -1, 5]),
            affinity=dice.choice(["x", "y"]) if self.maybe(0.2) else None,
            deadline_s=self.between(0.002, 0.3) if unruly and self.maybe(0.1) else None,
            reader=reader,
            read_s=dice.choice([0.005, 0.05, 0.3, 2.5]),
            reads=dice.choice([0, 1, 2, 4]),
            abort=abort,
            abort_at=at + self.between(0, busy),
        )

    def _modalities(self, stages: list[Stage]) -> list[str] | None:
        there: list[str] = sorted({stage.final for stage in stages if stage.final is not None})
        if self.maybe(0.5):
            return None
        if self.maybe(0.02):
            return ["smell"]
        return [self.dice.choice(there)] if self.maybe(0.7) else there

    def _fault(self, requests: list[Request], names: list[str]) -> Fault:
        dice = self.dice
        return Fault(
            request=dice.choice(requests).n,
            stage=dice.choice(names),
            kind=dice.choice(_KINDS),
            at=dice.choice([1, 1, 2, 3, 5]),
            seconds=dice.choice([0.02, 0.2, 0.9, 5.0]),
            times=dice.choice([1, 1, 1, 2, 99]),
        )

    def _deadly_faults(self, requests: list[Request], stages: list[Stage]) -> list[Fault]:
        """In the middle of what is said; and then, perhaps, another attempt that says something else."""
        replace = msgspec.structs.replace
        names = [stage.name for stage in stages]
        crash = replace(self._fault(requests, names), kind="crash", times=1)
        if self.maybe(0.4):
            return []
        if self.maybe(0.6):
            return [crash]
        fickle = [replace(crash, stage=stage.name, kind="fickle") for stage in stages if stage.final is not None]
        return [replace(crash, at=self.dice.choice([2, 3])), *fickle]

    def _kill(self, stages: list[Stage], busy: float) -> Kill:
        stage = self.dice.choice(stages)
        replica = f"{stage.name}/{self.dice.randrange(stage.replicas)}"
        told = self.dice.choice([0.0, 0.001, 0.02, 0.3])
        return Kill(self.between(0, 1.5 * busy), replica, told, self.maybe(0.05))

    def _end(self, client: int, busy: float) -> ClientEnd:
        return ClientEnd(self.between(0, 1.5 * busy), client, self.dice.choice(["killed", "killed", "bye", "dropped"]))

    def _stop(self, stages: list[Stage], limits: Limits, busy: float) -> Stop:
        """Shorter than is taken for a death, or much longer; the router never so long that its workers give it up."""
        stage = self.dice.choice(stages)
        if self.maybe(0.4):
            return Stop(self.between(0, 1), "router", round(self.between(0.1, 0.95) * limits.heartbeat_timeout_s, 4))
        who = f"{stage.name}/{self.dice.randrange(stage.replicas)}"
        part = self.dice.choice([0.02, 0.2, 0.55, 2.5])
        return Stop(self.between(0, busy), who, round(part * limits.heartbeat_timeout_s, 4))

    def _closing(self, busy: float) -> Closing:
        return Closing(self.between(0, 2 * busy), self.dice.choice([0.0, 0.02, 3.0]))

    def _order(self, client: int, stages: list[Stage], busy: float) -> Order:
        stage = self.dice.choice(stages)
        action: Literal["drain", "resume", "restart"] = self.dice.choice(["drain", "resume", "restart", "restart"])
        target = f"{stage.name}/{self.dice.randrange(stage.replicas)}"
        if action == "restart" and self.maybe(0.5):
            target = stage.name
        timeout_s = self.dice.choice([0.02, 0.5, 3.0])
        return Order(self.between(0, busy), client, action, target, timeout_s, action == "restart" and self.maybe(0.4))

    def _in_two_waves(self, requests: list[Request]) -> list[Request]:
        """The second when those that died in the first are back."""
        wave = self.between(0.5, 2.5)
        return [
            msgspec.structs.replace(request, at=round(request.at + wave, 4), abort_at=round(request.abort_at + wave, 4))
            if request.n % 2
            else request
            for request in requests
        ]

    def _kill_again(self, order: Order, stages: list[Stage]) -> Kill:
        kill = self._kill([stage for stage in stages if order.target.startswith(stage.name)], 1)
        return msgspec.structs.replace(kill, at=self.between(0.5, 2.5))

    def _bounded(self, requests: list[Request], faults: list[Fault], edges: list[Edge]) -> list[Request]:
        """Where a stage falls silent that nobody waits for over an edge, nothing but a deadline ends the request."""
        leads = {edge.source for edge in edges}
        relays = {edge.source for edge in edges if edge.mode == "relay"}
        bounded = []
        for request in requests:
            mute = {fault.stage for fault in faults if fault.request == request.n and fault.kind == "silent"}
            unreported = {fault.stage for fault in faults if fault.request == request.n and fault.kind == "late"}
            partly = request.modalities is not None or request.stops_after is not None
            waits = mute - leads or unreported & relays or (mute and partly)
            deadline_s = request.deadline_s or (3.0 if waits else None)
            bounded.append(msgspec.structs.replace(request, deadline_s=deadline_s))
        return bounded

    def _net(self) -> Net:
        dice = self.dice
        return Net(
            base_s=0.0001,
            spread_s=dice.choice([0.0005, 0.003, 0.02]),
            stall=dice.choice([0.0, 0.02, 0.1]),
            stall_s=dice.choice([0.02, 0.15]),
            repeats=dice.choice([0.0, 0.0, 0.05, 0.3]),
            repeat_s=dice.choice([0.001, 0.05, 1.0]),
            garbage=dice.choice([0.0, 0.0, 0.02]),
        )


def tell(seed: int) -> Story:
    """The story of a seed."""
    return _Teller(seed).story()
