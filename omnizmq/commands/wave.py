"""The WAV file of an answer, written as the sound comes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnizmq.errors import InvalidRequestError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def check_writable(path: Path) -> None:
    """Raises `InvalidRequestError` before anything is started; leaves no file behind that was not there."""
    if path.suffix.lower() != ".wav":
        raise InvalidRequestError(f"--output {path} is not a .wav file: that is what is written")
    try:
        existed = path.exists()
        if path.is_fifo() or path.is_socket():
            raise InvalidRequestError(f"--output {path} is a pipe or a socket: a WAV file is written back and forth")
        with open(path, "ab"):
            pass
    except OSError as error:
        raise InvalidRequestError(f"--output {path} cannot be written: {error.strerror}") from error
    if not existed:
        path.resolve().unlink(missing_ok=True)  # of a dangling link: what it leads to


def preload() -> None:
    """Import what `WaveFile` and sound outputs need, so that the first sound does not wait for it."""
    import soundfile  # noqa: F401


class WaveFile:
    """16-bit mono PCM. The file is made with the first samples; without any there is none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sample_rate = 0
        self.samples = 0
        self._file: Any = None

    def write(self, samples: NDArray[np.float32], sample_rate: int) -> None:
        """float32 `[samples]` in -1..1; what is beyond is clipped."""
        import soundfile

        try:
            if self._file is None:
                self.sample_rate = sample_rate
                self._file = soundfile.SoundFile(
                    self.path, "w", samplerate=sample_rate, channels=1, subtype="PCM_16", format="WAV"
                )
            self._file.write(samples)
        except (OSError, soundfile.SoundFileError) as error:
            raise InvalidRequestError(f"--output {self.path} cannot be written: {error}") from error
        self.samples += len(samples)

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()

    def document(self) -> dict[str, object] | None:
        """For `chat --json`; None: there was no sound."""
        if not self.samples:
            return None
        seconds = round(self.samples / self.sample_rate, 3)
        return {"path": str(self.path), "sample_rate": self.sample_rate, "seconds": seconds}
