"""What is served, and whether it is: `/v1/models`, `/health/live`, `/health/ready`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from omnizmq.frontend.http.described import refusals
from omnizmq.frontend.http.problems import BridgeError
from omnizmq.frontend.http.sending import answered
from omnizmq.frontend.http.service import Service, now


def routes(service: Service) -> APIRouter:
    """For the deployment that the service is a client of."""
    router = APIRouter()
    started = now()

    def card() -> dict[str, Any]:
        return {
            "id": service.model,
            "object": "model",
            "created": started,
            "owned_by": "omnizmq",
            "modalities": service.asking.modalities,
            "voices": service.asking.voices,
            "stages": list(service.client.stages),
        }

    @router.get("/v1/models", summary="The model that this deployment serves", responses=refusals(401))
    async def models() -> Response:
        return answered({"object": "list", "data": [card()]})

    @router.get("/v1/models/{model:path}", summary="One model", responses=refusals(401, 404))
    async def model(model: str) -> Response:
        service.asking.check_model(model)
        return answered(card())

    @router.get("/health/live", summary="Whether this process answers", responses=refusals())
    async def live() -> Response:
        return answered({"status": "live"})

    @router.get(
        "/health/ready",
        summary="Whether every stage has a replica that serves; overload is no unreadiness",
        responses=refusals(503),
    )
    async def ready() -> Response:
        status = await service.status()
        without = [stage for stage, state in status["stages"].items() if not _serves(state)]
        if not status["ready"]:
            why = f"no replica serves {', '.join(without)}" if without else f"the deployment is {status['state']}"
            raise BridgeError(503, "unavailable", why)
        return answered({"status": "ready"})

    return router


def _serves(stage: dict[str, Any]) -> bool:
    return any(replica["state"] == "ready" for replica in stage["replicas"])
