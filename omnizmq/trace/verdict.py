"""Where a request stands, in one sentence (T2).

It ended: complete and how, aborted, failed, refused. Or it has not: which boundary was passed last, what is awaited,
since when, and whose move it is. A trace with lost rows says so, and claims nothing that a lost row could refute.

Pure. What is awaited is found by rules that are asked in turn (`_RULES`); the first that knows answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from omnizmq.protocol import Value
from omnizmq.trace.facts import Fact
from omnizmq.trace.timeline import STEPS, StageStory, Timeline, names, number, text

_BOUNDARIES = ("asked", "received", "queued", *STEPS, "withheld", "abort_asked")
_COMPLETE = ("stop", "length")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`text` says it all. `waiting_for`, `since_ns` (CLOCK_MONOTONIC) and `owner` (whose move it is: "client", "router"
    or a replica) are None for a request that has ended; for one whose deployment ended they are as they were then."""

    complete: bool
    last_boundary: str | None  # "received", "talker running", …
    text: str
    waiting_for: str | None = None
    since_ns: int | None = None
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class _Wait:
    """What is awaited. `what` completes "waiting for …"; `text` is the whole sentence for a live request."""

    what: str
    owner: str
    since_ns: int
    text: str


def judge(timeline: Timeline, *, live: bool) -> Verdict:
    """The verdict on one request. `live`: its deployment still runs, so that what is missing may yet come."""
    lost = _lost(timeline)
    end = timeline.first("terminal") or timeline.first("refused")
    if end is not None:
        sentence = _ended(timeline, end) if end.event == "terminal" else _refused(end)
        complete = end.event == "terminal" and text(end.detail, "finish_reason") in _COMPLETE
        return Verdict(complete, end.event, sentence + (f" ({lost})" if lost else ""))
    wait = _awaited(timeline)
    if live:
        sentence = wait.text + (f" ({lost})" if lost else "")
    elif lost:
        sentence = f"unknown: {lost}, perhaps its end; last known: {wait.text}"
    else:
        sentence = f"not complete: the deployment ended while waiting for {wait.what}; last known: {wait.text}"
    return Verdict(False, _last_boundary(timeline), sentence, wait.what, wait.since_ns, wait.owner)


def _last_boundary(timeline: Timeline) -> str | None:
    passed = [fact for fact in timeline.facts if fact.event in _BOUNDARIES]
    if not passed:
        return None
    # At one moment, the one that is further along counts.
    last = max(passed, key=lambda fact: (fact.at_ns, _BOUNDARIES.index(fact.event)))
    return f"{last.stage} {last.event}" if last.stage else last.event


def _lost(timeline: Timeline) -> str | None:
    rows = sum(number(fact.detail, "rows") or 1 for fact in timeline.facts if fact.event == "dropped")
    return f"the trace lost {rows} row{'s' if rows > 1 else ''} meanwhile" if rows else None


# --- Ended ---------------------------------------------------------------------------------------------------------


def _ended(timeline: Timeline, terminal: Fact) -> str:
    detail = terminal.detail
    after = f"after {_ms(timeline, terminal.at_ns)}"
    reason = text(detail, "finish_reason")
    if text(detail, "error_code") or reason == "error":
        return f"failed {after}: {_error(detail)}" + _left_behind(timeline)
    if reason == "abort":
        return f"aborted {after}{_asked_by(timeline)}" + _left_behind(timeline)
    sentence = f"complete {after}, finish reason {reason}" if reason in _COMPLETE else f"ended {after}"
    missing = names(detail, "usage_incomplete")
    if missing:
        sentence += f"; the usage of {', '.join(missing)} is missing"
    return sentence + _left_behind(timeline)


def _error(detail: Mapping[str, Value]) -> str:
    code, stage, replica = (text(detail, f"error_{part}") for part in ("code", "stage", "replica"))
    where = replica or stage
    message = text(detail, "error_message")
    return f"{code or 'unknown error'}{f' in {where}' if where else ''}{f': {message}' if message else ''}"


def _asked_by(timeline: Timeline) -> str:
    asked = timeline.first("abort_asked")
    why = asked and text(asked.detail, "why")
    if not why:
        return ""
    return {
        "caller": " by its caller",
        "disconnect": ", its caller was gone",
        "draining": ", the deployment was stopping",
        "error": ", because of an error",
    }.get(why, f" ({why})")


def _left_behind(timeline: Timeline) -> str:
    left = [text(fact.detail, "replica") or fact.stage or "a stage" for fact in timeline.of_event("left_behind")]
    return f"; {', '.join(left)} did not confirm the abort and was left behind" if left else ""


def _refused(fact: Fact) -> str:
    code, message = text(fact.detail, "code"), text(fact.detail, "message")
    return ": ".join(filter(None, ("refused", code, message)))


# --- Awaited -------------------------------------------------------------------------------------------------------


def _awaited(timeline: Timeline) -> _Wait:
    for rule in _RULES:
        wait = rule(timeline)
        if wait is not None:
            return wait
    last = timeline.facts[-1].at_ns if timeline.facts else timeline.zero_ns
    return _terminal(last, "every stage has reported")


def _arrival(timeline: Timeline) -> _Wait | None:
    """Nothing but the client's own word, or nothing at all."""
    if any(fact.event not in ("asked", "dropped") for fact in timeline.facts):
        return None
    asked = timeline.first("asked")
    if asked is None:
        return _Wait("the first fact", "client", timeline.zero_ns, "nothing is known of this request yet")
    return _Wait("the router to receive it", "router", asked.at_ns, "asked, and not yet received by the router")


def _abort(timeline: Timeline) -> _Wait | None:
    asked = timeline.latest("abort_asked")
    if asked is None:
        return None
    left = {fact.stage for fact in timeline.of(timeline.attempt, "left_behind")}
    pending = [story for story in _unfinished(timeline) if "submitted" in story.at_ns and story.name not in left]
    since = _ms(timeline, asked.at_ns)
    if not pending:
        return _terminal(asked.at_ns, f"abort asked at {since}")
    who = ", ".join(story.who for story in pending)
    sentence = f"abort asked at {since}; waiting for {who} to confirm"
    return _Wait(f"{who} to confirm the abort", pending[0].who, asked.at_ns, sentence)


def _queue(timeline: Timeline) -> _Wait | None:
    if any(story.at_ns for story in timeline.stages.values()):
        return None
    queued = timeline.latest("queued")
    if queued is not None:
        of = f" of {queued.stage}" if queued.stage else ""
        sentence = f"queued: no replica{of} has room, since {_ms(timeline, queued.at_ns)}"
        return _Wait(f"a replica{of} with room", "router", queued.at_ns, sentence)
    sentence = "received, and not yet given to any replica"
    return _Wait("the router to choose its replicas", "router", timeline.facts[-1].at_ns, sentence)


def _withheld(timeline: Timeline) -> _Wait | None:
    withheld = timeline.latest("withheld")
    if withheld is None:
        return None
    named = names(withheld.detail, "stages")
    pending = [story for story in _unfinished(timeline) if not named or story.name in named]
    if not pending:
        return None
    reports = " and ".join(f"{story.name}'s" for story in pending) + " report"
    sentence = f"withheld: outputs complete, waiting for {reports} since {_ms(timeline, withheld.at_ns)}"
    return _Wait(reports, pending[0].who, withheld.at_ns, sentence)


def _failure(timeline: Timeline) -> _Wait | None:
    for story in timeline.stages.values():
        at_ns = story.failed_ns
        if at_ns is not None:
            return _terminal(at_ns, f"{story.who} failed with {story.error_code} at {_ms(timeline, at_ns)}")
    return None


def _registration(timeline: Timeline) -> _Wait | None:
    """Before the others: a producer is not submitted until its consumers are registered (S1)."""
    for story in _unfinished(timeline):
        if story.step == "submitted":
            at_ns = story.at_ns["submitted"]
            sentence = f"{story.who} was given the request at {_ms(timeline, at_ns)} and has not registered it"
            return _Wait(f"{story.name}'s registration", story.who, at_ns, sentence)
    return None


def _stage(timeline: Timeline) -> _Wait | None:
    """The most upstream stage that has given nothing yet, else the most upstream that has not finished."""
    unfinished = _unfinished(timeline)
    silent = [story for story in unfinished if not {"first_output", "output_ended"} & story.at_ns.keys()]
    if silent:
        return _silent(timeline, silent[0])
    return _speaking(timeline, unfinished[0]) if unfinished else None


def _silent(timeline: Timeline, story: StageStory) -> _Wait:
    """A stage that has given nothing: its source's move while that may still send, else its own or the router's."""
    sources = [timeline.stages[name] for name in timeline.upstream(story.name) if name in timeline.stages]
    busy = next((source for source in sources if not source.finished), None)
    if busy is not None and story.step in (None, "bound", "registered"):
        wait = _speaking(timeline, busy)
        chunk = f"the first chunk from {busy.name}"
        return _Wait(chunk, wait.owner, wait.since_ns, f"waiting for {chunk}: {wait.text}")
    what, owner, sentence = _own_move(story, [source.name for source in sources])
    since_ns = story.at_ns[story.step] if story.step else timeline.facts[-1].at_ns
    return _Wait(what, owner, since_ns, sentence.format(since=f"since {_ms(timeline, since_ns)}"))


def _own_move(story: StageStory, sources: Sequence[str]) -> tuple[str, str, str]:
    """What is awaited of a stage whose sources, if any, have finished; from whom; and the sentence for it."""
    name, who = story.name, story.who
    match story.step:
        case None | "bound":
            return f"the router to submit {name}", "router", f"{name} is not submitted, {{since}}"
        case "registered":
            although = f", although {' and '.join(sources)} finished" if sources else ""
            return f"{name}'s input", who, f"{who} holds the request without input {{since}}{although}"
        case "input_ready":
            return f"{who}'s engine", who, f"{who} has input {{since}} and its engine has not begun"
        case _:
            return f"{name}'s first output", who, f"{who} has computed {{since}} without a first output"


def _speaking(timeline: Timeline, story: StageStory) -> _Wait:
    """An unfinished stage that may well have given something."""
    ended_ns = story.at_ns.get("output_ended")
    if ended_ns is not None:
        sentence = f"the output of {story.who} ended at {_ms(timeline, ended_ns)}, and its report is awaited"
        return _Wait(f"{story.name}'s report", story.who, ended_ns, sentence)
    since_ns = story.at_ns.get("first_output", max(story.at_ns.values(), default=timeline.zero_ns))
    if "first_output" not in story.at_ns:
        return _Wait(f"{story.name} to finish", story.who, since_ns, f"{story.who} has not finished")
    sentence = f"{story.who} gives output since {_ms(timeline, since_ns)} and has not finished"
    return _Wait(f"{story.name} to finish", story.who, since_ns, sentence)


def _unfinished(timeline: Timeline) -> list[StageStory]:
    return [timeline.stages[name] for name in timeline.planned if not timeline.stages[name].finished]


def _terminal(since_ns: int, why: str) -> _Wait:
    return _Wait("the router's terminal", "router", since_ns, f"{why}; waiting for the router's terminal")


_RULES: tuple[Callable[[Timeline], _Wait | None], ...] = (
    _arrival,
    _abort,
    _queue,
    _withheld,
    _failure,
    _registration,
    _stage,
)


def _ms(timeline: Timeline, at_ns: int) -> str:
    ms = (at_ns - timeline.zero_ns) / 1e6
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms"
