"""The keys of a deployment's TCP endpoint, and the file that a client of another machine needs (W2)."""

from __future__ import annotations

import socket
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from omnizmq import remote
from omnizmq.errors import ConfigError, NotFoundError


def keys() -> Callable[[], remote.Keys]:
    """Keys of their number: 0000…, 1111…, 2222…"""
    numbers = iter("0123456789abcdef")
    return lambda: (next(numbers).encode() * 40, next(numbers).encode() * 40)


def served(
    state: Path, endpoint: str = "tcp://10.0.0.1:5790", make: Callable[[], remote.Keys] | None = None
) -> remote.Server:
    return remote.serve(state, "demo", endpoint, 3, make or keys())


def test_w2_what_is_written_for_a_client_fits_what_the_server_binds(tmp_path: Path) -> None:
    server = served(tmp_path)
    client = remote.read(str(remote.file(tmp_path)))
    assert (client.name, client.endpoint, client.version) == ("demo", "tcp://10.0.0.1:5790", 3)
    assert (server.public, server.secret) == (b"0" * 40, b"1" * 40)
    assert (client.server_key, client.client_key, client.client_secret) == ("0" * 40, "2" * 40, "3" * 40)
    assert server.client_key == b"2" * 40


def test_w2_nobody_else_can_read_the_keys(tmp_path: Path) -> None:
    served(tmp_path)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"remote.json": 0o600, "remote.key": 0o600}


def test_the_keys_outlive_a_launch_and_new_ones_follow_when_they_are_deleted(tmp_path: Path) -> None:
    make = keys()
    first = served(tmp_path, make=make)
    assert served(tmp_path, make=make) == first
    for path in tmp_path.iterdir():
        path.unlink()
    assert served(tmp_path, make=make) != first


@pytest.mark.parametrize("lost", ["remote.json", "remote.key"])
def test_a_half_of_the_keys_is_none(tmp_path: Path, lost: str) -> None:
    make = keys()
    first = served(tmp_path, make=make)
    (tmp_path / lost).unlink()
    assert served(tmp_path, make=make) != first


@pytest.mark.parametrize("all_interfaces", ["0.0.0.0", "*", "[::]", "[0:0::0]"])
def test_a_client_is_told_a_name_and_not_all_interfaces(tmp_path: Path, all_interfaces: str) -> None:
    served(tmp_path, f"tcp://{all_interfaces}:5790")
    assert remote.read(str(tmp_path / "remote.json")).endpoint == f"tcp://{socket.gethostname()}:5790"


@pytest.mark.parametrize("host", ["10.0.0.1", "host.example", "[::1]", "[fe80::1%eth0]"])
def test_any_other_address_is_told_as_it_is(tmp_path: Path, host: str) -> None:
    served(tmp_path, f"tcp://{host}:5790")
    assert remote.read(str(tmp_path / "remote.json")).endpoint == f"tcp://{host}:5790"


def test_a_broken_file_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    served(tmp_path)
    (tmp_path / "remote.json").write_text("{")
    with pytest.raises(ConfigError, match="delete both for new keys"):
        served(tmp_path)


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: No such file or directory"):
        served(tmp_path / "missing")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xff\xfe", "is not a deployment's remote.json"),
        (b"{}", "is not a deployment's remote.json: Object missing required field `name`"),
    ],
)
def test_a_client_is_told_what_is_wrong_with_its_file(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "remote.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(NotFoundError) as caught:
        remote.read(str(path))
    assert caught.value.message.startswith(f"{path}: {said}")


def test_a_cut_key_is_noticed(tmp_path: Path) -> None:
    served(tmp_path)
    path = tmp_path / "remote.json"
    path.write_text(path.read_text().replace("0" * 40, "0" * 39))
    with pytest.raises(NotFoundError, match="a key is none of 40 characters of Z85"):
        remote.read(str(path))


@pytest.mark.parametrize(
    ("connect", "file"),
    [
        ("demo", False),
        ("ipc:///run/omnizmq/demo/clients.sock", False),
        ("remote.json", True),
        ("/home/me/remote.json", True),
        ("keys/demo", True),
    ],
)
def test_a_file_is_told_from_a_name(connect: str, file: bool) -> None:
    assert remote.is_file(connect) is file


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("server_key", '"' * 40, "a key is none of 40 characters of Z85"),
        ("client_secret", "é" * 40, "a key is none of 40 characters of Z85"),
        ("endpoint", "foo", r"endpoint 'foo': tcp://HOST:PORT or tcp://\[IPV6\]:PORT was expected"),
        ("endpoint", "tcp://*:5790", r"endpoint 'tcp://\*:5790': tcp://HOST:PORT or"),
        ("endpoint", "tcp://host:0", "endpoint 'tcp://host:0': tcp://HOST:PORT or"),
        ("endpoint", "tcp://host:70000", "endpoint 'tcp://host:70000': tcp://HOST:PORT or"),
        ("endpoint", "tcp://::1:5790", "endpoint 'tcp://::1:5790': tcp://HOST:PORT or"),
        ("endpoint", "tcp://[::1]", r"endpoint 'tcp://\[::1\]': tcp://HOST:PORT or"),
    ],
)
def test_what_no_socket_would_take_is_noticed(tmp_path: Path, field: str, value: str, said: str) -> None:
    served(tmp_path)
    path = tmp_path / "remote.json"
    path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | {field: value}))
    with pytest.raises(NotFoundError, match=said):
        remote.read(str(path))
