"""What the routes share: the deployment's client, who may ask, and how many at once."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request

from omnizmq.errors import InvalidRequestError, RouterLostError
from omnizmq.frontend.client import AsyncClient
from omnizmq.frontend.http.asking import Asked, Asking
from omnizmq.frontend.http.keys import Keys
from omnizmq.frontend.http.metrics import Metrics
from omnizmq.frontend.http.problems import BridgeError, RefusedError, of_stage
from omnizmq.frontend.http.settings import Settings
from omnizmq.frontend.http.transcripts import Transcripts
from omnizmq.frontend.output import RequestOutput
from omnizmq.trace.context import parse

log = logging.getLogger(__name__)

STATUS_S = 2.0
"""How long the router has to say how the deployment is: less than those wait who ask for it, so that they are told. The
pages give up after 10 s, as Prometheus does unless told otherwise."""


@dataclass(frozen=True)
class Caller:
    """What a request's headers say: the key's owner, its own id, its deadline in seconds, its span."""

    owner: str
    external_id: str | None
    deadline_s: float | None
    traceparent: str | None


class Service:
    """For one deployment. `client` brings requests; `operator` asks about the deployment, over a connection of its own:
    an answer would have to wait behind all outputs that are on their way already, 1024 of each request."""

    def __init__(self, client: AsyncClient, operator: AsyncClient, settings: Settings) -> None:
        self.client = client
        self.operator = operator
        self.settings = settings
        self.model = settings.model or client.name
        self.asking = Asking(settings, client.stages, self.model)
        self.keys = Keys(settings.api_keys)
        self.transcripts = Transcripts()
        self.metrics = Metrics(self.model)
        self._places: set[object] = set()
        self._wrong_settings: set[str] = set()  # which the log has been told of

    @property
    def in_flight(self) -> int:
        """Requests in work: of one that has ended, the answer may still be on its way."""
        return len(self._places)

    def owner(self, request: Request) -> str:
        """Whose key it bears, as `KeysFirst` has found."""
        owner: str = request.state.owner
        return owner

    def caller(self, request: Request) -> Caller:
        """Of a request for the deployment. Raises `InvalidRequestError`."""
        headers = request.headers
        return Caller(
            self.owner(request),
            headers.get("x-request-id"),
            _deadline(headers.get("x-request-timeout")),
            _span(headers.get("traceparent")),
        )

    async def status(self) -> dict[str, Any]:
        """The router's, as `AsyncClient.status` has it. Raises `RouterLostError`."""
        try:
            async with asyncio.timeout(STATUS_S):
                return await self.operator.status()
        except TimeoutError as error:
            raise RouterLostError(f"the router did not answer within {STATUS_S:g} s") from error

    @contextmanager
    def _place(self) -> Iterator[Callable[[], None]]:
        """One of `max_concurrent`, and what gives it back before. Raises `BridgeError`."""
        if self.in_flight >= self.settings.max_concurrent:
            raise BridgeError(
                429, "overloaded", f"{self.in_flight} requests are in work here, as many as are let in at once"
            )
        place = object()
        self._places.add(place)
        give_back = partial(self._places.discard, place)
        try:
            yield give_back
        finally:
            give_back()

    async def outputs(self, asked: Asked, caller: Caller) -> AsyncGenerator[RequestOutput, None]:
        """As `AsyncClient.generate` gives them; the request is the caller's from the moment it goes out. It has one of
        `max_concurrent` places until it has ended, whether or not its caller has read that by then. Raises
        `OmnizmqError`, `BridgeError`."""
        living = ExitStack()
        with self._place() as give_back, self._naming(asked), self.metrics.request() as measure, living:
            generated = self.client.generate(
                asked.prompt,
                modalities=asked.modalities,
                params=asked.params,
                request_id=caller.external_id,
                deadline_s=caller.deadline_s,
                traceparent=caller.traceparent,
                submitted=lambda *ids: living.enter_context(self.keys.live(caller.owner, *ids)),
                ended=give_back,
            )
            async with aclosing(generated):
                async for output in generated:
                    measure(output)
                    yield output

    @contextmanager
    def _naming(self, asked: Asked) -> Iterator[None]:
        """Where a stage refuses the request, it is said which, and the field of the body that it does not take, or what
        of `[plugins.http]` is wrong: that is no caller's fault."""
        try:
            yield
        except InvalidRequestError as error:
            if error.stage is None:
                raise
            text = of_stage(error)
            setting = asked.setting_of(error)
            if setting is None:
                raise RefusedError(text, error, asked.field_of(error)) from error
            if setting not in self._wrong_settings:
                self._wrong_settings.add(setting)
                log.error("%s: %s; requests that need it fail", setting, text)
            failure = BridgeError(500, "misconfigured", f"{setting}: {text}")
            failure.request_id = error.request_id
            raise failure from error


def now() -> int:
    """Seconds since 1970."""
    return int(time.time())


def _span(traceparent: str | None) -> str | None:
    """None where it cannot be parsed: whoever forwarded the request wrote it, and a trace begins anew then (W3C Trace
    Context, "A traceparent is Received")."""
    return traceparent if parse(traceparent) is not None else None


_SECONDS = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


def _deadline(text: str | None) -> float | None:
    if text is None:
        return None
    seconds = float(text) if _SECONDS.fullmatch(text) else 0.0
    if not 0 < seconds < 1e9:
        expected = "a number of seconds above 0 and below 1000000000"
        raise InvalidRequestError(f"header x-request-timeout: {text[:40]!r}: {expected} was expected")
    return seconds
