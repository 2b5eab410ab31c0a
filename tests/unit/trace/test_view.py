"""A summary for people (T1, T2): a picture of a known story, plain when piped, and safe whatever a message holds."""

from __future__ import annotations

import io
from typing import Any

import pytest
from support import trace_stories as stories

from omnizmq.trace.summary import summarize
from omnizmq.trace.view import bar, show

SPOKEN = """\
demo  request demo-0123456789abcdef
ended, deployment d

stage                             submit  input  first  end  out  reason
thinker/0   ░░░░██████               5.0    7.0     40   91    8  stop
talker/0    ····░░██████████         3.0     41     60  150    0  stop
code2wav/0  ······░░████████████     3.0     61     80  199    4  stop
times in ms, bars from 0 to 200: · waits, ░ computes, █ gives output

edge                chunks  bytes  first  last
thinker to talker        8   2048     40    88
talker to code2wav      16   4096     60   148

engine id demo-0123456789abcdef/1/thinker
engine id demo-0123456789abcdef/1/talker
engine id demo-0123456789abcdef/1/code2wav

terminal of code2wav at 200 ms, finish reason stop
complete after 200 ms, finish reason stop
"""


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def shown(document: dict[str, object], out: io.StringIO | None = None, **options: object) -> str:
    out = out or io.StringIO()
    show(document, out, **options)  # type: ignore[arg-type]
    return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())


def test_t1_a_complete_request_piped() -> None:
    assert shown(summarize(stories.spoken(), live=False), origin="deployment d") == SPOKEN


def test_t1_the_same_on_a_terminal_in_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = shown(summarize(stories.spoken(), live=False), Terminal())
    assert "\x1b[1;32mcomplete after 200 ms, finish reason stop\x1b[0m" in text


def test_t2_the_bars_of_a_live_request_go_on_to_now() -> None:
    document = summarize(stories.started(), live=True)
    assert "bars from 0 to 5000:" in shown(document, now_ms=5000.0)
    assert "bars from 0 to 8.0:" in shown(document)
    assert "thinker/0   ░░░░░░░░░░░░░░░░░░░░" in shown(document, now_ms=5000.0)


def test_p3_a_stage_that_was_not_planned_has_an_empty_row() -> None:
    text = shown(summarize(stories.asked(stories.TEXT), live=True))
    (row,) = [line for line in text.splitlines() if line.startswith("code2wav")]
    assert row.split() == ["code2wav", *["-"] * 6]


def test_nothing_and_a_redriven_request_can_be_shown() -> None:
    assert "nothing is known" in shown(summarize([], live=True))
    assert "attempt 2 after replica_lost" in shown(summarize(stories.redriven(), live=True))


def test_a_message_cannot_steer_the_terminal_nor_the_markup() -> None:
    error: dict[str, Any] = {"error_code": "stage_error", "error_message": "\x1b[2J\x07[red]boom\r\nbye"}
    facts = [*stories.started(), stories.terminal(99, "error", **error)]
    text = shown(summarize(facts, live=False))
    assert "failed after 99 ms: stage_error: ?[2J?[red]boom??bye; what was awaited: " in text
    assert "\x1b" not in text


def test_an_output_that_is_not_unicode_gets_bars_of_ascii() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    show(summarize(stories.spoken(), live=False), out, origin="déploiement")
    out.flush()
    text = raw.getvalue().decode("ascii")
    assert "thinker/0   ----######" in text
    assert "ended, d?ploiement" in text


def test_a_stage_that_ended_without_an_output_never_gives_one_in_its_bar() -> None:
    facts = [*stories.started(), stories.finished(50, "talker", outputs=0), stories.finished(100, "thinker", outputs=0)]
    stages = summarize(facts, live=False)["stages"]
    assert bar(stages["talker"], 100.0) == "···········         "
    assert bar(stages["thinker"], 100.0) == " ░░░░░░░░░░░░░░░░░░░"


def test_a_bar_of_no_duration_is_blank() -> None:
    (stage,) = summarize([stories.fact(0, "submitted", "thinker")], live=True)["stages"].values()
    assert bar(stage, 0.0).strip() == ""
