"""Processes that are killed, stopped or stuck, at any moment: who hears of it, what ends, what is left (F2, F4, F6)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.running import (
    OMNIZMQ,
    Asking,
    Running,
    alive,
    collect,
    eventually,
    kill,
    launched,
    omnizmq,
    state_of,
    text_of,
)

from omnizmq import AsyncClient, RequestOutput
from omnizmq.errors import ReplicaLostError, RouterLostError, UnavailableError

pytestmark = pytest.mark.usefixtures("no_leaks")

QUIET = ("stage.thinker.options.silent_at=3", "stage.thinker.options.fault_only=quiet")
NEVER = "one two three"  # what a quiet request is asked, of which it says two words
FAST_HEARTBEAT = (
    "router.heartbeat_interval_s=0.1",
    "router.heartbeat_timeout_s=1",
    "router.restart_delay_s=0.05",
    "router.max_restart_delay_s=1",
)
LIMIT_S = 5.0


def gone(pids: list[int], limit_s: float = LIMIT_S) -> bool:
    return eventually(lambda: not any(map(alive, pids)), limit_s)


def runtime_entries(home: Path) -> list[str]:
    return sorted(os.listdir(home / "run" / "omnizmq"))


class TestWorkers:
    def test_f2_a_killed_worker_takes_its_own_requests_along_and_comes_back(self, home: Path) -> None:
        two = ("stage.thinker.replicas=2", "stage.thinker.policy=round_robin")
        sets = ("router.redrive=never", "router.restart_delay_s=0.2", *two, *QUIET)

        async def scenario(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                one = Asking(client, NEVER, request_id="quiet-0", modalities=["text"])
                await one.has(2)
                other = Asking(client, NEVER, request_id="quiet-1", modalities=["text"])
                await other.has(2)
                victim = await replica_of(client, "thinker", 0)
                kill(victim["pid"])
                error = await one.error()
                assert isinstance(error, ReplicaLostError)
                assert (error.stage, error.replica, error.retriable) == ("thinker", "thinker/0", True)
                assert error.message == "thinker/0 died: killed by SIGKILL"
                assert not other.task.done()
                meanwhile = await asyncio.gather(*(collect(client, "a b") for _ in range(4)))
                assert [text_of(outputs) for outputs in meanwhile] == ["a b"] * 4
                back = await replica_when(client, "thinker", 0, is_back())
                assert (back["restarts"], back["incarnation"]) == (1, 2)
                assert back["pid"] != victim["pid"]
                assert len(list((home / "run" / "omnizmq" / "synthetic").glob("*.group"))) == 4  # of the living alone
                again = Asking(client, NEVER, request_id="quiet-2", modalities=["text"])
                await again.has(2)
                kill(other_pid := (await replica_of(client, "thinker", 1))["pid"])
                assert isinstance(await other.error(), ReplicaLostError)
                assert not again.task.done()
                assert await client.abort("quiet-2") == 1
                assert await again.error() is None
                assert gone([other_pid, victim["pid"]])

        with launched("synthetic", *sets) as deployment:
            asyncio.run(scenario(deployment))
            assert eventually(deployment.idle)
            assert deployment.stop() == 0

    def test_f4_without_a_live_replica_requests_are_refused_at_once_and_the_delay_grows(self) -> None:
        async def refused(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                kill((await replica_of(client, "talker", 0))["pid"])
                await replica_when(client, "talker", 0, lambda found: found["state"] == "dead")
                error = await Asking(client, "one", modalities=["audio"]).error()
                assert isinstance(error, UnavailableError)
                assert (error.stage, error.retriable) == ("talker", True)
                assert (await client.status())["ready"] is False
                assert text_of(await collect(client, "one", modalities=["text"])) == "one"

        async def delays(deployment: Running) -> list[float]:
            found = []
            async with AsyncClient.connect(deployment.name) as client:
                for incarnation in (1, 2, 3):
                    killed = time.monotonic()
                    kill((await replica_of(client, "talker", 0))["pid"])
                    await replica_when(client, "talker", 0, is_back(incarnation + 1))
                    found.append(time.monotonic() - killed)
            return found

        with launched("synthetic", "router.restart_delay_s=3600", "router.max_restart_delay_s=3600") as deployment:
            asyncio.run(refused(deployment))
        with launched("synthetic", "router.restart_delay_s=0.4", "router.max_restart_delay_s=10") as deployment:
            first, second, third = asyncio.run(delays(deployment))
            assert 0.3 < first < second < third
            assert third > 1.4

    def test_f2_a_stopped_worker_is_killed_and_replaced(self) -> None:
        async def scenario(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                asking = Asking(client, NEVER, request_id="quiet", modalities=["text"])
                await asking.has(2)
                stopped = (await replica_of(client, "thinker", 0))["pid"]
                kill(stopped, signal.SIGSTOP)
                error = await asking.error()
                assert isinstance(error, ReplicaLostError)
                assert error.message.startswith("thinker/0 died: silent for ")
                assert gone([stopped])
                await replica_when(client, "thinker", 0, is_back())
                assert text_of(await collect(client, "one", modalities=["text"])) == "one"

        with launched("synthetic", *FAST_HEARTBEAT, *QUIET) as deployment:
            asyncio.run(scenario(deployment))
            assert eventually(deployment.idle)

    def test_f2_an_engine_that_hangs_is_killed_while_its_worker_still_answers(self) -> None:
        sets = (
            "stage.thinker.step_timeout_s=1.5",
            "stage.thinker.options.hang_at=2",
            "stage.thinker.options.fault_only=hang",
        )

        async def scenario(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                asking = Asking(client, NEVER, request_id="hang", modalities=["text"])
                await asking.has(1)
                error = await asking.error()
                assert isinstance(error, ReplicaLostError)
                assert error.message.startswith("thinker/0 died: stuck in a step for ")  # and not: silent for
                await replica_when(client, "thinker", 0, is_back())
                assert text_of(await collect(client, "one", modalities=["text"])) == "one"

        with launched("synthetic", *FAST_HEARTBEAT, *sets) as deployment:
            asyncio.run(scenario(deployment))
            assert eventually(deployment.idle)

    def test_a6_an_abort_does_not_wait_for_a_hung_engine_and_leaves_it_counted(self) -> None:
        sets = (
            "router.abort_timeout_s=0.8",
            "stage.thinker.options.hang_at=2",
            "stage.thinker.options.fault_only=hang",
        )

        async def scenario(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                asking = Asking(client, NEVER, request_id="hang", modalities=["text"])
                await asking.has(1)
                assert await client.abort("hang") == 1
                assert await asking.error() is None
                assert asking.outputs[-1].finish_reason == "abort"
                status = await client.status()
                assert (status["live_requests"], status["leftovers"], status["bindings"]) == (0, 1, 1)
                kill((await replica_of(client, "thinker", 0))["pid"])
                await replica_when(client, "thinker", 0, lambda found: found["incarnation"] == 2)
                status = await client.status()
                assert (status["leftovers"], status["bindings"]) == (0, 0)

        with launched("synthetic", *FAST_HEARTBEAT, *sets) as deployment:
            asyncio.run(scenario(deployment))
            trace = deployment.trace("hang")
            at_ms = {event["event"]: event["at_ms"] for event in trace["events"]}
            assert 800 <= at_ms["left_behind"] - at_ms["abort_asked"] < 2500

    def test_f1_a_worker_that_kills_itself_at_work_is_restarted(self) -> None:
        sets = (
            "stage.talker.options.crash_at=2",
            "stage.talker.options.fault_once=true",
            "router.restart_delay_s=0.05",
        )

        async def scenario(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                error = await Asking(client, NEVER).error()
                assert isinstance(error, ReplicaLostError)
                assert (error.stage, error.replica) == ("talker", "talker/0")
                await replica_when(client, "talker", 0, is_back())
                assert text_of(await collect(client, NEVER)) == NEVER

        with launched("synthetic", *sets) as deployment:
            asyncio.run(scenario(deployment))
            assert eventually(deployment.idle)


class TestRouter:
    def test_f6_when_the_router_is_killed_workers_end_and_clients_hear_of_it(self, home: Path) -> None:
        async def scenario(deployment: Running) -> list[int]:
            async with AsyncClient.connect(deployment.name) as client, AsyncClient.connect(deployment.name) as idle:
                workers = deployment.worker_pids()
                asking = Asking(client, NEVER, request_id="quiet")
                await asking.has(2)
                killed = time.monotonic()
                kill(deployment.pid)
                error = await asking.error()
                assert isinstance(error, RouterLostError)
                assert time.monotonic() - killed < 2
                with pytest.raises(RouterLostError, match="the router is gone: its process ended"):
                    await idle.status()
                with pytest.raises(RouterLostError):
                    await collect(idle, "one")
                return workers

        with launched("synthetic", *QUIET) as deployment:
            workers = asyncio.run(scenario(deployment))
            assert gone(workers)
            assert eventually(lambda: runtime_entries(home) == [])
            assert omnizmq("status").stderr.startswith("omnizmq status: no deployment is running")

    def test_f6_a_stopped_worker_ends_with_its_siblings(self, home: Path) -> None:
        with launched("synthetic") as deployment:
            workers = deployment.worker_pids()
            kill(deployment.worker_pid("talker/0"), signal.SIGSTOP)
            kill(deployment.pid)
            assert gone(workers)
            assert eventually(lambda: runtime_entries(home) == [])

    def test_f6_workers_that_are_all_stopped_end_at_the_next_start(self, home: Path) -> None:
        with launched("synthetic") as deployment:
            workers = deployment.worker_pids()
            for pid in workers:
                kill(pid, signal.SIGSTOP)
            kill(deployment.pid)
            deployment.process.wait()
            with launched("synthetic") as successor:
                assert gone(workers)
                assert omnizmq("chat", "one two").stdout == "one two\n"
                assert successor.stop() == 0
            assert runtime_entries(home) == []

    def test_f6_killed_while_workers_load(self, home: Path) -> None:
        command = [*OMNIZMQ, "launch", "--config", "synthetic", "--set", "stage.talker.options.start_delay_ms=60000"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("talker/0: start_delay_ms"):
                break
        process.kill()
        process.wait()
        process.stderr.close()
        assert eventually(lambda: runtime_entries(home) == [])


class TestAnEngineThatNeverLetsGo:
    """An engine of somebody else's, found by its entry point, that computes for ever and keeps the interpreter's lock:
    its worker cannot hear, speak, or run a signal handler. It has a process of its own besides."""

    ENGINE = """
import ctypes, subprocess
class Engine:
    def __init__(self): self.added = []
    def add(self, request): self.added.append(request.request_id)
    def has_work(self, request_id): return True
    def step(self, ready): ctypes.PyDLL(None).sleep(1000)
    def abort(self, request_id): return []
    def close(self): pass
def create(context):
    subprocess.Popen(["sleep", "1000"])
    return Engine()
"""

    @pytest.fixture(autouse=True)
    def engine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "greedy.py").write_text(self.ENGINE)
        about = tmp_path / "greedy-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: greedy\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text("[omnizmq.engines]\ngreedy = greedy:create\n")
        before = os.environ.get("PYTHONPATH")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path) if before is None else f"{tmp_path}:{before}")

    SETS = ("stage.thinker.engine=greedy", "stage.thinker.options={}")

    def test_f2_it_is_killed_for_its_silence_and_replaced(self) -> None:
        async def scenario(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                error = await Asking(client, "hi").error()
                assert isinstance(error, ReplicaLostError)
                assert error.message.startswith("thinker/0 died: silent for ")
                await replica_when(client, "thinker", 0, is_back())

        with launched("synthetic", *FAST_HEARTBEAT, *self.SETS) as deployment:
            asyncio.run(scenario(deployment))
            assert eventually(deployment.idle)

    def test_f6_it_ends_when_the_router_is_killed(self, home: Path) -> None:
        async def scenario(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                asking = Asking(client, "hi")
                while (await replica_of(client, "thinker", 0))["heartbeat_age_s"] < 1.5:
                    await asyncio.sleep(0.02)
                kill(deployment.pid)
                assert isinstance(await asking.error(), RouterLostError)

        with launched("synthetic", *self.SETS) as deployment:
            workers = deployment.worker_pids()
            asyncio.run(scenario(deployment))
            assert gone(workers)
            assert eventually(lambda: runtime_entries(home) == [])

    def test_sigterm_ends_the_deployment_all_the_same(self) -> None:
        async def scenario(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                asking = Asking(client, "hi")
                while (await replica_of(client, "thinker", 0))["heartbeat_age_s"] < 1.5:
                    await asyncio.sleep(0.02)
                deployment.process.send_signal(signal.SIGTERM)
                while (await client.status())["state"] != "draining":
                    await asyncio.sleep(0.02)
                deployment.process.send_signal(signal.SIGTERM)
                assert isinstance(await asking.error(), UnavailableError)

        with launched("synthetic", *self.SETS) as deployment:
            asyncio.run(scenario(deployment))
            assert deployment.process.wait(10) == 0


class TestOwners:
    OWNER = """
import asyncio, sys
from omnizmq import AsyncClient
async def main():
    async with AsyncClient.launch("synthetic", sets=sys.argv[2:]) as client:
        outputs = client.generate("one two three", request_id=sys.argv[1])
        async for output in outputs:
            print(client.name, flush=True)
asyncio.run(main())
"""

    def test_f6_a_killed_owner_takes_its_deployment_along(self, home: Path) -> None:
        command = [sys.executable, "-c", self.OWNER, "quiet", *QUIET]
        owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert owner.stdout is not None
        name = owner.stdout.readline().strip()
        assert name.startswith("own-")
        assert runtime_entries(home) == [name]
        owner.kill()
        owner.wait()
        owner.stdout.close()
        assert eventually(lambda: runtime_entries(home) == [], 10)

    def test_a7_a_killed_client_aborts_its_requests(self) -> None:
        with launched("synthetic", *QUIET) as deployment:
            script = self.OWNER.replace('AsyncClient.launch("synthetic", sets=sys.argv[2:])', "AsyncClient.connect()")
            client = subprocess.Popen([sys.executable, "-c", script, "quiet"], stdout=subprocess.PIPE, text=True)
            assert client.stdout is not None
            assert client.stdout.readline().strip() == "synthetic"
            assert deployment.status()["live_requests"] == 1
            client.kill()
            client.wait()
            client.stdout.close()
            assert eventually(deployment.idle)
            assert deployment.status()["counters"]["aborted"] == 1
            trace = deployment.trace("quiet")
            asked = [event for event in trace["events"] if event["event"] == "abort_asked"]
            signs = ("its process ended", "its connection ended")  # whichever is seen first
            assert asked[0]["why"] in [f"disconnect: {sign}" for sign in signs]

    @pytest.mark.parametrize(
        ("queue", "told"),
        [(1000, "the client does not read"), (1, "")],  # with one place, its own next frame pushes the goodbye out
    )
    def test_b1_a_client_that_never_reads_is_given_up_and_told_when_it_reads_again(self, queue: int, told: str) -> None:
        sets = (
            f"router.max_peer_queue={queue}",
            "router.output_window=1000000",
            "router.output_window_mib=1000",
            "stage.thinker.options.echo=false",
            "stage.thinker.options.chunks=40000",
            "stage.thinker.options.chunk_bytes=500",
        )
        with launched("synthetic", *sets) as deployment:
            client = subprocess.Popen(
                [sys.executable, "-c", self.STOPS_ITSELF], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            try:
                assert eventually(lambda: state_of(client.pid) == "T")
                assert eventually(lambda: deployment.status()["live_requests"] == 0, 30)
                assert deployment.status()["counters"]["aborted"] == 1
                kill(client.pid, signal.SIGCONT)
                said, _ = client.communicate(timeout=20)
            finally:
                client.kill()
                client.communicate()
            assert said.startswith(f"router_lost: the router is gone: {told}")
            assert eventually(deployment.idle)

    def test_f6_what_a_router_said_last_is_heard_before_its_end(self) -> None:
        """Drained and gone while its client was stopped: the answer is whole all the same."""
        with launched("synthetic", "stage.thinker.options.interval_ms=100") as deployment:
            client = subprocess.Popen(
                [sys.executable, "-c", self.STOPS_ITSELF.replace('"x"', '"a b c d"')],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                assert eventually(lambda: state_of(client.pid) == "T")
                assert deployment.stop() == 0
                kill(client.pid, signal.SIGCONT)
                said, errors = client.communicate(timeout=20)
            finally:
                client.kill()
                client.communicate()
            assert (said, errors) == ("a b c d stop\n", "")

    STOPS_ITSELF = """
import asyncio, os, signal
from omnizmq import AsyncClient
from omnizmq.errors import OmnizmqError
async def main():
    async with AsyncClient.connect() as client:
        try:
            async for output in client.generate("x", modalities=["text"]):
                text.append(output.text or "")
                if output.finished:
                    print("".join(text), output.finish_reason)
                if not stopped:
                    stopped.append(os.kill(os.getpid(), signal.SIGSTOP))
        except OmnizmqError as error:
            print(f"{error.code}: {error.message}")
stopped, text = [], []
asyncio.run(main())
"""

    def test_a7_a_stopped_client_is_not_taken_for_a_gone_one(self) -> None:
        async def scenario(deployment: Running) -> list[RequestOutput]:
            outputs: list[RequestOutput] = []
            async with AsyncClient.connect(deployment.name) as client:
                async for output in client.generate("a b c d e f g h", modalities=["text"]):
                    if not outputs:
                        time.sleep(1.5)  # this process is busy for longer than any heartbeat
                    outputs.append(output)
            return outputs

        with launched("synthetic", *FAST_HEARTBEAT, "router.output_window=2") as deployment:
            outputs = asyncio.run(scenario(deployment))
            assert (text_of(outputs), outputs[-1].finish_reason) == ("a b c d e f g h", "stop")


async def replica_of(client: AsyncClient, stage: str, number: int) -> dict[str, int]:
    found: dict[str, int] = (await client.status())["stages"][stage]["replicas"][number]
    return found


def is_back(incarnation: int = 2) -> Callable[[dict[str, object]], bool]:
    """This incarnation serves. The one before may still be called ready when its consumers know of its death."""
    return lambda found: (found["state"], found["incarnation"]) == ("ready", incarnation)


async def replica_when(
    client: AsyncClient, stage: str, number: int, holds: Callable[[dict[str, object]], bool]
) -> dict[str, object]:
    """What `status` says of the replica when that holds."""
    deadline = time.monotonic() + 10
    while not holds(found := await replica_of(client, stage, number)):
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.02)
    return found
