"""What must hold of every request at every moment, whatever anyone predicts (C1-C4, P3, P4, S1, S2, A1-A3, B3)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from omnizmq.pipeline import Plan
from omnizmq.protocol import Text
from omnizmq.router import lifecycle as life


class Watch:
    """It sees each event of an attempt with its commands. `check` looks at the present, `check_end` at an attempt that
    is over. `before` is the text that the caller has from earlier attempts, `ended` the stages whose end it has."""

    def __init__(self, plan: Plan, before: Mapping[str, str], ended: Collection[str], ran: Collection[str]) -> None:
        self.plan = plan
        self.terminal: life.SendTerminal | None = None
        self.asked: life.Redrive | None = None
        self.superseded = False
        self._before = before
        self._ended = frozenset(ended)
        self._ran = frozenset(ran)
        self.told: set[str] = set()
        self.grace = self.abort_timer = False
        self._registered: set[str] = set()
        self._reported: set[str] = set()
        self._succeeded: set[str] = set()
        self._gone: set[str] = set()
        self._submitted: Counter[str] = Counter()
        self._freed: Counter[str] = Counter()
        self._delivered: dict[str, list[life.Deliver]] = defaultdict(list)
        self._arrived: dict[str, str] = defaultdict(str)
        self._seq: Counter[str] = Counter()
        self._differs: set[str] = set()
        self._fed: Counter[tuple[str, str]] = Counter()

    def saw(self, event: life.Event, commands: Sequence[life.Command]) -> None:
        failed = any(isinstance(one, life.SendTerminal) and one.error is not None for one in commands)
        self._note(event, taken=bool(commands) and not failed)
        for command in commands:
            match command:
                case life.SubmitStage():
                    self._check_submission(command.stage)
                case life.FeedStage():
                    assert self._submitted[command.stage], "fed before it was submitted"
                    assert command.source in self._succeeded, "fed before its source had succeeded"
                    self._fed[command.source, command.stage] += 1
                case life.AbortStage():
                    assert command.stage not in self.told, "told twice"
                    assert self._submitted[command.stage], "told without having been submitted"
                    self.told.add(command.stage)
                case life.Deliver():
                    assert self.terminal is None, "delivered after the terminal"
                    assert not self.superseded, "delivered by an attempt that is over"
                    self._delivered[command.stage].append(command)
                case life.SendTerminal():
                    assert self.terminal is None, "two terminals"
                    self.terminal = command
                    self._check_terminal(event, command)
                case life.Redrive():
                    assert self.terminal is None, "asked for after the terminal"
                    assert self.asked is None, "asked for twice"
                    self.asked = command
                case life.ReleaseStage() | life.LeaveBehind():
                    self._freed[command.stage] += 1
                case life.StartAbortTimer():
                    assert not self.abort_timer, "two abort timers"
                    self.abort_timer = True
                case life.StartGrace():
                    assert not self.grace, "two grace timers"
                    self.grace = True

    def _note(self, event: life.Event, *, taken: bool) -> None:
        match event:
            case life.Superseded():
                assert self.asked is not None, "superseded without having asked"
                self.superseded = True
            case life.Registered():
                self._registered.add(event.stage)
            case life.OutputArrived():
                if event.seq > self._seq[event.stage]:
                    self._seq[event.stage] = event.seq
                    if not taken:
                        self._differs.add(event.stage)  # nothing more of it counts
                if taken and event.stage not in self._differs and isinstance(event.content, Text):
                    self._arrived[event.stage] += event.content.text
            case life.StageFinished():
                if event.stage not in self._reported | self._gone and event.error is None:
                    self._succeeded.add(event.stage)
                self._reported.add(event.stage)
            case life.ReplicaLost() | life.SubmissionFailed():
                self._gone.add(event.stage)

    def _check_submission(self, name: str) -> None:
        self._submitted[name] += 1
        assert self.terminal is None, "submitted after the terminal"
        for edge in self.plan.outgoing[name]:
            assert edge.mode == "relay" or edge.target in self._registered, "its consumer is not registered (S1)"

    def _check_terminal(self, event: life.Event, terminal: life.SendTerminal) -> None:
        assert terminal.stage == self.plan.last_stage
        assert terminal.modality == self.plan.modality(self.plan.last_stage)
        assert (terminal.error is not None) == (terminal.finish_reason == "error")
        assert not set(terminal.usage) & set(terminal.usage_incomplete)
        assert set(terminal.usage) | set(terminal.usage_incomplete) == set(self._submitted) | self._ran, (
            "usage of every stage"
        )
        cut_short = isinstance(event, life.GraceExpired | life.AbortTimedOut | life.Failed)
        if terminal.error is None and not cut_short:
            assert set(self._submitted) <= self._reported | self._gone, "a stage has not reported its end (C2)"
        if terminal.finish_reason in ("stop", "length"):
            ended = {name for name, outputs in self._delivered.items() if outputs and outputs[-1].stage_finished}
            assert ended | self._ended == set(self.plan.final_stages), "not complete (C1)"

    def check(self, lifecycle: life.Lifecycle) -> None:
        assert max(self._submitted.values(), default=0) <= 1, "submitted twice (S2)"
        assert max(self._freed.values(), default=0) <= 1, "freed twice"
        assert max(self._fed.values(), default=0) <= 1, "fed twice"
        assert set(self._submitted) <= set(self.plan.names)
        assert (self.terminal is not None or self.superseded) == (lifecycle.phase is life.Phase.ENDED)
        for name, outputs in self._delivered.items():
            assert name in self.plan.final_stages, "delivered though nobody asked for it (P4)"
            assert [output.stage_finished for output in outputs[:-1]] == [False] * (len(outputs) - 1)
            assert {output.modality for output in outputs} == {self.plan.modality(name)}
            assert not (name in self._ended and outputs), "delivered after its end"
            new = "".join(output.content.text for output in outputs if isinstance(output.content, Text))
            before, said = self._before.get(name, ""), self._arrived[name]
            if len(said) >= len(before):
                assert said == before + new, "repeated, left out or changed (F2)"
            else:
                assert not new, "delivered before all that the caller has has come again (F2)"
        if lifecycle.settled:
            self.check_end()

    def check_end(self) -> None:
        assert (self.terminal is not None) != self.superseded, "one end: a terminal, or another attempt"
        assert self._freed == Counter(self.plan.names), "bindings that nobody frees (B3)"
