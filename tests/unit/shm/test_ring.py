"""A writer and a reader in one process: round trips, leases, and descriptors that do not match."""

from __future__ import annotations

import dataclasses
import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from omnizmq.shm.layout import HEADER, record_bytes
from omnizmq.shm.ledger import Ledger, Slot
from omnizmq.shm.memory import SharedMemoryError, make_segment
from omnizmq.shm.ring import MAPPED_SPILLS, RingError, RingReader, RingWriter, Segment

RING = 1 << 16
HALF = RING // 2
Bytes = NDArray[np.uint8]


def pattern(seq: int, nbytes: int) -> Bytes:
    return np.random.default_rng(seq).integers(0, 256, nbytes, np.uint8)


def nothing(_: Bytes) -> None:
    pass


def unwanted(_: Bytes) -> None:
    raise AssertionError("there is nothing to fill")


class Line:
    """A ring with its ledger, one reader, and how often that reader said that something is free."""

    def __init__(self, nbytes: int = RING) -> None:
        self.ledger = Ledger(nbytes)
        self.ledger.admit("reader", nbytes)
        self.writer = RingWriter(nbytes)
        self.calls = 0
        self.reader = RingReader(self.writer.id, self.writer.segment, nbytes, self.freed)

    def freed(self) -> None:
        self.calls += 1

    def write(self, nbytes: int) -> tuple[Slot, Segment | None]:
        slot = self.ledger.reserve(nbytes, ["reader"])
        assert slot is not None
        return slot, self.writer.write(slot, lambda out: np.copyto(out, pattern(slot.seq, nbytes)))

    def take(self, slot: Slot, spill: Segment | None = None) -> Bytes:
        return self.reader.take(slot.seq, slot.offset, slot.nbytes, spill)

    def send(self, nbytes: int) -> Bytes:
        """Written, taken and looked at."""
        slot, spill = self.write(nbytes)
        payload = self.take(slot, spill)
        assert np.array_equal(payload, pattern(slot.seq, nbytes))
        assert payload.dtype == np.uint8
        assert not payload.flags.writeable
        return payload

    def settle(self) -> list[int]:
        """What the reader says is free is released."""
        freed = self.reader.take_freed()
        for seq in freed:
            slot = self.ledger.release("reader", seq)
            assert slot is not None, "released twice"
            self.writer.free(slot)
        return freed

    def close(self) -> None:
        self.reader.close()
        self.writer.close()


@pytest.fixture
def line() -> Iterator[Line]:
    with closing(Line()) as line:
        yield line


def shares_the_ring(payload: Bytes, line: Line) -> bool:
    return np.shares_memory(payload, np.frombuffer(line.reader.memory, np.uint8))


# --- Round trips ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 10_000, HALF - HEADER])
def test_a_payload_arrives_and_its_place_is_free_once_it_is_dropped(line: Line, nbytes: int) -> None:
    payload = line.send(nbytes)
    assert payload.shape == (nbytes,)
    del payload
    assert line.settle() == [1]
    assert (line.ledger.used, line.reader.held) == (0, 0)


def test_records_follow_each_other_without_touching(line: Line) -> None:
    views = [line.send(nbytes) for nbytes in (1, 64, 100, 4000, 65, 1)]
    for seq, view in enumerate(views, start=1):
        assert np.array_equal(view, pattern(seq, len(view)))
        assert shares_the_ring(view, line)


def test_the_payload_is_written_in_place(line: Line) -> None:
    slot, _ = line.write(1000)
    assert slot.offset is not None
    assert bytes(line.writer.memory[slot.offset : slot.offset + 1000]) == pattern(1, 1000).tobytes()
    assert not line.writer.memory.readonly
    assert line.reader.memory.readonly


def test_rings_have_ids_of_their_own() -> None:
    with closing(Line()) as one, closing(Line()) as other:
        assert one.writer.id != other.writer.id
        assert one.writer.id < 1 << 62


def test_a_ring_that_cannot_be_had_is_refused() -> None:
    with pytest.raises(SharedMemoryError, match="over half of the"):
        RingWriter(1 << 50)


# --- Writing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [100, RING])
def test_a_fill_that_fails_publishes_nothing_and_leaks_nothing(line: Line, nbytes: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    slot = line.ledger.reserve(nbytes, ["reader"])
    assert slot is not None

    def fails(out: Bytes) -> None:
        out[:] = 1
        raise ZeroDivisionError("half way")

    with pytest.raises(ZeroDivisionError, match="half way") as raised:
        line.writer.write(slot, fails)
    assert len(os.listdir("/proc/self/fd")) == before, f"while {raised.value} is still looked at"
    with pytest.raises(RingError, match="not there"):
        line.reader.take(slot.seq, HEADER, nbytes if nbytes < RING else 0, None)
    assert line.ledger.cancel(slot.seq) == slot
    line.writer.free(slot)
    line.send(nbytes)


def test_what_was_there_is_not_published_while_its_place_is_filled_anew(line: Line) -> None:
    first, _ = line.write(100)
    line.ledger.cancel(first.seq)
    second = line.ledger.reserve(100, ["reader"])
    assert second is not None
    assert second.offset == first.offset
    seen: list[str] = []

    def fill(out: Bytes) -> None:
        out[:] = 7
        for slot in (first, second):
            with pytest.raises(RingError, match="not there") as refused:
                line.take(slot)
            seen.append(str(refused.value))

    line.writer.write(second, fill)
    assert len(seen) == 2
    assert (line.take(second) == 7).all()


@pytest.mark.parametrize("slot", [Slot(1, 0, 5), Slot(1, RING, 1), Slot(1, HEADER, RING), Slot(1, HEADER, -1)])
def test_a_slot_of_another_ring_is_not_written(line: Line, slot: Slot) -> None:
    with pytest.raises(RingError, match="not in this ring"):
        line.writer.write(slot, lambda out: out.fill(1))
    assert not any(line.writer.memory)


def test_a_closed_ring_takes_nothing_more_and_closes_twice(line: Line) -> None:
    slot, _ = line.write(10)
    line.close()
    line.close()
    for action in (lambda: line.writer.write(slot, nothing), lambda: line.take(slot)):
        with pytest.raises(RingError):
            action()


# --- Leases --------------------------------------------------------------------------------------------------------

DERIVED: dict[str, Callable[[Bytes], object]] = {
    "slice": lambda view: view[10:20],
    "slice of a slice": lambda view: view[10:200][5:9],
    "item of another dtype": lambda view: view.view(np.float32),
    "reshaped": lambda view: view.reshape(10, -1),
    "transposed": lambda view: view.reshape(10, -1).T,
    "broadcast": lambda view: np.broadcast_to(view, (3, 800)),
    "strided": lambda view: np.lib.stride_tricks.as_strided(view, (10, 10), (8, 1)),
    "memoryview": memoryview,
    "array of a memoryview": lambda view: np.frombuffer(memoryview(view), np.int16),
    "cast memoryview": lambda view: memoryview(view).cast("I")[3:],
    "ndarray subclass": lambda view: view.view(np.recarray),
    "reversed": lambda view: view[::-1],
    "ravelled": lambda view: view.ravel(),
    "scattered list": lambda view: [view[1:], (view[2:],)],
    "iterator": lambda view: view.flat,
}


@pytest.mark.parametrize("derive", DERIVED.values(), ids=DERIVED)
def test_b4_a_lease_lasts_as_long_as_what_was_derived_from_the_view(
    line: Line, derive: Callable[[Bytes], object]
) -> None:
    view = line.send(800)
    kept = [derive(view)]
    del view
    gc.collect()
    assert line.settle() == []
    assert line.reader.held == record_bytes(800)
    assert line.calls == 0
    kept.clear()
    assert line.calls == 1
    assert line.settle() == [1]
    assert line.reader.held == 0


def test_a_copy_of_a_view_holds_nothing(line: Line) -> None:
    copied = line.send(800).copy()
    assert line.settle() == [1]
    assert np.array_equal(copied, pattern(1, 800))


def test_a_view_cannot_be_made_writable(line: Line) -> None:
    view = line.send(100)
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True


def test_views_that_die_in_other_threads_in_any_order(line: Line) -> None:
    views = {seq: line.send(64) for seq in range(1, 101)}
    order = [int(seq) for seq in np.random.default_rng(3).permutation(np.arange(1, 101))]
    start = threading.Barrier(4)

    def drop(seqs: list[int]) -> None:
        start.wait()
        for seq in seqs:
            del views[seq]

    threads = [threading.Thread(target=drop, args=(order[part::4],)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert line.calls == 1
    assert sorted(line.settle()) == list(range(1, 101))
    assert (line.reader.held, line.ledger.used) == (0, 0)


def test_freed_is_called_once_until_the_freed_are_taken(line: Line) -> None:
    first, second, third = (line.send(64) for _ in range(3))
    assert line.calls == 0
    del first, second
    assert line.calls == 1
    assert line.settle() == [1, 2]
    assert line.settle() == []
    assert line.calls == 1
    del third
    assert line.calls == 2


def test_what_ended_before_a_take_is_still_told(line: Line) -> None:
    """`take` looks at what has ended as well, for the half of the quota; it must not swallow it."""
    del_me = line.send(64)
    del del_me
    assert line.calls == 1
    kept = line.send(64)
    assert line.reader.held == record_bytes(64)
    del kept
    assert line.calls == 1, "until the freed are taken, once is enough"
    assert line.settle() == [1, 2]


def test_garbage_collection_in_the_middle_of_anything() -> None:
    """Views in cycles die whenever the collector runs: here at every few allocations, `freed` included."""
    thresholds = gc.get_threshold()
    calls: list[object] = []

    class Node:
        view: Bytes | None = None

        def __init__(self) -> None:
            self.me = self

    def freed() -> None:
        calls.append([Node() for _ in range(20)])  # allocates, so that it is collected in here too

    ledger = Ledger(RING)
    ledger.admit("reader", RING)
    seqs: list[int] = []
    with (
        closing(RingWriter(RING)) as writer,
        closing(RingReader(writer.id, writer.segment, RING, freed)) as reader,
    ):
        gc.set_threshold(3, 2, 2)
        try:
            for _ in range(2000):
                slot = ledger.reserve(64, ["reader"])
                if slot is not None:
                    writer.write(slot, lambda out: out.fill(1))
                    node = Node()
                    node.view = reader.take(slot.seq, slot.offset, slot.nbytes, None)
                    del node
                for seq in reader.take_freed():
                    assert ledger.release("reader", seq) is not None
                    seqs.append(seq)
        finally:
            gc.set_threshold(*thresholds)
        gc.collect()
        seqs += reader.take_freed()
        assert sorted(seqs) == list(range(1, len(seqs) + 1))
        assert len(seqs) > 1000
        assert reader.held == 0


def test_a_callback_that_fails_does_not_reach_who_drops_the_view(line: Line) -> None:
    def fails() -> None:
        raise RuntimeError("the loop is closed")

    reader = RingReader(line.writer.id, line.writer.segment, RING, fails)
    with closing(reader):
        slot, _ = line.write(64)
        view = reader.take(slot.seq, slot.offset, slot.nbytes, None)
        del view  # an error in here would be a warning, and warnings are errors
        assert reader.take_freed() == [1]


def test_views_outlive_their_reader_and_the_ring(line: Line) -> None:
    views = [line.send(1000), line.send(2000)]
    line.close()
    for seq, view in enumerate(views, start=1):
        assert np.array_equal(view, pattern(seq, len(view)))
    assert line.reader.take_freed() == []
    views.clear()
    assert line.calls == 0, "nobody listens any more"


# --- Half of the quota ---------------------------------------------------------------------------------------------


def test_b4_views_take_at_most_half_of_the_quota_and_the_rest_is_copied(line: Line) -> None:
    nbytes = RING // 8 - HEADER
    kept = [line.send(nbytes) for _ in range(4)]
    assert [shares_the_ring(view, line) for view in kept] == [True] * 4
    assert line.reader.held == HALF
    assert line.settle() == []
    copies = []
    for seq in range(5, 30):  # the other half turns over, whatever is kept
        copies.append(line.send(nbytes))
        assert not shares_the_ring(copies[-1], line)
        assert line.settle() == [seq]
        assert line.reader.held == HALF
    for seq, payload in enumerate(kept + copies, start=1):
        assert np.array_equal(payload, pattern(seq, nbytes))
    kept.pop()
    assert shares_the_ring(line.send(nbytes), line)


def test_b4_one_byte_over_half_of_the_quota_is_copied(line: Line) -> None:
    kept = line.send(HALF - 2 * HEADER)
    assert shares_the_ring(kept, line)
    copied = line.send(1)
    assert not shares_the_ring(copied, line)
    assert line.calls == 1
    assert line.settle() == [2]


def test_a_copy_that_is_overwritten_while_it_is_made_is_refused(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = line.send(HALF - HEADER)
    slot, _ = line.write(1000)
    in_ring = RingReader._in_ring

    def overwritten_after_the_first_look(self: RingReader, *descriptor: int) -> Bytes:
        payload = in_ring(self, *descriptor)
        line.writer.write(Slot(slot.seq + 1, slot.offset, 1000), lambda out: out.fill(9))
        return payload

    monkeypatch.setattr(RingReader, "_in_ring", overwritten_after_the_first_look)
    with pytest.raises(RingError, match="used again"):
        line.take(slot)
    del kept


# --- Spilled records -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [HALF, RING, 5 * RING + 3])
def test_a_record_over_half_of_the_quota_arrives_by_a_segment_of_its_own(line: Line, nbytes: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    slot, spill = line.write(nbytes)
    assert slot.offset is None
    assert spill is not None
    assert spill.nbytes == HEADER + nbytes
    payload = line.take(slot, spill)
    assert line.calls == 1
    assert line.settle() == [slot.seq], "the writer may close it at once"
    assert (line.ledger.spilled, line.ledger.used, line.reader.held) == (0, 0, 0)
    line.writer.free(slot)
    assert np.array_equal(payload, pattern(slot.seq, nbytes))
    assert not payload.flags.writeable
    part = payload[-1000:]
    del payload
    assert np.array_equal(part, pattern(slot.seq, nbytes)[-1000:])
    del part
    assert len(os.listdir("/proc/self/fd")) == before


def test_b1_spilled_records_that_are_kept_cost_only_so_many_descriptors(line: Line) -> None:
    """Each mapping keeps one: beyond the limit they are copied, and a mapping that ends makes room for another."""

    def kept(count: int) -> list[Bytes]:
        arrays = []
        for _ in range(count):
            slot, spill = line.write(HALF)
            arrays.append(line.take(slot, spill))
            line.ledger.release("reader", slot.seq)
            line.writer.free(slot)
        return arrays

    before = len(os.listdir("/proc/self/fd"))
    arrays = kept(MAPPED_SPILLS + 3)
    assert len(os.listdir("/proc/self/fd")) == before + MAPPED_SPILLS
    assert all(np.array_equal(array, pattern(seq, HALF)) for seq, array in enumerate(arrays, 1))
    assert not any(array.flags.writeable for array in arrays)
    del arrays[:10]
    arrays += kept(11)
    assert len(os.listdir("/proc/self/fd")) == before + MAPPED_SPILLS


def test_a_spilled_record_of_another_process_is_refused(line: Line) -> None:
    slot, spill = line.write(HALF)
    assert spill is not None
    with pytest.raises(RingError, match="does not match"):
        line.take(slot, dataclasses.replace(spill, pid=1))


def test_a_spilled_record_that_was_freed_is_refused(line: Line) -> None:
    slot, spill = line.write(RING)
    line.writer.free(slot)
    with pytest.raises(SharedMemoryError, match=f"of process {os.getpid()}"):
        line.take(slot, spill)


def test_closing_the_writer_closes_its_spilled_segments(line: Line) -> None:
    before = len(os.listdir("/proc/self/fd"))
    line.write(RING)
    line.writer.close()
    assert len(os.listdir("/proc/self/fd")) == before - 2  # the ring's descriptor and its mapping's


def test_a_spill_that_cannot_be_had_leaks_nothing(line: Line) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SharedMemoryError, match="over half of the"):
        line.writer.write(Slot(1, None, 1 << 50), unwanted)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_spilled_record_is_written_once(line: Line) -> None:
    slot, _ = line.write(RING)
    with pytest.raises(RingError, match="written already"):
        line.writer.write(slot, nothing)


# --- Descriptors that do not match ---------------------------------------------------------------------------------


def test_the_descriptor_of_a_place_that_was_used_again_is_refused(line: Line) -> None:
    stale, _ = line.write(64)
    line.ledger.release("reader", stale.seq)
    fresh, _ = line.write(64)
    assert fresh.offset == stale.offset
    with pytest.raises(RingError, match=r"record 1 of 64 bytes is not there: its place was used again"):
        line.take(stale)
    assert np.array_equal(line.take(fresh), pattern(fresh.seq, 64))


def test_a_record_of_another_ring_is_refused(line: Line) -> None:
    slot, _ = line.write(64)
    big, spill = line.write(HALF)
    with closing(RingReader(line.writer.id ^ 1, line.writer.segment, RING, line.freed)) as other:
        with pytest.raises(RingError, match="not there"):
            other.take(slot.seq, slot.offset, slot.nbytes, None)
        with pytest.raises(RingError, match="not there"):
            other.take(big.seq, None, big.nbytes, spill)
    assert line.calls == 0


@pytest.mark.parametrize("nbytes", [1, HEADER - 1, HEADER + 1])
def test_a_segment_of_another_size_is_not_a_spilled_record(line: Line, nbytes: int) -> None:
    """One that has not even room for a header, say."""
    fd = make_segment(nbytes, populate=True)
    status = os.fstat(fd)
    try:
        with pytest.raises(RingError, match="does not match"):
            line.reader.take(1, None, 0, Segment(os.getpid(), fd, status.st_ino, status.st_dev, nbytes))
    finally:
        os.close(fd)


def test_a_record_in_use_is_not_taken_twice(line: Line) -> None:
    """Its place would be free with the first of the two views that dies."""
    slot, _ = line.write(64)
    view = line.take(slot)
    with pytest.raises(RingError, match="record 1 was taken before"):
        line.take(slot)
    del view
    assert line.settle() == [1]


class Shared(Line):
    """Records 1 (64 bytes), 2 (none) and 3 (spilled): all examples of a property look at them."""

    def __init__(self) -> None:
        super().__init__()
        self.write(64)
        self.write(0)
        spill = self.write(HALF)[1]
        assert spill is not None
        self.spill = spill


@pytest.fixture
def shared() -> Iterator[Shared]:
    with closing(Shared()) as shared:
        yield shared


numbers = st.one_of(
    st.sampled_from([0, 1, 2, HEADER, 2 * HEADER, 64, 65, -64, RING, RING - 64, RING + 64]),
    st.integers(-(2**70), 2**70),
    st.integers(-200, 200),
)


@given(seq=numbers, offset=st.one_of(st.none(), numbers), nbytes=numbers)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_w1_whatever_a_descriptor_says_it_is_the_record_or_an_error(
    shared: Shared, seq: int, offset: int | None, nbytes: int
) -> None:
    try:
        payload = shared.reader.take(seq, offset, nbytes, None)
    except RingError:
        return
    assert (seq, offset, nbytes) in [(1, HEADER, 64), (2, 3 * HEADER, 0)]
    assert np.array_equal(payload, pattern(seq, nbytes))


@given(data=st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_w1_whatever_a_spilled_descriptor_says_it_is_the_record_or_an_error(
    shared: Shared, data: st.DataObject
) -> None:
    right = shared.spill
    names = ("pid", "fd", "inode", "device", "nbytes")
    values = [data.draw(st.one_of(st.just(getattr(right, name)), numbers)) for name in names]
    seq = data.draw(st.one_of(st.just(3), numbers))
    offset = data.draw(st.one_of(st.none(), numbers))
    nbytes = data.draw(st.one_of(st.just(HALF), st.just(values[4] - HEADER), numbers))
    try:
        payload = shared.reader.take(seq, offset, nbytes, Segment(*values))
    except SharedMemoryError:
        return
    assert (Segment(*values), seq, offset, nbytes) == (right, 3, None, HALF)
    assert np.array_equal(payload, pattern(3, HALF))
