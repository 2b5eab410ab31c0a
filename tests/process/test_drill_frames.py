"""Hostile frames on every socket, from strangers and from welcomed peers: dropped, counted, and no harm done (W1, F3).

Garbage, every kind of frame cut at every length, deep nesting, other versions, frames of other sockets, too large ones,
and frames that were good once: of a request that has ended, of another attempt, of another incarnation.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.drill import (
    FAST,
    STAGES,
    Beside,
    assert_part,
    assert_whole,
    ended,
    play,
    replica,
    status_when,
    words,
)
from support.drill_engine import hostile_engines, write_messages
from support.drill_frames import OVERSIZED, bad, bad_hellos, filled, good
from support.drill_peers import Peer, hello, producer_hello
from support.running import Asking, Held, Running, collect, eventually, launched, text_of

from omnizmq import AsyncClient, remote, runtime
from omnizmq import protocol as wire
from omnizmq.remote import Remote

PROMPT = words("w", 6)
SETS = (
    *FAST,
    "router.heartbeat_timeout_s=10",
    "stage.thinker.options.interval_ms=20",
    "stage.thinker.options.silent_at=3",
    "stage.talker.engine=hostile",
    "stage.thinker.options.fault_only=quiet",
)
DATA = {stage: f"d{number}-0-1.sock" for number, stage in enumerate(STAGES)}


@pytest.fixture(scope="module")
def home(module_home: Path) -> Path:
    return module_home


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("messages")


@pytest.fixture(scope="module")
def running(home: Path, messages: Path) -> Iterator[Running]:  # noqa: ARG001 (its environment)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    with hostile_engines(messages), launched("synthetic", *SETS, f"router.remote={address}") as running:
        yield running
        assert running.stop() == 0


@pytest.fixture(autouse=True)
def deployment(running: Running, no_leaks: None) -> Iterator[Running]:  # noqa: ARG001 (it looks before and after)
    """Whatever is said: the router meets no error of its own, no worker is lost, every table is empty afterwards."""
    workers = running.worker_pids()
    yield running
    assert running.worker_pids() == workers
    assert running.status()["counters"]["router_errors"] == 0
    assert eventually(running.idle), running.status()


@pytest.fixture
def nonce() -> str:
    return runtime.find().nonce


@asynccontextmanager
async def unharmed(client: AsyncClient) -> AsyncIterator[None]:
    """Requests beside it are under way all the while, and have right answers in their first attempt."""
    beside = Beside(client, [f"well-{number}" for number in range(4)], 12)
    await beside.under_way()
    yield
    await beside.are_right()


async def counts(client: AsyncClient) -> dict[str, int]:
    """Bad and late frames, of the router and of each worker's data plane."""
    status = await client.status()
    found = {"router": status["counters"]["bad_frames"], "router late": status["counters"]["late_frames"]}
    for stage in STAGES:
        one = status["stages"][stage]["replicas"][0]
        found |= {stage: one["bad_frames"], f"{stage} late": one["late_frames"]}
    return found


async def counted(client: AsyncClient, before: dict[str, int], **more: int) -> None:
    """Wait until exactly so many more bad frames are counted, and none elsewhere; and at least so many late ones, which
    come of healthy requests, too."""
    expected = {name: count + more.pop(name.replace(" ", "_"), 0) for name, count in before.items()}
    assert not more
    now = before
    async with asyncio.timeout(20):
        while any(now[name] < expected[name] for name in expected):
            await asyncio.sleep(0.05)
            now = await counts(client)
    assert bad_ones(now) == bad_ones(expected)


def bad_ones(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if not name.endswith("late")}


async def reads(peer: Peer, refusals: int) -> None:
    """Each of them was refused by itself."""
    for _ in range(refusals):
        refused = await asyncio.to_thread(peer.hears)
        assert isinstance(refused, wire.Refused)
        assert (refused.request_id, refused.error.code) == ("", "protocol_error")


class TestStrangers:
    @pytest.mark.parametrize("socket", ["clients.sock", "workers.sock"])
    def test_w1_the_router_refuses_and_counts_each(
        self, deployment: Running, home: Path, nonce: str, socket: str
    ) -> None:
        said = bad_hellos(nonce)

        async def scenario(client: AsyncClient) -> None:
            before = await counts(client)
            async with unharmed(client):
                with Peer(home, socket) as peer:
                    for message in said:
                        peer.says(message)
                    await reads(peer, len(said))
            await counted(client, before, router=len(said))

        play(deployment, scenario)

    @pytest.mark.parametrize("stage", STAGES)
    def test_w1_a_data_socket_answers_nothing_and_counts_each(
        self, deployment: Running, home: Path, nonce: str, stage: str
    ) -> None:
        said = bad_hellos(nonce)

        async def scenario(client: AsyncClient) -> None:
            before = await counts(client)
            async with unharmed(client):
                with Peer(home, DATA[stage]) as peer:
                    for message in said:
                        peer.says(message)
                    await counted(client, before, **{stage: len(said)})
                    assert peer.hears_nothing(0)

        play(deployment, scenario)

    @pytest.mark.parametrize("socket", ["clients.sock", "workers.sock", *DATA.values()])
    def test_w1_too_large_a_message_ends_its_own_connection_alone(
        self, deployment: Running, home: Path, socket: str
    ) -> None:
        async def scenario(client: AsyncClient) -> None:
            before = await counts(client)
            async with unharmed(client):
                for _ in range(3):
                    with Peer(home, socket) as peer:
                        peer.says(OVERSIZED)
                        peer.says(OVERSIZED, b"", OVERSIZED)
                        assert await asyncio.to_thread(peer.hears_nothing, 100)
            assert bad_ones(await counts(client)) == bad_ones(before)

        play(deployment, scenario)


class TestAWelcomedClient:
    def test_w1_what_does_not_decode_is_counted_and_it_stays_welcome(
        self, deployment: Running, home: Path, nonce: str
    ) -> None:
        said = bad("client_to_router")
        assert len(said) > 150

        async def scenario(client: AsyncClient) -> None:
            before = await counts(client)
            async with unharmed(client):
                with Peer(home, "clients.sock") as peer:
                    peer.says(hello(nonce))
                    assert isinstance(peer.hears(), wire.Welcome)
                    for message in said:
                        peer.says(message)
                    await counted(client, before, router=len(said))
                    peer.says(*wire.Packer().pack(submission("honest")))
                    text = await asyncio.to_thread(text_until_terminal, peer)
                    assert text == PROMPT
                    peer.says(*wire.Packer().pack(wire.Bye("done")))

        play(deployment, scenario)

    def test_i2_frames_about_anothers_request_or_one_that_has_ended_do_nothing(
        self, deployment: Running, home: Path, nonce: str
    ) -> None:
        """A submission under an id that lives is refused, one under an id that lived is a request of its own."""

        async def scenario(client: AsyncClient) -> None:
            past = (await collect(client, PROMPT, modalities=["text"]))[-1]
            async with unharmed(client):
                living = Asking(client, PROMPT, request_id="quiet")
                await living.has(4)
                rid = living.outputs[0].request_id
                pack = wire.Packer().pack
                with Peer(home, "clients.sock") as peer:
                    peer.says(hello(nonce))
                    assert isinstance(peer.hears(), wire.Welcome)
                    for request_id in (rid, past.request_id):
                        peer.says(*pack(wire.Consumed(request_id, "thinker", 1 << 60)))
                        peer.says(*pack(wire.Consumed(request_id, "nobody", -(1 << 60))))
                    replayed = msgspec.structs.replace(submission("quiet"), request_id=rid)
                    peer.says(*pack(replayed))
                    refused = peer.hears()
                    assert isinstance(refused, wire.Refused)
                    assert (refused.request_id, refused.error.message) == (rid, f"request id {rid} is in use")
                    again = msgspec.structs.replace(
                        submission("x"), request_id=past.request_id, external_id=past.external_id
                    )
                    for message in pack(again):
                        peer.says(message)
                    assert await asyncio.to_thread(text_until_terminal, peer) == PROMPT
                    peer.says(*pack(wire.Bye("done")))
                assert not living.task.done()
                assert await client.abort("quiet") == 1
                assert await living.error() is None

        play(deployment, scenario)

    def test_w1_too_large_a_message_ends_it_and_its_requests(self, deployment: Running, home: Path, nonce: str) -> None:
        async def scenario(client: AsyncClient) -> None:
            aborted = (await client.status())["counters"]["aborted"]
            async with unharmed(client):
                with Peer(home, "clients.sock") as peer:
                    peer.says(hello(nonce))
                    assert isinstance(peer.hears(), wire.Welcome)
                    peer.says(*wire.Packer().pack(submission("quiet")))
                    assert isinstance(peer.hears(), wire.Delivery)
                    peer.says(OVERSIZED)
                    await status_when(client, lambda status: status["counters"]["aborted"] == aborted + 1)

        play(deployment, scenario)


def submission(name: str) -> wire.Submit:
    prompt = wire.Prompt(PROMPT, None, None)
    return wire.Submit(f"{name}-0123456789abcdef", name, prompt, ["text"], {}, 0, None, None, 64, 0, None)


def text_until_terminal(peer: Peer) -> str:
    text = ""
    while not isinstance(frame := peer.hears(), wire.Terminal):
        assert isinstance(frame, wire.Delivery)
        text += frame.content.text if isinstance(frame.content, wire.Text) else ""
    assert frame.error is None
    return text


class TestFromAnotherMachine:
    """The TCP socket. Without the keys there is no way in; who has them says a hello and is a client like others."""

    @pytest.fixture
    def keys(self, running: Running, home: Path) -> Remote:  # noqa: ARG002 (it writes them)
        return remote.read(str(home / "state" / "omnizmq" / "synthetic" / "remote.json"))

    def test_w2_bytes_that_are_no_handshake_are_nobodys_message(
        self, deployment: Running, home: Path, keys: Remote
    ) -> None:
        """Bare TCP, and ZeroMQ without the keys."""
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00"
        said = [
            b"GET / HTTP/1.1\r\n\r\n" * 100,
            b"\0" * 100_000,
            b"\xff" * 100_000,
            *(greeting + b"NULL".ljust(20, b"\0") + b"\0" * 32 + tail for tail in (b"", b"\x04\xff", OVERSIZED)),
            *(greeting + b"CURVE".ljust(20, b"\0") + b"\0" * 32 + tail for tail in (b"", b"\x04\xff", OVERSIZED)),
            *(greeting[:cut] for cut in range(len(greeting))),
        ]

        async def scenario(client: AsyncClient) -> None:
            before = await counts(client)
            async with unharmed(client):
                host, _, port = keys.endpoint.removeprefix("tcp://").rpartition(":")
                for message in said:
                    with socket.create_connection((host, int(port)), timeout=5) as stranger, suppress(OSError):
                        stranger.sendall(message)
                forged = msgspec.structs.replace(keys, client_key=keys.server_key)
                with Peer(home, "", keys=forged) as peer:
                    peer.says(OVERSIZED)
                    assert await asyncio.to_thread(peer.hears_nothing, 100)
            assert bad_ones(await counts(client)) == bad_ones(before)

        play(deployment, scenario)

    def test_w1_what_does_not_decode_is_counted_and_it_stays_welcome(
        self, deployment: Running, home: Path, keys: Remote
    ) -> None:
        hellos = [message for message in bad_hellos("") if message not in good_hellos()]
        said = bad("client_to_router")

        async def scenario(client: AsyncClient) -> None:
            before = await counts(client)
            async with unharmed(client):
                with Peer(home, "", keys=keys) as peer:
                    for message in hellos:
                        peer.says(message)
                    await reads(peer, len(hellos))
                    peer.says(hello(""))
                    assert isinstance(peer.hears(), wire.Welcome)
                    for message in said:
                        peer.says(message)
                    await counted(client, before, router=len(hellos) + len(said))
                    peer.says(*wire.Packer().pack(submission("honest")))
                    assert await asyncio.to_thread(text_until_terminal, peer) == PROMPT
                    peer.says(*wire.Packer().pack(wire.Bye("done")))

        play(deployment, scenario)


def good_hellos() -> list[bytes]:
    """Who has shown a key need not know the launch's nonce."""
    return [hello(""), hello("x")]


class TestAWelcomedProducer:
    """It knows the launch's secret, and is no source of anything."""

    @pytest.mark.parametrize("stage", STAGES)
    def test_w1_what_does_not_decode_is_bad_and_what_does_is_late(
        self, deployment: Running, home: Path, nonce: str, stage: str
    ) -> None:
        said = bad("producer_to_consumer")

        async def scenario(client: AsyncClient) -> None:
            before = await counts(client)
            async with unharmed(client):
                living = Asking(client, PROMPT, request_id="quiet")
                await living.has(4)
                lies = lies_about(living.outputs[0].request_id)
                with Peer(home, DATA[stage]) as peer:
                    peer.says(producer_hello(nonce, replica=f"drill-{stage}/0"))
                    for message in (*said, *lies):
                        peer.says(message)
                    late = f"{stage}_late"
                    await counted(client, before, **{stage: len(said), late: len(lies)})
                    assert peer.hears_nothing(0)
                assert not living.task.done()
                assert await client.abort("quiet") == 1
                assert await living.error() is None

        play(deployment, scenario)

    @pytest.mark.parametrize("stage", STAGES)
    def test_f3_nobody_takes_the_place_of_a_producer_that_is_connected(
        self, deployment: Running, home: Path, nonce: str, stage: str
    ) -> None:
        """A second hello in its name is refused, and so is what follows it."""
        source = STAGES[max(0, STAGES.index(stage) - 1)]
        first = stage == "thinker"  # it has no source: nobody is in that place

        async def scenario(client: AsyncClient) -> None:
            await collect(client, PROMPT)  # all have met
            before = await counts(client)
            async with unharmed(client):
                with Peer(home, DATA[stage]) as peer:
                    lies = good("producer_to_consumer")[:3]
                    for message in (producer_hello(nonce, replica=f"{source}/0"), *lies):
                        peer.says(message)
                    if first:
                        await counted(client, before, thinker_late=len(lies) - sum(map(is_answered, lies)))
                    else:
                        await counted(client, before, **{stage: 1 + len(lies)})

        play(deployment, scenario)


def is_answered(message: bytes) -> bool:
    return isinstance(wire.producer_to_consumer.decode(message), wire.RingOffer)


def lies_about(rid: str) -> list[bytes]:
    """In the name of the sources that the request has, and of others."""
    failure = wire.ErrorInfo("stage_error", "a lie", "thinker", None, False)
    chunk = msgspec.structs.replace(filled(wire.ChunkFrame), request_id=rid)
    frames: list[msgspec.Struct] = []
    for source in (*STAGES, "nobody"):
        frames += [msgspec.structs.replace(chunk, source=source, seq=seq) for seq in (0, 1, 3, 1 << 40)]
        frames += [wire.EdgeFailed(rid, 1, 1, source, failure), wire.EdgeEnd(rid, 1, 1, source, 2)]
    return [message for frame in frames for message in wire.Packer().pack(frame)]


class TestAWelcomedWorker:
    """The Talker itself says it, on its own sockets, while it works."""

    async def say(self, client: AsyncClient, folder: Path, whom: str, said: Sequence[bytes]) -> None:
        write_messages(folder, whom, list(said))
        outputs = await collect(client, PROMPT, request_id=f"say:{whom}:{whom}")
        assert_whole(outputs, PROMPT)

    @pytest.mark.parametrize(
        ("whom", "way", "stage"),
        [
            ("router", "worker_to_router", "router"),
            ("consumer", "producer_to_consumer", "code2wav"),
            ("producer", "consumer_to_producer", "thinker"),
        ],
    )
    def test_w1_what_does_not_decode_is_counted_and_harms_not_even_its_own_requests(
        self, deployment: Running, messages: Path, whom: str, way: str, stage: str
    ) -> None:
        said = bad(way)
        assert len(said) > 100

        async def scenario(client: AsyncClient) -> None:
            await collect(client, PROMPT)
            before = await counts(client)
            async with unharmed(client):
                await self.say(client, messages, whom, said)
            await counted(client, before, **{stage: len(said)})

        play(deployment, scenario)

    def test_c4_f3_the_router_drops_what_was_good_once(self, deployment: Running, messages: Path) -> None:
        """Of a request that has ended, of another attempt, of another incarnation; and of one that has no Talker."""

        async def scenario(client: AsyncClient) -> None:
            past = (await collect(client, PROMPT))[-1].request_id
            async with unharmed(client):
                living = Asking(client, PROMPT, request_id="quiet")
                text_alone = Asking(client, PROMPT, request_id="quiet", modalities=["text"])
                await living.has(4)
                await text_alone.has(2)
                rid, other = (asking.outputs[0].request_id for asking in (living, text_alone))
                said = [
                    *reports(past, 1, 1),
                    *reports(rid, 0, 1),
                    *reports(rid, 2, 1),
                    *reports(rid, 1, 2),
                    *reports(rid, 1, 0),
                    *reports(other, 1, 1),
                    *reports("nobody", 1, 1),
                ]
                before = await counts(client)
                await self.say(client, messages, "router", said)
                await counted(client, before, router_late=len(said))
                for asking in (living, text_alone):
                    assert not asking.task.done()
                    assert text_of(asking.outputs) == words("w", 2)
                assert await client.abort("quiet") == 2
                assert [await living.error(), await text_alone.error()] == [None, None]

        play(deployment, scenario)

    def test_f3_its_peers_drop_what_was_good_once(self, deployment: Running, messages: Path) -> None:
        async def scenario(client: AsyncClient) -> None:
            past = (await collect(client, PROMPT))[-1].request_id
            async with unharmed(client):
                living = Asking(client, PROMPT, request_id="quiet")
                await living.has(4)
                rid = living.outputs[0].request_id
                keys = [(past, 1, 1), (rid, 0, 1), (rid, 2, 1)]
                forth = [message for key in keys for message in to_consumer(*key)]
                back = [message for key in keys for message in to_producer(*key)]
                before = await counts(client)
                await self.say(client, messages, "consumer", forth)
                await self.say(client, messages, "producer", back)
                await counted(client, before, code2wav_late=len(forth), thinker_late=len(back))
                assert not living.task.done()
                assert await client.abort("quiet") == 1
                assert await living.error() is None

        play(deployment, scenario)

    def test_f3_its_peers_drop_frames_of_another_incarnation(self, deployment: Running, messages: Path) -> None:
        async def scenario(client: AsyncClient) -> None:
            async with unharmed(client):
                living = Asking(client, PROMPT, request_id="quiet")
                await living.has(4)
                rid = living.outputs[0].request_id
                keys = [(rid, 1, 0), (rid, 1, 2)]
                forth = [message for key in keys for message in to_consumer(*key)]
                back = [message for key in keys for message in to_producer(*key)]
                before = await counts(client)
                await self.say(client, messages, "consumer", forth)
                await self.say(client, messages, "producer", back)
                await counted(client, before, code2wav_late=len(forth), thinker_late=len(back))
                assert not living.task.done()
                assert await client.abort("quiet") == 1
                assert await living.error() is None

        play(deployment, scenario)

    def test_f1_a_report_that_cannot_be_fails_the_request_it_is_about_and_no_other(
        self, deployment: Running, messages: Path
    ) -> None:
        """The Talker is no final stage."""

        async def scenario(client: AsyncClient) -> None:
            async with unharmed(client):
                victim = Asking(client, PROMPT, request_id="quiet")
                await victim.has(4)
                before = await counts(client)
                frame = wire.Output(victim.outputs[0].request_id, 1, 1, 1, wire.Text("a lie"), False, 1)
                await self.say(client, messages, "router", list(wire.Packer().pack(frame)))
                await ended(victim, "protocol_error", "talker")
                assert_part(victim.outputs, PROMPT)
                await counted(client, before, router=1)
            assert (await replica(client, "talker/0"))["restarts"] == 0

        play(deployment, scenario)


@pytest.mark.parametrize("whom", ["router", "consumer", "producer"])
def test_w1_too_large_a_message_from_a_worker_is_the_end_of_no_other_request_nor_of_an_edge(
    messages: Path, whom: str
) -> None:
    """Those whose edges it interrupts end, well or with an error that a retry can help; a retry soon is right. In a
    deployment of its own."""

    async def is_whole(asking: Asking, prompt: str) -> bool:
        error = await asking.error()
        if error is None:
            assert_whole(asking.outputs, prompt)
        else:
            assert error.retriable, error
            assert_part(asking.outputs, prompt)
        return error is None

    async def scenario(client: AsyncClient) -> None:
        await collect(client, PROMPT)
        text_alone = Beside(client, ["well-0", "well-1"], 12, modalities=["text"])
        asked: dict[str, Asking] = {
            name: Held(client, words(name, 12), after=3, request_id=name) for name in ("hit-0", "hit-1", "hit-2")
        }
        for asking in asked.values():
            await asking.has(3)
        write_messages(messages, "large", [OVERSIZED])
        asked["hit-3"] = Asking(client, words("hit-3", 12), request_id=f"say:{whom}:large")
        for name, asking in asked.items():
            await is_whole(asking, words(name, 12))
        await text_alone.are_right()
        async with asyncio.timeout(20):
            while not await is_whole(Asking(client, PROMPT), PROMPT):
                await asyncio.sleep(0.1)

    with launched("synthetic", *SETS, "router.output_window=4", name="large") as deployment:
        play(deployment, scenario)
        assert deployment.stop() == 0


def packed(*frames: msgspec.Struct) -> list[bytes]:
    return [message for frame in frames for message in wire.Packer().pack(frame)]


def reports(rid: str, attempt: int, incarnation: int) -> list[bytes]:
    """What a worker may say of a request, but for heartbeats and content for relay edges."""
    key: Any = {"request_id": rid, "attempt": attempt, "incarnation": incarnation}
    kinds = (wire.StageFact, wire.StagePaused, wire.Output, wire.RelayContent, wire.StageFinished)
    return packed(*(msgspec.structs.replace(filled(kind), **key) for kind in kinds))


def to_consumer(rid: str, attempt: int, incarnation: int) -> list[bytes]:
    failure = wire.ErrorInfo("stage_error", "a lie", "talker", None, False)
    key = (rid, attempt, incarnation, "talker")
    chunk = wire.ChunkFrame(*key, 3, {}, [])
    return packed(chunk, wire.EdgeEnd(*key, 2), wire.EdgeFailed(*key, failure))


def to_producer(rid: str, attempt: int, incarnation: int) -> list[bytes]:
    key = (rid, attempt, incarnation, "talker")
    return packed(wire.EdgeCredit(*key, 1 << 40), wire.EdgeClosed(*key))
