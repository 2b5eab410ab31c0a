"""Pages of other origins, which browsers let ask and read what the bridge allows them (CORS)."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from omnizmq.frontend.http.problems import body
from omnizmq.frontend.http.sending import answered


class Origins(CORSMiddleware):
    """ASGI middleware. `origins`: whose pages may ask, in every way that there is; `*`: all."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        exposed = ["x-request-id", "x-should-retry", "retry-after"]
        super().__init__(app, origins, allow_methods=["*"], allow_headers=["*"], expose_headers=exposed)

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code != 400:
            return response
        why = bytes(response.body).decode()
        refused = answered(body(400, "invalid_request", f"a page may not ask this: {why}"), status=400)
        refused.headers.update({name: response.headers[name] for name in self.preflight_headers})
        return refused
