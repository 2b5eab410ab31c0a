"""Ctrl-C at any moment of a command: exit code 130 and at most one line, or the command had done its work already.

The moments are imports, as Python itself tells of them (`-X importtime`): most of what a command does at first.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.usefixtures("no_leaks")

FIRST = "omnizmq.interrupts"
"""From here on an interrupt is the command's to answer; before, it is the interpreter's."""

INTERRUPTED = (130, -signal.SIGINT)
"""A shell calls both 130. The second is Python's own, where it was amid code that it had made of a text."""

MOMENTS = 10
RECORDING = next((Path(__file__).parents[1] / "scenarios").glob("*.jsonl"))


class Ended(NamedTuple):
    """`imported`: what it imported after `FIRST`; `said`: what else was on stderr."""

    code: int
    out: str
    said: str
    imported: list[str]


def run(*arguments: str, interrupted_at: int | None = None) -> Ended:
    """The command to its end, interrupted when it has made that import."""
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "omnizmq", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    names: list[str] = []
    said = ""
    for line in process.stderr:
        if not line.startswith("import time:"):
            said += line
            continue
        names.append(line.rpartition("|")[2].strip())
        imported = names[names.index(FIRST) + 1 :] if FIRST in names else []
        if len(imported) - 1 == interrupted_at and imported:
            process.send_signal(signal.SIGINT)
            interrupted_at = None
    out, _ = process.communicate(timeout=60)
    return Ended(process.returncode, out, said, imported)


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "synthetic"),
        ("status",),
        ("trace", "nobody"),
        ("replay", str(RECORDING)),
        ("chat", "hi", "--config", "synthetic"),
        ("launch", "--config", "synthetic", "--set", "stage.thinker.options.fail_start=true"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_that_is_interrupted_says_so_and_no_more(arguments: tuple[str, ...]) -> None:
    imports = len(run(*arguments).imported)
    assert imports > 5 * MOMENTS
    for number in range(MOMENTS):
        at = number * imports // MOMENTS
        ended = run(*arguments, interrupted_at=at)
        where = f"after {ended.imported[at]}: {ended.code}, {ended.said}"
        assert ended.code in INTERRUPTED, where
        assert ended.said.lstrip("\n") == f"omnizmq {arguments[0]}: interrupted\n", where


def test_with_json_there_is_a_document_too() -> None:
    for at in (0, 60):
        ended = run("check", "synthetic", "--json", interrupted_at=at)
        assert ended.code in INTERRUPTED
        assert json.loads(ended.out)["error"]["code"] == "interrupted"


def test_what_has_no_command_has_done_its_work_at_once() -> None:
    assert run("--help", interrupted_at=3)[0] == 0
