"""One attempt of a request in the router, from its bindings to the terminal (S1-S3, C1-C5, A1-A3, A5, A8, R3).

Facts kept apart, none implies another: a stage is *submitted* (the router sent it its submission), *registered* (its
worker holds it), its *output has ended*, it is *finished* (nothing more of it is awaited). The request is *complete*
when every final stage's output has ended (C1), and *ended* when its terminal has gone out (C4). Input-ready and running
are facts of the worker that decide nothing here.

An attempt whose replica was lost asks whether another follows (`Redrive`); then it ends without a terminal
(`Superseded`), and what still computes for it is aborted behind it (F2).

Pure: no sockets, no clock, no tasks. `handle` is the only way in and commands are the only way out. An event that
cannot be, for this request in this state, raises `ProtocolError` and changes nothing; a duplicate or one that a race
explains is counted in `late` and changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from omnizmq.errors import ProtocolError, ReplicaLostError
from omnizmq.pipeline import Plan
from omnizmq.protocol import Content, ErrorInfo
from omnizmq.router.delivered import Delivered

Usage = dict[str, int | float]

SUCCESSES = ("stop", "length")
"""The finish reasons of a stage that did its work."""


class _Event(msgspec.Struct, frozen=True):
    """A fact, in the past tense."""


class Bound(_Event, frozen=True):
    """A replica was chosen for every stage of the plan (S4); the stages may be submitted now."""


class Registered(_Event, frozen=True):
    stage: str


class OutputArrived(_Event, frozen=True):
    """`seq` counts a stage's outputs from 1. `last`: the stage's output has ended."""

    stage: str
    seq: int
    content: Content | None
    last: bool


class RelayArrived(_Event, frozen=True):
    """The whole content of the relay edge from `stage` to `target`, which goes on when `stage` has finished."""

    stage: str
    target: str
    data: bytes


class StageFinished(_Event, frozen=True):
    """The stage's own report: a `finish_reason` or an `error`. `outputs` is how many it sent."""

    stage: str
    finish_reason: str | None
    error: ErrorInfo | None
    usage: Usage
    note: str | None
    outputs: int


class SubmissionFailed(_Event, frozen=True):
    """No worker holds the stage: its submission could not be sent (S3), or its worker is out of reach."""

    stage: str
    error: ErrorInfo


class ReplicaLost(_Event, frozen=True):
    """The replica that this stage is bound to died and was reaped."""

    stage: str
    replica: str
    reason: str


class AbortAsked(_Event, frozen=True):
    """By the caller, or because the caller is gone."""


class Superseded(_Event, frozen=True):
    """Another attempt follows: this one ends without a terminal. Answers `Redrive`, where `Failed` does not."""


class Failed(_Event, frozen=True):
    """The request as a whole failed: its deadline passed, the router met an error about it, the deployment stops."""

    error: ErrorInfo


class AbortTimedOut(_Event, frozen=True):
    """`abort_timeout_s` has passed since stages were told to abort (A6)."""


class GraceExpired(_Event, frozen=True):
    """`terminal_grace_s` has passed since the request was complete (C5)."""


Event = (
    Bound
    | Registered
    | OutputArrived
    | RelayArrived
    | StageFinished
    | SubmissionFailed
    | ReplicaLost
    | AbortAsked
    | Superseded
    | Failed
    | AbortTimedOut
    | GraceExpired
)


class _Command(msgspec.Struct, frozen=True):
    """An order, in the imperative."""


class SubmitStage(_Command, frozen=True):
    stage: str


class FeedStage(_Command, frozen=True):
    """Hand a relay edge's content to its consumer."""

    stage: str
    source: str
    data: bytes


class AbortStage(_Command, frozen=True):
    stage: str


class Deliver(_Command, frozen=True):
    """A final stage's output, for the caller. `stage_finished`: its output has ended (C3)."""

    stage: str
    modality: str
    content: Content | None
    stage_finished: bool


class PassOver(_Command, frozen=True):
    """The caller has this output of the stage already, from an earlier attempt: it counts as consumed (F2)."""

    stage: str


class SendTerminal(_Command, frozen=True):
    """The end of the request for its caller. For an error, `stage` is still the request's own last stage (A2)."""

    stage: str
    modality: str
    finish_reason: str
    error: ErrorInfo | None
    usage: dict[str, Usage]
    usage_incomplete: tuple[str, ...]
    notes: dict[str, str]


class Redrive(_Command, frozen=True):
    """A replica was lost, and the attempt cannot go on: answer with `Superseded`, or with `Failed` and this error."""

    error: ErrorInfo


class ReleaseStage(_Command, frozen=True):
    """Nothing more of the stage is awaited: its binding, if it has one, is free."""

    stage: str


class LeaveBehind(_Command, frozen=True):
    """The stage did not confirm its abort: it stays with its replica as a leftover (A6)."""

    stage: str


class StartAbortTimer(_Command, frozen=True):
    """Send `AbortTimedOut` after `abort_timeout_s`."""


class StartGrace(_Command, frozen=True):
    """Send `GraceExpired` after `terminal_grace_s`. `waiting_for`: the stages whose reports are missing."""

    waiting_for: tuple[str, ...]


Command = (
    SubmitStage
    | FeedStage
    | AbortStage
    | Deliver
    | PassOver
    | SendTerminal
    | Redrive
    | ReleaseStage
    | LeaveBehind
    | StartAbortTimer
    | StartGrace
)


class Phase(enum.Enum):
    """What the request is on its way to."""

    WAITING = "waiting"  # for its bindings
    RUNNING = "running"
    ABORTING = "aborting"  # the terminal follows when every submitted stage has confirmed
    ENDED = "ended"  # the terminal is out, or another attempt follows; some stages may still have to confirm


_FACTS = ("submitted", "registered", "output_ended", "finished")


@dataclass
class _Stage:
    """What is known of one stage of this attempt."""

    submitted: bool = False
    registered: bool = False
    output_ended: bool = False
    finished: bool = False  # reported, lost, left behind, or never to be submitted any more
    outputs: int = 0
    finish_reason: str | None = None  # of its successful report
    usage: Usage | None = None  # None: no report that counts
    relayed: dict[str, bytes] = field(default_factory=dict)  # source -> content of a relay edge, until it is handed on


class Lifecycle:
    """One attempt of one request. `delivered`: what its caller has of each final stage, over all attempts; `before`:
    the stages that ran in earlier ones."""

    def __init__(
        self,
        request_id: str,
        plan: Plan,
        delivered: Mapping[str, Delivered] | None = None,
        before: Collection[str] = (),
    ) -> None:
        self.request_id = request_id
        self.plan = plan
        self.phase = Phase.WAITING
        self.late = 0
        self.notes: dict[str, str] = {}
        self.delivered = delivered or {name: Delivered(name, hashed=False) for name in plan.final_stages}
        self._before = before
        self._stages = {name: _Stage() for name in plan.names}
        self._grace_started = False

    # --- Questions -------------------------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """C1: every final stage's output has ended."""
        return all(self._stages[name].output_ended for name in self.plan.final_stages)

    @property
    def settled(self) -> bool:
        """Nothing of this request is left anywhere: it has ended, and no stage has to confirm."""
        return self.phase is Phase.ENDED and not self.unfinished

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Submitted stages whose own end has not been reported, in topological order."""
        return tuple(name for name, stage in self._stages.items() if stage.submitted and not stage.finished)

    @property
    def ran(self) -> frozenset[str]:
        """Stages that were given work, in this attempt or an earlier one."""
        return frozenset(self._before).union(name for name, stage in self._stages.items() if stage.submitted)

    def facts(self, stage: str) -> dict[str, bool]:
        """What is known of a stage of the plan."""
        return {fact: getattr(self._stages[stage], fact) for fact in _FACTS}

    def story(self) -> str:
        """The request's state in one line, for errors."""
        stages = (
            f"{name}[{','.join(fact for fact, holds in self.facts(name).items() if holds) or '-'}]"
            for name in self._stages
        )
        return f"{self.request_id} {self.phase.value}: {' '.join(stages)}"

    # --- The way in ------------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Command]:
        match event:
            case OutputArrived():  # first, because nearly all are
                return self._output_arrived(event)
            case Bound():
                return self._bound()
            case Registered():
                return self._registered(event)
            case RelayArrived():
                return self._relay_arrived(event)
            case StageFinished():
                return self._stage_finished(event)
            case SubmissionFailed():
                return self._submission_failed(event)
            case ReplicaLost():
                return self._replica_lost(event)
            case AbortAsked():
                return self._abort_asked()
            case Superseded():
                return self._superseded()
            case Failed():
                return self._fail(event.error)
            case AbortTimedOut():
                return self._abort_timed_out()
            case GraceExpired():
                return self._grace_expired()
            case _:
                assert_never(event)

    # --- Submission (S1-S3) ----------------------------------------------------------------------------------------

    def _bound(self) -> list[Command]:
        if self.phase is not Phase.WAITING:
            raise self._illegal("bound twice")
        self.phase = Phase.RUNNING
        return self._submit_what_can_be()

    def _submit_what_can_be(self) -> list[Command]:
        """Consumers before producers, so that whoever sends finds its receiver registered (S1)."""
        commands: list[Command] = []
        for name in reversed(self.plan.names):
            stage = self._stages[name]
            if not (stage.submitted or stage.finished) and self._may_be_submitted(name):
                stage.submitted = True
                commands.append(SubmitStage(name))
                commands += [
                    self._feed(name, source) for source in tuple(stage.relayed) if self._relay_ready(name, source)
                ]
        return commands

    def _may_be_submitted(self, name: str) -> bool:
        direct = [edge.target for edge in self.plan.outgoing[name] if edge.mode != "relay"]
        if not all(self._stages[target].registered for target in direct):
            return False
        incoming = self.plan.incoming[name]
        if not incoming or any(edge.mode != "relay" for edge in incoming):
            return True
        ready = [self._relay_ready(name, edge.source) for edge in incoming]
        return all(ready) if self.plan.by_name[name].ready == "all" else any(ready)

    def _registered(self, event: Registered) -> list[Command]:
        stage = self._submitted(event.stage)
        if stage.registered:
            return self._drop()
        stage.registered = True
        return self._submit_what_can_be() if self.phase is Phase.RUNNING else []

    # --- Relay edges (P5) ------------------------------------------------------------------------------------------

    def _relay_arrived(self, event: RelayArrived) -> list[Command]:
        source = self._submitted(event.stage)
        edges = {edge.target: edge for edge in self.plan.outgoing[event.stage]}
        if event.target not in edges or edges[event.target].mode != "relay":
            raise self._illegal(f"no relay edge from {event.stage} to {event.target}", event.stage)
        target = self._stages[event.target]
        if self.phase is not Phase.RUNNING or source.finished or event.stage in target.relayed:
            return self._drop()
        target.relayed[event.stage] = event.data
        return []

    def _relay_ready(self, name: str, source: str) -> bool:
        """The source's content is here and its report too, so that nothing partial is handed on."""
        return source in self._stages[name].relayed and self._stages[source].finish_reason is not None

    def _feed(self, name: str, source: str) -> FeedStage:
        return FeedStage(name, source, self._stages[name].relayed.pop(source))

    def _hand_on_relays(self, source: str) -> list[Command]:
        """The source has finished: its relay consumers get its content now, or start with it."""
        commands: list[Command] = []
        for edge in self.plan.outgoing[source]:
            target = self._stages[edge.target]
            if edge.mode == "relay" and target.submitted and not target.finished:
                commands.append(self._feed(edge.target, source))
        return commands + self._submit_what_can_be()

    # --- Outputs (C1, C3, P4) --------------------------------------------------------------------------------------

    def _output_arrived(self, event: OutputArrived) -> list[Command]:
        stage = self._submitted(event.stage)
        if self.phase is Phase.ENDED:
            return self._drop()
        if event.stage not in self.plan.final_stages:
            raise self._illegal(f"{event.stage} is no final stage of this request", event.stage)
        if 1 <= event.seq <= stage.outputs:
            return self._drop()
        if event.seq != stage.outputs + 1 or stage.output_ended or stage.finished:
            raise self._illegal(f"output {event.seq} of {event.stage} is out of order", event.stage)
        try:
            deliver = self._deliver(event.stage, event.content, last=event.last)
        except ReplicaLostError as error:  # what was lost cannot be made again
            stage.outputs = event.seq
            return self._fail(ErrorInfo.of(error))
        stage.outputs = event.seq
        stage.output_ended = event.last and not self.delivered[event.stage].broken
        return [deliver, *self._withhold_or_end()] if event.last else [deliver]

    def _deliver(self, name: str, content: Content | None, *, last: bool, cut: bool = False) -> Deliver | PassOver:
        passed = self.delivered[name].pass_on(content, last=last, cut=cut)
        return PassOver(name) if passed is None else Deliver(name, self.plan.modality(name), *passed)

    # --- Ends of stages (C2, C5, F1, F2) ---------------------------------------------------------------------------

    def _stage_finished(self, event: StageFinished) -> list[Command]:
        stage = self._submitted(event.stage)
        if stage.finished:
            return self._drop()
        stage.usage = event.usage
        if event.note is not None:
            self.notes[event.stage] = event.note
        if self.phase is not Phase.RUNNING:
            return self._finish(event.stage) + self._withhold_or_end()
        error = event.error or self._objection(event)
        if error is not None:
            return self._stage_failed(event.stage, error)
        try:
            commands = self._mark_end(event.stage)
        except ReplicaLostError as failure:
            return self._finish(event.stage) + self._fail(ErrorInfo.of(failure))
        stage.finish_reason = event.finish_reason
        commands += self._finish(event.stage)
        return commands + self._hand_on_relays(event.stage) + self._withhold_or_end()

    def _objection(self, event: StageFinished) -> ErrorInfo | None:
        """Why a report without an error is no success all the same (R2: nothing is skipped in silence)."""
        name, stage = event.stage, self._stages[event.stage]
        if event.finish_reason == "abort":
            return ErrorInfo("stage_error", f"{name} aborted without having been asked", name, None, True)
        missing = [
            edge.target
            for edge in self.plan.outgoing[name]
            if edge.mode == "relay" and name not in self._stages[edge.target].relayed
        ]
        if event.finish_reason not in SUCCESSES:
            problem = (
                f"{name} reported the finish reason {event.finish_reason!r}: {' or '.join(SUCCESSES)} was expected"
            )
        elif not stage.registered:
            problem = f"{name} finished without having been registered"
        elif event.outputs != stage.outputs:
            problem = f"{name} reported {event.outputs} outputs and {stage.outputs} arrived"
        elif missing:
            problem = f"{name} finished without its content for {missing[0]}"
        else:
            return None
        return ErrorInfo("protocol_error", problem, name, None, False)

    def _submission_failed(self, event: SubmissionFailed) -> list[Command]:
        if self._submitted(event.stage).finished:
            return []
        return self._stage_failed(event.stage, event.error)

    def _replica_lost(self, event: ReplicaLost) -> list[Command]:
        if event.stage not in self._stages or self.phase is Phase.WAITING:
            raise self._illegal(f"{event.stage} is not bound", event.stage)
        if self._stages[event.stage].finished:
            return []
        lost = ReplicaLostError(f"{event.replica} died: {event.reason}", stage=event.stage, replica=event.replica)
        return self._stage_failed(event.stage, ErrorInfo.of(lost))

    def _stage_failed(self, name: str, error: ErrorInfo) -> list[Command]:
        """C5: what is complete stands, and only the usage is not; else the error is the request's (F1), unless it is
        the loss of a replica that another attempt can make good (F2)."""
        if self.complete:
            self._stages[name].usage = None
        commands = self._finish(name)
        if self.complete or self.phase is not Phase.RUNNING:
            return commands + self._withhold_or_end()
        if error.code == ReplicaLostError.code:
            return [*commands, Redrive(error)]
        return commands + self._fail(error)

    def _superseded(self) -> list[Command]:
        if self.phase is not Phase.RUNNING:
            raise self._illegal("superseded without having asked for it")
        self.phase = Phase.ENDED
        return self._abort_stages()

    def _finish(self, name: str) -> list[Command]:
        self._stages[name].finished = True
        return [ReleaseStage(name)]

    # --- Abort (A1-A3, A6, A8) -------------------------------------------------------------------------------------

    def _abort_asked(self) -> list[Command]:
        if self.phase in (Phase.ABORTING, Phase.ENDED):
            return []
        self.phase = Phase.ABORTING
        return self._abort_stages() + self._withhold_or_end()

    def _abort_stages(self) -> list[Command]:
        """Exactly the stages that were submitted and have not ended (A1); the others never will be submitted."""
        commands: list[Command] = [AbortStage(name) for name in self.unfinished]
        for name, stage in self._stages.items():
            if not (stage.submitted or stage.finished):
                commands += self._finish(name)
        if self.unfinished:
            commands.append(StartAbortTimer())
        return commands

    def _abort_timed_out(self) -> list[Command]:
        if self.phase not in (Phase.ABORTING, Phase.ENDED):
            return []
        commands: list[Command] = []
        for name in self.unfinished:
            self._stages[name].finished = True
            commands.append(LeaveBehind(name))
        return commands + self._withhold_or_end()

    def _fail(self, error: ErrorInfo) -> list[Command]:
        """The caller hears of an error at once; the stages are cleaned up behind it. What is complete stands (C5)."""
        if self.phase in (Phase.ABORTING, Phase.ENDED):
            return []
        return self._end(self._reason(), None) if self.complete else self._end("error", error)

    # --- The end (C1-C4) -------------------------------------------------------------------------------------------

    def _withhold_or_end(self) -> list[Command]:
        """C2: the terminal waits until every submitted stage has reported its own end."""
        if self.phase is Phase.ABORTING and not self.unfinished:
            return self._mark_ends() + self._end("abort", None)
        if self.phase is not Phase.RUNNING or not self.complete:
            return []
        if not self.unfinished:
            return self._end(self._reason(), None)
        if self._grace_started:
            return []
        self._grace_started = True
        return [StartGrace(self.unfinished)]

    def _grace_expired(self) -> list[Command]:
        """C5: who is still silent is named, and cleaned up behind the terminal."""
        if self.phase is not Phase.RUNNING or not self.complete:
            return []
        return self._end(self._reason(), None)

    def _mark_ends(self) -> list[Command]:
        """A3: what a final stage has delivered before an abort is marked as ended there."""
        begun = [name for name in self.plan.names if name in self.delivered and self.delivered[name].begun]
        return [command for name in begun for command in self._mark_end(name, cut=True)]

    def _mark_end(self, name: str, *, cut: bool = False) -> list[Command]:
        stage = self._stages[name]
        if name not in self.plan.final_stages or stage.output_ended:
            return []
        deliver = self._deliver(name, None, last=True, cut=cut)
        stage.output_ended = True
        return [deliver]

    def _reason(self) -> str:
        """The first stage, in order, that did not simply stop gives it: a text cut at `length` was cut for all."""
        reasons = (stage.finish_reason for stage in self._stages.values())
        return next((reason for reason in reasons if reason is not None and reason != "stop"), "stop")

    def _end(self, reason: str, error: ErrorInfo | None) -> list[Command]:
        """The one exit: nothing else ends a request. What still computes for it is aborted, what is bound released."""
        self.phase = Phase.ENDED
        last = self.plan.last_stage
        usage = {name: stage.usage for name, stage in self._stages.items() if stage.usage is not None}
        ran = self.ran
        unknown = tuple(name for name, stage in self._stages.items() if name in ran and stage.usage is None)
        terminal = SendTerminal(last, self.plan.modality(last), reason, error, usage, unknown, dict(self.notes))
        return [terminal, *self._abort_stages()]

    # --- Refusals --------------------------------------------------------------------------------------------------

    def _submitted(self, name: str) -> _Stage:
        stage = self._stages.get(name)
        if stage is None or not stage.submitted:
            raise self._illegal(f"{name} was not submitted", name)
        return stage

    def _illegal(self, what: str, stage: str | None = None) -> ProtocolError:
        return ProtocolError(f"{what}: {self.story()}", stage=stage)

    def _drop(self) -> list[Command]:
        self.late += 1
        return []
