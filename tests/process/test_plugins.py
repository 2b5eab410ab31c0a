"""Plugins beside a deployment: started with it, heard, started again, ended with it, whatever they do (F5, F6)."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.plugins import parrots
from support.running import Running, alive, document, eventually, launched, omnizmq

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture(autouse=True)
def installed(tmp_path: Path) -> Iterator[None]:
    with parrots(tmp_path):
        yield


@pytest.fixture
def perch(tmp_path: Path) -> str:
    return str(tmp_path / "perch")


def sets(perch: str, *more: str) -> tuple[str, ...]:
    return ("stage.thinker.options.echo=true", f'plugins.parrot.socket="{perch}"', *more)


def ask(perch: str, prompt: str) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(perch)
        connection.sendall(f"{prompt}\n".encode())
        return b"".join(iter(lambda: connection.recv(4096), b"")).decode()


def plugin_of(running: Running) -> psutil.Process:
    (found,) = (
        child for child in psutil.Process(running.pid).children() if "omnizmq.plugin" in " ".join(child.cmdline())
    )
    return found


def answers(perch: str) -> bool:
    try:
        return ask(perch, "one two") == "one two"
    except OSError:
        return False


class TestServing:
    def test_it_serves_once_the_deployment_is_ready_and_ends_with_it(self, perch: str) -> None:
        with launched("synthetic", *sets(perch)) as running:
            assert running.ready["plugins"] == {"parrot": perch}
            assert ask(perch, "one two three") == "one two three"
            plugin = plugin_of(running)
            assert running.stop() == 0
            assert not alive(plugin.pid)

    def test_f6_killed_it_is_started_again(self, perch: str) -> None:
        with launched("synthetic", *sets(perch, "router.restart_delay_s=0.05")) as running:
            first = plugin_of(running).pid
            assert ask(perch, "die") == ""
            assert eventually(lambda: answers(perch))
            assert plugin_of(running).pid != first
            assert eventually(running.idle)

    def test_f6_it_ends_with_a_killed_router(self, perch: str) -> None:
        with launched("synthetic", *sets(perch)) as running:
            plugin = plugin_of(running)
            os.kill(running.pid, signal.SIGKILL)
            assert eventually(lambda: not alive(plugin.pid))

    def test_f6_stopped_by_a_signal_it_ends_with_its_deployment(self, perch: str) -> None:
        with launched("synthetic", *sets(perch)) as running:
            plugin = plugin_of(running)
            plugin.suspend()
            assert running.stop() == 0
            assert not alive(plugin.pid)

    def test_one_that_does_not_stop_is_killed(self, perch: str) -> None:
        with launched("synthetic", *sets(perch, "plugins.parrot.deaf=60")) as running:
            before = time.monotonic()
            assert running.stop() == 0
            assert time.monotonic() - before < 30


class TestStart:
    def test_f5_without_it_there_is_no_deployment(self, home: Path) -> None:
        done = omnizmq("launch", "--config", "synthetic", "--set", "plugins.parrot.fail=start")
        assert done.returncode == 1
        assert "plugin parrot did not start: no perch is free" in done.stderr
        assert not os.listdir(home / "run" / "omnizmq")

    def test_f5_why_is_heard_to_its_end(self) -> None:
        done = omnizmq("launch", "--config", "synthetic", "--set", "plugins.parrot.fail=long")
        assert done.returncode == 1
        assert f"plugin parrot did not start: no perch is free: {'tweet ' * 50_000}I said\n" in done.stderr

    def test_f5_why_without_an_end_does_not_fill_the_launcher(self) -> None:
        done = omnizmq("launch", "--config", "synthetic", "--set", "plugins.parrot.fail=endless")
        assert done.returncode == 1
        assert "plugin parrot did not start: exit status 3; its last lines:" in done.stderr

    def test_f5_one_that_crashes_shows_its_last_lines(self) -> None:
        done = omnizmq("launch", "--config", "synthetic", "--set", "plugins.parrot.fail=crash")
        assert done.returncode == 1
        assert "plugin parrot did not start: exit status 1; its last lines:" in done.stderr
        assert "it fell off" in done.stderr

    def test_w2_a_wrong_option_is_said_in_one_line(self) -> None:
        done = omnizmq("launch", "--config", "synthetic", "--set", "plugins.parrot.fail=options")
        assert (done.returncode, done.stderr.splitlines()[-1]) == (
            2,
            "omnizmq launch: plugins.parrot.fail: nothing was expected",
        )

    @pytest.mark.parametrize("command", [("check", "synthetic"), ("launch", "--config", "synthetic")])
    @pytest.mark.parametrize(
        ("setting", "why"),
        [
            ("plugins.carrot.x=1", "plugins.carrot: not an installed plugin: did you mean 'parrot'?"),
            ("plugins.parrot.fail=check", 'plugins.parrot.fail: "check" was refused'),
        ],
    )
    def test_w2_what_is_wrong_is_found_before_anything_starts(
        self, command: tuple[str, ...], setting: str, why: str
    ) -> None:
        done = omnizmq(*command, "--set", setting)
        assert done.returncode == 2
        assert why in done.stderr
        assert "starting" not in done.stderr

    def test_check_names_it(self) -> None:
        found = document(omnizmq("check", "synthetic", "--set", "plugins.parrot.socket=/x", "--json"))
        assert found["plugins"] == [{"plugin": "parrot", "entry_point": "support.plugins:parrot", "missing": []}]
        text = omnizmq("check", "synthetic", "--set", "plugins.parrot.socket=/x").stdout
        assert "\nplugins\n  parrot  support.plugins:parrot\n" in text
