"""Which hosts a bridge without keys answers to."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("fastapi", reason="not installed: the extra `http`")

from support.asgi import Caller, reads

from omnizmq.frontend.http.hosts import LocalHosts, is_local

pytestmark = pytest.mark.http


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("LocalHost:8091", True),
        ("a.localhost", True),
        ("127.0.0.1", True),
        ("127.255.255.254:80", True),
        ("[::1]", True),
        ("[::1]:8091", True),
        ("", False),
        (":8091", False),
        ("[", False),
        ("[]", False),
        ("[::1", False),
        ("localhost:80@example.org", False),
        ("localhost:x", False),
        ("[127.0.0.1]example.org", False),
        ("[::1]:80:80", False),
        ("example.org/.localhost", False),
        ("example.org@localhost", False),
        ("::1", False),  # without brackets it is no address with a port
        ("localhost.", False),
        ("notlocalhost", False),
        ("localhost.example.org", False),
        ("127.0.0.1.example.org", False),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("[::2]", False),
        ("2130706433", False),
        ("127.1", False),
    ],
)
def test_what_can_only_be_this_machine_is_local(host: str, local: bool) -> None:
    assert is_local(host) == local


@pytest.mark.parametrize(
    ("host", "status"),
    [("box.example", 200), ("BOX.example:80", 200), ("box.example.org", 403), ("localhost", 200), (None, 200)],
)
def test_the_host_that_it_listens_at_may_be_named(host: str | None, status: int) -> None:
    named = {} if host is None else {"host": host}
    caller = Caller("/", b"{", b"}", **named)
    asyncio.run(LocalHosts(reads, names=["Box.example"])(caller.scope, caller.receive, caller.send))
    assert caller.status == status


def test_the_body_of_whom_it_refuses_is_thrown_away() -> None:
    """A connection that is closed on unread bytes is reset, and the answer may be lost with it."""
    caller = Caller("/", b"{", b"}", host="example.org")
    asyncio.run(LocalHosts(reads, names=[])(caller.scope, caller.receive, caller.send))
    assert (caller.status, caller.parts) == (403, [])
