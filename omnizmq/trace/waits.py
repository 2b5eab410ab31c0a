"""What a request that has not ended waits for, and whose move that is (T2).

Rules that are asked in turn (`_RULES`); the first that knows answers. What the stages wait for among each other is
`blame`'s matter. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from omnizmq.trace.blame import Blame, doing
from omnizmq.trace.causes import Cause
from omnizmq.trace.facts import Fact
from omnizmq.trace.live import Queued
from omnizmq.trace.scene import Node, Scene
from omnizmq.trace.timeline import names, number, text
from omnizmq.trace.wait import Wait, of_router


def awaited(scene: Scene) -> Wait:
    for rule in _RULES:
        wait = rule(scene)
        if wait is not None:
            return wait
    return _terminal(scene, scene.last_ns, "every stage has reported")


def _terminal(scene: Scene, since_ns: int, why: str, node: Node | None = None, cause: str = Cause.TERMINAL) -> Wait:
    sentence = f"{why}; waiting for the router's terminal {scene.since(since_ns)}"
    return of_router(cause, "the router's terminal", since_ns, sentence, node)


def _arrival(scene: Scene) -> Wait | None:
    """Nothing but the client's own word, or nothing at all."""
    timeline = scene.timeline
    if scene.live is not None or any(fact.event not in ("asked", "refused", "dropped") for fact in timeline.facts):
        return None
    asked = timeline.first("asked")
    if asked is None:
        sentence = "nothing is known of this request yet"
        return Wait(Cause.CLIENT, "the first fact", "client", timeline.zero_ns, sentence)
    return of_router(Cause.CLIENT, "the router to receive it", asked.at_ns, "asked, and not yet received by the router")


def _ended(scene: Scene) -> Wait | None:
    """The router says so, and its fact has not been read yet."""
    if scene.live is None or scene.live.phase != "ended":
        return None
    return _terminal(scene, scene.last_ns, "the router has ended it, and the trace does not tell how yet")


def _abort(scene: Scene) -> Wait | None:
    asked = scene.timeline.latest(scene.attempt, "abort_asked")
    if asked is None and (scene.live is None or scene.live.phase != "aborting"):
        return None
    since_ns = scene.last_ns if asked is None else asked.at_ns
    why = f"abort asked at {scene.at(since_ns)}{_asker(asked)}"
    left = {fact.stage for fact in scene.timeline.of(scene.attempt, "left_behind")}
    pending = [node for node in scene.unfinished if node.submitted and node.name not in left]
    if not pending:
        return _terminal(scene, since_ns, why)
    worst = min(pending, key=lambda node: (not node.silent, node.engine[0] not in ("stepping", "computing")))
    who = ", ".join(node.who for node in pending)
    sentence = f"{why}; waiting for {who} to confirm{doing(scene, worst)}"
    what = f"{who} to confirm the abort"
    return Wait(Cause.ABORT_CONFIRM, what, worst.who, since_ns, sentence, worst.name, worst.replica)


def _asker(asked: Fact | None) -> str:
    why = None if asked is None else text(asked.detail, "why")
    if why is None or why == "caller":
        return ""
    return " by an operator (another client)" if why == "operator" else f" ({why})"


# --- Replicas ------------------------------------------------------------------------------------------------------


def _queue(scene: Scene) -> Wait | None:
    live, queued = scene.live, scene.timeline.latest(scene.attempt, "queued")
    if live is None and any(node.story.at_ns for node in scene.nodes.values()):
        return None
    if live is not None and live.phase != "waiting":
        return None
    now = live.queue if live is not None else None
    if now is None and queued is not None:
        now = Queued(
            text(queued.detail, "why") or "",
            text(queued.detail, "lacks"),
            text(queued.detail, "replicas"),
            number(queued.detail, "ahead"),
            queued.at_ns,
        )
    if now is None:
        sentence = "received, and not yet given to any replica"
        return of_router(Cause.QUEUE, "the router to choose its replicas", scene.last_ns, sentence)
    return _queued(scene, now)


_LACKS = {
    "no_replica": ("a live replica", "no replica{of} is live"),
    "starting": ("a replica that is ready", "the replicas{of} are loading or restarting"),
    "drained": ("a replica in service", "an operator has drained the replicas{of}"),
    "full": ("a replica with room", "all places{of} are taken"),
    "behind": ("its turn", "others wait before it for the same places"),
}


def _queued(scene: Scene, queue: Queued) -> Wait:
    of = f" of {queue.lacks}" if queue.lacks else ""
    what, lack = _LACKS.get(queue.why, ("a replica with room", "no replica{of} has room"))
    since_ns = queue.since_ns or scene.last_ns
    # `replace`, because a name may hold anything that `format` would take for its own.
    sentence = lack.replace("{of}", of) + (f" ({queue.replicas})" if queue.replicas else "")
    if queue.ahead:
        sentence += f"; {queue.ahead} wait{'s' if queue.ahead == 1 else ''} before it"
    again = _again(scene)
    if again is None:
        text_, cause, replica = f"queued {scene.since(since_ns)}: {sentence}", Cause.QUEUE, None
    else:
        why, lost = again
        replica = lost if lost and lost.startswith(f"{queue.lacks}/") else None
        text_ = f"attempt {scene.attempt}, {why}, is queued {scene.since(since_ns)}: {sentence}"
        cause = Cause.REDRIVE
    what = what if what == "its turn" else what.replace("replica", f"replica{of}", 1)
    return Wait(cause, what, _who_has_to_move(queue), since_ns, text_, queue.lacks, replica)


def _who_has_to_move(queue: Queued) -> str:
    """So that it gets its places: the replica where the stage has one alone, else any of the stage's."""
    if queue.why == "drained":
        return "operator"
    if not queue.lacks or queue.why not in _LACKS:
        return "router"
    alone = queue.replicas is not None and ";" not in queue.replicas  # `talker/0 ready, 1/1 in flight; talker/1 …`
    first = (queue.replicas or "").partition(" ")[0]
    return first if alone and first.startswith(f"{queue.lacks}/") else queue.lacks


def _again(scene: Scene) -> tuple[str, str | None] | None:
    """Why this is not the first attempt, and the replica that was lost. None: it is the first."""
    if scene.attempt < 2:
        return None
    redriven = scene.timeline.latest(scene.attempt, "redriven")
    lost = scene.timeline.latest(scene.attempt - 1, "replica_lost")
    why = redriven and text(redriven.detail, "why")
    return f"because {why}" if why else "after a failure", None if lost is None else text(lost.detail, "replica")


# --- Ends ----------------------------------------------------------------------------------------------------------


def _failure(scene: Scene) -> Wait | None:
    for node in scene.nodes.values():
        at_ns, code = node.story.failed_ns, node.story.error_code
        if at_ns is not None and code is not None:
            return _terminal(scene, at_ns, f"{node.who} failed with {code} at {scene.at(at_ns)}", node, code)
    return None


def _withheld(scene: Scene) -> Wait | None:
    """Every final output has ended; somebody's report is missing."""
    withheld = scene.timeline.latest(scene.attempt, "withheld")
    if withheld is None and not scene.complete:
        return None
    named = () if withheld is None else names(withheld.detail, "stages")
    pending = [node for node in scene.unfinished if node.submitted and (not named or node.name in named)]
    if not pending:
        return None
    since_ns = scene.last_ns if withheld is None else withheld.at_ns
    blame = Blame(scene)
    root = blame.worst([blame.of(node.name) for node in pending])
    reports = " and ".join(f"{node.who}'s" for node in pending) + " report"
    if root.cause not in (Cause.ENGINE, Cause.INPUT, Cause.REPORT, Cause.SLOT):
        return replace(root, text=f"withheld, outputs complete and {reports} missing: {root.text}")
    node = next((node for node in pending if node.name == root.stage), pending[0])
    sentence = f"withheld: outputs complete, waiting for {reports} {scene.since(since_ns)}{doing(scene, node)}"
    return Wait(Cause.REPORT, reports, node.who, since_ns, sentence, node.name, node.replica)


def _stages(scene: Scene) -> Wait | None:
    """The root of what the last stages wait for."""
    last = scene.last
    if not last:
        return None
    blame = Blame(scene)
    return blame.worst([blame.of(node.name) for node in last])


_RULES: tuple[Callable[[Scene], Wait | None], ...] = (
    _arrival,
    _ended,
    _abort,
    _queue,
    _failure,
    _withheld,
    _stages,
)
