"""Whose request is whose, and for how long it is remembered."""

from __future__ import annotations

import pytest

from omnizmq.frontend.http.keys import KEPT_IDS, Keys
from omnizmq.frontend.http.problems import BridgeError
from omnizmq.frontend.http.settings import ApiKey

pytestmark = pytest.mark.http


def keys() -> Keys:
    return Keys([ApiKey(name="ann", sha256="0" * 64), ApiKey(name="bob", sha256="1" * 64)])


def test_an_id_that_is_used_again_is_new_again() -> None:
    known = keys()
    known.made("ann", "mine-1", "mine")
    known.made("ann", "other-1", "other")
    for number in range(KEPT_IDS // 2 - 2):
        known.made("ann", f"filler-{number}-1", f"filler-{number}")
    known.made("ann", "mine-2", "mine")  # one id more: the oldest of all is forgotten
    assert not known.remembers("ann", "mine-1")
    known.made("ann", "last-1", "last")
    assert known.own("ann", "mine") == "mine-2"
    assert not known.remembers("ann", "other")


def test_an_id_of_two_owners_is_each_ones_own() -> None:
    known = keys()
    known.made("ann", "mine-1", "mine")
    known.made("bob", "mine-2", "mine")
    assert (known.own("ann", "mine"), known.own("bob", "mine")) == ("mine-1", "mine-2")
    assert not known.owns("bob", "mine-1")


def test_ids_of_live_requests_are_those_that_have_not_ended() -> None:
    known = keys()
    with known.live("ann", "mine-1", "mine"):
        with known.live("ann", "mine-2", "mine"), known.live("bob", "mine-3", "mine"):
            assert known.live_ids("ann", "mine") == ["mine-1", "mine-2"]
            assert known.live_ids("ann", "mine-2") == ["mine-2"]
            with pytest.raises(BridgeError, match="no request 'mine-3'"):
                known.live_ids("ann", "mine-3")
        assert known.live_ids("ann", "mine") == ["mine-1"]
    assert known.live_ids("ann", "mine") == []
    assert not known._live
