"""Requests of a batch: each has a slot or waits for one, and fails alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from omnizmq.errors import OmnizmqError, StageError
from omnizmq.workers.engines.hf.sampling import Sampler
from omnizmq.workers.engines.hf.slots import Slots
from omnizmq.workers.engines.torch_errors import failure_of


@dataclass(kw_only=True)
class Held:
    """What every engine keeps of a request. `slot`: None while it waits for one."""

    request_id: str
    sampler: Sampler
    slot: int | None = None
    failure: OmnizmqError | None = None

    @property
    def own_slot(self) -> int:
        assert self.slot is not None
        return self.slot


R = TypeVar("R", bound=Held)


class Requests(Generic[R]):
    """Those that an engine has. Slots are given in the order in which they came. `wake`: another one got a slot."""

    def __init__(self, slots: Slots, wake: Callable[[], None]) -> None:
        self._slots = slots
        self._wake = wake
        self._held: dict[str, R] = {}

    def __getitem__(self, request_id: str) -> R:
        return self._held[request_id]

    def get(self, request_id: str) -> R | None:
        return self._held.get(request_id)

    def add(self, request: R) -> None:
        self._held[request.request_id] = request
        self._give_slots()

    def forget(self, request: R) -> None:
        """Its slot is free; of one that failed nothing is left there, since it may be what no number is."""
        del self._held[request.request_id]
        if request.slot is not None:
            if request.failure is not None:
                self._slots.wipe(request.slot)
            self._slots.give_back(request.slot)
            self._give_slots()
            self._wake()

    def clear(self) -> None:
        self._held.clear()

    def _give_slots(self) -> None:
        for request in self._held.values():
            if not self._slots.any_free:
                return
            if request.slot is None:
                request.slot = self._slots.take()


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
    """The failure of a request whose logits are no numbers."""
    return StageError("the model's output is not finite: its weights are broken, or its dtype is too small for them")
