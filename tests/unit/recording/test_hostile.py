"""Whatever a file says, it is replayed or refused in one line that says where and why, within bounds of memory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnizmq.commands.replay import replay
from omnizmq.errors import ConfigError
from omnizmq.protocol import MESSAGE_BYTES
from omnizmq.recording import file, trees

SCENARIO = Path(__file__).parents[2] / "scenarios" / "text_and_audio.jsonl"
LINES: list[Any] = [json.loads(line) for line in SCENARIO.read_bytes().splitlines()]
SUBMIT = next(i for i, line in enumerate(LINES) if line.get("event", {}).get("frame", {}).get("$") == "Submit")
MAKES = next(i for i, line in enumerate(LINES) if line.get("event", {}).get("frame", {}).get("$") == "Output")


def deep(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def changed(number: int, place: str, value: Any) -> bytes:
    """The scenario with another value at a place (`event.frame.params`) of its line of that index; bytes are JSON."""
    lines = deepcopy(LINES)
    *path, last = place.split(".")
    at = lines[number]
    for name in path:
        at = at[int(name) if isinstance(at, list) else name]
    at[int(last) if isinstance(at, list) else last] = "HERE"
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return b"".join(json.dumps(line).encode().replace(b'"HERE"', text) + b"\n" for line in lines)


def refusal(raw: bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        list(file.events(file.parse(Path("r.jsonl"), raw)))
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 500
    return caught.value.message


FRAME = "event.frame"
BAD = [
    (2, "effects", [1], "Expected `object`, got `int` - at `$.effects[0]`"),
    (2, "effects", [None], "Expected `object`, got `null`"),
    (2, "effects", ["x"], "Expected `object`, got `str`"),
    (2, "effects", [{}], "missing required field `$` - at `$[0]`"),
    (2, "effects", [{"$": [1]}], "`$` is a struct's name"),
    (2, "effects", [{"$": "ToClient", "frame": {}}], "missing required field `$` - at `$[0].frame`"),
    (2, "event", {"$": [1]}, "`$` is a struct's name"),
    (2, "event", {"$": "x\n\x1b[31m"}, "an event of the router was expected, not"),
    (2, "event", deep(100_000), "nested too deeply"),
    (2, "event", {"$": "StopAsked", "why": [[]]}, "a StopAsked that does not decode: Expected `str`"),
    (2, "now", 1e300, "Expected `float` <= 8589934592.0"),
    (2, "now", -1e300, "Expected `float` >= 0.0"),
    (2, "now", float("nan"), "malformed"),
    (2, "n", 0, "Expected `int` >= 1"),
    (2, "n", b"1" * 5000, "Integer value out of range"),
    (
        SUBMIT,
        f"{FRAME}.params",
        {"a": {"b": {"$chars": 2**46}}},
        "not as $chars is written: Expected `int` <= 67108864",
    ),
    (SUBMIT, f"{FRAME}.params", {"a": {"b": {"$chars": -1}}}, "Expected `int` >= 0"),
    (SUBMIT, f"{FRAME}.params", {"a": {"b": {"$chars": 1, "x": 1}}}, "unknown field `x`"),
    (SUBMIT, f"{FRAME}.params", {"a": {"b": {"$sound": 1}}}, "nothing is written as $sound; there are: $chars, $bytes"),
    (SUBMIT, f"{FRAME}.params", {"a": {"b": "in the open"}}, 'params.a.b is "in the open", where {"$chars":11} was'),
    (SUBMIT, f"{FRAME}.params", {"a": {"b": 10**25}}, "an integer of more than 64 bits"),
    (SUBMIT, f"{FRAME}.request_id", {"$chars": 3}, 'frame.request_id is {"$chars":3}, where "xxx" was expected'),
    (SUBMIT, FRAME, ["Bye", "done"], 'a ClientSent whose frame is ["Bye","done"], where {"$":"Bye"'),
    (SUBMIT, "event.client", {"$pairs": [["x"]]}, "not as $pairs is written: Expected `array` of length 2"),
    (MAKES, f"{FRAME}.content.text", {"$float": "x"}, "not as $float is written: Invalid enum value 'x'"),
    *((0, "config.stage.0.name", value, "not usable: not as") for value in ({"$chars": "x"}, {"$chars": 2**45})),
    *((0, "config.stage.0.name", value, "not usable: not as") for value in ({"$pairs": 3}, {"$float": "x"})),
    (0, "config.stage.0.name", {"$": [1]}, "its configuration is not usable: `$` is a struct's name"),
    (0, "config.stage.0.name", {"$": "Bye"}, "its configuration is not usable: stage.1 of 3.name"),
    (0, "config.stage.0.params", deep(900), "its configuration is not usable: nested more than 64 deep"),
    (0, "config.stage.0.params", deep(100_000), "nested too deeply"),
    (0, "config.stage.0.name", {"$chars": 2**25}, "its configuration is not usable: texts and other contents take"),
    (0, "config.stage.0.name", "x" * 10_000, "usable: stage.xxxx"),
    (0, "wire", 2**40, "Expected `int` <= 2147483647 - at `$.wire`"),
    (0, "recording", 10**30, "Expected `int` <= 2147483647 - at `$.recording`"),
    (0, "omnizmq", "9" * 65, "Expected `str` of length <= 64"),
]


@pytest.mark.parametrize(("number", "place", "value", "why"), BAD, ids=[f"{i}-{one[1]}" for i, one in enumerate(BAD)])
def test_a_line_that_nobody_recorded_is_named(number: int, place: str, value: Any, why: str) -> None:
    message = refusal(changed(number, place, value))
    assert message.startswith(f"r.jsonl, line {number + 1}: ")
    assert why in message


@pytest.mark.parametrize("text", [b'{"n":1,"now":"\xff"}', b'"\\ud800"', b"\0", b"", deep(100_000)])
def test_a_line_that_is_no_document_is_named(text: bytes) -> None:
    lines = SCENARIO.read_bytes().splitlines()
    lines[3] = text
    assert refusal(b"\n".join([*lines, b""])).startswith("r.jsonl, line 4: ")
    assert refusal(text + b"\n").startswith("r.jsonl, line 1: ")


def test_one_line_on_standard_error_and_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(changed(2, "effects", [1]))
    done = subprocess.run(
        [sys.executable, "-m", "omnizmq", "replay", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"{path}, line 3: " in done.stderr


class TestBounds:
    def test_what_stand_ins_take_together_is_bounded(self) -> None:
        checker = trees.Checker()
        many = [{"$chars": MESSAGE_BYTES - n} for n in range(trees.BUILT_BYTES // MESSAGE_BYTES)]
        checker.check(many, built=True)
        checker.check(many, built=True)  # they are there already
        checker.check([{"$bytes": MESSAGE_BYTES - n} for n in range(100)], built=False)
        with pytest.raises(Exception, match="more than 1024 MiB of memory"):
            checker.check({"$bytes": MESSAGE_BYTES}, built=True)

    def test_tokens_are_counted_each_time(self) -> None:
        checker = trees.Checker()
        tokens = {"$tokens": MESSAGE_BYTES}
        checker.check([tokens, tokens], built=True)
        with pytest.raises(Exception, match="of memory"):
            checker.check(tokens, built=True)

    def test_a_size_without_end_costs_neither_time_nor_memory(self) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        refusal(changed(0, "config.stage.0.name", {"$chars": 2_000_000_000}))
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


# --- Any value anywhere ----------------------------------------------------------------------------------------------

NAMES = st.sampled_from(
    ["$", "$chars", "$bytes", "$tokens", "$float", "$pairs", "$error", "other", "frame", "fact", "a"]
)
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-3, 70)
    | st.sampled_from([2**31, 2**46, 2**63, 2**64, -(2**63), 10**30, 1e300, -1e300, -0.0, 1e-9, float("nan")])
    | st.sampled_from(["", "x", "thinker", "thinker/0", "nan", "AA==", "\n", "\x1b[0m", "\ud800", "é", "demo-0"])
    | st.sampled_from(["Submit", "Bye", "Output", "Text", "Ticked", "Fact", "ToClient", "Prompt", "Terminal"])
)
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Each list or object in it, with each of its positions."""
    for at, item in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield tree, at
        yield from places(item)


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    """The scenario with one to three values changed, added, left out, or exchanged for one alike."""
    lines = deepcopy(LINES)
    for _ in range(draw(st.integers(1, 3))):
        every = list(places(lines[draw(st.integers(0, len(lines) - 1))]))
        if not every:
            continue
        inside, at = draw(st.sampled_from(every))
        match draw(st.sampled_from(["change", "add", "leave out", "exchange", "exchange"])):
            case "change":
                inside[at] = draw(VALUES)
            case "add":
                if isinstance(inside, dict):
                    inside[draw(NAMES)] = draw(VALUES)
                else:
                    inside.insert(at, draw(VALUES))
            case "leave out":
                del inside[at]
            case _:
                alike = [other[there] for other, there in every if type(other[there]) is type(inside[at])]
                inside[at] = deepcopy(draw(st.sampled_from(alike)))
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def asked(path: Path, *options: str) -> int | None:
    """The exit code; None: a `ConfigError` of one line; 3: of more."""
    try:
        return replay.main([str(path), *options], standalone_mode=False)
    except ConfigError as error:
        return None if error.message.isprintable() else 3


@settings(max_examples=100, deadline=None)
@given(spoilt())
def test_any_value_anywhere_is_replayed_or_refused(raw: bytes) -> None:
    with TemporaryDirectory() as folder:
        path, made = Path(folder) / "r.jsonl", Path(folder) / "made.jsonl"
        path.write_bytes(raw)
        status = asked(path, "--commands")
        assert status in (0, 1, None)
        assert asked(path, "--json", "--commands") == status
        if status is not None:
            assert asked(path, "--scenario", str(made)) == 0
            assert asked(made) == 0


def test_the_good_recording_is_replayed(tmp_path: Path) -> None:
    """What the others spoil."""
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in LINES))
    assert asked(path) == 0
