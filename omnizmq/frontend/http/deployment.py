"""What the deployment does: `/v1/deployment`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from omnizmq.frontend.http.sending import answered
from omnizmq.frontend.http.service import Service


def routes(service: Service) -> APIRouter:
    """For the deployment that the service is a client of."""
    router = APIRouter()

    @router.get("/v1/deployment", summary="Replicas, requests, rings and counters, as `omnizmq status --json` has them")
    async def deployment(request: Request) -> Response:
        owner = service.caller(request).owner
        status = await service.client.status()
        status["slowest"] = [one for one in status["slowest"] if service.keys.owns(owner, one["request_id"])]
        return answered(status | {"http": {"in_flight": service.in_flight}})

    return router
