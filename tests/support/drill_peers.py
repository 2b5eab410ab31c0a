"""Raw peers of a deployment: sockets that say what they like, and their hellos."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import zmq

from omnizmq import protocol as wire
from omnizmq.remote import Remote


class Peer:
    """A raw connection to the socket `name` of the deployment `synthetic`; or, with `keys`, to another address."""

    def __init__(self, home: Path, name: str, identity: bytes | None = None, keys: Remote | None = None) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        if identity is not None:
            self._socket.setsockopt(zmq.IDENTITY, identity)
        if keys is not None:
            self._socket.curve_serverkey = keys.server_key.encode()
            self._socket.curve_publickey = keys.client_key.encode()
            self._socket.curve_secretkey = keys.client_secret.encode()
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(f"ipc://{home}/run/omnizmq/synthetic/{name}" if keys is None else keys.endpoint)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()

    def says(self, *frames: bytes) -> None:
        """One message of these frames."""
        self._socket.send_multipart(frames)

    def hears(self, decoder: msgspec.msgpack.Decoder[Any] = wire.router_to_client) -> Any:
        """The next frame that is no ping."""
        while True:
            assert self._socket.poll(5000), "no answer"
            frame = decoder.decode(self._socket.recv())
            if not isinstance(frame, wire.Ping):
                return frame

    def hears_nothing(self, timeout_ms: int = 300) -> bool:
        while self._socket.poll(timeout_ms):
            if not isinstance(wire.router_to_client.decode(self._socket.recv()), wire.Ping):
                return False
        return True


def hello(nonce: str, /, **changed: Any) -> bytes:
    said = wire.Hello(wire.VERSION, nonce, "client", pid=os.getpid())
    return wire.encode_hello(msgspec.structs.replace(said, **changed))


def worker_hello(nonce: str, /, **changed: Any) -> bytes:
    said = wire.Hello(wire.VERSION, nonce, "worker", 1, "talker/0", 1, "ipc:///tmp/none")
    return wire.encode_hello(msgspec.structs.replace(said, **changed))


def producer_hello(nonce: str, /, **changed: Any) -> bytes:
    said = wire.Hello(wire.VERSION, nonce, "producer", 1, "stranger/0", 1)
    return wire.encode_hello(msgspec.structs.replace(said, **changed))
