"""Who asks: API keys, compared in constant time, and whose request is whose."""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from omnizmq.frontend.http.problems import BridgeError, quoted
from omnizmq.frontend.http.settings import ApiKey

NOBODY = ""
"""The owner of all requests where there are no keys."""

KEPT_IDS = 65536
"""Names of requests that are remembered; the oldest are forgotten, and then nobody's."""


def unknown(id_: str) -> BridgeError:
    """Of a request that there is not, or is somebody else's."""
    return BridgeError(404, "not_found", f"no request {quoted(id_)}")


class Keys:
    """`owner` is the name of a key."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._keys = keys
        self._requests: OrderedDict[tuple[str, str], str] = OrderedDict()  # owner and any of its ids -> request id
        self._live: dict[tuple[str, str], list[str]] = {}  # the same, of those that have not ended -> request ids

    def owner(self, authorization: str | None) -> str:
        """Of the header. Raises `BridgeError`."""
        if not self._keys:
            return NOBODY
        scheme, _, key = (authorization or "").partition(" ")
        # Headers are read as Latin-1, so that this gives the very bytes that came (ASGI, "HTTP & WebSocket").
        given = hashlib.sha256(key.encode("latin-1").strip()).hexdigest()
        matches = [known.name for known in self._keys if hmac.compare_digest(known.sha256, given)]
        if scheme.lower() != "bearer" or not matches:
            raise BridgeError(401, "invalid_api_key", "no valid API key: send the header Authorization: Bearer KEY")
        return matches[0]

    def made(self, owner: str, request_id: str, external_id: str) -> None:
        """A request of the owner, remembered. Others may call one of theirs by the same external id."""
        for id_ in (request_id, external_id):
            self._requests[owner, id_] = request_id
            self._requests.move_to_end((owner, id_))
        while len(self._requests) > KEPT_IDS:
            self._requests.popitem(last=False)

    @contextmanager
    def live(self, owner: str, request_id: str, external_id: str) -> Iterator[None]:
        """A request of the owner until it has ended, and remembered from then on."""
        self.made(owner, request_id, external_id)
        for id_ in (request_id, external_id):
            self._live.setdefault((owner, id_), []).append(request_id)
        try:
            yield
        finally:
            for id_ in (request_id, external_id):
                self._live[owner, id_].remove(request_id)
                if not self._live[owner, id_]:
                    del self._live[owner, id_]

    def live_ids(self, owner: str, id_: str) -> list[str]:
        """The ids by which the router ends what the owner means: its live request with this request id, or all with
        this external id. Raises as `own`."""
        own = self.own(owner, id_)
        return list(self._live.get((owner, id_), ())) if self._keys else [own]

    def own(self, owner: str, id_: str) -> str:
        """The id by which the owner's request is known to the router; of several with one external id the newest.

        Raises `BridgeError` for a request of somebody else: it is not told that there is one.
        """
        if not self._keys:
            return id_
        if not self.owns(owner, id_):
            raise unknown(id_)
        return self._requests[owner, id_]

    def owns(self, owner: str, id_: str) -> bool:
        """Whether that request is the owner's, as far as is remembered; without keys every request is."""
        return not self._keys or self.remembers(owner, id_)

    def remembers(self, owner: str, id_: str) -> bool:
        """Whether the owner made a request with that id here."""
        return (owner, id_) in self._requests
