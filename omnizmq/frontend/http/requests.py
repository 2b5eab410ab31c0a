"""One request by its id: `/v1/requests/{id}/abort` and `/trace`. The id is the answer's `x-request-id`, or the caller's
own, which may have slashes."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from omnizmq.frontend.http.described import refusals
from omnizmq.frontend.http.sending import answered
from omnizmq.frontend.http.service import Service
from omnizmq.frontend.http.tracing import trace as trace_of


def routes(service: Service) -> APIRouter:
    """For the deployment that the service is a client of."""
    router = APIRouter()

    @router.post(
        "/v1/requests/{request_id:path}/abort",
        summary="End a request, or all with this id of yours; how many were ended (0: none was live)",
        responses=refusals(401, 404, 503),
    )
    async def abort(request_id: str, request: Request) -> Response:
        ids = service.keys.live_ids(service.owner(request), request_id)
        ended = await asyncio.gather(*map(service.client.abort, ids))
        return answered({"id": request_id, "aborted": sum(ended)})

    @router.get(
        "/v1/requests/{request_id:path}/trace",
        summary="Where a request is or was, and why",
        responses=refusals(401, 404, 503),
    )
    async def trace(request_id: str, request: Request) -> Response:
        keys, owner = service.keys, service.owner(request)
        own = keys.own(owner, request_id)
        return answered(await trace_of(service.operator, own, lambda id_: keys.owns(owner, id_)))

    return router
