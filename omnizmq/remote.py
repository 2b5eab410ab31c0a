"""Clients on other machines: the keys of a deployment's TCP endpoint, and the file that a client needs (W2).

Every connection over TCP is encrypted and authenticated by CURVE (CurveZMQ, https://rfc.zeromq.org/spec/26/): the
client knows the deployment's public key, and the deployment admits one client key alone. Both are made at the first
launch with `router.remote` and kept in the state directory:

    remote.json   what a client needs: copy it to the other machine, and keep it secret, for it is the way in
    remote.key    the deployment's own secret key; it stays here

To shut everybody out, delete both: the next launch makes others. This module knows nothing of sockets.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from omnizmq import files
from omnizmq.errors import ConfigError, NotFoundError

Keys = tuple[bytes, bytes]
"""A public and a secret key, 40 characters of Z85 each."""

_FILE = "remote.json"
_SECRET = "remote.key"
_MOST_BYTES = 1 << 16
_KEY = re.compile(r"[0-9a-zA-Z.:+=^!/*?&<>()\[\]{}@%$#-]{40}")
_ENDPOINT = re.compile(r"tcp://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]):([0-9]{1,5})")


class Remote(msgspec.Struct, frozen=True):
    """What `remote.json` holds."""

    name: str
    endpoint: str  # as seen from the other machine: edit it where this machine has another name there
    server_key: str
    client_key: str
    client_secret: str
    version: int  # of the protocol


class Server(msgspec.Struct, frozen=True):
    """What the deployment itself needs to bind."""

    endpoint: str  # tcp://ADDRESS:PORT
    secret: bytes
    public: bytes
    client_key: bytes  # the only one that it admits


def serve(state: Path, name: str, endpoint: str, version: int, make_keys: Callable[[], Keys]) -> Server:
    """The deployment's keys, made where there are none. Raises `ConfigError` when they cannot be read or written."""
    try:
        secret = files.read(state / _SECRET, _MOST_BYTES)
        found = msgspec.json.decode(files.read(state / _FILE, _MOST_BYTES), type=Remote)
    except FileNotFoundError:
        public, secret = make_keys()
        client_key, client_secret = make_keys()
        found = Remote(name, "", public.decode(), client_key.decode(), client_secret.decode(), version)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{state / _FILE} and {_SECRET} cannot be used: {error}; delete both for new keys") from error
    found = msgspec.structs.replace(found, name=name, endpoint=as_seen_elsewhere(endpoint), version=version)
    _write(state / _SECRET, secret)
    _write(state / _FILE, msgspec.json.format(msgspec.json.encode(found)))
    return Server(endpoint, secret, found.server_key.encode(), found.client_key.encode())


def file(state: Path) -> Path:
    """What to copy to the other machine."""
    return state / _FILE


def is_file(connect: str) -> bool:
    """Whether a client means a file rather than a deployment of this machine."""
    return "://" not in connect and (connect.endswith(".json") or "/" in connect)


def read(path: str) -> Remote:
    """Raises `NotFoundError` for a file that is missing or none of ours."""
    try:
        found = msgspec.json.decode(files.read(path, _MOST_BYTES), type=Remote)
    except OSError as error:
        raise NotFoundError(
            f"{path}: cannot be read: {error.strerror}; a deployment's remote.json was expected"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotFoundError(f"{path}: is not a deployment's remote.json: {error}") from None
    if not all(_KEY.fullmatch(key) for key in (found.server_key, found.client_key, found.client_secret)):
        raise NotFoundError(f"{path}: a key is none of 40 characters of Z85: copy the file again")
    endpoint = _ENDPOINT.fullmatch(found.endpoint)
    if endpoint is None or not 0 < int(endpoint[3]) < 1 << 16:
        raise NotFoundError(
            f"{path}: endpoint {found.endpoint[:80]!r}: tcp://HOST:PORT or tcp://[IPV6]:PORT was expected"
        )
    return found


def as_seen_elsewhere(endpoint: str) -> str:
    """An address of all interfaces is none that a client can use: this machine's name is, mostly."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return f"tcp://{socket.gethostname() if host == '*' or _unspecified(host.strip('[]')) else host}:{port}"


def _unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name
        return False


def _write(path: Path, data: bytes) -> None:
    """Only its user can read it, from the first byte on."""
    fresh = path.with_name(path.name + ".new")
    try:
        with suppress(FileNotFoundError):
            fresh.unlink()
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
        fresh.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
