"""What the synthetic engine makes: content that its consumer can compute for itself, and so verify.

Pure functions of the caller's external id, the stage, the output's number (from 1), the size and the seed.
"""

from __future__ import annotations

import hashlib
import re
from math import log

import numpy as np
from numpy.typing import NDArray

from omnizmq.protocol import Prompt, TextPart, TokenLogprob
from omnizmq.workers.engine import Chunk

SAMPLE_RATE = 24_000
TONE_SAMPLES = SAMPLE_RATE // 10


def pattern(external_id: str, stage: str, seq: int, size: int, seed: int = 0) -> NDArray[np.uint8]:
    """Bytes `[size]`, no eight of which recur at another offset, nor (by all likelihood) under another argument."""
    key = f"{seed}\0{external_id}\0{stage}\0{seq}\0{size}".encode()
    odd = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") | 1
    words = np.arange(1, -(-size // 8) + 1, dtype="<u8") * np.uint64(odd)
    return words.view(np.uint8)[:size]


def text_pattern(external_id: str, stage: str, seq: int, size: int, seed: int = 0) -> str:
    """`size` hexadecimal digits: the content of a final text output without `echo`."""
    return pattern(external_id, stage, seq, (size + 1) // 2, seed).tobytes().hex()[:size]


def logprob_pattern(text: str, seq: int, top: int) -> TokenLogprob:
    """Of an output that is one token, and what was likely in its place: itself, and others half as likely each."""
    halves = [(f"{text}-{place}" if place else text).encode() for place in range(top)]
    logprob = -seq / 8
    return TokenLogprob(text.encode(), logprob, [(token, logprob - log(2) * n) for n, token in enumerate(halves)])


def audio_pattern(external_id: str, stage: str, seq: int, size: int, seed: int = 0) -> NDArray[np.float32]:
    """Noise, float32 `[size // 4]` in -1..1: the content of a final audio output without `echo`."""
    data = pattern(external_id, stage, seq, size // 4 * 2, seed)
    samples: NDArray[np.float32] = data.view("<i2").astype(np.float32)
    return samples / np.float32(32768)


def tone(seq: int) -> NDArray[np.float32]:
    """0.1 s of a tone, float32 `[2400]`: the content of output `seq` of an audio stage with `echo`.

    Its pitch rises with `seq` from 440 Hz in steps of 10 Hz, twelve of them: whole periods, so chunks join smoothly.
    """
    hertz = 440 + 10 * ((seq - 1) % 12)
    angle = np.arange(TONE_SAMPLES) * (2 * np.pi * hertz / SAMPLE_RATE)
    samples: NDArray[np.float32] = (0.2 * np.sin(angle)).astype(np.float32)
    return samples


def words_of(prompt: Prompt) -> list[str]:
    """The words of a prompt (of a conversation: of its last message), each with the spaces before it.

    Joined, they are the text again. Token ids count as words.
    """
    if prompt.token_ids is not None:
        return _split(" ".join(map(str, prompt.token_ids)))
    if prompt.messages is not None:
        last = prompt.messages[-1:]
        return _split(" ".join(part.text for message in last for part in message.content if isinstance(part, TextPart)))
    return _split(prompt.text or "")


def _split(text: str) -> list[str]:
    return re.findall(r"\s*\S+(?:\s+\Z)?", text)


def difference(chunk: Chunk, external_id: str, source: str, seq: int) -> str | None:
    """What is wrong with a chunk that a synthetic `source` made as its number `seq`. None: nothing."""
    data = chunk.arrays.get("data")
    if data is None or data.dtype != np.uint8 or data.ndim != 1:
        return "it has no array 'data' of uint8"
    if chunk.meta.get("seq") != seq:
        return f"its seq is {chunk.meta.get('seq')!r}"
    seed = chunk.meta.get("seed", 0)
    if not isinstance(seed, int):
        return f"its seed is {seed!r}"
    if not np.array_equal(data, pattern(external_id, source, seq, data.size, seed)):
        return f"its {data.size} bytes are not the pattern of this request, stage, sequence and size"
    return None
