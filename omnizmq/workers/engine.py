"""What an engine is: the one interface between a worker and whatever computes a stage.

An engine serves one stage in one thread, the *engine thread*. Every method below is called there, so an engine needs
no locks unless it has threads of its own. The gate in the worker decides which requests may run: a request without
input, or parked for want of credit or room, is not in `ready`, and the engine must not compute it (R1).

Engines know nothing of routers, sockets, credits or attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from omnizmq.errors import OmnizmqError
from omnizmq.protocol import Param, Prompt, TokenLogprob, Value
from omnizmq.shm.arrays import AnyArray, ArraySource, array_bytes

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """One increment of an edge: small scalars and arrays by name, of any numeric dtype and shape.

    None of them is changed any more by who has handed it out: it may wait for a credit before it is copied. `tensors`
    are arrays that are not numpy's and copy themselves; they arrive among `arrays`, whose names they must not repeat.

    What a consumer is fed are read-only views, often of the producer's shared memory: what it needs beyond the next few
    chunks it should copy, since a chunk's bytes stay reserved until its last view is gone.
    """

    meta: Mapping[str, Value] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    tensors: Mapping[str, ArraySource] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Of the arrays and of text among the scalars; what an edge's byte counts add up."""
        texts = sum(len(value.encode()) for value in self.meta.values() if isinstance(value, str))
        return texts + sum(array_bytes(array) for array in self.content().values())

    def content(self) -> Mapping[str, AnyArray]:
        """All its arrays by name, in the order in which they travel."""
        return {**self.arrays, **self.tensors} if self.tensors else self.arrays


@dataclass(frozen=True, slots=True)
class Audio:
    """Mono sound: float32 `[samples]` in -1..1 at `sample_rate` Hz."""

    samples: NDArray[np.float32]
    sample_rate: int


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What `add` gets. A stage whose input comes over edges has `prompt = None` and is fed (`placeholder`)."""

    request_id: str  # unique in this engine; an opaque key
    prompt: Prompt | None
    params: Mapping[str, Param]  # the configuration's, overlaid with the request's; the engine checks them
    original_prompt: Prompt | None = None  # for stages with `wants_prompt = true` in their configuration
    external_id: str = ""  # the caller's id, for faults aimed at one request; never a key
    priority: int = 0
    traceparent: str = ""  # this stage's span, as in W3C Trace Context, for an engine that has spans of its own


@dataclass(frozen=True, slots=True)
class StageOutput:
    """What one step made for one request.

    `ended` says that neither content nor chunks will follow; `finish_reason` (which implies it) that the stage is done
    with the request and `usage` is final. `error` ends this request alone. `note` tells the caller, in one sentence,
    something worth knowing about a success, such as "nothing to say: the text has no words". `logprobs` are of
    the tokens that were generated since the last output, whose text may come later, where the request asks for them.
    """

    request_id: str
    content: str | Audio | None = None  # a delta of the stage's final output
    chunks: Mapping[str, Sequence[Chunk]] = field(default_factory=dict)  # consumer stage's name -> chunks, in order
    ended: bool = False
    finish_reason: FinishReason | None = None
    usage: Mapping[str, int | float] = field(default_factory=dict)  # prompt_tokens, completion_tokens, audio_s, …
    error: OmnizmqError | None = None
    note: str | None = None
    logprobs: Sequence[TokenLogprob] = ()


class EngineBrokenError(Exception):
    """Nothing can be computed in this process any more: a GPU's context that has failed, a library that is lost.

    Any method of an engine may raise it, and any array that copies itself. Its text says in one line what happened. The
    worker is killed and another one takes its place: its requests are driven again, or end with `replica_lost` (F2).
    """


class Engine(Protocol):
    """A stage's computation."""

    def add(self, request: EngineRequest) -> None:
        """Take a request. Raise `InvalidRequestError` for what this engine can never do (a prompt too long …)."""

    def feed(self, request_id: str, edge: str, chunk: Chunk) -> None:
        """Take the next chunk from the upstream stage named `edge`."""

    def end_of_input(self, request_id: str, edge: str) -> None:
        """No more chunks come from the upstream stage named `edge`."""

    def abort(self, request_id: str) -> list[StageOutput]:
        """Forget the request at once; return the content that exists and was not handed out. Unknown ids: `[]`."""

    def has_work(self, request_id: str) -> bool:
        """Whether a step could do anything for this request now. False until `wake` or another call changes it."""

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        """One scheduling round over these requests (each has work): continuous batching. May raise: all of them fail.

        An error of one request is its `StageOutput.error`, not an exception. The request is aborted afterwards.
        """

    def close(self) -> None:
        """Free devices and threads. Called once, after the last step."""


class ThreadedEngine(Engine, Protocol):
    """An engine that also queues or computes requests outside its steps: in threads of its own, or by a timer.

    A request for which a step could do nothing, whose input is complete and which makes nothing counts as silent, and
    ends after its edge's `input_timeout_s` (R4); one that waits for more input gives its place to others (B1). With one
    more method such an engine says of which requests that would be wrong. It calls `wake` when that changes.

    An engine that is at work on a request whose silence would be a fault all the same says that by a second method:
    what is shown of it is true then, and a computation that hangs still ends by its limit.

    These methods alone are called from other threads too, to look: they must only read.
    """

    def busy_with(self, request_id: str) -> bool:
        """Whether the request is queued or computed inside although `has_work` is False: its silence is no fault."""

    def at_work_on(self, request_id: str) -> bool:
        """Whether the request is queued or computed inside. To be shown alone; without this method it is what
        `busy_with` says."""


class RingMemory(Protocol):
    """What an engine with a device of its own does with the memory of rings. Called in the engine thread.

    Where it raises, the ring is used all the same: copies are slower.
    """

    def pin(self, memory: memoryview) -> None:
        """Page-lock all of it. Writable: this worker's own ring, into which tensors copy themselves; read-only: a
        producer's, in which chunks lie that are fed."""

    def unpin(self, memory: memoryview) -> None:
        """The same object again, whose ring is given up, or before the engine is closed. It is mapped until this
        returns, and as long as a view of it lives."""


class PinningEngine(Engine, Protocol):
    """An engine that pins rings has one more attribute."""

    ring_memory: RingMemory | None
    """Read once, when the engine has loaded. None: nothing is to be pinned."""


@dataclass(frozen=True, slots=True)
class EngineContext:
    """What an engine is made from."""

    stage: str
    model: str
    device: tuple[str, ...]  # "cuda:0" …: this replica's GPUs, the only ones that its process sees; empty: CPU
    options: Mapping[str, Any]  # `[stage.options]`; an engine refuses keys that it does not know
    sources: tuple[str, ...]  # upstream stages
    targets: tuple[str, ...]  # downstream stages
    final_output: str | None  # "text", "audio" or None
    max_inflight: int  # requests that are let run at once; more may have been added
    private_dir: Path  # 0700, short, shared by the deployment's workers and gone with it: for engines' own sockets
    wake: Callable[[], None]  # thread-safe: "has_work may have changed"
    progress: Callable[[str], None]  # thread-safe: what loading is doing, shown to whoever waits
    priority_age_s: float = 5.0  # waiting so long counts as much as one more of priority (B2)
    broken: Callable[[str], None] = lambda reason: None  # noqa: ARG005 (thread-safe: `EngineBrokenError`, of an idle one)


EngineFactory = Callable[[EngineContext], Engine]
"""What an entry point of the group `omnizmq.engines` names. It loads and warms everything, then returns."""
