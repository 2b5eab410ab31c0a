"""`omnizmq chat` on a terminal: turns, Ctrl-D, Ctrl-C at work and at the prompt, what the turns before were."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.running import OMNIZMQ, Running, eventually, launched

CTRL_C, CTRL_D = b"\x03", b"\x04"


SETS = ("stage.thinker.options.silent_at=3", "router.max_prompt_bytes=200")
"""The Thinker never says a third word."""

pytestmark = pytest.mark.usefixtures("deployment")


@pytest.fixture
def home(module_home: Path) -> Path:
    return module_home


class Terminal:
    """A chat's terminal: what it shows, and what is typed."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self.shown = b""
        self._descriptor = descriptor

    def type(self, keys: bytes) -> None:
        os.write(self._descriptor, keys)

    def shows(self, text: bytes, timeout_s: float = 15) -> bytes:
        """Wait for the text; what had been shown up to it, which is then forgotten."""
        deadline = time.monotonic() + timeout_s
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            self._read(0.1)
        before, _, self.shown = self.shown.partition(text)
        return before

    def ends(self, timeout_s: float = 15) -> int:
        """The exit code; what was shown last is in `shown`."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown
            self._read(0.05)
        self._read(0)
        return self.process.returncode

    def _read(self, timeout_s: float) -> None:
        if select.select([self._descriptor], [], [], timeout_s)[0]:
            try:
                self.shown += os.read(self._descriptor, 65536)
            except OSError:  # the other side has closed
                time.sleep(timeout_s)


@contextmanager
def conversation(*options: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*OMNIZMQ, "chat", *options],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # it becomes the controlling terminal
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)


def test_two_turns_and_ctrl_d() -> None:
    with conversation() as terminal:
        terminal.shows(b"Type a message; Ctrl-D ends.\r\nyou> ")
        terminal.type(b"hello\n")
        terminal.shows(b"hello\r\nhello\r\nyou> ")
        terminal.type(b"  \n")
        terminal.shows(b"  \r\nyou> ")
        terminal.type(b"good bye\n")
        terminal.shows(b"good bye\r\ngood bye\r\nyou> ")
        terminal.type(CTRL_D)
        assert terminal.ends() == 0
        assert terminal.shown == b"\r\n"


def test_sound_of_each_turn_has_a_file_of_its_own(tmp_path: Path) -> None:
    with conversation("--output", str(tmp_path / "said.wav")) as terminal:
        for number in range(3):
            terminal.shows(b"you> ")
            terminal.type(b"word\n")
            name = "said.wav" if number == 0 else f"said-{number + 1}.wav"
            terminal.shows(f"wrote {tmp_path}/{name} (0.1 s, 24000 Hz)\r\n".encode())
        terminal.shows(b"you> ")
        terminal.type(CTRL_D)
        assert terminal.ends() == 0
    assert sorted(os.listdir(tmp_path)) == ["said-2.wav", "said-3.wav", "said.wav"]


def test_a7_ctrl_c_during_an_answer_ends_that_turn_alone(deployment: Running) -> None:
    aborted = deployment.status()["counters"]["aborted"]
    with conversation() as terminal:
        terminal.shows(b"you> ")
        terminal.type(b"one two three\n")
        terminal.shows(b"\r\none two")
        terminal.type(CTRL_C)
        terminal.shows(b"omnizmq chat: interrupted\r\nyou> ")
        assert deployment.status()["counters"]["aborted"] == aborted + 1
        terminal.type(b"on\n")
        terminal.shows(b"on\r\non\r\nyou> ")
        terminal.type(CTRL_C)
        assert terminal.ends() == 130
        assert terminal.shown == b"^C\r\n"


def test_the_turns_before_are_told_and_a_failed_one_is_forgotten() -> None:
    """The deployment takes 200 bytes: that a turn does not fit shows what came before it."""
    with conversation() as terminal:
        for _ in range(2):  # asked and answered: 2 x 2 x 40 bytes
            terminal.shows(b"you> ")
            terminal.type(b"x" * 40 + b"\n")
            terminal.shows(b"\r\n" + b"x" * 40 + b"\r\n")
        terminal.shows(b"you> ")
        terminal.type(b"y" * 41 + b"\n")
        refused = b"the prompt has 201 bytes; this deployment takes at most 200 (router.max_prompt_bytes)"
        terminal.shows(b"omnizmq chat: " + refused + b"\r\nyou> ")
        terminal.type(b"z" * 40 + b"\n")
        terminal.shows(b"\r\n" + b"z" * 40 + b"\r\nyou> ")
        terminal.type(CTRL_D)
        assert terminal.ends() == 0


def test_sigterm_ends_the_conversation(deployment: Running) -> None:
    with conversation() as terminal:
        terminal.shows(b"you> ")
        terminal.type(b"one two three\n")
        terminal.shows(b"\r\none two")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.ends() == 130
    assert eventually(deployment.idle)


def test_an_own_deployment_ends_with_the_conversation(home: Path) -> None:
    with conversation("--config", "synthetic") as terminal:
        terminal.shows(b"you> ")
        terminal.type(b"hi\n")
        terminal.shows(b"hi\r\nhi\r\nyou> ")
        terminal.type(CTRL_D)
        assert terminal.ends() == 0
    assert os.listdir(home / "run" / "omnizmq") == ["synthetic"]


def test_a_line_that_is_no_text_is_told() -> None:
    with conversation() as terminal:
        terminal.shows(b"you> ")
        terminal.type(b"caf\xe9\n")
        said = terminal.shows(b"you> ")
        assert said.count(b"omnizmq chat: ") == 1
        assert b"UTF-8" in said
        assert b"Traceback" not in said
        terminal.type(CTRL_D)
        assert terminal.ends() == 0


def test_a_deployment_that_dies_ends_the_conversation() -> None:
    with launched("synthetic", name="doomed") as doomed, conversation("--connect", "doomed") as terminal:
        terminal.shows(b"you> ")
        os.kill(doomed.pid, signal.SIGKILL)
        doomed.process.wait()
        terminal.type(b"hi\n")
        terminal.shows(b"omnizmq chat: the router is gone: its process ended\r\n")
        assert terminal.ends() == 1


def test_json_needs_a_prompt() -> None:
    with conversation("--json") as terminal:
        assert terminal.ends() == 2
        document, said = terminal.shown.splitlines()
        assert json.loads(document)["error"]["message"] == "--json needs a PROMPT"
        assert said == b"omnizmq chat: --json needs a PROMPT"
