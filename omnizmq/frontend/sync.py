"""The blocking client: `AsyncClient` on a loop in a thread of its own. Any number of threads may use it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from omnizmq.errors import RouterLostError
from omnizmq.frontend.client import AsyncClient, Params
from omnizmq.frontend.core import OutputKind
from omnizmq.frontend.orders import ORDER_TIMEOUT_S
from omnizmq.frontend.output import RequestOutput
from omnizmq.frontend.prompts import PromptInput

T = TypeVar("T")

SETTLE_S = 5.0
"""How long a call may take to end that was cancelled, or that runs while the client closes."""


class Client:
    """As `AsyncClient`, without `await`. Use `connect` or `launch`, then `with`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._lock = threading.Lock()  # nothing is handed to a loop that is about to stop

    @classmethod
    def connect(cls, to: str | None = None, *, operator: bool = False) -> Self:
        """As `AsyncClient.connect`."""
        return cls(AsyncClient.connect(to, operator=operator))

    @classmethod
    def launch(
        cls,
        config: str | os.PathLike[str] = "embedded",
        *,
        name: str | None = None,
        sets: Sequence[str] = (),
        progress: Callable[[str, str], None] | None = None,
    ) -> Self:
        """As `AsyncClient.launch`; `progress` is called in the client's own thread."""
        return cls(AsyncClient.launch(config, name=name, sets=sets, progress=progress))

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="omnizmq-client", daemon=True)
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
        traceparent: str | None = None,
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
            traceparent=traceparent,
        )
        try:
            while True:
                try:
                    yield self._wait(outputs.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            with suppress(RouterLostError):
                self._wait(outputs.aclose())

    def abort(self, request_id: str) -> int:
        """End all live requests with this external id, or the one with this request id; how many there were."""
        return self._wait(self._client.abort(request_id))

    def status(self) -> dict[str, Any]:
        """The document of `omnizmq status --json`."""
        return self._wait(self._client.status())

    def inspect(self, request_id: str) -> dict[str, Any] | None:
        """As `AsyncClient.inspect`: where a live request is, now; None where no such request is live."""
        return self._wait(self._client.inspect(request_id))

    def restart(self, target: str, *, timeout_s: float = ORDER_TIMEOUT_S, force: bool = False) -> None:
        """As `AsyncClient.restart`: replace the processes of a stage or of one replica."""
        self._wait(self._client.restart(target, timeout_s=timeout_s, force=force))

    def drain(self, target: str, *, timeout_s: float = ORDER_TIMEOUT_S) -> None:
        """As `AsyncClient.drain`: let one replica take no new requests, and those that it has end."""
        self._wait(self._client.drain(target, timeout_s=timeout_s))

    def resume(self, target: str) -> None:
        """Let a drained replica take requests again."""
        self._wait(self._client.resume(target))

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        """Its result. An interruption (Ctrl-C) cancels the call, and is raised on when that has ended."""
        run = _Call(call)
        try:
            return self._submit(run, call).result()
        except BaseException:  # it may strike anywhere, also between handing the call over and knowing of it
            self._give_up(run)
            raise

    def _give_up(self, run: _Call[Any]) -> None:
        with self._lock:
            if self._loop is None or run.ended.is_set():
                return
            self._loop.call_soon_threadsafe(run.cancel)
        run.ended.wait(SETTLE_S)

    def _submit(self, run: _Call[T], call: Coroutine[Any, Any, T]) -> Future[T]:
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(run.start)
                return run.result
        call.close()
        if self._closed:
            raise RouterLostError("the router is gone: this client is closed")
        raise RuntimeError("the client is not connected: use it in `with`")

    def _end_loop(self) -> None:
        """Calls of other threads end first: each has its answer."""
        with self._lock:
            loop, self._loop, self._closed = self._loop, None, True
        assert loop is not None
        asyncio.run_coroutine_threadsafe(_settle(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()


class _Call(Generic[T]):
    """One call on the loop, which can be cancelled, handed over or not. `ended`: it will not go on."""

    def __init__(self, call: Coroutine[Any, Any, T]) -> None:
        self.result: Future[T] = Future()
        self.ended = threading.Event()
        self._call = call
        self._task: asyncio.Task[T] | None = None

    def start(self) -> None:
        """On the loop."""
        self._task = asyncio.get_running_loop().create_task(self._call)
        self._task.add_done_callback(self._done)

    def cancel(self) -> None:
        """On the loop."""
        if self._task is not None:
            self._task.cancel()
        else:
            self._call.close()
            self.ended.set()

    def _done(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.result.cancel()
        elif (error := task.exception()) is not None:
            self.result.set_exception(error)
        else:
            self.result.set_result(task.result())
        self.ended.set()


async def _settle() -> None:
    """Every other task of the loop has ended, in its own time or cancelled."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=SETTLE_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
