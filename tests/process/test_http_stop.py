"""A stop of the deployment with requests that are not done: each is answered or cut off, and none is a failure."""

from __future__ import annotations

import json
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.bridge import LONG, SLOW, error_of, web
from support.running import Running, eventually, launched

pytestmark = [pytest.mark.http, pytest.mark.usefixtures("no_leaks")]

STOPPED = (503, "unavailable", "the deployment has stopped")


def half_asked(running: Running, length: int) -> socket.socket:
    """A request whose body is being waited for, and has come to its first byte."""
    url = httpx.URL(running.ready["plugins"]["http"])
    caller = socket.create_connection((url.host, url.port), timeout=20)
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    caller.sendall(f"{head}content-length: {length}\r\nexpect: 100-continue\r\n\r\n".encode())
    assert caller.recv(4096).startswith(b"HTTP/1.1 100 ")
    caller.sendall(b"{")
    return caller


def answer_of(caller: socket.socket) -> tuple[int, Any]:
    """Status and error of what comes until the connection's end."""
    with caller:
        head, _, body = b"".join(iter(lambda: caller.recv(4096), b"")).partition(b"\r\n\r\n")
    error = json.loads(body)["error"]
    return int(head.split()[1]), error["code"], error["message"]


def log_of(running: Running, home: Path) -> str:
    return (home / "state" / "omnizmq" / running.name / "logs" / "http.log").read_text()


def test_bodies_that_are_still_coming_are_told(home: Path) -> None:
    with launched("synthetic", *SLOW) as running:
        callers = [half_asked(running, 100) for _ in range(3)]
        assert running.stop() == 0
        assert [answer_of(caller) for caller in callers] == [STOPPED] * 3
    assert "Traceback" not in log_of(running, home)


def test_answers_that_are_under_way_at_a_second_signal_are_told_or_cut_off(home: Path) -> None:
    with launched("synthetic", *SLOW) as running, web(running) as http, ThreadPoolExecutor(1) as pool:
        whole = pool.submit(http.post, "/v1/chat/completions", json=LONG)
        with http.stream("POST", "/v1/chat/completions", json={**LONG, "stream": True}) as answer:
            assert eventually(lambda: running.status()["live_requests"] == 2)
            running.process.send_signal(signal.SIGTERM)
            assert eventually(lambda: running.status()["state"] == "draining")
            assert running.stop() == 0
            with pytest.raises(httpx.RemoteProtocolError):
                list(answer.iter_raw())
        assert error_of(whole.result(20)) == STOPPED
    assert "Traceback" not in log_of(running, home)
