"""How a request ended, and why: complete, failed, aborted or refused (T2). Pure.

Where its end does not say who was at fault (a deadline, an abort), it is said what was awaited when it came; by the
facts until then, and by what edges had sent until then, which is reported later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from omnizmq.protocol import Value
from omnizmq.trace.absence import absences
from omnizmq.trace.causes import Cause
from omnizmq.trace.facts import Fact
from omnizmq.trace.scene import Scene
from omnizmq.trace.timeline import Timeline, names, text
from omnizmq.trace.wait import Wait
from omnizmq.trace.waits import awaited
from omnizmq.trace.words import duration

COMPLETE = ("stop", "length")

SLOW_NS = 400_000_000
"""Who takes longer to confirm an abort was not just between two steps. Workers answer within some 50 ms."""


QUEUED_NS, QUEUED_SHARE = 50_000_000, 0.1
"""A complete request that was queued for longer than both, the share being of its whole time, was slow for that."""


@dataclass(frozen=True, slots=True)
class Ending:
    """`cause`: one of how a request has ended, or the error's code. `reason_no_output`: a `Reason`."""

    cause: str
    text: str
    stage: str | None = None
    replica: str | None = None
    reason_no_output: str | None = None


def outcome(timeline: Timeline, end: Fact, *, whole: bool) -> Ending:
    """`whole`: no row was lost, so that what is not there has not been."""
    if end.event == "refused":
        return _refused(end)
    reason = text(end.detail, "finish_reason")
    if text(end.detail, "error_code") or reason == "error":
        return _failed(timeline, end, whole=whole)
    if reason == "abort":
        return _aborted(timeline, end, whole=whole)
    return _completed(timeline, end, reason, whole=whole)


def before_end(timeline: Timeline, end: Fact) -> Timeline:
    """What was known when it was over: an abort, or a stage's failure, is where what came before stood still."""
    over_ns = _over_ns(timeline, end)
    return Timeline([fact for fact in timeline.facts if _stands(fact, over_ns, end)])


def _over_ns(timeline: Timeline, end: Fact) -> int:
    """When its abort was asked for, or else when it ended: nobody tried to go on from then on."""
    asked = timeline.first("abort_asked")
    return end.at_ns if asked is None else min(asked.at_ns, end.at_ns)


def _stands(fact: Fact, over_ns: int, end: Fact) -> bool:
    if fact is end or fact.event in ("abort_asked", "left_behind"):
        return False
    if fact.event == "edge":  # counted at the end, and about what was before
        return True
    if fact.event == "delivered" and fact.at_ns == over_ns:  # the end itself closed what the caller had of the stage
        return False
    cut_short = text(fact.detail, "error_code") or text(fact.detail, "finish_reason") == "abort"
    return fact.at_ns <= over_ns and not (fact.event == "finished" and cut_short)


def _refused(end: Fact) -> Ending:
    code, message = text(end.detail, "code"), text(end.detail, "message")
    return Ending(Cause.REFUSED, ": ".join(filter(None, ("refused", code, message))))


# --- Complete ------------------------------------------------------------------------------------------------------


def _completed(timeline: Timeline, end: Fact, reason: str | None, *, whole: bool) -> Ending:
    after = _after(timeline, end)
    after += _queued(timeline, end)
    sentence = f"complete {after}, finish reason {reason}" if reason in COMPLETE else f"ended {after}"
    stage, replica, absent = None, None, None
    if whole and reason in COMPLETE:
        found = absences(Scene(timeline))
        for absence in found:
            sentence += f"; {absence.text}"
        if found:
            absent, stage, replica = found[0].reason, found[0].stage, found[0].replica
    missing = names(end.detail, "usage_incomplete")
    if missing:
        who = [_replica(timeline, name) or name for name in missing]
        sentence += f"; the usage of {', '.join(who)} is missing"
        stage, replica = missing[0], _replica(timeline, missing[0])
    sentence += _attempts(timeline) + _left_behind(timeline)
    return Ending(Cause.COMPLETE if reason in COMPLETE else Cause.ENDED, sentence, stage, replica, absent)


def _queued(timeline: Timeline, end: Fact) -> str:
    """How much of it was waiting for replicas, in whichever attempt, where that is a good part of the whole."""
    found = []
    for attempt in timeline.attempts:
        queued = next(timeline.of(attempt, "queued"), None)
        bound = next(timeline.of(attempt, "bound"), None)
        took_ns = bound.at_ns - queued.at_ns if queued is not None and bound is not None else 0
        if queued is not None and took_ns > max(QUEUED_NS, (end.at_ns - timeline.zero_ns) * QUEUED_SHARE):
            lacks = text(queued.detail, "lacks") or "its turn"
            in_attempt = f" in attempt {attempt}" if attempt > 1 else ""
            found.append(f"{duration(took_ns / 1e6)} for {lacks}{in_attempt}")
    return f", of which queued {' and '.join(found)}" if found else ""


# --- Failed --------------------------------------------------------------------------------------------------------


def _failed(timeline: Timeline, end: Fact, *, whole: bool) -> Ending:
    detail = end.detail
    code, stage, replica = (text(detail, f"error_{part}") for part in ("code", "stage", "replica"))
    sentence = f"failed {_after(timeline, end)}: {_error(detail)}{_attempts(timeline)}"
    if stage is None and whole:
        wait = _until(timeline, end)
        stage, replica = wait.stage, wait.replica
        sentence += f"; what was awaited: {wait.text}"
    elif code == "input_timeout" and stage is not None:
        sentence += _behind(timeline, stage)
    return Ending(code or Cause.FAILED, sentence + _left_behind(timeline), stage, replica)


def _error(detail: Mapping[str, Value]) -> str:
    code, stage, replica = (text(detail, f"error_{part}") for part in ("code", "stage", "replica"))
    where = replica or stage
    message = text(detail, "error_message")
    return f"{code or 'unknown error'}{f' in {where}' if where else ''}{f': {message}' if message else ''}"


def _attempts(timeline: Timeline) -> str:
    """The attempts before the last one, and what each was lost to."""
    told = [
        f"attempt {fact.attempt - 1} was lost: {text(fact.detail, 'why') or 'its replica died'}"
        for fact in timeline.of_event("redriven")
    ]
    return f"; this was attempt {timeline.attempt}, {', '.join(told)}" if told else ""


def _behind(timeline: Timeline, stage: str) -> str:
    """Who waited for the stage that gave nothing more."""
    scene = Scene(timeline)
    waiting: dict[str, str] = {}
    reached = [stage]
    while reached:
        for node in scene.targets(reached.pop()):
            if node.name not in waiting and node.submitted and text(node.story.report, "finish_reason") != "stop":
                waiting[node.name] = node.who
                reached.append(node.name)
    return f"; {' and '.join(waiting.values())} waited for it" if waiting else ""


# --- Aborted -------------------------------------------------------------------------------------------------------


def _aborted(timeline: Timeline, end: Fact, *, whole: bool) -> Ending:
    asked = timeline.first("abort_asked")
    why = (asked and text(asked.detail, "why")) or ""
    gone = why.startswith("disconnect")
    by = {
        "": "",
        "caller": " by its caller",
        "operator": " by an operator (another client)",
    }.get(why, f" ({why})")
    sentence = f"aborted {_after(timeline, end)}{by}"
    stage, replica = None, None
    if whole and asked is not None:
        wait = _until(timeline, end)
        stage, replica = wait.stage, wait.replica
        sentence += f"; what was awaited: {wait.text}"
    return Ending(Cause.CALLER_GONE if gone else Cause.ABORTED, sentence + _left_behind(timeline), stage, replica)


def _until(timeline: Timeline, end: Fact) -> Wait:
    """What was awaited when it was over. Facts alone hardly tell which of several stages stood still; that one was slow
    to confirm the end, and the others were not, does."""
    scene = Scene(before_end(timeline, end), until_ns=_over_ns(timeline, end))
    wait, slow = awaited(scene), _slow_to_confirm(timeline, end)
    if slow is None or wait.cause not in (Cause.ENGINE, Cause.INPUT) or slow.stage == wait.stage or slow.stage is None:
        return wait
    node = scene.nodes[slow.stage]
    how = "never did" if slow.event == "left_behind" else f"did at {scene.at(slow.at_ns)}"
    text_ = f"{node.who}, which was slow to confirm the end and {how}, while the others confirmed at once"
    return replace(wait, text=text_, stage=node.name, replica=node.replica)


def _slow_to_confirm(timeline: Timeline, end: Fact) -> Fact | None:
    """The report, or the lack of one, of the first stage that took long to confirm the end, when not all did."""
    over_ns = _over_ns(timeline, end)
    ends = timeline.of(timeline.attempt, "finished", "left_behind")
    confirmed = {fact.stage: fact for fact in ends if fact.at_ns > over_ns and fact.stage in timeline.planned}
    slow = [fact for fact in confirmed.values() if fact.event == "left_behind" or fact.at_ns - over_ns > SLOW_NS]
    return slow[0] if slow and len(slow) < max(2, len(confirmed)) else None


def _left_behind(timeline: Timeline) -> str:
    left = [text(fact.detail, "replica") or fact.stage or "a stage" for fact in timeline.of_event("left_behind")]
    return f"; {', '.join(left)} did not confirm the abort and was left behind" if left else ""


def _replica(timeline: Timeline, stage: str) -> str | None:
    story = timeline.stages.get(stage)
    return None if story is None else story.replica


def _after(timeline: Timeline, end: Fact) -> str:
    return f"after {duration((end.at_ns - timeline.zero_ns) / 1e6)}"
