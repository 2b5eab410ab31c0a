"""Facts to several places."""

from __future__ import annotations

from typing import Protocol

from omnizmq.trace.facts import Fact


class FactSink(Protocol):
    """Where facts go. `append` waits for nothing and raises nothing."""

    def append(self, fact: Fact) -> None: ...


class Tee:
    """Each fact to each of the sinks, in their order."""

    def __init__(self, *sinks: FactSink) -> None:
        self._sinks = sinks

    def append(self, fact: Fact) -> None:
        for sink in self._sinks:
            sink.append(fact)
