"""How a run is shown to people: a trace of events, and what did not hold with the command that tells it again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from omnizmq import protocol as wire
from sim.fate import Violation
from sim.schedule import START
from sim.story import Story
from sim.world import World

_WIDTH = 240


@contextmanager
def without_logs() -> Iterator[None]:
    """The cores log what goes wrong, and here much does."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def traced(story: Story, write: Callable[[str], object]) -> Violation | None:
    """Tell it, and write a line for every event: when, where, what."""

    def log(who: str, what: object) -> None:
        text = _text(what)
        write(f"{world.schedule.now - START:10.4f}  {who:<26} {text if len(text) <= _WIDTH else text[:_WIDTH] + '…'}\n")

    world = World(story, log)
    return world.tell_all()


def _text(what: object) -> str:
    """Without what the system made up: descriptors, and a ring's number."""
    if isinstance(what, wire.RingOffer):
        return f"RingOffer(quota={what.quota})"
    if isinstance(what, wire.RingChunk) and what.spill is not None:
        return f"{msgspec.structs.replace(what, spill=None)} spilled"
    return str(what)


def failure(seed: int, violation: Violation) -> str:
    return (
        f"seed {seed}: {violation.name}\n  {violation.text}\n"
        f"  again: cd tests && python -m sim.replay {seed} --trace    smaller: python -m sim.replay {seed} --shrink\n"
    )
