"""What a trace is made of: facts, each with its time, its owner and the three ids (T1).

No prompt, no output, no chunk's content ever becomes part of a fact, unless `router.trace_contents` asks for it. Pure
data; no sockets, no engines. Which events there are, and what their details say, is in `events`.
"""

from __future__ import annotations

import msgspec

from omnizmq.protocol import Value, make_engine_id


class Fact(msgspec.Struct, frozen=True, gc=False):
    """One row of a trace. `at_ns` is CLOCK_MONOTONIC, which all processes of one machine share.

    To the router it is one of the effects of its core: to be recorded.
    """

    request_id: str
    external_id: str
    attempt: int
    at_ns: int
    owner: str  # "client", "router", a replica such as "talker/0", or "trace" for a fact about the trace itself
    event: str
    stage: str | None = None
    detail: dict[str, Value] = {}

    @property
    def engine_id(self) -> str | None:
        """By which the stage's engine knows this attempt; None for a fact of no stage."""
        return None if self.stage is None else make_engine_id(self.request_id, self.attempt, self.stage)
