"""One request's life in the router, from its bindings to its single terminal (S1-S3, C1-C5, A1-A3, A5, A8, R3).

Facts kept apart, none implies another: a stage is *submitted* (the router sent it its submission), *registered* (its
worker holds it), *input-ready*, *running*, its *output has ended*, it has *finished* (its own report came). The request
is *complete* when every final stage's output has ended (C1), and *ended* when its terminal has gone out (C4).

Pure: no sockets, no clock, no tasks. `handle` is the only way in and commands are the only way out. An event that
cannot be, for this request in this state, raises `ProtocolError` and changes nothing; one that a race explains is
counted in `late` and changes nothing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from omnizmq.errors import ProtocolError, ReplicaLostError
from omnizmq.pipeline import Plan
from omnizmq.protocol import Content, ErrorInfo

Usage = dict[str, int | float]


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
    stage: str
    target: str
    data: bytes


class StageFinished(_Event, frozen=True):
    """The stage's own end. `outputs` is how many it sent."""

    stage: str
    finish_reason: str | None
    error: ErrorInfo | None
    usage: Usage
    note: str | None
    outputs: int


class SubmissionFailed(_Event, frozen=True):
    """The submission could not be sent (S3)."""

    stage: str
    error: ErrorInfo


class ReplicaLost(_Event, frozen=True):
    """The replica that this stage is bound to died and was reaped."""

    stage: str
    replica: str
    reason: str


class AbortAsked(_Event, frozen=True):
    """By the caller, or because the caller is gone."""


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


class SendTerminal(_Command, frozen=True):
    """The end of the request for its caller. For an error, `stage` is still the request's own last stage (A2)."""

    stage: str
    modality: str
    finish_reason: str
    error: ErrorInfo | None
    usage: dict[str, Usage]
    usage_incomplete: tuple[str, ...]
    notes: dict[str, str]


class ReleaseStage(_Command, frozen=True):
    """The stage has ended here: its binding is free."""

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
    | SendTerminal
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
    ENDED = "ended"  # the terminal is out; some stages may still have to confirm


@dataclass
class _Stage:
    """What is known of one stage of this attempt."""

    submitted: bool = False
    registered: bool = False
    output_ended: bool = False
    finished: bool = False  # reported, lost, left behind, or never to be submitted any more
    outputs: int = 0
    finish_reason: str | None = None
    usage: Usage | None = None  # None: no report
    relayed: dict[str, bytes] = field(default_factory=dict)  # source -> content that came over a relay edge


class Lifecycle:
    """One attempt of one request."""

    def __init__(self, request_id: str, plan: Plan) -> None:
        self.request_id = request_id
        self.plan = plan
        self.phase = Phase.WAITING
        self.late = 0
        self.notes: dict[str, str] = {}
        self.delivered = 0
        self._stages = {name: _Stage() for name in plan.names}
        self._graced = False
        self._timing = False

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

    def story(self) -> str:
        """The request's state in one line, for errors."""
        facts = ("submitted", "registered", "output_ended", "finished")
        stages = (
            f"{name}[{','.join(fact for fact in facts if getattr(stage, fact)) or '-'}]"
            for name, stage in self._stages.items()
        )
        return f"{self.request_id} {self.phase.value}: {' '.join(stages)}"

    # --- The way in ------------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Command]:
        match event:
            case Bound():
                return self._bound()
            case Registered():
                return self._registered(event)
            case OutputArrived():
                return self._output_arrived(event)
            case RelayArrived():
                return self._relay_arrived(event)
            case StageFinished():
                return self._stage_finished(event)
            case SubmissionFailed():
                return self._stage_failed(event.stage, event.error)
            case ReplicaLost():
                return self._replica_lost(event)
            case AbortAsked():
                return self._abort_asked()
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
            raise ProtocolError(f"bound twice: {self.story()}")
        self.phase = Phase.RUNNING
        return self._submit_what_can_be()

    def _submit_what_can_be(self) -> list[Command]:
        """Consumers before producers, so that whoever sends finds its receiver registered (S1)."""
        commands: list[Command] = []
        for name in reversed(self.plan.names):
            stage = self._stages[name]
            if not stage.submitted and self._may_be_submitted(name):
                stage.submitted = True
                commands.append(SubmitStage(name))
                ready = {source: data for source, data in stage.relayed.items() if self._stages[source].finished}
                commands += [FeedStage(name, source, data) for source, data in ready.items()]
        return commands

    def _may_be_submitted(self, name: str) -> bool:
        direct = [edge.target for edge in self.plan.outgoing[name] if edge.mode != "relay"]
        if not all(self._stages[target].registered for target in direct):
            return False
        incoming = self.plan.incoming[name]
        if not incoming or any(edge.mode != "relay" for edge in incoming):
            return True
        arrived = [self._stages[edge.source].finished for edge in incoming]
        return all(arrived) if self.plan.by_name[name].ready == "all" else any(arrived)

    def _registered(self, event: Registered) -> list[Command]:
        stage = self._known(event.stage)
        if stage.registered:
            raise ProtocolError(f"{event.stage} registered twice: {self.story()}")
        stage.registered = True
        return self._submit_what_can_be() if self.phase is Phase.RUNNING else []

    # --- Outputs (C1, C3, P4) --------------------------------------------------------------------------------------

    def _output_arrived(self, event: OutputArrived) -> list[Command]:
        stage = self._known(event.stage)
        if self.phase is Phase.ENDED or event.seq <= stage.outputs:
            self.late += 1
            return []
        if event.stage not in self.plan.final_stages:
            raise ProtocolError(f"{event.stage} is no final stage of this request: {self.story()}")
        if event.seq != stage.outputs + 1 or stage.output_ended or stage.finished:
            raise ProtocolError(f"output {event.seq} of {event.stage} is out of order: {self.story()}")
        stage.outputs = event.seq
        stage.output_ended = event.last
        self.delivered += 1
        modality = self.plan.modality(event.stage)
        commands: list[Command] = [Deliver(event.stage, modality, event.content, event.last)]
        return commands + self._withhold_or_end()

    def _relay_arrived(self, event: RelayArrived) -> list[Command]:
        source = self._known(event.stage)
        if self.phase is not Phase.RUNNING:
            self.late += 1
            return []
        edges = {edge.target: edge for edge in self.plan.outgoing[event.stage]}
        target = self._stages.get(event.target)
        if target is None or event.target not in edges or edges[event.target].mode != "relay":
            raise ProtocolError(f"no relay edge from {event.stage} to {event.target}: {self.story()}")
        if source.finished or event.stage in target.relayed:
            raise ProtocolError(f"{event.stage} relayed twice or too late to {event.target}: {self.story()}")
        target.relayed[event.stage] = event.data
        return []

    # --- Ends of stages (C2, C5, F1, F2) ---------------------------------------------------------------------------

    def _stage_finished(self, event: StageFinished) -> list[Command]:
        stage = self._known(event.stage)
        if stage.finished:
            self.late += 1
            return []
        if event.note is not None:
            self.notes[event.stage] = event.note
        stage.usage = event.usage
        if event.error is not None:
            return self._stage_failed(event.stage, event.error)
        if event.finish_reason == "abort":
            return self._stage_aborted(event)
        missing = self._missing(event) if self.phase is Phase.RUNNING else None
        if missing is not None:
            return self._stage_failed(event.stage, ErrorInfo("protocol_error", missing, event.stage, None, False))
        stage.finish_reason = event.finish_reason
        commands = self._mark_end(event.stage) if self.phase is Phase.RUNNING else []
        commands += self._finish(event.stage)
        if self.phase is Phase.RUNNING:
            commands += self._hand_on_relays(event.stage)
        return commands + self._withhold_or_end()

    def _missing(self, event: StageFinished) -> str | None:
        """What a successful report claims and the router has not seen (R2: nothing is skipped in silence)."""
        arrived = self._stages[event.stage].outputs
        if event.outputs != arrived:
            return f"{event.stage} reported {event.outputs} outputs and {arrived} arrived"
        for edge in self.plan.outgoing[event.stage]:
            if edge.mode == "relay" and event.stage not in self._stages[edge.target].relayed:
                return f"{event.stage} finished without its content for {edge.target}"
        return None

    def _hand_on_relays(self, source: str) -> list[Command]:
        """The upstream has finished: its relay consumers get its content now, or start with it."""
        commands: list[Command] = []
        for edge in self.plan.outgoing[source]:
            target = self._stages[edge.target]
            if edge.mode == "relay" and target.submitted and not target.finished:
                commands.append(FeedStage(edge.target, source, target.relayed[source]))
        return commands + self._submit_what_can_be()

    def _stage_aborted(self, event: StageFinished) -> list[Command]:
        """It confirmed. Without having been asked, the stage's word for an error that another report will explain."""
        commands = self._finish(event.stage)
        if self.phase is Phase.RUNNING and not self.complete:
            error = ErrorInfo("stage_error", f"{event.stage} aborted unasked", event.stage, None, True)
            return commands + self._fail(error)
        return commands + self._withhold_or_end()

    def _stage_failed(self, name: str, error: ErrorInfo) -> list[Command]:
        """C5: what is complete stands, and only the usage is not; else the error is the request's (F1)."""
        stage = self._known(name)
        stage.usage = None if self.complete else stage.usage
        complete = self.complete
        commands = self._finish(name)
        if complete or self.phase is not Phase.RUNNING:
            return commands + self._withhold_or_end()
        return commands + self._fail(error)

    def _replica_lost(self, event: ReplicaLost) -> list[Command]:
        stage = self._stages[event.stage]
        if stage.finished:
            return []
        lost = ReplicaLostError(f"{event.replica} died: {event.reason}", stage=event.stage, replica=event.replica)
        if stage.submitted:
            return self._stage_failed(event.stage, ErrorInfo.of(lost))
        return self._fail(ErrorInfo.of(lost))

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
        """Exactly the stages that were submitted and have not ended (A1); the others never will be."""
        commands: list[Command] = [AbortStage(name) for name in self.unfinished]
        for name, stage in self._stages.items():
            if not stage.submitted and not stage.finished:
                commands += self._finish(name)
        if self.unfinished and not self._timing:
            self._timing = True
            commands.append(StartAbortTimer())
        return commands

    def _abort_timed_out(self) -> list[Command]:
        commands: list[Command] = []
        if self.phase in (Phase.ABORTING, Phase.ENDED):
            for name in self.unfinished:
                self._stages[name].finished = True
                commands.append(LeaveBehind(name))
        return commands + self._withhold_or_end()

    def _grace_expired(self) -> list[Command]:
        if self.phase is not Phase.RUNNING or not self.complete:
            return []
        silent = self.unfinished
        commands = self._end(self._reason(), None, usage_incomplete=silent)
        return commands + self._abort_stages()

    def _fail(self, error: ErrorInfo) -> list[Command]:
        """The caller hears of an error at once; the stages are cleaned up behind it."""
        if self.phase in (Phase.ABORTING, Phase.ENDED):
            return []
        commands = self._end("error", error, usage_incomplete=self._unreported())
        return commands + self._abort_stages()

    # --- The end (C1-C4) -------------------------------------------------------------------------------------------

    def _withhold_or_end(self) -> list[Command]:
        """C2: the terminal waits until every submitted stage has reported its own end."""
        if self.phase is Phase.ABORTING and not self.unfinished:
            return self._mark_ends() + self._end("abort", None, usage_incomplete=self._unreported())
        if self.phase is not Phase.RUNNING or not self.complete:
            return []
        if not self.unfinished:
            return self._end(self._reason(), None, usage_incomplete=self._unreported())
        if self._graced:
            return []
        self._graced = True
        return [StartGrace(self.unfinished)]

    def _mark_ends(self) -> list[Command]:
        """A3: what a final stage has delivered before an abort is marked as ended there."""
        return [command for name in self.plan.names if self._stages[name].outputs for command in self._mark_end(name)]

    def _mark_end(self, name: str) -> list[Command]:
        stage = self._stages[name]
        if name not in self.plan.final_stages or stage.output_ended:
            return []
        stage.output_ended = True
        return [Deliver(name, self.plan.modality(name), None, True)]

    def _reason(self) -> str:
        """The first stage, in order, that did not simply stop gives it: a text cut at `length` was cut for all."""
        reasons = (stage.finish_reason for stage in self._stages.values())
        return next((reason for reason in reasons if reason not in (None, "stop")), "stop") or "stop"

    def _unreported(self) -> tuple[str, ...]:
        return tuple(name for name, stage in self._stages.items() if stage.submitted and stage.usage is None)

    def _end(self, reason: str, error: ErrorInfo | None, *, usage_incomplete: tuple[str, ...]) -> list[Command]:
        """The one exit: nothing else ends a request."""
        self.phase = Phase.ENDED
        last = self.plan.last_stage
        usage = {name: stage.usage for name, stage in self._stages.items() if stage.usage is not None}
        return [SendTerminal(last, self.plan.modality(last), reason, error, usage, usage_incomplete, dict(self.notes))]

    def _known(self, name: str) -> _Stage:
        stage = self._stages.get(name)
        if stage is None or not stage.submitted:
            raise ProtocolError(f"{name} was not submitted: {self.story()}")
        return stage
