"""Whether it serves: by a stage that nobody serves, under a load that is refused, and of a router that hangs."""

from __future__ import annotations

import signal

import pytest
from support.bridge import BODY, ECHO, LONG, SLOW, error_of, web
from support.running import eventually, kill, launched, omnizmq

pytestmark = [pytest.mark.http, pytest.mark.usefixtures("no_leaks")]


def test_f4_a_stage_that_nobody_serves_is_no_readiness() -> None:
    once = ("router.restart_delay_s=60", "router.max_restart_delay_s=60")
    with launched("synthetic", *ECHO, *once) as deployment, web(deployment) as http:
        assert http.get("/health/ready").json() == {"status": "ready"}
        kill(deployment.worker_pid("talker/0"))
        assert eventually(lambda: deployment.replica("talker/0")["state"] == "dead")
        refused = http.get("/health/ready")
        assert error_of(refused) == (503, "unavailable", "no replica serves talker")
        assert (refused.headers["retry-after"], refused.headers["x-should-retry"]) == ("1", "true")
        assert http.get("/health/live").json() == {"status": "live"}


def test_a_stage_that_is_drained_is_no_readiness() -> None:
    with launched("synthetic", *ECHO) as deployment, web(deployment) as http:
        assert omnizmq("drain", "thinker/0", "--connect", deployment.name).returncode == 0
        assert error_of(http.get("/health/ready")) == (503, "unavailable", "no replica serves thinker")
        assert omnizmq("drain", "thinker/0", "--undo", "--connect", deployment.name).returncode == 0
        assert http.get("/health/ready").status_code == 200


def test_b1_overload_is_no_unreadiness() -> None:
    full = ("stage.thinker.max_inflight=1", "stage.thinker.max_registered=1", "router.max_queued=0")
    with launched("synthetic", *SLOW, *full) as deployment, web(deployment) as http:
        with http.stream("POST", "/v1/chat/completions", json={**LONG, "stream": True}):
            assert error_of(http.post("/v1/chat/completions", json=BODY))[:2] == (429, "overloaded")
            assert http.get("/health/ready").json() == {"status": "ready"}
        assert eventually(deployment.idle)


def test_f6_a_router_that_hangs_is_told_before_anybody_gives_up() -> None:
    with launched("synthetic", *ECHO) as deployment, web(deployment) as http:
        kill(deployment.pid, signal.SIGSTOP)
        try:
            for path in ("/health/ready", "/v1/deployment"):
                told = http.get(path)
                assert error_of(told) == (503, "router_lost", "the router did not answer within 2 s")
                assert told.json()["error"]["type"] == "server_error"
            assert http.get("/health/live").status_code == 200
        finally:
            kill(deployment.pid, signal.SIGCONT)
        assert eventually(lambda: http.get("/health/ready").status_code == 200)
