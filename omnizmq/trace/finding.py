"""Which requests are meant: looked for in the traces of the running deployments and in all that are stored.

Among the requests that bear one id, those of running deployments come first, then the newest; the others are counted.
A trace that cannot be read is told to `complain`, and hides no other.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from omnizmq.errors import InvalidRequestError, NotFoundError, OmnizmqError
from omnizmq.runtime import Deployment, check_name, running, state_root
from omnizmq.trace.database import FILE_NAME, Loss
from omnizmq.trace.facts import Fact
from omnizmq.trace.store import Traced, TraceReader
from omnizmq.trace.timeline import Timeline

T = TypeVar("T")
Complain = Callable[[str], None]


def ignore(_: str) -> None:
    """A complaint that nobody hears."""


class Store(NamedTuple):
    """A deployment's trace. `pid`: its router's; None when it does not run."""

    name: str
    path: Path
    pid: int | None


class Found(NamedTuple):
    """A request, its facts, and how many others bear its id. `elsewhere`: in which deployments. `traced`: its
    deployment records facts, as far as is known."""

    store: Store
    about: Traced
    facts: Sequence[Fact]
    others: int = 0
    elsewhere: Sequence[str] = ()
    traced: bool = True

    @property
    def running(self) -> bool:
        """Whether the deployment that traced it still runs, by the same router."""
        return not self.about.ended and self.about.pid == self.store.pid

    @property
    def lost(self) -> bool:
        """Whether the process that traced it is gone, and did not end in good order."""
        return not self.about.ended and self.about.pid != self.store.pid

    @property
    def started(self) -> datetime.datetime:
        """When its deployment first heard of it."""
        return datetime.datetime.fromtimestamp(self.about.wall_ns / 1e9, datetime.UTC)

    @property
    def origin(self) -> str:
        """Deployment and date, as they are shown."""
        shown = f"deployment {self.store.name}, {self.started.astimezone():%Y-%m-%d %H:%M:%S}"
        return shown if self.traced else f"{shown} (tracing is off: live answers alone)"

    @property
    def may_be_live(self) -> bool:
        """Whether its router may hold it: it runs, and no fact tells of an end."""
        return self.running and Timeline(self.facts).end is None

    def now_ms(self, document: Mapping[str, Any]) -> float | None:
        """When its router gave the live answer that the document holds, or else now; on the document's clock."""
        live = document["live"]
        return Timeline(self.facts).ms(live["now_ns"] if live else time.monotonic_ns())


class _Candidate(NamedTuple):
    """The newest request of a store that matches, and how many of that store do."""

    store: Store
    reader: TraceReader
    about: Traced
    matches: int

    @property
    def rank(self) -> tuple[bool, int]:
        """Of a running deployment first, then by age; the highest is the one that is meant."""
        return self.store.pid is not None, self.about.wall_ns


def find(id_: str | None, connect: str | None, complain: Complain = ignore) -> Found:
    """The request that bears the id, or the newest of all; its facts are those recorded so far.

    Raises `NotFoundError` where there is no such request, and `InvalidRequestError` for a `connect` that cannot be one.
    """
    with ExitStack() as readers:
        candidates = list(each(stores(connect), lambda store: _candidate(store, id_, readers), complain))
        found = [one for one in candidates if one is not None]
        if not found:
            raise NotFoundError(unknown(id_, connect) + ("" if id_ is None else _perhaps_lost(connect)))
        chosen = max(found, key=lambda one: one.rank)
        facts = chosen.reader.facts(chosen.about.request_id)
        if id_ is None:
            return Found(chosen.store, chosen.about, facts)
        elsewhere = [one.store.name for one in found if one.matches > (one is chosen)]
        return Found(chosen.store, chosen.about, facts, sum(one.matches for one in found) - 1, elsewhere)


def again(found: Found) -> Found:
    """The same request, with the facts recorded by now."""
    with TraceReader(found.store.path) as reader:
        about = reader.about(found.about.request_id)
        return found._replace(about=about, facts=reader.facts(about.request_id), store=as_now(found.store))


def as_now(store: Store) -> Store:
    """Its deployment may have ended, or begun again, meanwhile."""
    pid = next((deployment.pid for deployment in running() if deployment.name == store.name), None)
    return store._replace(pid=pid)


def store_of(deployment: Deployment) -> Store:
    """Of one that runs."""
    return Store(deployment.name, state_root() / deployment.name / FILE_NAME, deployment.pid)


def stores(connect: str | None) -> list[Store]:
    """The traces to search; with `connect`, the one that it names."""
    if connect is not None and connect.endswith(".json"):
        raise InvalidRequestError("traces stay on the machine of their deployment: run `omnizmq trace` there")
    root = state_root()
    deployments = running()
    pids = {deployment.name: deployment.pid for deployment in deployments}
    stored = {path.parent.name: path for path in sorted(root.glob(f"*/{FILE_NAME}"))}
    if connect is None:
        return [Store(name, path, pids.get(name)) for name, path in stored.items()]
    by_endpoint = {deployment.endpoint: deployment.name for deployment in deployments}
    name = check_name(by_endpoint.get(connect, connect))
    if name not in pids and name not in stored:
        known = ", ".join(stored) or "none"
        raise NotFoundError(f"no deployment {name!r} runs or has left a trace; those that have: {known}")
    return [Store(name, root / name / FILE_NAME, pids.get(name))]


def each(searched: Sequence[Store], look: Callable[[Store], T], complain: Complain = ignore) -> Iterator[T]:
    """What is found in each trace. One that cannot be read does not hide the others; alone, it is a `NotFoundError`."""
    for store in searched:
        try:
            found = look(store)
        except OmnizmqError as error:
            if len(searched) == 1:
                raise NotFoundError(error.message) from error
            complain(error.message)
        else:
            yield found


def _candidate(store: Store, id_: str | None, readers: ExitStack) -> _Candidate | None:
    reader = readers.enter_context(TraceReader(store.path))
    request_ids = reader.last(1) if id_ is None else reader.find(id_)
    return _Candidate(store, reader, reader.about(request_ids[0]), len(request_ids)) if request_ids else None


def unknown(id_: str | None, connect: str | None) -> str:
    """What to say where nothing is found."""
    where = f" in the trace of {connect}" if connect else ""
    if id_ is None:
        return f"no request is stored{where}"
    shown = id_ if len(id_) <= 200 else id_[:200] + "…"
    return f"no request with id {shown!r} is known{where}"


def _perhaps_lost(connect: str | None) -> str:
    """Where rows of these traces were lost, a request that is not found may have been among them."""
    lost = [loss for losses in each(stores(connect), _losses) for loss in losses]
    if not lost:
        return ""
    rows, why = sum(loss.rows for loss in lost), ", ".join(dict.fromkeys(loss.why for loss in lost))
    return f"; {rows} row{'s' if rows > 1 else ''} could not be stored ({why}), perhaps all its own"


def _losses(store: Store) -> Sequence[Loss]:
    with TraceReader(store.path) as reader:
        return reader.losses()
