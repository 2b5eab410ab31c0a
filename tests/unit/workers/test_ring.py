"""A producer's ring as its gate sees it: shares, quotas, one line for each reader (B1, B3, B4)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnizmq import config
from omnizmq import protocol as wire
from omnizmq.shm.ledger import Slot
from omnizmq.workers.ring import Ring, Share, ring_shares

RECORD = 1024
NBYTES = RECORD - 64
TALKER, OTHER, CAPTIONS = ("talker/0", 1), ("talker/1", 1), ("captions/0", 1)
KEYS = [(f"demo{number}", 1) for number in range(4)]
ONE, TWO, THREE, FOUR = KEYS


def ring(quota: int = 2 * RECORD) -> Ring:
    """Three readers of two stages, all admitted."""
    made = Ring({"talker": Share(2 * quota, quota), "captions": Share(quota, quota)})
    for peer in (TALKER, OTHER, CAPTIONS):
        assert made.meet(peer, peer[0].partition("/")[0]) == quota
        made.admit(peer)
    return made


def put(made: Ring, key: tuple[str, int], *peers: tuple[str, int], nbytes: int = NBYTES) -> Slot | None:
    turns = [made.has_turn(key, peer, nbytes) for peer in peers]  # of all: it stands in each line
    return made.reserve(key, peers, nbytes) if all(turns) else None


def turns(made: Ring) -> list[tuple[tuple[str, int], tuple[str, int]]]:
    return list(made.next_turns())


def used(made: Ring) -> dict[str, int]:
    return {use.target: use.used for use in made.uses()}


CONFIG = """
name = "test"
[[stage]]
name = "a"
engine = "synthetic"
[[stage]]
name = "b"
engine = "synthetic"
replicas = 3
final_output = "text"
[[stage]]
name = "c"
engine = "synthetic"
final_output = "text"
[[stage]]
name = "d"
engine = "synthetic"
final_output = "text"
[[edge]]
from = "a"
to = "b"
ring_mib = 8
[[edge]]
from = "a"
to = "c"
mode = "payload"
ring_mib = 2
[[edge]]
from = "a"
to = "d"
mode = "relay"
[[edge]]
from = "b"
to = "c"
ring_mib = 4
"""


class TestShares:
    def test_b1_an_edge_has_its_ring_mib_and_each_replica_of_its_consumer_an_equal_part(self, tmp_path: Path) -> None:
        (tmp_path / "test.toml").write_text(CONFIG)
        loaded = config.load(tmp_path / "test.toml")
        assert ring_shares(loaded, "a") == {"b": Share(8 << 20, (8 << 20) // 3), "c": Share(2 << 20, 2 << 20)}
        assert ring_shares(loaded, "b") == {"c": Share(4 << 20, 4 << 20)}
        assert ring_shares(loaded, "c") == {}

    def test_b1_the_ring_is_the_sum_of_its_shares(self) -> None:
        made = Ring({"talker": Share(5 * RECORD, RECORD), "captions": Share(3 * RECORD, RECORD)})
        assert made._ledger.capacity == 8 * RECORD


class TestReaders:
    def test_w3_a_reader_is_met_once(self) -> None:
        made = Ring({"talker": Share(RECORD, 10)})
        assert made.meet(TALKER, "talker") == 10
        assert made.meet(TALKER, "talker") is None
        assert made.meet(("talker/0", 2), "talker") == 10

    def test_a_stage_without_a_share_is_not_met(self) -> None:
        made = Ring({"talker": Share(RECORD, 10)})
        assert made.meet(CAPTIONS, "captions") is None
        made.admit(CAPTIONS)
        assert not made.admits(CAPTIONS)

    def test_w3_it_is_admitted_when_it_has_answered(self) -> None:
        made = Ring({"talker": Share(RECORD, 10)})
        made.meet(TALKER, "talker")
        assert not made.admits(TALKER)
        made.admit(TALKER)
        assert made.admits(TALKER)
        assert not made.admits(("talker/0", 2))

    def test_nobody_is_admitted_who_was_not_met(self) -> None:
        made = Ring({"talker": Share(RECORD, 10)})
        made.admit(TALKER)
        assert not made.admits(TALKER)

    def test_f2_a_reader_that_was_reaped_is_forgotten(self) -> None:
        made = ring()
        slot = put(made, ONE, TALKER)
        assert made.drop(TALKER) == [slot]
        assert not made.admits(TALKER)
        made.admit(TALKER)
        assert not made.admits(TALKER)
        assert made.drop(TALKER) == []
        assert made.meet(TALKER, "talker") == 2 * RECORD


class TestLines:
    def test_b1_who_finds_no_room_stands_in_line_and_is_told_when_it_moves(self) -> None:
        made = ring()
        slots = [put(made, ONE, TALKER), put(made, ONE, TALKER)]
        assert put(made, TWO, TALKER) is None
        assert put(made, THREE, TALKER) is None
        assert turns(made) == []
        assert made.release(TALKER, [1]) == [slots[0]]
        assert turns(made) == [(TWO, TALKER)]
        assert put(made, THREE, TALKER) is None
        assert put(made, TWO, TALKER) is not None
        assert turns(made) == [(THREE, TALKER)]
        assert turns(made) == []

    def test_b1_nobody_passes_the_first_in_line_even_where_there_is_room(self) -> None:
        made = ring(4 * RECORD)
        for _ in range(3):
            put(made, ONE, TALKER)
        assert put(made, TWO, TALKER, nbytes=2 * RECORD - 64) is None
        assert put(made, THREE, TALKER) is None
        assert put(made, ONE, TALKER) is None
        made.release(TALKER, [1])
        assert put(made, THREE, TALKER) is None
        assert put(made, TWO, TALKER, nbytes=2 * RECORD - 64) is not None

    def test_b1_a_request_stands_in_line_once(self) -> None:
        made = ring()
        put(made, ONE, TALKER)
        put(made, ONE, TALKER)
        for _ in range(3):
            assert put(made, TWO, TALKER) is None
        made.release(TALKER, [1, 2])
        assert put(made, TWO, TALKER) is not None
        assert put(made, THREE, TALKER) is not None

    def test_b1_each_reader_has_a_line_of_its_own(self) -> None:
        made = ring()
        put(made, ONE, TALKER)
        put(made, ONE, TALKER)
        assert put(made, TWO, TALKER) is None
        assert put(made, TWO, OTHER) is not None
        assert put(made, THREE, CAPTIONS) is not None

    def test_b1_who_leaves_makes_way_and_who_did_not_stand_there_changes_nothing(self) -> None:
        made = ring()
        put(made, ONE, TALKER)
        put(made, ONE, TALKER)
        put(made, TWO, TALKER)
        put(made, THREE, TALKER)
        made.leave(FOUR, TALKER)
        made.leave(TWO, OTHER)
        assert turns(made) == []
        made.leave(TWO, TALKER)
        assert turns(made) == [(THREE, TALKER)]

    def test_b1_a_slot_for_several_readers_takes_the_request_out_of_all_their_lines(self) -> None:
        made = ring()
        for peer in (TALKER, CAPTIONS):
            put(made, ONE, peer)
            put(made, ONE, peer)
        assert put(made, TWO, TALKER, CAPTIONS) is None
        made.release(TALKER, [1])
        made.release(CAPTIONS, [3])
        assert put(made, TWO, TALKER, CAPTIONS) is not None
        assert not any(made._lines.values())

    def test_b1_a_slot_that_was_cancelled_moves_the_lines(self) -> None:
        made = ring()
        slot = put(made, ONE, TALKER, CAPTIONS, nbytes=2 * RECORD)
        assert slot is not None
        assert put(made, TWO, TALKER) is None
        assert put(made, THREE, CAPTIONS) is None
        made.cancel(slot)
        assert sorted(turns(made)) == [(TWO, TALKER), (THREE, CAPTIONS)]
        assert used(made) == {"talker": 0, "captions": 0}

    def test_f2_the_line_of_a_reaped_reader_is_gone(self) -> None:
        made = ring()
        put(made, ONE, TALKER)
        put(made, ONE, TALKER)
        put(made, TWO, TALKER)
        made.drop(TALKER)
        assert turns(made) == []
        made.release(TALKER, [1])
        assert turns(made) == []


class TestReclaiming:
    def test_b3_a_slot_is_returned_when_its_last_reader_has_released_it(self) -> None:
        made = ring()
        slot = put(made, ONE, TALKER, CAPTIONS)
        assert made.release(TALKER, [1]) == []
        assert made.release(TALKER, [1]) == []
        assert made.release(OTHER, [1]) == []
        assert made.release(CAPTIONS, [1, 1]) == [slot]

    def test_b3_uses_count_each_readers_share_by_its_stage(self) -> None:
        made = ring()
        put(made, ONE, TALKER)
        put(made, ONE, OTHER, CAPTIONS)
        assert made.uses() == [
            wire.RingUse("talker", 4 * RECORD, 2 * RECORD, 0),
            wire.RingUse("captions", 2 * RECORD, RECORD, 0),
        ]
        made.drop(OTHER)
        assert used(made) == {"talker": RECORD, "captions": RECORD}

    def test_f2_of_a_shared_slot_a_reaped_readers_part_is_free_and_the_slot_is_not(self) -> None:
        made = ring()
        slot = put(made, ONE, TALKER, CAPTIONS)
        assert made.drop(TALKER) == []
        assert made.release(CAPTIONS, [1]) == [slot]

    @settings(max_examples=200, derandomize=True)
    @given(data=st.data())
    def test_b1_whoever_waits_longest_goes_first_and_nothing_is_left_at_the_end(self, data: st.DataObject) -> None:
        made = ring(3 * RECORD)
        wants: dict[tuple[tuple[str, int], tuple[str, int]], int] = {}
        order: dict[tuple[str, int], list[tuple[str, int]]] = {TALKER: [], OTHER: []}
        held: list[tuple[tuple[str, int], int]] = []

        def serve(key: tuple[str, int], peer: tuple[str, int], nbytes: int) -> None:
            first = not order[peer] or order[peer][0] == key
            slot = put(made, key, peer, nbytes=nbytes)
            if slot is None:
                wants[(key, peer)] = nbytes
                if key not in order[peer]:
                    order[peer].append(key)
                return
            assert first
            wants.pop((key, peer), None)
            if key in order[peer]:
                order[peer].remove(key)
            held.append((peer, slot.seq))

        for _ in range(data.draw(st.integers(1, 40))):
            if data.draw(st.booleans()) and held:
                peer, seq = held.pop(data.draw(st.integers(0, len(held) - 1)))
                made.release(peer, [seq])
            else:
                key, peer = data.draw(st.sampled_from(KEYS)), data.draw(st.sampled_from([TALKER, OTHER]))
                serve(key, peer, wants.get((key, peer)) or data.draw(st.integers(0, 4 * RECORD)))
            for key, peer in made.next_turns():
                serve(key, peer, wants[(key, peer)])
        while held:
            peer, seq = held.pop()
            made.release(peer, [seq])
            for key, turn in made.next_turns():
                serve(key, turn, wants[(key, turn)])
        assert not wants
        assert (made._ledger.used, made._ledger.spilled) == (0, 0)


def test_a_ring_without_shares_admits_nobody_and_tells_of_nothing() -> None:
    made = Ring({})
    assert made.meet(TALKER, "talker") is None
    assert made.uses() == []
    assert made.release(TALKER, [1]) == []
    assert made.drop(TALKER) == []
    with pytest.raises(ValueError, match="not admitted"):
        made.reserve(ONE, [TALKER], 10)
