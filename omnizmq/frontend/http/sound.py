"""Sound as OpenAI's formats have it, written as it comes: float32 samples in, bytes of a file out.

Every format has the very samples that `omnizmq chat` writes, but for what a codec loses; libsndfile encodes all that
has one, and PyAV makes AAC where it is installed. A stream cannot go back: where an encoder would write a length into
its header at the end, a streamed file keeps the header's "unknown", which players accept.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omnizmq.frontend.http import aac
from omnizmq.frontend.http.problems import BridgeError, quoted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_PLAIN = ("wav", "pcm16")
_ENCODINGS = {"flac": ("FLAC", "PCM_16"), "mp3": ("MP3", "MPEG_LAYER_III"), "opus": ("OGG", "OPUS")}
FORMATS = (*_PLAIN, *_ENCODINGS, "aac")
MEDIA_TYPES = {
    "wav": "audio/wav",
    "pcm16": "audio/pcm",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
}
_MPEG_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
_RATES: dict[str, Container[int]] = {
    "opus": (8000, 12000, 16000, 24000, 48000),  # RFC 6716, 2.1.3
    "mp3": _MPEG_RATES,  # ISO/IEC 13818-3, and MPEG-2.5 below 16 kHz
    "aac": (7350, *_MPEG_RATES, 64000, 88200, 96000),  # ISO/IEC 14496-3, 1.6.3.4
    "flac": {*range(1, 65536), *range(65540, 655351, 10)},  # RFC 9639, 9.1.2: 16 bits, or 16 bits of tens
}
"""In Hz; what is not named here takes any."""

_SILENT_HZ = 24000
"""The rate of a file without samples."""

_UNKNOWN = 0xFFFFFFFF


def formats() -> list[str]:
    """Those that are made here."""
    return [name for name in FORMATS if name != "aac" or aac.available()]


def takes(format_: str, sample_rate: int) -> bool:
    """Whether the format has that rate, in Hz."""
    return format_ not in _RATES or sample_rate in _RATES[format_]


@dataclass(frozen=True)
class FormatField:
    """Where a body says the format: `name`, and what it calls PCM."""

    name: str
    pcm: str

    def said(self, format_: str) -> str:
        """What the caller calls it."""
        return self.pcm if format_ == "pcm16" else format_

    def format_of(self, said: str) -> str:
        """One of `formats`. Raises `BridgeError`."""
        names = {self.said(made): made for made in formats()}
        if said not in names:
            why = ": it needs the package av, which is not installed" if said == "aac" else ""
            text = f"{self.name}: sound as {quoted(said)} is not made here{why}; formats are {', '.join(names)}"
            raise BridgeError(400, "invalid_request", text, self.name)
        return names[said]


CHAT = FormatField("audio.format", "pcm16")
SPEECH = FormatField("response_format", "pcm")


class Encoder:
    """One sound. `streamed`: bytes are taken before the end is known. `field`: by which it was asked for."""

    def __init__(self, format_: str, *, streamed: bool, field: FormatField = CHAT) -> None:
        """`format_` is one of `formats`."""
        self.format = format_
        self._field = field
        self._streamed = streamed
        self._growing = _Growing()
        self._file: Any = None
        self._rate = 0

    @property
    def empty(self) -> bool:
        """Whether there was no sound so far."""
        return not self._rate

    @property
    def has_codec(self) -> bool:
        """Whether it compresses, which takes a while."""
        return self.format not in _PLAIN

    def add(self, samples: NDArray[np.float32], sample_rate: int) -> bytes:
        """float32 `[samples]` in -1..1, mono, at `sample_rate` Hz, which is the same each time; what is beyond is
        clipped. What can be sent by now; b"" of a sound that is not streamed. Raises `BridgeError` for a rate that the
        format does not have."""
        if not self._rate:
            self._begin(sample_rate)
        if self.format in _PLAIN:
            self._growing.write(pcm16(samples).tobytes())
        else:
            self._file.write(pcm16(samples) if self.format == "flac" else samples)
            self._file.flush()
        return self._growing.take() if self._streamed else b""

    def end(self) -> bytes:
        """What is left of a stream, or all of the file. Where there was no sound, that is a WAV file without samples,
        or b"" in the other formats."""
        if self._file is not None:
            self._file.close()
        data = self._growing.take()
        begun = self._streamed and not self.empty
        return data if self.format != "wav" or begun else _wav_header(self._rate or _SILENT_HZ, len(data)) + data

    def _begin(self, sample_rate: int) -> None:
        self._rate = sample_rate
        if self.format == "wav" and self._streamed:
            self._growing.write(_wav_header(sample_rate, _UNKNOWN))
        if self.format in _PLAIN:
            return
        if not takes(self.format, sample_rate):
            others = ", ".join(self._field.said(name) for name in formats() if takes(name, sample_rate))
            told = f"{self.format} has no rate of {sample_rate} Hz, which the sound has; formats with it: {others}"
            raise BridgeError(400, "invalid_request", f"{self._field.name}: {told}", self._field.name)
        if self.format == "aac":
            self._file = aac.AacFile(self._growing, sample_rate)
            return
        import soundfile

        kind, subtype = _ENCODINGS[self.format]
        self._file = soundfile.SoundFile(
            self._growing,
            "w",
            samplerate=sample_rate,
            channels=1,
            format=kind,
            subtype=subtype,
            # Constant, because a player reckons a stream's length from its first frame. The one goes with the other.
            bitrate_mode="CONSTANT" if self.format == "mp3" else None,
            compression_level=0.5 if self.format == "mp3" else None,
        )


def pcm16(samples: NDArray[np.float32]) -> NDArray[np.int16]:
    """float32 in -1..1 as 16 bits, little-endian, as libsndfile makes them of a WAV file's samples: the upper half of
    32 bits."""
    import numpy as np

    scaled = np.rint(samples.astype(np.float64) * (1 << 31))
    return (np.clip(scaled, -(1 << 31), (1 << 31) - 1).astype(np.int64) >> 16).astype("<i2")


class _Growing:
    """A file in memory, of which what was taken is gone: what is written there later is not seen by anybody."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._taken = 0
        self._at = 0

    def take(self) -> bytes:
        data = bytes(self._bytes)
        self._taken += len(data)
        self._bytes.clear()
        return data

    def _end(self) -> int:
        return self._taken + len(self._bytes)

    def write(self, data: bytes) -> int:
        data = bytes(data)
        at = self._at - self._taken
        self._at += len(data)
        kept = data[max(0, -at) :]
        at = max(0, at)
        self._bytes[at : at + len(kept)] = kept
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._end())[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, count: int = -1) -> bytes:  # noqa: ARG002 (as a file has it)
        raise OSError("it is only written")

    def flush(self) -> None:
        pass


def _wav_header(sample_rate: int, data_bytes: int) -> bytes:
    """Of 16-bit mono PCM (RIFF; Microsoft's Multimedia Programming Interface, 1991). A size of 0xFFFFFFFF: unknown."""
    riff = _UNKNOWN if data_bytes == _UNKNOWN else data_bytes + 36
    format_ = struct.pack("<HHIIHH", 1, 1, sample_rate, 2 * sample_rate, 2, 16)
    return (
        b"RIFF"
        + struct.pack("<I", riff)
        + b"WAVEfmt "
        + struct.pack("<I", 16)
        + format_
        + b"data"
        + struct.pack("<I", data_bytes)
    )


class Base64Stream:
    """Pieces of base64 that can be joined: each but the last stands for a multiple of 6 bytes.

    OpenAI's client joins the texts, and a decoder stops at the first padding; 6, so that a piece of PCM has whole
    samples too.
    """

    def __init__(self) -> None:
        self._kept = b""

    def add(self, data: bytes) -> str:
        """What can be said by now, may be empty."""
        data = self._kept + data
        whole = len(data) - len(data) % 6
        self._kept = data[whole:]
        return b64encode(data[:whole]).decode()

    def end(self) -> str:
        kept, self._kept = self._kept, b""
        return b64encode(kept).decode()
