"""The HTTP bridge of a deployment without a model, for tests."""

from __future__ import annotations

import hashlib
from typing import Any

import httpx

from support.running import Running

BODY = {"model": "synthetic", "messages": [{"role": "user", "content": "one two three"}]}
ECHO = ("stage.thinker.options.echo=true", "plugins.http.port=0")
LONG = {**BODY, "messages": [{"role": "user", "content": "word " * 200}]}
SLOW = ("stage.thinker.options.interval_ms=200", "plugins.http.port=0")


def key(name: str) -> str:
    """Of `api_keys`: "key of NAME"."""
    return f'{{name = "{name}", sha256 = "{hashlib.sha256(f"key of {name}".encode()).hexdigest()}"}}'


def web(running: Running, **headers: str) -> Any:
    return httpx.Client(base_url=running.ready["plugins"]["http"], headers=headers, timeout=20)


def error_of(answer: Any) -> tuple[int, str | None, str]:
    """Its status; code and message of its body."""
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["message"]
