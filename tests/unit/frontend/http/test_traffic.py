"""Answers are counted by their route and status, also those of failures that nobody foresaw."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

pytestmark = pytest.mark.http


def test_each_answer_is_counted_once_by_its_route() -> None:
    import httpx
    from fastapi import FastAPI
    from starlette.exceptions import HTTPException

    from omnizmq.frontend.http.traffic import Counted, Guarded

    counts: Counter[tuple[str, int]] = Counter()
    app = FastAPI()

    @app.get("/things/{name:path}")
    async def thing(name: str) -> str:
        if name == "broken":
            raise RuntimeError(name)
        if name == "gone":
            raise HTTPException(404)
        return name

    app.add_middleware(Guarded)
    app.add_middleware(Counted, count=lambda path, status: counts.update([(path, status)]))

    async def ask() -> None:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
            for path in ("/things/one", "/things/a/b", "/things/gone", "/things/broken", "/nothing", "/nothing/else"):
                await http.get(path)
            await http.post("/things/one")

    asyncio.run(ask())
    route = "/things/{name}"
    expected = {(route, 200): 2, (route, 404): 1, (route, 500): 1, ("other", 404): 2, (route, 405): 1}
    assert counts == expected
