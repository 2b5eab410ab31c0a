"""The status document as metrics: what it copies from the router is the router's."""

from __future__ import annotations

from typing import get_args

import pytest

from omnizmq.router.pools import State

pytestmark = pytest.mark.http


def test_every_state_of_a_replica_is_told() -> None:
    from omnizmq.frontend.http.status_metrics import STATES

    assert get_args(State) == STATES
