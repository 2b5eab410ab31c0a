"""What arrives on an edge, made a chunk: over the bytes where it lies, or in memory of this worker's own. Pure.

What cannot be read or kept is the error of the request that it is for, and says whose fault it is (F1, F2).
"""

from __future__ import annotations

import numpy as np

from omnizmq import protocol as wire
from omnizmq.errors import ReplicaLostError, StageError
from omnizmq.shm.memory import SegmentGoneError
from omnizmq.shm.ring import RingError
from omnizmq.workers.chunks import copied, unpack_chunk, unpack_slot
from omnizmq.workers.edges import InEdge
from omnizmq.workers.engine import Chunk
from omnizmq.workers.messages import SlotData


def opened(edge: InEdge, frame: wire.ChunkFrame | wire.RingChunk, data: SlotData) -> Chunk:
    """The chunk, its arrays over the frame's or the slot's own bytes."""
    if isinstance(frame, wire.ChunkFrame):
        return unpack_chunk(frame)
    if isinstance(data, np.ndarray):
        return unpack_slot(frame, data)
    source = edge.source
    text = f"chunk {frame.seq} of {source.replica} cannot be read: {data}"
    if isinstance(data, SegmentGoneError):
        raise ReplicaLostError(text, stage=source.stage, replica=source.replica)
    if data is None or isinstance(data, RingError):
        raise StageError(text, stage=source.stage, replica=source.replica)
    raise StageError(text)  # it is there, and this worker cannot have it


def own(chunk: Chunk, frame: wire.ChunkFrame | wire.RingChunk) -> Chunk:
    """The chunk in memory of this worker's own."""
    try:
        return copied(chunk) if isinstance(frame, wire.RingChunk) else chunk
    except MemoryError as error:
        raise StageError(f"chunk {frame.seq} from {frame.source} cannot be kept: no memory: {error}") from error
