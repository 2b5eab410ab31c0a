"""The command line as a whole: what it loads, which commands there are, exit codes, one document with `--json`."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

from omnizmq import cli, errors

HEAVY = ("zmq", "numpy", "rich", "soundfile", "msgspec", "asyncio", "psutil", "sqlite3", "torch", "xllamacpp", "hibari")


@pytest.fixture(autouse=True)
def nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    monkeypatch.setattr(sys, "argv", ["omnizmq", *arguments])
    with pytest.raises(SystemExit) as done:
        cli.main()
    out, err = capsys.readouterr()
    assert isinstance(done.value.code, int)
    return done.value.code, out, err


MAIN = "import sys; sys.argv = ['omnizmq', {!r}]; from omnizmq import cli; cli.group.main(standalone_mode=False)"


@pytest.mark.parametrize(
    "statement", ["import omnizmq", "import omnizmq.cli", MAIN.format("--help"), MAIN.format("--version")]
)
def test_help_loads_nothing_heavy(statement: str) -> None:
    probe = f"{statement}; import sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_explains_itself_and_loads_nothing_heavy(command: str) -> None:
    probe = (
        f"import sys; sys.argv = ['omnizmq', '{command}', '--help']\n"
        "from omnizmq import cli\n"
        "cli.group.main(standalone_mode=False)\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules and name != 'asyncio'])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: ")
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_names_that_help_lists_are_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = run(capsys, monkeypatch, "--help")
    assert (code, err) == (0, "")
    for name, line in cli.COMMANDS.items():
        assert f"  {name:<9}{line}" in out
        command = getattr(import_module(f"omnizmq.commands.{name}"), name)
        assert isinstance(command, click.Command)
        assert command.name == name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("lunch",), "No such command 'lunch'."),
        (("status", "--nonsense"), "No such option"),
        (("launch",), "Missing option '--config'."),
        (("abort",), "Missing argument 'ID'."),
    ],
)
def test_wrong_usage_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = run(capsys, monkeypatch, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("omnizmq")
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [("status",), ("abort", "x"), ("restart", "x"), ("drain", "x/0")])
def test_without_a_deployment_the_json_document_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    said = "no deployment is running: start one with `omnizmq launch --config embedded`"
    assert run(capsys, monkeypatch, *arguments) == (1, "", f"omnizmq {arguments[0]}: {said}\n")
    code, out, err = run(capsys, monkeypatch, *arguments, "--json")
    assert (code, err) == (1, f"omnizmq {arguments[0]}: {said}\n")
    assert json.loads(out) == {
        "error": {"code": "not_found", "stage": None, "replica": None, "message": said, "retriable": False}
    }


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (errors.ConfigError("no"), 2, "no"),
        (errors.InvalidRequestError("no"), 2, "no"),
        (errors.RouterLostError("no"), 1, "no"),
        (errors.OmnizmqError("no"), 1, "no"),
        (errors.StageError("no", stage="talker", replica="talker/0"), 1, "talker/0: no"),
        (errors.StageError("talker/0 said no", stage="talker", replica="talker/0"), 1, "talker/0 said no"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.Abort(), 130, "interrupted"),
        (BrokenPipeError(), 1, None),
    ],
)
def test_exit_codes(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    raised: BaseException,
    code: int,
    said: str | None,
) -> None:
    def fails(*_: object) -> None:
        raise raised

    from omnizmq.commands import status

    monkeypatch.setattr(status, "_ask", fails)
    monkeypatch.setattr(cli, "_discard_stdout", lambda: None)
    expected = "" if said is None else f"omnizmq status: {said}\n"
    got, _, err = run(capsys, monkeypatch, "status")
    assert (got, err.strip()) == (code, expected.strip())
