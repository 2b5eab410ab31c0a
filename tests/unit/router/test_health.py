"""When a replica counts as silent (F2)."""

from __future__ import annotations

import pytest

from omnizmq.config import RouterConfig, StageConfig
from omnizmq.router.health import is_silent, what_ails
from omnizmq.router.pools import Replica, State


@pytest.mark.parametrize("interval_s", [0.1, 1.0, 20.0])
def test_f2_three_heartbeats_have_to_be_missing_however_often_they_come(interval_s: float) -> None:
    limits = RouterConfig(heartbeat_interval_s=interval_s, heartbeat_timeout_s=10 * interval_s)
    replica = Replica("talker/0", "talker", 4, 4, state="ready", last_seen=100.0)
    assert not is_silent(replica, limits, 100 + 2.9 * interval_s)
    assert is_silent(replica, limits, 100 + 3.1 * interval_s)


@pytest.mark.parametrize("state", ["starting", "dead"])
def test_f2_who_is_not_there_yet_or_no_more_is_not_silent(state: State) -> None:
    assert not is_silent(Replica("talker/0", "talker", 4, 4, state=state), RouterConfig(), 1000.0)


def test_f2_one_that_loads_is_silent_once_it_has_said_hello() -> None:
    """Importing a large library can keep it from telling for a while: it is said, and nobody is killed for it."""
    replica = Replica("talker/0", "talker", 4, 4, state="starting", endpoint="ipc:///run/talker", last_seen=100.0)
    limits = RouterConfig()
    assert is_silent(replica, limits, 100 + 3.1 * limits.heartbeat_interval_s)
    stage = StageConfig(name="talker", engine="synthetic", start_timeout_s=300.0)
    replica.engine_since = 100.0
    assert what_ails(replica, stage, limits, 399.0) is None
    assert what_ails(replica, stage, limits, 401.0) == "not ready after 301 s"
