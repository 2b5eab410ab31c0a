"""`omnizmq chat`, one turn: what it prints and writes, its exit codes, and that nothing stays whatever happens."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
import wave
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.running import OMNIZMQ, Running, document, eventually, launched, omnizmq

from omnizmq import AsyncClient

SETS = (
    "stage.thinker.options.silent_at=3",
    "stage.thinker.options.fault_only=quiet",
    "stage.code2wav.options.fail_at=2",
    "stage.code2wav.options.fault_only=torn",
    "router.max_prompt_bytes=1000000",
)


pytestmark = pytest.mark.usefixtures("deployment")


@pytest.fixture
def home(module_home: Path) -> Path:
    return module_home


@contextmanager
def chatting(*options: str, **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    """`omnizmq chat` from its first moment; killed at the end if it still runs."""
    process = subprocess.Popen(
        [*OMNIZMQ, "chat", *options], **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def interrupted_again_and_again(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Whether it ended within that time. Signals that come too close together are one signal."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.25)
            return True
    return False


def refused(*options: str, stdin: bytes | None = None) -> str:
    """What a chat says that is wrongly used: one line, exit code 2, and one document with `--json`."""
    done = omnizmq("chat", *options, stdin=stdin)
    assert (done.returncode, done.stdout) == (2, "")
    with_json = omnizmq("chat", *options, "--json", stdin=stdin)
    answer = document(with_json)
    message = done.stderr.removeprefix("omnizmq chat: ").removesuffix("\n")
    assert with_json.returncode == 2
    code = "prompt_too_large" if "router.max_prompt_bytes" in message else "invalid_request"
    assert (answer["error"]["message"], answer["error"]["code"]) == (message, code)
    assert answer["finish_reason"] == "error"
    assert "\n" not in message
    return message


class TestAnswers:
    def test_text_streams_to_stdout_and_nothing_else(self) -> None:
        done = omnizmq("chat", "one two")
        assert (done.returncode, done.stdout, done.stderr) == (0, "one two\n", "")

    def test_sound_goes_to_the_file_and_is_told_on_stderr(self, tmp_path: Path) -> None:
        path = tmp_path / "out.wav"
        done = omnizmq("chat", "one two", "--output", str(path))
        assert (done.returncode, done.stdout) == (0, "one two\n")
        assert done.stderr == f"wrote {path} (0.2 s, 24000 Hz)\n"
        with wave.open(str(path)) as sound:
            assert (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) == (24000, 1, 2)
            assert sound.getnframes() == 4800

    def test_sound_without_a_name_is_reply_wav(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert omnizmq("chat", "one", "--modalities", "audio").returncode == 0
        assert os.listdir(tmp_path) == ["reply.wav"]

    def test_the_document(self, tmp_path: Path) -> None:
        path = str(tmp_path / "out.wav")
        done = omnizmq("chat", "one two", "--output", path, "--request-id", "mine", "--json")
        answer = document(done)
        assert (done.returncode, done.stderr) == (0, "")
        assert answer.pop("request_id").startswith("mine-")
        timings = answer.pop("timings")
        assert list(timings) == ["ttft_ms", "ttfa_ms", "total_ms"]
        assert 0 < timings["ttft_ms"] < timings["total_ms"]
        assert 0 < timings["ttfa_ms"] < timings["total_ms"]
        usage = answer.pop("usage")
        assert usage["thinker"]["completion_tokens"] == 2
        assert answer == {
            "external_id": "mine",
            "text": "one two",
            "audio": {"path": path, "sample_rate": 24000, "seconds": 0.2},
            "finish_reason": "stop",
            "usage_incomplete": [],
            "notes": {},
            "error": None,
        }

    @pytest.mark.parametrize("options", [(), ("-",)])
    def test_the_prompt_may_come_by_stdin(self, options: tuple[str, ...]) -> None:
        assert omnizmq("chat", *options, stdin="naïve ☃\n".encode()).stdout == "naïve ☃\n"

    def test_limits_and_parameters_reach_the_stages(self, tmp_path: Path) -> None:
        options = ("--output", str(tmp_path / "a.wav"), "--seed", "7", "--json")
        cut = document(omnizmq("chat", "one two three", "--max-tokens", "2", *options))
        assert (cut["text"], cut["finish_reason"], cut["audio"]["seconds"]) == ("one two", "length", 0.2)
        cut = document(omnizmq("chat", "one two three", "--param", "talker.max_tokens=1", *options))
        assert (cut["text"], cut["finish_reason"], cut["audio"]["seconds"]) == ("one two three", "length", 0.1)
        said = refused("one", "--param", 'thinker.seed="seven"')
        assert said == "stage thinker: seed = 'seven': a whole number was expected"

    def test_the_system_message_counts(self) -> None:
        """A prompt that just fits does not with a system message before it."""
        assert omnizmq("chat", "-", stdin=b"x" * 1_000_000).returncode == 0
        assert refused("-", "--system", "y", stdin=b"x" * 1_000_000).startswith("the prompt has 1000001 bytes")

    def test_a_note_is_told_on_stderr(self) -> None:
        done = omnizmq("chat", "   ", "--system", " ", "--audio", "/dev/null")
        assert done.returncode == 0
        assert done.stderr == "note from thinker: nothing to say: the prompt has no words\n"

    def test_files_need_no_words_beside_them(self) -> None:
        """Given on a terminal, piped, or not at all."""
        for words in ("", "-", None):
            given = [] if words is None else [words]
            done = omnizmq("chat", *given, "--audio", "/dev/null", stdin=b"")
            assert (done.returncode, done.stderr) == (0, "note from thinker: nothing to say: the prompt has no words\n")
        assert refused("", stdin=b"").startswith("the prompt is empty")


class TestFailures:
    def test_a_stage_that_fails(self, tmp_path: Path) -> None:
        done = omnizmq("chat", "one two", "--output", str(tmp_path / "a.wav"), "--request-id", "torn", "--json")
        answer = document(done)
        assert done.returncode == 1
        assert done.stderr == "omnizmq chat: code2wav/0: told to fail at output 2 (fail_at)\n"
        assert answer["error"] == {
            "code": "stage_error",
            "stage": "code2wav",
            "replica": "code2wav/0",
            "message": "told to fail at output 2 (fail_at)",
            "retriable": False,
        }
        assert answer["audio"]["seconds"] == 0.1  # C5: what was delivered stands

    def test_an_abort_by_another(self, deployment: Running) -> None:
        with chatting("one two three", "--request-id", "quiet", "--json") as process:
            assert eventually(lambda: deployment.status()["live_requests"] == 1)
            assert omnizmq("abort", "quiet").stdout == "ended 1 request\n"
            out, err = process.communicate(timeout=20)
            assert (process.returncode, err) == (1, b"omnizmq chat: quiet was aborted\n")
            assert json.loads(out)["finish_reason"] == "abort"

    def test_an_unknown_deployment(self) -> None:
        done = omnizmq("chat", "hi", "--connect", "nowhere", "--json")
        assert done.returncode == 1
        assert document(done)["error"]["code"] == "not_found"
        assert done.stderr.startswith(
            "omnizmq chat: no deployment 'nowhere' is running; those that are: synthetic (pid"
        )

    def test_two_deployments_are_listed(self, deployment: Running) -> None:
        with launched(name="other") as other:
            done = omnizmq("chat", "hi")
            listed = f"other (pid {other.pid}), synthetic (pid {deployment.pid})"
            assert done.returncode == 1
            assert done.stderr == f"omnizmq chat: 2 deployments are running, choose one with --connect NAME: {listed}\n"
            assert omnizmq("chat", "hi", "--connect", "other").stdout == "hi\n"
            assert omnizmq("chat", "hi", "--connect", other.endpoint).stdout == "hi\n"

    def test_empty_prompts(self) -> None:
        said = "the prompt is empty: give PROMPT, or pipe one in"
        assert refused("") == refused(" \t") == refused("-", stdin=b"\n") == refused(stdin=b"") == said

    def test_invalid_utf8(self) -> None:
        assert refused("-", stdin=b"caf\xe9") == "standard input is not UTF-8: byte 3 is 0xe9"
        said = refused(os.fsdecode(b"caf\xe9"))
        assert said == "message 1 is no valid text: character 3 cannot be UTF-8"
        assert "cannot be UTF-8" in refused("hi", "--system", os.fsdecode(b"\xff"))

    def test_a_prompt_of_ten_megabytes(self) -> None:
        said = refused(stdin=b"ten bytes!" * 1_000_000)
        assert said == "the prompt has 10000000 bytes; this deployment takes at most 1000000 (router.max_prompt_bytes)"
        assert "takes at most 1000" in refused(
            "--config", "synthetic", "--set", "router.max_prompt_bytes=1000", "x" * 2000
        )

    def test_outputs_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "folder.wav").mkdir()
        for path, said in (
            (tmp_path / "none" / "x.wav", "cannot be written: No such file or directory"),
            (tmp_path / "folder.wav", "cannot be written: Is a directory"),
            (tmp_path / "x.mp3", "is not a .wav file: that is what is written"),
        ):
            assert refused("hi", "--output", str(path)) == f"--output {path} {said}"
        assert os.listdir(tmp_path) == ["folder.wav"]

    def test_other_wrong_options(self) -> None:
        assert refused("hi", "--request-id", "two words").startswith("request id 'two words' is not usable: ")
        assert refused("hi", "--param", "temperature=1").startswith("--param 'temperature=1' is not STAGE.KEY=VALUE")
        assert refused("hi", "--param", "thinker.heat=1").startswith("stage thinker: unknown parameter 'heat'")
        for option in ("--audio", "--image"):
            said = f"{option} /nowhere.x cannot be read: No such file or directory"
            assert refused("hi", option, "/nowhere.x") == said
        assert refused("hi", "--config", "synthetic", "--connect", "x").startswith(
            "--config starts an own deployment, "
        )

    def test_wrong_usage(self) -> None:
        for options in (("hi", "--modalities", ","), ("hi", "--max-tokens", "0"), ("hi", "--nonsense"), ("a", "b")):
            done = omnizmq("chat", *options)
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr.startswith("omnizmq chat: ")
            assert done.stderr.count("\n") == 1


class TestInterruptions:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a7_an_interrupted_chat_aborts_its_request(self, deployment: Running, number: int) -> None:
        aborted = deployment.status()["counters"]["aborted"]
        with chatting("one two three", "--request-id", "quiet") as process:
            assert process.stdout is not None
            assert process.stdout.read(7) == b"one two"
            process.send_signal(number)
            out, err = process.communicate(timeout=20)
            assert (process.returncode, out, err) == (130, b"\n", b"omnizmq chat: interrupted\n")
        assert eventually(deployment.idle)
        assert deployment.status()["counters"]["aborted"] == aborted + 1

    def test_with_json_there_is_a_document(self, deployment: Running) -> None:
        with chatting("one two three", "--request-id", "quiet", "--json") as process:
            assert eventually(lambda: deployment.status()["counters"]["unconsumed"] >= 2)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=20)
            answer = json.loads(out)
            assert (process.returncode, answer["finish_reason"], answer["text"]) == (130, "abort", "one two")

    def test_a_second_one_ends_it_at_once(self, deployment: Running) -> None:
        with chatting("one two three", "--request-id", "quiet") as process:
            assert process.stdout is not None
            assert process.stdout.read(7) == b"one two"
            os.kill(deployment.pid, signal.SIGSTOP)  # the abort is not answered
            try:
                assert interrupted_again_and_again(process, 1.5)
                assert process.returncode == 130
            finally:
                os.kill(deployment.pid, signal.SIGCONT)

    def test_a_killed_chat_takes_its_own_deployment_along(self, home: Path) -> None:
        sets = [option for setting in SETS[:2] for option in ("--set", setting)]
        with chatting("one two three", "--config", "synthetic", "--request-id", "quiet", *sets) as process:
            assert process.stdout is not None
            assert process.stdout.read(7) == b"one two"
            assert len(os.listdir(home / "run" / "omnizmq")) == 2
            process.kill()
            assert eventually(lambda: os.listdir(home / "run" / "omnizmq") == ["synthetic"])

    def test_a_reader_that_goes_away(self) -> None:
        """`omnizmq chat … | head -1`: it ends by itself, quietly, with its own deployment."""
        words = " ".join(["word"] * 10_000)
        sets = ["--set", "stage.thinker.options.interval_ms=20"]
        with chatting(words, "--config", "synthetic", *sets) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.read(4) == b"word"
            process.stdout.close()
            assert process.wait(20) == 1
            assert process.stderr.read() == b""
            process.stdout = None

    def test_a_deployment_that_dies(self) -> None:
        with launched("synthetic", *SETS[:2], name="doomed") as doomed:
            with chatting("one two three", "--request-id", "quiet", "--connect", "doomed") as process:
                assert process.stdout is not None
                assert process.stdout.read(7) == b"one two"
                os.kill(doomed.pid, signal.SIGKILL)
                _, err = process.communicate(timeout=20)
                assert (process.returncode, err) == (1, b"omnizmq chat: the router is gone: its process ended\n")
            doomed.process.wait()


class TestOwnDeployments:
    def test_it_starts_and_ends_its_own(self, home: Path) -> None:
        done = omnizmq("chat", "one two", "--config", "synthetic", "--json")
        assert (done.returncode, document(done)["text"], done.stderr) == (0, "one two", "")
        assert os.listdir(home / "run" / "omnizmq") == ["synthetic"]

    def test_one_that_does_not_start(self) -> None:
        done = omnizmq("chat", "hi", "--config", "synthetic", "--set", "stage.talker.options.fail_start=true", "--json")
        assert (done.returncode, document(done)["error"]["code"]) == (1, "launch_failed")
        assert done.stderr.startswith(
            "omnizmq chat: talker/0 did not start: the synthetic engine was told not to start"
        )
        done = omnizmq("chat", "hi", "--config", "synthetic", "--set", "stage.talker.engine=nope", "--json")
        assert (done.returncode, document(done)["error"]["code"]) == (2, "invalid_config")
        done = omnizmq("chat", "hi", "--config", "/nowhere.toml")
        assert done.returncode == 2
        assert done.stderr.startswith("omnizmq chat: '/nowhere.toml': no such file")

    def test_an_interrupt_while_it_loads(self, home: Path) -> None:
        sets = ["--set", "stage.talker.options.start_delay_ms=60000"]
        with chatting("hi", "--config", "synthetic", *sets) as process:
            root = home / "run" / "omnizmq"
            assert eventually(lambda: any(root.glob("own-*/*.group")))
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
            assert os.listdir(root) == ["synthetic"]

    def test_state_directories_of_own_deployments_are_bounded(self, home: Path) -> None:
        state = home / "state" / "omnizmq"
        for number in range(40):
            (state / f"own-{number:08x}" / "logs").mkdir(parents=True)
            os.utime(state / f"own-{number:08x}" / "logs", (10_000 + number, 10_000 + number))
            os.utime(state / f"own-{number:08x}", (10_000 + number, 10_000 + number))
        for number in range(3):
            (state / f"own-1000000{number}").mkdir()
        (state / "own-named").mkdir()
        assert omnizmq("chat", "one", "--config", "synthetic").returncode == 0
        kept = sorted(path.name for path in state.iterdir())
        assert {"own-10000000", "own-10000001", "own-10000002", "own-named", "synthetic"} <= set(kept)
        assert not any(name.startswith("own-000000") for name in kept)  # older than a week


def test_the_library_is_told_of_loading(home: Path) -> None:  # noqa: ARG001 (its environment)
    async def scenario() -> list[tuple[str, str]]:
        told = []
        client = AsyncClient.launch("synthetic", progress=lambda replica, text: told.append((replica, text)))
        async with client:
            assert client.name.startswith("own-")
            assert client.stages == {"thinker": "text", "talker": None, "code2wav": "audio"}
        return told

    told = asyncio.run(scenario())
    for replica in ("thinker/0", "talker/0", "code2wav/0"):
        assert [text for who, text in told if who == replica][0::10] == ["starting"]
        assert (replica, "ready") in told
