"""The pure parts of the chunk hand-off benchmark: sizes, medians, verdicts, the crossover, strace's table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "bench"))

from chunks_job import MIB, UNDER_WAY, Sample, medians, parse_size, plan, sample, show_size
from chunks_report import Cell, crossover, document, verdicts
from chunks_syscalls import parse, per_chunk


def latency(size: int, **p50_us: float) -> Cell:
    """A cell whose opponents are named by keywords, `_` for a space."""
    return Cell(
        "latency", size, {name.replace("_", " "): {"p50_us": p50, "chunks_per_s": 1.0} for name, p50 in p50_us.items()}
    )


def test_sizes_are_read_and_shown() -> None:
    assert [parse_size(text) for text in ("4096", "4K", "16m")] == [4096, 4096, 16 * MIB]
    assert [show_size(size) for size in (4096, 16 * MIB, 24)] == ["4 KB", "16 MB", "24 B"]


@pytest.mark.parametrize("text", ["", "K", "4G", "-4K", "4.5K", "12", "61M", "0"])
def test_a_size_that_cannot_be_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(ValueError, match=f"size '{text}'"):
        parse_size(text)


def test_large_chunks_are_fewer_and_a_part_is_a_part() -> None:
    assert [plan(size).chunks for size in (4096, MIB, 16 * MIB)] == [300, 128, 24]
    assert plan(4096, part=0.1).chunks == 30
    assert plan(4096, part=0.001).chunks == 8
    assert plan(4096, under_way=UNDER_WAY).under_way == UNDER_WAY


def test_a_sample_is_the_median_the_late_ones_and_the_rate() -> None:
    found = sample([1000, 3000, 2000, 9000, 4000], [0, 10**9, 2 * 10**9, 3 * 10**9, 4 * 10**9], (1.5, 2.5))
    assert (found.p10_us, found.p50_us, found.p99_us, found.chunks_per_s) == (1.0, 3.0, 4.0, 1.0)
    assert found.waits == (1.5, 2.5)


def test_turns_become_medians_and_their_spread() -> None:
    found = medians([Sample(1.0, p50, 9.0, 100.0) for p50 in (10.0, 40.0, 20.0)])
    assert (found["p50_us"], found["spread"], found["chunks_per_s"]) == (20.0, 4.0, 100.0)


def test_aims_are_met_and_missed_by_the_ratios_and_the_best_zmq_counts() -> None:
    cells = [
        latency(4096, omnizmq=100, omnizmq_inline=95),
        latency(MIB, memcpy=30, omnizmq=100, zmq_push_copy=400, zmq_push_nocopy=290),
        latency(16 * MIB, memcpy=1000, omnizmq=1100, zmq_push_copy=2800),
    ]
    ends: dict[str, list[str]] = {}
    for line in verdicts(cells):
        ends.setdefault(line.split(":")[0], []).append(line.rsplit(": ", 1)[-1])
    assert ends == {
        "16 MB one way": ["met", "met"],  # 1.1 x memcpy; 2.55 times faster
        "1 MB one way": ["met", "missed"],  # 3.33 x memcpy; 2.9 times faster than the best
        "4 KB one way": ["met"],
    }


def test_what_was_not_measured_is_said_and_not_met() -> None:
    lines = verdicts([latency(MIB, memcpy=30)])
    assert len(lines) == 5
    assert all(line.endswith("not measured in this run") for line in lines)


def test_the_crossover_is_where_the_ring_stays_no_slower() -> None:
    cells = [
        latency(4096, omnizmq_ring=90, omnizmq_inline=100),  # faster once, and slower after: not yet
        latency(8192, omnizmq_ring=120, omnizmq_inline=100),
        latency(16384, omnizmq_ring=100, omnizmq_inline=100),
        latency(32768, omnizmq_ring=80, omnizmq_inline=100),
    ]
    assert "no slower than inline from 16 KB (" in (crossover(reversed(cells)) or "")
    assert "at none of these sizes" in (crossover(cells[:2]) or "")
    assert crossover([latency(4096, omnizmq=1)]) is None


def test_the_document_has_the_ratios_to_the_floor_and_to_the_best_zmq() -> None:
    (cell,) = document([latency(MIB, memcpy=40, omnizmq=100, zmq_a=400, zmq_b=200)])
    ours = cell["opponents"]["omnizmq"]
    assert (cell["best_zmq"], ours["x_memcpy"], ours["x_best_zmq"], ours["bytes_per_s"]) == ("zmq b", 2.5, 0.5, MIB)


def test_calls_are_read_from_straces_table_and_counted_by_difference() -> None:
    table = (
        "% time     seconds  usecs/call     calls    errors syscall\n"
        "------ ----------- ----------- --------- --------- ----------------\n"
        " 60.00    0.000600           3       200        20 futex\n"
        " 40.00    0.000400           2       100           read\n"
        "------ ----------- ----------- --------- --------- ----------------\n"
        "100.00    0.001000           3       300        20 total\n"
    )
    many = parse(table)
    assert many == {"futex": 200, "read": 100}
    assert per_chunk({"futex": 50, "read": 99}, many, 50) == {"all": 3.0, "futex": 3.0}
