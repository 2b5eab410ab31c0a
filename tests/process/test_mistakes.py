"""What callers get wrong, and what the machine does to them: one clear line, the right exit code, no other harmed."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.running import OMNIZMQ, Running, collect, eventually, kill, launched, omnizmq

from omnizmq import AsyncClient
from omnizmq.errors import InvalidRequestError

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def deployment(no_leaks: None) -> Iterator[Running]:  # noqa: ARG001 (it must look before anything is started)
    with launched("synthetic") as running:
        yield running


class TestArguments:
    """Python checks no types; a frame that the router cannot decode would never be answered."""

    def test_each_wrong_type_is_refused_where_it_was_given(self, deployment: Running) -> None:
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"priority": "high"}, "priority"),
            ({"priority": 1.5}, "priority"),
            ({"priority": 2**70}, "usable"),
            ({"deadline_s": "5"}, "deadline_s"),
            ({"affinity": 5}, "affinity"),
            ({"affinity": "\ud800"}, "usable"),
            ({"modalities": 5}, "modalities"),
            ({"modalities": [None]}, "modalities"),
            ({"modalities": b"text"}, "modalities"),
            ({"params": 5}, "params maps"),
            ({"params": {"thinker": 5}}, "params maps"),
            ({"params": {"thinker": {"seed": [[1]]}}}, "^parameter thinker.seed: a number, a text, .* was expected"),
            ({"params": {"thinker": {"seed": {1: 2}}}}, "^parameter thinker.seed: .* table .with texts as keys."),
            ({"params": {1: {}}}, "params"),
            ({"output_kind": "x"}, "output_kind"),
        ]

        async def use() -> None:
            async with AsyncClient.connect(deployment.name) as client:
                for arguments, named in wrong:
                    with pytest.raises(InvalidRequestError, match=named):
                        await collect(client, "one", **arguments)
                with pytest.raises(InvalidRequestError, match="a request id is a string"):
                    await client.abort(5)  # type: ignore[arg-type]
                outputs = await collect(client, "one", modalities=["text"])
                assert outputs[-1].finished

        asyncio.run(use())
        assert eventually(deployment.idle)

    def test_on_the_command_line_too(self, deployment: Running) -> None:
        done = omnizmq("chat", "hi", "--connect", deployment.name, "--param", "thinker.seed=[[1]]")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("omnizmq chat: parameter thinker.seed: a number, a text, ")


class TestFilesWithoutEnd:
    """What a user names may be anything."""

    @pytest.mark.usefixtures("home")
    @pytest.mark.parametrize(
        ("command", "said", "code"),
        [
            ("replay /dev/zero", "/dev/zero, line 1: longer than 67108864 bytes, which no line of a recording is", 2),
            ("check /dev/zero", "/dev/zero: cannot be read: larger than 1048576 bytes", 2),
            ("launch --config /dev/zero", "/dev/zero: cannot be read: larger than 1048576 bytes", 2),
            ("chat hi --config /dev/zero", "/dev/zero: cannot be read: larger than 1048576 bytes", 2),
            ("chat hi --audio /dev/zero", "--audio /dev/zero cannot be read: larger than 67043328 bytes", 2),
            ("chat -", "standard input has more than 67043328 bytes, which no prompt may have", 2),
            ("status --connect /dev/zero", "/dev/zero: cannot be read: larger than 65536 bytes; a", 1),
        ],
    )
    def test_are_refused_in_a_line(self, command: str, said: str, code: int) -> None:
        with open("/dev/zero", "rb") as stdin:
            done = subprocess.run(
                [*OMNIZMQ, *command.split()],
                stdin=stdin,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)),
            )
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr.startswith(f"omnizmq {command.split()[0]}: {said}")
        assert done.stderr.count("\n") == 1


class TestOptionsThatWouldBeIgnored:
    def test_an_output_without_sound(self, home: Path) -> None:
        done = omnizmq("chat", "hi", "--modalities", "text", "--output", str(home / "o.wav"))
        assert done.returncode == 2
        assert "add audio to --modalities" in done.stderr

    @pytest.mark.usefixtures("deployment")
    def test_an_override_of_a_deployment_that_runs(self) -> None:
        done = omnizmq("chat", "hi", "--set", "stage.talker.replicas=2")
        assert done.returncode == 2
        assert "--set cannot change synthetic" in done.stderr


class TestStreams:
    @pytest.mark.parametrize("command", [["status", "--json"], ["chat", "one"], ["trace", "--last", "--json"]])
    def test_a_full_disk_is_one_line(self, deployment: Running, command: list[str]) -> None:
        assert omnizmq("chat", "one", "--connect", deployment.name).returncode == 0
        assert eventually(lambda: omnizmq("trace", "--last").returncode == 0)  # it is written a moment later
        with open("/dev/full", "wb") as full:
            done = subprocess.run([*OMNIZMQ, *command], stdout=full, stderr=subprocess.PIPE, timeout=30, check=False)
        assert done.returncode == 1
        assert done.stderr.decode() == f"omnizmq {command[0]}: the output cannot be read or written: " + (
            "No space left on device\n"
        )

    def test_a_launch_whose_output_disk_is_full_serves_all_the_same(self) -> None:
        with open("/dev/full", "wb") as full:
            process = subprocess.Popen([*OMNIZMQ, "launch", "--config", "synthetic"], stdout=full, stderr=full)
        try:
            assert eventually(lambda: omnizmq("chat", "one", "--connect", "synthetic").returncode == 0, 20)
        finally:
            process.terminate()
            assert process.wait(20) == 0

    @pytest.mark.usefixtures("deployment")
    def test_closed_standard_streams(self) -> None:
        line = " ".join(OMNIZMQ)
        for redirected, status in (("one <&-", 0), ("- <&-", 2), ("one <&- >&- 2>&-", 0)):
            assert (
                subprocess.run(["sh", "-c", f"{line} chat {redirected}"], timeout=30, check=False).returncode == status
            )

    def test_a_pipe_is_no_place_for_a_wave(self, home: Path) -> None:
        pipe = home / "pipe.wav"
        os.mkfifo(pipe)
        done = omnizmq("chat", "hi", "--output", str(pipe))
        assert done.returncode == 2
        assert "is a pipe or a socket" in done.stderr


def test_b1_a_router_that_pauses_loses_nothing(no_leaks: None) -> None:  # noqa: ARG001
    """More than every queue from a worker to it holds is made meanwhile, and waits; its client's queue holds it all."""
    sets = (
        "stage.thinker.options.echo=false",
        "stage.thinker.options.chunks=10000",
        "stage.thinker.options.chunk_bytes=8",
    )

    async def use(deployment: Running) -> None:
        async with AsyncClient.connect(deployment.name) as client:
            outputs = client.generate("x", modalities=["text"])
            await outputs.__anext__()
            kill(deployment.pid, signal.SIGSTOP)
            await asyncio.sleep(1.5)  # the engine fills every queue meanwhile
            kill(deployment.pid, signal.SIGCONT)
            rest = [output async for output in outputs]
            assert sum(output.text is not None for output in rest) == 9_999
            assert rest[-1].finish_reason == "stop"

    with launched("synthetic", *sets) as deployment:
        asyncio.run(use(deployment))
        assert eventually(deployment.idle)
