"""Slots go to those who may compute, and what they held comes back whole."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from omnizmq.workers.engines.hf.requests import Held, Requests  # noqa: E402 (they import torch)
from omnizmq.workers.engines.hf.sampling import Sampler, Sampling, generator  # noqa: E402
from omnizmq.workers.engines.hf.slots import Slots  # noqa: E402

pytestmark = pytest.mark.transformers

CPU = torch.device("cpu")
CONFIG: Any = SimpleNamespace(head_dim=4, num_key_value_heads=2, num_hidden_layers=3)


@dataclass(kw_only=True)
class One(Held):
    tokens: int = 0

    @property
    def length(self) -> int:
        return self.tokens


def two_slots(*names: str) -> tuple[Slots, Requests[One]]:
    slots = Slots(CONFIG, 2, 8, torch.float32, CPU)
    requests: Requests[One] = Requests(slots)
    for name in names:
        requests.add(One(request_id=name, sampler=Sampler(Sampling(), generator(CPU, 1))))
    return slots, requests


def seated(requests: Requests[One], *names: str) -> list[str]:
    return [request.request_id for request in requests.seat(names)]


def write(slots: Slots, request: One, value: float) -> None:
    for held in (*slots.keys, *slots.values):
        held[request.own_slot, :, request.tokens] = value
    request.tokens += 1


def held(slots: Slots, request: One) -> list[list[float]]:
    return [part[request.own_slot, 0, : request.tokens, 0].tolist() for part in (*slots.keys, *slots.values)]


def test_those_that_fit_compute_and_the_others_wait_for_their_turn() -> None:
    _, requests = two_slots("a", "b", "c")
    assert seated(requests, "a", "b", "c") == ["a", "b"]
    requests.forget(requests["a"])
    assert seated(requests, "b", "c") == ["b", "c"]


def test_one_that_may_not_go_on_makes_room_and_finds_what_it_held() -> None:
    slots, requests = two_slots("a", "b", "c")
    assert seated(requests, "a", "b") == ["a", "b"]
    for value in (1.0, 2.0):
        write(slots, requests["a"], value)
    write(slots, requests["b"], 3.0)
    assert seated(requests, "b", "c") == ["b", "c"]
    assert requests["a"].slot is None
    for _ in range(4):
        write(slots, requests["c"], 9.0)
    assert seated(requests, "a", "c") == ["a", "c"]
    assert held(slots, requests["a"]) == [[1.0, 2.0]] * 6
    assert seated(requests, "b", "a") == ["b", "a"]
    assert held(slots, requests["b"]) == [[3.0]] * 6
    assert requests["b"].saved == []


def test_who_computed_longest_ago_makes_room_first() -> None:
    _, requests = two_slots("a", "b", "c")
    seated(requests, "a")
    seated(requests, "b")
    seated(requests, "a")
    assert seated(requests, "c") == ["c"]
    assert [name for name in "abc" if requests[name].slot is not None] == ["a", "c"]


def test_what_fails_leaves_nothing_in_its_slot() -> None:
    from omnizmq.errors import StageError

    slots, requests = two_slots("a", "b")
    seated(requests, "a", "b")
    write(slots, requests["a"], float("nan"))
    number = requests["a"].own_slot
    requests["a"].failure = StageError("not finite")
    requests.forget(requests["a"])
    assert all(bool((part[number] == 0).all()) for part in (*slots.keys, *slots.values))


def test_one_that_ends_while_it_waits_takes_no_slot_with_it() -> None:
    _, requests = two_slots("a", "b", "c", "d")
    seated(requests, "a", "b")
    seated(requests, "c", "d")
    requests.forget(requests["a"])
    assert seated(requests, "b", "c") == ["b", "c"]
    requests.forget(requests["b"])
    requests.forget(requests["c"])
    assert seated(requests, "d") == ["d"]
