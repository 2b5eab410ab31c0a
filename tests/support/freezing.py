"""Copies of whole worlds, and what tells two of them apart. For tests that follow every order of events.

`freeze` gives bytes, `thaw` a world from them as often as it is wanted. What never changes (configurations, plans, what
a caller submitted) is shared between the copies, not copied.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from omnizmq.config import Config
from omnizmq.pipeline import Pipeline, Plan
from omnizmq.protocol import Submit

_shared: dict[int, object] = {}
_hashes: dict[bytes, Any] = {}


def _share(value: object) -> tuple[Callable[[int], object], tuple[int]]:
    _shared[id(value)] = value
    return _shared_one, (id(value),)


def _share_hash(value: Any) -> tuple[Callable[[bytes], object], tuple[bytes]]:
    """One of an object of `hashlib`, which cannot be pickled: its digest says what went in."""
    digest = value.digest()
    _hashes.setdefault(digest, value.copy())
    return _copied_hash, (digest,)


def _copied_hash(digest: bytes) -> Any:
    return _hashes[digest].copy()


def _shared_one(key: int) -> object:
    return _shared[key]


class _Pickler(pickle.Pickler):
    dispatch_table = {
        **dict.fromkeys((Config, Pipeline, Plan, Submit), _share),
        type(blake2b()): _share_hash,
    }


def freeze(world: object) -> bytes:
    data = io.BytesIO()
    _Pickler(data).dump(world)
    return data.getvalue()


def thaw(frozen: bytes) -> Any:
    return pickle.loads(frozen)


def identity(*state: object) -> bytes:
    """Equal for equal states, whichever of their parts are one object and not two equal ones. They contain no cycle."""
    data = io.BytesIO()
    pickler = _Pickler(data)
    pickler.fast = True
    pickler.dump(state)
    return blake2b(data.getbuffer(), digest_size=16).digest()
