"""Who may connect from another machine: the holder of the one client key that the deployment knows (W2).

CurveZMQ asks an authenticator of the same process, by ZAP (https://rfc.zeromq.org/spec/27/); pyzmq's own answers, in a
thread of its own.
"""

from __future__ import annotations

import hmac

import zmq
from zmq.auth.thread import ThreadAuthenticator


class Authentication:
    """Of all CURVE servers of one context. `key`: the client's public key, 40 characters of Z85."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], key: bytes) -> None:
        self._key = key
        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(credentials_provider=self)

    def callback(self, domain: str, key: bytes) -> bool:  # noqa: ARG002 (pyzmq calls it so)
        return hmac.compare_digest(key, self._key)

    def close(self) -> None:
        self._authenticator.stop()
