"""Sound is encoded beside the event loop: a piece takes some codecs 100 ms, and meanwhile others are answered."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from omnizmq.frontend.http.problems import BridgeError
from omnizmq.frontend.http.sound import Encoder
from omnizmq.frontend.output import RequestOutput

T = TypeVar("T")

_threads = ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1), thread_name_prefix="omnizmq-codec")


async def taken(encoder: Encoder | None, output: RequestOutput, call: Callable[[], T]) -> T:
    """What `call` returns, which hands the output to `encoder`; in a thread of its own where a codec has work. What it
    raises has the request's id."""
    works = encoder is not None and encoder.has_codec and (output.audio is not None or output.finished)
    try:
        return await _beside(call) if works else call()
    except BridgeError as error:
        error.request_id = output.request_id
        raise


async def whole(encoder: Encoder | None, call: Callable[[], T]) -> T:
    """What `call` returns, which makes all of an answer of what `encoder` has; in a thread of its own where there is
    sound: minutes of it take a while to become base64, too."""
    return await _beside(call) if encoder is not None else call()


async def _beside(call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_threads, call)
