"""Requests of a batch: slots are of those that compute, and each fails alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

from omnizmq.errors import OmnizmqError, StageError
from omnizmq.workers.engines.hf.sampling import Sampler
from omnizmq.workers.engines.hf.slots import Slots
from omnizmq.workers.engines.torch_errors import failure_of


@dataclass(kw_only=True)
class Held:
    """What every engine keeps of a request. `slot`: None while others compute; then `saved` is what it held."""

    request_id: str
    sampler: Sampler
    slot: int | None = None
    saved: list[torch.Tensor] = field(default_factory=list)
    failure: OmnizmqError | None = None

    @property
    def length(self) -> int:
        """Positions that its slot holds."""
        raise NotImplementedError

    @property
    def own_slot(self) -> int:
        assert self.slot is not None
        return self.slot


R = TypeVar("R", bound=Held)


class Requests(Generic[R]):
    """Those that an engine has. A slot is of who computes: one that may not go on (its caller does not read, an edge is
    full) makes room for one that may, and its keys and values wait on the host."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._held: dict[str, R] = {}
        self._seated: dict[str, R] = {}  # the one that computed longest ago first

    def __getitem__(self, request_id: str) -> R:
        return self._held[request_id]

    def get(self, request_id: str) -> R | None:
        return self._held.get(request_id)

    def add(self, request: R) -> None:
        self._held[request.request_id] = request

    def seat(self, request_ids: Sequence[str]) -> list[R]:
        """Those of them that can compute now, in their order: as many as there are slots."""
        requests = [self._held[request_id] for request_id in request_ids]
        others = deque(request for request in self._seated.values() if request.request_id not in request_ids)
        for request in requests:
            if request.slot is None and not self._slots.any_free and others:
                self._unseat(others.popleft())
            if request.slot is None and self._slots.any_free:
                request.slot = self._slots.take()
                if request.saved:
                    self._slots.restore(request.slot, request.saved)
                    request.saved = []
            if request.slot is not None:
                self._seated.pop(request.request_id, None)
                self._seated[request.request_id] = request
        return [request for request in requests if request.slot is not None]

    def _unseat(self, request: R) -> None:
        request.saved = self._slots.save(request.own_slot, request.length)
        self._leave(request)

    def _leave(self, request: R) -> None:
        del self._seated[request.request_id]
        self._slots.give_back(request.own_slot)
        request.slot = None

    def forget(self, request: R) -> None:
        """Its slot is free; of one that failed nothing is left there, since it may be what no number is."""
        del self._held[request.request_id]
        if request.slot is not None:
            if request.failure is not None:
                self._slots.wipe(request.slot)
            self._leave(request)

    def clear(self) -> None:
        self._held.clear()
        self._seated.clear()


def attempt(requests: Sequence[R], compute: Callable[[Sequence[R]], None]) -> None:
    """Have them computed together; sets the `failure` of each that cannot be.

    A batch that raises is computed again in halves, down to single requests: what fails alone is that request's error.
    So where memory is short, those that fit alone go on, and the others may be asked again. `compute` gets at least one
    request, and when it raises it has changed nothing of them but their draws, which are put back. Raises
    `EngineBrokenError`, which is no request's.
    """
    if not requests:
        return
    draws = [request.sampler.draws for request in requests]
    before = [one.get_state() for one in draws] if len(requests) > 1 else []
    try:
        compute(requests)
    except Exception as error:  # noqa: BLE001 (F1: whatever the libraries raise is about these requests)
        failure = failure_of(error, ", ".join(request.request_id for request in requests))
    else:
        return
    if len(requests) == 1:
        requests[0].failure = failure
        return
    for one, state in zip(draws, before, strict=True):
        one.set_state(state)
    middle = len(requests) // 2
    attempt(requests[:middle], compute)
    attempt(requests[middle:], compute)


def not_finite() -> StageError:
    """The failure of a request whose logits or samples are no numbers."""
    return StageError("the model's output is not finite: its weights are broken, or its dtype is too small for them")
