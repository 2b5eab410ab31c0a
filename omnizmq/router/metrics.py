"""The router's counters: what `status` shows under `counters`."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from omnizmq.router.request import Request


class Counters(msgspec.Struct):
    """All since the start. Expected races are counted here; they are no errors."""

    requests: int = 0
    refused: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    outputs: int = 0
    late_frames: int = 0
    """Of requests that have ended (C4), of earlier attempts or of dead incarnations (F3)."""
    bad_frames: int = 0
    """That did not decode, or that nobody should have sent (W1)."""
    router_errors: int = 0
    """Exceptions about one request, which failed it (F1)."""
    redriven: int = 0
    """Attempts after a first one (F2)."""
    replicas_lost: int = 0
    clients_gone: int = 0
    """Operators are none of them."""

    def document(self, requests: Iterable[Request]) -> dict[str, int]:
        """The counters, and the outputs that callers of live requests have not said that they consumed (B1)."""
        unconsumed = sum(delivered.unread for request in requests for delivered in request.delivered.values())
        return {**msgspec.structs.asdict(self), "unconsumed": unconsumed}
