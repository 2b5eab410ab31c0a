"""Who takes a place where, and which stages can be served at all (B1, F4)."""

from __future__ import annotations

from support.pipelines import config

from omnizmq.router.pools import Binding, Pools

ONE = ("one-0", 1)


def pools(graph: str = "a:text", **stage: object) -> Pools:
    """Every replica is ready, in its first incarnation."""
    made = Pools(config(graph, stages={"a": stage}).stage)
    for replica in made.replicas.values():
        made.starting(replica.id, 1, 4711, now=10.0)
        replica.state = "ready"
    return made


def test_b1_an_attempt_that_is_not_bound_there_cannot_wait_there() -> None:
    """Else one place more than there are would be free."""
    made = pools(max_inflight=2)
    made.count(ONE, Binding("a/0", 1), active=False)
    assert (made.replicas["a/0"].active, made.replicas["a/0"].free) == (0, 2)


def test_f3_nor_can_one_that_was_bound_to_an_earlier_incarnation() -> None:
    made = pools()
    assert made.bind(ONE, ["a"], None) is not None
    assert made.lost("a/0", 1) == (ONE,)
    made.starting("a/0", 2, 4712, now=20.0)
    made.replicas["a/0"].state = "ready"
    assert made.bind(ONE, ["a"], None) == {"a": Binding("a/0", 2)}
    made.count(ONE, Binding("a/0", 1), active=False)
    assert made.replicas["a/0"].active == 1
    made.count(ONE, Binding("a/0", 2), active=False)
    assert made.replicas["a/0"].active == 0


def test_b1_where_no_more_may_be_bound_it_is_said_though_few_compute() -> None:
    made = pools(max_inflight=2, max_registered=2)
    for attempt in (ONE, ("two-0", 1)):
        bound = made.bind(attempt, ["a"], None)
        assert bound is not None
        made.count(attempt, bound["a"], active=False)
    lack = made.lack(["a"], None, ())
    assert lack is not None
    assert (lack.why, lack.replicas) == ("full", "a/0 ready, 0/2 in flight, 2/2 registered")


def test_f4_stages_are_served_where_each_has_a_ready_replica_with_room_or_without() -> None:
    made = pools("a:text > b:audio", max_inflight=1)
    assert made.bind(ONE, ["a"], None) is not None
    assert made.serves(["a", "b"], ())
    assert not made.serves(["a"], {Binding("a/0", 1)})
    made.replicas["b/0"].state = "dead"
    assert not made.serves(["a", "b"], ()), "nobody there"
    made.replicas["b/0"].returning = True
    assert not made.serves(["a", "b"], ()), "nobody there yet"
    assert made.can_serve(["a", "b"], ())


def test_b1_an_affinity_key_has_the_last_place_of_its_replica_and_then_waits_for_one_whoever_else_is_free() -> None:
    made = pools(replicas=2, policy="affinity", max_inflight=2)
    first = made.bind(("r0", 1), ["a"], "key")
    assert first is not None
    assert made.bind(("r1", 1), ["a"], "key") == first
    assert made.bind(("r2", 1), ["a"], "key") is None
    made.release(("r0", 1), first["a"])
    assert made.bind(("r2", 1), ["a"], "key") == first
