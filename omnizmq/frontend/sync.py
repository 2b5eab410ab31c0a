"""The blocking client: `AsyncClient` on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from omnizmq.frontend.client import AsyncClient, Params
from omnizmq.frontend.core import OutputKind
from omnizmq.frontend.output import RequestOutput
from omnizmq.frontend.prompts import PromptInput

T = TypeVar("T")


class Client:
    """As `AsyncClient`, without `await`. Use `connect` or `launch`, then `with`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="omnizmq-client", daemon=True)

    @classmethod
    def connect(cls, to: str | None = None) -> Self:
        """To a running deployment by name or endpoint; None: the only one of this user."""
        return cls(AsyncClient.connect(to))

    @classmethod
    def launch(
        cls, config: str | os.PathLike[str] = "embedded", *, name: str | None = None, sets: Sequence[str] = ()
    ) -> Self:
        """Start a deployment in a process of its own, which ends with this client."""
        return cls(AsyncClient.launch(config, name=name, sets=sets))

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._wait(self._client.__aenter__())
        except BaseException:
            self._end_loop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._wait(self._client.close())
        finally:
            self._end_loop()

    @property
    def stages(self) -> dict[str, str | None]:
        """Stage names in topological order, and the modality of each final one."""
        return self._client.stages

    def generate(
        self,
        prompt: PromptInput,
        *,
        modalities: Sequence[str] | None = None,
        params: Params | None = None,
        request_id: str | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        affinity: str | None = None,
        output_kind: OutputKind = "delta",
    ) -> Iterator[RequestOutput]:
        """As `AsyncClient.generate`; closing the iterator aborts the request."""
        outputs = self._client.generate(
            prompt,
            modalities=modalities,
            params=params,
            request_id=request_id,
            deadline_s=deadline_s,
            priority=priority,
            affinity=affinity,
            output_kind=output_kind,
        )
        try:
            while True:
                try:
                    yield self._wait(outputs.__anext__())  # type: ignore[arg-type]
                except StopAsyncIteration:
                    return
        finally:
            self._wait(outputs.aclose())  # type: ignore[attr-defined]

    def abort(self, request_id: str) -> int:
        """End all live requests with this external id, or the one with this request id; how many there were."""
        return self._wait(self._client.abort(request_id))

    def status(self) -> dict[str, Any]:
        """The document of `omnizmq status --json`."""
        return self._wait(self._client.status())

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
