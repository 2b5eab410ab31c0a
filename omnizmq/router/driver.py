"""Feeds lifecycles and carries out what they order (S2-S4, C4, F1, F2). Pure.

An exception about one request fails that request and is counted; nothing about one request ends the router (F1).
"""

from __future__ import annotations

from typing import assert_never

from omnizmq import protocol as wire
from omnizmq.errors import OmnizmqError, ProtocolError
from omnizmq.router import contents
from omnizmq.router import lifecycle as life
from omnizmq.router.pools import Binding
from omnizmq.router.request import Attempt, Request
from omnizmq.router.state import RouterState


class Driver:
    """For all requests of one deployment."""

    def __init__(self, state: RouterState) -> None:
        self._state = state

    def start(self, request: Request, bound: dict[str, Binding]) -> None:
        """It has a replica for every stage."""
        request.attempt.bindings = bound
        for stage, binding in bound.items():
            self._state.record(request, "bound", stage, {"replica": binding.replica})
        self.advance(request, life.Bound())

    def advance(self, request: Request, event: life.Event, attempt: Attempt | None = None) -> None:
        """Feed an attempt's lifecycle (by default the present one's) and carry out its commands. Whatever goes wrong is
        this request's alone (F1)."""
        attempt = attempt or request.attempt
        late = attempt.lifecycle.late
        following: list[life.Event] = []
        self._obey(request, attempt, self._commands(attempt, event), following)
        while following:
            self._obey(request, attempt, self._commands(attempt, following.pop(0)), following)
        self._state.counters.late_frames += attempt.lifecycle.late - late
        if attempt.lifecycle.settled:
            request.attempts.pop(attempt.number, None)
            if not request.attempts:
                self._state.record(request, "cleaned")
                self._state.requests.remove(request)
                self._state.timers.cancel(request.id)

    def _obey(
        self, request: Request, attempt: Attempt, commands: list[life.Command], following: list[life.Event]
    ) -> None:
        """Carry them out; what it means that one could not be is among what follows."""
        for command in commands:
            try:
                self._carry_out(request, attempt, command, following)
            except Exception as error:  # noqa: BLE001 (F1: the boundary between one request and all the others)
                following.append(self._failure(command, error))

    def _commands(self, attempt: Attempt, event: life.Event) -> list[life.Command]:
        """What the lifecycle orders. An event that cannot be fails the request: its stage does what it should not."""
        try:
            return attempt.lifecycle.handle(event)
        except Exception as error:  # noqa: BLE001 (the same boundary)
            return attempt.lifecycle.handle(life.Failed(self._blame(error)))

    def _failure(self, command: life.Command, error: Exception) -> life.Event:
        """What it means for a request that one of its commands could not be carried out."""
        blamed = self._blame(error)
        if isinstance(command, life.SubmitStage):
            return life.SubmissionFailed(command.stage, blamed)
        return life.Failed(blamed)

    def _blame(self, error: Exception) -> wire.ErrorInfo:
        if isinstance(error, ProtocolError):
            self._state.counters.bad_frames += 1
            return wire.ErrorInfo.of(error)
        self._state.counters.router_errors += 1
        return wire.ErrorInfo.of(OmnizmqError(f"the router failed on this request: {type(error).__name__}: {error}"))

    def _carry_out(
        self, request: Request, attempt: Attempt, command: life.Command, following: list[life.Event]
    ) -> None:
        state = self._state
        match command:
            case life.Deliver():  # first, because nearly all are
                state.counters.outputs += 1
                state.to_caller(request, request.delivery(command))
                if state.limits.trace:
                    self._delivered(request, command)
            case life.SubmitStage():
                submission = request.submission(command.stage, state.pools)
                state.record(request, "submitted", command.stage)
                state.to_stage(attempt, command.stage, submission)
            case life.FeedStage():
                state.to_stage(attempt, command.stage, wire.FeedStage(*attempt.key, command.source, command.data))
            case life.PassOver():
                state.credit(request, command.stage)
            case life.AbortStage():
                state.to_stage(attempt, command.stage, wire.AbortStage(*attempt.key))
            case life.SendTerminal():
                self._terminal(request, command)
            case life.Redrive():
                following.append(self._answer(request, command.error))
            case life.ReleaseStage():
                state.may_admit = True
                if command.stage in attempt.bindings:
                    state.pools.release(attempt.key, attempt.bindings[command.stage])
            case life.LeaveBehind():
                self._leave_behind(request, attempt, command.stage)
            case life.StartAbortTimer():
                until = state.now + state.limits.abort_timeout_s
                state.timers.add(until, request.id, "abort", attempt.number)
            case life.StartGrace():
                state.record(request, "withheld", detail={"stages": ",".join(command.waiting_for)})
                until = state.now + state.limits.terminal_grace_s
                state.timers.add(until, request.id, "grace", attempt.number)
            case _:
                assert_never(command)

    def _delivered(self, request: Request, command: life.Deliver) -> None:
        """Facts of what went to the caller: the first output of a stage, and the last."""
        state, stage = self._state, command.stage
        if command.content is not None:
            request.output_ns[stage] = int(state.now * 1e9)
        if request.delivered[stage].sent == 1:
            state.record(request, "published", stage)
        if state.limits.trace_contents and command.content is not None:
            state.record(request, "output", stage, contents.of_output(command.content))
        if command.stage_finished:
            state.record(request, "delivered", stage)

    def _terminal(self, request: Request, command: life.SendTerminal) -> None:
        state = self._state
        if command.finish_reason == "error":
            state.counters.failed += 1
        elif command.finish_reason == "abort":
            state.counters.aborted += 1
        else:
            state.counters.finished += 1
        state.admission.queue.remove(request.id)
        state.paused.discard(request.id)
        for stage, at_ns in request.output_ns.items():
            delivered = request.delivered[stage]
            if delivered.begun or command.finish_reason == "abort":  # nothing else tells how far it came
                detail: dict[str, wire.Value] = {"outputs": delivered.sent}
                state.record(request, "last_output", stage, detail, at_ns=at_ns)
        state.record(request, "terminal", command.stage, request.terminal_facts(command))
        state.to_caller(request, request.terminal(command))

    def _leave_behind(self, request: Request, attempt: Attempt, stage: str) -> None:
        binding = attempt.bindings[stage]
        where: dict[str, wire.Value] = {"replica": binding.replica}
        self._state.record(request, "left_behind", stage, where, attempt=attempt)
        self._state.pools.leave_behind(attempt.key, binding)

    # --- Re-drive (F2) ---------------------------------------------------------------------------------------------

    def _answer(self, request: Request, lost: wire.ErrorInfo) -> life.Event:
        """Whether another attempt follows the one that was lost."""
        if not self._may_redrive(request, lost):
            return life.Failed(lost)
        self._drive_again(request, lost)
        return life.Superseded()

    def _may_redrive(self, request: Request, lost: wire.ErrorInfo) -> bool:
        limits = self._state.limits
        if limits.redrive == "never" or request.attempt.number >= limits.max_attempts:
            return False
        return limits.redrive == "wait" or self._state.pools.can_serve(request.plan.names, request.would_shun(lost))

    def _drive_again(self, request: Request, lost: wire.ErrorInfo) -> None:
        """The next attempt: at once where there is room, else from the queue, however long that is."""
        self._state.counters.redriven += 1
        self._state.paused.discard(request.id)
        request.begin_again(lost)
        self._state.record(request, "redriven", detail={"why": lost.message, "code": lost.code})
        self._state.wait(request)
