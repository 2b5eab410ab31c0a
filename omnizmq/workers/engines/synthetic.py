"""The synthetic engine: any stage, no model, every fault on demand. For tests, benchmarks and drills.

What it makes is a function of the caller's external id, the stage, the output's number and the seed, so a second
attempt makes the same bytes, on any replica. Each output goes as one chunk to every downstream stage: `data`, uint8
`[chunk_bytes]`, with `seq` from 1 in its meta (and `seed`, where one was given). A synthetic consumer computes what it
must be and fails with `stage_error` on the first chunk that differs.

A final text stage gives `chunk_bytes` characters an output, a final audio stage `chunk_bytes // 4` samples at 24 kHz;
with `echo`, one word of the prompt, or a tone of 0.1 s.

A stage without sources makes `chunks` outputs (with `echo`: one a word of its prompt). A stage with sources makes
`chunks_per_input` for each chunk it is fed, and ends when all its input has ended; `chunks` does not concern it.
Parameters of a request: `max_tokens` (a limit on outputs, with finish reason `length`), `seed`, and of a final text
stage `logprobs`: each output is one token, and so many were likely in its place.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NoReturn

from msgspec import Meta

from omnizmq.errors import InvalidRequestError, LaunchError, StageError
from omnizmq.protocol import Param, Value
from omnizmq.tables import Section, nearest, read
from omnizmq.workers.engine import Audio, Chunk, EngineContext, EngineRequest, StageOutput
from omnizmq.workers.engines.alarm import Alarm
from omnizmq.workers.engines.synthetic_pattern import (
    SAMPLE_RATE,
    TONE_SAMPLES,
    audio_pattern,
    difference,
    logprob_pattern,
    pattern,
    text_pattern,
    tone,
    words_of,
)
from omnizmq.workers.memory import WORKER_BYTES, MemoryAsked, MemoryNeed

_PARAMS = ("logprobs", "max_tokens", "seed")

Milliseconds = Annotated[float, Meta(ge=0, le=3_600_000)]
Number = Annotated[int, Meta(ge=1, le=1_000_000)]


class Options(Section, frozen=True):
    """`[stage.options]`. `…_at`: the fault strikes before the request's output of this number, counted from 1."""

    chunks: Annotated[int, Meta(ge=0, le=1_000_000)] = 8
    """Outputs a request makes, in a stage without sources."""

    chunks_per_input: Number = 1
    """Outputs for each chunk that a stage with sources is fed."""

    chunk_bytes: Annotated[int, Meta(ge=0, le=32 << 20)] = 256
    """Size of each output's chunk, and of its final content where `echo` is off."""

    first_delay_ms: Milliseconds = 0.0
    """Before the first output, from the request's arrival, or from its first chunk in a stage with sources."""

    interval_ms: Milliseconds = 0.0
    """Between two outputs of a request."""

    terminal_delay_ms: Milliseconds = 0.0
    """From the end of the output to the stage's own report, so that tests can have reports arrive in any order."""

    max_batch: Number = 64
    """Requests stepped together."""

    fail_at: Number | None = None
    """The request fails with `stage_error`."""

    crash_at: Number | None = None
    """The worker kills itself with SIGKILL."""

    hang_at: Number | None = None
    """`step` never returns."""

    silent_at: Number | None = None
    """The request makes no further output, while the engine goes on."""

    slow_at: Number | None = None
    """`step` takes one second longer."""

    fault_only: str | None = None
    """Faults strike only requests whose external id contains this text."""

    fault_once: bool = False
    """Each fault of this stage strikes once in the deployment, also across the worker's restart."""

    start_delay_ms: Milliseconds = 0.0
    """Before the engine is ready."""

    fail_start: bool = False
    """The start fails."""

    echo: bool = False
    """A text stage repeats its prompt's words, one an output; an audio stage makes a tone of 0.1 s an output."""


def create(context: EngineContext) -> SyntheticEngine:
    """The entry point. `ConfigError` for a bad option; `LaunchError` when `fail_start` is set."""
    options = check_options(context.stage, context.options)
    started = time.monotonic()
    while (left := started + options.start_delay_ms / 1000 - time.monotonic()) > 0:
        context.progress(f"start_delay_ms: {left:.1f} s left")
        time.sleep(min(left, 0.5))
    if options.fail_start:
        raise LaunchError("the synthetic engine was told not to start: fail_start = true", stage=context.stage)
    return SyntheticEngine(context, options)


def check_options(stage: str, options: Mapping[str, Any]) -> Options:
    """The options of this stage, or `ConfigError`."""
    return read(Options, dict(options), f"stage.{stage}.options")


def estimate_memory(asked: MemoryAsked) -> MemoryNeed:  # noqa: ARG001 (it needs nothing)
    """For `omnizmq check`."""
    return MemoryNeed(process=WORKER_BYTES)


# --- The engine ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Request:
    external_id: str
    seed: int
    limit: int | None  # max_tokens
    logprobs: int | None
    prompt_tokens: int
    words: list[str] | None  # to repeat, one an output
    total: int | None  # outputs to make; None: what comes in decides
    open_sources: set[str]
    due: float  # no output before this time
    seen: dict[str, int] = field(default_factory=dict)  # source -> chunks fed
    made: int = 0
    stepped: int = 0  # the last round in which it was stepped
    silent: bool = False
    report_due: float | None = None  # set: its output has ended
    error: StageError | None = None


class SyntheticEngine:
    """A `ThreadedEngine`. Time is `time.monotonic`; where a request waits for time alone, one thread calls `wake`."""

    def __init__(self, context: EngineContext, options: Options) -> None:
        self._context = context
        self._options = options
        self._requests: dict[str, _Request] = {}
        self._round = 0
        self._alarm = Alarm(context.wake)

    def add(self, request: EngineRequest) -> None:
        limit = self._whole_number(request.params, "max_tokens", 1)
        logprobs = self._whole_number(request.params, "logprobs", 0)
        seed = self._whole_number(request.params, "seed", None)
        unknown = [name for name in request.params if name not in _PARAMS]
        if unknown:
            self._refuse(f"unknown parameter {unknown[0]!r}: {nearest(unknown[0], _PARAMS)}")
        words, total = self._plan(request)
        self._requests[request.request_id] = _Request(
            external_id=request.external_id,
            seed=seed or 0,
            limit=limit,
            logprobs=logprobs,
            prompt_tokens=0 if request.prompt is None else len(words_of(request.prompt)),
            words=words,
            total=total,
            open_sources=set(self._context.sources),
            due=time.monotonic() + self._options.first_delay_ms / 1000,
        )

    def _plan(self, request: EngineRequest) -> tuple[list[str] | None, int | None]:
        """The words to repeat, and how many outputs to make; None where the input decides."""
        if self._context.sources:
            return None, None
        if request.prompt is None:
            self._refuse("a prompt was expected")
        if self._options.echo and self._context.final_output != "audio":
            words = words_of(request.prompt)
            return words, len(words)
        return None, self._options.chunks

    def feed(self, request_id: str, edge: str, chunk: Chunk) -> None:
        """Verify the chunk, and count it. One that comes after the request has ended here is ignored (R5)."""
        request = self._requests.get(request_id)
        if request is None:
            return
        if not request.seen:
            request.due = time.monotonic() + self._options.first_delay_ms / 1000
        seq = request.seen[edge] = request.seen.get(edge, 0) + 1
        problem = difference(chunk, request.external_id, edge, seq)
        if problem and request.error is None:
            message = f"corrupt chunk {seq} from {edge}: {problem}"
            request.error = StageError(message, stage=self._context.stage)

    def end_of_input(self, request_id: str, edge: str) -> None:
        request = self._requests.get(request_id)
        if request is not None:
            request.open_sources.discard(edge)

    def abort(self, request_id: str) -> list[StageOutput]:
        """Nothing is held back here, so what is returned is the usage so far."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return []
        return [StageOutput(request_id, ended=True, finish_reason="abort", usage=self._usage(request))]

    def has_work(self, request_id: str) -> bool:
        request = self._requests.get(request_id)
        due = None if request is None else self._due(request)
        if due is None:
            return False
        if due <= time.monotonic():
            return True
        self._alarm.set(due)
        return False

    def busy_with(self, request_id: str) -> bool:
        """It waits for time alone, as others compute."""
        request = self._requests.get(request_id)
        return request is not None and self._due(request) is not None

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        """One output of each of the `max_batch` requests that were stepped longest ago."""
        self._round += 1
        here = [(request_id, self._requests[request_id]) for request_id in ready if request_id in self._requests]
        here.sort(key=lambda item: item[1].stepped)
        outputs = []
        for request_id, request in here[: self._options.max_batch]:
            request.stepped = self._round
            output = self._advance(request_id, request)
            if output is not None:
                outputs.append(output)
        return outputs

    def close(self) -> None:
        self._requests.clear()
        self._alarm.close()

    # --- One request -------------------------------------------------------------------------------------------------

    def _allowed(self, request: _Request) -> int:
        """How many outputs its input so far is good for."""
        if request.total is not None:
            return request.total
        return sum(request.seen.values()) * self._options.chunks_per_input

    def _goal(self, request: _Request) -> int | None:
        """How many outputs it will have made in the end. None: not known yet."""
        allowed = self._allowed(request)
        if request.limit is not None and allowed >= request.limit:
            return request.limit
        return None if request.open_sources else allowed

    def _due(self, request: _Request) -> float | None:
        """When there is something to do for it. None: not before more input has come."""
        goal = self._goal(request)
        if request.error is not None:
            return 0.0
        if request.silent:
            return None
        if request.report_due is not None:
            return request.report_due
        if request.made == goal:
            return 0.0
        return request.due if request.made < self._allowed(request) else None

    def _advance(self, request_id: str, request: _Request) -> StageOutput | None:
        due = self._due(request)
        if due is None or due > time.monotonic():
            return None
        if request.error is None and request.report_due is None and request.made != self._goal(request):
            self._strike_faults(request)
            if request.silent:
                return None
        if request.error is not None:
            del self._requests[request_id]
            return StageOutput(request_id, error=request.error)
        if request.report_due is not None or request.made == self._goal(request):
            return self._output(request_id, request, None, {})
        request.made += 1
        request.due = time.monotonic() + self._options.interval_ms / 1000
        chunk = self._chunk(request)
        chunks = dict.fromkeys(self._context.targets, (chunk,))
        output = self._output(request_id, request, self._content(request), chunks)
        if request.logprobs is None or not isinstance(output.content, str):
            return output
        return replace(output, logprobs=[logprob_pattern(output.content, request.made, request.logprobs)])

    def _output(
        self, request_id: str, request: _Request, content: str | Audio | None, chunks: Mapping[str, Sequence[Chunk]]
    ) -> StageOutput:
        """With the end of the output when that was the last, and with the report when its time has come."""
        if request.made != self._goal(request):
            return StageOutput(request_id, content, chunks)
        delay = self._options.terminal_delay_ms / 1000
        if delay and request.report_due is None:
            request.report_due = time.monotonic() + delay
            return StageOutput(request_id, content, chunks, ended=True)
        del self._requests[request_id]
        cut = bool(request.open_sources) or self._allowed(request) > request.made
        reason: Literal["length", "stop"] = "length" if cut else "stop"
        note = "nothing to say: the prompt has no words" if request.words == [] else None
        usage = self._usage(request)
        return StageOutput(request_id, content, chunks, ended=True, finish_reason=reason, usage=usage, note=note)

    def _chunk(self, request: _Request) -> Chunk:
        data = pattern(request.external_id, self._context.stage, request.made, self._options.chunk_bytes, request.seed)
        meta: dict[str, Value] = {"seq": request.made}
        if request.seed:
            meta["seed"] = request.seed
        return Chunk(meta, {"data": data})

    def _content(self, request: _Request) -> str | Audio | None:
        key = (request.external_id, self._context.stage, request.made, self._options.chunk_bytes, request.seed)
        if self._context.final_output == "text":
            return text_pattern(*key) if request.words is None else request.words[request.made - 1]
        if self._context.final_output == "audio":
            return Audio(tone(request.made) if self._options.echo else audio_pattern(*key), SAMPLE_RATE)
        return None

    def _usage(self, request: _Request) -> dict[str, int | float]:
        usage: dict[str, int | float] = {
            "prompt_tokens": request.prompt_tokens,
            "completion_tokens": request.made,
        }
        if self._context.final_output == "audio":
            samples = TONE_SAMPLES if self._options.echo else self._options.chunk_bytes // 4
            usage["audio_s"] = request.made * samples / SAMPLE_RATE
        return usage

    # --- Faults ------------------------------------------------------------------------------------------------------

    def _strike_faults(self, request: _Request) -> None:
        """What the options say shall befall this request before its next output."""
        number = request.made + 1
        options = self._options
        if options.slow_at == number and self._strikes("slow", request):
            time.sleep(1)
        if options.silent_at == number and self._strikes("silent", request):
            request.silent = True
        if options.fail_at == number and self._strikes("fail", request):
            request.error = StageError(f"told to fail at output {number} (fail_at)", stage=self._context.stage)
        if options.crash_at == number and self._strikes("crash", request):
            os.kill(os.getpid(), signal.SIGKILL)
        if options.hang_at == number and self._strikes("hang", request):
            threading.Event().wait()

    def _strikes(self, fault: str, request: _Request) -> bool:
        if self._options.fault_only is not None and self._options.fault_only not in request.external_id:
            return False
        if not self._options.fault_once:
            return True
        mark = self._context.private_dir / f"{self._context.stage}.{fault}.struck"
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return False
        return True

    # --- Parameters --------------------------------------------------------------------------------------------------

    def _whole_number(self, params: Mapping[str, Param], name: str, least: int | None) -> int | None:
        value = params.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
            bound = "" if least is None else f" from {least}"
            self._refuse(f"{name} = {value!r}: a whole number{bound} was expected")
        return value

    def _refuse(self, problem: str) -> NoReturn:
        raise InvalidRequestError(f"stage {self._context.stage}: {problem}", stage=self._context.stage)
