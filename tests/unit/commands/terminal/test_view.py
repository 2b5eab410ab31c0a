"""A summary for people (T1, T2): a picture of a known story, plain when piped, and safe whatever a message holds."""

from __future__ import annotations

import io
from typing import Any

import pytest
from support import trace_stories as stories

from omnizmq.commands.terminal.bars import BLOCKS
from omnizmq.commands.terminal.console import marks_for
from omnizmq.commands.terminal.view import lines, show
from omnizmq.trace.facts import Fact
from omnizmq.trace.summary import summarize
from omnizmq.trace.timeline import Timeline

SPOKEN = """\
demo  request demo-0123456789abcdef
ended, deployment d

stage       0                                 200 ms  submit  input  first  end  out  reason
thinker/0    ·░░░░░░██████████─                          5.0    7.0     40   91    8  stop
talker/0    ········░░░░██████████████████               3.0     41     60  150    0  stop
code2wav/0  ············░░░░██████████████████████──     3.0     61     80  199    4  stop
times in ms since it was asked, · waits, ░ runs without output, █ gives output, ─ output ended, report awaited

edge                chunks    bytes  first  last
thinker to talker        8  2.0 KiB     40    88
talker to code2wav      16  4.0 KiB     60   148

engine id demo-0123456789abcdef/1/thinker
engine id demo-0123456789abcdef/1/talker
engine id demo-0123456789abcdef/1/code2wav

ended at 200 ms, finish reason stop
complete after 200 ms, finish reason stop
"""


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def shown(facts: list[Fact], out: io.StringIO | None = None, *, running: bool = False, **options: Any) -> str:
    """The summary of these facts; `live`: what its router says."""
    out, live = out or io.StringIO(), options.pop("live", None)
    show(summarize(facts, running=running, live=live), Timeline(facts), out, **options)
    return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())


def at_width(facts: list[Fact], width: int, *, live: bool = False, now_ms: float | None = None) -> list[str]:
    shown = lines(summarize(facts, running=live), Timeline(facts), width, now_ms=now_ms)
    return [line.text for line in shown]


def test_t1_a_complete_request_piped() -> None:
    assert shown(stories.spoken(), origin="deployment d") == SPOKEN


@pytest.mark.usefixtures("colours")
def test_t1_the_same_on_a_terminal_in_colour() -> None:
    text = shown(stories.spoken(), Terminal())
    assert "\x1b[1;32mcomplete after 200 ms, finish reason stop\x1b[0m" in text
    assert "\x1b[32m█" in text


@pytest.mark.usefixtures("colours")
def test_without_colours_where_none_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1mcomplete" in shown(stories.spoken(), Terminal())


@pytest.mark.parametrize("width", [200, 100, 80, 60, 40])
@pytest.mark.parametrize("facts", [stories.spoken(), stories.redriven(), stories.started()], ids=len)
def test_at_every_width_no_line_is_cut_and_the_important_is_there(facts: list[Fact], width: int) -> None:
    found = at_width(facts, width)
    assert max(map(len, found)) <= width
    text = " ".join(found)
    for important in ("thinker/0", "talker/0", "code2wav/0", "end", "reason", stories.REQUEST):
        assert important in text
    assert "".join(summarize(facts, running=False)["verdict"]["text"].split()) in "".join(text.split())


def test_the_bar_takes_the_room_that_there_is() -> None:
    bars = {width: at_width(stories.spoken(), width)[3] for width in (80, 120)}
    assert len(bars[120]) - len(bars[80]) == 40
    assert len(at_width(stories.spoken(), 1000)[3]) < 200  # up to what an eye can follow


def test_a_narrow_terminal_says_which_columns_it_has_no_room_for() -> None:
    assert "no room here for: input (a wider terminal, or --json)" in at_width(stories.spoken(), 60)
    assert not [line for line in at_width(stories.spoken(), 80) if "no room" in line]


def test_t2_the_bars_of_a_live_request_go_on_to_now_and_it_says_whose_move_it_is() -> None:
    now = shown(stories.started(), running=True, now_ms=5000.0)
    assert "5.0 s  submit" in now
    assert f"thinker/0   {'░' * 40}" in now
    assert "8.0 ms  submit" in shown(stories.started(), running=True)
    assert now.splitlines()[-2] == "whose move it is: thinker/0, for 5.0 s (engine)"


def test_p3_a_stage_that_was_not_planned_has_an_empty_row() -> None:
    text = shown(stories.asked(stories.TEXT), running=True)
    (row,) = [line for line in text.splitlines() if line.startswith("code2wav")]
    assert row.split() == ["code2wav", *["-"] * 6]


def test_nothing_can_be_shown() -> None:
    assert "nothing is known" in shown([], running=True)


def test_f2_attempts_are_apart_and_what_was_given_up_ends_where_the_next_begins() -> None:
    rows = shown(stories.redriven(), running=True).splitlines()
    first, second = rows.index("attempt 1"), rows.index("attempt 2 after replica_lost")
    assert [row.split()[0] for row in rows[first + 1 : second]] == ["thinker/0", "talker/0", "code2wav/0"]
    assert [row.split()[0] for row in rows[second + 1 : second + 4]] == ["thinker/0", "talker/0", "code2wav/0"]
    begins = rows[second + 2].index("·")
    assert len(rows[first + 3].partition("  3.0")[0].rstrip()) <= begins + 1


def test_what_was_asked_for_and_what_was_counted() -> None:
    plan = stories.SPEECH | {"modalities": "text,audio", "deadline_s": 30.0, "priority": 2}
    facts = [*stories.asked(plan), stories.fact(50, "finished", "thinker", {"outputs": 3, "usage_tokens": 12})]
    text = shown(facts)
    assert "ended, modalities text,audio, deadline 30 s, priority 2\n" in text
    assert "usage of thinker: tokens 12\n" in text


def test_b1_for_how_long_an_edge_was_parked() -> None:
    detail: dict[str, Any] = {"to": "talker", "chunks": 8, "bytes": 2048, "parked_ns": 2_500_000_000}
    facts = [*stories.started(), stories.fact(91, "edge", "thinker", detail)]
    rows = [line for line in shown(facts, running=True).splitlines() if line.startswith(("edge", "thinker to"))]
    assert [row.split(None, 3 if number else 1)[-1].split()[-2:] for number, row in enumerate(rows)] == [
        ["last", "parked"],
        ["2.5", "s"],
    ]


def test_a_message_cannot_steer_the_terminal_nor_the_markup() -> None:
    error: dict[str, Any] = {"error_code": "stage_error", "error_message": "\x1b[2J\x07[red]boom\r\nbye"}
    facts = [*stories.started(), stories.terminal(99, "error", **error)]
    text = shown(facts)
    assert "failed after 99 ms: stage_error: ?[2J?[red]boom??bye; what was awaited: " in text
    assert "\x1b" not in text


def test_b2_what_was_queued_is_drawn_and_said() -> None:
    facts = [*stories.asked(stories.TEXT), stories.fact(2, "queued", detail={"why": "behind"})]
    facts.append(stories.fact(20, "queued", detail={"why": "full", "lacks": "thinker"}))
    live = shown(facts, running=True, now_ms=42.0)
    assert "thinker    ▁▁▁▁▁▁" in live
    assert "talker     ▁" not in live  # it is not planned
    assert "queued 40 ms so far: others were before it, then all places of thinker were taken\n" in live
    facts += [*stories.bound(50, "thinker"), *stories.registered(51, "thinker"), stories.fact(53, "running", "thinker")]
    facts += [stories.finished(100, "thinker", outputs=0), stories.terminal(100, stage="thinker")]
    ended = shown(facts)
    assert f"thinker/0  {'▁' * 20}·{'░' * 19}" in ended
    assert "▁ queued" in ended
    assert "queued 48 ms: others were before it, then all places of thinker were taken\n" in ended


def test_a_live_answer_tells_of_a_queue_alone() -> None:
    queue = {"why": "full", "lacks": "thinker", "replicas": "1 of 1 full", "ahead": 0, "since_ns": 1}
    inspected: dict[str, Any] = {"attempt": 1, "now_ns": 2, "phase": "waiting", "caller": True, "deadline_ns": None}
    inspected |= {"queue": queue, "stages": {}, "deliveries": {}, "silent": []}
    facts = [*stories.asked(), stories.fact(2, "queued", detail={"why": "full", "lacks": "thinker"})]
    text = shown(facts, running=True, live=inspected, now_ms=42.0)
    assert "queued for" in text
    assert "queued 40 ms" not in text


def test_f1_who_failed_is_named_and_who_only_heard_of_it_is_not_blamed() -> None:
    burst: dict[str, Any] = {"finish_reason": None, "error_code": "stage_error", "error_stage": "talker"}
    facts = [*stories.started(), *(stories.fact(99, "finished", stage, burst) for stage in ("talker", "code2wav"))]
    facts.append(
        stories.terminal(99, "error", error_code="stage_error", error_stage="talker", error_replica="talker/0")
    )
    text = shown(facts)
    assert "ended at 99 ms: stage_error in talker/0\n" in text
    reasons = {row.split()[0]: row.split()[-1] for row in text.splitlines()[4:7]}
    assert reasons == {"thinker/0": "-", "talker/0": "error", "code2wav/0": "(talker)"}
    text = shown([*stories.started(), stories.terminal(99, "error", error_code="deadline_exceeded")])
    assert "ended at 99 ms: deadline_exceeded\n" in text


def test_an_ended_request_shows_nothing_that_is_not_known() -> None:
    gave = [stories.fact(40, "first_output", "thinker"), stories.fact(60, "last_output", "thinker", {"outputs": 5})]
    facts = [*stories.started(), *gave, stories.terminal(200, "error", error_code="deadline_exceeded")]
    text = shown(facts)
    (row,) = [line for line in text.splitlines() if line.startswith("thinker/0")]
    assert row.split()[:2] == ["thinker/0", "·░░░░░░████" + "?" * 28]
    assert row.split()[-2:] == ["5", "-"]
    assert "? not known" in text


@pytest.mark.parametrize(
    ("locale", "blocks"),
    [
        ({}, True),
        ({"LANG": "en_US.UTF-8"}, True),
        ({"LANG": "C", "LC_ALL": "C.UTF-8"}, True),
        ({"LC_CTYPE": "C.UTF-8"}, True),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "C"}, False),
        ({"LANG": "en_US.UTF-8", "LC_CTYPE": "POSIX"}, False),
        ({"LANG": "C"}, False),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, False),  # as Python makes it of LANG=C
    ],
)
def test_a_locale_of_c_gets_bars_of_ascii(
    locale: dict[str, str], blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in locale.items():
        monkeypatch.setenv(name, value)
    assert (marks_for(Terminal()) is BLOCKS) == blocks


def test_an_edge_table_fits_a_very_narrow_terminal() -> None:
    found = at_width(stories.spoken(), 30)
    (row,) = [line for line in found if line.startswith("thinker to talker")]
    assert row.split()[-1] == "8"
    assert max(len(line) for line in found) <= 30


def test_an_output_that_is_not_unicode_gets_bars_of_ascii() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    facts = stories.spoken()
    show(summarize(facts, running=False), Timeline(facts), out, origin="déploiement")
    out.flush()
    text = raw.getvalue().decode("ascii")
    assert "thinker/0    .------##########_ " in text
    assert "ended, d?ploiement" in text


def test_of_several_attempts_the_last_ones_counts_alone_are_shown() -> None:
    def counted(at_ms: float, attempt: int, chunks: int, parked_ms: int) -> list[Fact]:
        detail: dict[str, Any] = {"to": "talker", "chunks": chunks, "bytes": 100, "parked_ns": parked_ms * 10**6}
        usage: dict[str, Any] = {"finish_reason": "stop", "usage_tokens": chunks}
        sent = stories.fact(at_ms, "edge", "thinker", detail, attempt=attempt)
        return [sent, stories.fact(at_ms, "finished", "thinker", usage, attempt=attempt)]

    redriven = stories.redriven()
    facts = [*redriven[:-1], *counted(55, 1, 3, 9000), *counted(94, 2, 7, 500), redriven[-1]]
    text = shown(facts)
    (row,) = [line.split() for line in text.splitlines() if line.startswith("thinker to talker")]
    assert (row[3], row[-2:]) == ("7", ["500", "ms"])
    assert [line for line in text.splitlines() if line.startswith("usage")] == ["usage of thinker: tokens 7"]
    ids = [line for line in text.splitlines() if line.startswith("engine id")]
    assert len(ids) == 6  # of every attempt: logs have them all
