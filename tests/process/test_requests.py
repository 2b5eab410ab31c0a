"""Requests on one deployment of three synthetic stages: plans, outputs, ends, aborts, deadlines.

What the caller's id contains decides what befalls a request: `quiet`, its Thinker falls silent before its third word;
`broken`, its Talker fails; `torn`, its Code2Wav fails at the second sound.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.running import Asking, Running, collect, document, eventually, omnizmq, samples_of, text_of

from omnizmq import AsyncClient, RequestOutput
from omnizmq.errors import DeadlineExceededError, InvalidRequestError, StageError

TONE = 2400  # samples an output of an echoing audio stage

SETS = (
    "stage.thinker.options.silent_at=3",
    "stage.thinker.options.fault_only=quiet",
    "stage.talker.options.fail_at=1",
    "stage.talker.options.fault_only=broken",
    "stage.code2wav.options.fail_at=2",
    "stage.code2wav.options.fault_only=torn",
)


@pytest.fixture
def home(module_home: Path) -> Path:
    return module_home


class TestPlans:
    async def _both(self, name: str) -> tuple[list[RequestOutput], list[RequestOutput]]:
        async with AsyncClient.connect(name) as client:
            text = await collect(client, "one two", modalities=["text"], request_id="only-text")
            sound = await collect(client, "one two", modalities=["audio"], request_id="only-sound")
            return text, sound

    def test_p4_only_what_was_asked_for_is_delivered(self, deployment: Running) -> None:
        text, sound = asyncio.run(self._both(deployment.name))
        assert {output.modality for output in text} == {"text"}
        assert text_of(text) == "one two"
        assert {output.modality for output in sound} == {"audio"}
        assert samples_of(sound) == 2 * TONE
        assert set(sound[-1].usage) == {"thinker", "talker", "code2wav"}  # C6: all that ran

    def test_p3_text_alone_does_not_touch_a_talker_that_fails_every_request(self, deployment: Running) -> None:
        done = omnizmq("chat", "one two", "--request-id", "broken-1", "--modalities", "text", "--json")
        answer = document(done)
        assert (done.returncode, answer["text"], answer["audio"], answer["error"]) == (0, "one two", None, None)
        assert list(answer["usage"]) == ["thinker"]
        stages = deployment.trace("broken-1")["stages"]
        assert stages["thinker"]["finished_ms"] is not None
        for stage in ("talker", "code2wav"):
            assert [stages[stage][key] for key in ("submitted_ms", "first_output_ms", "finished_ms")] == [None] * 3

    def test_p4_chat_json_has_no_text_for_audio_alone(self, deployment: Running, tmp_path: Path) -> None:
        assert eventually(deployment.idle)
        done = omnizmq("chat", "one", "--modalities", "audio", "--output", str(tmp_path / "a.wav"), "--json")
        answer = document(done)
        assert (done.returncode, answer["text"]) == (0, None)
        assert answer["audio"] == {"path": str(tmp_path / "a.wav"), "sample_rate": 24000, "seconds": 0.1}

    def test_p2_an_unknown_modality_is_refused_and_the_error_names_those_that_exist(self, deployment: Running) -> None:
        done = omnizmq("chat", "one", "--modalities", "smell", "--json")
        assert done.returncode == 2
        assert document(done)["error"]["code"] == "invalid_request"
        assert done.stderr == "omnizmq chat: unknown modality 'smell': this deployment has text, audio\n"
        assert deployment.status()["counters"]["refused"] >= 1


class TestAnswers:
    def test_several_at_once_get_each_its_own(self, deployment: Running) -> None:
        async def scenario() -> list[list[RequestOutput]]:
            async with AsyncClient.connect(deployment.name) as one, AsyncClient.connect(deployment.name) as other:
                asked = [
                    collect(client, " ".join(f"w{number}.{word}" for word in range(1 + number)), request_id="same")
                    for number, client in enumerate([one, other] * 8)
                ]
                return await asyncio.gather(*asked)

        for number, outputs in enumerate(asyncio.run(scenario())):
            assert text_of(outputs).split() == [f"w{number}.{word}" for word in range(1 + number)]
            assert samples_of(outputs) == (1 + number) * TONE
            assert {output.external_id for output in outputs} == {"same"}  # I1, I2
            assert len({output.request_id for output in outputs}) == 1
            assert [output.finished for output in outputs].count(True) == 1  # C4
            assert outputs[-1].finished

    def test_c3_each_stage_ends_once_and_the_terminal_carries_nothing(self, deployment: Running) -> None:
        async def scenario() -> list[RequestOutput]:
            async with AsyncClient.connect(deployment.name) as client:
                return await collect(client, "one two three")

        outputs = asyncio.run(scenario())
        terminal = outputs[-1]
        assert (terminal.stage, terminal.modality) == ("code2wav", "audio")  # A2: the last stage's
        assert (terminal.text, terminal.audio, terminal.stage_finished) == (None, None, False)
        assert [output.stage for output in outputs if output.stage_finished] == ["thinker", "code2wav"]
        assert terminal.usage["thinker"]["completion_tokens"] == 3
        assert terminal.usage["code2wav"]["audio_s"] == pytest.approx(0.3)
        assert terminal.usage_incomplete == ()

    def test_final_outputs_come_whole(self, deployment: Running) -> None:
        async def scenario() -> list[RequestOutput]:
            async with AsyncClient.connect(deployment.name) as client:
                return await collect(client, "one two three", output_kind="final")

        *wholes, terminal = asyncio.run(scenario())
        sound, text = sorted(wholes, key=lambda output: output.stage)  # whichever was complete first
        assert (text.stage, text.text, text.stage_finished) == ("thinker", "one two three", True)
        assert sound.audio is not None
        assert (sound.stage, len(sound.audio), sound.stage_finished) == ("code2wav", 3 * TONE, True)
        assert terminal.finished

    def test_parameters_reach_the_stages_and_bad_ones_are_refused(self, deployment: Running) -> None:
        async def scenario() -> list[RequestOutput]:
            async with AsyncClient.connect(deployment.name) as client:
                with pytest.raises(InvalidRequestError, match=r"unknown parameter 'max_tokns': did you mean 'max_tok"):
                    await collect(client, "one", params={"thinker": {"max_tokns": 1}})
                with pytest.raises(InvalidRequestError, match=r"unknown stage 'thinkr'"):
                    await collect(client, "one", params={"thinkr": {"max_tokens": 1}})
                return await collect(client, "one two three", params={"thinker": {"max_tokens": 2}})

        outputs = asyncio.run(scenario())
        assert text_of(outputs) == "one two"
        assert (outputs[-1].finish_reason, samples_of(outputs)) == ("length", 2 * TONE)


class TestFailures:
    @pytest.mark.parametrize(("request_id", "stage", "number"), [("broken", "talker", 1), ("torn", "code2wav", 2)])
    def test_f1_a_stage_that_fails_ends_its_own_request_alone(
        self, deployment: Running, request_id: str, stage: str, number: int
    ) -> None:
        async def scenario() -> tuple[StageError, list[RequestOutput]]:
            async with AsyncClient.connect(deployment.name) as client:
                others = asyncio.create_task(collect(client, "one two three four"))
                with pytest.raises(StageError, match=rf"told to fail at output {number} ") as failed:
                    await collect(client, "one two three", request_id=request_id)
                return failed.value, await others

        error, others = asyncio.run(scenario())
        assert (error.code, error.stage, error.replica) == ("stage_error", stage, f"{stage}/0")  # R3: its own
        assert samples_of(others) == 4 * TONE

    def test_c5_what_was_delivered_before_a_failure_stands(self, deployment: Running) -> None:
        async def scenario() -> list[RequestOutput]:
            async with AsyncClient.connect(deployment.name) as client:
                asking = Asking(client, "one two three", request_id="torn")
                assert isinstance(await asking.error(), StageError)
                return asking.outputs

        outputs = asyncio.run(scenario())
        assert text_of(outputs) == "one two three"[: len(text_of(outputs))]
        assert samples_of(outputs) == TONE
        assert not any(output.finished for output in outputs)

    def test_b2_a_deadline_ends_the_request_wherever_it_is(self, deployment: Running) -> None:
        async def scenario() -> None:
            async with AsyncClient.connect(deployment.name) as client:
                with pytest.raises(DeadlineExceededError, match=r"deadline of 0.3 s has passed"):
                    await collect(client, "one two three", request_id="quiet", deadline_s=0.3)

        asyncio.run(scenario())
        done = omnizmq("chat", "one two three", "--request-id", "quiet", "--timeout", "0.2", "--json")
        answer = document(done)
        assert (done.returncode, answer["error"]["code"], answer["text"]) == (1, "deadline_exceeded", "one two")
        assert done.stderr == "omnizmq chat: the request's deadline of 0.2 s has passed\n"
        assert eventually(deployment.idle)


class TestAborts:
    def test_i2_an_external_id_ends_all_its_bearers_and_no_prefix_does(self, deployment: Running) -> None:
        async def scenario() -> list[Asking]:
            async with AsyncClient.connect(deployment.name) as client:
                ids = ("quiet-7", "quiet-7", "quiet-77")
                asked = [Asking(client, "one two three", request_id=id_, modalities=["text"]) for id_ in ids]
                for asking in asked:
                    await asking.has(2)
                assert await client.abort("quiet") == 0
                assert await client.abort("quiet-7") == 2
                assert [await asking.error() for asking in asked[:2]] == [None, None]
                assert (await client.status())["live_requests"] == 1
                assert await client.abort("quiet-7") == 0  # A5
                assert await client.abort("quiet-77") == 1
                assert await asked[2].error() is None
                return asked

        for asking in asyncio.run(scenario()):
            *partial, end, terminal = asking.outputs
            assert text_of(partial) == "one two"  # A3
            assert (end.stage, end.text, end.stage_finished, end.finished) == ("thinker", None, True, False)
            assert (terminal.finish_reason, terminal.finished, terminal.stage) == ("abort", True, "thinker")  # A1, A2

    def test_a2_the_terminal_of_an_abort_is_of_the_last_stage(self, deployment: Running) -> None:
        async def scenario() -> RequestOutput:
            async with AsyncClient.connect(deployment.name) as client:
                asking = Asking(client, "one two three", request_id="quiet")
                await asking.has(4)
                assert await client.abort("quiet") == 1
                assert await asking.error() is None
                return asking.outputs[-1]

        terminal = asyncio.run(scenario())
        assert (terminal.finish_reason, terminal.stage, terminal.modality) == ("abort", "code2wav", "audio")

    def test_a1_the_command_is_told_how_many_it_ended(self, deployment: Running) -> None:
        async def scenario() -> None:
            async with AsyncClient.connect(deployment.name) as client:
                asking = Asking(client, "one two three", request_id="quiet-cli")
                await asking.has(1)
                done = await asyncio.to_thread(omnizmq, "abort", "quiet-cli", "--json")
                assert document(done) == {"id": "quiet-cli", "aborted": 1}
                assert await asking.error() is None
                assert asking.outputs[-1].finish_reason == "abort"

        asyncio.run(scenario())
        done = omnizmq("abort", "quiet-cli")
        assert (done.returncode, done.stdout) == (0, "no live request quiet-cli\n")  # A5

    def test_a_request_id_ends_that_one_alone(self, deployment: Running) -> None:
        async def scenario() -> None:
            async with AsyncClient.connect(deployment.name) as client:
                one, other = (Asking(client, "one two three", request_id="quiet") for _ in range(2))
                await one.has(1)
                await other.has(1)
                assert await client.abort(one.outputs[0].request_id) == 1
                assert await one.error() is None
                assert not other.task.done()
                assert await client.abort("quiet") == 1
                assert await other.error() is None

        asyncio.run(scenario())
