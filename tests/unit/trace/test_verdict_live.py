"""What is said of a live request when its router and workers have answered (T2): a table of answers and verdicts."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from support import trace_stories as stories
from support.live_stories import Document, answer, came, chain, document, no_credit, no_room, reader, sent, stage
from support.trace_stories import fact, ns

from omnizmq.protocol import Value
from omnizmq.trace.facts import Fact
from omnizmq.trace.live import read
from omnizmq.trace.timeline import Timeline
from omnizmq.trace.verdict import Verdict, judge

MIDDLE = [one for one in stories.spoken() if one.at_ns <= ns(80)]
"""All stages have given something, none has finished."""

WAITS = [one for one in stories.started() if one.at_ns <= ns(1)]


def verdict(facts: list[Fact], live: Document | None, **more: Any) -> Verdict:
    return judge(Timeline(facts), live=read(live), running=True, **more)


class Case(NamedTuple):
    name: str
    live: Document
    cause: str
    stage: str | None
    owner: str
    since_ms: float
    text: str
    facts: list[Fact] = MIDDLE


def waiting(why: str, **more: Any) -> Document:
    return document("waiting", queue={"why": why, "lacks": "talker", "ahead": 0, "since_ns": ns(2000), **more})


def talker(*args: Any, **more: Any) -> Document:
    return stage("talker", *args, **more)


def code2wav(*args: Any, **more: Any) -> Document:
    return stage("code2wav", *args, **more)


def thinker(*args: Any, **more: Any) -> Document:
    return stage("thinker", *args, **more)


FED = {"inputs": [came("thinker", 4)], "edges": [sent("code2wav", 4)]}
WHOLE = [came("thinker", 8, ended=True)]
AGAIN = [
    *WAITS,
    fact(50, "replica_lost", "talker", {"replica": "talker/0", "reason": "killed by SIGKILL"}),
    fact(51, "redriven", detail={"why": "talker/0 died: killed by SIGKILL", "code": "replica_lost"}, attempt=2),
]

QUEUED = [
    Case(
        "no replica is live",
        waiting("no_replica"),
        "queue",
        "talker",
        "talker",
        2000,
        "queued for 8.0 s (since 2000 ms): no replica of talker is live",
        WAITS,
    ),
    Case(
        "replicas load",
        waiting("starting", replicas="talker/0 starting, 0/4 in flight"),
        "queue",
        "talker",
        "talker/0",
        2000,
        "queued for 8.0 s (since 2000 ms): the replicas of talker are loading or restarting "
        "(talker/0 starting, 0/4 in flight)",
        WAITS,
    ),
    Case(
        "drained",
        waiting("drained"),
        "queue",
        "talker",
        "operator",
        2000,
        "queued for 8.0 s (since 2000 ms): an operator has drained the replicas of talker",
        WAITS,
    ),
    Case(
        "full",
        waiting("full", replicas="talker/0 ready, 1/1 in flight; talker/1 ready, 1/1 in flight", ahead=1),
        "queue",
        "talker",
        "talker",
        2000,
        "queued for 8.0 s (since 2000 ms): all places of talker are taken "
        "(talker/0 ready, 1/1 in flight; talker/1 ready, 1/1 in flight); 1 waits before it",
        WAITS,
    ),
    Case(
        "behind others",
        waiting("behind", lacks=None, ahead=3),
        "queue",
        None,
        "router",
        2000,
        "queued for 8.0 s (since 2000 ms): others wait before it for the same places; 3 wait before it",
        WAITS,
    ),
    Case(
        "another attempt waits",
        waiting("starting") | {"attempt": 2},
        "redrive",
        "talker",
        "talker",
        2000,
        "attempt 2, because talker/0 died: killed by SIGKILL, is queued for 8.0 s (since 2000 ms): "
        "the replicas of talker are loading or restarting",
        AGAIN,
    ),
]

STUCK = [
    Case(
        "not registered, and its worker has been stopped",
        document(
            stages={
                "thinker": thinker(submitted=False, registered=False),
                "talker": talker(registered=False, heard_ns=ns(4000)),
                "code2wav": code2wav(answer("WAITING_FOR_CHUNK", inputs=[came("talker", 0)])),
            },
            silent=["talker/0"],
        ),
        "worker_silent",
        "talker",
        "talker/0",
        4000,
        "the worker of talker/0 does not answer; it was last heard of 6.0 s ago; "
        "code2wav/0 waits for the first chunk from talker",
        [*WAITS, *stories.bound(2), *stories.registered(3, "code2wav"), fact(5, "submitted", "talker")],
    ),
    Case(
        "not registered",
        document(
            stages={
                "thinker": thinker(submitted=False, registered=False),
                "talker": talker(registered=False),
                "code2wav": code2wav(answer("WAITING_FOR_CHUNK", inputs=[came("talker", 0)])),
            }
        ),
        "registration",
        "talker",
        "talker/0",
        5,
        "talker/0 was given the request at 5.0 ms and has not registered it; "
        "code2wav/0 waits for the first chunk from talker",
        [*WAITS, *stories.bound(2), *stories.registered(3, "code2wav"), fact(5, "submitted", "talker")],
    ),
    Case(
        "the first stage is stuck in a step, and the others wait behind it",
        chain(thinker=thinker(answer(step_ms=100, edges=[sent("talker", 4)]))),
        "stuck_step",
        "thinker",
        "thinker/0",
        100,
        "the engine of thinker/0 has been in one step for 9.9 s (since 100 ms); "
        "talker/0 waits for the next chunk from thinker; code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "the first stage makes nothing more, its engine is idle",
        chain(),
        "engine",
        "thinker",
        "thinker/0",
        40,
        "thinker/0 has made nothing more for 10.0 s (since 40 ms) (so far 4 outputs, 4 chunks to talker), "
        "and its engine is idle; talker/0 waits for the next chunk from thinker; "
        "code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "the first stage computes in short steps and makes nothing",
        chain(thinker=thinker(answer(step_ms=9990, edges=[sent("talker", 0)]))),
        "engine",
        "thinker",
        "thinker/0",
        40,
        "thinker/0 has computed for 10.0 s (since 40 ms) without a first output, and its engine computes; "
        "talker/0 waits for the next chunk from thinker; code2wav/0 waits for the next chunk from talker",
        stories.started(),
    ),
    Case(
        "the middle stage has all its input and makes nothing more",
        chain(
            thinker=thinker(finished=True),
            talker=talker(answer(inputs=WHOLE, edges=[sent("code2wav", 3)])),
            code2wav=code2wav(answer(inputs=[came("talker", 3)])),
        ),
        "engine",
        "talker",
        "talker/0",
        40,
        "talker/0 has made nothing more for 10.0 s (since 40 ms) (so far 3 chunks to code2wav), "
        "and its engine is idle; code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "the middle stage makes nothing of what it is fed, while the first goes on",
        chain(
            thinker=thinker(answer(made_ms=9990, edges=[sent("talker", 90, last_ms=9990)])),
            talker=talker(
                answer(made_ms=9990, inputs=[came("thinker", 90, last_ms=9991)], edges=[sent("code2wav", 3)])
            ),
            code2wav=code2wav(answer(inputs=[came("talker", 3)])),
        ),
        "engine",
        "talker",
        "talker/0",
        40,
        "talker/0 has made nothing more for 10.0 s (since 40 ms) (so far 3 chunks to code2wav), "
        "and its engine is idle; code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "the middle stage makes nothing more, a moment after the last one has made all that there was to make",
        chain(
            thinker=thinker(finished=True),
            talker=talker(answer(made_ms=9500, inputs=WHOLE, edges=[sent("code2wav", 2, last_ms=9490)])),
            code2wav=code2wav(answer(made_ms=9501, inputs=[came("talker", 2, last_ms=9500)], outputs=2)),
        ),
        "engine",
        "talker",
        "talker/0",
        9490,
        "talker/0 goes on: its last output was 510 ms ago (so far 2 chunks to code2wav); "
        "code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "the last stage makes nothing of what it is fed, while the one before it goes on",
        chain(
            talker=talker(answer(made_ms=9980, inputs=WHOLE, edges=[sent("code2wav", 90, last_ms=9980)])),
            code2wav=code2wav(answer(made_ms=9981, inputs=[came("talker", 90, last_ms=9981)], outputs=2)),
        ),
        "engine",
        "code2wav",
        "code2wav/0",
        9981,
        "code2wav/0 was fed or at work 19 ms ago (so far 2 outputs), and its engine is idle",
    ),
    Case(
        "between two tokens of a healthy stream",
        chain(thinker=thinker(answer(made_ms=9998, edges=[sent("talker", 4, last_ms=9998)], outputs=4))),
        "engine",
        "thinker",
        "thinker/0",
        9998,
        "thinker/0 goes on: its last output was 2.0 ms ago (so far 4 outputs, 4 chunks to talker); "
        "talker/0 waits for the next chunk from thinker; code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "the middle stage makes nothing more, and the last one's engine is in a step for another request",
        chain(
            thinker=thinker(finished=True),
            talker=talker(answer(inputs=WHOLE, edges=[sent("code2wav", 2)])),
            code2wav=code2wav(answer(made_ms=42, step_ms=2000, inputs=[came("talker", 2, last_ms=41)], outputs=2)),
        ),
        "engine",
        "talker",
        "talker/0",
        40,
        "talker/0 has made nothing more for 10.0 s (since 40 ms) (so far 2 chunks to code2wav), "
        "and its engine is idle; code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "the last stage has a chunk that its engine, in a step for another request, has not taken",
        chain(
            thinker=thinker(finished=True),
            talker=talker(answer(inputs=WHOLE, edges=[sent("code2wav", 2)])),
            code2wav=code2wav(answer(made_ms=42, step_ms=2000, inputs=[came("talker", 2, taken=1)], outputs=2)),
        ),
        "stuck_step",
        "code2wav",
        "code2wav/0",
        2000,
        "the engine of code2wav/0 has been in one step for 8.0 s (since 2000 ms)",
    ),
    Case(
        "the last stage is in a long step on all that came, while the one before it goes on",
        chain(
            talker=talker(answer(made_ms=9980, inputs=WHOLE, edges=[sent("code2wav", 5, last_ms=9980)])),
            code2wav=code2wav(answer(made_ms=9981, step_ms=7000, inputs=[came("talker", 5, last_ms=9981)], outputs=2)),
        ),
        "stuck_step",
        "code2wav",
        "code2wav/0",
        7000,
        "the engine of code2wav/0 has been in one step for 3.0 s (since 7000 ms)",
    ),
    Case(
        "an engine that computes in threads of its own for long",
        chain(thinker=thinker(answer(step_ms=100, engine="computing", edges=[sent("talker", 4)], outputs=4))),
        "engine",
        "thinker",
        "thinker/0",
        40,
        "thinker/0 has made nothing more for 10.0 s (since 40 ms) (so far 4 outputs, 4 chunks to talker), "
        "and its engine queues or computes it in threads of its own; talker/0 waits for the next chunk from thinker; "
        "code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "an engine that computes others in threads of its own",
        chain(thinker=thinker(answer(step_ms=9900, engine="computing", engaged=False, edges=[sent("talker", 0)]))),
        "engine",
        "thinker",
        "thinker/0",
        40,
        "thinker/0 has been in its engine for 10.0 s (since 40 ms) without a first output, "
        "and its engine queues or computes other requests in threads of its own; "
        "talker/0 waits for the next chunk from thinker; code2wav/0 waits for the next chunk from talker",
        stories.started(),
    ),
    Case(
        "an engine that computes others in steps",
        chain(
            thinker=thinker(answer(step_ms=9900, engaged=False, edges=[sent("talker", 4)], outputs=4)),
        ),
        "engine",
        "thinker",
        "thinker/0",
        40,
        "thinker/0 has made nothing more for 10.0 s (since 40 ms) (so far 4 outputs, 4 chunks to talker), "
        "and its engine computes other requests; talker/0 waits for the next chunk from thinker; "
        "code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "an engine that does not come out of a step of others",
        chain(thinker=thinker(answer(step_ms=7000, engaged=False, edges=[sent("talker", 4)], outputs=4))),
        "stuck_step",
        "thinker",
        "thinker/0",
        7000,
        "the engine of thinker/0 has been in one step for 3.0 s (since 7000 ms), which is for other requests; "
        "talker/0 waits for the next chunk from thinker; code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "the middle stage is stuck in a step on the first chunk",
        chain(
            thinker=thinker(finished=True),
            talker=talker(answer(step_ms=45, inputs=[came("thinker", 8, taken=1)], edges=[sent("code2wav", 0)])),
            code2wav=code2wav(answer("WAITING_FOR_CHUNK", inputs=[came("talker", 0)])),
        ),
        "stuck_step",
        "talker",
        "talker/0",
        45,
        "the engine of talker/0 has been in one step for 10.0 s (since 45 ms); "
        "code2wav/0 waits for the first chunk from talker",
        [one for one in MIDDLE if one.at_ns <= ns(42)],
    ),
    Case(
        "the middle worker has been stopped",
        chain(talker=talker(heard_ns=ns(7000))) | {"silent": ["talker/0"]},
        "worker_silent",
        "talker",
        "talker/0",
        7000,
        "the worker of talker/0 does not answer; it was last heard of 3.0 s ago; "
        "code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "the last stage is stuck, and the one before it without credit",
        chain(
            talker=talker(answer("PARKED", inputs=[came("thinker", 4)], edges=[no_credit("code2wav")])),
            code2wav=code2wav(answer(step_ms=60, inputs=[came("talker", 20, taken=4)])),
        ),
        "stuck_step",
        "code2wav",
        "code2wav/0",
        60,
        "the engine of code2wav/0 has been in one step for 9.9 s (since 60 ms)",
    ),
    Case(
        "a slot in a worker",
        chain(
            thinker=thinker(finished=True),
            talker=talker(answer("QUEUED", running=4, waiting_for_slot=2, inputs=WHOLE, edges=[sent("code2wav", 4)])),
        ),
        "slot",
        "talker",
        "talker/0",
        40,
        "talker/0 has input and waits for a slot for 10.0 s (since 40 ms): 4 of 4 slots are taken by other requests; "
        "code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "a slot in a worker whose engine is stuck in a step for others",
        chain(
            thinker=thinker(finished=True),
            talker=talker(answer("QUEUED", step_ms=1000, running=4, inputs=WHOLE, edges=[sent("code2wav", 4)])),
        ),
        "stuck_step",
        "talker",
        "talker/0",
        1000,
        "the engine of talker/0 has been in one step for 9.0 s (since 1000 ms); "
        "code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "a chunk that does not arrive",
        chain(talker=talker(answer(inputs=[came("thinker", 3)], edges=[sent("code2wav", 4)]))),
        "input",
        "talker",
        "talker/0",
        40,
        "thinker/0 sent 4 chunks, the last at 40 ms, and 3 have reached talker/0; "
        "code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "an end of an edge that does not arrive",
        chain(
            thinker=thinker(finished=True),
            talker=talker(answer("WAITING_FOR_CHUNK", inputs=[came("thinker", 0)], edges=[sent("code2wav", 0)])),
            code2wav=code2wav(answer("WAITING_FOR_CHUNK", inputs=[came("talker", 0)])),
        ),
        "input",
        "talker",
        "talker/0",
        40,
        "talker/0 holds the request without input for 10.0 s (since 40 ms), although thinker finished; "
        "code2wav/0 waits for the first chunk from talker",
        [*stories.started(), fact(40, "first_output", "thinker"), stories.finished(50, "thinker")],
    ),
    Case(
        "an engine that is done, what it made is not out",
        chain(thinker=thinker(answer("SENDING", edges=[sent("talker", 4, ended=True)]))),
        "report",
        "thinker",
        "thinker/0",
        40,
        "thinker/0 has made all and not sent it all, for 10.0 s (since 40 ms); "
        "talker/0 waits for the next chunk from thinker; code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "a worker that holds it no more",
        chain(thinker=thinker(answer("GONE"))),
        "report",
        "thinker",
        "thinker/0",
        40,
        "thinker/0 has done with the request; its report has not reached the router; "
        "talker/0 waits for the next chunk from thinker; code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "a replica that is being killed",
        chain(talker=talker(state="stuck", heard_ns=ns(9000))),
        "replica_lost",
        "talker",
        "router",
        9000,
        "talker/0 is given up as stuck or silent, and being killed; the router is to give the request up or drive it "
        "again; code2wav/0 waits for the next chunk from talker",
    ),
]


def fork(source: Document, slow: Document) -> Document:
    """A source feeds two sinks; the other one, `fast`, has used up what came."""
    fast = stage("fast", answer(inputs=[came("source", 4)]))
    return document(stages={"source": stage("source", source), "fast": fast, "slow": stage("slow", slow)})


def join(left: Document, right: Document) -> Document:
    """A source feeds two, and both feed a sink that waits for the right one."""
    sink = answer("WAITING_FOR_CHUNK", inputs=[came("left", 9), came("right", 0)])
    stages = {"left": stage("left", left), "right": stage("right", right), "sink": stage("sink", sink)}
    return document(stages={"source": stage("source", finished=True), **stages})


FORK: dict[str, Value] = {
    "stages": "source,fast,slow",
    "all_stages": "source,fast,slow",
    "edges": "source>fast,source>slow",
    "final_stages": "fast,slow",
}
FORKED = [*stories.asked(FORK), *stories.registered(3, "source", "fast", "slow")]
JOIN: dict[str, Value] = {
    "stages": "source,left,right,sink",
    "all_stages": "source,left,right,sink",
    "edges": "source>left,source>right,left>sink,right>sink",
    "final_stages": "sink",
}
JOINED = [*stories.asked(JOIN), *stories.registered(3, "source", "left", "right", "sink")]
JOINED += [fact(10, "first_output", one) for one in ("left", "right")]

RING = chain(
    talker=talker(answer("PARKED", inputs=[came("thinker", 4)], edges=[no_room("code2wav", "other-1", "other-2")])),
    code2wav=code2wav(answer("WAITING_FOR_CHUNK", inputs=[came("talker", 0)])),
)
RING_TEXT = (
    "talker/0 is parked for 9.9 s (since 50 ms): no room in the ring for code2wav/0 "
    "(900 of 1000 bytes of the ring are held, most by other-1, other-2)"
)

GRAPHS = [
    Case(
        "a fork: one branch is slow, and takes the credit from the other",
        fork(
            answer("PARKED", edges=[sent("fast", 4), no_credit("slow")]),
            answer(made_ms=9900, step_ms=9990, inputs=[came("source", 20, taken=4)]),
        ),
        "credit",
        "slow",
        "slow/0",
        50,
        "source/0 is parked for 9.9 s (since 50 ms): no credit for slow/0 (16 of 16 chunks are not consumed), "
        "and its engine computes; fast/0 waits for the next chunk from source",
        FORKED,
    ),
    Case(
        "a fork: one branch is stuck in a step",
        fork(
            answer("PARKED", edges=[sent("fast", 4), no_credit("slow")]),
            answer(step_ms=60, inputs=[came("source", 20, taken=4)]),
        ),
        "stuck_step",
        "slow",
        "slow/0",
        60,
        "the engine of slow/0 has been in one step for 9.9 s (since 60 ms); "
        "source/0 is parked for 9.9 s (since 50 ms): no credit for slow/0 (16 of 16 chunks are not consumed); "
        "fast/0 waits for the next chunk from source",
        FORKED,
    ),
    Case(
        "a join: it waits for the branch that gives nothing, not for the one without credit",
        join(
            answer("PARKED", inputs=[came("source", 9, ended=True)], edges=[no_credit("sink")]),
            answer(step_ms=30, inputs=[came("source", 9, ended=True, taken=1)], edges=[sent("sink", 0)]),
        ),
        "stuck_step",
        "right",
        "right/0",
        30,
        "the engine of right/0 has been in one step for 10.0 s (since 30 ms); "
        "sink/0 waits for the first chunk from right",
        JOINED,
    ),
    Case(
        "the ring is full of others",
        RING,
        "ring",
        "code2wav",
        "code2wav/0",
        50,
        f"{RING_TEXT}, and its engine is idle; code2wav/0 waits for the first chunk from talker",
        stories.started(),
    ),
]

RELAY: dict[str, Value] = {
    "stages": "thinker,talker,image",
    "all_stages": "thinker,talker,image",
    "edges": "thinker>talker,thinker>image",
    "final_stages": "talker,image",
}
RELAYED = document(
    stages={
        "thinker": thinker(answer(step_ms=60, edges=[sent("talker", 4), sent("image", 0, mode="relay")])),
        "talker": talker(finished=True),
        "image": stage("image", submitted=False, registered=False),
    }
)
GRAPHS += [
    Case(
        "a stage that is submitted when its source has finished",
        RELAYED,
        "stuck_step",
        "thinker",
        "thinker/0",
        60,
        "the engine of thinker/0 has been in one step for 9.9 s (since 60 ms); image is not submitted before",
        [*stories.asked(RELAY), *stories.registered(3, "thinker", "talker")],
    ),
    Case(
        "a worker that aborts what its router has not aborted",
        chain(thinker=thinker(answer("ABORTING", step_ms=60))),
        "abort_confirm",
        "thinker",
        "thinker/0",
        40,
        "thinker/0 aborts for 10.0 s (since 40 ms), and its engine has been in one step for 9.9 s (since 60 ms); "
        "talker/0 waits for the next chunk from thinker; code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "an edge that is over is not what it is parked for",
        chain(
            talker=talker(answer("SENDING", edges=[no_credit("code2wav") | {"ended": True}])),
            code2wav=code2wav(answer(inputs=[came("talker", 20)])),
        ),
        "report",
        "talker",
        "talker/0",
        40,
        "talker/0 has made all and not sent it all, for 10.0 s (since 40 ms); "
        "code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "an engine that has not taken what came, while its source goes on",
        chain(
            thinker=thinker(answer(made_ms=9990, edges=[sent("talker", 9, last_ms=9990)])),
            talker=talker(
                answer(made_ms=9990, step_ms=9500, inputs=[came("thinker", 9, taken=4)], edges=[sent("code2wav", 4)])
            ),
        ),
        "engine",
        "talker",
        "talker/0",
        40,
        "talker/0 has made nothing more for 10.0 s (since 40 ms) (so far 4 chunks to code2wav), "
        "and its engine computes; code2wav/0 waits for the next chunk from talker",
    ),
]

READ = [
    Case(
        "the caller does not read the first stage's outputs, and the others wait behind it",
        chain(thinker=thinker(answer("PAUSED", caller=reader(16, full=True), edges=[sent("talker", 4)]))),
        "caller_reads",
        "thinker",
        "client",
        50,
        "thinker/0 waits for the caller to read for 9.9 s (since 50 ms): 16 outputs (160 bytes) are unread, "
        "its window has 16; talker/0 waits for the next chunk from thinker; "
        "code2wav/0 waits for the next chunk from talker",
    ),
    Case(
        "the caller does not read the last stage's outputs",
        chain(code2wav=code2wav(answer("PAUSED", inputs=[came("talker", 4)], caller=reader(16, full=True)))),
        "caller_reads",
        "code2wav",
        "client",
        50,
        "code2wav/0 waits for the caller to read for 9.9 s (since 50 ms): 16 outputs (160 bytes) are unread, "
        "its window has 16",
    ),
    Case(
        "an engine that is done, whose caller does not read",
        chain(code2wav=code2wav(answer("SENDING", caller=reader(16, full=True)))),
        "caller_reads",
        "code2wav",
        "client",
        50,
        "code2wav/0 waits for the caller to read for 9.9 s (since 50 ms): 16 outputs (160 bytes) are unread, "
        "its window has 16",
    ),
]

ASKED_TO_ABORT = [*MIDDLE, fact(100, "abort_asked", detail={"why": "caller"})]
WITHHELD = [
    *(one for one in stories.spoken() if (one.event, one.stage) != ("finished", "thinker") and one.at_ns < ns(200)),
    fact(199, "withheld", detail={"stages": "thinker"}),
]
DONE = {"talker": talker(finished=True), "code2wav": code2wav(finished=True)}

ENDS = [
    Case(
        "an abort is not confirmed by an engine in a step",
        document(
            "aborting",
            stages={
                "thinker": thinker(finished=True),
                "talker": talker(answer("ABORTING")),
                "code2wav": code2wav(answer("ABORTING", step_ms=70)),
            },
        ),
        "abort_confirm",
        "code2wav",
        "code2wav/0",
        100,
        "abort asked at 100 ms; waiting for talker/0, code2wav/0 to confirm, "
        "and its engine has been in one step for 9.9 s (since 70 ms)",
        ASKED_TO_ABORT,
    ),
    Case(
        "an abort is not confirmed by a worker that has been stopped",
        document("aborting", stages=chain(thinker=thinker(finished=True))["stages"], silent=["code2wav/0"]),
        "abort_confirm",
        "code2wav",
        "code2wav/0",
        100,
        "abort asked at 100 ms; waiting for talker/0, code2wav/0 to confirm, and its worker does not answer",
        ASKED_TO_ABORT,
    ),
    Case(
        "an abort that another client asked for, and a stage whose engine computes in its own threads",
        document(
            "aborting",
            stages={
                "thinker": thinker(answer("ABORTING")),
                "talker": talker(answer("ABORTING", step_ms=70, engine="computing")),
            },
        ),
        "abort_confirm",
        "talker",
        "talker/0",
        100,
        "abort asked at 100 ms by an operator (another client); "
        "waiting for thinker/0, talker/0, code2wav/0 to confirm, "
        "and its engine queues or computes it in threads of its own",
        [*MIDDLE, fact(100, "abort_asked", detail={"why": "operator"})],
    ),
    Case(
        "a disconnect's abort",
        document("aborting", caller=False, stages={"thinker": thinker(answer("ABORTING"))}),
        "abort_confirm",
        "thinker",
        "thinker/0",
        100,
        "abort asked at 100 ms (disconnect: it is gone); waiting for thinker/0 to confirm, and its engine is idle",
        [*stories.asked(stories.TEXT), fact(100, "abort_asked", detail={"why": "disconnect: it is gone"})],
    ),
    Case(
        "a report is withheld",
        document(stages={"thinker": thinker(answer(), output_ended=True), **DONE}),
        "report",
        "thinker",
        "thinker/0",
        199,
        "withheld: outputs complete, waiting for thinker/0's report for 9.8 s (since 199 ms), and its engine is idle",
        WITHHELD,
    ),
    Case(
        "a report is withheld by an engine in a step",
        document(stages={"thinker": thinker(answer(step_ms=90), output_ended=True), **DONE}),
        "stuck_step",
        "thinker",
        "thinker/0",
        90,
        "withheld, outputs complete and thinker/0's report missing: "
        "the engine of thinker/0 has been in one step for 9.9 s (since 90 ms)",
        WITHHELD,
    ),
    Case(
        "a report is withheld by a worker that has been stopped",
        document(stages={"thinker": thinker(output_ended=True), **DONE}, silent=["thinker/0"]),
        "worker_silent",
        "thinker",
        "thinker/0",
        9990,
        "withheld, outputs complete and thinker/0's report missing: "
        "the worker of thinker/0 does not answer; it was last heard of 10 ms ago",
        WITHHELD,
    ),
    Case(
        "the router has ended it, and the fact has not been written",
        document("ended", stages=chain()["stages"]),
        "terminal",
        None,
        "router",
        80,
        "the router has ended it, and the trace does not tell how yet; waiting for the router's terminal for 9.9 s "
        "(since 80 ms)",
    ),
]

CASES = [*QUEUED, *STUCK, *GRAPHS, *READ, *ENDS]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_t2_a_live_request_with_answers(case: Case) -> None:
    found = verdict(case.facts, case.live)
    assert found.text == case.text
    assert (found.cause, found.stage, found.owner) == (case.cause, case.stage, case.owner)
    assert found.since_ns == ns(case.since_ms)
    assert not found.complete
    if case.stage is not None and case.cause not in ("queue", "redrive"):
        assert found.replica == f"{case.stage}/0"


def test_t2_a_ring_of_others_is_blamed_on_a_consumer_that_is_stuck_in_a_step_for_them() -> None:
    stages = RING["stages"] | {
        "code2wav": code2wav(answer("WAITING_FOR_CHUNK", step_ms=500, inputs=[came("talker", 0)]))
    }
    found = verdict(stories.started(), RING | {"stages": stages})
    assert (found.cause, found.replica) == ("stuck_step", "code2wav/0")
    assert found.text == (
        "the engine of code2wav/0 has been in one step for 9.5 s (since 500 ms); "
        f"{RING_TEXT}; code2wav/0 waits for the first chunk from talker"
    )


def test_t2_a_request_that_goes_on_names_the_stage_whose_move_it_is() -> None:
    live = chain(thinker=thinker(answer(made_ms=9990, edges=[sent("talker", 4, last_ms=9990)])))
    found = verdict(MIDDLE, live)
    assert (found.cause, found.replica, found.waiting_for) == ("engine", "thinker/0", "thinker's next output")


def test_t2_of_two_branches_the_one_that_stands_still_counts() -> None:
    goes_on = answer(made_ms=9990, inputs=[came("source", 9, ended=True)])
    stands = answer(made_ms=9000, step_ms=8000, inputs=[came("source", 9, ended=True, taken=4)])
    for fast, slow in ((goes_on, stands), (stands, goes_on)):
        stages = {"source": stage("source", finished=True), "fast": stage("fast", fast), "slow": stage("slow", slow)}
        found = verdict(FORKED, document(stages=stages))
        assert (found.cause, found.stage) == ("stuck_step", "slow" if slow is stands else "fast")


def test_t2_a_router_that_does_not_answer() -> None:
    found = verdict(MIDDLE, None, router="silent")
    assert (found.cause, found.owner, found.waiting_for) == ("router_silent", "router", "the router to answer")
    assert (found.stage, found.replica, found.since_ns) == (None, None, ns(80))
    assert found.text.startswith("the router does not answer; last known: thinker/0 gives output since 40 ms")


def test_t2_a_request_that_its_router_holds_no_more() -> None:
    found = verdict(MIDDLE, None, router="unknowing")
    assert (found.cause, found.stage, found.replica, found.owner) == ("unknown", None, None, None)
    assert found.text.startswith(
        "unknown: the router holds it no more, and its end was not recorded; last known: thinker/0 gives output"
    )
    gap = Fact(stories.REQUEST, "demo", 1, ns(90), "trace", "dropped", detail={"rows": 2, "why": "x"})
    assert verdict([*MIDDLE, gap], None, router="unknowing").text.startswith(
        "unknown: the router holds it no more, and its end was not recorded (the trace lost 2 rows meanwhile); last"
    )


def test_t2_nobody_waits_for_longer_than_there_has_been_the_request() -> None:
    live = chain(talker=talker(heard_ns=ns(-3000))) | {"silent": ["talker/0"]}
    found = verdict(MIDDLE, live)
    assert (found.cause, found.since_ns) == ("worker_silent", ns(0))
    step = chain(thinker=thinker(answer(step_ms=-2000, edges=[sent("talker", 4)])))
    assert verdict(MIDDLE, step).text.startswith("the engine of thinker/0 has been in one step for 12.0 s; talker/0")


def test_t2_live_answers_count_where_rows_were_lost() -> None:
    gap = Fact(stories.REQUEST, "demo", 1, ns(90), "trace", "dropped", detail={"rows": 2, "why": "x"})
    live = chain(thinker=thinker(answer(step_ms=100, edges=[sent("talker", 4)])))
    found = verdict([gap], live)
    assert (found.cause, found.replica) == ("stuck_step", "thinker/0")
    assert found.text.endswith("code2wav/0 waits for the next chunk from talker (the trace lost 2 rows meanwhile)")


def test_t2_an_answer_of_another_make_is_as_good_as_none() -> None:
    assert verdict(MIDDLE, {"attempt": "one"}) == verdict(MIDDLE, None)


def test_t2_a_request_of_which_no_row_is_stored() -> None:
    live = chain(thinker=thinker(answer(step_ms=7000, edges=[sent("talker", 4)])))
    found = verdict([], live)
    assert (found.cause, found.replica, found.last_boundary) == ("stuck_step", "thinker/0", None)
    assert found.text.startswith("the engine of thinker/0 has been in one step for 3.0 s; talker/0 waits")
    assert found.text.endswith(" (the trace has no row of it)")


def test_t2_a_report_is_withheld_also_where_no_fact_says_so() -> None:
    deliveries = {"thinker": {"ended": True}, "code2wav": {"ended": True}}
    stages = {"thinker": thinker(finished=True), "talker": talker(answer()), "code2wav": code2wav(finished=True)}
    found = verdict([], document(stages=stages, deliveries=deliveries))
    assert (found.cause, found.replica) == ("report", "talker/0")
    deliveries["code2wav"]["ended"] = False
    assert verdict([], document(stages=stages, deliveries=deliveries)).cause == "engine"


def test_t2_another_attempt_names_the_replica_that_the_one_before_was_lost_with() -> None:
    waits = waiting("starting") | {"attempt": 2}
    assert verdict(AGAIN, waits).replica == "talker/0"
    assert (
        verdict([*AGAIN, fact(60, "replica_lost", "thinker", {"replica": "x"}, attempt=2)], waits).replica == "talker/0"
    )
    unexplained = [one for one in AGAIN if one.event == "queued" or one.event not in ("redriven", "replica_lost")]
    found = verdict(unexplained, waits)
    assert found.replica is None
    assert found.text.startswith("attempt 2, after a failure, is queued")


def test_t2_of_several_missing_reports_the_one_of_the_worst_is_described() -> None:
    reported = (("finished", "talker"), ("edge", "talker"))
    facts = [*(one for one in WITHHELD if (one.event, one.stage) not in reported)][:-1]
    facts.append(fact(199, "withheld", detail={"stages": "thinker,talker"}))
    idle, busy = answer(made_ms=95), answer(made_ms=80, step_ms=9800)
    stages = {"thinker": thinker(idle), "talker": talker(busy), "code2wav": code2wav(finished=True)}
    found = verdict(facts, document(stages=stages))
    assert (found.cause, found.waiting_for) == ("report", "thinker/0's and talker/0's report")
    assert (found.stage, found.owner) == ("talker", "talker/0")
    assert found.text.endswith(", and its engine computes")


def test_t2_answers_about_an_attempt_that_is_over_do_not_count() -> None:
    second = [*MIDDLE, *stories.bound(90, attempt=2)]
    assert verdict(second, chain()) == verdict(second, None)


def test_t2_an_ended_request_that_a_stage_still_has_says_so() -> None:
    found = verdict(stories.spoken(), document("ended", stages={"talker": talker(answer("ABORTING"))}))
    assert found.complete
    pending = [one for one in stories.spoken() if (one.event, one.stage) != ("finished", "talker")]
    found = verdict(pending, document("ended", stages={"talker": talker(answer("ABORTING"))}))
    assert found.text.endswith("; talker/0 has still to confirm the end")
    never = [one for one in pending if (one.event, one.stage) != ("finished", "code2wav")]
    stages = {"talker": talker(answer("ABORTING")), "code2wav": code2wav(submitted=False)}
    assert verdict(never, document("ended", stages=stages)).text == found.text  # it has nothing to confirm


@pytest.mark.parametrize("name", ["{}", "{0}", "{since}", "%s", "%(x)d", "a,b", "\\1"])
def test_t2_a_name_may_hold_anything(name: str) -> None:
    facts = [*stories.asked({"stages": name, "all_stages": name, "final_stages": name}), fact(2, "queued", name)]
    live = document("waiting", queue={"why": "full", "lacks": name, "replicas": name, "since_ns": ns(2)})
    assert f"all places of {name} are taken ({name})" in verdict(facts, live).text
    assert name in verdict([*facts[:2], fact(3, "submitted", name)], document(stages={name: stage(name)})).text


def test_t2_the_consumer_that_has_not_registered_holds_back_who_is_not_submitted() -> None:
    """And not one that has; where all have, it is the router's move."""
    names = ("source", "left", "right")
    plan: dict[str, Value] = {"stages": ",".join(names), "all_stages": ",".join(names), "final_stages": "left,right"}
    facts = [*stories.asked(plan | {"edges": "source>left,source>right"}), *stories.bound(2, *names)]
    starved = answer("WAITING_FOR_CHUNK", inputs=[came("source", 0)])
    stages = {"source": stage("source", submitted=False, registered=False), "left": stage("left", starved)}
    found = verdict(facts, document(stages=stages | {"right": stage("right", registered=False)}))
    assert (found.cause, found.stage, found.owner) == ("registration", "right", "right/0")
    found = verdict(facts, document(stages=stages | {"right": stage("right", starved)}))
    assert (found.cause, found.stage, found.owner) == ("registration", "source", "router")
    unsubmitted = stage("right", submitted=False, registered=False)
    assert verdict(facts, document(stages=stages | {"right": unsubmitted})).stage == "source"


def test_t2_a_stage_with_all_that_its_source_had_is_the_one_though_its_edge_has_not_ended() -> None:
    facts = [*MIDDLE, stories.finished(91, "thinker")]
    used_up = talker(answer(made_ms=80, inputs=[came("thinker", 8)], edges=[sent("code2wav", 4)]))
    found = verdict(facts, chain(thinker=thinker(finished=True), talker=used_up))
    assert (found.cause, found.stage, found.owner) == ("engine", "talker", "talker/0")


def test_b1_since_when_the_caller_has_to_read_and_how_much() -> None:
    full = {**reader(16, full=True), "consumed": 6, "since_ns": 0}
    found = verdict(MIDDLE, chain(thinker=thinker(answer("PAUSED", made_ms=70, caller=full))))
    assert (found.cause, found.since_ns) == ("caller_reads", ns(70))
    assert ": 10 outputs (160 bytes) are unread, its window has 16" in found.text
    large = {**full, "unread_bytes": 4096, "window_bytes": 4096}
    found = verdict(MIDDLE, chain(thinker=thinker(answer("PAUSED", made_ms=70, caller=large))))
    assert ": 10 outputs (4096 bytes) are unread, its window has 4096 bytes" in found.text


def test_t2_of_two_inputs_the_one_that_brought_nothing_is_awaited() -> None:
    names = ("left", "right", "sink")
    plan: dict[str, Value] = {"stages": ",".join(names), "all_stages": ",".join(names), "final_stages": "sink"}
    facts = [*stories.asked(plan | {"edges": "left>sink,right>sink"}), *stories.bound(2, *names)]
    facts += [*stories.registered(3, *names), *(fact(40, "first_output", name) for name in ("left", "right"))]
    goes_on, stands = answer(made_ms=9990, outputs=3), answer(made_ms=50, outputs=3)
    for left, right, awaited in ((stands, goes_on, "right"), (goes_on, stands, "right")):
        starved = answer("WAITING_FOR_INPUT", inputs=[came("left", 4), came("right", 0)])
        stages = {"left": stage("left", left), "right": stage("right", right), "sink": stage("sink", starved)}
        assert verdict(facts, document(stages=stages)).stage == awaited


def test_t2_a_source_tells_when_it_gave_something_by_its_outputs_or_its_chunks() -> None:
    """Whichever was later: it is fed by nobody."""
    for made_ms, last_ms in ((9700, 50), (50, 9700)):
        gave = answer(made_ms=made_ms, outputs=4, edges=[sent("talker", 4, last_ms=last_ms)])
        assert "goes on: its last output was 300 ms ago" in verdict(MIDDLE, chain(thinker=thinker(gave))).text


def test_t2_what_was_fed_last_over_any_edge_counts_as_all_that_a_stage_has_used_in_vain() -> None:
    names = ("left", "right", "sink", "end")
    plan: dict[str, Value] = {"stages": ",".join(names), "all_stages": ",".join(names), "final_stages": "end"}
    facts = [*stories.asked(plan | {"edges": "left>sink,right>sink,sink>end"}), *stories.bound(2, *names)]
    facts += [*stories.registered(3, *names), *(fact(40, "first_output", name) for name in names[:3])]
    goes_on = answer(made_ms=9990, outputs=3)
    inputs = [came("left", 4, last_ms=50), came("right", 4, last_ms=90)]
    for made_ms, awaited in ((70, "sink"), (95, "left")):
        sink = answer(made_ms=99, inputs=inputs, edges=[sent("end", 4, last_ms=made_ms)])
        end = answer("WAITING_FOR_CHUNK", inputs=[came("sink", 4, last_ms=made_ms)])
        stages = {"left": stage("left", goes_on), "right": stage("right", goes_on)}
        stages |= {"sink": stage("sink", sink), "end": stage("end", end)}
        assert verdict(facts, document(stages=stages)).stage == awaited
