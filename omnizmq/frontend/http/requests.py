"""One request by its id: `/v1/requests/{id}/abort` and `/trace`. The id is the answer's `x-request-id`, or the caller's
own, which may have slashes."""

from __future__ import annotations

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
        summary="End a request; how many were ended (0: none was live)",
        responses=refusals(401, 404, 503),
    )
    async def abort(request_id: str, request: Request) -> Response:
        own = service.keys.own(service.owner(request), request_id)
        return answered({"id": request_id, "aborted": await service.client.abort(own)})

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
