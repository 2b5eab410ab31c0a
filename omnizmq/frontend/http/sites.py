"""Which pages a bridge without keys takes orders from: its own, and those of `cors_origins`. A page of any site can
have its browser send a POST that it may not read the answer of, without asking first ("simple" requests, Fetch
Standard); the browser says whose page it is. Programs say nothing of the kind."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from omnizmq.frontend.http.limits import refuse
from omnizmq.frontend.http.problems import BridgeError
from omnizmq.tables import shown

_READING = ("GET", "HEAD", "OPTIONS")
_OWN = ("same-origin", "none")


class OwnPages:
    """ASGI middleware. `origins`: as in `cors_origins`."""

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _READING or self._takes(headers := Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        whose = f"of {shown(headers['origin'])} " if "origin" in headers else ""
        text = f"a page {whose}that is not the bridge's own asks this: plugins.http.cors_origins has those that may"
        await refuse(BridgeError(403, "forbidden_origin", text), scope, receive, send)

    def _takes(self, headers: Headers) -> bool:
        """`Sec-Fetch-Site` is the browser's own word, and no page can write it; older browsers have `Origin` alone."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if site in _OWN or "*" in self._origins or origin in self._origins:
            return True
        if site is not None:
            return False
        return origin is None or origin.partition("://")[2] == headers.get("host", "").lower()
