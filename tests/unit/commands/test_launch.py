"""What `omnizmq launch` prints, and how it hears a wish to stop."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal

import click
import pytest

from omnizmq.commands import launch
from omnizmq.config import shipped

READY: dict[str, object] = {
    "name": "x",
    "endpoint": "ipc:///x",
    "pid": 7,
    "stages": ["a", "b"],
    "plugins": {},
    "remote": None,
}


def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    launch._plain_lines("loading", {"replica": "a/0", "text": "starting"})
    launch._plain_lines("ready", READY)
    assert capsys.readouterr() == ("ready: x (a, b) at ipc:///x, pid 7\n", "a/0: starting\n")


def test_w2_the_ready_line_names_the_file_that_a_client_elsewhere_needs(capsys: pytest.CaptureFixture[str]) -> None:
    launch._plain_lines("ready", {**READY, "remote": {"endpoint": "tcp://h:5", "keys": "/state/x/remote.json"}})
    told = "; from other machines at tcp://h:5 with /state/x/remote.json"
    assert capsys.readouterr() == (f"ready: x (a, b) at ipc:///x, pid 7{told}\n", "")


def test_the_ready_line_says_where_plugins_listen(capsys: pytest.CaptureFixture[str]) -> None:
    launch._plain_lines("ready", {**READY, "plugins": {"http": "http://127.0.0.1:8091"}})
    assert capsys.readouterr().out == "ready: x (a, b) at ipc:///x, pid 7; http at http://127.0.0.1:8091\n"


def test_its_help_names_every_configuration_that_is_shipped() -> None:
    (option,) = [option for option in launch.launch.params if option.name == "config_path"]
    assert isinstance(option, click.Option)
    assert option.help == f"A TOML file or a shipped name: {', '.join(sorted(shipped()))}."


def test_lines_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    launch._json_lines("loading", {"replica": "a/0", "text": "starting"})
    launch._json_lines("ready", READY)
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == (READY, "a/0: starting\n")


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ENOSPC])
def test_nobody_has_to_listen_and_no_disk_to_have_room(number: int) -> None:
    tried = []

    def broken(event: str, fields: dict[str, object]) -> None:
        tried.append((event, fields))
        raise OSError(number, "broken")

    launch._forgiving(broken)("ready", READY)
    assert tried == [("ready", READY)]


class TestSignals:
    def test_a_wish_that_comes_with_the_end_of_the_start_is_not_lost(self) -> None:
        async def scenario() -> None:
            signals = launch._Signals(owned=False)
            start = asyncio.create_task(asyncio.sleep(0))
            await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.01)
            assert start.done()
            assert await signals.first(start)
            await asyncio.wait_for(signals.wait(), 1)

        asyncio.run(scenario())

    def test_each_wish_counts_once(self) -> None:
        async def scenario() -> None:
            signals = launch._Signals(owned=False)
            never = asyncio.create_task(asyncio.sleep(3600))
            os.kill(os.getpid(), signal.SIGINT)
            assert not await signals.first(never)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(signals.wait(), 1)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(signals.wait(), 0.05)
            never.cancel()

        asyncio.run(scenario())
