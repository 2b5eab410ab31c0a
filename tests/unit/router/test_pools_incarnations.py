"""A replica's next incarnation inherits nothing that an earlier one said, did or held (F3)."""

from __future__ import annotations

from support.pipelines import config

from omnizmq.protocol import RingUse
from omnizmq.router.pools import Pools, Replica

SAID = {"engine_state": "stepping", "engine_text": "layer 3", "endpoint": "ipc:///run/a", "engine_since": 11.0}
COUNTS = {"late_frames": 4, "bad_frames": 5, "discarded": 6}


def pools() -> Pools:
    return Pools(config("a:text").stage)


def one_that_has_lived(made: Pools) -> Replica:
    made.starting("a/0", 1, 4711, now=10.0)
    replica = made.replicas["a/0"]
    for name, value in {**SAID, **COUNTS}.items():
        setattr(replica, name, value)
    replica.state, replica.rings = "ready", [RingUse("b", 64, 8, 1)]
    return replica


def test_f3_a_replica_that_was_never_started_is_no_process_and_has_counted_nothing() -> None:
    replica = pools().replicas["a/0"]
    assert (replica.state, replica.pid, replica.incarnation, replica.restarts) == ("dead", 0, 0, 0)
    assert [getattr(replica, name) for name in COUNTS] == [0, 0, 0]
    assert replica.unread == 0


def test_f3_of_one_that_is_dead_neither_process_nor_ring_is_left() -> None:
    made = pools()
    replica = one_that_has_lived(made)
    assert replica.unread == 9
    assert made.lost("a/0", 1) == ()
    assert (replica.state, replica.pid, replica.rings, replica.unread) == ("dead", 0, [], 0)
    assert [getattr(replica, name) for name in COUNTS] == [4, 5, 6], "what it did can still be read"


def test_f3_the_next_one_begins_anew() -> None:
    made = pools()
    replica = one_that_has_lived(made)
    made.starting("a/0", 2, 4712, now=20.0)
    assert (replica.state, replica.pid, replica.incarnation, replica.restarts) == ("starting", 4712, 2, 1)
    assert (replica.engine_state, replica.engine_text, replica.endpoint) == ("loading", "", "")
    assert (replica.last_seen, replica.engine_since, replica.rings) == (20.0, 20.0, [])
    assert [getattr(replica, name) for name in COUNTS] == [0, 0, 0]
