"""Where a request stands, in one sentence (T2).

It ended: complete and how, aborted, failed, refused. Or it has not: which boundary was passed last, what is being
waited for, since when, and whose move it is. A trace with lost rows says so, and claims nothing that a lost row could
refute.

Pure. Of facts (`timeline`), laid under the live answers where there are some (`scene`), `waits` and `blame` say what is
awaited, `outcome` and `absence` how it ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from omnizmq.trace.causes import Cause
from omnizmq.trace.events import BOUNDARIES
from omnizmq.trace.facts import Fact
from omnizmq.trace.live import Live
from omnizmq.trace.outcome import COMPLETE, before_end, outcome
from omnizmq.trace.scene import Scene
from omnizmq.trace.timeline import Timeline, number, text
from omnizmq.trace.wait import Wait
from omnizmq.trace.waits import awaited

RouterIs = Literal["answering", "unasked", "silent", "unknowing", "lost"]
"""Whether there is a live document, and why there is none: nobody asked; of a request whose deployment runs, the router
did not answer, or holds no such request any more; of another, the router is gone and had not ended in good order."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`text` says it all. `cause` is a `Cause`, or an error's code, `stage` and `replica` are at fault or
    awaited. `waiting_for`, `since_ns` (CLOCK_MONOTONIC) and `owner` (whose move it is: "client", "router", "operator",
    a replica, or a stage where any of its replicas will do) are None for a request that has ended or was lost with its
    router; for one whose deployment ended in good order they are as they were then.
    `reason_no_output`: of a complete request of which a stage brought nothing, or that did not ask for all."""

    complete: bool
    last_boundary: str | None  # "received", "talker running", …
    text: str
    cause: str
    stage: str | None = None
    replica: str | None = None
    waiting_for: str | None = None
    since_ns: int | None = None
    owner: str | None = None
    reason_no_output: str | None = None


def judge(timeline: Timeline, *, running: bool, live: Live | None = None, router: RouterIs = "unasked") -> Verdict:
    """The verdict on one request. `running`: its deployment still runs, so that what is missing may yet come. `live`:
    what its router says of it now; without it `router` says why not."""
    lost = _lost(timeline)
    live = live if running else None
    end = timeline.end
    if end is not None:
        return _ended(timeline, end, lost, Scene(timeline, live))
    scene = Scene(timeline, live)
    wait, boundary = awaited(scene), _last_boundary(timeline)
    if timeline.facts:  # a worker may be silent, or in a step, for longer than there has been this request
        wait = replace(wait, since_ns=max(wait.since_ns, timeline.zero_ns))
    if running and router == "unknowing" and live is None:
        return _unknown(
            wait, boundary, f"the router holds it no more, and its end was not recorded{_in_brackets(lost)}"
        )
    if not running:
        return _over(timeline, wait, boundary, lost, killed=router == "lost")
    if router == "silent" and live is None:
        return _no_router(timeline, wait, boundary, lost)
    if scene.live is not None and not timeline.facts:
        lost = "the trace has no row of it"
    return _verdict(wait, boundary, wait.text + _in_brackets(lost))


def _verdict(wait: Wait, boundary: str | None, sentence: str) -> Verdict:
    return Verdict(
        complete=False,
        last_boundary=boundary,
        text=sentence,
        cause=wait.cause,
        stage=wait.stage,
        replica=wait.replica,
        waiting_for=wait.what,
        since_ns=wait.since_ns,
        owner=wait.owner,
    )


def _ended(timeline: Timeline, end: Fact, lost: str | None, scene: Scene) -> Verdict:
    found = outcome(timeline, end, whole=lost is None)
    complete = end.event == "terminal" and text(end.detail, "finish_reason") in COMPLETE
    boundary = end.event if complete or end.event == "refused" else _last_boundary(before_end(timeline, end))
    return Verdict(
        complete=complete,
        last_boundary=boundary,
        text=found.text + _still_confirming(scene) + _in_brackets(lost),
        cause=found.cause,
        stage=found.stage,
        replica=found.replica,
        reason_no_output=found.reason_no_output,
    )


def _still_confirming(scene: Scene) -> str:
    """Who has still to say that nothing of the request is left there."""
    if scene.live is None:
        return ""
    pending = [node.who for node in scene.nodes.values() if node.live and node.live.submitted and not node.finished]
    return (
        f"; {', '.join(pending)} {'has' if len(pending) == 1 else 'have'} still to confirm the end" if pending else ""
    )


def _over(timeline: Timeline, wait: Wait, boundary: str | None, lost: str | None, *, killed: bool) -> Verdict:
    """Its deployment ended before it, unless what was lost says otherwise."""
    if lost is not None:
        return _unknown(wait, boundary, f"{lost}, perhaps its end")
    if killed:
        last = Scene(timeline).at(timeline.facts[-1].at_ns) if timeline.facts else "its begin"
        sentence = f"lost with its router, which ended some time after {last} without saying so (killed?)"
        sentence += f"; what was awaited then: {wait.text}"
        return Verdict(complete=False, last_boundary=boundary, text=sentence, cause=Cause.ROUTER_LOST)
    sentence = f"not complete: the deployment ended while waiting for {wait.what}; last known: {wait.text}"
    return _verdict(wait, boundary, sentence)


def _unknown(wait: Wait, boundary: str | None, why: str) -> Verdict:
    """It goes on no more, and how it ended nobody can tell."""
    sentence = f"unknown: {why}; last known: {wait.text}"
    return Verdict(complete=False, last_boundary=boundary, text=sentence, cause=Cause.UNKNOWN)


def _no_router(timeline: Timeline, wait: Wait, boundary: str | None, lost: str | None) -> Verdict:
    last_ns = timeline.facts[-1].at_ns if timeline.facts else timeline.zero_ns
    sentence = f"the router does not answer; last known: {wait.text}{_in_brackets(lost)}"
    what = "the router to answer"
    silent = replace(
        wait, cause=Cause.ROUTER_SILENT, owner="router", what=what, since_ns=last_ns, stage=None, replica=None
    )
    return _verdict(silent, boundary, sentence)


def _last_boundary(timeline: Timeline) -> str | None:
    passed = [fact for fact in timeline.facts if fact.event in BOUNDARIES]
    # Of the last attempt: what is left of an earlier one may still report its end.
    passed = [fact for fact in passed if fact.attempt == timeline.attempt] or passed
    if not passed:
        return None
    # At one moment, the one that is further along counts.
    last = max(passed, key=lambda fact: (fact.at_ns, BOUNDARIES.index(fact.event)))
    return f"{last.stage} {last.event}" if last.stage else last.event


def _lost(timeline: Timeline) -> str | None:
    rows = sum(number(fact.detail, "rows") or 1 for fact in timeline.facts if fact.event == "dropped")
    return f"the trace lost {rows} row{'s' if rows > 1 else ''} meanwhile" if rows else None


def _in_brackets(lost: str | None) -> str:
    return f" ({lost})" if lost else ""
