"""Which process is started when (F5), and with which delay a dead one comes back (F2). Pure: orders are predicted."""

from __future__ import annotations

from itertools import pairwise

import pytest

from omnizmq.config import Config, EdgeConfig, RouterConfig, StageConfig, validate
from omnizmq.launcher.supervisor import AllReady, FailLaunch, Order, Spawn, Supervisor


def stage(name: str, devices: list[str | list[str]] | None = None, replicas: int = 0) -> StageConfig:
    return StageConfig(name, "synthetic", final_output="text", devices=devices or [], replicas=replicas)


def supervisor(*stages: StageConfig, **limits: float) -> Supervisor:
    edges = [EdgeConfig(one.name, other.name) for one, other in pairwise(stages)]
    return Supervisor(validate(Config(name="x", stage=list(stages), edge=edges, router=RouterConfig(**limits))))  # type: ignore[arg-type]


def spawned(orders: list[Order]) -> list[str]:
    assert all(isinstance(order, Spawn) for order in orders)
    return [f"{order.replica}#{order.incarnation}" for order in orders if isinstance(order, Spawn)]


class TestStart:
    def test_f5_on_the_cpu_all_start_side_by_side(self) -> None:
        launch = supervisor(stage("one"), stage("two", replicas=2))
        assert launch.start(0.0) == [
            Spawn("one/0", "one", 1, ()),
            Spawn("two/0", "two", 1, ()),
            Spawn("two/1", "two", 1, ()),
        ]
        assert launch.ready("two/0", 1.0) == launch.ready("one/0", 1.0) == []
        assert launch.ready("two/1", 1.0) == [AllReady()]

    def test_f5_those_that_share_a_device_start_one_after_another(self) -> None:
        launch = supervisor(
            stage("a", ["cuda:0", "cuda:1"]), stage("b", ["cuda:0"]), stage("c", [["cuda:1", "cuda:2"]])
        )
        assert spawned(launch.start(0.0)) == ["a/0#1", "a/1#1"]
        assert spawned(launch.ready("a/1", 1.0)) == ["c/0#1"]
        assert spawned(launch.ready("a/0", 2.0)) == ["b/0#1"]
        assert launch.ready("b/0", 3.0) == []
        assert launch.ready("c/0", 3.0) == [AllReady()]

    def test_who_waits_for_a_device_waits_for_no_time(self) -> None:
        launch = supervisor(stage("a", ["cuda:0"]), stage("b", ["cuda:0"]))
        launch.start(0.0)
        assert launch.next_due() is None

    def test_after_stop_nobody_is_all_ready(self) -> None:
        launch = supervisor(stage("a"))
        launch.start(0.0)
        launch.stop()
        assert launch.ready("a/0", 1.0) == []

    def test_f5_one_failed_start_fails_the_launch_and_starts_nothing_more(self) -> None:
        launch = supervisor(stage("a", ["cuda:0"]), stage("b", ["cuda:0"]), stage("c"))
        launch.start(0.0)
        assert launch.exited("a/0", "exit status 3", 1.0) == [FailLaunch("a/0", "exit status 3")]
        assert launch.ready("c/0", 2.0) == []
        assert launch.exited("c/0", "killed by SIGTERM", 2.0) == []
        assert launch.next_due() is None

    def test_f5_one_that_was_ready_and_died_before_all_were_fails_it_too(self) -> None:
        launch = supervisor(stage("a"), stage("b"))
        launch.start(0.0)
        launch.ready("a/0", 1.0)
        assert launch.exited("a/0", "killed by SIGKILL", 2.0) == [FailLaunch("a/0", "killed by SIGKILL")]


class TestRestarts:
    @pytest.fixture
    def running(self) -> Supervisor:
        launch = supervisor(stage("a"), stage("b"), restart_delay_s=0.5, max_restart_delay_s=3.0)
        launch.start(0.0)
        launch.ready("a/0", 0.0)
        launch.ready("b/0", 0.0)
        return launch

    def test_f2_the_delay_doubles_up_to_the_limit(self, running: Supervisor) -> None:
        now, delays = 0.0, []
        for incarnation in range(2, 7):
            assert running.exited("a/0", "died", now) == []
            due = running.next_due()
            assert due is not None
            delays.append(due - now)
            assert running.ticked(due - 0.001) == []
            assert spawned(running.ticked(due)) == [f"a/0#{incarnation}"]
            assert running.next_due() is None
            now = due
        assert delays == [0.5, 1.0, 2.0, 3.0, 3.0]

    @pytest.mark.parametrize(("seconds", "delay"), [(59.5, 1.0), (60.0, 0.5)])
    @pytest.mark.parametrize("began", [0.0, 86_400.0])
    def test_f2_deaths_are_forgotten_after_a_minute(
        self, running: Supervisor, began: float, seconds: float, delay: float
    ) -> None:
        running.exited("a/0", "died", began)
        running.ticked(began + 0.5)
        running.exited("a/0", "died", began + seconds)
        assert running.next_due() == began + seconds + delay

    def test_f2_a_restart_that_fails_is_tried_again(self, running: Supervisor) -> None:
        running.exited("a/0", "died", 0.0)
        running.ticked(0.5)
        assert running.exited("a/0", "exit status 3", 0.6) == []
        assert running.next_due() == 1.6

    def test_each_replica_has_a_delay_of_its_own(self, running: Supervisor) -> None:
        running.exited("a/0", "died", 0.0)
        running.exited("b/0", "died", 0.1)
        assert running.next_due() == 0.5
        assert spawned(running.ticked(0.7)) == ["a/0#2", "b/0#2"]

    def test_without_a_delay_it_starts_at_once(self) -> None:
        launch = supervisor(stage("a"), restart_delay_s=0.0)
        launch.start(0.0)
        launch.ready("a/0", 0.0)
        assert spawned(launch.exited("a/0", "died", 5.0)) == ["a/0#2"]

    def test_one_that_shares_a_device_waits_for_the_other_to_load(self) -> None:
        launch = supervisor(stage("a", ["cuda:0"]), stage("b", ["cuda:0"]), restart_delay_s=0.5)
        launch.start(0.0)
        launch.ready("a/0", 1.0)
        launch.ready("b/0", 2.0)
        launch.exited("a/0", "died", 3.0)
        launch.exited("b/0", "died", 3.0)
        assert spawned(launch.ticked(3.5)) == ["a/0#2"]
        assert launch.ticked(9.0) == []
        assert spawned(launch.ready("a/0", 9.0)) == ["b/0#2"]

    def test_f2_a_restart_on_purpose_has_no_delay_and_is_no_death(self, running: Supervisor) -> None:
        running.restarting("a/0")
        assert spawned(running.exited("a/0", "restarted", 5.0)) == ["a/0#2"]
        running.ready("a/0", 6.0)
        running.exited("a/0", "died", 7.0)
        assert running.next_due() == 7.5, "the first death"

    def test_f2_it_is_on_purpose_once(self, running: Supervisor) -> None:
        running.restarting("a/0")
        running.exited("a/0", "restarted", 5.0)
        assert running.exited("a/0", "exit status 3", 5.5) == []
        assert running.next_due() == 6.0

    def test_f2_a_restart_of_one_is_none_of_another(self, running: Supervisor) -> None:
        running.restarting("a/0")
        assert running.exited("b/0", "died", 5.0) == []

    def test_f5_before_all_are_ready_it_fails_the_launch_all_the_same(self) -> None:
        launch = supervisor(stage("a"), stage("b"))
        launch.start(0.0)
        launch.ready("a/0", 1.0)
        launch.restarting("a/0")
        assert launch.exited("a/0", "restarted", 2.0) == [FailLaunch("a/0", "restarted")]

    def test_one_on_purpose_that_shares_a_device_waits_for_the_other_to_load(self) -> None:
        launch = supervisor(stage("a", ["cuda:0"]), stage("b", ["cuda:0"]), restart_delay_s=0.5)
        launch.start(0.0)
        launch.ready("a/0", 1.0)
        launch.ready("b/0", 2.0)
        launch.exited("b/0", "died", 3.0)
        assert spawned(launch.ticked(3.5)) == ["b/0#2"]
        launch.restarting("a/0")
        assert launch.exited("a/0", "restarted", 4.0) == []
        assert spawned(launch.ready("b/0", 5.0)) == ["a/0#2"]

    def test_after_stop_nothing_starts(self, running: Supervisor) -> None:
        running.exited("a/0", "died", 0.0)
        running.stop()
        assert running.next_due() is None
        assert running.ticked(100.0) == running.exited("b/0", "stopped", 100.0) == []
