"""The command line as a whole: what it loads, which commands there are, exit codes, one document with `--json`."""

from __future__ import annotations

import errno
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


EARLY = {
    "abort": [(), ("x",), ("x", "y"), ("x", "--connect", "nobody"), ("x", "--connect", "remote.json")],
    "status": [("x",), (), ("--connect", ""), ("--nonsense",)],
    "restart": [(), ("x",), ("x", "--timeout", "-1"), ("x", "--timeout", "soon")],
    "drain": [(), ("x/0",), ("x/0", "--timeout", "-1"), ("x/0", "--undo", "--timeout", "1")],
    "trace": [(), ("x",), ("x", "--last"), ("--last",), ("x", "--connect", "../d"), ("x", "--connect", "remote.json")],
    "chat": [
        ("hi", "--timeout", "0"),
        ("hi", "--modalities", ","),
        ("hi", "--modalities", "text", "--output", "reply.wav"),
        ("hi", "--max-tokens", "many"),
        ("hi", "--connect", "nobody"),
        ("hi", "--connect", "nobody", "--config", "synthetic"),
        ("hi", "--config", "nowhere.toml"),
        ("hi", "--config", "synthetic", "--set", "router.max_queue=1"),
        ("hi", "--param", "nonsense"),
        ("", "--request-id", "x"),
    ],
    "check": [(), ("nowhere.toml",), ("synthetic", "--set", "x"), ("synthetic", "--set", "stage.talker.engine=x")],
    "launch": [
        (),
        ("--config", "nowhere.toml"),
        ("--config", "synthetic", "--set", "router.max_queue=1"),
        ("--config", "synthetic", "--set", "stage.talker.options.crash=1"),
        ("--config", "synthetic", "--name", "../d"),
    ],
    "replay": [(), ("nowhere.jsonl",), ("pyproject.toml",)],
    "install": [()],
    "lunch": [()],
}
"""What fails before anything is done, of each command, and of one that there is not."""


@pytest.mark.parametrize(("command", "arguments"), [(name, one) for name, all_ in EARLY.items() for one in all_])
def test_with_json_a_failure_is_one_document_of_one_shape_and_nothing_else_differs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, arguments: tuple[str, ...]
) -> None:
    code, out, err = run(capsys, monkeypatch, command, *arguments)
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("omnizmq")
    code_with_json, out, err_with_json = run(capsys, monkeypatch, command, *arguments, "--json")
    found = json.loads(out)
    assert code_with_json == code
    if command != "install":  # which is wrong in another way now
        assert err_with_json == err
    error = found["error"]
    assert set(error) == {"code", "message", "stage", "replica", "retriable"}
    assert error["message"] in err_with_json
    assert code == (2 if error["code"] in ("invalid_request", "invalid_config") else 1)
    if command != "chat":  # which may have more to say of its request
        assert list(found) == ["error"]


def test_every_command_is_among_those_that_fail_early() -> None:
    assert set(cli.COMMANDS) < set(EARLY)


def status_raises(monkeypatch: pytest.MonkeyPatch, raised: BaseException) -> None:
    from omnizmq.commands import status

    def fails(*_: object) -> None:
        raise raised

    monkeypatch.setattr(status, "_ask", fails)
    monkeypatch.setattr(cli, "_discard_stdout", lambda: None)


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.Abort(), 130, "interrupted"),
        (errors.RouterLostError("gone"), 1, "router_lost"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 1, "internal_error"),
        (BrokenPipeError(), 1, None),
        (OSError(errno.ENOSPC, "No space left on device"), 1, None),
    ],
)
def test_what_ends_a_command_is_in_the_document_unless_it_cannot_be_written(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    raised: BaseException,
    code: int,
    said: str | None,
) -> None:
    status_raises(monkeypatch, raised)
    got, out, _ = run(capsys, monkeypatch, "status", "--json")
    assert got == code
    assert (json.loads(out)["error"]["code"] if out else None) == said


@pytest.mark.parametrize(("arguments", "code"), [(("status", "--json"), 1), (("abort", "--json"), 2)])
def test_a_document_that_cannot_be_written_hides_neither_the_failure_nor_its_code(
    arguments: tuple[str, ...], code: int
) -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "omnizmq", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert "No space left" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_argument_that_looks_like_it_wants_no_document(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(capsys, monkeypatch, "abort", "--", "--json")[:2] == (1, "")


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
    status_raises(monkeypatch, raised)
    expected = "" if said is None else f"omnizmq status: {said}\n"
    got, _, err = run(capsys, monkeypatch, "status")
    assert (got, err.strip()) == (code, expected.strip())
