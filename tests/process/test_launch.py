"""`omnizmq launch`: what it says when it can serve, how it fails to start, and how signals end it (F5)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from support.running import OMNIZMQ, Asking, Held, Running, alive, document, eventually, kill, launched, omnizmq

from omnizmq import AsyncClient, Client, __version__, protocol
from omnizmq.errors import UnavailableError

pytestmark = pytest.mark.usefixtures("no_leaks")

QUIET = ("stage.thinker.options.silent_at=3", "stage.thinker.options.fault_only=quiet")


@contextmanager
def launching(*options: str) -> Iterator[subprocess.Popen[str]]:
    """`omnizmq launch` of the synthetic configuration, from its first moment."""
    process = subprocess.Popen(
        [*OMNIZMQ, "launch", "--config", "synthetic", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def failed(*options: str, code: int) -> str:
    """What a launch that must fail says, in one piece, on stderr; stdout stays empty."""
    done = omnizmq("launch", "--config", "synthetic", *options)
    assert (done.returncode, done.stdout) == (code, "")
    said = [line for line in done.stderr.splitlines() if not re.match(r"\w+/\d+: ", line)]
    assert said[0].startswith("omnizmq launch: ")
    assert "Traceback" not in done.stderr
    return "\n".join(said).removeprefix("omnizmq launch: ")


class TestReady:
    def test_the_ready_line(self, home: Path) -> None:
        with launching() as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            endpoint = f"ipc://{home}/run/omnizmq/synthetic/clients.sock"
            assert line == f"ready: synthetic (thinker, talker, code2wav) at {endpoint}, pid {process.pid}\n"
            process.terminate()
            rest, progress = process.communicate(timeout=20)
            assert (process.returncode, rest) == (0, "")
            assert {"thinker/0: starting", "thinker/0: ready"} <= set(progress.splitlines())

    def test_json_is_one_document_and_nothing_else(self, home: Path) -> None:
        with launching("--json", "--name", "mine") as process:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline()) == {
                "name": "mine",
                "endpoint": f"ipc://{home}/run/omnizmq/mine/clients.sock",
                "pid": process.pid,
                "stages": ["thinker", "talker", "code2wav"],
                "plugins": {},
                "remote": None,
            }
            process.terminate()
            assert process.communicate(timeout=20)[0] == ""
            assert process.returncode == 0

    def test_nobody_has_to_listen(self) -> None:
        with launching("--name", "deaf") as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            process.stderr.close()
            assert eventually(lambda: omnizmq("status", "--connect", "deaf").returncode == 0)
            process.stdout = process.stderr = None
            process.terminate()
            assert process.wait(20) == 0

    def test_w2_the_runtime_directory_is_private(self, home: Path) -> None:
        with launched():
            root = home / "run" / "omnizmq" / "synthetic"
            assert root.stat().st_mode & 0o777 == 0o700
            assert (root / "deployment.json").stat().st_mode & 0o777 == 0o600

    def test_f5_stages_that_share_a_device_start_one_after_another(self, home: Path) -> None:
        (home / "shared.toml").write_text(
            """
name = "shared"
[[stage]]
name = "one"
engine = "synthetic"
final_output = "text"
devices = ["cuda:0"]
options = {start_delay_ms = 150}
[[stage]]
name = "two"
engine = "synthetic"
final_output = "text"
devices = [["cuda:0", "cuda:1"]]
options = {start_delay_ms = 150}
[[stage]]
name = "apart"
engine = "synthetic"
final_output = "text"
options = {start_delay_ms = 150}
"""
        )
        done = []
        with launched(str(home / "shared.toml")) as deployment:
            assert deployment.stop() == 0
            assert deployment.process.stderr is not None
            done = [line.strip() for line in deployment.process.stderr]
        order = [line for line in done if line.endswith((": starting", ": ready"))]
        assert order.index("one/0: ready") < order.index("two/0: starting") < order.index("two/0: ready")
        assert order.index("apart/0: starting") < order.index("one/0: ready")  # side by side with the others
        assert order.index("apart/0: ready") < order.index("two/0: ready")


class TestFailures:
    def test_f5_a_failed_start_names_stage_reason_and_last_lines_and_leaves_nothing(self, home: Path) -> None:
        said = failed("--set", "stage.talker.options.fail_start=true", code=1).splitlines()
        assert said[0] == (
            "talker/0 did not start: the synthetic engine was told not to start: fail_start = true; its last lines:"
        )
        assert re.fullmatch(r"  \| .* talker/0 ERROR the engine did not load: the synthetic engine was .*", said[1])
        assert os.listdir(home / "run" / "omnizmq") == []

    def test_f5_json_tells_it_as_well(self) -> None:
        done = omnizmq("launch", "--config", "synthetic", "--json", "--set", "stage.talker.options.fail_start=true")
        error = document(done)["error"]
        assert (done.returncode, error["code"], error["stage"]) == (1, "launch_failed", "talker")

    def test_f5_a_worker_that_dies_while_it_loads(self) -> None:
        with launching("--set", "stage.talker.options.start_delay_ms=60000") as process:
            assert process.stderr is not None
            line = next(line for line in process.stderr if line.startswith("talker/0: start_delay_ms"))
            assert line.startswith("talker/0: start_delay_ms: 60.0 s left")
            kill(worker_of(process.pid, "talker/0"))
            said = process.stderr.read()
            assert "omnizmq launch: talker/0 did not start: killed by SIGKILL" in said
            assert process.wait(20) == 1

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_f5_one_that_is_stopped_while_it_loads_says_so(self, number: int) -> None:
        with launching("--set", "stage.talker.options.start_delay_ms=60000") as process:
            assert process.stderr is not None
            next(line for line in process.stderr if line.startswith("talker/0: start_delay_ms"))
            process.send_signal(number)
            assert process.stderr.read().endswith("stopped before it was ready\n")
            assert process.wait(20) == 0

    def test_f5_a_start_that_takes_too_long(self) -> None:
        said = failed(
            *("--set", "stage.talker.options.start_delay_ms=60000", "--set", "stage.talker.start_timeout_s=0.7"),
            *("--set", "router.heartbeat_interval_s=0.1"),
            code=1,
        )
        assert said.startswith("talker/0 did not start: not ready after 1 s")

    def test_an_interpreter_that_is_gone_when_it_is_needed(self, home: Path) -> None:
        python = interpreter(home, 'rm "$0"')
        said = failed("--set", f"stage.talker.python={python}", code=1)
        assert said == f"talker/0 did not start: it cannot be started: {python}: No such file or directory"

    def test_an_interpreter_that_ends_at_once(self, home: Path) -> None:
        said = failed("--set", f"stage.talker.python={interpreter(home, '[ $2 = -m ] && exit 1')}", code=1)
        assert said == "talker/0 did not start: exit status 1"

    @pytest.mark.parametrize(
        ("file", "old", "new", "said"),
        [
            (
                "protocol.py",
                f"VERSION = {protocol.VERSION}",
                "VERSION = 4711",
                rf"omnizmq {__version__} \(protocol 4711\) is there, and here {__version__} \(protocol \d+\): ",
            ),
            (
                "workers/spec.py",
                "    nonce: str\n",
                "    nonce: str\n    more: int\n",
                rf"omnizmq {__version__} cannot read what its launcher says \(.*`more`\): install the same omnizmq",
            ),
        ],
    )
    def test_w2_a_stage_whose_interpreter_has_another_omnizmq(
        self, home: Path, file: str, old: str, new: str, said: str
    ) -> None:
        """Versions are compared before anything starts; what they do not tell apart is found by the worker."""
        other = home / "other" / "omnizmq"
        shutil.copytree(Path(protocol.__file__).parent, other)
        text = (other / file).read_text()
        assert old in text
        (other / file).write_text(text.replace(old, new))
        python = interpreter(home, f"export PYTHONPATH={other.parent}")
        done = omnizmq("launch", "--config", "synthetic", "--set", f"stage.talker.python={python}")
        assert done.returncode in (1, 2)
        assert re.search(said, done.stderr), done.stderr
        assert "Traceback" not in done.stderr

    def test_a_name_in_use(self) -> None:
        with launched() as deployment:
            said = failed(code=1)
            assert said == f"a deployment named 'synthetic' is already running (pid {deployment.pid})"
            assert omnizmq("chat", "still here").stdout == "still here\n"
            assert deployment.stop() == 0

    @pytest.mark.parametrize(
        ("setting", "said"),
        [
            (
                "stage.talker.engine=syntetic",
                r"--set .*: stage\.talker\.engine: \"syntetic\": not an installed engine: did you mean 'synthetic'\?",
            ),
            ("stage.talker.options.chnks=3", r"--set .*: stage\.talker\.options\.chnks: unknown key: did you mean .*"),
            ("stage.talker.options.chunks=many", r"--set .*: stage\.talker\.options\.chunks: \"many\": a whole num.*"),
            (
                "stage.talker.python=/nowhere/python",
                r"--set .*: stage\.talker\.python: .*: it cannot be run: No such .*",
            ),
            ("stage.talker.python=/bin/false", r"--set .*: stage\.talker\.python: .*: omnizmq does not run there: .*"),
            ("stage.talkr.replicas=2", r"--set 'stage\.talkr\.replicas=2': no stage 'talkr': did you mean 'talker'\?"),
            ("stage.talker.replicas=two", r"--set .*: stage\.talker\.replicas: \"two\": a whole number .*"),
            ("router.nonsense=1", r"--set router\.nonsense=1: router\.nonsense: unknown key: .*"),
            ("nonsense", r"--set 'nonsense': KEY=VALUE was expected, such as stage\.talker\.replicas=2"),
        ],
    )
    def test_a_wrong_setting_is_one_clear_line_and_nothing_is_started(self, setting: str, said: str) -> None:
        done = omnizmq("launch", "--config", "synthetic", "--set", setting)
        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch(f"omnizmq launch: {said}\n", done.stderr)
        assert done.stderr.removeprefix("omnizmq launch") == (
            omnizmq("check", "synthetic", "--set", setting).stderr.removeprefix("omnizmq check")
        )

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("name = ", r".*broken\.toml: not TOML: .*line 1, column 8.*"),
            ('name = "x"\nstages = []\n', r".*broken\.toml: stages: unknown key: did you mean 'stage'\?"),
            (b"\xff\xfe", r".*broken\.toml: not UTF-8 text: .*"),
        ],
    )
    def test_a_broken_file_is_one_clear_line(self, home: Path, text: str | bytes, said: str) -> None:
        path = home / "broken.toml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        done = omnizmq("launch", "--config", str(path))
        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch(rf"omnizmq launch: {said}\n", done.stderr)

    def test_a_file_that_is_not_there(self) -> None:
        done = omnizmq("launch", "--config", "nowhere.toml")
        assert done.returncode == 2
        assert done.stderr.startswith("omnizmq launch: 'nowhere.toml': no such file, nor a shipped name: those are ")

    @pytest.mark.parametrize("variable", ["XDG_RUNTIME_DIR", "XDG_STATE_HOME"])
    def test_a_place_that_cannot_be_used(self, home: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
        (home / "file").touch()
        monkeypatch.setenv(variable, str(home / "file"))
        said = failed(code=2)
        assert f"{home}/file" in said
        assert variable in said

    @pytest.mark.parametrize(
        ("entry", "said"), [("logs", "log directory .*/logs cannot"), ("router.log", "log .*/rou")]
    )
    def test_a_state_directory_that_cannot_be_written(self, home: Path, entry: str, said: str) -> None:
        state = home / "state" / "omnizmq" / "synthetic"
        state.mkdir(parents=True)
        if entry == "logs":
            (state / entry).touch()
        else:
            (state / entry).mkdir()
        assert re.match(said, failed(code=2))

    def test_a_runtime_path_that_is_too_long_for_a_socket(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        long = home / "run" / ("x" * 90)
        long.mkdir(mode=0o700)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
        assert "set XDG_RUNTIME_DIR to a shorter directory" in failed(code=2)
        assert os.listdir(long / "omnizmq") == []


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_an_idle_deployment_stops(self, home: Path, number: int) -> None:
        with launched() as deployment:
            workers = deployment.worker_pids()
            assert deployment.stop(number) == 0
            assert not any(map(alive, workers))
            assert os.listdir(home / "run" / "omnizmq") == []

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_live_requests_may_end_and_new_ones_are_refused(self, number: int) -> None:
        async def scenario(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                asking = Held(client, "a b c d e f", after=1, modalities=["text"])
                await asking.has(1)
                deployment.process.send_signal(number)
                while (await client.status())["state"] != "draining":
                    await asyncio.sleep(0.01)
                refused = await Asking(client, "one").error()
                assert isinstance(refused, UnavailableError)
                assert "takes no new requests" in refused.message
                assert await asking.error() is None
                assert len(asking.outputs) == 7

        with launched("synthetic", "router.output_window=2") as deployment:
            asyncio.run(scenario(deployment))
            assert deployment.process.wait(20) == 0

    def test_a_request_that_never_ends_is_ended_after_the_limit(self) -> None:
        async def scenario(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                asking = Asking(client, "one two three", request_id="quiet")
                await asking.has(2)
                deployment.process.send_signal(signal.SIGTERM)
                error = await asking.error()
                assert isinstance(error, UnavailableError)
                assert "the deployment is stopping" in error.message

        with launched("synthetic", "router.drain_timeout_s=0.3", *QUIET) as deployment:
            asyncio.run(scenario(deployment))
            assert deployment.process.wait(20) == 0
            assert deployment.process.stderr is not None
            assert "Traceback" not in deployment.process.stderr.read()

    def test_a_second_signal_stops_at_once(self) -> None:
        async def scenario(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                asking = Asking(client, "one two three", request_id="quiet")
                await asking.has(2)
                deployment.process.send_signal(signal.SIGINT)
                while (await client.status())["state"] != "draining":
                    await asyncio.sleep(0.01)
                assert deployment.process.poll() is None
                deployment.process.send_signal(signal.SIGINT)
                assert isinstance(await asking.error(), UnavailableError)

        with launched("synthetic", *QUIET) as deployment:  # drain_timeout_s is 30 s
            asyncio.run(scenario(deployment))
            assert deployment.process.wait(5) == 0

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_during_the_start_rolls_back(self, home: Path, number: int) -> None:
        with launching("--set", "stage.talker.options.start_delay_ms=60000") as process:
            assert process.stderr is not None
            next(line for line in process.stderr if line.startswith("talker/0: start_delay_ms"))
            process.send_signal(number)
            assert process.wait(20) == 0
            assert os.listdir(home / "run" / "omnizmq") == []
            assert "Traceback" not in process.stderr.read()

    def test_the_end_of_an_owners_pipe_stops_an_owned_one(self) -> None:
        process = subprocess.Popen(
            [*OMNIZMQ, "launch", "--owned", "--config", "synthetic"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        while json.loads(process.stdout.readline())["event"] != "ready":
            pass
        kill(worker_of(process.pid, "talker/0"))
        with Client.connect() as client:
            assert eventually(lambda: client.status()["stages"]["talker"]["replicas"][0]["incarnation"] == 2)
            assert eventually(lambda: client.status()["ready"])
        process.stdin.close()
        assert process.wait(20) == 0
        assert process.stdout.read() == b""  # an owner reads until `ready`: more would fill the pipe and block
        process.stdout.close()


def interpreter(home: Path, first: str) -> Path:
    """One that does something first."""
    path = home / "python"
    path.write_text(f'#!/bin/sh\n{first}\nexec {sys.executable} "$@"\n')
    path.chmod(0o700)
    return path


def worker_of(router: int, replica: str) -> int:
    """The pid of a worker, told by the log that it writes to."""
    log = f"{replica.replace('/', '-')}.log"
    pids = [child.pid for child in psutil.Process(router).children()]
    return next(pid for pid in pids if os.readlink(f"/proc/{pid}/fd/1").endswith(log))
