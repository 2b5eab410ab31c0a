"""T2 on real deployments: nothing stands still, and one branch of a graph is as slow as the other lets it be. It is the
edge to the slow one that has to be named, with whom it waits for: nothing keeps that one but its own work.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.running import Asking, Running
from support.trace_drill import CALM, Found, aborted, answer, drilled, steps
from support.trace_engine import trace_engines
from support.trace_watch import Document, Expected, Watch

from omnizmq import AsyncClient

pytestmark = pytest.mark.usefixtures("no_leaks")

FORK = """
name = "fork"
[[stage]]
name = "source"
engine = "synthetic"
options = {{ chunks = 100000, chunk_bytes = {chunk_bytes} }}
[[stage]]
name = "fast"
engine = "synthetic"
final_output = "text"
[[stage]]
name = "slow"
engine = "{engine}"
final_output = "audio"
[[edge]]
from = "source"
to = "fast"
[[edge]]
from = "source"
to = "slow"
window_chunks = {window}
ring_mib = 1
"""

MOVES_NS = 1_000_000_000


def fork(home: Path, **options: object) -> str:
    path = home / "fork.toml"
    path.write_text(FORK.format(**options))
    return str(path)


def test_t2_a_window_whose_consumer_goes_on(home: Path) -> None:
    async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
        asking = Asking(client, "x", request_id="held-up")
        document = await watch.when("held-up", lambda seen: held_up(seen, "credit"))
        says = ("no credit for slow/0", "fast/0 waits for the next chunk from source")
        right = Expected(("credit",), "slow", "slow/0", "slow/0", says=says)
        watch.judge("held-up", "parked", document, right)
        return await aborted(watch, client, asking, "held-up", right)

    with trace_engines(home):
        drilled(CALM, drill, fork(home, engine="slow", chunk_bytes=256, window=2))


def test_t2_a_ring_whose_consumer_goes_on(home: Path) -> None:
    """It lasts for moments alone: what an engine has not taken, its worker copies out (B4). Two requests fill it."""

    async def drill(watch: Watch, client: AsyncClient, _: Running) -> Found:
        asked = [Asking(client, "x", request_id=id_) for id_ in ("held-up", "beside")]
        document = await watch.when("held-up", lambda seen: held_up(seen, "ring", "line"))
        says = ("no room in the ring for slow/0", "fast/0 waits for the next chunk from source")
        watch.judge("held-up", "parked", document, Expected(("ring",), "slow", "slow/0", "slow/0", says=says))
        for id_ in ("held-up", "beside"):
            await client.abort(id_)
        assert [await asking.error() for asking in asked] == [None, None]
        return {}

    drilled(CALM, drill, fork(home, engine="synthetic", chunk_bytes=150_000, window=64))


def held_up(document: Document, *why: str) -> bool:
    """The source is parked by one edge, whose consumer has just done something, and the other consumer has taken all
    that came."""
    source, fast, slow = (answer(document, stage) for stage in ("source", "fast", "slow"))
    if source is None or fast is None or slow is None or source["state"] != "PARKED":
        return False
    if "parked" not in steps(document, "source"):  # its first facts are not written yet
        return False
    full = {edge["to"]: edge["full"] for edge in source["edges"]}
    took_all = fast["engine"] == "idle" and all(edge["taken"] == edge["received"] for edge in fast["inputs"])
    moves = slow["at_ns"] - min(slow["made_ns"], slow["engine_since_ns"]) < MOVES_NS
    return full["slow"] in why and full["fast"] is None and took_all and moves
