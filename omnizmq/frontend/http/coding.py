"""Codecs beside the event loop: a piece of sound takes some of them 100 ms, and meanwhile others are answered."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from omnizmq.frontend.http.sound import Encoder
from omnizmq.frontend.output import RequestOutput

T = TypeVar("T")

_threads = ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1), thread_name_prefix="omnizmq-codec")


async def taken(encoder: Encoder | None, output: RequestOutput, call: Callable[[], T]) -> T:
    """What `call` returns, which hands the output to `encoder`; in a thread of its own where a codec has work."""
    works = encoder is not None and encoder.has_codec and (output.audio is not None or output.finished)
    return await asyncio.get_running_loop().run_in_executor(_threads, call) if works else call()
