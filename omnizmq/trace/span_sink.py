"""Facts gathered to spans while requests run, and handed to an exporter when they have ended.

`SpanSink` promises its caller that `append` is O(1), waits for nothing and raises nothing. A thread of its own makes
the spans and exports them in batches. A collector that is slow or down costs spans, which are counted, and nothing
else: what may be gathered, and what may wait, is bounded.

Knows no SDK: an exporter is whatever sends spans.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from omnizmq.trace import spans
from omnizmq.trace.events import BEGINS, EACH
from omnizmq.trace.facts import Fact
from omnizmq.trace.spans import Span

BATCH_INTERVAL_S = 1.0
"""How long ended requests are gathered before their spans are sent."""

BATCH_REQUESTS = 128
"""The most requests of one message to the collector."""

MAX_LIVE = 8192
"""Requests that are gathered at once; the spans of more are dropped."""

MAX_WAITING = 2048
"""Ended requests that wait for the collector; the spans of more are dropped."""

MAX_EACH = 1000
"""Facts about single chunks and outputs that one request's spans keep as events; more are left out."""

CLOSE_TIMEOUT_S = 3.0
"""How long the last spans may take to leave."""

GIVE_UP_S = 1.0
"""How long it may then take the exporter to give up."""

_logger = logging.getLogger(__name__)


class SpanExporter(Protocol):
    """Where spans go. Used in one thread, but for `close`, which makes a waiting `export` give up."""

    def export(self, spans: Sequence[Span]) -> str | None:
        """Send them, within a limited time. None: they have arrived; else why not."""

    def close(self) -> None: ...


class SpanSink:
    """Spans of the facts that one thread appends, to `exporter`. `model` is the deployment's, if it has one."""

    def __init__(
        self,
        exporter: SpanExporter,
        *,
        model: str = "",
        interval_s: float = BATCH_INTERVAL_S,
        max_live: int = MAX_LIVE,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._exporter = exporter
        self._model = model
        self._interval_s = interval_s
        self._max_live = max_live
        self._max_waiting = max_waiting
        self._live: dict[str, _Gathered] = {}
        self._ended: queue.SimpleQueue[list[Fact] | None] = queue.SimpleQueue()
        self._hurry = threading.Event()
        self._closed = False
        self._not_taken = 0  # spans, counted by the appending thread
        self._not_sent = 0  # by the sink's own
        self._failing = False
        self.exported = 0
        self._thread = threading.Thread(target=self._run, name="omnizmq-spans", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Spans that did not reach the collector, so far."""
        return self._not_taken + self._not_sent

    def append(self, fact: Fact) -> None:
        """Take a fact; with its request's last one, the request's spans are due."""
        if self._closed:
            return
        gathered = self._live.get(fact.request_id)
        if gathered is None:
            if fact.event not in BEGINS:  # of one that was not taken
                return
            if len(self._live) >= self._max_live:
                self._not_taken += fact.event != "asked"  # the request's own, once
                return
            gathered = self._live[fact.request_id] = _Gathered()
        gathered.add(fact)
        if fact.event == "cleaned" or (fact.event == "refused" and not gathered.taken):
            del self._live[fact.request_id]
            self._end(gathered.facts)

    def _end(self, facts: list[Fact]) -> None:
        if self._ended.qsize() >= self._max_waiting:
            self._not_taken += spans.count(facts)
        else:
            self._ended.put(facts)

    def close(self) -> None:
        """Send what is left, also of requests that have not ended, and stop, in bounded time. May be repeated."""
        if not self._closed:
            self._closed = True
            for gathered in self._live.values():
                self._end(gathered.facts)
            self._live.clear()
            self._ended.put(None)
            self._hurry.set()
            self._thread.join(CLOSE_TIMEOUT_S)
            self._exporter.close()
        self._thread.join(GIVE_UP_S)

    # --- The thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        going = True
        while going:
            batch, going = self._next_batch()
            made = [span for facts in batch for span in self._make(facts)]
            if made:
                self._send(made)

    def _next_batch(self) -> tuple[list[list[Fact]], bool]:
        """What has ended until the interval was over, or the end came (False)."""
        batch: list[list[Fact]] = []
        facts = self._ended.get()
        self._hurry.wait(self._interval_s)
        try:
            while facts is not None:
                batch.append(facts)
                if len(batch) == BATCH_REQUESTS:
                    return batch, True
                facts = self._ended.get_nowait()
        except queue.Empty:
            return batch, True
        return batch, False

    def _make(self, facts: list[Fact]) -> list[Span]:
        """None of one request's facts may cost the spans of the others."""
        try:
            # Anew each time: the wall clock may have been set.
            return spans.make(facts, offset_ns=time.time_ns() - time.monotonic_ns(), model=self._model)
        except Exception:
            self._not_sent += spans.count(facts)
            _logger.exception("the spans of %s cannot be made", facts[0].request_id)
            return []

    def _send(self, made: Sequence[Span]) -> None:
        why = self._exporter.export(made)
        if why is None:
            self.exported += len(made)
            if self._failing:
                _logger.info("spans are exported again; %d were dropped so far", self.dropped)
        else:
            self._not_sent += len(made)
            if not self._failing:
                _logger.warning("%s; spans are dropped until it takes them", why)
        self._failing = why is not None


class _Gathered:
    """The facts of one live request. `taken`: it was received, so that no refusal is about it."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.taken = False
        self._each = 0

    def add(self, fact: Fact) -> None:
        if fact.event == "received":
            self.taken = True
        elif fact.event in EACH:
            self._each += 1
            if self._each > MAX_EACH:
                return
        self.facts.append(fact)
