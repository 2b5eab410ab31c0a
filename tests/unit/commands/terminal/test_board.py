"""What `omnizmq status --watch` draws."""

from __future__ import annotations

from typing import Any

import pytest

from omnizmq.commands.terminal.bars import ASCII, BLOCKS
from omnizmq.commands.terminal.board import cut, lines
from omnizmq.commands.terminal.layout import Line
from omnizmq.commands.watching import Rates
from omnizmq.config import load
from omnizmq.protocol import RingUse
from omnizmq.router.core import RouterCore

SLOW = {
    "request_id": "slow-0123456789abcdef",
    "external_id": "slow",
    "age_s": 75.0,
    "attempt": 2,
    "phase": "running",
    "verdict": "talker/0 has been in one step for 70 s",
}


def document(**more: Any) -> dict[str, Any]:
    """The router's own, and what a watch adds."""
    core = RouterCore(load("synthetic"))
    core.pools.replicas["thinker/0"].rings = [RingUse("talker", 16 << 20, 4 << 20, 0)]
    rates = {"requests_per_s": None, "ended_per_s": 0.5, "outputs_per_s": 120.0}
    return {**core.status(0.0), "at": "2026-01-02T03:04:05.678+00:00", "rates": rates, **more}


def text(shown: dict[str, Any], width: int | None = None) -> list[str]:
    return [line.text for line in lines(shown, width, BLOCKS)]


def test_a_deployment_at_a_glance() -> None:
    shown = text(document(slowest=[SLOW]))
    assert shown[:3] == [
        "synthetic: running, NOT READY, at 03:04:05",
        "requests: 0 live, 0 queued, 0 paused, 0 bindings, 0 leftovers, 0 discarded outputs",
        "rates: - requests/s, 0.5 ended/s, 120.0 outputs/s",
    ]
    assert shown[4:7] == [
        "oldest requests         age  phase    attempt",
        "slow             1 min 15 s  running        2",
        "  talker/0 has been in one step for 70 s",
    ]
    assert [line.split()[0] for line in shown[9:12]] == ["thinker/0", "talker/0", "code2wav/0"]
    assert "thinker/0  thinker->talker  ███·········  4.0 MiB  16.0 MiB" in shown


def test_at_the_first_look_there_are_no_rates_yet() -> None:
    rates = dict.fromkeys(("requests_per_s", "ended_per_s", "outputs_per_s"))
    assert text(document(rates=rates))[2] == "rates: measuring…"


@pytest.mark.parametrize("width", [200, 60])
def test_f2_who_is_silent_shows_it_on_a_narrow_screen_too(width: int) -> None:
    shown = document()
    silent = shown["stages"]["talker"]["replicas"][0]
    silent |= {"state": "ready", "heartbeat_age_s": 5.2, "silent": True}
    (row,) = [line for line in lines(shown, width, BLOCKS) if line.text.startswith("talker/0")]
    assert "SILENT for 5.2 s" in row.text
    assert row.style == "bold red"
    assert len(row.text) <= width


def test_without_unicode_the_gauges_are_of_ascii() -> None:
    shown = [line.text for line in lines(document(), None, ASCII)]
    assert "".join(shown).isascii()
    assert "thinker/0  thinker->talker  ###.........  4.0 MiB  16.0 MiB" in shown


@pytest.mark.parametrize("width", [200, 100, 80, 60])
def test_at_every_width_no_line_is_cut(width: int) -> None:
    shown = text(document(slowest=[SLOW | {"verdict": "a long story " * 20}]), width)
    assert max(map(len, shown)) <= width
    assert " ".join(" ".join(shown).split()).count("a long story") == 20
    assert any(line.startswith("no room here for: ") for line in shown) == (width < 100)


def test_what_lies_beside_a_ring_and_what_has_no_verdict() -> None:
    ring = {"edge": "a->b", "replica": "a/0", "capacity_bytes": 0, "used_bytes": 0, "spilled_bytes": 3 << 20}
    shown = text(document(rings=[ring], slowest=[SLOW | {"verdict": None}]))
    assert any(line.endswith("3.0 MiB") for line in shown)
    assert sum("slow" in line for line in shown) == 1


def test_t1_what_the_trace_lost_is_said() -> None:
    shown = text(document(trace={"rows_dropped": 3, "failure": "disk full"}))
    assert "tracing: 3 facts not stored, the trace cannot be written: disk full" in shown


def test_a_low_screen_says_how_much_it_does_not_show() -> None:
    shown = [Line(str(number)) for number in range(10)]
    assert cut(shown, 10) == shown
    assert [line.text for line in cut(shown, 4)] == ["0", "1", "2", "7 more lines: a higher terminal has room for them"]
    assert len(cut(shown, 1)) == 1


def test_rates_are_growth_a_second() -> None:
    rates = Rates()
    counters = dict.fromkeys(("requests", "finished", "aborted", "failed", "outputs"), 10)
    assert set(rates.of(counters, 100.0).values()) == {None}
    later = counters | {"requests": 20, "finished": 14, "failed": 11, "outputs": 60}
    assert rates.of(later, 102.0) == {"requests_per_s": 5.0, "ended_per_s": 2.5, "outputs_per_s": 25.0}
