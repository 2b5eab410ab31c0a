"""The HTTP bridge of a deployment, for tests: of one without a model unless said otherwise."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai

from support.running import Running

BODY = {"model": "synthetic", "messages": [{"role": "user", "content": "one two three"}]}
ECHO = ("stage.thinker.options.echo=true", "plugins.http.port=0")
ENDLESS = "word " * 10_000
"""With `SLOW`, half an hour: what it is asked in is under way until somebody ends it, however late that is."""

LONG = {**BODY, "messages": [{"role": "user", "content": ENDLESS}]}
SLOW = ("stage.thinker.options.interval_ms=200", "plugins.http.port=0")


def key(name: str) -> str:
    """Of `api_keys`: "key of NAME"."""
    return f'{{name = "{name}", sha256 = "{hashlib.sha256(f"key of {name}".encode()).hexdigest()}"}}'


def web(running: Running, **headers: str) -> Any:
    return httpx.Client(base_url=running.ready["plugins"]["http"], headers=headers, timeout=20)


@contextmanager
def official(running: Running) -> Iterator[Any]:
    """OpenAI's own client, which asks once."""
    url = f"{running.ready['plugins']['http']}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def error_of(answer: Any) -> tuple[int, str | None, str]:
    """Its status; code and message of its body."""
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["message"]
