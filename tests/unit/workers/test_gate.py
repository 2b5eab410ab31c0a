"""The worker's gate, by transcripts: what comes in, and every command that must follow, in order."""

from __future__ import annotations

import numpy as np
import pytest
from support.gate_play import (
    CODE2WAV,
    NOW,
    RID,
    THINKER,
    GatePlay,
    aborted,
    asks_abort,
    by,
    chunk,
    chunk_frame,
    closed,
    closes,
    counted,
    credit,
    edge_end,
    edge_failed,
    ended,
    engine_failed,
    fact,
    failed_on_edge,
    fed,
    finished,
    forget,
    gives_credit,
    hold,
    input_ended,
    lost,
    made,
    output,
    problem,
    ran,
    relayed,
    run,
    sent,
    small,
    source,
    submit,
    target,
    took,
    unreachable,
)

from omnizmq import protocol as wire
from omnizmq.errors import InvalidRequestError, StageError
from omnizmq.workers.engine import Audio, Chunk
from omnizmq.workers.messages import DropPeer, EngineMade, RouterSent, ToConsumer, ToRouter


def registered(frame: wire.SubmitStage, **options: object) -> GatePlay:
    """A gate that holds this request and nothing else."""
    play = GatePlay(**options)  # type: ignore[arg-type]
    play.registers(frame)
    assert play
    return play


def running(frame: wire.SubmitStage | None = None) -> GatePlay:
    """A request with its first chunk: it may run."""
    play = registered(frame or submit(THINKER))
    assert play >> chunk(1) << fed(1) << fact("input_ready") << run()
    return play


def first_stage(*targets: wire.Target, final: bool = False) -> GatePlay:
    """A request with a prompt and no edges in: it may run at once."""
    play = GatePlay()
    play.registers(submit(targets=targets, final=final, prompt="hello"))
    assert play << fact("input_ready") << run()
    return play


class TestSubmission:
    def test_s1_the_registration_is_told_before_anything_else(self) -> None:
        play = GatePlay()
        play.registers(submit(THINKER))
        assert play
        assert play.gate.live == 1

    def test_s2_a_second_submission_of_an_attempt_changes_nothing(self) -> None:
        play = registered(submit(THINKER))
        play.drops(RouterSent(submit(THINKER)))

    def test_s2_another_attempt_is_another_work(self) -> None:
        play = registered(submit(THINKER))
        play.registers(submit(THINKER, attempt=2))
        assert play
        assert play.gate.live == 2

    def test_s2_facts_bear_the_time_at_which_they_happened(self) -> None:
        play = running()
        play.now = NOW + 500
        assert play >> ran(NOW + 200) << fact("running", at_ns=NOW + 200)
        assert play >> made("a", at_ns=NOW + 300) << fact("first_output", at_ns=NOW + 300)

    def test_a_stage_with_a_prompt_and_no_edges_runs_at_once(self) -> None:
        first_stage()


class TestR1:
    """A placeholder is never computed on."""

    def test_r1_a_chunk_edge_waits_for_its_first_chunk(self) -> None:
        play = registered(submit(THINKER))
        assert play.state() == "WAITING_FOR_CHUNK"
        assert play >> chunk(1) << fed(1) << fact("input_ready") << run()
        assert play.state() == "RUNNING"
        assert play >> chunk(2) << fed(2)

    def test_r1_an_edge_that_ends_without_a_chunk_is_input_too(self) -> None:
        play = registered(submit(THINKER))
        assert play >> edge_end(0) << input_ended() << fact("input_ready") << run()

    def test_r1_a_payload_edge_waits_until_it_is_whole(self) -> None:
        thinker = source(mode="payload")
        play = registered(submit(thinker))
        assert play.state() == "WAITING_FOR_INPUT"
        assert play >> chunk(1) << credit(1, thinker)
        assert play >> chunk(2) << credit(2, thinker)
        assert play.state() == "WAITING_FOR_INPUT"
        assert play >> edge_end(2) << fed(1) << fed(2) << input_ended() << fact("input_ready") << run()

    def test_r1_a_payload_that_has_begun_is_no_input_and_when_it_is_whole_it_is_the_engines(self) -> None:
        hearer = source("hearer", "payload")
        play = registered(submit(THINKER, hearer))
        assert play >> chunk(1, "hearer") << credit(1, hearer)
        assert play >> chunk(1) << fed(1) << credit(1)
        play >> edge_end(1, "hearer") << fed(1, "hearer") << input_ended("hearer")
        assert play << fact("input_ready") << run()
        (work,) = play.gate._work.values()
        assert work.sources["hearer"].held == []
        assert play >> took(1, "hearer")  # credited long ago

    def test_p5_a_relay_edge_gets_its_input_from_the_router_whole(self) -> None:
        play = registered(submit(source(mode="relay")))
        assert play.state() == "WAITING_FOR_INPUT"
        assert play >> relayed(small(1), small(2)) << fed(1) << fed(2) << input_ended() << fact("input_ready") << run()
        play.drops(relayed(small(3)))

    def test_p5_of_several_edges_all_must_have_input(self) -> None:
        hearer = source("hearer")
        play = registered(submit(THINKER, hearer))
        assert play >> chunk(1) << fed(1) << credit(1)  # its producer may be what the other edge waits for
        assert play.state() == "WAITING_FOR_CHUNK"
        assert play >> chunk(1, "hearer") << fed(1, "hearer") << fact("input_ready") << run()

    def test_p5_of_several_edges_any_will_do(self) -> None:
        play = registered(submit(THINKER, source("hearer")), ready="any")
        assert play >> chunk(1, "hearer") << fed(1, "hearer") << fact("input_ready") << run()

    def test_p5_a_stage_without_edges_waits_for_none_of_any(self) -> None:
        play = GatePlay(ready="any")
        play.registers(submit(targets=(), prompt="hello"))
        assert play << fact("input_ready") << run()

    def test_r1_what_waits_is_named_by_the_edge_that_lacks_input(self) -> None:
        play = registered(submit(THINKER, source("hearer", "payload")))
        assert play.state() == "WAITING_FOR_CHUNK"
        assert play >> chunk(1) << fed(1) << credit(1)
        assert play.state() == "WAITING_FOR_INPUT"


class TestR2:
    """Nothing is skipped in silence."""

    @pytest.mark.parametrize("seq", [1, 0, -5])
    def test_r2_a_chunk_seen_before_is_dropped_and_counted(self, seq: int) -> None:
        play = running()
        play.drops(chunk(seq))
        assert play >> chunk(2) << fed(2)

    def test_r2_a_gap_fails_the_stage(self) -> None:
        play = running()
        error = problem(
            "incomplete_input", "edge from thinker: chunk 3 follows chunk 1", "thinker", "thinker/0", retriable=True
        )
        edges = [counted()]
        assert (
            play
            >> chunk(3)
            << failed_on_edge(error)
            << closed()
            << forget()
            << finished(None, error=error, edges=edges)
        )
        play.closes_again(chunk(2))
        assert play.gate.live == 0

    @pytest.mark.parametrize("total", [0, 2, -1])
    def test_r2_a_wrong_total_fails_the_stage(self, total: int) -> None:
        play = running()
        text = f"edge from thinker: {total} chunks were sent, 1 arrived"
        error = problem("incomplete_input", text, "thinker", "thinker/0", retriable=True)
        play >> edge_end(total) << failed_on_edge(error) << closed() << forget()
        assert play << finished(None, error=error, edges=[counted()])

    def test_r2_nothing_comes_after_the_end(self) -> None:
        play = running()
        assert play >> edge_end(1) << input_ended()
        play.drops(chunk(2))
        play.drops(edge_end(1))

    def test_r2_a_chunk_that_makes_no_array_fails_its_own_request(self) -> None:
        play = running()
        bad = wire.ArrayData("rows", "<f4", [2**62, 2**62, 0], b"")
        frame = wire.ChunkFrame(RID, 1, 3, "thinker", 2, {}, [bad])
        report = play.gate.handle(by("thinker", frame), NOW)[-1]
        assert isinstance(report, ToRouter)
        assert isinstance(report.frame, wire.StageFinished)
        assert report.frame.error is not None
        assert report.frame.error.code == "protocol_error"
        assert play.gate.live == 0

    def test_r2_an_engine_that_makes_output_after_its_end_fails_the_request(self) -> None:
        play = first_stage(final=True)
        assert play >> made("a", ended=True) << fact("first_output") << output(1, "a", last=True)
        text = "the engine made output after it had said that its output has ended"
        error = problem("stage_error", text, retriable=False)
        assert play >> made("b") << forget() << finished(None, error=error, outputs=1)

    def test_r2_chunks_for_a_stage_that_does_not_follow_fail_the_request(self) -> None:
        play = first_stage()
        text = "the engine made chunks for 'nobody', which does not follow talker"
        error = problem("stage_error", text, retriable=False)
        assert play >> made(to={"nobody": [small(1)]}) << forget() << finished(None, error=error)

    def test_chunks_for_a_stage_that_this_request_does_not_need_go_nowhere(self) -> None:
        play = first_stage(CODE2WAV)
        assert play >> made(to={"captions": [small(1)]}) << fact("first_output")


class TestR3:
    """A producer that fails says so on the edge, with its own error."""

    def test_r3_the_error_goes_on_unchanged_to_the_router_and_to_consumers(self) -> None:
        play = running()
        error = problem("stage_error", "out of memory", "thinker", "thinker/0", retriable=False)
        play >> edge_failed(error) << failed_on_edge(error) << forget()
        assert play << finished(None, error=error, edges=[counted()])

    def test_r3_an_engine_error_is_told_on_the_edges_and_closes_those_that_come_in(self) -> None:
        play = running()
        error = problem("stage_error", "boom", retriable=False)
        play >> engine_failed(StageError("boom")) << failed_on_edge(error) << closed() << forget()
        assert play << finished(None, error=error, edges=[counted()])

    def test_f1_an_output_with_an_error_ends_this_request_alone(self) -> None:
        play = first_stage()
        play.registers(submit(rid="other-0123456789abcdef", targets=(), prompt="hello"))
        play << fact("input_ready", submit(rid="other-0123456789abcdef")) << run("other-0123456789abcdef")
        error = problem("invalid_request", "too long", retriable=False)
        assert play >> made(error=InvalidRequestError("too long")) << forget() << finished(None, error=error)
        assert play.gate.live == 1

    def test_r3_a_relay_consumer_hears_of_it_from_the_router_alone(self) -> None:
        play = first_stage(target(mode="relay"))
        error = problem("stage_error", "boom", retriable=False)
        assert play >> engine_failed(StageError("boom")) << forget() << finished(None, error=error, edges=[counted()])


class TestR5:
    """A consumer may end before its input does."""

    def test_r5_it_closes_the_edge_and_what_still_arrives_is_dropped(self) -> None:
        play = running(submit(THINKER, targets=()))
        assert play >> made(finish_reason="stop") << closed() << finished()
        play.closes_again(chunk(2))
        play.drops(edge_end(2))

    def test_r5_an_edge_that_has_ended_is_not_closed(self) -> None:
        play = running(submit(THINKER, targets=()))
        assert play >> edge_end(1) << input_ended()
        assert play >> made(finish_reason="stop") << finished()

    def test_r5_a_relay_edge_is_not_closed(self) -> None:
        play = registered(submit(THINKER, source("hearer", "relay"), targets=()), ready="any")
        assert play >> chunk(1) << fed(1) << fact("input_ready") << run()
        assert play >> made(finish_reason="stop") << closed() << finished()

    def test_r5_chunks_that_come_while_the_last_ones_go_out_are_dropped(self) -> None:
        play = running()
        play >> made(to={"code2wav": [small(1), small(2), small(3)]}, finish_reason="stop")
        assert play << fact("first_output") << closed() << sent(1) << sent(2) << hold()
        play.drops(chunk(2))
        assert play >> took(1)  # nobody waits for that credit any more
        assert play.state() == "SENDING"
        assert play >> gives_credit(1) << sent(3) << ended(3) << finished(edges=[counted(chunks=3)])

    def test_r5_a_producer_whose_edge_is_closed_goes_on_unharmed(self) -> None:
        play = first_stage(CODE2WAV, final=True)
        play >> made("a", to={"code2wav": [small(1), small(2), small(3)]})
        assert play << fact("first_output") << output(1, "a") << sent(1) << sent(2) << hold()
        assert play >> closes() << run()
        assert play >> made("b", to={"code2wav": [small(4)]}) << output(2, "b")
        assert (
            play
            >> made(finish_reason="stop")
            << output(3, None, last=True)
            << finished(outputs=3, edges=[counted(chunks=2)])
        )


class TestCredits:
    """B1: an edge's credits bound what is under way; a request without them is parked, and no other."""

    def test_b1_a_request_without_credit_is_parked_and_goes_on_with_it(self) -> None:
        play = first_stage(CODE2WAV)
        play >> made(to={"code2wav": [small(1), small(2)]})
        assert play << fact("first_output") << sent(1) << sent(2) << hold()
        assert play.state() == "PARKED"
        assert play >> made(to={"code2wav": [small(3)]})  # of the step that was under way
        assert play >> gives_credit(1) << sent(3)
        assert play >> gives_credit(2) << run()

    def test_b1_the_end_of_the_edge_needs_no_credit_but_follows_the_last_chunk(self) -> None:
        play = first_stage(CODE2WAV)
        play >> made(to={"code2wav": [small(1), small(2), small(3)]}, ended=True)
        assert play << fact("first_output") << sent(1) << sent(2) << hold()
        assert play >> gives_credit(2) << sent(3) << ended(3) << run()
        assert play >> made(finish_reason="stop") << finished(edges=[counted(chunks=3)])

    def test_b1_of_two_consumers_the_slow_one_parks_and_the_other_gets_what_there_is(self) -> None:
        captions = target("captions", window=8)
        play = first_stage(CODE2WAV, captions)
        chunks = [small(1), small(2), small(3)]
        play >> made(to={"code2wav": chunks, "captions": chunks})
        play << fact("first_output") << sent(1) << sent(2)
        assert play << sent(1, to=captions) << sent(2, to=captions) << sent(3, to=captions) << hold()
        assert play >> gives_credit(3, "captions")
        assert play >> gives_credit(2) << sent(3) << run()

    def test_b1_credits_are_cumulative_and_never_more_than_was_sent(self) -> None:
        play = first_stage(CODE2WAV)
        assert (
            play >> made(to={"code2wav": [small(1), small(2)]}) << fact("first_output") << sent(1) << sent(2) << hold()
        )
        assert play >> gives_credit(-3)
        assert play >> gives_credit(10**6) << run()
        assert play >> gives_credit(1)
        play >> made(to={"code2wav": [small(3), small(4), small(5)]})
        assert play << sent(3) << sent(4) << hold()

    def test_b1_a_credit_goes_back_when_the_engine_has_taken_the_chunk_not_when_it_came(self) -> None:
        play = running()
        assert play >> chunk(2) << fed(2)
        assert play >> took(1) << credit(1)
        assert play >> took(1) << credit(2)

    def test_b1_another_request_is_not_parked(self) -> None:
        play = first_stage(CODE2WAV)
        other = "other-0123456789abcdef"
        play.registers(submit(rid=other, prompt="hello"))
        assert play << fact("input_ready", submit(rid=other)) << run(other)
        play >> made(to={"code2wav": [small(1), small(2)]})
        assert play << fact("first_output") << sent(1) << sent(2) << hold()

    def test_b4_an_edge_that_waits_for_another_gives_its_credits_back_at_once_and_only_once(self) -> None:
        hearer = source("hearer")
        play = registered(submit(THINKER, hearer))
        assert play >> chunk(1) << fed(1) << credit(1)
        assert play >> chunk(2) << fed(2) << credit(2)
        assert play >> chunk(1, "hearer") << fed(1, "hearer") << fact("input_ready") << run()
        assert play >> chunk(3) << fed(3)
        assert play >> took(2)
        assert play >> took(1) << credit(3)
        assert play >> took(1, "hearer") << credit(1, hearer)

    def test_b4_what_is_credited_in_advance_is_bounded(self) -> None:
        play = registered(submit(THINKER, source("hearer")))
        half = wire.MESSAGE_BYTES // 2
        for seq, expected in ((1, True), (2, True), (3, False)):
            array = wire.ArrayData("rows", "|u1", [half], bytes(half))
            frame = wire.ChunkFrame(RID, 1, 3, "thinker", seq, {}, [array])
            commands = play.gate.handle(by("thinker", frame), NOW)
            assert (credit(seq) in commands) is expected

    def test_b1_a_payload_may_not_grow_without_bound(self) -> None:
        thinker = source(mode="payload")
        play = registered(submit(thinker, targets=()))
        size = 24 << 20
        array = wire.ArrayData("rows", "|u1", [size], bytes(size))
        for seq in (1, 2):
            commands = play.gate.handle(by("thinker", wire.ChunkFrame(RID, 1, 3, "thinker", seq, {}, [array])), NOW)
            assert commands == [credit(seq, thinker)]
        text = f"the payload from thinker is over {wire.MESSAGE_BYTES} bytes"
        error = problem("stage_error", text, retriable=False)
        commands = play.gate.handle(by("thinker", wire.ChunkFrame(RID, 1, 3, "thinker", 3, {}, [array])), NOW)
        assert commands == [closed(thinker), forget(), finished(None, error=error)]


class TestOutputs:
    def test_p4_content_of_a_stage_that_is_not_final_is_not_delivered(self) -> None:
        play = first_stage(CODE2WAV)
        assert play >> made("text", to={"code2wav": [small(1)]}) << fact("first_output") << sent(1)
        assert play >> made(finish_reason="stop") << ended(1) << finished(edges=[counted(chunks=1)])

    def test_c3_the_end_of_the_output_and_the_end_of_the_stage_are_two(self) -> None:
        play = first_stage(final=True)
        assert play >> made("a") << fact("first_output") << output(1, "a")
        assert play >> made("b", ended=True) << output(2, "b", last=True)
        assert play.gate.live == 1
        usage = {"completion_tokens": 2}
        assert play >> made(finish_reason="length", usage=usage) << finished("length", outputs=2, usage=usage)
        assert play.gate.live == 0

    def test_c3_the_end_goes_with_the_last_content_when_both_are_known(self) -> None:
        play = first_stage(final=True)
        play >> made("a", finish_reason="stop", note="short") << fact("first_output")
        assert play << output(1, "a", last=True) << finished(outputs=1, note="short")

    def test_a_note_stays_when_a_later_output_has_none(self) -> None:
        play = first_stage()
        assert play >> made(note="short")
        assert play >> made(finish_reason="stop") << finished(note="short")

    def test_s2_an_output_without_anything_in_it_is_no_first_output(self) -> None:
        play = first_stage(CODE2WAV)
        assert play >> made(to={"code2wav": []})
        assert play >> made("") << fact("first_output")

    def test_c6_usage_of_several_outputs_is_one(self) -> None:
        play = first_stage()
        assert play >> made(usage={"prompt_tokens": 5, "completion_tokens": 1})
        assert (
            play
            >> made(usage={"completion_tokens": 2}, finish_reason="stop")
            << finished(usage={"prompt_tokens": 5, "completion_tokens": 2})
        )

    def test_audio_goes_as_little_endian_float32(self) -> None:
        play = first_stage(final=True)
        samples = np.array([0.5, -0.5, 0.25], ">f8")[::-1]
        sound = wire.Audio(np.array([0.25, -0.5, 0.5], "<f4").tobytes(), 24_000)
        assert play >> made(Audio(samples, 24_000)) << fact("first_output") << output(1, sound)

    def test_c6_an_edges_count_has_chunks_bytes_and_both_times(self) -> None:
        play = first_stage(CODE2WAV)
        rows = Chunk({"word": "né"}, {"rows": np.zeros((2, 3), np.float32)})
        play.gate.handle(made(to={"code2wav": [rows]}), 50)
        commands = play.gate.handle(made(to={"code2wav": [rows]}, finish_reason="stop"), 90)
        report = next(c.frame for c in commands if isinstance(c, ToRouter) and isinstance(c.frame, wire.StageFinished))
        assert report.edges == [wire.EdgeCount("code2wav", 2, 2 * (24 + 3), 50, 90, 0)]

    def test_p5_a_relay_edge_sends_all_to_the_router_before_its_report(self) -> None:
        play = first_stage(target(mode="relay"))
        assert play >> made(to={"code2wav": [small(1)]}) << fact("first_output")
        frames = [wire.ChunkFrame(RID, 1, 7, "talker", n, {"n": n}, []) for n in (1, 2)]
        content = ToRouter(wire.RelayContent(RID, 1, 7, "code2wav", wire.encode_relay(frames)))
        play >> made(to={"code2wav": [small(2)]}, finish_reason="stop") << content
        assert play << finished(edges=[counted(chunks=2)])

    def test_b1_a_relay_edge_may_not_grow_without_bound(self) -> None:
        play = first_stage(target(mode="relay"))
        half = Chunk({}, {"rows": np.zeros(wire.MESSAGE_BYTES // 2, np.uint8)})
        assert play >> made(to={"code2wav": [half]}) << fact("first_output")
        text = f"the output for code2wav is over {wire.CONTENT_BYTES} bytes"
        error = problem("stage_error", text, retriable=False)
        assert play >> made(to={"code2wav": [half]}) << forget() << finished(None, error=error, edges=[counted()])


BAD_OUTPUTS = {
    "content of bytes": made(b"text"),  # type: ignore[arg-type]
    "text that cannot be UTF-8": made("\ud800"),
    "audio of integers": made(Audio(np.zeros(3, np.int16), 24_000)),  # type: ignore[arg-type]
    "stereo": made(Audio(np.zeros((3, 2), np.float32), 24_000)),
    "no sample rate": made(Audio(np.zeros(3, np.float32), 0)),
    "content too large": made("x" * (wire.MESSAGE_BYTES + 1)),
    "a usage that is no number": made(usage={"completion_tokens": "two"}),  # type: ignore[dict-item]
    "a usage that is a truth value": made(usage={"completion_tokens": True}),
    "a usage of more than 64 bits": made(usage={"completion_tokens": 1 << 64}),
    "a usage without a name": made(usage={1: 1}),  # type: ignore[dict-item]
    "no usage": made(usage=None),
    "a note that is no sentence": made(note="x" * 5000),
    "another finish reason": made(finish_reason="exhausted"),
    "an error that is none": made(error=ValueError("x")),  # type: ignore[arg-type]
    "chunks that are none": made(to={"code2wav": [b"x"]}),  # type: ignore[list-item]
    "a chunk with an object array": made(to={"code2wav": [Chunk({}, {"rows": np.array([None])})]}),
    "a chunk with a list": made(to={"code2wav": [Chunk({}, {"rows": [1, 2]})]}),  # type: ignore[dict-item]
    "a chunk with a tuple in meta": made(to={"code2wav": [Chunk({"shape": (1, 2)})]}),  # type: ignore[dict-item]
    "a chunk that is too large": made(to={"code2wav": [Chunk({}, {"r": np.zeros(wire.MESSAGE_BYTES, np.uint8)})]}),
    "chunks for a number": made(to={1: [small(1)], "nobody": [small(1)]}),  # type: ignore[dict-item]
    "one chunk that is no list": made(to={"code2wav": small(1)}),  # type: ignore[dict-item]
}


class TestEngineOutputs:
    """F1: what an engine hands over wrongly fails its own request, with one line that says what was wrong."""

    @pytest.mark.parametrize("event", BAD_OUTPUTS.values(), ids=BAD_OUTPUTS.keys())
    def test_f1_a_wrong_output_is_its_requests_error(self, event: EngineMade) -> None:
        play = first_stage(target(window=1), final=True)
        commands = play.gate.handle(event, NOW)
        report = commands[-1]
        assert isinstance(report, ToRouter)
        assert isinstance(report.frame, wire.StageFinished)
        assert report.frame.error is not None
        assert report.frame.error.code == "stage_error"
        assert report.frame.error.message.startswith("the engine made ")
        assert "\n" not in report.frame.error.message
        assert len(report.frame.error.message) < 250
        assert play.gate.live == 0
        _all_encode(commands)

    def test_f1_a_bad_chunk_behind_a_full_window_fails_at_once_and_not_at_a_credit(self) -> None:
        play = first_stage(target(window=1))
        bad = Chunk({}, {"rows": np.array(["text"])})
        commands = play.gate.handle(made(to={"code2wav": [small(1), bad]}), NOW)
        assert isinstance(commands[-1], ToRouter)
        assert isinstance(commands[-1].frame, wire.StageFinished)
        assert play.gate.live == 0

    def test_numpys_scalars_become_pythons(self) -> None:
        play = first_stage(CODE2WAV)
        meta = {"n": np.int64(1)}
        play >> made(to={"code2wav": [Chunk(meta)]}, usage={"audio_s": np.float32(0.5)})  # type: ignore[arg-type]
        assert play << fact("first_output") << sent(1)
        commands = play.gate.handle(made(finish_reason="stop"), NOW)
        assert commands[-1] == finished(usage={"audio_s": 0.5}, edges=[counted(chunks=1)])
        _all_encode(commands)

    def test_f1_an_error_that_cannot_be_text_still_arrives(self) -> None:
        play = first_stage()
        commands = play.gate.handle(engine_failed(StageError("\udcff" + "x" * 100_000)), NOW)
        _all_encode(commands)
        assert play.gate.live == 0

    def test_an_output_of_a_request_that_is_not_here_is_late(self) -> None:
        play = first_stage(CODE2WAV)
        error = problem("stage_error", "boom", retriable=False)
        play >> engine_failed(StageError("boom")) << failed_on_edge(error) << forget()
        assert play << finished(None, error=error, edges=[counted()])
        play.drops(made("late"))
        play.drops(ran())
        play.drops(engine_failed(StageError("again")))

    def test_an_engine_that_goes_on_after_it_finished_is_late(self) -> None:
        play = first_stage(target(window=1))
        play >> made(to={"code2wav": [small(1), small(2)]}, finish_reason="stop")
        assert play << fact("first_output") << sent(1, to=target(window=1)) << hold()
        play.drops(made(finish_reason="length"))


def _all_encode(commands: list[object]) -> None:
    packer = wire.Packer()
    for command in commands:
        if isinstance(command, ToRouter | ToConsumer):
            assert list(packer.pack(command.frame))


class TestAbort:
    """A1, A3, A5 in a worker."""

    def test_a1_an_abort_is_confirmed_when_the_engine_has_forgotten_the_request(self) -> None:
        play = running()
        assert play >> asks_abort() << forget()
        assert play.state() == "ABORTING"
        assert play >> aborted() << finished("abort", edges=[counted()])
        assert play.gate.live == 0

    def test_a1_an_abort_reaches_a_request_that_waits_for_its_first_chunk(self) -> None:
        play = registered(submit(THINKER))
        assert play >> asks_abort() << forget()
        assert play >> aborted() << finished("abort", edges=[counted()])

    def test_a3_what_exists_is_delivered_before_the_confirmation(self) -> None:
        play = first_stage(final=True)
        assert play >> made("a") << fact("first_output") << output(1, "a")
        assert play >> asks_abort() << forget()
        assert play >> made("b") << output(2, "b")  # of the step that was under way
        play >> aborted("c", usage={"completion_tokens": 3}) << output(3, "c")
        assert play << finished("abort", outputs=3, usage={"completion_tokens": 3})

    def test_p4_nothing_is_delivered_of_a_stage_that_is_not_final(self) -> None:
        play = first_stage(CODE2WAV)
        assert play >> asks_abort() << forget()
        assert play >> made("b", to={"code2wav": [small(1)]})
        assert play >> aborted("c") << finished("abort", edges=[counted()])

    def test_a5_an_abort_may_be_repeated_and_one_of_an_unknown_request_does_nothing(self) -> None:
        play = running()
        assert play >> asks_abort() << forget()
        play.drops(asks_abort())
        play.drops(asks_abort("nobody-0123456789abcdef"))
        play.drops(asks_abort(RID, attempt=2))
        assert play.gate.live == 1

    def test_a8_a_result_that_races_an_abort_leaves_one_report(self) -> None:
        play = first_stage(final=True)
        assert play >> asks_abort() << forget()
        assert play >> made("all", finish_reason="stop", usage={"completion_tokens": 1}) << output(1, "all")
        assert play >> aborted() << finished("abort", outputs=1, usage={"completion_tokens": 1})
        play.drops(made("more"))

    def test_a8_an_error_that_races_an_abort_leaves_one_report(self) -> None:
        play = running()
        assert play >> asks_abort() << forget()
        play.drops(engine_failed(StageError("boom")))
        play.drops(edge_failed(problem("stage_error", "boom", "thinker", "thinker/0", retriable=False)))
        assert play >> aborted("kept") << finished("abort", edges=[counted()])

    def test_a1_frames_that_come_between_abort_and_confirmation_change_nothing(self) -> None:
        play = running()
        assert play >> asks_abort() << forget()
        for event in (edge_end(2), gives_credit(1), closes(), took(1), ran(), relayed(small(1))):
            play.drops(event)
        play.closes_again(chunk(2))

    def test_a1_an_abort_while_the_last_chunks_wait_for_credit(self) -> None:
        play = first_stage(target(window=1))
        play >> made(to={"code2wav": [small(1), small(2)]}, finish_reason="stop")
        assert play << fact("first_output") << sent(1, to=target(window=1)) << hold()
        assert play >> asks_abort() << forget()
        assert play >> aborted() << finished("abort", edges=[counted(chunks=1)])

    def test_a3_an_abort_is_confirmed_whatever_the_engine_hands_over(self) -> None:
        play = first_stage(final=True)
        assert play >> asks_abort() << forget()
        assert play >> aborted("\ud800", "good") << output(1, "good") << finished("abort", outputs=1)

    def test_a3_nothing_is_delivered_after_the_end_of_the_output(self) -> None:
        play = first_stage(final=True)
        assert play >> made("a", ended=True) << fact("first_output") << output(1, "a", last=True)
        assert play >> asks_abort() << forget()
        assert play >> made(b"broken")  # type: ignore[arg-type]
        assert play >> made("b")
        assert play >> aborted("c") << finished("abort", outputs=1)

    def test_an_unasked_confirmation_changes_nothing(self) -> None:
        play = running()
        assert play >> aborted("text")
        assert play.gate.live == 1


class TestPeers:
    """F2, F3 in a worker."""

    def test_f3_frames_of_another_incarnation_of_the_producer_are_dropped(self) -> None:
        play = running()
        play.drops(by("thinker", chunk_frame(2, small(2), "thinker"), incarnation=2))
        play.drops(by("hearer", chunk_frame(2, small(2), "thinker")))
        assert play >> chunk(2) << fed(2)

    def test_f3_a_frame_of_another_incarnation_than_its_connection_is_dropped(self) -> None:
        """Whoever may speak for one incarnation may not speak for another."""
        play = running()
        play.drops(by("thinker", wire.ChunkFrame(RID, 1, 2, "thinker", 2, {"n": 2}, [])))
        play.drops(by("thinker", wire.EdgeEnd(RID, 1, 4, "thinker", 1)))
        play.drops(by("code2wav", wire.EdgeClosed(RID, 1, 4, "code2wav")))
        play.drops(by("thinker", wire.ChunkFrame("nobody", 1, 2, "thinker", 1, {}, [])))
        assert play >> chunk(2) << fed(2)

    def test_f3_frames_of_another_incarnation_of_the_consumer_are_dropped(self) -> None:
        play = first_stage(CODE2WAV)
        assert (
            play >> made(to={"code2wav": [small(1), small(2)]}) << fact("first_output") << sent(1) << sent(2) << hold()
        )
        play.drops(by("code2wav", wire.EdgeCredit(RID, 1, 4, "code2wav", 2), incarnation=4))
        play.drops(by("code2wav", wire.EdgeClosed(RID, 1, 4, "code2wav"), incarnation=4))

    def test_f3_frames_of_another_attempt_are_dropped(self) -> None:
        play = running()
        play.closes_again(chunk(2, attempt=2))

    def test_frames_for_an_edge_that_is_not_are_dropped(self) -> None:
        play = running()
        play.drops(by("code2wav", wire.EdgeEnd(RID, 1, 5, "code2wav", 0)))
        play.drops(by("thinker", wire.EdgeCredit(RID, 1, 3, "thinker", 1)))

    def test_credits_and_closes_of_a_relay_edge_are_dropped(self) -> None:
        play = first_stage(target(mode="relay"))
        play.drops(gives_credit(1))
        play.drops(closes())

    def test_a_chunk_on_a_relay_edge_is_dropped(self) -> None:
        play = registered(submit(source(mode="relay")))
        play.drops(chunk(1))

    def test_f2_a_dead_producer_fails_the_request_and_is_named(self) -> None:
        play = running()
        text = "thinker/0 is gone before its edge to talker had ended: it died"
        error = problem("replica_lost", text, "thinker", "thinker/0", retriable=True)
        play >> lost("thinker") << failed_on_edge(error) << forget() << finished(None, error=error, edges=[counted()])
        assert play << DropPeer("thinker/0", 3)

    def test_f2_a_dead_producer_whose_edge_has_ended_harms_nobody(self) -> None:
        play = running()
        assert play >> edge_end(1) << input_ended()
        assert play >> lost("thinker") << DropPeer("thinker/0", 3)
        assert play.gate.live == 1

    def test_f2_a_dead_producer_of_a_relay_edge_is_the_routers_matter(self) -> None:
        play = registered(submit(source(mode="relay")))
        assert play >> lost("thinker") << DropPeer("thinker/0", 3)
        assert play >> relayed(small(1)) << fed(1) << input_ended() << fact("input_ready") << run()

    def test_f2_a_dead_consumer_of_a_relay_edge_is_the_routers_matter(self) -> None:
        play = first_stage(target(mode="relay"))
        assert play >> made(to={"code2wav": [small(1)]}) << fact("first_output")
        assert play >> lost("code2wav") << DropPeer("code2wav/0", 5)
        frames = [wire.ChunkFrame(RID, 1, 7, "talker", 1, {"n": 1}, [])]
        content = ToRouter(wire.RelayContent(RID, 1, 7, "code2wav", wire.encode_relay(frames)))
        assert play >> made(finish_reason="stop") << content << finished(edges=[counted(chunks=1)])

    def test_f2_a_dead_consumer_parks_nobody(self) -> None:
        play = first_stage(CODE2WAV)
        play >> made(to={"code2wav": [small(1), small(2), small(3)]})
        assert play << fact("first_output") << sent(1) << sent(2) << hold()
        assert play >> lost("code2wav") << DropPeer("code2wav/0", 5) << run()
        assert play >> made(finish_reason="stop") << finished(edges=[counted(chunks=2)])

    def test_f2_a_dead_consumer_of_the_last_chunks_lets_the_stage_report(self) -> None:
        play = first_stage(target(window=1))
        play >> made(to={"code2wav": [small(1), small(2)]}, finish_reason="stop")
        assert play << fact("first_output") << sent(1, to=target(window=1)) << hold()
        assert play >> lost("code2wav") << finished(edges=[counted(chunks=1)]) << DropPeer("code2wav/0", 5)

    def test_r2_a_consumer_that_lives_and_cannot_be_reached_fails_the_request(self) -> None:
        play = first_stage(CODE2WAV)
        text = "code2wav/0 cannot be reached on its edge from talker: it does not read"
        error = problem("replica_lost", text, "code2wav", "code2wav/0", retriable=True)
        assert play >> unreachable("code2wav") << forget() << finished(None, error=error, edges=[counted()])

    def test_f2_an_unreachable_producer_fails_the_request(self) -> None:
        play = running(submit(THINKER, targets=()))
        text = "thinker/0 is gone before its edge to talker had ended: it has left"
        error = problem("replica_lost", text, "thinker", "thinker/0", retriable=True)
        assert play >> unreachable("thinker", "it has left") << forget() << finished(None, error=error)

    def test_f2_a_peer_that_this_request_does_not_know_is_no_matter_of_it(self) -> None:
        play = running()
        assert play >> lost("captions") << DropPeer("captions/0", 6)
        assert play >> unreachable("captions")
        assert play.gate.live == 1

    def test_a_request_that_is_being_aborted_is_not_failed_by_a_death(self) -> None:
        play = running()
        assert play >> asks_abort() << forget()
        assert play >> lost("thinker") << DropPeer("thinker/0", 3)
        assert play >> lost("code2wav") << DropPeer("code2wav/0", 5)
        assert play >> aborted() << finished("abort", edges=[counted()])
