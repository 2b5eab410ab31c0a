"""Replicas, their incarnations, and who is bound to them."""

from __future__ import annotations

import pytest
from support.pipelines import config

from omnizmq.errors import UnavailableError
from omnizmq.router.pools import Binding, Pools

ONE, TWO = ("one-0", 1), ("two-0", 1)


def pools(graph: str = "a:text", **stage: object) -> Pools:
    """Every replica is ready, in its first incarnation."""
    made = Pools(config(graph, stages={"a": stage}).stage)
    for replica in made.replicas.values():
        made.starting(replica.id, 1, 4711, now=10.0)
        replica.state = "ready"
    return made


class TestIncarnations:
    def test_a_new_process_is_heard_and_an_old_one_is_not(self) -> None:
        made = pools()
        assert made.lost("a/0", 1) == ()
        made.starting("a/0", 2, 4712, now=20.0)
        assert made.seen("a/0", 1, now=21.0) is None
        assert made.replicas["a/0"].last_seen == 20.0
        replica = made.seen("a/0", 2, now=22.0)
        assert replica is not None
        assert (replica.last_seen, replica.state, replica.pid, replica.restarts) == (22.0, "starting", 4712, 1)

    def test_a_dead_one_and_an_unknown_one_are_not_heard(self) -> None:
        made = pools()
        assert made.seen("b/0", 1, now=11.0) is None
        assert made.lost("a/0", 1) == ()
        assert made.seen("a/0", 1, now=11.0) is None

    def test_what_was_bound_is_returned_once_and_forgotten(self) -> None:
        made = pools()
        for attempt in (TWO, ONE):
            bound = made.bind(attempt, ["a"], None)
            assert bound == {"a": Binding("a/0", 1)}
        made.leave_behind(ONE, Binding("a/0", 1))
        assert made.lost("a/0", 2) is None
        assert made.lost("a/0", 1) == (ONE, TWO)
        assert made.lost("a/0", 1) is None
        assert not made.has_leftover("one-0")
        assert made.replicas["a/0"].free == made.replicas["a/0"].capacity

    def test_readiness_needs_one_replica_of_every_stage(self) -> None:
        made = pools("a:text > b:audio", replicas=2)
        assert made.all_ready()
        made.replicas["a/0"].state = "starting"
        assert made.all_ready()
        made.replicas["b/0"].state = "dead"
        assert not made.all_ready()


class TestBindings:
    def test_all_stages_or_none(self) -> None:
        made = pools("b:audio; a:text > b", max_inflight=1)
        assert made.bind(ONE, ["a", "b"], None) is not None
        assert made.bind(TWO, ["b", "a"], None) is None
        assert made.replicas["b/0"].inflight == {ONE}

    def test_nobody_to_wait_for_is_said_before_no_room(self) -> None:
        made = pools("a:text > b:audio", max_inflight=1)
        assert made.bind(ONE, ["a"], None) is not None
        made.replicas["b/0"].state = "stuck"
        with pytest.raises(UnavailableError, match="stage b has no live replica; try again shortly") as caught:
            made.bind(TWO, ["a", "b"], None)
        assert caught.value.stage == "b"
        assert caught.value.retriable

    def test_a_release_of_an_earlier_incarnation_frees_nothing(self) -> None:
        """The same attempt may be bound to the replica's next incarnation by then."""
        made = pools()
        earlier = Binding("a/0", 1)
        assert made.bind(ONE, ["a"], None) == {"a": earlier}
        assert made.lost("a/0", 1) == (ONE,)
        made.starting("a/0", 2, 4712, now=20.0)
        made.replicas["a/0"].state = "ready"
        later = Binding("a/0", 2)
        assert made.bind(ONE, ["a"], None) == {"a": later}
        made.release(ONE, earlier)
        made.leave_behind(ONE, earlier)
        assert made.replicas["a/0"].inflight == {ONE}
        assert not made.has_leftover("one-0")
        made.release(ONE, later)
        assert made.replicas["a/0"].inflight == set()

    def test_a_release_of_another_attempt_frees_nothing(self) -> None:
        made = pools()
        assert made.bind(("one-0", 2), ["a"], None) is not None
        made.release(("one-0", 1), Binding("a/0", 1))
        assert made.replicas["a/0"].inflight == {("one-0", 2)}

    def test_only_what_is_bound_can_be_left_behind(self) -> None:
        made = pools()
        made.leave_behind(ONE, Binding("a/0", 1))
        assert not made.has_leftover("one-0")

    def test_a_leftover_keeps_its_place_until_it_is_released(self) -> None:
        made = pools(max_inflight=1)
        bound = made.bind(ONE, ["a"], None)
        assert bound is not None
        made.leave_behind(ONE, bound["a"])
        assert made.has_leftover("one-0")
        assert not made.has_leftover("one")
        assert made.bind(TWO, ["a"], None) is None
        made.release(ONE, bound["a"])
        assert not made.has_leftover("one-0")
        assert made.bind(TWO, ["a"], None) is not None


class TestPolicies:
    def test_an_affinity_key_always_has_the_same_replica(self) -> None:
        made = pools(replicas=3, policy="affinity")
        chosen = {key: {bind(made, f"{key}{n}", key) for n in range(3)} for key in "abcdefgh"}
        assert all(len(replicas) == 1 for replicas in chosen.values())
        assert len(set.union(*chosen.values())) > 1, "and not all keys the same one"

    def test_when_a_replica_dies_only_its_own_keys_move(self) -> None:
        made = pools(replicas=3, policy="affinity")
        keys = [f"key{n}" for n in range(30)]
        before = {key: bind(made, key, key) for key in keys}
        made.lost("a/1", 1)
        after = {key: bind(made, f"{key} again", key) for key in keys}
        assert {key for key in keys if before[key] != after[key]} == {key for key in keys if before[key] == "a/1"}

    def test_a_request_without_a_key_takes_turns(self) -> None:
        made = pools(replicas=3, policy="affinity")
        assert [bind(made, str(n), None) for n in range(4)] == ["a/0", "a/1", "a/2", "a/0"]

    def test_round_robin_skips_who_is_full(self) -> None:
        made = pools(replicas=2, policy="round_robin", max_inflight=1)
        assert bind(made, "one", None) == "a/0"
        made.release(("one", 1), Binding("a/0", 1))
        assert bind(made, "two", None) == "a/1"
        assert bind(made, "three", None) == "a/0"
        assert made.bind(("four", 1), ["a"], None) is None


def bind(made: Pools, request_id: str, affinity: str | None) -> str:
    bound = made.bind((request_id, 1), ["a"], affinity)
    assert bound is not None
    return bound["a"].replica
