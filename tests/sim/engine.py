"""The simulated engine: what each stage says of each request is known beforehand, how it is cut into outputs is not.

`said` is the whole that a final stage says of a request, and what callers are checked against. Its outputs are cut at
places that differ from attempt to attempt. Chunks are numbered on each edge, and their consumer checks number, source,
content and total: what it finds wrong is a violation (R2, B4), not an error of the request.

One *unit* of a request is what a step does for it. A stage without inputs does a fixed number of them, any other one
for each chunk it is fed, and one when its input has ended. Faults strike at the start of a unit.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from omnizmq.errors import InvalidRequestError, StageError
from omnizmq.workers.engine import Audio, Chunk, EngineRequest, StageOutput
from sim.schedule import chance
from sim.story import RING_CHUNK, Fault, FaultKind, Request, Stage, Story

RATE = 8000
_PATTERN = np.random.default_rng(1).integers(0, 256, RING_CHUNK + 256, np.uint8)
_ALPHABET = "zwölf Boxkämpfer 🥊 jagen Viktor quer über den Sylter Deich "


def said(request: Request, stage: str, version: int = 0) -> str:
    """The whole of a stage's content: characters of a text, or what `sound` makes samples of. A later version, of an
    engine that does not say the same twice, is another text, or a shorter or longer one."""
    differs = (request.n + version) % 3 if version else None
    start = (request.n * 7 + ord(stage[0]) + (13 if differs == 0 else 0)) % len(_ALPHABET)
    size = {1: request.size // 2, 2: request.size + 3}.get(differs or 0, request.size)
    return (_ALPHABET * 3)[start : start + size]


def sound(text: str) -> Audio:
    return Audio(np.array([ord(letter) / 2**20 for letter in text], np.float32), RATE)


def heard(samples: np.ndarray) -> str:
    """What `sound` made samples of."""
    return "".join(chr(round(float(sample) * 2**20)) for sample in samples)


class _Unwritable:
    """An array of the engine's own that is not there any more when it is wanted."""

    dtype = np.dtype(np.uint8)

    def __init__(self, size: int) -> None:
        self.shape = (size,)

    def copy_to(self, out: np.ndarray) -> None:
        raise RuntimeError(f"{out.nbytes} bytes are lost")


@dataclass
class Book:
    """What engines have done, over all workers: for the checks."""

    chunks: dict[tuple[str, int, str], int] = field(default_factory=lambda: defaultdict(int))
    """By request, attempt and stage: chunks made for each edge."""
    ended: set[tuple[str, int, str]] = field(default_factory=set)
    units: dict[tuple[str, int, str], int] = field(default_factory=lambda: defaultdict(int))
    strikes: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """By the fault's place in the story."""


@dataclass
class _Job:
    spec: Request
    attempt: int
    whole: str
    open: set[str]
    faults: list[tuple[int, Fault]]
    units: int = 0
    at: int = 0  # of the whole, said
    made: int = 0  # chunks
    eaten: int = 0
    silent: bool = False
    report_at: float | None = None  # the output has ended, the end is still to be told
    got: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    queue: deque[tuple[str, Chunk]] = field(default_factory=deque)
    kept: Chunk | None = None  # an engine may keep what it was fed for a while


class SimEngine:
    """Of one worker incarnation. After each call `spent` says how long it took, `fate` whether it came back."""

    def __init__(
        self,
        story: Story,
        stage: Stage,
        book: Book,
        requests: dict[str, Request],
        *,
        now: Callable[[], float],
        wake_at: Callable[[float], None],
        violated: Callable[[str, str], None],
        struck: Callable[[str, str, FaultKind], None],
    ) -> None:
        self.spent = 0.0
        self.fate: FaultKind | None = None  # hang or crash
        self.jobs: dict[str, _Job] = {}
        self._stage = stage
        self._seed = story.seed
        self._sources = [edge.source for edge in story.edges if edge.target == stage.name]
        self._targets = {edge.target: edge for edge in story.edges if edge.source == stage.name}
        self._large = any(edge.ring for edge in self._targets.values())
        self._faults = [(n, fault) for n, fault in enumerate(story.faults) if fault.stage == stage.name]
        self._book = book
        self._requests = requests
        self._now = now
        self._wake_at = wake_at
        self._violated = violated
        self._struck = struck

    # --- What a runner calls ---------------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        request_id, attempt, stage = request.request_id.rsplit("/", 2)
        spec = self._requests[request_id]
        if request.external_id != spec.external or stage != self._stage.name or request.request_id in self.jobs:
            self._violated("identity", f"{self._stage.name} was given {request}")
        faults = [(n, fault) for n, fault in self._faults if fault.request == spec.n]
        fickle = any(fault.kind == "fickle" for _, fault in faults)
        if fickle and int(attempt) > 1:
            self._struck(request_id, stage, "fickle")
        whole = said(spec, stage, int(attempt) - 1 if fickle else 0)
        job = _Job(spec, int(attempt), whole, set(self._sources), faults)
        if self._strikes(job, "add"):
            raise InvalidRequestError("this engine does not take it")
        self.jobs[request.request_id] = job

    def feed(self, request_id: str, edge: str, chunk: Chunk) -> None:
        job = self.jobs[request_id]
        if self._strikes(job, "feed"):
            raise StageError("this engine does not like its food")
        self._check(job, edge, chunk)
        job.queue.append((edge, chunk))

    def end_of_input(self, request_id: str, edge: str) -> None:
        job = self.jobs[request_id]
        made = (job.spec.id, job.attempt, edge)
        if edge not in job.open:
            self._violated("input ended twice", f"{request_id}: {edge}")
        if made not in self._book.ended or self._book.chunks[made] != job.got[edge]:
            self._violated(
                "input cut", f"{request_id}: {job.got[edge]} of {self._book.chunks[made]} chunks came from {edge}"
            )
        job.open.discard(edge)

    def abort(self, request_id: str) -> list[StageOutput]:
        job = self.jobs.pop(request_id, None)
        if job is None or not job.units or job.report_at is not None or chance(self._seed, f"rest {request_id}") % 2:
            return []
        return [StageOutput(request_id, self._say(job, request_id), usage={"units": job.units})]

    def has_work(self, request_id: str) -> bool:
        job = self.jobs.get(request_id)
        if job is None or job.silent:
            return False
        if job.report_at is not None:
            return self._now() >= job.report_at
        return bool(job.queue) or not job.open

    def step(self, ready: Sequence[str]) -> list[StageOutput]:
        dice = chance(self._seed, f"step {self._stage.name} {len(ready)} {ready[0]} {self.jobs[ready[0]].units}")
        self.spent += self._stage.step_s * (0.25 + (dice & 0xFF) / 256)
        if len(ready) > self._stage.inflight:
            self._violated("too many computed at once", f"{ready} of {self._stage.inflight} at {self._stage.name}")
        outputs: list[StageOutput] = []
        ids = [self.jobs[request_id].spec.id for request_id in ready]
        for request_id in ready:
            job = self.jobs[request_id]
            job.units += 1
            self._book.units[(job.spec.id, job.attempt, self._stage.name)] += 1
            fate: FaultKind
            for fate in ("hang", "crash"):
                if self._strikes(job, fate):
                    self.fate = fate
                    return []
            if self._strikes(job, "raise"):
                for other in ids:
                    self._struck(other, self._stage.name, "raise")
                raise StageError("the step failed")
            outputs += self._unit(job, request_id)
        return outputs

    def close(self) -> None:
        """Nothing to free."""

    # --- A unit ----------------------------------------------------------------------------------------------------

    def _unit(self, job: _Job, request_id: str) -> list[StageOutput]:
        if self._strikes(job, "slow"):
            self.spent += 0.9
        if self._strikes(job, "error"):
            del self.jobs[request_id]
            return [StageOutput(request_id, error=StageError("the engine cannot go on"))]
        if self._strikes(job, "wrong"):
            return [StageOutput(request_id, chunks={"nowhere": [Chunk()]})]
        if self._strikes(job, "silent"):
            job.silent = True
            return []
        if job.report_at is not None:
            return [self._finished(job, request_id, None)]
        if job.queue:
            _, chunk = job.queue.popleft()
            self._look(job, chunk)
            job.eaten += 1
            job.kept = chunk if chance(self._seed, f"keep {request_id} {job.eaten}") % 2 else None
        if not self._is_last(job):
            return [StageOutput(request_id, self._say(job, request_id), self._chunks(job, request_id))]
        late = next((fault for n, fault in job.faults if fault.kind == "late" and self._strike(job, n, fault)), None)
        if late is None:
            return [self._finished(job, request_id, self._say(job, request_id, rest=True))]
        job.report_at = self._now() + late.seconds
        if late.times < 99:
            self._wake_at(job.report_at)
        else:
            job.silent = True  # the report never comes
        content = self._say(job, request_id, rest=True)
        chunks = self._chunks(job, request_id)
        self._book.ended.add((job.spec.id, job.attempt, self._stage.name))
        return [StageOutput(request_id, content, chunks, ended=True)]

    def _is_last(self, job: _Job) -> bool:
        if not self._sources:
            return job.units >= job.spec.pieces
        enough = job.spec.stops_after is not None and job.eaten >= job.spec.stops_after
        return enough or (not job.queue and not job.open)

    def _finished(self, job: _Job, request_id: str, content: str | Audio | None) -> StageOutput:
        del self.jobs[request_id]
        chunks = {} if job.report_at is not None else self._chunks(job, request_id)
        self._book.ended.add((job.spec.id, job.attempt, self._stage.name))
        return StageOutput(request_id, content, chunks, finish_reason="stop", usage={"units": job.units})

    def _say(self, job: _Job, request_id: str, *, rest: bool = False) -> str | Audio | None:
        """The next piece of the whole."""
        if self._stage.final is None or job.at == len(job.whole):
            return None
        most = max(1, len(job.whole) // job.spec.pieces)
        size = 1 + chance(self._seed, f"cut {request_id} {job.at}") % most
        piece = job.whole[job.at :] if rest else job.whole[job.at : job.at + size]
        job.at += len(piece)
        return sound(piece) if self._stage.final == "audio" else piece

    def _chunks(self, job: _Job, request_id: str) -> dict[str, list[Chunk]]:
        """The same for all consumers: what goes by ring is in one slot for several of them."""
        if not self._targets:
            return {}
        count = (1, 1, 0, 2)[chance(self._seed, f"chunks {request_id} {job.units}") % 4]
        made = []
        for _ in range(count):
            job.made += 1
            arrays = {"a": _array(job.made)} if self._large else {}
            tensors = {"t": _Unwritable(RING_CHUNK if self._large else 1)} if self._strikes(job, "unwritable") else {}
            made.append(Chunk({"by": f"{request_id}", "n": job.made}, arrays, tensors))
        self._book.chunks[(job.spec.id, job.attempt, self._stage.name)] += count
        return dict.fromkeys(self._targets, made)

    # --- Checks of what comes --------------------------------------------------------------------------------------

    def _check(self, job: _Job, edge: str, chunk: Chunk) -> None:
        job.got[edge] += 1
        expected = {"by": f"{job.spec.id}/{job.attempt}/{edge}", "n": job.got[edge]}
        if dict(chunk.meta) != expected or edge not in job.open:
            self._violated("wrong chunk", f"{self._stage.name} was fed {dict(chunk.meta)}, not {expected}")

    def _look(self, job: _Job, chunk: Chunk) -> None:
        """At the bytes, when they are used: what is held must still be there."""
        n = chunk.meta["n"]
        assert isinstance(n, int)
        for array in chunk.arrays.values():
            if array.shape != (RING_CHUNK,) or not np.array_equal(array[::997], _array(n)[::997]):
                self._violated("bytes changed", f"{self._stage.name}: chunk {dict(chunk.meta)} of {job.spec.id}")

    # --- Faults ----------------------------------------------------------------------------------------------------

    def _strikes(self, job: _Job, kind: FaultKind) -> bool:
        return any(fault.kind == kind and self._strike(job, n, fault) for n, fault in job.faults)

    def _strike(self, job: _Job, n: int, fault: Fault) -> bool:
        """Whether this fault strikes here."""
        if fault.kind not in ("add", "late") and job.units < fault.at:
            return False
        if self._book.strikes[n] >= fault.times:
            return False
        self._book.strikes[n] += 1
        self._struck(job.spec.id, self._stage.name, fault.kind)
        return True


def _array(n: int) -> np.ndarray:
    start = n * 37 % 256
    return _PATTERN[start : start + RING_CHUNK]
