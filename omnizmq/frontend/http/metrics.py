"""What the bridge counts and measures, for Prometheus. Labels are bounded: no ids, no words of a caller.

Names without a prefix are those that dashboards of omni-modality servers know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from omnizmq import __version__
from omnizmq.errors import OmnizmqError
from omnizmq.frontend.http.measuring import Latencies, Measured
from omnizmq.frontend.http.status_metrics import StatusMetrics
from omnizmq.frontend.output import RequestOutput

FINISH_REASONS = ("stop", "length", "abort")

_FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_WHOLE = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_SOUND = (0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_RTF = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1, 1.2, 1.5, 2, 5, 10)


class Metrics:
    """Of one bridge."""

    def __init__(self, model: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # no gauges of when each was made
        self.latencies = Latencies()
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        build = Gauge("omnizmq_build_info", "1.", ["version", "model"], registry=registry)
        build.labels(__version__, model).set(1)
        self._answers = Counter(
            "omnizmq_http_answers", "Answers that began, by their status.", ["path", "status"], registry=registry
        )
        self._in_flight = Gauge("omnizmq_http_in_flight", "Requests in work at the bridge.", registry=registry)
        success = Counter(
            "requests_success", "Requests that ended without an error.", ["finished_reason"], registry=registry
        )
        self._success = {reason: success.labels(reason) for reason in FINISH_REASONS}
        self._failed = Counter(
            "omnizmq_requests_failed", "Requests that ended with an error.", ["code"], registry=registry
        )
        outputs = Counter(
            "omnizmq_outputs", "Pieces of text and sound from the stages.", ["modality"], registry=registry
        )
        self._texts, self._sounds = outputs.labels("text"), outputs.labels("audio")
        self._sound_bytes = Counter(
            "omnizmq_audio_bytes", "Of sound from the stages, before it is encoded.", registry=registry
        )
        self._first_text = Histogram(
            "omnizmq_first_text_seconds", "From a request to its first text.", buckets=_FIRST, registry=registry
        )
        self._first_audio = Histogram(
            "audio_ttfp_s", "From a request to its first sound.", buckets=_FIRST, registry=registry
        )
        self._duration = Histogram(
            "omnizmq_request_seconds", "From a request to its end.", buckets=_WHOLE, registry=registry
        )
        self._rtf = Histogram(
            "audio_rtf", "Seconds until the last sound, a second of sound.", buckets=_RTF, registry=registry
        )
        self._sound = Histogram("audio_duration_s", "Of an answer's sound.", buckets=_SOUND, registry=registry)
        self._underrun = Histogram(
            "audio_underrun_s", "How long a player of the stream would have waited.", buckets=_FIRST, registry=registry
        )

    def count(self, path: str, status: int) -> None:
        """`path`: as the application states it, ids left open."""
        self._answers.labels(path, str(status)).inc()

    @contextmanager
    def request(self) -> Iterator[Callable[[RequestOutput], None]]:
        """One request: is told each of its outputs. To leave it before its terminal is to abort it."""
        measured = Measured(time.monotonic())
        reason = "abort"

        def take(output: RequestOutput) -> None:
            nonlocal reason
            reason = output.finish_reason or reason
            self._take(measured, output)

        try:
            yield take
        except Exception as error:
            self._failed.labels(error.code if isinstance(error, OmnizmqError) else "internal_error").inc()
            raise
        except BaseException:
            self._ended(measured, reason)
            raise
        else:
            self._ended(measured, reason)

    def exposition(self, status: Mapping[str, Any] | None, in_flight: int) -> bytes:
        """In Prometheus' text format. `status`: the router's; None: it gave none."""
        self._in_flight.set(in_flight)
        return generate_latest(self._registry) + generate_latest(StatusMetrics(status))

    def _take(self, measured: Measured, output: RequestOutput) -> None:
        measured.take(output, time.monotonic())
        if output.text:
            self._texts.inc()
        if output.audio is not None:
            self._sounds.inc()
            self._sound_bytes.inc(output.audio.nbytes)

    def _ended(self, measured: Measured, reason: str) -> None:
        measured.end(time.monotonic())
        self._success[reason].inc()
        if reason == "abort":
            return
        self.latencies.add(measured)
        self._duration.observe(measured.duration_s)
        if measured.first_text_s is not None:
            self._first_text.observe(measured.first_text_s)
        if measured.first_audio_s is not None and measured.rtf is not None:
            self._first_audio.observe(measured.first_audio_s)
            self._rtf.observe(measured.rtf)
            self._sound.observe(measured.audio_s)
            self._underrun.observe(measured.underrun_s)
