"""What the contract says of one attempt, as sets: an independent prediction of everything that its lifecycle orders.

The lifecycle decides by transitions. This model keeps what has happened, derives from it what must be so by now, and
orders the difference. `predict` gives the commands in order for each destination (the caller, a stage's worker, the
pools' entry of a stage, a timer), `LATE` or `IGNORED` for an event that changes nothing, and `ILLEGAL` for one that
cannot be.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from omnizmq.pipeline import Plan
from omnizmq.protocol import ErrorInfo
from omnizmq.router import lifecycle as life
from support.delivered_model import MismatchError, Told

Orders = dict[str, list[life.Command]]
Outcome = Orders | Literal["late", "ignored", "illegal"]

LATE: Outcome = "late"
IGNORED: Outcome = "ignored"
ILLEGAL: Outcome = "illegal"

MISMATCH = "it cannot be continued"
"""How the error of an attempt that says something else ends; before that it tells people more."""

StageEvent = life.Registered | life.OutputArrived | life.RelayArrived | life.StageFinished | life.SubmissionFailed


def destination(command: life.Command) -> str:
    """Whom a command reaches; between two of them there is no order to keep."""
    match command:
        case life.Deliver() | life.SendTerminal():
            return "caller"
        case life.SubmitStage() | life.FeedStage() | life.AbortStage() | life.PassOver():
            return f"worker of {command.stage}"
        case life.ReleaseStage() | life.LeaveBehind():
            return f"pool entry of {command.stage}"
        case _:
            return type(command).__name__


def by_destination(commands: Iterable[life.Command]) -> Orders:
    orders: Orders = defaultdict(list)
    for command in commands:
        orders[destination(command)].append(command)
    return dict(orders)


@dataclass
class Model:
    """All fields are facts; each only grows. `caller` is what the caller has, over all attempts; `before` are the
    stages that ran in earlier ones."""

    plan: Plan
    caller: dict[str, Told] = field(default_factory=dict)
    before: frozenset[str] = frozenset()
    bound: bool = False
    aborted: bool = False
    over: bool = False
    submitted: set[str] = field(default_factory=set)
    registered: set[str] = field(default_factory=set)
    outputs: dict[str, int] = field(default_factory=Counter)
    ended: set[str] = field(default_factory=set)  # final stages whose output has ended
    broken: set[str] = field(default_factory=set)  # those that say something else than an earlier attempt
    good: dict[str, str] = field(default_factory=dict)  # stages that succeeded -> finish reason
    closed: set[str] = field(default_factory=set)  # nothing more is awaited of these
    left: set[str] = field(default_factory=set)  # of them, those that never confirmed
    told: set[str] = field(default_factory=set)  # stages that were told to abort
    content: dict[tuple[str, str], bytes] = field(default_factory=dict)  # relay edge -> what came over it
    fed: set[tuple[str, str]] = field(default_factory=set)
    usage: dict[str, life.Usage] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    graced: bool = False
    timed: bool = False
    asks: ErrorInfo | None = None  # the loss that another attempt may make good

    def __post_init__(self) -> None:
        for name in self.plan.final_stages:
            self.caller.setdefault(name, Told())

    # --- What follows from the facts -------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        return self.plan.final_stages <= self.ended

    @property
    def running(self) -> bool:
        return self.bound and not self.aborted and not self.over

    @property
    def awaited(self) -> list[str]:
        return [name for name in self.plan.names if name in self.submitted - self.closed]

    @property
    def ran(self) -> frozenset[str]:
        """Stages that were given work, in this attempt or an earlier one."""
        return self.before | self.submitted

    def relay_sources(self, name: str) -> list[str]:
        return [edge.source for edge in self.plan.incoming[name] if edge.mode == "relay"]

    def may_be_submitted(self, name: str) -> bool:
        """S1 and P5: its direct consumers are registered; fed by relays alone, it has what it may start with."""
        consumers = {edge.target for edge in self.plan.outgoing[name] if edge.mode != "relay"}
        relays = self.relay_sources(name)
        here = {source for source in relays if source in self.good and (source, name) in self.content}
        waits = bool(relays) and len(relays) == len(self.plan.incoming[name])
        enough = here == set(relays) if self.plan.by_name[name].ready == "all" else bool(here)
        return consumers <= self.registered and (enough or not waits)

    # --- Events ----------------------------------------------------------------------------------------------------

    def predict(self, event: life.Event) -> Outcome:
        verdict = self._verdict(event)
        if verdict is not None:
            return verdict
        orders: Orders = defaultdict(list)
        closed = set(self.closed)
        error = self._note(event, orders)
        if self.running:
            self._submit(orders)
        self._end(event, error, orders)
        for name in sorted(self.closed - closed):
            command = life.LeaveBehind(name) if name in self.left else life.ReleaseStage(name)
            orders[f"pool entry of {name}"].append(command)
        return {who: commands for who, commands in orders.items() if commands}

    def _verdict(self, event: life.Event) -> Outcome | None:
        """Whether the event changes nothing, and why."""
        match event:
            case life.Bound():
                return ILLEGAL if self.bound or self.aborted or self.over else None
            case life.AbortAsked() | life.Failed():
                return IGNORED if self.aborted or self.over else None
            case life.Superseded():
                return None if self.running else ILLEGAL
            case life.AbortTimedOut():
                return None if (self.aborted or self.over) and self.awaited else IGNORED
            case life.GraceExpired():
                return None if self.running and self.complete else IGNORED
            case life.ReplicaLost():
                if not (self.bound or self.aborted or self.over) or event.stage not in self.plan.names:
                    return ILLEGAL
                return IGNORED if event.stage in self.closed else None
            case _:
                return ILLEGAL if event.stage not in self.submitted else self._stage_verdict(event)

    def _stage_verdict(self, event: StageEvent) -> Outcome | None:
        name = event.stage
        match event:
            case life.Registered():
                return LATE if name in self.registered else None
            case life.OutputArrived():
                return self._output_verdict(event)
            case life.RelayArrived():
                if event.target not in self.plan.names or name not in self.relay_sources(event.target):
                    return ILLEGAL
                late = not self.running or name in self.closed or (name, event.target) in self.content
                return LATE if late else None
            case life.StageFinished():
                return LATE if name in self.closed else None
            case life.SubmissionFailed():
                return IGNORED if name in self.closed else None

    def _output_verdict(self, event: life.OutputArrived) -> Outcome | None:
        name = event.stage
        if self.over:
            return LATE
        if name not in self.plan.final_stages:
            return ILLEGAL
        if 0 < event.seq <= self.outputs[name]:
            return LATE
        follows = event.seq == self.outputs[name] + 1
        return None if follows and name not in self.ended | self.closed else ILLEGAL

    def _note(self, event: life.Event, orders: Orders) -> ErrorInfo | None:
        """Take the facts in. Returns the error that the event means for the request, if it is not complete."""
        match event:
            case life.Bound():
                self.bound = True
            case life.Registered():
                self.registered.add(event.stage)
            case life.OutputArrived():
                self.outputs[event.stage] += 1
                return self._deliver(event.stage, event.content, event.last, orders)
            case life.RelayArrived():
                self.content[event.stage, event.target] = event.data
            case life.StageFinished():
                return self._note_report(event, orders)
            case life.SubmissionFailed():
                self.closed.add(event.stage)
                return self._lost_or(event.error)
            case life.ReplicaLost():
                self.closed.add(event.stage)
                text = f"{event.replica} died: {event.reason}"
                return self._lost_or(ErrorInfo("replica_lost", text, event.stage, event.replica, True))
            case life.AbortAsked():
                self.aborted = True
            case life.Failed():
                return event.error
            case life.AbortTimedOut():
                self.left |= set(self.awaited)
                self.closed |= self.left
            case life.GraceExpired() | life.Superseded():
                return None
        return None

    def _lost_or(self, error: ErrorInfo) -> ErrorInfo | None:
        """F2: the loss of a replica is no error yet. Any other error is one."""
        if error.code != "replica_lost" or self.complete or not self.running:
            return error
        self.asks = error
        return None

    def _note_report(self, event: life.StageFinished, orders: Orders) -> ErrorInfo | None:
        name = event.stage
        self.closed.add(name)
        if event.note is not None:
            self.notes[name] = event.note
        if not self.running:
            self.usage[name] = event.usage
            return None
        error = event.error or self._what_is_wrong(event)
        if error is None or not self.complete:
            self.usage[name] = event.usage
        if error is not None:
            return self._lost_or(error)
        if name in self.plan.final_stages - self.ended:
            error = self._deliver(name, None, True, orders)
        if error is None:
            self.good[name] = str(event.finish_reason)
        return error

    def _what_is_wrong(self, event: life.StageFinished) -> ErrorInfo | None:
        name, reason = event.stage, event.finish_reason
        if reason == "abort":
            return ErrorInfo("stage_error", f"{name} aborted without having been asked", name, None, True)
        owed = [edge.target for edge in self.plan.outgoing[name] if edge.mode == "relay"]
        missing = [target for target in owed if (name, target) not in self.content]
        problems = [
            (reason not in ("stop", "length"), f"reported the finish reason {reason!r}: stop or length was expected"),
            (name not in self.registered, "finished without having been registered"),
            (
                event.outputs != self.outputs[name],
                f"reported {event.outputs} outputs and {self.outputs[name]} arrived",
            ),
            (bool(missing), f"finished without its content for {missing[0] if missing else None}"),
        ]
        found = next((text for wrong, text in problems if wrong), None)
        return None if found is None else ErrorInfo("protocol_error", f"{name} {found}", name, None, False)

    def _deliver(
        self, name: str, content: life.Content | None, last: bool, orders: Orders, *, cut: bool = False
    ) -> ErrorInfo | None:
        """What the caller does not have yet. An attempt that differs from what it has cannot go on."""
        try:
            share = None if name in self.broken and not cut else self.caller[name].takes(content, last=last, cut=cut)
        except MismatchError:
            self.broken.add(name)
            return ErrorInfo("replica_lost", MISMATCH, name, self.caller[name].lost, True)
        if last:
            self.ended.add(name)
        if share is None:
            orders[f"worker of {name}"].append(life.PassOver(name))
        else:
            orders["caller"].append(life.Deliver(name, self.plan.modality(name), *share))
        return None

    # --- Consequences ----------------------------------------------------------------------------------------------

    def _submit(self, orders: Orders) -> None:
        for name in self.plan.names:
            if name not in self.submitted | self.closed and self.may_be_submitted(name):
                self.submitted.add(name)
                orders[f"worker of {name}"].append(life.SubmitStage(name))
        for (source, target), data in self.content.items():
            takes = target in self.submitted - self.closed
            if source in self.good and takes and (source, target) not in self.fed:
                self.fed.add((source, target))
                orders[f"worker of {target}"].append(life.FeedStage(target, source, data))

    def _end(self, event: life.Event, error: ErrorInfo | None, orders: Orders) -> None:
        if isinstance(event, life.Superseded):
            self.over, self.asks = True, None
            self._stop_stages(orders)
        if self.over:
            return
        failed = error is not None and not self.complete
        given_up = isinstance(event, life.GraceExpired | life.Failed)
        if self.aborted:
            self._stop_stages(orders)
            if not self.awaited:
                for name in self.plan.names:
                    if name in self.plan.final_stages and self.caller[name].begun:
                        self._deliver(name, None, True, orders, cut=True)
                self._terminal("abort", None, orders)
        elif failed:
            self._terminal("error", error, orders)
        elif self.asks is not None:
            orders["Redrive"].append(life.Redrive(self.asks))
        elif self.complete and (given_up or not self.awaited):
            odd = [self.good[name] for name in self.plan.names if self.good.get(name, "stop") != "stop"]
            self._terminal(odd[0] if odd else "stop", None, orders)
        elif self.complete and not self.graced:
            self.graced = True
            orders["StartGrace"].append(life.StartGrace(tuple(self.awaited)))

    def _terminal(self, reason: str, error: ErrorInfo | None, orders: Orders) -> None:
        self.over = True
        last = self.plan.last_stage
        usage = {name: self.usage[name] for name in self.plan.names if name in self.usage}
        unknown = tuple(name for name in self.plan.names if name in self.ran and name not in usage)
        terminal = life.SendTerminal(last, self.plan.modality(last), reason, error, usage, unknown, dict(self.notes))
        orders["caller"].append(terminal)
        self._stop_stages(orders)

    def _stop_stages(self, orders: Orders) -> None:
        """A1: who computes is told, once; who was never submitted never will be."""
        for name in self.plan.names:
            if name in self.submitted - self.closed - self.told:
                self.told.add(name)
                orders[f"worker of {name}"].append(life.AbortStage(name))
        self.closed |= set(self.plan.names) - self.submitted
        if self.awaited and not self.timed:
            self.timed = True
            orders["StartAbortTimer"].append(life.StartAbortTimer())
