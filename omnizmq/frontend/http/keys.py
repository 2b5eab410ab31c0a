"""Who asks: API keys, compared in constant time, and whose request is whose."""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Sequence

from omnizmq.frontend.http.problems import BridgeError
from omnizmq.frontend.http.settings import ApiKey

NOBODY = ""
"""The owner of all requests where there are no keys."""

KEPT = 65536
"""Requests whose owner is remembered; the oldest are forgotten, and then nobody's."""


class Keys:
    """`owner` is the name of a key."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._keys = keys
        self._owners: OrderedDict[str, str] = OrderedDict()

    def owner(self, authorization: str | None) -> str:
        """Of the header. Raises `BridgeError`."""
        if not self._keys:
            return NOBODY
        scheme, _, key = (authorization or "").partition(" ")
        given = hashlib.sha256(key.strip().encode(errors="surrogateescape")).hexdigest()
        matches = [known.name for known in self._keys if hmac.compare_digest(known.sha256, given)]
        if scheme.lower() != "bearer" or not matches:
            raise BridgeError(401, "invalid_api_key", "no valid API key: send the header Authorization: Bearer KEY")
        return matches[0]

    def made(self, owner: str, *ids: str) -> None:
        """A request of the owner, by its ids."""
        for id_ in ids:
            self._owners[id_] = owner
        while len(self._owners) > KEPT:
            self._owners.popitem(last=False)

    def check(self, owner: str, id_: str) -> None:
        """Raises `BridgeError` for a request of somebody else: it is not told that there is one."""
        if self._keys and self._owners.get(id_) != owner:
            raise BridgeError(404, "not_found", f"no request {id_!r}")
