"""W1, W3, I1 and I3 on the wire: nothing is pickled, nothing undecodable harms anybody, and an id is only data."""

from __future__ import annotations

import ast
import asyncio
import pickle
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import numpy as np
import pytest
import zmq
from support.engines import context
from support.gate_play import INCARNATION, RID, source, submit
from support.line import Edge, Line

import omnizmq
from omnizmq import protocol as wire
from omnizmq.shm.arrays import check_array
from omnizmq.transport import make_context
from omnizmq.workers.core import Gate
from omnizmq.workers.dataplane import DataPlane
from omnizmq.workers.engines.synthetic import create
from omnizmq.workers.messages import FeedEngine, PeerSent, RouterSent, ToProducer

PACKAGE = Path(omnizmq.__file__).parent
PICKLING = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib", "copyreg"}
CALLS = {"send_pyobj", "recv_pyobj", "send_serialized", "recv_serialized", "eval", "exec", "__reduce__"}


def sources() -> Iterator[tuple[Path, ast.AST]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path, ast.parse(path.read_text(), str(path))


NAMES_ALONE = ("resource_tracker", "util")
"""Parts of `multiprocessing` that send no objects."""


class TestNoPickle:
    def test_w1_no_module_imports_anything_that_pickles(self) -> None:
        found, files = [], 0
        for path, tree in sources():
            files += 1
            for node in ast.walk(tree):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                found += [f"{path.name}:{node.lineno} {name}" for name in names if name.split(".")[0] in PICKLING]  # type: ignore[attr-defined]
        assert files > 40
        assert found == []

    def test_w1_no_call_pickles_behind_the_scenes(self) -> None:
        found = []
        for path, tree in sources():
            for node in ast.walk(tree):
                name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
                if name in CALLS:
                    found.append(f"{path.name}:{node.lineno} {name}")  # type: ignore[attr-defined]
                if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "weights_only"):
                    safe = isinstance(node.value, ast.Constant) and node.value.value is (node.arg == "weights_only")
                    found += [] if safe else [f"{path.name}:{node.value.lineno} {node.arg}"]
                if isinstance(node, ast.ImportFrom | ast.Import):
                    names = [alias.name for alias in node.names]
                    names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                    sends = not set(names) <= {"multiprocessing", *NAMES_ALONE}
                    found += [f"{path.name} {name}" for name in names if name.startswith("multiprocessing") and sends]
        assert found == []

    def test_w1_nothing_on_the_way_from_stage_to_stage_is_pickled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> NoReturn:
            raise AssertionError("something was pickled")

        for name in ("dumps", "loads", "dump", "load", "Pickler", "Unpickler"):
            monkeypatch.setattr(pickle, name, refuse)
        pipeline = _pipeline()
        request = pipeline.ask("demo")
        pipeline.settle()
        assert pipeline.report(request, "talker").finish_reason == "stop"

    def test_w1_what_only_a_pickle_could_carry_is_refused(self) -> None:
        with pytest.raises(omnizmq.errors.ProtocolError, match="cannot travel"):
            check_array("rows", np.array([{"a": 1}], object))


def _pipeline() -> Line:
    edges = [Edge("thinker", "talker")]
    engines = {
        "thinker": create(context("thinker", targets=["talker"], final_output=None, chunks=5)),
        "talker": create(context("talker", sources=["thinker"])),
    }
    return Line(engines, edges, final=["talker"])


class TestFrames:
    def test_w1_every_frame_of_a_request_bears_its_id_attempt_and_incarnation(self) -> None:
        """I1, F3: or it could not be recognised as late."""
        between_workers = [*wire.ProducerToConsumer.__args__, *wire.ConsumerToProducer.__args__]  # type: ignore[attr-defined]
        reports = [frame for frame in wire.WorkerToRouter.__args__ if frame not in (wire.Heartbeat, wire.Bye)]  # type: ignore[attr-defined]
        of_a_ring = (wire.RingOffer, wire.RingAnswer, wire.SlotsFreed)
        for frame in (*between_workers, *reports):
            if frame in of_a_ring:
                continue
            assert {"request_id", "attempt", "incarnation"} <= set(frame.__struct_fields__), frame
        for frame in (wire.SubmitStage, wire.FeedStage, wire.AbortStage):
            assert {"request_id", "attempt"} <= set(frame.__struct_fields__), frame
        for frame in (wire.Submit, wire.Delivery, wire.Terminal, wire.Consumed):
            assert "request_id" in frame.__struct_fields__, frame

    def test_w1_the_handshake_bears_version_and_nonce(self) -> None:
        assert {"version", "nonce", "role"} <= set(wire.Hello.__struct_fields__)
        hello = wire.Hello(wire.VERSION, "secret", "worker", replica="talker/0", incarnation=3)
        assert wire.decode_hello(wire.encode_hello(hello)) == hello


SECRET = "secret"


class Hostile:
    """A worker's data socket and gate, an honest producer, and one that knows the secret and means no good."""

    def __init__(self, root: Path) -> None:
        self.context = make_context()
        self.gate = Gate("talker", "talker/0", INCARNATION, "all", ())
        self.fed: list[int] = []
        self.plane = self._plane(root, "talker/0", INCARNATION, self._received)
        self.honest = self._plane(root, "thinker/0", 3, lambda peer, frame: None)  # noqa: ARG005
        self.target = wire.Target("talker", "talker/0", INCARNATION, self._at(root, "talker/0"), "chunk", 10**6, 60.0)
        self.bad = self.context.socket(zmq.DEALER)
        self.bad.connect(self._at(root, "talker/0"))
        self.bad.send(
            wire.encode_hello(wire.Hello(wire.VERSION, SECRET, "producer", replica="hearer/0", incarnation=4))
        )
        self.gate.handle(RouterSent(submit(source("thinker"), targets=())), 1)

    def _at(self, root: Path, replica: str) -> str:
        return f"ipc://{root}/{replica.partition('/')[0]}"

    def _plane(self, root: Path, replica: str, incarnation: int, received: Any) -> DataPlane:
        made = DataPlane(
            self.context,
            self._at(root, replica),
            replica=replica,
            incarnation=incarnation,
            nonce=SECRET,
            received=received,
            lost=lambda peer, why: pytest.fail(f"{peer}: {why}"),
            mapping=lambda change: None,  # noqa: ARG005
        )
        made.start()
        return made

    def _received(self, peer: tuple[str, int], frame: Any, _data: Any) -> None:
        for command in self.gate.handle(PeerSent(*peer, frame), 1):
            if isinstance(command, ToProducer):  # who sends a chunk of what is not here is told that
                assert (command.source.replica, type(command.frame)) == (peer[0], wire.EdgeClosed)
            if isinstance(command, FeedEngine):
                self.fed.append(command.chunk.meta["n"])  # type: ignore[arg-type]

    def close(self) -> None:
        self.plane.close()
        self.honest.close()
        self.bad.close(0)
        self.context.term()


class TestHostileFrames:
    def test_w1_whatever_one_peer_sends_another_ones_request_goes_on(self, home: Path, no_leaks: None) -> None:  # noqa: ARG002
        """Truncated, flipped, garbage, oversized, deep, replayed, out of order, and frames in the name of another."""
        root = home / "run" / "omnizmq"
        chance = random.Random(7)

        async def play() -> None:
            net = Hostile(root)
            errors: list[object] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, what: errors.append(what.get("exception")))
            try:
                for seq in range(1, 301):
                    frame = wire.ChunkFrame(RID, 1, 3, "thinker", seq, {"n": seq}, [])
                    net.honest.to_consumer(net.target, frame)
                    for message in _bad_messages(chance):
                        net.bad.send(message)
                    if seq % 20 == 0:
                        await asyncio.sleep(0.001)
                deadline = time.monotonic() + 10
                while len(net.fed) < 300:
                    assert time.monotonic() < deadline, "the honest request did not go on"
                    await asyncio.sleep(0.005)
                assert net.fed == list(range(1, 301))
                assert net.plane.bad_frames > 300
                assert net.gate.late > 0
                assert net.gate.live == 1
                assert errors == []
            finally:
                net.close()

        asyncio.run(play())
        for left in root.iterdir():
            left.unlink()


def _bad_messages(chance: random.Random) -> Iterator[bytes]:
    """Four of the kinds that there are. `RID` is somebody else's request."""
    forged = [
        wire.ChunkFrame(RID, 1, 4, "thinker", chance.randrange(-2, 400), {"n": -1}, []),
        wire.ChunkFrame(RID, 1, 4, "hearer", 1, {"n": -1}, []),
        wire.EdgeEnd(RID, 1, 3, "thinker", 0),
        wire.EdgeFailed(RID, 1, 3, "thinker", wire.ErrorInfo("stage_error", "forged", None, None, False)),
        wire.EdgeEnd("nobody-0123456789abcdef", 1, 4, "hearer", 0),
    ]
    good = msgspec.msgpack.encode(chance.choice(forged))
    flipped = bytearray(good)
    flipped[chance.randrange(len(good))] ^= 1 << chance.randrange(8)
    kinds = [
        good,
        good[: chance.randrange(len(good))],
        bytes(flipped),
        chance.randbytes(chance.randrange(64)),
        chance.choice([b"\x91", b"\x81\xa1a"]) * 5000,
        msgspec.msgpack.encode(wire.Part(chance.randrange(100), chance.randrange(-1, 4), 3, good)),
        msgspec.msgpack.encode(wire.EdgeCredit(RID, 1, 4, "code2wav", 10**9)),
    ]
    yield from chance.sample(kinds, 4)


IDS = [
    "../../escape",
    "/etc/passwd",
    "a/b/c",
    "$(touch${IFS}x)",
    "`id`",
    "x;rm",
    "%s%n",
    "..",
    "-rf",
    "a" * 128,
    "#1/2",
]


class TestIds:
    @pytest.mark.parametrize("external_id", IDS)
    def test_i3_an_id_is_data_all_the_way_and_names_nothing(
        self, external_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        shared = set(Path("/dev/shm").iterdir())
        pipeline = _pipeline()
        request = pipeline.ask(wire.check_external_id(external_id))
        other = pipeline.ask("other")
        pipeline.settle()
        for rid in (request, other):
            assert pipeline.report(rid, "talker").finish_reason == "stop"
        assert wire.check_request_id(request, external_id) == request
        assert list(tmp_path.iterdir()) == []
        assert set(Path("/dev/shm").iterdir()) <= shared

    def test_i1_two_live_requests_of_one_external_id_do_not_meet(self) -> None:
        """I2: their request ids differ, and nothing else is a key."""
        gate = Gate("talker", "talker/0", INCARNATION, "all", ())
        rids = [wire.make_request_id("demo", bytes([number] * 8)) for number in range(2)]
        for rid in rids:
            gate.handle(RouterSent(submit(targets=(), rid=rid, prompt="hello")), 1)
        assert gate.live == 2
        gate.handle(RouterSent(wire.AbortStage(rids[0], 1)), 1)
        states = [gate.state_of(rid, 1) for rid in rids]
        assert [None if state is None else state.value for state in states] == ["ABORTING", "RUNNING"]
