"""Why a request may end in anything but success, and why a worker may be killed (F1, F2, F4, B1, B2, R4).

A reason is what the story did to it: a fault that struck it or a step that it was in, the death of an incarnation that
it was bound to, its caller's abort, end or slowness, its deadline, a full queue, a stage that nobody served. It is
taken as widely as it can be known here, and allows errors of its own kind alone.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

from omnizmq import protocol as wire
from omnizmq.router.queue import Line
from omnizmq.workers.ring import Peer
from sim.fate import Fate, must
from sim.story import FaultKind, Request

if TYPE_CHECKING:
    from sim.world import World

SLACK_S = 1e-6

_FAULT_CODES: dict[str, set[str]] = {
    "add": {"invalid_request"},
    "feed": {"stage_error"},
    "raise": {"stage_error"},
    "error": {"stage_error"},
    "wrong": {"stage_error"},
    "unwritable": {"stage_error"},
    "silent": {"input_timeout"},
    "late": {"input_timeout"},
    "fickle": {"fickle"},
    "hang": set(),
    "crash": set(),
    "slow": set(),
}


class Reasons:
    """`dead`: incarnations whose end may cost a request. Before the present event, `queued` waited, and the lines of
    `unserved` for a stage that nobody serves, each since a time."""

    def __init__(self, world: World, fates: Mapping[str, Fate]) -> None:
        self.world = world
        self.fates = fates
        self.dead: set[Peer] = set()
        self.queued = 0
        self.unserved: dict[Line, float] = {}
        self._slow = any(fault.kind == "slow" for fault in world.story.faults)

    # --- What happens ----------------------------------------------------------------------------------------------

    def on_ask(self, request: Request) -> None:
        self.fates[request.id].asked = self.world.schedule.now

    def struck(self, request_id: str, stage: str, kind: FaultKind) -> None:
        fate = self.fates[request_id]
        fate.struck = True
        for code in _FAULT_CODES[kind]:
            fate.codes[code].add(stage)

    def on_abort(self, request: Request) -> None:
        """By its caller. An external id means all that bear it (I2)."""
        for fate in self.fates.values():
            other = fate.request
            if other.id == request.id or (request.abort == "external" and other.external == request.external):
                fate.aborted = True

    def on_death(self, peer: Peer) -> None:
        self.dead.add(peer)

    def on_restart(self, peer: Peer) -> None:
        """By an operator: without force, nothing is lost."""
        bound = self.world.router.core.pools.replicas[peer[0]].inflight
        forced = any(order.force and peer[0].startswith(order.target) for order in self.world.story.orders)
        must(not bound or forced, "restarted with requests", peer, bound)
        if forced:  # also what consumers have not read yet is
            self.dead.add(peer)

    def on_kill(self, peer: Peer, why: str) -> None:
        """By the router: who lives and works is left alone (F2)."""
        worker = self.world.workers.get(peer)
        alive = worker is not None and not worker.hung and peer not in self.world.down and peer not in self.dead
        must(not alive or self._slow, "killed without a reason", peer, why)
        self.on_death(peer)

    def on_silence(self, peer: Peer) -> None:
        """It has been silent for more than twice as long as is allowed (F2)."""
        must(peer in self.world.down, "silent and left alone", peer)

    # --- What may follow -------------------------------------------------------------------------------------------

    def may_fail_with(self, fate: Fate, code: str) -> bool:
        request, world = fate.request, self.world
        match code:
            case "deadline_exceeded":
                assert fate.asked is not None
                return request.deadline_s is not None and world.schedule.now >= fate.asked + request.deadline_s
            case "unavailable":
                unserved = fate.attempt == 1 and self.is_unserved(fate)
                return world.router.core.draining or (unserved and (not fate.taken_in or self._waited_enough()))
            case "slow_reader":
                return request.reader != "quick"
            case "replica_lost":
                return "fickle" in fate.codes or self._lost_for_good(fate)
            case "overloaded":
                return max(self.queued, len(world.router.core.queue)) >= world.story.limits.max_queued
            case "invalid_request":
                return "invalid_request" in fate.codes or not fate.finals
        return code in fate.codes

    def is_to_blame(self, fate: Fate, error: wire.ErrorInfo) -> bool:
        """F1, R3: the stage at fault is named, whoever told of it first."""
        match error.code:
            case "replica_lost":
                at_fault = {peer[0].partition("/")[0] for peer in fate.bound & self.dead}
                return "fickle" in fate.codes or error.stage in at_fault
            case "slow_reader":
                return error.stage in fate.finals
            case code:
                return code not in fate.codes or error.stage in fate.codes[code]

    def is_unserved(self, fate: Fate) -> bool:
        """Some stage of the plan has no replica that the request could go to, or wait for."""
        return self._lacks(fate, fate.bound & self.dead)

    def _lacks(self, fate: Fate, lost: Container[Peer]) -> bool:
        pools = self.world.router.core.pools
        ordered = len(self.world.router.core.operations) > 0
        return any(
            not any(
                (one.state == "ready" and (one.id, one.incarnation) not in lost) or (one.returning and ordered)
                for one in pools.by_stage[name]
            )
            for name in fate.plan
        )

    def _lost_for_good(self, fate: Fate) -> bool:
        """F2: an incarnation died that it was bound to, and the policy has nothing more for it."""
        limits = self.world.story.limits
        if fate.bound.isdisjoint(self.dead):
            return False
        if limits.redrive == "never" or fate.attempt >= limits.max_attempts:
            return True
        if limits.redrive == "other":
            return self.is_unserved(fate)
        return fate.attempt > 1 and self._waited_enough()

    def look_at_queue(self) -> None:
        """After each event."""
        core, now = self.world.router.core, self.world.schedule.now
        requests = [request for request in core.requests if request.id in core.queue._line_of]
        lines = [one.line for one in requests if self._lacks(self.fates[one.id], one.shunned)]
        self.queued = len(core.queue)
        self.unserved = {line: self.unserved.get(line, now) for line in lines}

    def longest_unserved(self) -> float:
        """For how long somebody has waited for a stage that nobody serves."""
        return self.world.schedule.now - min(self.unserved.values(), default=self.world.schedule.now)

    def _waited_enough(self) -> bool:
        """F2: for a replica to come back. Those that wait for the same one do so together."""
        limits = self.world.story.limits
        return limits.redrive != "wait" or self.longest_unserved() >= limits.redrive_wait_s - SLACK_S
