"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from omnizmq.frontend.http import coding
from omnizmq.frontend.http.answer import CHAT_ID, Head, Streamed, Whole
from omnizmq.frontend.http.asking import Asked
from omnizmq.frontend.http.bodies import BodyRoute
from omnizmq.frontend.http.coding import taken
from omnizmq.frontend.http.described import GENERATING, HEADERS, refusals
from omnizmq.frontend.http.gone import while_connected
from omnizmq.frontend.http.schema import ChatBody
from omnizmq.frontend.http.sending import DONE, Begun, answered, event, joined_events, sent
from omnizmq.frontend.http.service import Caller, Service, now
from omnizmq.frontend.http.sound import Encoder
from omnizmq.frontend.output import RequestOutput


def routes(service: Service) -> APIRouter:
    """For the deployment that the service is a client of."""
    router = APIRouter(route_class=BodyRoute)

    @router.post(
        "/v1/chat/completions",
        summary="Ask, and get text and sound, streamed or whole",
        responses={200: {"content": {"text/event-stream": {}}}, **refusals(*GENERATING)},
        openapi_extra=HEADERS,
    )
    async def chat(body: ChatBody, request: Request) -> Response:
        caller = service.caller(request)
        asked = service.asking.chat(body, lambda id_: service.transcripts.of(caller.owner, id_, now()))
        encoder = Encoder(body.audio.format, streamed=body.stream) if body.audio is not None else None
        answer = _Answer(service, asked, caller, encoder, body.metadata)
        if body.stream:
            include_usage = body.stream_options is not None and body.stream_options.include_usage
            return await sent(request, answer.begin(include_usage), "text/event-stream")
        return await while_connected(request.receive, answer.whole())

    return router


class _Answer:
    """One request's. `metadata` is the caller's own, and comes back with a whole answer."""

    def __init__(
        self,
        service: Service,
        asked: Asked,
        caller: Caller,
        encoder: Encoder | None,
        metadata: dict[str, str] | None,
    ) -> None:
        self._service = service
        self._outputs = service.outputs(asked, caller)
        self._caller = caller
        self._encoder = encoder
        self._metadata = metadata

    async def whole(self) -> Response:
        """Raises `OmnizmqError`, `BridgeError`."""
        async with aclosing(self._outputs) as outputs:
            first = await anext(outputs)
            head = self._head(first)
            answer = Whole(head, self._encoder)
            await taken(self._encoder, first, partial(answer.take, first))
            async for output in outputs:
                await taken(self._encoder, output, partial(answer.take, output))
        self._keep(head, str(answer.transcript))
        return await coding.whole(self._encoder, partial(self._answered, answer, first.request_id))

    def _answered(self, answer: Whole, request_id: str) -> Response:
        document: dict[str, Any] = answer.document()
        if self._metadata is not None:
            document["metadata"] = self._metadata
        return answered(document, headers={"x-request-id": request_id})

    async def begin(self, include_usage: bool) -> Begun:
        """Server-sent events. It and they raise `OmnizmqError`, `BridgeError`."""
        first = await anext(self._outputs)
        return Begun(first.request_id, self._events(first, include_usage), self._outputs)

    async def _events(self, first: RequestOutput, include_usage: bool) -> AsyncGenerator[bytes, None]:
        head = self._head(first)
        answer = Streamed(head, self._encoder, include_usage=include_usage)

        def events(output: RequestOutput) -> bytes:
            return joined_events(answer.take(output))

        yield event(answer.begin()) + await taken(self._encoder, first, partial(events, first))
        async for output in self._outputs:
            if piece := await taken(self._encoder, output, partial(events, output)):
                yield piece
        self._keep(head, str(answer.transcript))
        yield DONE

    def _head(self, first: RequestOutput) -> Head:
        return Head(f"{CHAT_ID}{first.request_id}", self._service.model, now(), self._service.asking.text_stage)

    def _keep(self, head: Head, transcript: str) -> None:
        if self._encoder is not None:
            self._service.transcripts.keep(self._caller.owner, head.audio_id, head.expires_at, transcript)
