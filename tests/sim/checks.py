"""What must hold, whatever the story: at every step, and when all is quiet.

- C4: one end a request, a terminal or a refusal, and nothing after it. I1, A2: it is of the request's own last stage.
- P4, C3, F2: what a caller has of a stage is at every moment the beginning of what that stage says, over all attempts,
  and of no other stage; with a success it is the whole. The stage's end is marked once, behind its last content.
- C6: the usage names every stage that ran, or says that it is incomplete.
- F1, F2, F4, B1, B2, R4: no request ends in anything but success without a reason of its own (`reasons`), and an error
  names the stage at fault. Whoever could be admitted is. Aborts, graces and deadlines take as long as they may.
- B1: what a caller has not read is at most its window, what a consumer has not taken at most its edge's.
- B3, A6: when it is quiet nothing is left in any table, and no request waits for ever.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from omnizmq import protocol as wire
from omnizmq.errors import OmnizmqError
from omnizmq.frontend.output import RequestOutput
from omnizmq.router import messages as msg
from omnizmq.trace.facts import Fact
from omnizmq.workers.ring import Peer
from sim import engine
from sim.fate import Fate, Violation, fate_of, must
from sim.reasons import Reasons
from sim.story import Request

if TYPE_CHECKING:
    from sim.world import World

SUCCESSES = ("stop", "length")
LATE_S = 0.01
"""A clock that ticks at least a millisecond apart may be so late."""

_PROMPT = {"abort_asked": "abort_timeout_s", "withheld": "terminal_grace_s"}
"""Facts of a request after which it ends within a limit; a deadline is a limit too."""


class Checks:
    """Of one world. The world tells what happens."""

    def __init__(self, world: World) -> None:
        self.world = world
        story = world.story
        self.fates = {request.id: fate_of(request, story) for request in story.requests}
        self.reasons = Reasons(world, self.fates)
        self.sleeps = any(stop.who == "router" for stop in story.stops)
        self.paused = False  # anything ever was
        self.drained = 0
        self.fickle = {fault.request for fault in story.faults if fault.kind == "fickle"}
        limits = story.limits
        self._patience = LATE_S + (limits.redrive_wait_s if limits.redrive == "wait" else 0.0)
        self._windows = {(edge.source, edge.target): edge.window for edge in story.edges}
        self._credited: dict[tuple[Peer, Peer, str, int], int] = defaultdict(int)

    def violated(self, name: str, text: str) -> None:
        """Kept until the present step is over: engines and cores must not catch it."""
        self.world.violate(Violation(name, text))

    # --- The router ------------------------------------------------------------------------------------------------

    def on_router(self, event: msg.Input, effects: list[msg.Effect]) -> None:
        """After each event, before its effects are carried out."""
        core = self.world.router.core
        must(core.counters.router_errors == 0, "router error", event, effects)
        must(core.counters.bad_frames == 0, "a frame that cannot be", event, effects)
        if isinstance(event, msg.ClientSent) and isinstance(event.frame, wire.Submit):
            self._asked(self.fates[event.frame.request_id], effects)
        if isinstance(event, msg.ClientGone):
            self._client_gone()
        if core.queue:
            must(not self._could_go(), "waits although there is room", event, effects)
            waited = self.reasons.longest_unserved()
            must(self.sleeps or waited <= self._patience, "waits too long for a replica", event, waited)
        for effect in effects:
            if isinstance(effect, msg.ToClient):
                self._to_client(effect.frame)
            elif isinstance(effect, msg.ToWorker) and isinstance(effect.frame, wire.SubmitStage):
                self._submitted((effect.replica, effect.incarnation), effect.frame)
            elif isinstance(effect, Fact):
                self._recorded(effect)
        self.reasons.look_at_queue()

    def _client_gone(self) -> None:
        """A7: what nobody waits for any more is aborted."""
        for request in self.world.router.core.requests:
            phase = request.attempt.lifecycle.phase.value
            must(request.client is not None or phase in ("aborting", "ended"), "goes on for nobody", request.id)

    def _asked(self, fate: Fate, effects: list[msg.Effect]) -> None:
        refused = any(isinstance(effect, msg.ToClient) and isinstance(effect.frame, wire.Refused) for effect in effects)
        must(refused or not self.reasons.is_unserved(fate), "taken in although nobody serves it", fate.request)

    def _could_go(self) -> bool:
        """Whether whoever is first in the queue would find a place at every stage (S4, B2)."""
        core = self.world.router.core
        head = next(core.queue.heads(), None)
        request = None if head is None else core.requests.get(head[1].request_id)
        if request is None or request.submit.affinity is not None:
            return False
        return all(
            any(
                one.state == "ready" and one.free > 0 and (one.id, one.incarnation) not in request.shunned
                for one in core.pools.by_stage[name]
            )
            for name in request.plan.names
        )

    def _recorded(self, fact: Fact) -> None:
        fate, core, schedule = self.fates[fact.request_id], self.world.router.core, self.world.schedule
        limits = self.world.story.limits
        if fact.event == "bound":
            replica = core.pools.replicas[str(fact.detail["replica"])]
            peer = (replica.id, replica.incarnation)
            fate.bound.add(peer)
            must(peer not in fate.lost, "bound to what it was lost with", fact, peer)
            first = not any(edge.target == replica.stage for edge in self.world.story.edges)
            room = len(replica.inflight) <= self.world.stages[replica.stage].inflight
            must(room or self.paused or not first, "more bound than can be computed", fact, replica.inflight)
        elif fact.event == "redriven":
            fate.attempt = fact.attempt
            fate.submitted.clear()
            request = core.requests.get(fact.request_id)
            lost = None if request is None or request.lost is None else request.lost.replica
            fate.lost |= {peer for peer in fate.bound & self.reasons.dead if peer[0] == lost}
        elif fact.event == "received":
            fate.taken_in = True
            if fate.request.deadline_s is not None:
                schedule.after(fate.request.deadline_s + LATE_S, self._ends_by_now, fact)
        elif fact.event in _PROMPT:
            schedule.after(getattr(limits, _PROMPT[fact.event]) + LATE_S, self._ends_by_now, fact)

    def _ends_by_now(self, fact: Fact) -> None:
        """A5, A6, C5: what waits for other stages waits for so long and no longer."""
        fate = self.fates[fact.request_id]
        there = self.world.router.core.requests.get(fact.request_id)
        over = there is None or there.client is None or bool(fate.ends)
        otherwise = self.sleeps or (fact.event != "abort_asked" and fate.aborted)  # an abort has a limit of its own
        must(over or otherwise, f"too long since {fact.event}", fact)

    def _submitted(self, peer: Peer, frame: wire.SubmitStage) -> None:
        fate = self.fates[frame.request_id]
        stage = peer[0].partition("/")[0]
        must(stage in fate.plan, "stage out of plan", frame, stage)
        must(not fate.ends, "submitted after its end", frame, stage, fate.ends)
        must(fate.attempt <= self.world.story.limits.max_attempts, "too many attempts", frame)
        must(peer in fate.bound, "submitted without a binding", frame, peer)
        fate.submitted.add(stage)
        replica = self.world.router.core.pools.replicas[peer[0]]
        most = self.world.stages[stage].registered
        must(len(replica.inflight) <= most, "too many bound", peer, replica.inflight, most)
        must(frame.attempt == fate.attempt, "submitted in another attempt", frame, fate.attempt)

    def _to_client(self, frame: wire.RouterToClient) -> None:
        match frame:
            case wire.Delivery():
                self._delivered(self.fates[frame.request_id], frame)
            case wire.Terminal():
                self._ended(self.fates[frame.request_id], frame)
            case wire.Refused():
                self._refused(self.fates[frame.request_id], frame)
            case _:
                pass

    def _delivered(self, fate: Fate, frame: wire.Delivery) -> None:
        stage = frame.stage
        must(not fate.ends, "delivered after the end", frame, fate.ends)
        must(fate.finals.get(stage) == frame.modality, "not asked for", frame)
        must(stage not in fate.marked, "delivered after the stage's end", frame)
        text = _text(frame.content)
        must(text is not None, "wrong kind of content", frame)
        fate.sent[stage] += text or ""
        must(self._begins(fate, stage, fate.sent[stage]), "wrong content", frame, fate.sent[stage])
        if frame.stage_finished:
            fate.marked.add(stage)
        fate.unread[stage] += 1
        if frame.content is not None:
            window = self.world.story.limits.output_window
            must(fate.unread[stage] <= window, "window exceeded", frame, fate.unread[stage], window)

    def _begins(self, fate: Fate, stage: str, text: str) -> bool:
        return any(whole.startswith(text) for whole in self._wholes(fate, stage))

    def _wholes(self, fate: Fate, stage: str) -> list[str]:
        versions = self.world.story.limits.max_attempts if fate.request.n in self.fickle else 1
        return [engine.said(fate.request, stage, version) for version in range(versions)]

    def _ended(self, fate: Fate, frame: wire.Terminal) -> None:
        must(not fate.ends, "two ends", frame, fate.ends)
        last = list(fate.finals)[-1]
        must((frame.stage, frame.modality) == (last, fate.finals[last]), "wrong last stage", frame)
        must((frame.error is not None) == (frame.finish_reason == "error"), "no error in it", frame)
        self._check_usage(fate, frame)
        if frame.error is not None:
            fate.ends.append(frame.error.code)
            must(self.reasons.may_fail_with(fate, frame.error.code), f"no reason for {frame.error.code}", frame)
            must(self.reasons.is_to_blame(fate, frame.error), "another stage blamed", frame)
        elif frame.finish_reason == "abort":
            fate.ends.append("abort")
            must(fate.aborted, "no reason for abort", frame)
            unmarked = [stage for stage, text in fate.sent.items() if text and stage not in fate.marked]
            must(not unmarked, "partial output without its end", frame, unmarked)
        else:
            fate.ends.append("success")
            must(frame.finish_reason in SUCCESSES, "unknown finish reason", frame)
            hurt = self.world.story.stops or self.world.story.closings
            unhurt = not (hurt or fate.struck or fate.bound & self.reasons.dead or fate.request.deadline_s)
            complete = not frame.usage_incomplete or not unhurt or self.world.story.limits.terminal_grace_s < 2
            must(complete, "usage missing without a reason", frame)
            for stage in fate.finals:
                whole = fate.sent[stage] in self._wholes(fate, stage) and stage in fate.marked
                must(whole, "success without the whole", frame, stage, fate.sent[stage])

    def _check_usage(self, fate: Fate, frame: wire.Terminal) -> None:
        told = {*frame.usage, *frame.usage_incomplete}
        book = self.world.book
        ran = {name for name in fate.plan if book.units.get((frame.request_id, fate.attempt, name))}
        ran |= fate.submitted
        must(ran <= told <= set(fate.plan), "usage of a stage missing", ran, frame)
        overlap = frame.usage.keys() & set(frame.usage_incomplete)
        must(not overlap, "usage told and missing", overlap, frame)
        for name, usage in frame.usage.items():
            units = book.units.get((frame.request_id, fate.attempt, name), 0)
            must(usage.get("units", units) == units, "wrong usage", name, units, frame)

    def _refused(self, fate: Fate, frame: wire.Refused) -> None:
        must(not fate.ends and not fate.bound, "refused after all", frame)
        fate.ends.append(frame.error.code)
        must(self.reasons.may_fail_with(fate, frame.error.code), f"no reason for {frame.error.code}", frame)

    def on_drained(self) -> None:
        self.drained += 1
        must(bool(self.world.story.closings) and self.drained == 1, "drained without having been asked")

    # --- Workers ---------------------------------------------------------------------------------------------------

    def on_report(self, peer: Peer, frame: wire.WorkerToRouter) -> None:
        """What a gate says to the router."""
        self.paused = self.paused or isinstance(frame, wire.StagePaused)
        if isinstance(frame, wire.StageFinished) and frame.error is not None:
            bad = frame.error.code in ("incomplete_input", "protocol_error")
            must(not bad, f"a stage failed with {frame.error.code}", peer, frame)

    def on_edge(self, producer: Peer, consumer: Peer, frame: object) -> None:
        """What one of them sends the other."""
        match frame:
            case wire.ChunkFrame() | wire.RingChunk():
                edge = (producer[0].partition("/")[0], consumer[0].partition("/")[0])
                unread = frame.seq - self._credited[(producer, consumer, frame.request_id, frame.attempt)]
                must(unread <= self._windows[edge], "edge window exceeded", edge, frame, unread)
            case wire.EdgeCredit():
                self._credited[(producer, consumer, frame.request_id, frame.attempt)] = frame.consumed
            case _:
                pass

    # --- Callers ---------------------------------------------------------------------------------------------------

    def on_item(self, request: Request, item: RequestOutput | OmnizmqError) -> None:
        """Taken by a caller."""
        fate = self.fates[request.id]
        must(not fate.read_ends, "more after the end", item)
        if isinstance(item, OmnizmqError):
            fate.read_ends.append(item.code)
            return
        identity = (item.request_id, item.external_id)
        must(identity == (request.id, request.external), "another's output", item)
        if item.finished:
            content = item.text is not None or item.audio is not None
            must(not content and not item.stage_finished, "content in the terminal", item)
            must(item.stage == list(fate.finals)[-1], "wrong last stage", item)
            fate.read_ends.append("abort" if item.finish_reason == "abort" else "success")
            return
        fate.read[item.stage] += (item.text or "") + ("" if item.audio is None else engine.heard(item.audio))
        if request.kind == "delta":
            fate.unread[item.stage] -= 1

    def on_kept(self, request_id: str, stage: str) -> None:
        """A delivery that goes into a whole counts as read when it arrives."""
        self.fates[request_id].unread[stage] -= 1

    # --- The end ---------------------------------------------------------------------------------------------------

    def at_the_end(self) -> None:
        world = self.world
        for client in world.clients:
            if client.gone_at is not None:
                continue
            must(not len(client.table), "left in a client's table", f"{list(client.table._records)}")
            must(not client.unanswered, "a call without an answer", f"{client.identity!r}: {client.unanswered}")
            for request_id, caller in client.callers.items():
                self._heard_of(self.fates[request_id], cancelled=caller._abandoned)
        must(self.drained == len(world.story.closings), "a drain without an end")
        left = self._left_in_router()
        for worker in world.workers.values():
            left += worker.leftovers() if worker.alive else []
        must(not left, "something is left", ", ".join(left))

    def _heard_of(self, fate: Fate, *, cancelled: bool) -> None:
        where = f"{fate.request.id}: {fate.ends} were sent, {fate.read_ends} were read"
        must(len(fate.ends) == 1, "not exactly one end", where)
        if cancelled:
            return
        must(fate.read_ends == fate.ends, "not the end that was sent", where)
        for stage, text in fate.sent.items():
            whole = stage in fate.marked or fate.request.kind == "delta"
            must(fate.read[stage] == text or not whole, "not read as sent", f"{where}: {stage}")

    def _left_in_router(self) -> list[str]:
        core = self.world.router.core
        replicas = core.pools.replicas.values()
        left = {
            "requests": len(core.requests),
            "in the queue": len(core.queue),
            "timers": len(core.state.timers),
            "paused requests": len(core.state.paused),
            "external ids": len(core.requests._by_external),
            "orders": len(core.operations),
            "attempts bound": sum(len(replica.inflight) for replica in replicas),
            "attempts waiting": sum(len(replica.waiting) for replica in replicas),
            "leftovers": sum(len(replica.leftovers) for replica in replicas),
        }
        return [f"the router has {count} {what}" for what, count in left.items() if count]


def _text(content: wire.Content | None) -> str | None:
    """None: it cannot be read."""
    if content is None:
        return ""
    if isinstance(content, wire.Text):
        return content.text
    return engine.heard(np.frombuffer(content.data, "<f4")) if content.sample_rate == engine.RATE else None
