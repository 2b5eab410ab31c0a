"""One request by its id: `/v1/requests/{id}/abort`. The id is the answer's `x-request-id`, or the caller's own."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from omnizmq.frontend.http.sending import answered
from omnizmq.frontend.http.service import Service


def routes(service: Service) -> APIRouter:
    """For the deployment that the service is a client of."""
    router = APIRouter()

    @router.post("/v1/requests/{request_id}/abort", summary="End a request; how many were ended (0: none was live)")
    async def abort(request_id: str, request: Request) -> Response:
        own = service.keys.own(service.caller(request).owner, request_id)
        return answered({"id": request_id, "aborted": await service.client.abort(own)})

    return router
