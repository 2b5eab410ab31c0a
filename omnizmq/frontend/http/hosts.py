"""Who a bridge without keys answers to: requests that name this machine, or what it is told to be called. A page of any
site can have its own name mean 127.0.0.1 and then ask as if it were of the same origin (DNS rebinding); its requests
still name that site as `host`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from omnizmq.frontend.http.limits import refuse
from omnizmq.frontend.http.problems import BridgeError
from omnizmq.tables import shown


class LocalHosts:
    """ASGI middleware. `names`: others than this machine's own, such as that of a proxy which hands it on."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app = app
        self._names = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), None)
        if named is None or is_local(named) or _name(named) in self._names:
            await self._app(scope, receive, send)
            return
        expected = "without api_keys, localhost, 127.0.0.1 or a name of plugins.http.hosts was expected"
        text = f"header host: {shown(named)} is not this machine; {expected}"
        await refuse(BridgeError(403, "forbidden_host", text), scope, receive, send)


def is_local(host: str) -> bool:
    """Of a header's value, with or without a port: whether nobody else's name can be meant."""
    name = _name(host)
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761, 6.3
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


_HOST = re.compile(r"(?:\[([0-9a-f:.]*)\]|([^\[\]:@/?#\\]*))(?::[0-9]*)?", re.IGNORECASE)
"""RFC 9110, 7.2: a name or an address, with or without a port."""


def _name(host: str) -> str:
    """Empty where it is none."""
    found = _HOST.fullmatch(host)
    return (found[1] or found[2] or "").lower() if found else ""
