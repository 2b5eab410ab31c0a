"""What must hold of every request at every moment, whatever anyone predicts (C1-C4, P3, P4, S1, S2, A1-A3, B3)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from omnizmq.pipeline import Plan
from omnizmq.router import lifecycle as life


class Watch:
    """It sees each event with its commands. `check` looks at the present, `check_end` at a request that is over."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.terminal: life.SendTerminal | None = None
        self.told: set[str] = set()
        self.grace = self.abort_timer = False
        self._registered: set[str] = set()
        self._reported: set[str] = set()
        self._succeeded: set[str] = set()
        self._gone: set[str] = set()
        self._submitted: Counter[str] = Counter()
        self._freed: Counter[str] = Counter()
        self._delivered: dict[str, list[life.Deliver]] = defaultdict(list)
        self._arrived: dict[str, list[object]] = defaultdict(list)
        self._fed: Counter[tuple[str, str]] = Counter()

    def saw(self, event: life.Event, commands: Sequence[life.Command]) -> None:
        self._note(event)
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
                    self._delivered[command.stage].append(command)
                case life.SendTerminal():
                    assert self.terminal is None, "two terminals"
                    self.terminal = command
                    self._check_terminal(event, command)
                case life.ReleaseStage() | life.LeaveBehind():
                    self._freed[command.stage] += 1
                case life.StartAbortTimer():
                    assert not self.abort_timer, "two abort timers"
                    self.abort_timer = True
                case life.StartGrace():
                    assert not self.grace, "two grace timers"
                    self.grace = True

    def _note(self, event: life.Event) -> None:
        match event:
            case life.Registered():
                self._registered.add(event.stage)
            case life.OutputArrived():
                self._arrived[event.stage].append(event.content)
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
        assert set(terminal.usage) | set(terminal.usage_incomplete) == set(self._submitted), "usage of every stage"
        cut_short = isinstance(event, life.GraceExpired | life.AbortTimedOut | life.Failed)
        if terminal.error is None and not cut_short:
            assert set(self._submitted) <= self._reported | self._gone, "a stage has not reported its end (C2)"
        if terminal.finish_reason in ("stop", "length"):
            ended = {name for name, outputs in self._delivered.items() if outputs and outputs[-1].stage_finished}
            assert ended == set(self.plan.final_stages), "not complete (C1)"

    def check(self, lifecycle: life.Lifecycle) -> None:
        assert max(self._submitted.values(), default=0) <= 1, "submitted twice (S2)"
        assert max(self._freed.values(), default=0) <= 1, "freed twice"
        assert max(self._fed.values(), default=0) <= 1, "fed twice"
        assert set(self._submitted) <= set(self.plan.names)
        assert (self.terminal is not None) == (lifecycle.phase is life.Phase.ENDED)
        assert lifecycle.delivered == sum(map(len, self._delivered.values()))
        for name, outputs in self._delivered.items():
            assert name in self.plan.final_stages, "delivered though nobody asked for it (P4)"
            assert [output.stage_finished for output in outputs[:-1]] == [False] * (len(outputs) - 1)
            assert {output.modality for output in outputs} == {self.plan.modality(name)}
            contents = [output.content for output in outputs if output.content is not None]
            arrived = iter(self._arrived[name])
            assert all(any(content == one for one in arrived) for content in contents), "out of order"
        if lifecycle.settled:
            self.check_end()

    def check_end(self) -> None:
        assert self.terminal is not None, "no terminal"
        assert self._freed == Counter(self.plan.names), "bindings that nobody frees (B3)"
