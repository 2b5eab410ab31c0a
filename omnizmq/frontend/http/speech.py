"""`POST /v1/audio/speech`: a text to sound, as a file's bytes or as events, either way as it comes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from omnizmq.frontend.http.answer import check_ended, notes_of, tokens_of
from omnizmq.frontend.http.asking import Asked
from omnizmq.frontend.http.bodies import BodyRoute
from omnizmq.frontend.http.coding import taken
from omnizmq.frontend.http.described import GENERATING, HEADERS, SOUNDS, refusals
from omnizmq.frontend.http.problems import BridgeError, RefusedError
from omnizmq.frontend.http.schema import SpeechBody
from omnizmq.frontend.http.sending import Begun, event, sent
from omnizmq.frontend.http.service import Caller, Service
from omnizmq.frontend.http.sound import MEDIA_TYPES, SPEECH, Base64Stream, Encoder
from omnizmq.frontend.output import RequestOutput


def routes(service: Service) -> APIRouter:
    """For the deployment that the service is a client of."""
    router = APIRouter(route_class=BodyRoute)

    @router.post(
        "/v1/audio/speech",
        summary="Have a text said, streamed as bytes or as events",
        response_class=Response,
        responses={200: {"content": SOUNDS | {"text/event-stream": {}}}, **refusals(*GENERATING)},
        openapi_extra=HEADERS,
    )
    async def speech(body: SpeechBody, request: Request) -> Response:
        caller = service.caller(request)
        format_ = SPEECH.format_of(body.response_format)
        encoder = Encoder(format_, streamed=True, field=SPEECH)
        speech = _Speech(service, service.asking.speech(body), caller, encoder)
        media_type = MEDIA_TYPES[format_] if body.stream_format == "audio" else "text/event-stream"
        return await sent(request, speech.begin(events=body.stream_format == "sse"), media_type)

    return router


class _Speech:
    """One request's."""

    def __init__(self, service: Service, asked: Asked, caller: Caller, encoder: Encoder) -> None:
        self._service = service
        self._outputs = service.outputs(asked, caller)
        self._encoder = encoder
        self._request_id = ""
        self._end: RequestOutput | None = None

    async def begin(self, *, events: bool) -> Begun:
        """The file's bytes, or server-sent events. It and they raise `OmnizmqError`, `BridgeError`; what is refused,
        and where nothing sounds, it does."""
        pieces = self._pieces()
        first = await anext(pieces, b"")
        if not first:
            silent = BridgeError(400, "invalid_request", self._silence(), "input")
            silent.request_id = self._request_id
            raise silent
        parts = _joined(first, pieces)
        return Begun(self._request_id, self._events(parts) if events else parts, pieces)

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        """Of the file; none where nothing sounds."""
        async with aclosing(self._outputs) as outputs:
            try:
                async for output in outputs:
                    if piece := await taken(self._encoder, output, partial(self._take, output)):
                        yield piece
            except RefusedError as error:
                raise RefusedError(f"this deployment cannot say it: {error.message}", error, error.param) from error

    async def _events(self, pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        base64 = Base64Stream()
        async for piece in pieces:
            if data := base64.add(piece):
                yield _delta(data)
        if data := base64.end():
            yield _delta(data)
        yield event(self._done())

    def _take(self, output: RequestOutput) -> bytes:
        """What can be sent by now. Raises `BridgeError` where the request was aborted."""
        self._request_id = output.request_id
        if output.sound is not None:
            return self._encoder.add(*output.sound)
        if output.finished:
            check_ended(output)
            self._end = output
            return b"" if self._encoder.empty else self._encoder.end()
        return b""

    def _silence(self) -> str:
        """Why there was no sound."""
        notes = self._end.notes.values() if self._end is not None else ()
        return "; ".join(notes) or "nothing of the input sounds"

    def _done(self) -> dict[str, Any]:
        assert self._end is not None
        tokens = tokens_of(self._end.usage, self._service.asking.text_stage)
        read = tokens.text or tokens.prompt
        usage = {"input_tokens": read, "output_tokens": tokens.audio, "total_tokens": read + tokens.audio}
        return {"type": "speech.audio.done", "usage": usage, **notes_of(self._end)}


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    yield first
    async for piece in rest:
        yield piece


def _delta(data: str) -> bytes:
    return event({"type": "speech.audio.delta", "audio": data})
