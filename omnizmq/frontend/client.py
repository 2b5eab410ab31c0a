"""The asynchronous client: one connection to one deployment's router.

It translates between a caller's `async for` and frames; the rules are in `core`. A caller that is cancelled or closes
its generator aborts its request, and is then let go (A7).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import msgspec

from omnizmq import protocol as wire
from omnizmq.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    OmnizmqError,
    PromptTooLargeError,
    ProtocolError,
    RouterLostError,
)
from omnizmq.frontend.core import Answer, ClientTable, Connected, Credit, OutputKind, Rejected, Signal, Wake
from omnizmq.frontend.link import Watch, locate
from omnizmq.frontend.orders import ORDER_TIMEOUT_S, Action, make_order
from omnizmq.frontend.output import RequestOutput
from omnizmq.frontend.owned import OwnedDeployment
from omnizmq.frontend.prompts import PromptInput, as_prompt
from omnizmq.transport import Dealer, PeerFullError, make_context

Params = Mapping[str, Mapping[str, wire.Param]]

CONNECT_TIMEOUT_S = 5.0
CALL_TIMEOUT_S = 10.0
ABORT_WAIT_S = 2.0

LATE_S = 1.0
"""How long after a request's deadline its router may be silent."""


class AsyncClient:
    """Use `connect` or `launch`, then `async with`."""

    def __init__(
        self, connect: str | None = None, owned: OwnedDeployment | None = None, *, operator: bool = False
    ) -> None:
        self._connect_to = connect
        self._role = "operator" if operator else "client"
        self._owned = owned
        self._table = ClientTable()
        self._packer = wire.Packer()
        self._waiting: dict[str, asyncio.Future[None]] = {}  # one at a time a request: for its next item, or its end
        self._ends: dict[str, Callable[[], None]] = {}  # what to call, once, when a request has ended
        self._calls: dict[int, asyncio.Future[int | bytes | None]] = {}
        self._call = 0
        self._welcome: asyncio.Future[wire.Welcome] | None = None
        self._dealer: Dealer | None = None
        self._context: Any = None
        self._watch: Watch | None = None
        self._lost: str | None = None

    # --- Connecting ------------------------------------------------------------------------------------------------

    @classmethod
    def connect(cls, to: str | None = None, *, operator: bool = False) -> Self:
        """To a running deployment by name or endpoint, or to one on another machine by the path of its `remote.json`;
        None: the only one of this user here.

        An `operator` can do all but `generate`, and gets in also where `router.max_clients` are connected.
        """
        return cls(connect=to, operator=operator)

    @classmethod
    def launch(
        cls,
        config: str | os.PathLike[str] = "embedded",
        *,
        name: str | None = None,
        sets: Sequence[str] = (),
        progress: Callable[[str, str], None] | None = None,
    ) -> Self:
        """Start a deployment in a process of its own, which ends with this client.

        `config` is a file or a shipped configuration's name, `sets` are overrides such as `"stage.talker.replicas=2"`.
        `progress(replica, text)` hears what loads. Raises `LaunchError` or `ConfigError` on entry.
        """
        return cls(owned=OwnedDeployment(os.fspath(config), name=name, sets=sets, progress=progress))

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def stages(self) -> dict[str, str | None]:
        """Stage names in topological order, and the modality of each final one."""
        return {stage.name: stage.modality for stage in self._welcomed().stages}

    @property
    def name(self) -> str:
        """The deployment's."""
        return self._welcomed().name

    async def _open(self) -> None:
        if self._welcome is not None:
            raise RuntimeError("a client is for one connection: make another")
        to = self._connect_to
        if self._owned is not None:
            to = await self._owned.start()
        address = locate(to)
        self._welcome = asyncio.get_running_loop().create_future()
        self._welcome.add_done_callback(_heed)
        self._context = make_context()
        self._unpacker = wire.Unpacker(wire.router_to_client)
        self._dealer = Dealer(self._context, address.endpoint, self._received, curve=address.curve)
        self._dealer.start()
        self._watch = Watch(address.pid, self._give_up)
        hello = wire.Hello(wire.VERSION, address.nonce, self._role, pid=os.getpid())
        self._dealer.send([wire.encode_hello(hello)])
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                welcome = await asyncio.shield(self._welcome)
        except TimeoutError as error:
            raise address.unanswered(self._dealer.connection) from error
        if address.pid is None:
            self._watch.hold(welcome.lease_s)

    async def close(self) -> None:
        """Live requests are aborted by the router; an owned deployment ends. May be repeated."""
        if self._watch is not None:
            self._watch.close()
        if self._dealer is not None and not self._dealer.closed:
            with suppress(RouterLostError):
                self._send(wire.Bye("the client closes"))
            self._router_lost("this client is closed")
            self._dealer.close()
            self._context.term()
        if self._owned is not None:
            await self._owned.stop()

    def _welcomed(self) -> wire.Welcome:
        if self._welcome is None or not self._welcome.done():
            raise RuntimeError("the client is not connected: use it in `async with`")
        return self._welcome.result()

    # --- Requests --------------------------------------------------------------------------------------------------

    async def generate(
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
        submitted: Callable[[str, str], None] | None = None,
        ended: Callable[[], None] | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs as they come, then the terminal (`finished`), which carries no content.

        `request_id` is the external id; one is made when it is None. `params` maps a stage to its sampling parameters.
        `traceparent` is the caller's span, as in W3C Trace Context: the request's own spans hang below it.
        `submitted` is told the request's id and its external one when it is about to go out: what is aborted by them
        later, also before its first output, is this request. `ended` is called when its end has come, which may be long
        before its consumer has come to it.
        Raises an `OmnizmqError` for a refusal and for a request that failed; an abort is no error. Where the router
        does not say that the deadline has passed, the client does, a second later.
        """
        submit = self._submission(
            prompt, modalities, params, request_id, deadline_s, priority, affinity, output_kind, traceparent
        )
        rid = submit.request_id
        if submitted is not None:
            submitted(rid, submit.external_id)
        self._table.open(rid, submit.external_id, output_kind)
        try:
            self._send(submit)
        except BaseException:  # the router knows nothing of it
            self._table.forget(rid)
            raise
        if ended is not None:
            self._ends[rid] = ended
        until = None if deadline_s is None else asyncio.get_running_loop().time() + deadline_s + LATE_S
        try:
            while True:
                item = self._table.take(rid)
                if item is None:
                    await self._woken_until(rid, until)
                    continue
                if isinstance(item, OmnizmqError):
                    item.request_id = rid
                    raise item
                yield item
                if item.finished:
                    return
                self._signal(self._table.back(rid))
        finally:
            if not self._table.has_ended(rid):
                await self._abandon(rid)
            self._table.forget(rid)
            self._ends.pop(rid, None)

    def _submission(
        self,
        prompt: PromptInput,
        modalities: Sequence[str] | None,
        params: Params | None,
        request_id: str | None,
        deadline_s: float | None,
        priority: int,
        affinity: str | None,
        output_kind: OutputKind,
        traceparent: str | None,
    ) -> wire.Submit:
        external_id = wire.check_external_id(request_id if request_id is not None else f"req-{secrets.token_hex(4)}")
        checked = as_prompt(prompt)
        size, limit = checked.size(), self._welcomed().max_prompt_bytes
        if size > limit:
            raise PromptTooLargeError.of(size, limit)
        if isinstance(modalities, str):
            raise InvalidRequestError(f"modalities is a list such as ['text'], not the string {modalities!r}")
        if output_kind not in ("delta", "final"):
            raise InvalidRequestError(f"output_kind is 'delta' or 'final', not {output_kind!r}")
        if not isinstance(params or {}, Mapping) or not all(isinstance(v, Mapping) for v in (params or {}).values()):
            raise InvalidRequestError("params maps a stage to its parameters, such as {'thinker': {'max_tokens': 64}}")
        submit = wire.Submit(
            request_id=wire.make_request_id(external_id, secrets.token_bytes(8)),
            external_id=external_id,
            prompt=checked,
            modalities=list(modalities) if isinstance(modalities, Sequence) else modalities,
            params={stage: dict(values) for stage, values in (params or {}).items()},
            priority=priority,
            deadline_s=deadline_s,
            affinity=affinity,
            window=self._welcomed().output_window,
            at_ns=time.monotonic_ns(),
            traceparent=traceparent,
        )
        return wire.check_submit(submit)

    async def _abandon(self, request_id: str) -> None:
        """A7: abort what nobody waits for any more. The abort goes out before anything is awaited, so no cancellation
        can prevent it; its end is waited for, for a limited time."""
        with suppress(TimeoutError, RouterLostError):
            self._send(wire.Abort(0, request_id))
            # Not `asyncio.timeout`: in a task that is cancelled already it ends with that, before Python 3.11.4.
            await asyncio.wait_for(self._until_ended(request_id), ABORT_WAIT_S)

    async def _until_ended(self, request_id: str) -> None:
        while not self._table.has_ended(request_id):
            await self._woken(request_id)

    async def _woken(self, request_id: str) -> None:
        """Until the table has something new for it. The caller has looked, and has awaited nothing since."""
        waiting = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        try:
            await waiting
        finally:
            self._waiting.pop(request_id, None)

    async def _woken_until(self, request_id: str, until: float | None) -> None:
        """Raises `DeadlineExceededError` at that time of the loop's."""
        try:
            async with asyncio.timeout_at(until):
                await self._woken(request_id)
        except TimeoutError:
            error = DeadlineExceededError(f"the deadline has passed, and the router is silent since {LATE_S:g} s")
            error.request_id = request_id
            raise error from None

    # --- Calls -----------------------------------------------------------------------------------------------------

    async def abort(self, request_id: str) -> int:
        """End all live requests with this external id, or the one with this request id; how many there were (A5)."""
        matched = await self._ask(wire.Abort(self._next_call(), wire.check_asked_id(request_id)))
        assert isinstance(matched, int)
        return matched

    async def status(self) -> dict[str, Any]:
        """The document of `omnizmq status --json`."""
        answer = await self._ask(wire.AskStatus(self._next_call()))
        assert isinstance(answer, bytes)
        document: dict[str, Any] = msgspec.json.decode(answer)
        return document

    async def inspect(self, request_id: str) -> dict[str, Any] | None:
        """Where a live request is, now: what the router knows of it, and what the workers that have it say of their
        gates, edges and credits (docs/tracing.md). By its request id, or the newest with this external id.

        None: no such request is live; it has ended, or is not known. A worker that does not answer within half a second
        is named in `silent`. Moments (`…_ns`) are CLOCK_MONOTONIC of the deployment's machine in nanoseconds; 0 or
        None: never, or not known.
        """
        answer = await self._ask(wire.AskTrace(self._next_call(), wire.check_asked_id(request_id)))
        assert answer is None or isinstance(answer, bytes)
        return None if answer is None else msgspec.json.decode(answer)

    async def restart(self, target: str, *, timeout_s: float = ORDER_TIMEOUT_S, force: bool = False) -> None:
        """Replace the processes of a stage (`"talker"`), one replica after the other, or that of one (`"talker/0"`).

        Each takes no new requests, lets those that it has end, and is back in service before the next goes. Where some
        have not ended within `timeout_s` seconds it stops there, everything serves on, and it raises
        `UnavailableError`; with `force` they are ended there instead, and driven anew where the deployment's `redrive`
        says so. Raises `InvalidRequestError` for an unknown target. To cancel the call takes nothing back.
        """
        await self._operate("restart", target, timeout_s, force)

    async def drain(self, target: str, *, timeout_s: float = ORDER_TIMEOUT_S) -> None:
        """Let one replica (`"talker/0"`) take no new requests; returns when those that it has have ended.

        Raises `InvalidRequestError` for an unknown target, `UnavailableError` when they have not within `timeout_s`
        seconds; it takes no new ones all the same.
        """
        await self._operate("drain", target, timeout_s, False)

    async def resume(self, target: str) -> None:
        """Let a drained replica take requests again. Raises `InvalidRequestError` for an unknown target."""
        await self._operate("resume", target, ORDER_TIMEOUT_S, False)

    async def _operate(self, action: Action, target: str, timeout_s: float, force: bool) -> None:
        """The router answers in its own time: what ends the waiting before is its death."""
        await self._ask(make_order(self._next_call(), action, target, timeout_s, force), patient=True)

    def _next_call(self) -> int:
        self._call += 1
        return self._call

    async def _ask(
        self, frame: wire.Abort | wire.AskStatus | wire.AskTrace | wire.Operate, *, patient: bool = False
    ) -> int | bytes | None:
        answer = self._calls[frame.call] = asyncio.get_running_loop().create_future()
        try:
            self._send(frame)
            async with asyncio.timeout(None if patient else CALL_TIMEOUT_S):
                value: int | bytes | None = await answer
            return value
        except TimeoutError as error:
            raise RouterLostError(f"the router did not answer within {CALL_TIMEOUT_S:g} s") from error
        finally:
            del self._calls[frame.call]

    # --- Frames ----------------------------------------------------------------------------------------------------

    def _send(self, frame: wire.ClientToRouter) -> None:
        if self._lost is not None or self._dealer is None:
            raise RouterLostError(f"the router is gone: {self._lost or 'not connected'}")
        try:
            self._dealer.send(self._packer.pack(frame))
        except PeerFullError as error:
            self._router_lost("it does not read")
            raise RouterLostError("the router is gone: it does not read") from error

    def _received(self, data: bytes) -> None:
        if self._watch is not None:
            self._watch.heard()
        try:
            frame = self._unpacker.unpack(data)
        except ProtocolError as error:
            self._give_up(f"it sent what this version does not understand: {error}")
            return
        if isinstance(frame, wire.Bye):
            self._router_lost(frame.reason)
        elif frame is not None:
            self._signal(self._table.handle(frame))

    def _give_up(self, why: str) -> None:
        """The router lives and is of no use: it hears that we go, so that our requests end there too (A7)."""
        with suppress(RouterLostError):
            self._send(wire.Bye(why))
        self._router_lost(why)

    def _router_lost(self, why: str) -> None:
        self._lost = self._lost or why
        self._signal(self._table.lost(why))
        if self._welcome is not None and not self._welcome.done():
            self._welcome.set_exception(RouterLostError(f"the router is gone: {why}"))
        for call in self._calls.values():
            if not call.done():
                call.set_exception(RouterLostError(f"the router is gone: {why}"))

    def _signal(self, signals: Sequence[Signal]) -> None:
        for signal in signals:
            match signal:
                case Wake():
                    waits = self._waiting.pop(signal.request_id, None)
                    if waits is not None and not waits.done():
                        waits.set_result(None)
                    if signal.request_id in self._ends and self._table.has_ended(signal.request_id):
                        self._ends.pop(signal.request_id)()
                case Credit():
                    with suppress(RouterLostError):  # every request hears of it, after what had come for it
                        self._send(wire.Consumed(signal.request_id, signal.stage, signal.outputs))
                case Answer(call, value):
                    self._answered(call, value)
                case Connected(welcome):
                    if self._welcome is not None and not self._welcome.done():
                        self._welcome.set_result(welcome)
                case Rejected(error):
                    if self._welcome is not None and not self._welcome.done():
                        self._welcome.set_exception(error)
                    else:
                        self._router_lost(error.message)

    def _answered(self, call: int, value: int | bytes | OmnizmqError | None) -> None:
        asked = self._calls.get(call)
        if asked is None or asked.done():
            return
        if isinstance(value, OmnizmqError):
            asked.set_exception(value)
        else:
            asked.set_result(value)


def _heed(answer: asyncio.Future[wire.Welcome]) -> None:
    """Who waited for it may have given up: then nobody else has to hear why it failed."""
    if not answer.cancelled():
        answer.exception()
