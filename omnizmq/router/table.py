"""The requests that the router knows, by both ids (I1, I2). Pure."""

from __future__ import annotations

from collections.abc import Iterator

from omnizmq.router.request import Request


class Table:
    """All requests that have not settled."""

    def __init__(self) -> None:
        self._by_id: dict[str, Request] = {}
        self._by_external: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Request]:
        """As they are now: they may settle meanwhile."""
        return iter(list(self._by_id.values()))

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def get(self, request_id: str) -> Request | None:
        return self._by_id.get(request_id)

    def bearers(self, either_id: str) -> list[Request]:
        """All that bear exactly this external id, and the one with this request id."""
        found = sorted(self._by_external.get(either_id, ()))
        if either_id in self._by_id and either_id not in found:
            found.append(either_id)
        return [self._by_id[request_id] for request_id in found]

    def add(self, request: Request) -> None:
        self._by_id[request.id] = request
        self._by_external.setdefault(request.submit.external_id, set()).add(request.id)

    def remove(self, request: Request) -> None:
        del self._by_id[request.id]
        bearers = self._by_external[request.submit.external_id]
        bearers.remove(request.id)
        if not bearers:
            del self._by_external[request.submit.external_id]
