"""A body as JSON: what has more values than anybody means is refused before it is read as such, which takes seconds of
the event loop and fifty times its bytes for what is nothing but brackets."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from omnizmq.frontend.http.schema import MOST_VALUES, too_many_values

MOST_DIGITS = 500
"""Of a whole number; those that have a meaning here have 19."""

_MARKS = 2 * MOST_VALUES + 1
"""A value has a comma before it, or is the first of its list or object; it may open one itself."""


class BodyRoute(APIRoute):
    """A route whose body is read so."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def read(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

        return read


class _Request(Request):
    async def json(self) -> Any:
        """Raises `BridgeError`, and what `json.loads` does."""
        return loaded(await self.body())


def loaded(body: bytes) -> Any:
    """Raises `BridgeError` for far more than `MOST_VALUES`, and never for as many; UnicodeDecodeError, ValueError,
    RecursionError for what is no JSON in UTF-8."""
    if _count(body, b",[{") > _MARKS and _has_more(body):
        raise too_many_values()
    return json.loads(body.decode("utf-8-sig"), parse_int=_integer)


def _integer(digits: str) -> int:
    """Raises ValueError for one that is long: the time that it takes grows with the square of its length."""
    if len(digits) > MOST_DIGITS:
        raise ValueError("a number has too many digits")
    return int(digits)


def _has_more(body: bytes) -> bool:
    """Without what stands in strings: these have commas, too."""
    bare = body.replace(rb"\\", b"").replace(rb"\"", b"")
    if _count(bare, b'"') > 4 * MOST_VALUES:  # two for each name, and two for each value that is a string
        return True
    return _count(b"".join(bare.split(b'"')[::2]), b",[{") > _MARKS


def _count(text: bytes, characters: bytes) -> int:
    """How often they stand there, together; as fast for many as for few."""
    return len(text) - len(text.translate(None, characters))
