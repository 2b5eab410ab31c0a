"""What of a recording one request needs: others who held its place, heartbeats and ticks, questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from support.pipelines import config
from support.playbook import RouterPlay, rid
from support.recordings import RecordedCore, first_difference, parsed

from omnizmq.errors import InvalidRequestError
from omnizmq.protocol import AskStatus, AskTrace, StageAnswer
from omnizmq.recording import file, needed, scenario
from omnizmq.recording.file import Line
from omnizmq.router.messages import ClientSent, Ticked


class Recorded(RouterPlay):
    """A transcript of a deployment of one stage with one replica, recorded."""

    def __init__(self, **stage: Any) -> None:
        super().__init__(config("thinker:text", stages={"thinker": stage}), ready=False)
        self.core: RecordedCore = RecordedCore(self.core.config)
        self.starts("thinker/0")

    @property
    def events(self) -> needed.Events:
        return list(file.events(parsed(self.core.config, self.core.lines)))

    def made(self, external_id: str, *, questions: bool = False) -> list[Line]:
        """The scenario of the request; it is replayed alike."""
        lines = scenario.of_request(self.core.config, self.events, rid(external_id), questions=questions)
        assert first_difference(parsed(self.core.config, list(map(file.encoded, lines)))) is None
        return lines

    def asks(self, id_: str) -> None:
        """`status`, and `trace` of a live request, which its worker answers."""
        self._feed(ClientSent(b"operator", AskStatus(1)))
        self._feed(ClientSent(b"operator", AskTrace(2, id_)))
        said = StageAnswer(
            1, rid(id_), 1, 1, "running", self.now_ns, 0, 1, 4, 0, "stepping", 0, True, 0, 0, [], [], None
        )
        self._feed(self.worker("thinker/0", StageAnswer, **{**msgspec.structs.asdict(said), "incarnation": 1}))

    def hangs(self, seconds: float) -> None:
        """The engine steps on and on."""
        since = self.now
        while self.now - since < seconds:
            self.now += 0.5
            self._feed(self.beats("thinker/0", "stepping", since))
            self._feed(Ticked())


def named(lines: Sequence[Line]) -> list[str]:
    """The frames, or where there are none the events."""
    return [(line.event.get("frame") or line.event)["$"] for line in lines]


def ordered(lines: Sequence[Line]) -> list[str]:
    """The commands of all lines."""
    return [order["$"] for line in lines for order in line.effects if order["$"] != "Fact"]


def test_who_held_its_place_stays_and_nobody_else_does() -> None:
    play = Recorded(max_inflight=1, max_registered=1)
    for name in ("alice", "bob", "carol"):
        play._feed(play.submits(name, name))
    for name in ("alice", "bob"):
        play._feed(play.finishes("thinker/0", rid(name), outputs=0))
    lines = play.made("bob")
    assert scenario.others(lines, rid("bob")) == [rid("alice")]
    assert named(lines).count("StageFinished") == 2


def test_a_hang_keeps_the_heartbeat_and_the_tick_at_which_its_replica_is_killed() -> None:
    play = Recorded(step_timeout_s=5)
    play._feed(play.submits("alice", "early"))
    play._feed(play.finishes("thinker/0", rid("early"), outputs=0))
    play._feed(play.submits("bob", "hung"))
    play._feed(play.submits("carol", "beside"))
    play.hangs(6)
    play._feed(play.dies("thinker/0", "stuck"))
    lines = play.made("hung")
    assert scenario.others(lines, rid("hung")) == []
    assert ordered(lines).count("KillReplica") == 1
    assert named(lines)[-3:] == ["Heartbeat", "Ticked", "ReplicaExited"]
    assert named(lines).count("Heartbeat") == 2


def test_replicas_that_were_lost_before_it_came_are_lost_in_its_scenario_too() -> None:
    play = Recorded()
    play._feed(play.submits("alice", "early"))
    play._feed(play.dies("thinker/0"))
    play.starts("thinker/0")
    play._feed(play.submits("bob", "late"))
    play.waits(3)
    play._feed(play.dies("thinker/0"))
    lines = play.made("late")
    assert scenario.others(lines, rid("late")) == []
    assert named(lines).count("ReplicaExited") == 2
    assert "Ticked" not in named(lines)


class TestQuestions:
    def asked(self) -> Recorded:
        play = Recorded()
        play._feed(play.submits("alice", "demo"))
        play._feed(play.submits("bob", "other"))
        play.asks("demo")
        play._feed(play.finishes("thinker/0", rid("demo"), outputs=0))
        return play

    def test_they_are_left_out_though_a_status_tells_of_everybody(self) -> None:
        lines = self.asked().made("demo")
        assert not set(named(lines)) & {"AskStatus", "AskTrace", "StageAnswer"}
        assert scenario.others(lines, rid("demo")) == []

    def test_those_about_it_stay_where_that_is_asked_for(self) -> None:
        lines = self.asked().made("demo", questions=True)
        assert [name for name in named(lines) if name in needed.QUESTIONS] == ["AskTrace", "StageAnswer"]

    def test_a_scenario_of_all_has_them_where_that_is_asked_for(self) -> None:
        play = self.asked()
        without = scenario.whole(play.core.config, play.events)
        assert len(without) == len(play.events) - 3
        assert not set(named(without)) & set(needed.QUESTIONS)
        assert len(scenario.whole(play.core.config, play.events, questions=True)) == len(play.events)


def test_a_recording_of_other_commands_is_refused_with_the_event() -> None:
    play = Recorded()
    play._feed(play.submits("alice", "demo"))
    play._feed(play.finishes("thinker/0", rid("demo"), outputs=0))
    events = play.events
    last, event = events[-1]
    wrong = [*events[:-1], (msgspec.structs.replace(last, effects=[]), event)]
    with pytest.raises(InvalidRequestError, match=rf"is not what this omnizmq orders, first at event {last.n}: "):
        scenario.of_request(play.core.config, wrong, rid("demo"))


def test_what_the_budget_does_not_reach_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Recorded()
    play._feed(play.submits("alice", "demo"))
    play.waits(5)
    play._feed(play.finishes("thinker/0", rid("demo"), outputs=0))
    assert "Ticked" not in named(play.made("demo"))
    monkeypatch.setattr(needed, "BUDGET", 0)
    assert len(play.made("demo")) == len(play.events)
