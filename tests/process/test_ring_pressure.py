"""Full rings, and who waits for them: a stopped consumer, a join, early ends, failures, aborts, deaths (B3, B4)."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.running import Asking, Held, Running, collect, eventually, kill, launched, text_of, until
from support.stress import visible
from support.stress_watch import not_quiet, ring_rows

from omnizmq import AsyncClient
from omnizmq.errors import StageError

pytestmark = pytest.mark.usefixtures("no_leaks")

MIB = 1 << 20
CHUNK = 80_000
ENDLESS = 100_000
RECORD = 81_920
"""At most, of a chunk in a ring."""

HEARTBEAT_S = 0.1
ROUTER = f"""
[router]
heartbeat_interval_s = {HEARTBEAT_S}
heartbeat_timeout_s = 60
restart_delay_s = 0.01
abort_timeout_s = 0.5
"""


def stage(name: str, *, final: str | None = None, engine: str = "synthetic", **options: Any) -> str:
    said = f'final_output = "{final}"\n' if final else ""
    given = ", ".join(f"{key} = {json.dumps(value)}" for key, value in options.items())
    return f'[[stage]]\nname = "{name}"\nengine = "{engine}"\n{said}options = {{ {given} }}\n'


def edge(source: str, target: str, *, mode: str = "chunk", window: int = 1000) -> str:
    """With the smallest ring, and a window that is never what is in the way."""
    return f'[[edge]]\nfrom = "{source}"\nto = "{target}"\nmode = "{mode}"\nwindow_chunks = {window}\nring_mib = 1\n'


def write(home: Path, *parts: str) -> str:
    path = home / "pressure.toml"
    path.write_text("\n".join(('name = "pressure"', ROUTER, *parts)))
    return str(path)


async def used(client: AsyncClient) -> dict[str, int]:
    """Bytes in use by edge, at the last heartbeats."""
    return {row["edge"]: row["used_bytes"] for row in ring_rows(await client.status())}


async def eventually_used(client: AsyncClient, name: str, holds: Callable[[int], bool]) -> int:
    async with asyncio.timeout(20):
        while not holds(found := (await used(client))[name]):
            await asyncio.sleep(HEARTBEAT_S / 2)
    return found


async def eventually_quiet(client: AsyncClient) -> None:
    """Nothing goes on, and no byte of any ring is in use."""
    async with asyncio.timeout(20):
        while not_quiet(await client.status()):
            await asyncio.sleep(HEARTBEAT_S / 2)
    await asyncio.sleep(2 * HEARTBEAT_S)  # what the next heartbeats say
    assert not not_quiet(await client.status())


async def pid_of(client: AsyncClient, name: str) -> int:
    return int((await client.status())["stages"][name]["replicas"][0]["pid"])


class TestAStoppedConsumer:
    """`source` feeds `stopped` (text) and `other` (audio), each with a quota of its own."""

    FEW = {"source": {"max_tokens": 60}}

    def config(self, home: Path) -> str:
        return write(
            home,
            stage("source", chunks=ENDLESS, chunk_bytes=CHUNK, interval_ms=10),
            stage("stopped", final="text", chunk_bytes=8),
            stage("other", final="audio", chunk_bytes=8),
            edge("source", "stopped"),
            edge("source", "other"),
        )

    def test_b1_it_holds_its_quota_and_no_more_and_gives_all_back_when_it_goes_on(self, home: Path) -> None:
        async def scenario(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                await collect(client, "x", params=self.FEW)  # each has met its peers
                await eventually_quiet(client)
                pid = await pid_of(client, "stopped")
                asking = [Asking(client, "x", request_id=f"r{n}", modalities=["text"]) for n in range(4)]
                for one in asking:
                    await one.has(1)
                kill(pid, signal.SIGSTOP)
                try:
                    await self.look_while_stopped(client, asking)
                finally:
                    kill(pid, signal.SIGCONT)
                await eventually_quiet(client)
                assert await pid_of(client, "stopped") == pid
                assert text_of(await collect(client, "x", modalities=["text"], params=self.FEW)) != ""
                await eventually_quiet(client)

        with launched(self.config(home)) as deployment:
            asyncio.run(scenario(deployment))
            assert deployment.stop() == 0

    async def look_while_stopped(self, client: AsyncClient, asking: Sequence[Asking]) -> None:
        full = await eventually_used(client, "source->stopped", lambda found: found > MIB - RECORD)
        assert full <= MIB
        heard = [len(one.outputs) for one in asking]
        sounds = (collect(client, "x", modalities=["audio"], params=self.FEW) for _ in range(3))
        for outputs in await asyncio.gather(*sounds):
            assert outputs[-1].usage["other"]["completion_tokens"] == 60
        await asyncio.sleep(3 * HEARTBEAT_S)  # heartbeats, and nothing has moved
        assert (await used(client))["source->stopped"] == full
        assert [len(one.outputs) for one in asking] == heard
        for n in range(len(asking)):
            assert await client.abort(f"r{n}") == 1
        for one in asking:
            assert await one.error() is None
            assert one.outputs[-1].finish_reason == "abort"
        status = await client.status()
        assert (status["live_requests"], status["leftovers"]) == (0, len(asking))
        assert (await used(client))["source->stopped"] == full  # until it goes on, or has been reaped


@pytest.mark.parametrize("orders", [("rising", "falling"), ("falling", "rising"), ("rising", "rising")])
@pytest.mark.parametrize("mode", ["chunk", "payload"])
def test_b4_two_full_edges_that_join_in_one_stage_do_not_deadlock(
    home: Path, orders: tuple[str, str], mode: str
) -> None:
    """Each of the two serves its requests one by one, from either end: what one has sent waits for what the other still
    holds back, and keeps it until it has all. Both rings are too small for the chunks of a single request."""
    requests = 8
    left, right = orders
    path = write(
        home,
        stage("left", engine="queue", requests=requests, chunks=24, chunk_bytes=CHUNK, order=left),
        stage("right", engine="queue", requests=requests, chunks=24, chunk_bytes=CHUNK, order=right),
        stage("join", final="text", engine="verify"),
        edge("left", "join"),
        edge("right", "join", mode=mode),
    )

    async def scenario(deployment: Running) -> None:
        async with AsyncClient.connect(deployment.name) as client:
            asking = [Asking(client, "x", request_id=f"r{n}") for n in range(requests)]
            async with asyncio.timeout(30):
                assert [await one.error() for one in asking] == [None] * requests
            assert [text_of(one.outputs) for one in asking] == ["48 chunks"] * requests
            await eventually_quiet(client)

    with visible(), launched(path) as deployment:
        asyncio.run(scenario(deployment))
        assert deployment.stop() == 0


class TestEveryByteIsReclaimed:
    """Whatever ends a request in the middle of its chunks, the ring is free afterwards, and others go on meanwhile."""

    def sets(self, **more: str) -> list[str]:
        given = {
            "router.heartbeat_interval_s": str(HEARTBEAT_S),
            "router.restart_delay_s": "0.01",
            "stage.thinker.options.echo": "false",
            "stage.thinker.options.chunks": str(ENDLESS),
            "stage.thinker.options.chunk_bytes": "200000",
            "stage.talker.options.chunk_bytes": "120000",
            "stage.code2wav.options.echo": "false",
            "stage.code2wav.options.chunk_bytes": "400",
            "stage.code2wav.options.interval_ms": "2",
            "edge.thinker->talker.ring_mib": "1",
            "edge.talker->code2wav.ring_mib": "1",
            **more,
        }
        return [f"{key}={value}" for key, value in given.items()]

    FEW = {"thinker": {"max_tokens": 30}}

    def play(self, sets: Sequence[str], scenario: Callable[[AsyncClient], Any]) -> None:
        async def whole(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                ids = [f"other-{n}" for n in range(3)]
                others = [Asking(client, "x", request_id=id_, modalities=["audio"], params=self.FEW) for id_ in ids]
                await scenario(client)
                assert [await one.error() for one in others] == [None] * 3
                assert [one.outputs[-1].finish_reason for one in others] == ["length"] * 3
                await eventually_quiet(client)

        with launched("synthetic", *sets) as deployment:
            asyncio.run(whole(deployment))
            assert eventually(deployment.idle)
            assert deployment.stop() == 0

    def test_r5_a_consumer_that_ends_early(self) -> None:
        async def scenario(client: AsyncClient) -> None:
            for stage_ in ("talker", "code2wav"):
                for limit in (1, 7):
                    params = {**self.FEW, stage_: {"max_tokens": limit}}
                    outputs = await collect(client, "x", modalities=["audio"], params=params)
                    assert outputs[-1].finish_reason in ("length", "stop")

        self.play(self.sets(), scenario)

    @pytest.mark.parametrize("failing", ["thinker", "talker", "code2wav"])
    def test_f1_a_stage_that_fails_in_the_middle(self, failing: str) -> None:
        async def scenario(client: AsyncClient) -> None:
            failed = [Asking(client, "x", request_id=f"bad-{n}", modalities=["audio"]) for n in range(3)]
            for one in failed:
                error = await one.error()
                assert isinstance(error, StageError)
                assert error.stage == failing

        options = f"stage.{failing}.options"
        self.play(self.sets(**{f"{options}.fail_at": "12", f"{options}.fault_only": "bad"}), scenario)

    @pytest.mark.parametrize("patience", [1, 2, 6])
    def test_a6_an_abort_in_the_middle(self, patience: int) -> None:
        async def scenario(client: AsyncClient) -> None:
            for number in range(4):
                one = Asking(client, "x", request_id=f"a{number}", modalities=["audio"])
                await one.has(patience)
                assert await client.abort(f"a{number}") == 1
                assert await one.error() is None
                assert one.outputs[-1].finish_reason == "abort"

        self.play(self.sets(), scenario)

    @pytest.mark.parametrize("victim", ["thinker", "talker", "code2wav"])
    def test_f2_a_worker_that_is_killed_with_full_rings(self, victim: str) -> None:
        """The second replica's requests go on, the dead one's are driven again there."""
        affinity = {f"stage.{name}.policy": "affinity" for name in ("thinker", "talker", "code2wav")}

        async def scenario(deployment: Running) -> None:
            async with AsyncClient.connect(deployment.name) as client:
                by_pid = {one["id"]: one["pid"] for one in (await client.status())["stages"][victim]["replicas"]}
                ask = {"modalities": ["audio"], "params": self.FEW}
                asking = [Held(client, "x", after=1, affinity=f"k{n}", **ask) for n in range(12)]
                await until(lambda: sum(bool(one.outputs) for one in asking) > 6)
                kill(by_pid[f"{victim}/0"])
                assert await asyncio.gather(*(one.error() for one in asking)) == [None] * len(asking)
                assert len({sum(len(out.audio) for out in one.outputs if out.audio is not None) for one in asking}) == 1
                assert 0 < (await client.status())["counters"]["redriven"] < len(asking)
                await eventually_quiet(client)
                assert (await collect(client, "x", **ask))[-1].finish_reason == "length"
                await eventually_quiet(client)

        two = {"stage.thinker.replicas": "2", "stage.talker.replicas": "2", "stage.code2wav.replicas": "2"}
        # Nobody is done before its consumer nearly is, nor Code2Wav before its caller: whoever is killed has work.
        read = {"router.output_window": "4"}
        tied = {f"edge.{name}.window_chunks": "2" for name in ("thinker->talker", "talker->code2wav")}
        with launched("synthetic", *self.sets(**two, **affinity, **read, **tied)) as deployment:
            asyncio.run(scenario(deployment))
            assert deployment.stop() == 0


@pytest.mark.parametrize(("faulty", "where"), [("source", "made"), ("sink", "came")])
def test_f1_a_fault_of_a_gate_fails_the_request_it_was_about_and_no_other(home: Path, faulty: str, where: str) -> None:
    """Those that were in the same step among them: not a chunk of theirs is lost."""
    engines = {name: "faulty" if name == faulty else "synthetic" for name in ("source", "sink")}
    options = {name: {"where": where} if name == faulty else {} for name in engines}
    path = write(
        home,
        stage("source", engine=engines["source"], chunks=8, chunk_bytes=CHUNK, **options["source"]),
        stage("sink", final="text", engine=engines["sink"], chunk_bytes=8, **options["sink"]),
        edge("source", "sink"),
    )

    async def scenario(deployment: Running) -> None:
        async with AsyncClient.connect(deployment.name) as client:
            ids = [f"{kind}{number}" for number in range(4) for kind in ("fault", "good")]
            asking = [Asking(client, "x", request_id=id_) for id_ in ids]
            for id_, one in zip(ids, asking, strict=True):
                error = await one.error()
                if id_.startswith("good"):
                    assert error is None
                    assert one.outputs[-1].usage["sink"]["completion_tokens"] == 8
                else:
                    assert isinstance(error, StageError)
                    assert error.stage == faulty
                    assert "ZeroDivisionError: a fault of the gate" in error.message
            await eventually_quiet(client)

    with visible(), launched(path) as deployment:
        asyncio.run(scenario(deployment))
        assert deployment.stop() == 0
