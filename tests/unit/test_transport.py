"""Sockets on a loop: nothing stalls, nothing is lost in silence, nobody blocks. Real ipc sockets throughout.

The safety tick would hide a missed event within a second, so it is put out of the way.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zmq

from omnizmq import protocol as wire
from omnizmq import transport
from omnizmq.transport import BATCH, Dealer, PeerFullError, PeerGoneError, Router, make_context

LIMIT_S = 10.0


@pytest.fixture(autouse=True)
def no_safety_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "SAFETY_TICK_S", 600.0)


@pytest.fixture
def endpoint(home: Path, no_leaks: None) -> Iterator[str]:  # noqa: ARG001
    path = home / "run" / "omnizmq" / "s"
    yield f"ipc://{path}"
    path.unlink(missing_ok=True)  # whoever owns the directory does that; libzmq leaves the file


@dataclass
class Net:
    """A router and its dealers; what each has received."""

    endpoint: str
    context: zmq.Context[zmq.Socket[bytes]] = field(default_factory=make_context)
    at_router: list[tuple[bytes, bytes]] = field(default_factory=list)
    at: dict[bytes, list[bytes]] = field(default_factory=dict)
    open: list[Router | Dealer] = field(default_factory=list)
    raw: list[zmq.Socket[bytes]] = field(default_factory=list)

    def router(self, received: Callable[[bytes, bytes], None] | None = None, limit: int = 4096) -> Router:
        made = Router(self.context, self.endpoint, received or self._take, limit=limit)
        made.start()
        self.open.append(made)
        return made

    def _take(self, peer: bytes, data: bytes) -> None:
        self.at_router.append((peer, data))

    def dealer(self, name: bytes = b"a", received: Callable[[bytes], None] | None = None, limit: int = 4096) -> Dealer:
        inbox = self.at.setdefault(name, [])
        made = Dealer(self.context, self.endpoint, received or inbox.append, identity=name, limit=limit)
        made.start()
        self.open.append(made)
        return made

    def raw_dealer(self, name: bytes, rcvhwm: int = 4) -> zmq.Socket[bytes]:
        """A peer that reads only when it is told to."""
        socket = self.context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, name)
        socket.setsockopt(zmq.RCVHWM, rcvhwm)
        socket.connect(self.endpoint)
        self.raw.append(socket)
        return socket

    def raw_router(self) -> zmq.Socket[bytes]:
        """A bound peer that reads only when it is told to."""
        socket = self.context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.RCVHWM, 4)
        socket.bind(self.endpoint)
        self.raw.append(socket)
        return socket

    def data(self) -> list[bytes]:
        return [data for _, data in self.at_router]

    def close(self) -> None:
        for each in self.open:
            each.close()
        for socket in self.raw:
            socket.close(0)
        self.context.term()


def run(endpoint: str, play: Callable[[Net], Awaitable[None]]) -> None:
    async def main() -> None:
        net = Net(endpoint)
        errors: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: errors.append(repr(what.get("exception"))))
        try:
            await play(net)
        finally:
            net.close()
        assert errors == getattr(net, "expected_errors", [])

    asyncio.run(main())


async def until(holds: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """The loop runs on until it holds."""
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "stalled"
        await asyncio.sleep(0.002)


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [str(number).encode() for number in range(start, start + count)]


class TestNothingStalls:
    """The descriptor is edge-triggered: what is not taken when it rings is never rung for again."""

    @pytest.mark.parametrize("count", [1, BATCH - 1, BATCH, BATCH + 1, 20 * BATCH + 3])
    def test_a_burst_of_any_size_is_drained_in_order(self, endpoint: str, count: int) -> None:
        async def play(net: Net) -> None:
            router, dealer = net.router(), net.dealer()
            dealer.send(numbered(count))
            await until(lambda: net.data() == numbered(count))
            router.send(b"a", numbered(count))
            await until(lambda: net.at[b"a"] == numbered(count))

        run(endpoint, play)

    def test_what_waited_before_the_start_is_received(self, endpoint: str) -> None:
        async def play(net: Net) -> None:
            sender = net.dealer()
            sender.send(numbered(200))
            late = Router(net.context, endpoint, net._take)
            net.open.append(late)
            await asyncio.sleep(0.05)
            late.start()
            await until(lambda: net.data() == numbered(200))

        run(endpoint, play)

    def test_answers_sent_while_receiving_do_not_swallow_what_comes_in(self, endpoint: str) -> None:
        """Each receive is answered at once; sending looks at the socket too, and may see the next message first."""

        async def play(net: Net) -> None:
            router = net.router(lambda peer, data: router.send(peer, [data]))
            dealer = net.dealer()
            for start in range(0, 3000, 300):
                dealer.send(numbered(300, start))
                await until(lambda start=start: len(net.at[b"a"]) == start + 300)  # type: ignore[misc]
            assert net.at[b"a"] == numbered(3000)

        run(endpoint, play)

    def test_ping_pong_never_waits_for_a_tick(self, endpoint: str) -> None:
        async def play(net: Net) -> None:
            done = asyncio.get_running_loop().create_future()

            def pong(data: bytes) -> None:
                if data == b"2000":
                    done.set_result(None)
                else:
                    dealer.send([str(int(data) + 1).encode()])

            router = net.router(lambda peer, data: router.send(peer, [data]))
            dealer = net.dealer(received=pong)
            dealer.send([b"0"])
            await asyncio.wait_for(done, LIMIT_S)

        run(endpoint, play)

    @pytest.mark.parametrize("seed", range(4))
    def test_random_bursts_both_ways_from_several_peers(self, endpoint: str, seed: int) -> None:
        async def play(net: Net) -> None:
            chance = random.Random(seed)
            router = net.router()
            names = [b"a", b"b", b"c"]
            dealers = {name: net.dealer(name) for name in names}
            for dealer in dealers.values():
                dealer.send([b"hello"])
            await until(lambda: len(net.at_router) == 3)
            up, down = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
            for _ in range(60):
                name = chance.choice(names)
                count = chance.choice([1, 2, BATCH, 3 * BATCH])
                if chance.random() < 0.5:
                    dealers[name].send(numbered(count, up[name]))
                    up[name] += count
                else:
                    router.send(name, numbered(count, down[name]))
                    down[name] += count
                await asyncio.sleep(chance.choice([0, 0, 0.001]))
            await until(lambda: all(len(net.at[name]) == down[name] for name in names))
            await until(lambda: len(net.at_router) == 3 + sum(up.values()))
            for name in names:
                assert net.at[name] == numbered(down[name])
                assert [data for peer, data in net.at_router if peer == name][1:] == numbered(up[name])

        run(endpoint, play)

    def test_a_send_that_saw_what_came_in_has_it_received(self, endpoint: str) -> None:
        async def play(net: Net) -> None:
            raw = net.raw_router()
            dealer = net.dealer()
            dealer.send([b"hello"])
            assert raw.recv_multipart() == [b"a", b"hello"]
            await asyncio.sleep(0.05)
            raw.send_multipart([b"a", b"news"])
            time.sleep(SETTLE_S)  # the loop stands still: the news waits behind the descriptor
            dealer.send([b"more"])
            await until(lambda: net.at[b"a"] == [b"news"], 2)

        run(endpoint, play)

    def test_w1_a_receiver_that_raises_does_not_hold_up_the_rest(self, endpoint: str) -> None:
        async def play(net: Net) -> None:
            seen: list[bytes] = []

            def picky(_: bytes, data: bytes) -> None:
                seen.append(data)
                if data == b"7":
                    raise ValueError("seven")

            net.expected_errors = ["ValueError('seven')"]  # type: ignore[attr-defined]
            net.router(picky)
            net.dealer().send(numbered(200))
            await until(lambda: seen == numbered(200))

        run(endpoint, play)

    def test_a_socket_may_be_closed_by_what_it_received(self, endpoint: str) -> None:
        async def play(net: Net) -> None:
            seen: list[bytes] = []

            def enough(_: bytes, data: bytes) -> None:
                seen.append(data)
                if data == b"10":
                    router.close()

            router = net.router(enough)
            net.dealer().send(numbered(200))
            await until(lambda: router.closed)
            await asyncio.sleep(0.02)
            assert seen == numbered(11)
            router.close()

        run(endpoint, play)


class TestWhatOneLookHidesFromTheNext:
    """Sending and receiving both look at the socket, and what they have seen is not told again. Each of these places
    was made to happen: between two calls the other side does its part."""

    @pytest.fixture(autouse=True)
    def low_water(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transport, "HIGH_WATER_MARK", 4)

    def test_a_send_that_failed_and_saw_what_came_in_has_it_received(self, endpoint: str) -> None:
        async def play(net: Net) -> None:
            raw = net.raw_router()
            dealer = net.dealer()
            dealer.send([b"hello"])
            assert raw.recv_multipart() == [b"a", b"hello"]
            while dealer.socket.poll(int(SETTLE_S * 1000), zmq.POLLOUT):
                dealer.socket.send(bytes(64 << 10))
            await asyncio.sleep(0.05)
            raw.send_multipart([b"a", b"news"])
            time.sleep(SETTLE_S)
            dealer.send([b"waits"])
            assert dealer._waiting
            await until(lambda: net.at[b"a"] == [b"news"], 2)

        run(endpoint, play)

    def test_a_receive_that_saw_new_room_lets_what_waits_go(self, endpoint: str) -> None:
        async def play(net: Net) -> None:
            raw = net.raw_router()
            got: list[bytes] = []

            def meanwhile(_: bytes) -> None:
                _read_all(raw, got)

            dealer = net.dealer(received=meanwhile)
            dealer.send([b"hello"])
            while len(dealer._waiting) < 3:
                dealer.send([bytes(64 << 10)])
            raw.recv_multipart()
            raw.send_multipart([b"a", b"look"])
            await until(lambda: not dealer._waiting, 2)

        run(endpoint, play)

    def test_a_failed_send_that_saw_new_room_lets_what_waits_go(self, endpoint: str) -> None:
        async def play(net: Net) -> None:
            raw = net.raw_router()
            got: list[bytes] = []
            dealer = net.dealer()
            _after_a_failed_send(dealer, lambda: _read_all(raw, got))
            while not dealer._waiting:
                dealer.send([bytes(64 << 10)])
            await until(lambda: not dealer._waiting, 2)

        run(endpoint, play)

    def test_a_failed_send_to_one_of_many_peers_is_tried_again(self, endpoint: str) -> None:
        """A router's socket always says that it can send, to somebody."""

        async def play(net: Net) -> None:
            router = net.router()
            peer = net.raw_dealer(b"p")
            peer.send(b"hello")
            await until(lambda: len(net.at_router) == 1)
            got: list[bytes] = []
            _after_a_failed_send(router, lambda: _read_all(peer, got))
            while not router.waiting():
                router.send(b"p", [bytes(64 << 10)])
            await until(lambda: not router.waiting(), 2)

        run(endpoint, play)

    def test_a_send_in_the_midst_of_another_socket_s_drain_has_what_it_saw_received(self, endpoint: str) -> None:
        async def play(net: Net) -> None:
            raw = net.raw_router()
            dealer = net.dealer()
            for _ in range(2):  # after each second message it hears that there is room: not after the next one
                dealer.send([b"hello"])
                assert raw.recv_multipart() == [b"a", b"hello"]
            await asyncio.sleep(SETTLE_S)

            def sends(_: bytes, __: bytes) -> None:
                raw.send_multipart([b"a", b"news"])
                time.sleep(SETTLE_S)  # it is there when the next line looks at the socket
                dealer.send([b"answer"])

            other = Router(net.context, f"{net.endpoint}2", sends)
            other.start()
            peer = net.context.socket(zmq.DEALER)
            peer.connect(f"{net.endpoint}2")
            peer.send(b"go")
            try:
                await until(lambda: net.at[b"a"] == [b"news"], 2)
            finally:
                other.close()
                peer.close(0)
                Path(f"{net.endpoint}2".removeprefix("ipc://")).unlink()

        run(endpoint, play)


class TestSafetyTick:
    def test_it_finds_what_slipped_through_on_every_socket(
        self, endpoint: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transport, "SAFETY_TICK_S", 0.05)

        async def play(net: Net) -> None:
            router = net.router()
            dealers = [net.dealer(name) for name in (b"a", b"b")]
            for dealer in dealers:
                dealer.send([b"hello"])
            await until(lambda: len(net.at_router) == 2)
            for dealer in dealers:
                asyncio.get_running_loop().remove_reader(dealer._fd)
            for name in (b"a", b"b"):
                router.send(name, [b"news"])
            await until(lambda: net.at == {b"a": [b"news"], b"b": [b"news"]}, 5)

        run(endpoint, play)

    def test_it_is_one_for_all_sockets_of_a_loop_and_ends_with_the_last(
        self, endpoint: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transport, "SAFETY_TICK_S", 0.05)

        async def play(net: Net) -> None:
            fired: list[str] = []
            running = asyncio.TimerHandle._run

            def noted(timer: asyncio.TimerHandle) -> None:
                fired.append(timer._callback.__qualname__)  # type: ignore[attr-defined]
                running(timer)

            router, dealer = net.router(), net.dealer()
            with monkeypatch.context() as patch:
                patch.setattr(asyncio.TimerHandle, "_run", noted)
                start = time.monotonic()
                await until(lambda: len([name for name in fired if name.startswith("_Sockets")]) >= 4)
                assert time.monotonic() - start > 3 * 0.05, "two sockets tick no faster than one"
                dealer.close()
                router.close()
                fired.clear()
                await asyncio.sleep(0.2)
            assert [name for name in fired if name.startswith("_Sockets")] == []

        run(endpoint, play)


SETTLE_S = 0.05


def _read_all(socket: zmq.Socket[bytes], into: list[bytes]) -> None:
    """All that comes, until nothing has come for a while: by then its sender has heard that there is room."""
    while socket.poll(int(SETTLE_S * 1000)):
        into.append(socket.recv_multipart()[-1])


def _after_a_failed_send(sender: Router | Dealer, meanwhile: Callable[[], None]) -> None:
    """The socket stays what it is; but whenever it could not send, this happens before anything else does."""

    class Between:
        def __getattr__(self, name: str) -> Any:
            return getattr(socket, name)

        def send(self, frame: bytes, flags: int) -> None:
            try:
                socket.send(frame, flags)
            except zmq.Again:
                meanwhile()
                raise

    socket = sender.socket
    sender.socket = Between()  # type: ignore[assignment]


class TestFullPeers:
    """B1: sending never blocks; what a peer does not read waits for it alone, up to a limit."""

    @pytest.fixture(autouse=True)
    def low_water(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transport, "HIGH_WATER_MARK", 4)

    big = bytes(64 << 10)

    def _fill(self, send: Callable[[list[bytes]], None]) -> int:
        """How many sends of two messages went, before the peer's queue was full."""
        for number in range(10_000):
            try:
                send([b"%d first" % number + self.big, b"%d second" % number])
            except PeerFullError:
                return number
        raise AssertionError("never full")

    def test_b1_a_dealer_whose_peer_does_not_read_queues_and_then_refuses_whole_messages(self, endpoint: str) -> None:
        async def play(net: Net) -> None:
            raw = net.raw_router()
            dealer = net.dealer(limit=21)
            started = time.monotonic()
            went = self._fill(dealer.send)
            assert time.monotonic() - started < 2
            assert went >= 10
            got: list[bytes] = []
            while len(got) < 2 * went:
                await asyncio.sleep(0)
                if raw.poll(0):
                    got.append(raw.recv_multipart()[1])
            assert [data.rstrip(b"\0") for data in got] == [
                b"%d %s" % (number, half) for number in range(went) for half in (b"first", b"second")
            ]
            dealer.send([b"again"])
            await until(lambda: bool(raw.poll(0)))
            assert raw.recv_multipart()[1] == b"again"

        run(endpoint, play)

    def test_b1_a_full_client_holds_up_nobody_else(self, endpoint: str) -> None:
        async def play(net: Net) -> None:
            router = net.router(limit=100)
            full = net.raw_dealer(b"full")
            full.send(b"hello")
            net.dealer(b"b").send([b"hello"])
            await until(lambda: len(net.at_router) == 2)
            went = 0
            while router.waiting() < 40:
                router.send(b"full", [b"%d" % went + self.big])
                went += 1
            router.send(b"b", numbered(300))
            await until(lambda: net.at[b"b"] == numbered(300))
            assert router.waiting() > 0
            got: list[bytes] = []
            while len(got) < went:  # it reads again: nothing was lost, all is in order
                await asyncio.sleep(0.001)
                while full.poll(0):
                    got.append(full.recv())
            assert [data.rstrip(b"\0") for data in got] == numbered(went)
            await until(lambda: router.waiting() == 0)

        run(endpoint, play)

    def test_b1_beyond_the_limit_the_peers_queue_is_given_up_whole(self, endpoint: str) -> None:
        async def play(net: Net) -> None:
            router = net.router(limit=20)
            net.raw_dealer(b"full").send(b"hello")
            await until(lambda: len(net.at_router) == 1)
            self._fill(lambda messages: router.send(b"full", messages))
            assert router.waiting() == 0

        run(endpoint, play)

    def test_a_queue_drains_by_itself_while_answers_come_in(self, endpoint: str) -> None:
        """A receive may learn that there is room again, and nothing else will say so."""

        async def play(net: Net) -> None:
            router = net.router(lambda peer, data: router.send(peer, [data[:8]]))
            dealer = net.dealer()
            dealer.send([b"%08d" % number + bytes(30_000) for number in range(1500)])
            await until(lambda: len(net.at[b"a"]) == 1500)
            assert net.at[b"a"] == [b"%08d" % number for number in range(1500)]

        run(endpoint, play)

    def test_forgetting_a_peer_frees_its_queue(self, endpoint: str) -> None:
        async def play(net: Net) -> None:
            router = net.router()
            net.raw_dealer(b"full").send(b"hello")
            await until(lambda: len(net.at_router) == 1)
            while router.waiting() < 5:
                router.send(b"full", [self.big])
            router.forget(b"full")
            assert router.waiting() == 0

        run(endpoint, play)


class TestPeersComeAndGo:
    def test_a_peer_that_was_never_there_is_gone(self, endpoint: str) -> None:
        async def play(net: Net) -> None:
            with pytest.raises(PeerGoneError, match="it is not connected"):
                net.router().send(b"nobody", [b"x"])

        run(endpoint, play)

    def test_a_peer_that_left_is_gone_and_its_queue_with_it(
        self, endpoint: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transport, "HIGH_WATER_MARK", 4)

        async def play(net: Net) -> None:
            router = net.router()
            peer = net.raw_dealer(b"p")
            peer.send(b"hello")
            await until(lambda: len(net.at_router) == 1)
            while router.waiting() < 5:
                router.send(b"p", [bytes(64 << 10)])
            peer.close(0)

            def gone() -> bool:
                try:
                    router.send(b"p", [b"x"])
                except PeerGoneError:
                    return True
                return False

            await until(gone)
            await until(lambda: router.waiting() == 0)

        run(endpoint, play)

    def test_what_was_sent_before_the_peer_was_there_arrives(self, endpoint: str) -> None:
        async def play(net: Net) -> None:
            net.dealer().send(numbered(500))
            await asyncio.sleep(0.1)
            net.router()
            await until(lambda: net.data() == numbered(500))

        run(endpoint, play)

    def test_a_dealer_finds_a_router_that_was_bound_again(self, endpoint: str) -> None:
        async def play(net: Net) -> None:
            first = net.router()
            dealer = net.dealer()
            dealer.send([b"one"])
            await until(lambda: net.data() == [b"one"])
            first.close()
            await asyncio.sleep(0.1)
            second = net.router()

            async def again() -> None:
                while b"two" not in net.data():
                    dealer.send([b"two"])
                    await asyncio.sleep(0.02)

            await asyncio.wait_for(again(), LIMIT_S)
            second.send(b"a", [b"back"])
            await until(lambda: net.at[b"a"] == [b"back"])

        run(endpoint, play)

    def test_w1_messages_of_too_many_frames_are_counted_and_dropped(self, endpoint: str) -> None:
        async def play(net: Net) -> None:
            router = net.router()
            raw = net.raw_dealer(b"raw")
            raw.send_multipart([b"one", b"two"])
            raw.send_multipart([b"", b"two", b"three"])
            raw.send(b"good")
            await until(lambda: net.data() == [b"good"])
            assert router.malformed == 2
            dealer = net.dealer(b"d")
            dealer.send([b"hello"])
            await until(lambda: len(net.at_router) == 2)
            router.socket.send_multipart([b"d", b"one", b"two"])
            router.send(b"d", [b"good"])
            await until(lambda: net.at[b"d"] == [b"good"])
            assert dealer.malformed == 1

        run(endpoint, play)

    def test_w1_a_message_above_the_frame_limit_never_arrives_and_harms_no_other_peer(self, endpoint: str) -> None:
        async def play(net: Net) -> None:
            net.router()
            raw = net.raw_dealer(b"raw")
            raw.send(bytes(wire.FRAME_BYTES + 1))
            net.dealer(b"good").send(numbered(100))
            await until(lambda: net.data() == numbered(100))
            await asyncio.sleep(0.05)
            assert len(net.at_router) == 100

        run(endpoint, play)


def _for_ever(send: Callable[[], None]) -> None:
    while True:
        send()


class TestParts:
    """What holds of a long message and a short one: they keep their order, and neither is broken by the other."""

    def test_a6_an_abort_that_follows_a_long_message_arrives_after_it_and_soon(self, endpoint: str) -> None:
        async def play(net: Net) -> None:
            unpacker, packer = wire.Unpacker(wire.router_to_worker), wire.Packer()
            got: list[object] = []

            def take(data: bytes) -> None:
                frame = unpacker.unpack(data)
                if frame is not None:
                    got.append(frame)

            router = net.router()
            dealer = net.dealer(received=take)
            dealer.send([b"hello"])
            await until(lambda: len(net.at_router) == 1)
            prompt = wire.FeedStage("demo", 1, "thinker", bytes(4 << 20))
            started = time.monotonic()
            router.send(b"a", packer.pack(prompt))
            router.send(b"a", packer.pack(wire.AbortStage("demo", 1)))
            await until(lambda: len(got) == 2)
            assert time.monotonic() - started < 1
            assert got == [prompt, wire.AbortStage("demo", 1)]

        run(endpoint, play)

    @pytest.mark.parametrize("limit", range(8, 13))
    def test_w3_the_parts_of_a_message_go_all_or_none(
        self, endpoint: str, monkeypatch: pytest.MonkeyPatch, limit: int
    ) -> None:
        """A receiver that got half of a message would keep it for ever. A message has five parts here, so that for some
        of these limits the queue is full in the middle of one."""
        monkeypatch.setattr(transport, "HIGH_WATER_MARK", 4)

        async def play(net: Net) -> None:
            raw = net.raw_router()
            dealer = net.dealer(limit=limit)
            packer, unpacker = wire.Packer(), wire.Unpacker(wire.router_to_worker)
            sent = itertools.count()
            with pytest.raises(PeerFullError):
                _for_ever(lambda: dealer.send(packer.pack(wire.FeedStage("demo", next(sent), "s", bytes(1 << 20)))))
            went = next(sent) - 1
            got: list[int] = []

            async def receive(messages: int) -> None:
                while len(got) < messages:
                    await asyncio.sleep(0)
                    while raw.poll(0):
                        frame = unpacker.unpack(raw.recv_multipart()[1])
                        if isinstance(frame, wire.FeedStage):
                            got.append(frame.attempt)

            await receive(went)
            dealer.send(packer.pack(wire.FeedStage("demo", -1, "s", b"the end")))
            await receive(went + 1)
            assert got == [*range(went), -1]
            assert not unpacker._open

        run(endpoint, play)
