"""Whose move it is in a chain of stages of which each waits for another (T2).

`Blame.of` follows a stage's wait to its root: a consumer without a chunk to its producer, a producer without credit or
room to its consumer, until a stage that waits for none: its engine computes, is stuck in a step or makes nothing, its
caller has to read, its worker does not answer. A stage that is met twice ends the walk. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from omnizmq.trace.causes import Cause
from omnizmq.trace.facts import Fact
from omnizmq.trace.live import Caller, EdgeOut, WorkerAnswer
from omnizmq.trace.scene import LONG_NS, Node, Scene
from omnizmq.trace.timeline import number, text
from omnizmq.trace.wait import Wait, of_node, of_router
from omnizmq.trace.words import duration

Seen = tuple[str, ...]


class _Full(NamedTuple):
    """An edge over which nothing may go: to whom, why (credit, ring, line), since when, and what of it is held."""

    target: str
    why: str
    since_ns: int
    held: str


def doing(scene: Scene, node: Node) -> str:
    """What the stage's engine does now, as the end of a sentence; empty where nobody knows."""
    if node.silent:
        return ", and its worker does not answer"
    state, since_ns = node.engine
    if state == "stepping" and not scene.moves(since_ns):
        return f", and its engine has been in one step {scene.since(since_ns)}{_for_others(node)}"
    return (_FOR_OTHERS if node.for_others else _DOING).get(state, "")


_DOING = {
    "stepping": ", and its engine computes",
    "computing": ", and its engine queues or computes it in threads of its own",
    "idle": ", and its engine is idle",
}
_FOR_OTHERS = _DOING | {
    "stepping": ", and its engine computes other requests",
    "computing": ", and its engine queues or computes other requests in threads of its own",
}


def _for_others(node: Node) -> str:
    return ", which is for other requests" if node.for_others else ""


class Blame:
    """In one scene."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def of(self, stage: str, seen: Seen = ()) -> Wait:
        """The root of what this stage waits for. `seen`: the stages that wait for it already."""
        node = self._scene.nodes[stage]
        seen = (*seen, stage)
        if node.live is not None and node.live.state in ("stuck", "dead"):
            return self._lost(node)
        if node.silent:
            return self._silent(node)
        if not node.submitted:
            return self._unsubmitted(node, seen)
        if not node.registered:
            return self._unregistered(node)
        if node.answer is None:
            return self._by_facts(node, seen)
        return self._by_answer(node, node.answer, seen)

    def worst(self, waits: Sequence[Wait]) -> Wait:
        """Of several, the one that does not move; of those, the one that has lasted longest."""
        return min(waits, key=lambda wait: (wait.moves, wait.since_ns))

    # --- Replicas --------------------------------------------------------------------------------------------------

    def _lost(self, node: Node) -> Wait:
        state = node.live.state if node.live else "dead"
        how = "is dead" if state == "dead" else "is given up as stuck or silent, and being killed"
        since_ns = (node.live and node.live.heard_ns) or node.moved_ns
        sentence = f"{node.who} {how}; the router is to give the request up or drive it again"
        return of_router(Cause.REPLICA_LOST, "the router to act on the loss of a replica", since_ns, sentence, node)

    def _silent(self, node: Node) -> Wait:
        heard_ns = (node.live and node.live.heard_ns) or node.moved_ns
        sentence = f"the worker of {node.who} does not answer; it was last heard of {self._ago(heard_ns)}"
        return of_node(Cause.WORKER_SILENT, f"the worker of {node.who} to answer", node, heard_ns, sentence)

    def _unsubmitted(self, node: Node, seen: Seen) -> Wait:
        """Its consumers register first (S1); the source of a relay edge ends first."""
        scene = self._scene
        first = [one for one in scene.targets(node.name) if one.submitted and not one.registered]
        first = first or [one for one in scene.sources(node.name) if one.pending]
        first = [one for one in first if one.name not in seen]
        if first:
            roots = [self._behind(self.of(one.name, seen), f"{node.name} is not submitted before") for one in first]
            return self.worst(roots)
        since_ns = node.story.at_ns.get("bound") or self._scene.last_ns
        sentence = f"{node.name} is not submitted, {scene.since(since_ns)}"
        return of_router(Cause.REGISTRATION, f"the router to submit {node.name}", since_ns, sentence, node)

    def _unregistered(self, node: Node) -> Wait:
        at_ns = node.story.at_ns.get("submitted") or self._scene.last_ns
        sentence = f"{node.who} was given the request at {self._scene.at(at_ns)} and has not registered it"
        return of_node(Cause.REGISTRATION, f"{node.name}'s registration", node, at_ns, sentence)

    # --- By the worker's answer ------------------------------------------------------------------------------------

    def _by_answer(self, node: Node, answer: WorkerAnswer, seen: Seen) -> Wait:
        since_ns = answer.since_ns or node.moved_ns
        match answer.state:
            case "GONE":
                sentence = f"{node.who} has done with the request; its report has not reached the router"
                return of_node(Cause.REPORT, f"{node.name}'s report", node, since_ns, sentence)
            case "ABORTING":
                sentence = f"{node.who} aborts {self._scene.since(since_ns)}{doing(self._scene, node)}"
                return of_node(Cause.ABORT_CONFIRM, f"{node.who} to confirm the abort", node, since_ns, sentence)
            case "WAITING_FOR_CHUNK" | "WAITING_FOR_INPUT":
                return self._starved(node, seen)
            case "QUEUED":
                return self._step(node) or self._slot(node, answer, since_ns)
            case "PARKED" | "PAUSED" | "SENDING":
                return self._held(node, answer, seen)
            case _:
                return self._running(node, answer, seen)

    def _slot(self, node: Node, answer: WorkerAnswer, since_ns: int) -> Wait:
        sentence = (
            f"{node.who} has input and waits for a slot {self._scene.since(since_ns)}: "
            f"{answer.running} of {answer.slots} slots are taken by other requests"
        )
        return of_node(Cause.SLOT, f"a slot in {node.who}", node, since_ns, sentence)

    def _held(self, node: Node, answer: WorkerAnswer, seen: Seen) -> Wait:
        """It may not go on, or what it made may not go out: a consumer's move, or the caller's."""
        caller = answer.caller
        if caller is not None and caller.full:
            return self._unread(node, caller.since_ns or answer.since_ns or 0, _unread_count(caller))
        full = [edge for edge in answer.edges if edge.full and not (edge.ended or edge.closed)]
        if full:
            return self.worst([self._parked(node, _full(edge), seen) for edge in full])
        since_ns = answer.since_ns or node.moved_ns
        sentence = f"{node.who} has made all and not sent it all, {self._scene.since(since_ns)}"
        return of_node(Cause.REPORT, f"{node.name}'s report", node, since_ns, sentence)

    def _running(self, node: Node, answer: WorkerAnswer, seen: Seen) -> Wait:
        """Its engine's move, unless that has used up all its input and more may come: then it has nothing to compute
        for this request, and what its engine does meanwhile, such as a long step, it does for others."""
        own = self._step(node) or self._computes(node, answer.moved_ns or node.moved_ns)
        open_inputs = [edge for edge in answer.inputs if edge.open]
        if not open_inputs or any(edge.taken < edge.received for edge in open_inputs) or node.output_ended:
            return own
        root = self._from_sources(node, [edge.source for edge in open_inputs], seen)
        if root is None:
            return own
        # What it was fed after its last output may be all that it needed: while its source goes on, it is the one.
        # `moved_ns` is also when it was last fed, so it is later than that if something was made since.
        made_since = (_output_ns(node) or answer.moved_ns or 0) > max(edge.last_ns for edge in open_inputs)
        in_vain = not made_since and not self._scene.moves(node.moved_ns)
        return own if root.moves and in_vain else root

    # --- Inputs ----------------------------------------------------------------------------------------------------

    def _starved(self, node: Node, seen: Seen) -> Wait:
        answer = node.answer
        if answer is not None:
            open_inputs = [edge for edge in answer.inputs if edge.open]
            empty = [edge for edge in open_inputs if not edge.received]
            lacking = [edge.source for edge in empty or open_inputs]
        else:
            lacking = [source.name for source in self._scene.sources(node.name) if not source.finished]
        root = self._from_sources(node, lacking, seen)
        if root is not None:
            return root
        although = [source.name for source in self._scene.sources(node.name) if source.finished]
        since_ns = node.story.at_ns.get("registered") or node.moved_ns
        since_ns = (answer and answer.since_ns) or since_ns
        sentence = f"{node.who} holds the request without input {self._scene.since(since_ns)}"
        if although:
            sentence += f", although {' and '.join(although)} finished"
        return of_node(Cause.INPUT, f"{node.name}'s input", node, since_ns, sentence)

    def _from_sources(self, node: Node, lacking: Sequence[str], seen: Seen) -> Wait | None:
        """The worst of what the sources wait for. None: there is none that could still send."""
        roots = [
            self._from_source(node, self._scene.nodes[source], seen)
            for source in lacking
            if source in self._scene.nodes and source not in seen and not self._scene.nodes[source].finished
        ]
        return self.worst(roots) if roots else None

    def _from_source(self, node: Node, source: Node, seen: Seen) -> Wait:
        lost = self._on_the_way(node, source)
        if lost is not None:
            return lost
        root = self.of(source.name, seen)
        if root.cause == Cause.CREDIT and root.stage == node.name:
            return root  # it has chunks that it has not taken
        what = f"the {'next' if node.has_input else 'first'} chunk from {source.name}"
        by_facts = self._scene.live is None and not source.sent_ns  # they know of its first chunk, and of no other
        if by_facts and source.has_given and root.stage == source.name and root.cause == Cause.ENGINE:
            root = replace(root, cause=Cause.INPUT, what=what)
        return self._behind(root, f"{node.who} waits for {what}")

    def _on_the_way(self, node: Node, source: Node) -> Wait | None:
        """Chunks that were sent a while ago and have not come."""
        edge = next((edge for edge in source.answer.edges if edge.target == node.name), None) if source.answer else None
        entry = next((edge for edge in node.answer.inputs if edge.source == source.name), None) if node.answer else None
        if edge is None or entry is None or edge.sent <= entry.received or self._scene.moves(edge.last_ns):
            return None
        sentence = (
            f"{source.who} sent {edge.sent} chunks, the last at {self._scene.at(edge.last_ns)}, "
            f"and {entry.received} have reached {node.who}"
        )
        return of_node(Cause.INPUT, f"{source.name}'s chunks to arrive", node, edge.last_ns, sentence)

    # --- Consumers -------------------------------------------------------------------------------------------------

    def _parked(self, node: Node, full: _Full, seen: Seen) -> Wait:
        """Whoever keeps the consumer from taking; the consumer itself where it goes on, or waits for this stage."""
        scene, consumer = self._scene, self._scene.nodes.get(full.target)
        who = full.target if consumer is None else consumer.who
        lack = "credit" if full.why == "credit" else "room in the ring"
        trail = f"{node.who} is parked {scene.since(full.since_ns)}: no {lack} for {who} ({full.held})"
        if consumer is not None:
            root = self._at_consumer(consumer, seen)
            if root is not None:
                return self._behind(root, trail)
        cause = Cause.CREDIT if full.why == "credit" else Cause.RING
        text_ = trail + (doing(scene, consumer) if consumer else "")
        replica = None if consumer is None else consumer.replica
        return Wait(cause, f"{lack} for {who}", who, full.since_ns, text_, full.target, replica)

    def _at_consumer(self, consumer: Node, seen: Seen) -> Wait | None:
        """What keeps it. None: nothing but that it has to take what it was sent."""
        if consumer.name in seen:
            return self._silent(consumer) if consumer.silent else self._step(consumer)
        root = self.of(consumer.name, seen)
        its_own = root.stage == consumer.name and (root.moves or root.cause == Cause.INPUT)
        return None if its_own else root

    # --- Engines ---------------------------------------------------------------------------------------------------

    def _step(self, node: Node) -> Wait | None:
        """Nothing comes out of an engine before its step ends."""
        state, since_ns = node.engine
        if state != "stepping" or self._scene.now_ns is None or self._scene.moves(since_ns):
            return None
        sentence = f"the engine of {node.who} has been in one step {self._scene.since(since_ns)}"
        sentence += _for_others(node)
        return of_node(Cause.STUCK_STEP, f"the engine of {node.who} to end its step", node, since_ns, sentence)

    def _computes(self, node: Node, made_ns: int) -> Wait:
        scene = self._scene
        if node.output_ended:
            ended_ns = node.story.at_ns.get("output_ended", made_ns)
            sentence = f"the output of {node.who} ended at {scene.at(ended_ns)}, and its report is awaited"
            return of_node(Cause.REPORT, f"{node.name}'s report", node, ended_ns, sentence + doing(scene, node))
        what = f"{node.name}'s next output"
        if not node.has_given:
            has = "has been in its engine" if node.for_others else "has computed"
            rest = f"{has} {scene.since(made_ns)} without a first output{doing(scene, node)}"
            what = f"{node.name}'s first output"
        elif node.answer is None:
            return self._gives(node, made_ns)
        else:
            output_ns = _output_ns(node)
            made_ns = output_ns or made_ns
            if not scene.moves(made_ns):
                rest = f"has made nothing more {scene.since(made_ns)}{_made(node)}{doing(scene, node)}"
            elif output_ns is not None:
                rest = f"goes on: its last output was {self._ago(made_ns)}{_made(node)}"
            else:
                rest = f"was fed or at work {self._ago(made_ns)}{_made(node)}{doing(scene, node)}"
        return of_node(Cause.ENGINE, what, node, made_ns, f"{node.who} {rest}", moves=scene.moves(made_ns))

    def _gives(self, node: Node, made_ns: int) -> Wait:
        """By facts alone: of its chunks the last is known at best when they have been counted."""
        to_the_end = self._scene.moved_to_the_end(made_ns)
        if not node.gave_ns or to_the_end:
            began_ns = node.story.at_ns.get("first_output", made_ns)
            rest = f"gives output since {self._scene.at(began_ns)} and has not finished"
        else:
            rest = f"has made nothing more {self._scene.since(made_ns)}"
        what, text_ = f"{node.name}'s next output", f"{node.who} {rest}{doing(self._scene, node)}"
        return of_node(Cause.ENGINE, what, node, made_ns, text_, moves=self._scene.moves(made_ns))

    def _unread(self, node: Node, since_ns: int, how_many: str) -> Wait:
        sentence = f"{node.who} waits for the caller to read {self._scene.since(since_ns)}{how_many}"
        what = f"the caller to read {node.name}'s outputs"
        return Wait(Cause.CALLER_READS, what, "client", since_ns, sentence, node.name, node.replica)

    # --- By facts alone --------------------------------------------------------------------------------------------

    def _by_facts(self, node: Node, seen: Seen) -> Wait:
        scene, story = self._scene, node.story
        if node.paused_ns is not None:
            return self._unread(node, node.paused_ns, "")
        parked = [(target, fact) for target, fact in node.parked.items() if target in scene.nodes]
        parked = [(target, fact) for target, fact in parked if not scene.nodes[target].finished]
        if parked:
            full = [_Full(to, text(fact.detail, "why") or "", fact.at_ns, _held(fact)) for to, fact in parked]
            return self.worst([self._parked(node, one, seen) for one in full])
        if not node.has_input:
            return self._starved(node, seen)
        if story.step == "input_ready":
            since_ns = story.at_ns["input_ready"]
            sentence = f"{node.who} has input {scene.since(since_ns)} and its engine has not begun"
            return self._step(node) or of_node(Cause.SLOT, f"{node.who}'s engine", node, since_ns, sentence)
        return self._speaking(node, seen)

    def _speaking(self, node: Node, seen: Seen) -> Wait:
        """It computes. Once it has given something, its sources come first while they have not finished, unless they
        are known to have sent more since."""
        own = self._step(node) or self._computes(node, node.moved_ns)
        sources = [source for source in self._scene.sources(node.name) if not source.finished]
        if not node.has_given or node.output_ended:
            return own
        later = any(node.gave_ns and source.sent_ns - node.gave_ns > LONG_NS for source in sources)
        root = None if later else self._from_sources(node, [source.name for source in sources], seen)
        return root or own

    # --- Words -----------------------------------------------------------------------------------------------------

    def _behind(self, root: Wait, trail: str) -> Wait:
        return replace(root, text=f"{root.text}; {trail}")

    def _ago(self, at_ns: int) -> str:
        age_ns = self._scene.age_ns(at_ns)
        return f"at {self._scene.at(at_ns)}" if age_ns is None else f"{duration(age_ns / 1e6)} ago"


def _output_ns(node: Node) -> int | None:
    """Its last output, where its worker tells: `moved_ns` is later where the stage was fed since, or at work in vain.
    Then its chunks count, unless it gives its caller outputs beside them."""
    answer = node.answer
    if answer is None:
        return None
    if not answer.inputs:
        return max(answer.moved_ns or 0, node.sent_ns) or None
    return (node.sent_ns or None) if answer.caller is None else None


def _made(node: Node) -> str:
    """How much it has given until now, as far as its worker says."""
    if node.answer is None:
        return ""
    counts = [f"{edge.sent} chunks to {edge.target}" for edge in node.answer.edges]
    if node.answer.caller is not None or node.answer.outputs:
        counts.insert(0, f"{node.answer.outputs} outputs")
    return f" (so far {', '.join(counts)})" if counts else ""


def _unread_count(caller: Caller) -> str:
    """And which of its two windows is full."""
    unread = caller.sent - caller.consumed
    by_bytes = unread < caller.window and 0 < caller.window_bytes <= caller.unread_bytes
    window = f"{caller.window_bytes} bytes" if by_bytes else caller.window
    return f": {unread} outputs ({caller.unread_bytes} bytes) are unread, its window has {window}"


def _full(edge: EdgeOut) -> _Full:
    held = f"{edge.sent - edge.consumed} of {edge.window} chunks are not consumed"
    if edge.full != "credit":
        held = f"{edge.held_bytes} of {edge.quota_bytes} bytes of the ring are held"
        held += f", most by {', '.join(edge.holders)}" if edge.holders else ""
    return _Full(edge.target, edge.full or "", edge.full_since_ns or edge.last_ns, held)


def _held(fact: Fact) -> str:
    """The same of a `parked` fact."""
    if text(fact.detail, "why") == "credit":
        return f"{number(fact.detail, 'unconsumed') or 0} chunks are not consumed"
    held, quota = (number(fact.detail, key) or 0 for key in ("held_bytes", "quota_bytes"))
    return f"{held} of {quota} bytes of the ring are held"
