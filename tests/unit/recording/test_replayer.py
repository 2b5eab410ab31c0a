"""Replays of transcripts: what an attempt says again, where two cores part, and what a scenario can leave out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.pipelines import config
from support.playbook import RouterPlay, rid
from support.recordings import RecordedCore, first_difference, parsed, steps

from omnizmq.protocol import Abort, Delivery, ErrorInfo, Terminal
from omnizmq.recording import file, scenario
from omnizmq.recording.file import Recording
from omnizmq.recording.replayer import Difference, difference
from omnizmq.router.messages import ClientSent

REQUEST = rid("demo")


class Recorded(RouterPlay):
    """A transcript of a deployment of one stage with two replicas, recorded."""

    def __init__(self, graph: str = "thinker:text", **stage: Any) -> None:
        name = graph.partition(":")[0]
        super().__init__(config(graph, stages={name: {"replicas": 2} | stage}), ready=False)
        self.core: RecordedCore = RecordedCore(self.core.config)
        for replica in self.core.pools.replicas:
            self.starts(replica)

    @property
    def recording(self) -> Recording:
        return parsed(self.core.config, self.core.lines)

    def lost_after(self, *made: str | bytes, graph: str = "thinker") -> None:
        """The first attempt made this; the second one has registered."""
        for replica, number in ((f"{graph}/0", 1), (f"{graph}/1", 2)):
            if number == 1:
                self._feed(self.submits("alice"))
            else:
                self._feed(self.dies(f"{graph}/0"))
            self._feed(self.registers(replica, REQUEST, number))
            for seq, content in enumerate(made if number == 1 else (), 1):
                self._feed(self.makes(replica, REQUEST, seq, content))

    def says(self, *made: str | bytes, last: bool = False, graph: str = "thinker") -> ErrorInfo | None:
        """What the second attempt makes; the error that the caller is told."""
        came: list[Any] = []
        for seq, content in enumerate(made, 1):
            end = last and seq == len(made)
            came += self._feed(self.makes(f"{graph}/1", REQUEST, seq, content, last=end, attempt=2))
        terminals = [one.frame for one in came if isinstance(getattr(one, "frame", None), Terminal)]
        return terminals[0].error if terminals else None


class TestASecondAttempt:
    @pytest.mark.parametrize("again", [("Hello", " all"), ("Hel", "lo all"), ("Hello all",), ("H", "ello all you")])
    def test_that_says_the_same_is_replayed_however_it_is_cut(self, again: tuple[str, ...]) -> None:
        play = Recorded()
        play.lost_after("Hell", "o all")
        assert play.says(*again) is None
        assert first_difference(play.recording) is None

    @pytest.mark.parametrize("again", [("Jello", " all"), ("Hello", " ill"), ("Hello ill you",), ("x" * 9,)])
    def test_that_says_something_else_fails_in_the_replay_too(self, again: tuple[str, ...]) -> None:
        play = Recorded()
        play.lost_after("Hell", "o all")
        error = play.says(*again)
        assert error is not None
        assert "is another one" in error.message
        assert first_difference(play.recording) is None

    def test_sound_is_told_apart_by_its_bytes(self) -> None:
        for again, fails in ((bytes(16), False), (bytes(12) + b"\0\0\0\1", True)):
            play = Recorded("speaker:audio")
            play.lost_after(bytes(8), bytes(8), graph="speaker")
            assert (play.says(again, graph="speaker") is not None) == fails
            assert first_difference(play.recording) is None

    def test_that_ends_too_soon_shows_by_its_length(self) -> None:
        play = Recorded()
        play.lost_after("Hello")
        error = play.says("Hel", last=True)
        assert error is not None
        assert "too soon" in error.message
        assert not any(b'"other"' in line for line in play.core.lines)
        assert first_difference(play.recording) is None

    def test_the_mark_is_what_tells(self) -> None:
        play = Recorded()
        play.lost_after("Hello")
        assert play.says("Jello") is not None
        marked = next(n for n, line in enumerate(play.core.lines) if b'"other":true' in line)
        play.core.lines[marked] = play.core.lines[marked].replace(b',"other":true', b"")
        parted = first_difference(play.recording)
        assert parted is not None
        assert parted.startswith(f"event {marked + 1} ")


def changed(recording: Recording, n: int, effects: list[Any]) -> Recording:
    """Its n-th event, counted from 1, led to something else."""
    lines = list(recording.lines)
    lines[n - 1] = msgspec.structs.replace(lines[n - 1], effects=effects)
    return msgspec.structs.replace(recording, lines=lines)


class TestWhereTwoCoresPart:
    def test_a_field_is_named(self) -> None:
        play = Recorded()
        play._feed(play.submits("alice"))
        n = len(play.recording.lines)
        effects = msgspec.json.decode(msgspec.json.encode(play.recording.lines[-1].effects))
        submit = next(one for one in effects if one["$"] == "ToWorker")
        submit["frame"]["attempt"] = 7
        step = steps(changed(play.recording, n, effects))[-1]
        assert not step.agrees
        assert difference(step) == Difference("1.frame.attempt", 7, 1)

    def test_a_command_that_is_missing_or_too_much_is_named_by_its_number(self) -> None:
        play = Recorded()
        play._feed(play.submits("alice"))
        n, effects = len(play.recording.lines), play.recording.lines[-1].effects
        assert difference(steps(changed(play.recording, n, []))[-1]).expected == "nothing"
        more = difference(steps(changed(play.recording, n, [*effects, {"$": "Drained"}]))[-1])
        assert more == Difference("2", {"$": "Drained"}, "nothing")

    def test_facts_of_the_trace_are_not_compared(self) -> None:
        play = Recorded()
        play._feed(play.submits("alice"))
        n, effects = len(play.recording.lines), play.recording.lines[-1].effects
        bare = [one for one in effects if one["$"] != "Fact"]
        assert len(bare) < len(effects)
        assert first_difference(changed(play.recording, n, bare)) is None


class TestScenario:
    def made(self, play: Recorded, external_id: str) -> list[file.Line]:
        return scenario.of_request(play.core.config, list(file.events(play.recording)), rid(external_id))

    def test_others_are_left_out_and_so_is_the_time_that_nobody_needs(self) -> None:
        play = Recorded()
        play._feed(play.submits("alice"))
        play.waits(20)
        play._feed(play.submits("bob", "other"))
        play._feed(ClientSent(b"alice", Abort(1, "demo")))
        play._feed(play.submits("carol", "third"))
        lines = self.made(play, "demo")
        assert [line.n for line in lines] == list(range(1, len(lines) + 1))
        assert not any("other-" in str(line) or "third-" in str(line) for line in lines)
        assert not any(line.event["$"] == "Ticked" for line in lines)
        assert lines[-1].event["frame"]["$"] == "Abort"

    def test_a_timer_keeps_its_tick(self) -> None:
        play = Recorded()
        play._feed(play.submits("alice", deadline_s=2.5))
        play.waits(4)
        ticks = [line for line in self.made(play, "demo") if line.event["$"] == "Ticked"]
        assert len(ticks) == 1
        assert any(one.get("frame", {}).get("$") == "Terminal" for one in ticks[0].effects)

    def test_of_all_is_what_was_recorded(self) -> None:
        play = Recorded(max_inflight=1, max_registered=1, replicas=1)
        for client in ("alice", "bob"):
            play._feed(play.submits(client, client))
        play._feed(play.finishes("thinker/0", rid("alice"), outputs=0))
        events = list(file.events(play.recording))
        assert [line.effects for line in scenario.whole(play.core.config, events)] == [
            line.effects for line in play.recording.lines
        ]

    def test_an_external_id_means_its_bearers_in_order(self) -> None:
        play = Recorded()
        for suffix in ("0" * 16, "1" * 16):
            play._feed(play.submits("alice", suffix=suffix))
        found = scenario.request_ids(steps(play.recording), "demo")
        assert found == [rid("demo", "0" * 16), rid("demo", "1" * 16)]
        assert scenario.request_ids(steps(play.recording), found[0]) == found[:1]
        assert scenario.request_ids(steps(play.recording), "nobody") == []


def test_a_delivery_stands_for_as_many_characters() -> None:
    play = Recorded()
    play._feed(play.submits("alice"))
    play._feed(play.registers("thinker/0", REQUEST))
    (told,) = [one.frame for one in play._feed(play.makes("thinker/0", REQUEST, 1, "séance")) if hasattr(one, "frame")]
    assert isinstance(told, Delivery)
    orders = steps(play.recording)[-1].got
    (delivery,) = [one["frame"] for one in orders if one["$"] == "ToClient"]
    assert delivery["content"] == {"$": "Text", "text": {"$chars": 6}}
