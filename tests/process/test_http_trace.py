"""What the bridge tells of requests and of the deployment: the documents of the commands, of the caller's own alone."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from support.bridge import BODY, ECHO, LONG, SLOW, error_of, key, web
from support.running import Running, document, eventually, kill, launched, omnizmq

from omnizmq import AsyncClient
from omnizmq.frontend.http import app
from omnizmq.frontend.http.service import Service
from omnizmq.frontend.http.settings import Settings
from omnizmq.runtime import state_dir
from omnizmq.trace.database import FILE_NAME

pytestmark = [pytest.mark.http, pytest.mark.usefixtures("no_leaks")]

CHAT = "/v1/chat/completions"
SPAN = f"00-{'1' * 32}-{'2' * 16}-01"


def trace(http: Any, id_: str) -> dict[str, Any]:
    answer = http.get(f"/v1/requests/{quote(id_, safe='')}/trace")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def by_command(deployment: Running, id_: str) -> dict[str, Any]:
    return document(omnizmq("trace", id_, "--json", "--connect", deployment.name))


def test_t1_an_ended_request_is_told_of_as_by_the_command_at_once() -> None:
    odd = "a/b?c=%41&..//trace"
    with launched("synthetic", *ECHO) as deployment, web(deployment) as http:
        for id_ in ("mine", odd):
            answer = http.post(CHAT, json=BODY, headers={"x-request-id": id_})
            found = trace(http, answer.headers["x-request-id"])
            assert (found["state"], found["external_id"]) == ("ended", id_)
            assert found["verdict"]["complete"]
            assert trace(http, id_) == found == by_command(deployment, id_)
        assert http.post(f"/v1/requests/{quote(odd, safe='')}/abort").json() == {"id": odd, "aborted": 0}
        for span, told in ((SPAN, SPAN), ("00-nothing", None), (f"01{SPAN[2:]}", None)):
            id_ = http.post(CHAT, json=BODY, headers={"traceparent": span}).headers["x-request-id"]
            (received,) = (event for event in trace(http, id_)["events"] if event["event"] == "received")
            assert (received.get("traceparent") or None) == told
        refused = http.post(CHAT, json={**BODY, "params": {"thinker": {"nothing": 1}}})
        assert refused.status_code == 400
        assert trace(http, refused.headers["x-request-id"])["terminal"]["error"]["code"] == "invalid_request"
        same = [http.post(CHAT, json=BODY, headers={"x-request-id": "twice"}) for _ in range(2)]
        newest = trace(http, "twice")
        assert (newest["request_id"], newest["other_matches"]) == (same[1].headers["x-request-id"], 1)
        unknown = f"no request with id 'unknown' is known in the trace of {deployment.name}"
        assert error_of(http.get("/v1/requests/unknown/trace")) == (404, "not_found", unknown)


def test_t1_a_live_request_is_told_of_with_its_routers_answer() -> None:
    with launched("synthetic", *SLOW) as deployment, web(deployment) as http:
        with http.stream("POST", CHAT, json={**LONG, "stream": True}) as answer:
            found = trace(http, answer.headers["x-request-id"])
            assert found["state"] == "live"
            assert found["live"]["stages"]["thinker"]["answer"]["state"] == "RUNNING"
            assert found["verdict"]["cause"] == "engine"
            told = http.get("/v1/deployment").json()
            assert [one["request_id"] for one in told["slowest"]] == [found["request_id"]]
            assert told["http"]["in_flight"] == 1
        assert eventually(deployment.idle)
        assert trace(http, found["request_id"])["terminal"]["finish_reason"] == "abort"
        assert http.get("/v1/deployment").json().keys() == {*deployment.status(), "http"}


def test_what_is_asked_about_a_deployment_does_not_wait_behind_outputs() -> None:
    """The connection that brings these is closed here: an answer that had to come over it would not come."""

    async def scenario(name: str) -> list[httpx.Response]:
        async with AsyncClient.connect(name, operator=True) as operator:
            async with AsyncClient.connect(name) as client:
                made = app.make(Service(client, operator, Settings()))
            inside = httpx.AsyncClient(transport=httpx.ASGITransport(made), base_url="http://localhost")
            async with inside as http:
                return [await http.get(path) for path in ("/v1/deployment", "/health/ready", "/metrics")]

    with launched("synthetic") as deployment:
        told, ready, metrics = asyncio.run(scenario(deployment.name))
        assert (told.status_code, told.json()["state"]) == (200, "running")
        assert ready.json() == {"status": "ready"}
        assert "omnizmq_router_up 1.0" in metrics.text


def test_t1_with_tracing_off_a_live_request_alone_is_known() -> None:
    with launched("synthetic", *SLOW, "router.trace=false") as deployment, web(deployment) as http:
        with http.stream("POST", CHAT, json={**LONG, "stream": True}) as answer:
            id_ = answer.headers["x-request-id"]
            found = trace(http, id_)
            assert (found["request_id"], found["state"], found["events"]) == (id_, "live", [])
        assert eventually(deployment.idle)
        status, code, message = error_of(http.get(f"/v1/requests/{id_}/trace"))
        assert (status, code) == (404, "not_found")
        trace_of = f"the trace of {deployment.name}"
        assert message == f"no request with id '{id_}' is known in {trace_of}: tracing is off (router.trace)"


def garbled(path: Path, begin: int) -> None:
    """From that byte on it is no database any more, nor is what has not been moved into it yet."""
    for file in (path, path.with_name(f"{path.name}-wal")):
        size = file.stat().st_size
        with file.open("r+b") as opened:
            opened.seek(begin)
            opened.write(b"\xff" * (size - begin))


def of_another_version(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 999")
    database.close()


def without_facts(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE facts")
    database.close()


@pytest.mark.parametrize(
    "damage",
    [of_another_version, without_facts, partial(garbled, begin=0), partial(garbled, begin=4096), Path.unlink],
    ids=["another version", "a table", "no database", "pages", "removed"],
)
def test_a_trace_that_is_damaged_is_no_failure_of_the_bridge(damage: Callable[[Path], None], home: Path) -> None:
    """Its callers are not told where it is; whoever runs the deployment is. The router may have begun another by then,
    which says what was lost."""
    with launched("synthetic", *ECHO) as deployment, web(deployment) as http:
        id_ = http.post(CHAT, json=BODY).headers["x-request-id"]
        trace(http, id_)
        database = state_dir(deployment.name) / FILE_NAME
        damage(database)
        status, code, message = error_of(http.get(f"/v1/requests/{id_}/trace"))
        assert (status, code) == (404, "not_found")
        why = message.removeprefix(f"no request with id '{id_}' is known in the trace of {deployment.name}")
        assert why == ": its trace cannot be read" or re.match(r"; \d+ rows could not be stored \(trace\.db", why)
        logged = (home / "state" / "omnizmq" / deployment.name / "logs" / "http.log").read_text()
        assert (why[0] == ":") == (str(database) in logged)
        assert http.post(CHAT, json=BODY).status_code == 200


def test_a_router_that_hangs_is_waited_for_once() -> None:
    with launched("synthetic", *ECHO) as deployment, web(deployment) as http:
        id_ = http.post(CHAT, json=BODY).headers["x-request-id"]
        before = trace(http, id_)
        kill(deployment.pid, signal.SIGSTOP)
        try:
            assert trace(http, id_) == before  # it has ended: nobody is asked
            unknown = error_of(http.get("/v1/requests/unknown/trace"))
            assert unknown == (503, "router_lost", "the router did not answer within 0.9 s")
        finally:
            kill(deployment.pid, signal.SIGCONT)


def test_who_bears_a_key_is_told_of_its_own_requests_alone() -> None:
    keys = f"plugins.http.api_keys=[{key('ann')}, {key('bob')}]"
    with launched("synthetic", *SLOW, keys) as deployment:
        with web(deployment) as nobody:
            for path in ("/v1/requests/x/trace", "/v1/deployment"):
                assert error_of(nobody.get(path))[:2] == (401, "invalid_api_key")
        ann, bob = (web(deployment, authorization=f"Bearer key of {name}") for name in ("ann", "bob"))
        hers = {"json": {**LONG, "stream": True}, "headers": {"x-request-id": "ours"}}
        with ann, bob, ann.stream("POST", CHAT, **hers) as answer:
            id_ = answer.headers["x-request-id"]
            assert trace(ann, "ours")["request_id"] == id_
            for name in (id_, "ours"):
                status, code, _ = error_of(bob.get(f"/v1/requests/{name}/trace"))
                assert (status, code) == (404, "not_found")
            assert [one["request_id"] for one in ann.get("/v1/deployment").json()["slowest"]] == [id_]
            theirs = bob.get("/v1/deployment")
            assert (theirs.json()["slowest"], theirs.json()["live_requests"]) == ([], 1)
            assert "ours" not in theirs.text
            failed = bob.post(CHAT, json={**BODY, "params": {"thinker": {"nothing": 1}}}, headers={"x-request-id": "f"})
            assert trace(bob, "f")["request_id"] == failed.headers["x-request-id"]
            assert json.loads(ann.get("/v1/requests/f/trace").text)["error"]["code"] == "not_found"
