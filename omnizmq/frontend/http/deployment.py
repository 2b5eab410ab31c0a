"""What the deployment does: `/v1/deployment` for people, `/metrics` for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST as CONTENT_TYPE
from starlette.requests import Request
from starlette.responses import Response

from omnizmq.errors import RouterLostError
from omnizmq.frontend.http.described import refusals
from omnizmq.frontend.http.sending import answered
from omnizmq.frontend.http.service import Service


def routes(service: Service) -> APIRouter:
    """For the deployment that the service is a client of."""
    router = APIRouter()

    @router.get(
        "/v1/deployment",
        summary="Replicas, requests, rings and counters, as `omnizmq status --json` has them",
        responses=refusals(401, 503),
    )
    async def deployment(request: Request) -> Response:
        owner = service.owner(request)
        status = await service.status()
        status["slowest"] = [one for one in status["slowest"] if service.keys.owns(owner, one["request_id"])]
        bridge = {"in_flight": service.in_flight, "latency": service.metrics.latencies.document()}
        return answered(status | {"http": bridge})

    @router.get(
        "/metrics",
        summary="Counters and times, in Prometheus' text format",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **refusals(401)},
    )
    async def metrics() -> Response:
        try:
            status = await service.status()
        except RouterLostError:
            status = None
        return Response(service.metrics.exposition(status, service.in_flight), headers={"content-type": CONTENT_TYPE})

    return router
