"""Other graphs than a chain of chunks, several replicas, full queues, large chunks: each in a deployment of its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from support.running import Asking, collect, document, eventually, launched, omnizmq, samples_of, text_of

from omnizmq import AsyncClient, RequestOutput
from omnizmq.errors import OverloadedError, StageError

pytestmark = pytest.mark.usefixtures("no_leaks")

JOINED = """
name = "joined"

[[stage]]
name = "thinker"
engine = "synthetic"
final_output = "text"
[stage.options]
chunks = 4

[[stage]]
name = "slow"
engine = "synthetic"
[stage.options]
first_delay_ms = 150

[[stage]]
name = "quick"
engine = "synthetic"

[[stage]]
name = "all"
engine = "synthetic"
final_output = "audio"

[[stage]]
name = "any"
engine = "synthetic"
final_output = "audio"
ready = "any"

[[edge]]
from = "thinker"
to = "slow"
mode = "payload"

[[edge]]
from = "thinker"
to = "quick"
window_chunks = 1

[[edge]]
from = "slow"
to = "all"
mode = "relay"

[[edge]]
from = "quick"
to = "all"

[[edge]]
from = "slow"
to = "any"

[[edge]]
from = "quick"
to = "any"
"""


def test_p5_chunks_payload_and_relay_meet_in_joins(home: Path) -> None:
    async def scenario(name: str) -> list[RequestOutput]:
        async with AsyncClient.connect(name) as client:
            return await collect(client, "x", request_id="joined")

    (home / "joined.toml").write_text(JOINED)
    with launched(str(home / "joined.toml")) as deployment:
        outputs = asyncio.run(scenario(deployment.name))
        trace = deployment.trace("joined")
        assert eventually(deployment.idle)
    usage = outputs[-1].usage
    assert {stage: counts["completion_tokens"] for stage, counts in usage.items()} == {
        **dict.fromkeys(("thinker", "slow", "quick"), 4),
        **dict.fromkeys(("all", "any"), 8),
    }
    assert outputs[-1].stage == "any"  # P1: the last in topological order, ties by the configuration
    edges = {(edge["from"], edge["to"]): edge["chunks"] for edge in trace["edges"]}
    assert edges == dict.fromkeys(edges, 4)
    assert len(edges) == 6
    stages = trace["stages"]
    assert stages["slow"]["input_ready_ms"] >= stages["thinker"]["first_output_ms"]
    assert stages["any"]["input_ready_ms"] < stages["slow"]["first_output_ms"]  # by `quick` alone
    assert stages["all"]["input_ready_ms"] >= stages["slow"]["finished_ms"]  # a relay is whole, or not there


def test_c2_the_terminal_waits_for_every_report_and_c3_data_for_none() -> None:
    """Thinker's report comes last, then Talker's, then Code2Wav's: the reverse of the stages' order."""
    delays = {"thinker": 450, "talker": 300, "code2wav": 150}

    async def scenario(name: str) -> tuple[list[RequestOutput], dict[str, float]]:
        seen = {}
        outputs = []
        async with AsyncClient.connect(name) as client:
            loop = asyncio.get_running_loop()
            async for output in client.generate("one two", request_id="delayed"):
                outputs.append(output)
                if output.stage_finished or output.finished:
                    seen["terminal" if output.finished else output.stage] = loop.time()
        return outputs, seen

    sets = [f"stage.{stage}.options.terminal_delay_ms={delay}" for stage, delay in delays.items()]
    with launched("synthetic", *sets) as deployment:
        outputs, seen = asyncio.run(scenario(deployment.name))
        stages = deployment.trace("delayed")["stages"]
    assert (text_of(outputs), samples_of(outputs)) == ("one two", 4800)
    assert seen["terminal"] - seen["thinker"] > 0.4  # the text was whole long before any report
    assert seen["terminal"] - seen["code2wav"] > 0.25
    reports = [stages[stage]["finished_ms"] for stage in ("code2wav", "talker", "thinker")]
    assert reports == sorted(reports)
    assert outputs[-1].usage_incomplete == ()


def test_c5_a_report_that_never_comes_is_given_up_and_named() -> None:
    sets = ("stage.thinker.options.terminal_delay_ms=60000", "router.terminal_grace_s=0.2")
    with launched("synthetic", *sets) as deployment:
        done = omnizmq("chat", "one two", "--json")
        answer = document(done)
        assert (done.returncode, answer["text"], answer["finish_reason"]) == (0, "one two", "stop")
        assert answer["usage_incomplete"] == ["thinker"]
        assert eventually(deployment.idle)


TWICE = """
name = "twice"

[[stage]]
name = "thinker"
engine = "synthetic"
final_output = "text"
replicas = 2
policy = "round_robin"

[[stage]]
name = "talker"
engine = "synthetic"
final_output = "audio"
replicas = 2
policy = "affinity"

[[edge]]
from = "thinker"
to = "talker"
"""


def test_s4_replicas_are_taken_in_turn_or_by_affinity(home: Path) -> None:
    async def scenario(name: str) -> None:
        async with AsyncClient.connect(name) as client:
            for number in range(8):
                await collect(client, "x", request_id=f"r{number}", affinity="left" if number % 2 else "right")

    (home / "twice.toml").write_text(TWICE)
    with launched(str(home / "twice.toml")) as deployment:
        asyncio.run(scenario(deployment.name))
        traces = [deployment.trace(f"r{number}") for number in range(8)]
    thinkers = [trace["stages"]["thinker"]["replica"] for trace in traces]
    assert all(one != other for one, other in pairwise(thinkers))
    assert Counter(thinkers) == {"thinker/0": 4, "thinker/1": 4}
    talkers = [trace["stages"]["talker"]["replica"] for trace in traces]
    assert len(set(talkers[0::2])) == len(set(talkers[1::2])) == 1


def test_b1_beyond_the_places_requests_wait_and_beyond_the_queue_they_are_refused() -> None:
    sets = (
        "stage.thinker.max_inflight=1",
        "router.max_queued=2",
        "stage.thinker.options.silent_at=2",
        "stage.thinker.options.fault_only=quiet",
    )

    async def scenario(name: str) -> None:
        async with AsyncClient.connect(name) as client:
            running = Asking(client, "one two", request_id="quiet")
            await running.has(1)
            queued = [Asking(client, f"one {number}") for number in range(2)]
            while (await client.status())["queued"] < 2:
                await asyncio.sleep(0.01)
            refused = await Asking(client, "one two").error()
            assert isinstance(refused, OverloadedError)
            assert refused.retriable
            assert "(router.max_queued)" in refused.message
            assert not any(asking.outputs for asking in queued)
            assert await client.abort("quiet") == 1
            assert [await asking.error() for asking in (running, *queued)] == [None] * 3
            assert [text_of(asking.outputs) for asking in queued] == ["one 0", "one 1"]

    with launched("synthetic", *sets) as deployment:
        asyncio.run(scenario(deployment.name))
        assert eventually(deployment.idle)


def test_w3_large_chunks_a_small_window_and_a_slow_consumer() -> None:
    """3 MB chunks go in parts; then a thousand small ones through a window of one."""
    sets = (
        "stage.thinker.options.echo=false",
        "stage.thinker.options.chunks=12",
        "stage.thinker.options.chunk_bytes=3000000",
        "stage.talker.options.chunks_per_input=80",
        "stage.talker.options.chunk_bytes=64",
        "stage.code2wav.options.interval_ms=0.1",
        "edge.thinker->talker.window_chunks=1",
        "edge.talker->code2wav.window_chunks=1",
    )

    async def scenario(name: str) -> list[RequestOutput]:
        async with AsyncClient.connect(name) as client:
            return await collect(client, "x", modalities=["audio"], request_id="large")

    with launched("synthetic", *sets) as deployment:
        outputs = asyncio.run(scenario(deployment.name))
        edges = {edge["from"]: (edge["chunks"], edge["bytes"]) for edge in deployment.trace("large")["edges"]}
        assert eventually(deployment.idle)
    assert edges == {"thinker": (12, 36_000_000), "talker": (960, 960 * 64)}
    assert samples_of(outputs) == 960 * 2400


def test_what_is_larger_than_a_message_may_be_fails_its_request_alone() -> None:
    """A relay edge's content goes to the router in one message; this one has three times 25 MB."""
    sets = (
        "stage.thinker.options.echo=false",
        "stage.thinker.options.chunks=3",
        "stage.thinker.options.chunk_bytes=25000000",
        "edge.thinker->talker.mode=relay",
    )

    async def scenario(name: str) -> None:
        async with AsyncClient.connect(name) as client:
            error = await Asking(client, "x", modalities=["audio"]).error()
            assert error is not None
            assert (type(error), error.stage) == (StageError, "thinker")
            small = await collect(client, "x", modalities=["audio"], params={"thinker": {"max_tokens": 1}})
            assert small[-1].usage["thinker"]["bytes_out"] == 25_000_000

    with launched("synthetic", *sets) as deployment:
        asyncio.run(scenario(deployment.name))
        assert eventually(deployment.idle)
