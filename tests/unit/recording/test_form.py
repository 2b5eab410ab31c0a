"""What a recording says of an event: all that the core looks at, and nothing of what callers said or got."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from support.playbook import submission

from omnizmq import protocol as wire
from omnizmq.errors import ProtocolError, StageError
from omnizmq.recording import form
from omnizmq.router import door
from omnizmq.router import messages as msg
from omnizmq.trace.facts import Fact

SECRET = "sésame, öffne dich"
FILE = b"RIFF" + SECRET.encode()


def sent(frame: Any) -> msg.ClientSent:
    return msg.ClientSent(b"\x00alice", frame)


def made(frame: Any) -> msg.WorkerSent:
    return msg.WorkerSent("thinker/0", 1, frame)


def output(content: wire.Content | None) -> msg.WorkerSent:
    return made(wire.Output("demo-0", 2, 1, 3, content, False, 5))


MESSAGES = [
    wire.Message("system", [wire.TextPart(SECRET)]),
    wire.Message("user", [wire.TextPart("and"), wire.AudioPart(FILE), wire.ImagePart(FILE)]),
]
LOGPROBS = wire.TextWithLogprobs(
    SECRET, [wire.TokenLogprob(SECRET.encode(), -0.5, [(SECRET.encode(), -0.5), (b"other", -math.inf)])]
)
EVENTS = [
    sent(submission(prompt=wire.Prompt(SECRET, None, None), deadline_s=2.5, modalities=["text"], affinity="key")),
    sent(submission(prompt=wire.Prompt(None, MESSAGES, None))),
    sent(submission(prompt=wire.Prompt(None, None, [5, 6, 7]))),
    sent(submission(prompt=wire.Prompt(SECRET, MESSAGES, None))),
    sent(submission(deadline_s=math.inf, params={"$thinker": {"$chars": 5}})),
    sent(wire.Abort(1, "demo")),
    sent(wire.Consumed("demo-0", "thinker", 4)),
    sent(wire.Operate(1, "drain", "thinker/0", 2.0, False)),
    sent(wire.AskStatus(2)),
    sent(wire.AskTrace(2, "demo")),
    sent(wire.Bye("done")),
    msg.ClientGone(b"\xff", "its process ended"),
    msg.ReplicaStarting("thinker/0", 1, 4711),
    msg.WorkerJoined("thinker/0", 1, "ipc://x"),
    made(wire.Heartbeat(1, "idle", 5, "", [wire.RingUse("talker", 64, 3, 0)], 0, 0, 0)),
    made(wire.StageFact("demo-0", 1, 1, "parked", 5, {"to": "talker", "sent": 3})),
    made(wire.StagePaused("demo-0", 1, 1, True, 5)),
    output(wire.Text(SECRET)),
    output(LOGPROBS),
    output(wire.Audio(bytes(range(96)), 24_000)),
    output(None),
    made(wire.RelayContent("demo-0", 1, 1, "talker", FILE)),
    made(
        wire.StageFinished(
            "demo-0",
            1,
            1,
            None,
            wire.ErrorInfo.of(StageError("it broke", stage="thinker")),
            {"tokens": 4, "seconds": math.nan},
            "a note",
            2,
            [wire.EdgeCount("talker", 3, 30, 1, 2, 7)],
            5,
        )
    ),
    made(
        wire.StageAnswer(
            *(2, "demo-0", 1, 1, "RUNNING", 5, 4, 1, 8, 0, "idle", 3, False, 2, 6),
            [wire.InputState("left", "left/0", "chunk", 4, 3, False, False, 9)],
            [
                wire.EdgeState(
                    "talker", "talker/0", "chunk", 4, 4, 1, 8, 30, False, False, 9, "ring", 8, 64, 64, ["x-0"]
                )
            ],
            wire.CallerState(5, 1, 4, 10, 20, 2, True, 7),
        )
    ),
    msg.WorkerUnreachable("thinker/0", 1, "demo-0", 1, "why"),
    msg.FrameUnsendable("thinker/0", 1, "demo-0", 1, True, "why"),
    msg.ReplicaExited("thinker/0", 1, "killed"),
    msg.Ticked(),
    msg.DrainAsked(),
    msg.StopAsked("why"),
]
"""One of every kind, and of every frame in it."""


def name_of(event: Any) -> str:
    return type(getattr(event, "frame", event)).__name__


@pytest.mark.parametrize("event", EVENTS, ids=name_of)
def test_what_a_tree_stands_for_has_the_same_tree(event: msg.Input) -> None:
    written = msgspec.json.decode(msgspec.json.encode(form.tree(event)))
    again = form.event(written)
    assert type(again) is type(event)
    assert form.tree(again) == written


@pytest.mark.parametrize("event", EVENTS, ids=name_of)
def test_nothing_of_what_callers_said_or_got_is_written(event: msg.Input) -> None:
    written = msgspec.json.encode(form.tree(event)).decode()
    assert "same" not in written
    assert "UklGR" not in written  # RIFF in base64


def frames(union: Any) -> set[type]:
    return set(union.__args__)


def test_every_event_and_every_frame_that_comes_is_among_those() -> None:
    assert {type(event) for event in EVENTS} == frames(msg.Input)
    came = {type(event.frame) for event in EVENTS if isinstance(event, msg.ClientSent | msg.WorkerSent)}
    assert came == frames(wire.ClientToRouter | wire.WorkerToRouter)


@pytest.mark.parametrize("prompt", [wire.Prompt(SECRET, None, None), wire.Prompt(None, MESSAGES, None)])
def test_a_stand_in_of_a_prompt_has_its_size(prompt: wire.Prompt) -> None:
    found = form.event(form.tree(sent(submission(prompt=prompt))))
    assert isinstance(found, msg.ClientSent)
    assert isinstance(found.frame, wire.Submit)
    assert found.frame.prompt.size() == prompt.size()
    assert found.frame.prompt != prompt


def test_parameters_keep_their_names_their_numbers_and_their_length_in_json() -> None:
    params: dict[str, dict[str, wire.Param]] = {
        "thinker": {
            "temperature": 0.7,
            "greedy": False,
            "stop": [SECRET, 'quoted "x"\n'],
            "suffix": SECRET,
            "tokens": [1, 22, -333, 4.5, None, True],
            "bias": {"7": 100},
            "nothing": None,
        }
    }
    found = form.event(form.tree(sent(submission(params=params))))
    assert isinstance(found, msg.ClientSent)
    assert isinstance(found.frame, wire.Submit)
    stood = found.frame.params
    kept = {"temperature": 0.7, "greedy": False, "nothing": None}
    assert {name: stood["thinker"][name] for name in kept} == kept
    assert stood["thinker"].keys() == params["thinker"].keys()
    assert "same" not in str(stood)
    texts = params["thinker"]["stop"], params["thinker"]["suffix"]
    assert len(wire.encode_json((stood["thinker"]["stop"], stood["thinker"]["suffix"]))) == len(wire.encode_json(texts))
    assert stood["thinker"]["tokens"] != params["thinker"]["tokens"]


def test_what_the_door_counts_stays_on_its_side_of_the_limit() -> None:
    at_the_limit = door.SETTINGS_BYTES - len(wire.encode_json(({"thinker": {"stop": ""}}, None, None)))
    for text in ("é" * (at_the_limit // 2), "x" * at_the_limit):
        params: dict[str, dict[str, wire.Param]] = {"thinker": {"stop": text}}
        found = form.event(form.tree(sent(submission(params=params))))
        assert isinstance(found, msg.ClientSent)
        assert isinstance(found.frame, wire.Submit)
        assert len(wire.encode_json(found.frame.params)) == len(wire.encode_json(params))


def test_tokens_with_their_logprobs_keep_their_number_and_sizes() -> None:
    """Another attempt skips what the caller has of them by their number."""
    found = form.event(form.tree(output(LOGPROBS)))
    assert isinstance(found, msg.WorkerSent)
    assert isinstance(found.frame, wire.Output)
    assert isinstance(found.frame.content, wire.TextWithLogprobs)
    stood = found.frame.content.logprobs
    assert [each.size() for each in stood] == [each.size() for each in LOGPROBS.logprobs]
    assert len(stood[0].token) > len(SECRET.encode()), "what is likely beside it counts, and is not there"


def test_an_output_that_says_something_else_is_told_from_one_that_does_not() -> None:
    for content in (wire.Text("no"), LOGPROBS, wire.Audio(bytes(8), 24_000)):
        same = form.event(form.tree(output(content)))
        other = form.event(form.marked_other(form.tree(output(content))))
        assert isinstance(same, msg.WorkerSent)
        assert isinstance(other, msg.WorkerSent)
        assert form.tree(same)["frame"]["seq"] == form.tree(other)["frame"]["seq"]
        assert same != other


def test_a_fact_that_quotes_what_was_said_quotes_nothing_in_a_recording() -> None:
    for event in ("prompt", "output"):
        fact = Fact("demo-0", "demo", 1, 5, "router", event, "thinker", {"text": SECRET})
        assert form.tree(fact)["detail"] == {}


def test_a_status_is_compared_without_what_sockets_count() -> None:
    status = wire.Status(1, b'{"queued": 2, "counters": {"requests": 3, "bad_frames": 4, "late_frames": 5}}')
    assert form.tree(status)["json"] == {"queued": 2, "counters": {"requests": 3}}


EMPTY = [
    (sent(submission(affinity=None)), "affinity"),
    (sent(submission(priority=0)), "priority"),
    (made(wire.StageFact("demo-0", 1, 1, "running", 5, {})), "detail"),
    (made(wire.Heartbeat(1, "idle", 5, "", [], 0, 0, 0)), "rings"),
    (made(wire.Heartbeat(1, "idle", 5, "", [], 0, 0, 0)), "text"),
    (made(wire.StagePaused("demo-0", 1, 1, False, 5)), "paused"),
]


@pytest.mark.parametrize(("event", "field"), EMPTY)
def test_what_an_older_omnizmq_did_not_know_is_null_or_empty(event: msg.Input, field: str) -> None:
    old = form.tree(event)
    del old["frame"][field]
    assert form.tree(form.event(old)) == form.completed(old) == form.tree(event)


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        ({}, "an event of the router was expected, not {}"),
        ({"$": "Submit"}, "an event of the router was expected"),
        ({"$": "Ticked", "soon": 1}, "a Ticked has no soon"),
        ({"$": "StopAsked", "why": 5}, "a StopAsked that does not decode"),
        ({"$": "ClientSent", "client": "AA==", "frame": {"$": "Hug"}}, "no frame or event is named Hug"),
        ({"$": "ClientSent", "client": "AA==", "frame": {"$": "Abort", "call": "x", "id": "y"}}, "does not decode"),
        ({"$": "ClientSent", "client": {"$bytes": 3}, "frame": 5}, "does not decode"),
    ],
)
def test_what_is_no_event_says_why(tree: dict[str, Any], why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        form.event(tree)
