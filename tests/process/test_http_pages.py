"""The pages of the bridge as files: types, caching, and nothing that a strict Content-Security-Policy would stop.

What they do in a browser, `make test-web` shows.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from http.client import HTTPResponse
from importlib.resources import files
from typing import Any

import httpx
import pytest
from support.running import launched

pytestmark = pytest.mark.http

PAGES = ("/", "/deployment", "/docs")
FILES = {file.name: file.read_text() for file in (files("omnizmq.frontend.http") / "pages").iterdir()}
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@pytest.fixture(scope="module")
def http() -> Iterator[Any]:
    with (
        launched("synthetic", "plugins.http.port=0") as running,
        httpx.Client(base_url=running.ready["plugins"]["http"], timeout=20) as client,
    ):
        yield client


@pytest.mark.parametrize("path", [*PAGES, *(f"/pages/{name}" for name in FILES)])
def test_a_file_is_served_with_its_type_and_kept_until_it_changes(http: Any, path: str) -> None:
    answer = http.get(path)
    assert answer.status_code == 200
    expected = TYPES[path.rpartition(".")[2]] if "." in path else "text/html"
    assert answer.headers["content-type"].partition(";")[0] == expected
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-cache"
    etag = answer.headers["etag"]
    again = http.get(path, headers={"if-none-match": etag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert http.get(path, headers={"if-none-match": '"of an older version"'}).content == answer.content
    head = http.head(path)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(answer.content)))


@pytest.mark.parametrize("path", PAGES)
def test_all_that_a_page_loads_is_there(http: Any, path: str) -> None:
    wanted = set(re.findall(r'(?:src|href)="([^"]+)"', http.get(path).text))
    assert any(one.endswith(".js") for one in wanted)
    for one in wanted:
        assert http.get(one).status_code == 200, one


def test_no_other_file_can_be_had(http: Any) -> None:
    """Paths as they are written here: an HTTP client would tidy them before it asks."""
    for path in ("/pages/", "/pages/nothing.js", "/pages/../app.py", "/pages/%2e%2e/app.py", "/pages.py"):
        with socket.create_connection((http.base_url.host, http.base_url.port), timeout=20) as asking:
            asking.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
            answer = HTTPResponse(asking)
            answer.begin()
            assert (answer.status, json.loads(answer.read())["error"]["code"]) == (404, "not_found"), path


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_inline_and_nothing_comes_from_elsewhere(name: str) -> None:
    text = FILES[name].replace("http://www.w3.org/2000/svg", "")
    assert "//" not in re.sub(r"^\s*//.*|\s// .*", "", text, flags=re.MULTILINE)
    assert not re.search(r"<style|\sstyle=|<script(?![^>]*\ssrc=)|\son[a-z]+=\"|javascript:|innerHTML|eval\(", text)
