"""One request by its id: `/v1/requests/{id}/abort` and `/trace`. The id is the answer's `x-request-id`, or the `id` of
a chat answer, or the caller's own, which may have slashes."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from omnizmq.frontend.http.answer import CHAT_ID
from omnizmq.frontend.http.described import refusals
from omnizmq.frontend.http.keys import Keys, unknown
from omnizmq.frontend.http.sending import answered
from omnizmq.frontend.http.service import Service
from omnizmq.frontend.http.tracing import trace as trace_of


def routes(service: Service) -> APIRouter:
    """For the deployment that the service is a client of."""
    router = APIRouter()

    @router.post(
        "/v1/requests/{request_id:path}/abort",
        summary="End a request, or all with this id of yours; how many were ended (0: none is live any more)",
        responses=refusals(401, 404, 503),
    )
    async def abort(request_id: str, request: Request) -> Response:
        keys, owner = service.keys, service.owner(request)
        id_ = _meant(keys, owner, request_id)
        ended = sum(await asyncio.gather(*map(service.client.abort, keys.live_ids(owner, id_))))
        if not ended and not keys.remembers(owner, id_):
            raise unknown(request_id)
        return answered({"id": request_id, "aborted": ended})

    @router.get(
        "/v1/requests/{request_id:path}/trace",
        summary="Where a request is or was, and why",
        responses=refusals(401, 404, 503),
    )
    async def trace(request_id: str, request: Request) -> Response:
        keys, owner = service.keys, service.owner(request)
        own = keys.own(owner, _meant(keys, owner, request_id))
        return answered(await trace_of(service.operator, own, lambda id_: keys.owns(owner, id_)))

    return router


def _meant(keys: Keys, owner: str, id_: str) -> str:
    """Also by the `id` of a chat answer, unless the caller has named a request so."""
    return id_ if keys.remembers(owner, id_) else id_.removeprefix(CHAT_ID)
