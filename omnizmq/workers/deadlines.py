"""What has waited too long, at a tick: callers that do not read (B1), edges on which nothing comes (R4), engines that
neither make anything nor end. Pure.

Of a silent edge the producer's gate is the judge, because it alone knows whether the producer has what it needs: all
its input, a slot, credit and room. What is judged is therefore the most upstream silence. Time in which the engine has
work for the request, or makes anything of it, does not count. Only a join that cannot be fed is judged by the consumer:
the edge that it waits for stays empty while another one's credits are held back (B4).
"""

from __future__ import annotations

from collections.abc import Mapping

from omnizmq.errors import InputTimeoutError, SlowReaderError, StageError
from omnizmq.workers.caller import CallerEdge
from omnizmq.workers.edges import InEdge, OutEdge
from omnizmq.workers.work import Work


class Deadlines:
    """Of one worker incarnation. `reader_grace_s`: of a pause; `input_timeouts_s`: how long a join waits for an edge
    in, by its source, when it cannot take more of another;
    `output_timeout_s`: of an engine that makes nothing, whoever waits for it. None: for ever."""

    def __init__(
        self,
        stage: str,
        replica: str,
        reader_grace_s: float,
        input_timeouts_s: Mapping[str, float],
        output_timeout_s: float | None = None,
    ) -> None:
        self._stage = stage
        self._replica = replica
        self._reader_grace_ns = _ns(reader_grace_s)
        self._output_timeout_ns = None if output_timeout_s is None else _ns(output_timeout_s)
        self._input_timeouts_ns = {source: _ns(seconds) for source, seconds in input_timeouts_s.items()}

    def passed(self, work: Work, now_ns: int) -> SlowReaderError | InputTimeoutError | None:
        """Why the request has to fail, as far as that is known without its engine."""
        caller = work.caller
        if caller is not None and caller.paused and now_ns - caller.since_ns >= self._reader_grace_ns:
            return self._slow_reader(caller, now_ns)
        return None if work.input_ready else self._unfed(work, now_ns)

    def probes(self, work: Work, now_ns: int) -> bool:
        """Whether its engine has to be asked if it is at work on it, having said nothing for so long."""
        edge = self._silent_edge(work, now_ns)
        limit_ns = self._output_timeout_ns if edge is None else _ns(edge.target.input_timeout_s)
        silent = edge is not None or self._makes_nothing(work, now_ns)
        if not silent or limit_ns is None or now_ns - work.probed_ns < limit_ns:
            return False
        work.probed_ns = now_ns
        return True

    def silence(self, work: Work, now_ns: int) -> InputTimeoutError | StageError | None:
        """Of a request for which its engine has nothing to do, why it has to fail (R4)."""
        edge = self._silent_edge(work, now_ns)
        if edge is None:
            return self._unmade(work, now_ns) if self._makes_nothing(work, now_ns) else None
        text = (
            f"edge {self._stage}->{edge.target.stage}: {self._replica} sent nothing for "
            f"{_seconds(now_ns - work.moved_ns)} {_after(edge.sent + len(edge.waiting))} (edge.input_timeout_s)"
        )
        return InputTimeoutError(text)

    def _silent_edge(self, work: Work, now_ns: int) -> OutEdge | None:
        """The first edge out whose time is up, of a request that has all that it needs."""
        if not work.running or work.awaits_input:
            return None
        edges = (edge for edge in work.targets.values() if edge.open)
        return next((edge for edge in edges if now_ns - work.moved_ns >= _ns(edge.target.input_timeout_s)), None)

    def _makes_nothing(self, work: Work, now_ns: int) -> bool:
        """Of a request that has all that it needs, whatever edges it has."""
        limit_ns = self._output_timeout_ns
        if limit_ns is None or not work.running or work.awaits_input:
            return False
        return now_ns - work.moved_ns >= limit_ns

    def _unmade(self, work: Work, now_ns: int) -> StageError:
        made = 0 if work.caller is None else work.caller.sent + len(work.caller.waiting)
        what = "its end was not reported" if work.ended else f"nothing was made after output {made}"
        return StageError(f"{what} for {_seconds(now_ns - work.moved_ns)} (stage.output_timeout_s)")

    def _unfed(self, work: Work, now_ns: int) -> InputTimeoutError | None:
        """Of a request that waits for one edge, while the credits of another are held back (B4)."""
        full = next((edge for edge in work.sources.values() if edge.open and edge.withheld), None)
        if full is None:
            return None
        for edge in work.sources.values():
            timeout_ns = self._input_timeouts_ns.get(edge.source.stage)
            waited_ns = now_ns - max(edge.came_ns, full.came_ns)
            if not edge.has_input and timeout_ns is not None and waited_ns >= timeout_ns:
                return self._starved(edge, full, waited_ns)
        return None

    def _starved(self, edge: InEdge, full: InEdge, waited_ns: int) -> InputTimeoutError:
        source = edge.source
        text = (
            f"edge {source.stage}->{self._stage}: {source.replica} sent nothing for {_seconds(waited_ns)} "
            f"{_after(edge.received)} (edge.input_timeout_s), and edge {full.source.stage}->{self._stage} cannot go "
            f"on before: {full.prepaid_bytes} bytes of it wait at {self._replica}"
        )
        return InputTimeoutError(text, stage=source.stage, replica=source.replica)

    def _slow_reader(self, caller: CallerEdge, now_ns: int) -> SlowReaderError:
        text = (
            f"the caller has left {caller.unread} outputs of {self._stage} unread, and has read none for "
            f"{_seconds(now_ns - caller.since_ns)} (router.slow_reader_grace_s)"
        )
        return SlowReaderError(text)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _seconds(ns: int) -> str:
    return f"{round(ns / 1e9, 1):g} s"


def _after(seq: int) -> str:
    return f"after chunk {seq}" if seq else "from the start"
