"""Whether what stages need fits where they are placed: sums, the table of `omnizmq check`, and what is refused.

The needs are those of an engine that is written here; the checks of a real engine's are beside it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import sparse_checkpoint

from omnizmq import cli
from omnizmq.commands import machine
from omnizmq.commands.memory import gib

Run = Callable[..., tuple[int, str, str]]
GIB = 1 << 30

ENGINE = """
from omnizmq.errors import LaunchError, ModelNotFoundError
from omnizmq.workers.memory import MemoryNeed

def estimate_memory(asked):
    if asked.model == "absent":
        raise ModelNotFoundError("model = absent: not here")
    if asked.model == "damaged":
        raise LaunchError("shard 3 is damaged")
    needs = {key: int(value * 2**30) for key, value in asked.options.items() if key != "slot_count"}
    told = f"{asked.stage}: {asked.max_inflight} {asked.max_registered} {asked.on_cpu} {dict(asked.sources)}"
    return MemoryNeed(**needs, slot_count=asked.options.get("slot_count", 0), notes=(told,))

def create(context):
    raise SystemExit("made")
"""

CONFIG = """
name = "weighed"
model = "{model}"
[device_memory_gib]
"cuda:0" = 80
"cpu" = 4
[[stage]]
name = "thinker"
engine = "{engine}"
final_output = "text"
devices = ["cuda:0", "cuda:0"]
max_inflight = 8
options = {{ weights = 20, slots = 8, workspace = 1, process = 0.5, slot_count = 8 }}
[[stage]]
name = "talker"
engine = "{engine}"
devices = [["cuda:0", "cuda:1"]]
options = {{ weights = 6, process = 0.5 }}
[[stage]]
name = "code2wav"
engine = "{engine}"
final_output = "audio"
options = {{ weights = 1, workspace = 0.25, process = 0.25 }}
[[stage]]
name = "tail"
engine = "silent"
final_output = "text"
[[edge]]
from = "thinker"
to = "talker"
ring_mib = 256
[[edge]]
from = "talker"
to = "code2wav"
mode = "relay"
[[edge]]
from = "thinker"
to = "tail"
mode = "payload"
ring_mib = 64
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The whole command line in this process, as if on a machine without GPUs: exit code, stdout, stderr."""
    monkeypatch.setattr(machine, "gpus", list)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["omnizmq", *arguments])
        with pytest.raises(SystemExit) as done:
            cli.main()
        out, err = capsys.readouterr()
        assert isinstance(done.value.code, int)
        return done.value.code, out, err

    return call


@pytest.fixture
def weighed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A configuration of three stages of that engine, and one of an engine that says nothing."""
    (tmp_path / "weighing_engine.py").write_text(ENGINE)
    (tmp_path / "silent_engine.py").write_text("def create(context): ...\n")
    metadata = tmp_path / "weighing-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: weighing\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[omnizmq.engines]\nweighing = weighing_engine:create\nsilent = silent_engine:create\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(model: str = "here") -> str:
        (tmp_path / "weighed.toml").write_text(CONFIG.format(model=model, engine="weighing"))
        return str(tmp_path / "weighed.toml")

    return write


def found(run: Run, file: str, *sets: str) -> dict[str, Any]:
    code, out, err = run("check", file, "--json", *(part for text in sets for part in ("--set", text)))
    assert (code, err) == (0, "")
    document: dict[str, Any] = json.loads(out)
    return document


def test_replicas_on_one_device_add_up_and_one_over_two_is_shared(run: Run, weighed: Callable[..., str]) -> None:
    devices = found(run, weighed())["memory"]["devices"]
    assert [(one["device"], one["need_bytes"] / GIB, one["has_bytes"]) for one in devices] == [
        ("cuda:0", 29 + 29 + 3, 80 * GIB),
        ("cuda:1", 3, None),
        # Processes 0.5 + 0.5 + 0.5 + 0.25, code2wav's 1.25, and a ring of 320 MiB for each thinker: relays have none.
        ("cpu", 1.75 + 1.25 + 2 * 320 / 1024, 4 * GIB),
    ]


def test_the_table_has_a_line_a_replica(run: Run, weighed: Callable[..., str]) -> None:
    _, out, _ = run("check", weighed())
    lines = out.splitlines()
    start = lines.index("memory") + 1
    assert lines[start : lines.index("", start)] == [
        "  replica     device          weights    slots  workspace       sum",
        "  thinker/0   cuda:0         20.0 GiB  8.0 GiB    1.0 GiB  29.0 GiB",
        "  thinker/1   cuda:0         20.0 GiB  8.0 GiB    1.0 GiB  29.0 GiB",
        "  talker/0    cuda:0+cuda:1   6.0 GiB        0          0   6.0 GiB",
        "  code2wav/0  cpu             1.0 GiB        0    256 MiB   1.2 GiB",
        "  not known of tail/0",
        "  cuda:0: 61.0 GiB of 80.0 GiB",
        "  cuda:1: 3.0 GiB; what it has is not known",
        "  cpu: at least 3.6 GiB of 4.0 GiB, with processes and rings",
    ]


def test_an_engine_is_told_of_the_stage_and_its_sources(run: Run, weighed: Callable[..., str]) -> None:
    notes = found(run, weighed())["notes"]
    assert "thinker: 8 32 False {}" in notes
    assert "code2wav: 64 256 True {'talker': {'weights': 6, 'process': 0.5}}" in notes


def test_each_replica_is_estimated_where_it_computes(run: Run, weighed: Callable[..., str]) -> None:
    document = found(run, weighed(), 'stage.code2wav.devices=["cpu", "cuda:1"]')
    assert [note for note in document["notes"] if note.startswith("code2wav")] == [
        f"code2wav: 64 256 {on_cpu} {{'talker': {{'weights': 6, 'process': 0.5}}}}" for on_cpu in (True, False)
    ]
    shares = {one["device"]: one["need_bytes"] / GIB for one in document["memory"]["devices"]}
    assert (shares["cuda:1"], shares["cpu"]) == (3 + 1.25, 1.5 + 2 * 0.25 + 1.25 + 2 * 320 / 1024)


def test_a_gpu_of_two_names_is_one(run: Run, weighed: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: [("0", "GPU-aaaa", 90 * GIB), ("1", "GPU-bbbb", 80 * GIB)])
    memory = found(run, weighed(), 'stage.code2wav.devices=["GPU-aaaa"]')["memory"]
    assert [(one["device"], one["need_bytes"] / GIB, one["has_bytes"] / GIB) for one in memory["devices"]][:2] == [
        ("cuda:0", 29 + 29 + 3 + 1.25, 80),
        ("cuda:1", 3, 80),
    ]


THINKER = "29.0 GiB: weights 20.0 GiB, slots 8.0 GiB, workspace 1.0 GiB"
TALKER = "talker/0 3.0 GiB of 6.0 GiB: weights 6.0 GiB, slots 0, workspace 0"
CODE2WAV = "code2wav/0 1.5 GiB: weights 1.0 GiB, slots 0, workspace 256 MiB, process and ring 256 MiB"
ELSEWHERE = "it needs another device, or a larger one"


@pytest.mark.parametrize("command", [["check"], ["launch", "--config"]])
@pytest.mark.parametrize(
    ("setting", "line"),
    [
        (
            "device_memory_gib.cuda:0=60",
            f"cuda:0 has 60.0 GiB of memory, and 61.0 GiB are needed (thinker/0 {THINKER}; thinker/1 {THINKER}; "
            f"{TALKER}): it fits with stage.thinker.options.slots = 7 (now 8), or with another device",
        ),
        (
            "device_memory_gib.cuda:1=2",
            f"cuda:1 has 2.0 GiB of memory, and 3.0 GiB are needed ({TALKER}): {ELSEWHERE}",
        ),
        (
            "device_memory_gib.cpu=3",
            f"cpu has 3.0 GiB of memory, and 3.6 GiB are needed ({CODE2WAV}; thinker/0 832 MiB for process and ring; "
            f"thinker/1 832 MiB for process and ring; and 1 more): {ELSEWHERE}",
        ),
    ],
)
def test_a_placement_that_cannot_fit_is_one_line(
    run: Run, weighed: Callable[..., str], command: list[str], setting: str, line: str
) -> None:
    code, out, err = run(*command, weighed(), "--set", setting)
    assert (code, out) == (2, "")
    assert err == f"omnizmq {command[0]}: --set {setting}: {line}\n"


@pytest.mark.parametrize(("have", "slots"), [(60.9, 7), (59, 7), (58.9, 6), (47, 1), (46.9, None)])
def test_the_slots_that_are_said_to_fit_do_so(
    run: Run, weighed: Callable[..., str], have: float, slots: int | None
) -> None:
    sets = ["--set", f"device_memory_gib.cuda:0={have}"]
    _, _, err = run("check", weighed(), *sets)
    assert (f"slots = {slots} (now 8)" in err) == (slots is not None)
    if slots is not None:
        fewer = ["--set", f"stage.thinker.options.slots={slots}", "--set", f"stage.thinker.options.slot_count={slots}"]
        assert run("check", weighed(), *sets, *fewer)[0] == 0


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("qwen3_omni_tiny", "stage.talker.max_inflight", 100_000),  # it gives the slots
        ("qwen3_omni_tiny", "stage.talker.options.slot_tokens", 1_000_000),
        ("qwen3_omni_tiny", "stage.talker.replicas", 100),
        ("real", "stage.code2wav.max_inflight", 100_000),
        ("real", "stage.code2wav.max_registered", 400_000),
        ("real", "stage.talker.options.slots", 4000),
    ],
)
def test_what_is_said_to_make_it_fit_does_so(run: Run, tmp_path: Path, file: str, key: str, value: int) -> None:
    if file == "real":
        sparse_checkpoint.real(tmp_path / "model")
    here = [f"model={tmp_path / 'model'}", "device_memory_gib.cuda:0=80", "device_memory_gib.cuda:1=80"]
    name, base = ("qwen3_omni", here) if file == "real" else (file, ["device_memory_gib.cpu=2"])
    if key.endswith("slots"):
        base = [*base, "stage.talker.max_inflight=4000"]

    def check(value: int) -> tuple[int, str]:
        sets = [*base, f"{key}={value}"]
        code, _, err = run("check", name, *(part for text in sets for part in ("--set", text)))
        return code, err

    code, err = check(value)
    said = re.search(rf"with {re.escape(key)} = (\d+) \(now {value}\)", err)
    assert (code, said is not None) == (2, True), err
    assert said is not None
    most = int(said[1])
    assert check(most) == (0, "")
    assert check(most + most // 8 + 1)[0] == 2


def test_a_line_of_many_replicas_names_the_largest(run: Run) -> None:
    sets = ("--set", "device_memory_gib.cpu=2", "--set", "stage.talker.replicas=100")
    _, _, err = run("check", "qwen3_omni_tiny", *sets)
    assert err.count("weights") == 3
    assert "; and 99 more): it fits with stage.talker.replicas = " in err


def test_numbers_that_round_to_the_same_are_told_apart(run: Run, weighed: Callable[..., str]) -> None:
    _, _, err = run("check", weighed(), "--set", "device_memory_gib.cuda:1=2.999")
    assert "cuda:1 has 3070 MiB of memory, and 3072 MiB are needed (" in err


def test_a_model_that_is_elsewhere_is_told_by_check_and_refused_by_launch(
    run: Run, weighed: Callable[..., str]
) -> None:
    document = found(run, weighed("absent"))
    assert document["notes"] == [
        "model = absent: not here; so its memory is not checked, and `launch` would refuse it on this machine"
    ]
    assert document["memory"]["replicas"][0]["weights_bytes"] is None
    assert [one["need_bytes"] for one in document["memory"]["devices"]] == [None, None, None]
    lines = run("check", weighed("absent"))[1].splitlines()
    assert lines[1] == f"note: {document['notes'][0]}"
    assert lines[lines.index("memory") + 2 :][:3] == [
        "  cuda:0: not known; it has 80.0 GiB",
        "  cuda:1: not known",
        "  cpu: not known; it has 4.0 GiB",
    ]
    code, _, err = run("launch", "--config", weighed("absent"))
    assert (code, err) == (2, f"omnizmq launch: {weighed('absent')}: model = absent: not here\n")


@pytest.mark.parametrize("command", [["check"], ["launch", "--config"]])
def test_a_damaged_model_is_refused_before_anything_loads(
    run: Run, weighed: Callable[..., str], command: list[str]
) -> None:
    code, out, err = run(*command, weighed("damaged"))
    assert (code, out) == (2, "")
    assert err == f'omnizmq {command[0]}: {weighed("damaged")}: model = "damaged": shard 3 is damaged\n'


def test_a_stages_own_interpreter_estimates_for_it(run: Run, weighed: Callable[..., str], tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    elsewhere = found(run, weighed(), f"stage.thinker.python={python}")["memory"]
    assert elsewhere == found(run, weighed())["memory"]


@pytest.mark.parametrize("key", ["gpu", "cuda0", "cuda", "CPU"])
def test_what_has_memory_is_a_device(run: Run, key: str) -> None:
    setting = f"device_memory_gib.{key}=8"
    expected = '"cuda:N", a UUID ("GPU-…", "MIG-…") or "cpu" was expected'
    line = f'omnizmq check: --set {setting}: device_memory_gib.{key}: "{key}" as a key: {expected}\n'
    assert run("check", "synthetic", "--set", setting) == (2, "", line)


@pytest.mark.parametrize("value", ["0", "-1", "x", "true"])
def test_what_a_device_has_is_a_number(run: Run, value: str) -> None:
    code, _, err = run("check", "synthetic", "--set", f"device_memory_gib.cuda:0={value}")
    assert code == 2
    assert err.startswith(f"omnizmq check: --set device_memory_gib.cuda:0={value}: device_memory_gib.cuda:0: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("nbytes", "said"),
    [
        (0, "0"),
        (3 << 20, "3 MiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 80, "more than 2^50 GiB"),
        (10**400, "more than 2^50 GiB"),
    ],
)
def test_sizes_as_a_person_reads_them(nbytes: int, said: str) -> None:
    assert gib(nbytes) == said
