"""What is refused before a body is held."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="not installed: the extra `http`")

from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from support.asgi import Caller, reads
from support.running import until

from omnizmq.frontend.http import limits
from omnizmq.frontend.http.keys import Keys
from omnizmq.frontend.http.settings import ApiKey

pytestmark = pytest.mark.http

ANN = Keys([ApiKey(name="ann", sha256=hashlib.sha256(b"secret").hexdigest())])


@pytest.mark.parametrize(
    ("path", "authorization", "status"),
    [
        ("/v1/chat/completions", "", 401),
        ("/v1/chat/completions", "Bearer other", 401),
        ("/v1/chat/completions", "Bearer secret", 200),
        ("/metrics", "", 401),
        ("/a/path/that/there/is/not/yet", "", 401),
        ("/health/live", "", 200),
    ],
)
def test_no_body_is_read_without_a_key(path: str, authorization: str, status: int) -> None:
    begun = []

    async def app(*asgi: Any) -> None:
        begun.append(True)
        await reads(*asgi)

    caller = Caller(path, b"{", b"}", authorization=authorization)
    asyncio.run(limits.KeysFirst(app, ANN)(caller.scope, caller.receive, caller.send))
    assert (caller.status, bool(begun)) == (status, status == 200)


@pytest.mark.parametrize("refused", ["no key", "claims too much", "is too much"])
def test_what_comes_of_a_refused_body_is_thrown_away(refused: str) -> None:
    """A connection that is closed on unread bytes is reset, and the answer may be lost with it."""
    claims = {"content-length": "30"} if refused == "claims too much" else {}
    caller = Caller("/v1/chat/completions", *[b"0123456789"] * 3, **claims)
    over: Any = limits.KeysFirst(reads, ANN) if refused == "no key" else ExceptionMiddleware(limits.BodyLimit(reads, 5))
    asyncio.run(over(caller.scope, caller.receive, caller.send))
    assert (caller.status, caller.parts) == (401 if refused == "no key" else 413, [])


def test_one_that_never_ends_is_not_thrown_away_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINGER_S", 0.05)
    caller = Caller("/v1/chat/completions")
    asyncio.run(limits.KeysFirst(reads, ANN)(caller.scope, caller.receive, caller.send))
    assert caller.status == 401


def test_who_asks_before_he_sends_is_not_told_to_go_on() -> None:
    async def never() -> Any:
        raise AssertionError("it was received")

    caller = Caller("/v1/chat/completions", b"{}", expect="100-continue")
    asyncio.run(limits.KeysFirst(reads, ANN)(caller.scope, never, caller.send))
    assert caller.status == 401


def test_bodies_are_bounded_together_until_their_requests_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODIES", 2)

    async def scenario() -> None:
        ends = asyncio.Event()
        read: list[bytes] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            read.append(await Request(scope, receive).body())
            await ends.wait()
            await PlainTextResponse("read")(scope, receive, send)

        limited = limits.BodyLimit(app, 4)
        held = [Caller("/v1/chat/completions", b"ab", b"cd") for _ in range(2)]
        tasks = [asyncio.create_task(limited(one.scope, one.receive, one.send)) for one in held]
        await until(lambda: len(read) == 2)
        late = Caller("/v1/chat/completions", b"a", b"b")
        with pytest.raises(HTTPException) as refused:
            await limited(late.scope, late.receive, late.send)
        assert (refused.value.status_code, late.parts) == (429, [])
        ends.set()
        await asyncio.gather(*tasks)
        more = Caller("/v1/chat/completions", b"ab", b"cd")
        await limited(more.scope, more.receive, more.send)
        assert more.status == 200

    asyncio.run(scenario())


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_S", 0.05)
    caller = Caller("/v1/chat/completions")
    with pytest.raises(HTTPException) as refused:
        asyncio.run(limits.BodyLimit(reads, 1 << 20)(caller.scope, caller.receive, caller.send))
    assert refused.value.status_code == 408


def test_a_caller_who_has_sent_all_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_S", 0.05)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await Request(scope, receive).body()
        with pytest.raises(TimeoutError):  # of its own: it was not told that the caller is gone
            await asyncio.wait_for(receive(), 0.3)
        await PlainTextResponse("read")(scope, receive, send)

    caller = Caller("/v1/chat/completions", b"{}")
    asyncio.run(limits.BodyLimit(app, 1 << 20)(caller.scope, caller.receive, caller.send))
    assert caller.status == 200
