"""AAC, where PyAV is installed: it brings FFmpeg's encoder, and is no dependency of the bridge.

The file is a stream of ADTS frames, which has no header and no end of its own (ISO/IEC 13818-7).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BIT_RATE = 64_000


@functools.cache
def available() -> bool:
    """Whether PyAV is here and loads."""
    try:
        import av  # noqa: F401
    except ImportError:
        return False
    return True


class AacFile:
    """Mono. It is written as `soundfile.SoundFile` is; `file` gets bytes by its `write`."""

    def __init__(self, file: Any, sample_rate: int) -> None:
        import av

        self._container = av.open(file, "w", format="adts", options={"flush_packets": "1"})
        self._stream = self._container.add_stream("aac", rate=sample_rate, layout="mono")
        self._stream.bit_rate = BIT_RATE
        self._rate = sample_rate
        self._written = 0

    def write(self, samples: NDArray[np.float32]) -> None:
        """float32 `[samples]` in -1..1; what is beyond is clipped."""
        from av import AudioFrame

        frame = AudioFrame.from_ndarray(samples.clip(-1, 1)[None], format="fltp", layout="mono")
        frame.sample_rate = self._rate
        frame.pts = self._written
        self._written += len(samples)
        self._encode(frame)

    def flush(self) -> None:
        """Does nothing: a frame is written once it is whole."""

    def close(self) -> None:
        self._encode(None)
        self._container.close()

    def _encode(self, frame: Any) -> None:
        for packet in self._stream.encode(frame):
            self._container.mux(packet)
