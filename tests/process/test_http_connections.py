"""Connections that cost the bridge more than it has: it neither fails nor fills its log."""

from __future__ import annotations

import resource
import socket
from pathlib import Path

import httpx
import psutil
import pytest
from support.bridge import BODY, ECHO, web
from support.running import Running, eventually, launched

pytestmark = [pytest.mark.http, pytest.mark.usefixtures("no_leaks")]

STUCK = (
    "plugins.http.port=0",
    "stage.thinker.options.echo=false",
    "stage.thinker.options.chunks=2048",
    "stage.thinker.options.chunk_bytes=32768",
    "router.output_window=16",
    "router.heartbeat_interval_s=0.2",
    "router.slow_reader_grace_s=1",
)


def log_of(running: Running, home: Path) -> str:
    return (home / "state" / "omnizmq" / running.name / "logs" / "http.log").read_text()


def bridge_pid(running: Running) -> int:
    children = psutil.Process(running.pid).children()
    return next(child.pid for child in children if "omnizmq.plugin" in child.cmdline())


def test_more_callers_than_descriptors(home: Path) -> None:
    with launched("synthetic", *ECHO) as running:
        pid = bridge_pid(running)
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (256, hard))
        url = httpx.URL(running.ready["plugins"]["http"])
        callers = [socket.create_connection((url.host, url.port), timeout=20) for _ in range(600)]
        for caller in callers[-100:]:
            with caller:
                assert caller.recv(1) == b"", "it is closed: there are too many"
        for caller in callers:
            caller.close()
        with web(running) as http:
            assert http.post("/v1/chat/completions", json=BODY).status_code == 200
        assert "system resource" not in log_of(running, home)


def test_a_stop_with_an_answer_that_nobody_reads(home: Path) -> None:
    with launched("synthetic", *STUCK) as running, web(running) as http:
        with http.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as answer:
            assert eventually(lambda: running.status()["counters"]["failed"] == 1, 30)
            assert answer.status_code == 200
            assert running.stop() == 0
        log = log_of(running, home)
    assert "Traceback" not in log
    assert "ERROR" not in log


def test_what_callers_send_is_not_told_to_the_log(home: Path) -> None:
    bad = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    upgrade = (
        b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade, close\r\nupgrade: websocket\r\n\r\n"
    )
    with launched("synthetic", *ECHO) as running:
        url = httpx.URL(running.ready["plugins"]["http"])
        before = log_of(running, home)
        for first, second in ((bad, b"none\r\n"), (b"\0\r\n\r\n", b""), (upgrade, b"")):
            with socket.create_connection((url.host, url.port), timeout=20) as caller:
                caller.sendall(first)
                assert caller.recv(4096).startswith(b"HTTP/1.1 ")
                caller.sendall(second)
                while caller.recv(4096):
                    pass
        assert log_of(running, home) == before
