"""Clients over TCP: with the keys all works, without them nothing; a lease tells the living from the gone (W2, A7)."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from support.running import Asking, Running, collect, document, eventually, kill, launched, omnizmq, text_of

from omnizmq import AsyncClient, remote
from omnizmq import protocol as wire
from omnizmq.errors import NotFoundError, RouterLostError

pytestmark = pytest.mark.usefixtures("no_leaks")

LEASE = ("router.heartbeat_interval_s=0.2", "router.heartbeat_timeout_s=2")
QUIET = ("stage.thinker.options.silent_at=3", "stage.thinker.options.fault_only=quiet")


def free_port(host: str = "127.0.0.1") -> int:
    """`OSError` where the machine has no such address."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
        free.bind((host, 0))
        port: int = free.getsockname()[1]
        return port


@pytest.fixture
def endpoint() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


@pytest.fixture
def deployment(endpoint: str, no_leaks: None) -> Iterator[Running]:  # noqa: ARG001 (it looks before and after)
    with launched("synthetic", f"router.remote={endpoint}", *LEASE, *QUIET) as running:
        yield running
        assert running.process.poll() is not None or eventually(running.idle)


@pytest.fixture
def keys(home: Path) -> str:
    """The file that goes to the other machine."""
    return str(home / "state" / "omnizmq" / "synthetic" / "remote.json")


@pytest.mark.usefixtures("deployment")
class TestWithKeys:
    def test_w2_all_commands_work_from_elsewhere(self, keys: str, tmp_path: Path) -> None:
        sound = str(tmp_path / "reply.wav")
        both = document(omnizmq("chat", "one two", "--connect", keys, "--json", "--output", sound))
        assert (both["text"], both["audio"]["path"]) == ("one two", sound)
        assert document(omnizmq("status", "--connect", keys, "--json"))["ready"] is True
        assert omnizmq("abort", "nobody", "--connect", keys).returncode == 0
        assert omnizmq("restart", "talker", "--connect", keys).returncode == 0

    def test_a7_a_client_that_vanishes_is_missed_by_its_lease(self, deployment: Running, keys: str) -> None:
        """Stopped, as if its machine had gone: its process and its connection are there and say nothing."""
        script = """
import asyncio, sys
from omnizmq import AsyncClient
async def main():
    async with AsyncClient.connect(sys.argv[1]) as client:
        async for output in client.generate("one two three", request_id="quiet"):
            print(output.text, flush=True)
asyncio.run(main())
"""
        client = subprocess.Popen([sys.executable, "-c", script, keys], stdout=subprocess.PIPE, text=True)
        assert client.stdout is not None
        assert client.stdout.readline()
        assert deployment.status()["live_requests"] == 1
        kill(client.pid, signal.SIGSTOP)
        assert eventually(deployment.idle, 20)
        client.kill()
        client.wait()
        client.stdout.close()
        asked = [event for event in deployment.trace("quiet")["events"] if event["event"] == "abort_asked"]
        assert asked[0]["why"] == "disconnect: its connection ended"

    def test_a7_a_busy_client_is_not_taken_for_a_gone_one(self, keys: str) -> None:
        """Its loop hears nothing for longer than the lease; its I/O thread answers all the same."""
        script = """
import asyncio, sys, time
from omnizmq import AsyncClient
async def main():
    async with AsyncClient.connect(sys.argv[1]) as client:
        async for output in client.generate("one two three", modalities=["text"]):
            if output.finished:
                print(output.finish_reason)
            elif output.text == "one":
                time.sleep(5)
asyncio.run(main())
"""
        done = subprocess.run(
            [sys.executable, "-c", script, keys], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout == "stop\n"


def test_f6_a_client_elsewhere_notices_that_the_router_is_gone(deployment: Running, keys: str) -> None:
    async def scenario() -> None:
        async with AsyncClient.connect(keys) as client:
            asking = Asking(client, "one two three", request_id="quiet")
            await asking.has(2)
            kill(deployment.pid)
            error = await asking.error()
            assert isinstance(error, RouterLostError)
            assert error.message.startswith("the router is gone: it has said nothing for ")

    asyncio.run(scenario())


class TestWithoutKeys:
    def test_w2_a_peer_without_curve_gets_no_answer(self, deployment: Running, endpoint: str) -> None:
        context = zmq.Context()
        peer = context.socket(zmq.DEALER)
        peer.connect(endpoint)
        peer.send(wire.encode_hello(wire.Hello(wire.VERSION, "", "client", pid=os.getpid())))
        assert peer.poll(1000) == 0
        peer.close(0)
        context.term()
        assert deployment.status()["counters"]["bad_frames"] == 0

    @pytest.mark.parametrize("wrong", ["client", "server"])
    def test_w2_another_key_is_none(
        self, deployment: Running, endpoint: str, keys: str, wrong: str, tmp_path: Path
    ) -> None:
        """A client's key that the deployment does not know, or another deployment's public key."""
        public, secret = (key.decode() for key in zmq.curve_keypair())
        text = Path(keys).read_text()
        found = msgspec.json.decode(text)
        if wrong == "client":
            found |= {"client_key": public, "client_secret": secret}
        else:
            found |= {"server_key": public}
        forged = tmp_path / "remote.json"
        forged.write_bytes(wire.encode_json(found))

        async def scenario() -> None:
            async with AsyncClient.connect(str(forged)):
                pass

        refused = (
            f"synthetic \\({re.escape(endpoint)}\\) does not accept the keys of {re.escape(str(forged))}: they are"
        )
        with pytest.raises(NotFoundError, match=refused):
            asyncio.run(scenario())
        assert deployment.status()["counters"]["bad_frames"] == 0

        async def others() -> str:
            async with AsyncClient.connect(keys) as client:
                return text_of(await collect(client, "one"))

        assert asyncio.run(others()) == "one"


class TestOtherEnds:
    """A file that leads to something else, or to nothing: none of that is a matter of keys."""

    @pytest.fixture
    def elsewhere(self, tmp_path: Path, endpoint: str) -> Path:
        """The file of a deployment that does not run; at its endpoint is nobody."""
        public, secret = (key.decode() for key in zmq.curve_keypair())
        path = tmp_path / "remote.json"
        path.write_bytes(wire.encode_json(remote.Remote("far", endpoint, public, public, secret, wire.VERSION)))
        return path

    @pytest.fixture(autouse=True)
    def _at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("omnizmq.frontend.client.CONNECT_TIMEOUT_S", 0.3)

    @staticmethod
    def connect(path: Path) -> None:
        async def scenario() -> None:
            async with AsyncClient.connect(str(path)):
                pass

        asyncio.run(scenario())

    def test_nobody(self, elsewhere: Path) -> None:
        with pytest.raises(RouterLostError, match="does not answer: no connection could be made; does it run, and is"):
            self.connect(elsewhere)

    def test_a_name_that_nobody_bears(self, elsewhere: Path) -> None:
        elsewhere.write_text(re.sub("127.0.0.1", "nobody.invalid", elsewhere.read_text()))
        with pytest.raises(RouterLostError, match=r"far \(tcp://nobody.invalid:\d+\) does not answer: no connection"):
            self.connect(elsewhere)

    def test_one_that_says_nothing(self, elsewhere: Path, endpoint: str) -> None:
        with socket.create_server(("127.0.0.1", int(endpoint.rpartition(":")[2]))):
            with pytest.raises(RouterLostError) as failed:
                self.connect(elsewhere)
            assert failed.value.message == f"far ({endpoint}) does not answer"


@pytest.mark.parametrize("bound", ["[::1]", "[::]"])
def test_w2_ipv6(home: Path, bound: str) -> None:
    try:
        port = free_port("::1")
    except OSError:
        pytest.skip("this machine has no IPv6")
    keys = home / "state" / "omnizmq" / "synthetic" / "remote.json"
    with launched("synthetic", f"router.remote=tcp://{bound}:{port}", *LEASE) as running:
        found = remote.read(str(keys))
        assert found.endpoint == f"tcp://{bound if bound == '[::1]' else socket.gethostname()}:{port}"
        for host in ("[::1]",) if bound == "[::1]" else ("[::1]", "127.0.0.1"):  # all interfaces are those of IPv4 too
            keys.write_bytes(wire.encode_json(msgspec.structs.replace(found, endpoint=f"tcp://{host}:{port}")))
            both = document(omnizmq("chat", "one two", "--connect", str(keys), "--json"))
            assert (both["text"], both["error"]) == ("one two", None)
            assert document(omnizmq("status", "--connect", str(keys), "--json"))["ready"] is True
        assert running.stop() == 0


def test_w2_the_ready_line_names_what_a_client_elsewhere_needs(home: Path, endpoint: str) -> None:
    keys = str(home / "state" / "omnizmq" / "synthetic" / "remote.json")
    with launched("synthetic", f"router.remote={endpoint}") as running:
        assert running.ready["remote"] == {"endpoint": endpoint, "keys": keys}
        assert document(omnizmq("status", "--connect", keys, "--json"))["ready"] is True


def test_an_address_that_cannot_be_bound_is_said_so(home: Path) -> None:  # noqa: ARG001 (its environment)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        done = omnizmq("launch", "--config", "synthetic", "--set", f"router.remote={endpoint}")
    assert done.returncode == 2
    assert done.stderr.strip().endswith(f"router.remote: {endpoint} cannot be bound: Address already in use")
