"""The embedded deployment with the HTTP bridge, one for all tests of a file: it takes seconds to load. A file that is
about another deployment has fixtures of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.running import Running, launched


@pytest.fixture(scope="module")
def deployment() -> Iterator[Running]:
    with launched("embedded", "plugins.http.port=0") as running:
        yield running


@pytest.fixture(scope="module")
def client(deployment: Running) -> Iterator[Any]:
    """OpenAI's own."""
    from support.bridge import official

    with official(deployment) as client:
        yield client
