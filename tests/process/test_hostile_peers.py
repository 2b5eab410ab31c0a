"""Peers that do not belong, on every socket: refused, counted, and no harm to anybody else (W1, W2, F3)."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.drill_peers import Peer, hello, producer_hello, worker_hello
from support.running import Asking, Running, collect, eventually, text_of

from omnizmq import AsyncClient, runtime
from omnizmq import protocol as wire

SETS = ("stage.thinker.options.silent_at=3", "stage.thinker.options.fault_only=quiet")


@pytest.fixture
def home(module_home: Path) -> Path:
    return module_home


@pytest.fixture(autouse=True)
def deployment(running: Running, no_leaks: None) -> Iterator[Running]:  # noqa: ARG001 (it looks before and after)
    """Whatever a peer does: a request that lives meanwhile ends as it should, and no worker is lost."""
    workers = running.worker_pids()

    async def others_unharmed() -> None:
        async with AsyncClient.connect(running.name) as client:
            assert text_of(await collect(client, "one two")) == "one two"

    yield running
    asyncio.run(others_unharmed())
    assert running.worker_pids() == workers
    assert running.status()["counters"]["router_errors"] == 0
    assert eventually(running.idle), running.status()


@pytest.fixture
def nonce() -> str:
    return runtime.find().nonce


def bad_frames(deployment: Running) -> int:
    return int(deployment.status()["counters"]["bad_frames"])


GARBAGE = (b"", b"\x00", b"\xff" * 1000, b"hello", b"\x90" * 50_000, msgspec.msgpack.encode(["Submit", 1, 2]))


@pytest.mark.parametrize("socket", ["clients.sock", "workers.sock"])
class TestStrangers:
    @pytest.mark.parametrize("garbage", GARBAGE)
    def test_w1_garbage_is_refused_and_counted(
        self, deployment: Running, home: Path, socket: str, garbage: bytes
    ) -> None:
        before = bad_frames(deployment)
        with Peer(home, socket) as peer:
            peer.says(garbage)
            refused = peer.hears()
            assert isinstance(refused, wire.Refused)
            assert (refused.request_id, refused.error.code) == ("", "protocol_error")
        assert bad_frames(deployment) == before + 1

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            (
                {"version": wire.VERSION + 1},
                f"protocol version {wire.VERSION + 1} meets {wire.VERSION}: install the same omnizmq",
            ),
            ({"nonce": "0" * 32}, "this is another launch: its nonce differs"),
            ({"role": "producer"}, "a producer does not belong on this socket"),
        ],
    )
    def test_w2_a_wrong_hello_is_refused_and_says_why(
        self, deployment: Running, home: Path, nonce: str, socket: str, changed: dict[str, Any], said: str
    ) -> None:
        before = bad_frames(deployment)
        with Peer(home, socket) as peer:
            make = hello if socket == "clients.sock" else worker_hello
            peer.says(make(nonce, **changed))
            assert said in peer.hears().error.message
            peer.says(wire.Packer().pack(wire.AskStatus(1)).__next__())  # it is no client for all that
            assert isinstance(peer.hears(), wire.Refused)
        assert bad_frames(deployment) == before + 2

    def test_w1_a_frame_over_the_limit_ends_the_connection(self, home: Path, nonce: str, socket: str) -> None:
        with Peer(home, socket) as peer:
            peer.says(hello(nonce))
            peer.says(b"x" * (wire.FRAME_BYTES + 1))

    def test_w1_messages_of_many_frames_are_dropped(self, home: Path, nonce: str, socket: str) -> None:
        with Peer(home, socket) as peer:
            peer.says(hello(nonce), b"more")
            assert peer.hears_nothing()


class TestClients:
    @pytest.mark.parametrize("pid", [0, -1, 1 << 31, 1 << 40, 1 << 63])
    def test_a7_a_client_whose_process_cannot_be_watched_is_refused(self, home: Path, nonce: str, pid: int) -> None:
        with Peer(home, "clients.sock") as peer:
            peer.says(hello(nonce, pid=pid))
            assert peer.hears().error.message == f"process {pid} cannot be watched"

    def test_a7_a_client_whose_process_has_ended_is_refused(self, home: Path, nonce: str) -> None:
        ended = subprocess.Popen(["/bin/true"])
        ended.wait()
        with Peer(home, "clients.sock") as peer:
            peer.says(hello(nonce, pid=ended.pid))
            assert "cannot be watched" in peer.hears().error.message

    def test_w1_what_a_client_may_not_say_is_dropped_and_counted(
        self, deployment: Running, home: Path, nonce: str
    ) -> None:
        before = bad_frames(deployment)
        pack = wire.Packer().pack
        with Peer(home, "clients.sock") as peer:
            peer.says(hello(nonce))
            assert isinstance(peer.hears(), wire.Welcome)
            said = [
                hello(nonce),  # a replay
                worker_hello(nonce),
                *pack(wire.Terminal("x", "thinker", "text", "stop", None, {}, [], {})),
                *pack(wire.Heartbeat(1, "idle", 0, "", [], 0, 0, 0)),
                *pack(wire.Part(1, 5, 3, b"x")),
                *pack(wire.Part(1, 1, 3, b"x")),
                b"",
            ]
            for message in said:
                peer.says(message)
            peer.says(*pack(wire.AskStatus(7)))
            answer = peer.hears()
            assert isinstance(answer, wire.Status)
            assert answer.call == 7
            peer.says(*pack(wire.Bye("done")))
        assert bad_frames(deployment) == before + len(said)

    def test_i1_submissions_that_cannot_be_are_refused(self, home: Path, nonce: str) -> None:
        good = wire.Submit(
            "a-0123456789abcdef", "a", wire.Prompt("hi", None, None), None, {}, 0, None, None, 8, 0, None
        )
        pack = wire.Packer().pack
        with Peer(home, "clients.sock") as peer:
            peer.says(hello(nonce))
            peer.hears()
            for changed in (
                {"request_id": "a"},
                {"request_id": "b-0123456789abcdef"},
                {"external_id": "../a", "request_id": "a-0123456789abcdef"},
                {"modalities": ["smell"]},
                {"params": {"nobody": {}}},
            ):
                peer.says(*pack(msgspec.structs.replace(good, **changed)))
                refused = peer.hears()
                assert isinstance(refused, wire.Refused)
                assert refused.error.code == "invalid_request"
            peer.says(*pack(wire.Bye("done")))

    def test_another_clients_request_is_not_ones_own(self, deployment: Running, home: Path, nonce: str) -> None:
        """Credits and goodbyes of one client do nothing to the requests of another."""

        async def scenario() -> None:
            pack = wire.Packer().pack
            async with AsyncClient.connect(deployment.name) as client:
                asking = Asking(client, "one two three", request_id="quiet")
                await asking.has(2)
                with Peer(home, "clients.sock") as peer:
                    peer.says(hello(nonce))
                    peer.hears()
                    peer.says(*pack(wire.Consumed(asking.outputs[0].request_id, "thinker", 1 << 40)))
                    peer.says(*pack(wire.Bye("done")))
                assert (await client.status())["live_requests"] == 1
                assert await client.abort("quiet") == 1
                assert await asking.error() is None

        asyncio.run(scenario())


class TestWorkers:
    @pytest.mark.parametrize(
        "changed",
        [
            {},
            {"incarnation": 2},
            {"incarnation": 0},
            {"incarnation": 1 << 70 >> 7},
            {"replica": "talker/1"},
            {"replica": "nobody/0"},
            {"replica": ""},
        ],
    )
    def test_f3_a_worker_that_claims_a_replica_is_refused(
        self, deployment: Running, home: Path, nonce: str, changed: dict[str, Any]
    ) -> None:
        """Even with the launch's secret: its socket does not bear the name that the replica's own does."""
        before = bad_frames(deployment)
        with Peer(home, "workers.sock") as peer:
            peer.says(worker_hello(nonce, **changed))
            refused = peer.hears(wire.router_to_worker)
            assert isinstance(refused, wire.Refused)
            assert refused.error.message.endswith("is not expected here")
        assert bad_frames(deployment) == before + 1

    def test_f3_the_place_of_a_live_worker_cannot_be_taken(self, home: Path, nonce: str) -> None:
        with Peer(home, "workers.sock", f"talker/0#1#{nonce}".encode()) as peer:
            peer.says(worker_hello(nonce))
            assert peer.hears_nothing()

    def test_f3_another_incarnation_is_late_and_nothing_else(self, deployment: Running, home: Path, nonce: str) -> None:
        before = deployment.status()["counters"]
        with Peer(home, "workers.sock", f"talker/0#7#{nonce}".encode()) as peer:
            peer.says(worker_hello(nonce, incarnation=7))
            peer.says(*wire.Packer().pack(wire.Heartbeat(7, "idle", 0, "", [], 0, 0, 0)))
            assert peer.hears_nothing()
        after = deployment.status()["counters"]
        assert after["late_frames"] == before["late_frames"] + 2
        assert after["bad_frames"] == before["bad_frames"]


class TestDataSockets:
    @pytest.mark.parametrize("stage", [1, 2])
    def test_w1_garbage_and_strangers_get_no_answer(self, home: Path, nonce: str, stage: int) -> None:
        wrong: tuple[dict[str, Any], ...] = ({"nonce": "x"}, {"version": 99}, {"role": "client"})
        for first in (*GARBAGE, *(producer_hello(nonce, **said) for said in wrong)):
            with Peer(home, f"d{stage}-0-1.sock") as peer:
                peer.says(first)
                peer.says(*wire.Packer().pack(wire.EdgeEnd("r", 1, 1, "thinker", 3)))
                assert peer.hears_nothing(20)

    def test_f3_frames_of_a_producer_that_is_no_source_do_nothing(
        self, deployment: Running, home: Path, nonce: str
    ) -> None:
        async def scenario() -> None:
            pack = wire.Packer().pack
            async with AsyncClient.connect(deployment.name) as client:
                asking = Asking(client, "one two three", request_id="quiet")
                await asking.has(4)
                rid = asking.outputs[0].request_id
                with Peer(home, "d1-0-1.sock") as peer:
                    peer.says(producer_hello(nonce))
                    failure = wire.ErrorInfo("stage_error", "a lie", "thinker", None, False)
                    peer.says(*pack(wire.EdgeFailed(rid, 1, 1, "thinker", failure)))
                    peer.says(*pack(wire.EdgeEnd(rid, 1, 1, "thinker", 3)))
                    assert peer.hears_nothing(100)
                assert not asking.task.done()
                assert await client.abort("quiet") == 1
                assert await asking.error() is None

        asyncio.run(scenario())


def test_a7_a_connection_that_ends_without_a_word_is_noticed(deployment: Running, home: Path, nonce: str) -> None:
    """Its process lives on, so that nothing but the connection says so. Its request ends, its watch goes."""
    assert eventually(lambda: watches(deployment) == 0), "those of peers before this one"
    with Peer(home, "clients.sock") as peer:
        peer.says(hello(nonce))
        assert isinstance(peer.hears(), wire.Welcome)
        assert watches(deployment) == 1
    assert eventually(lambda: watches(deployment) == 0)


def watches(deployment: Running) -> int:
    """How many descriptors of the router watch this process."""
    count = 0
    for path in Path(f"/proc/{deployment.pid}/fdinfo").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            count += f"Pid:\t{os.getpid()}\n" in path.read_text()
    return count
