"""A request's facts joined with what its router answers: what `omnizmq trace` shows of it (T1, T2).

Reads traces and asks nobody: whoever asks the router hands in its answer. It may block for `ENDS_WRITTEN_S`, so that
asking and joining take at most `ASKING_S` more.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, NamedTuple

from omnizmq.errors import NotFoundError, OmnizmqError
from omnizmq.trace.finding import Found, Store, again
from omnizmq.trace.store import Traced
from omnizmq.trace.summary import summarize
from omnizmq.trace.verdict import RouterIs

ASKING_S = 0.9
"""For all questions to one router; one that has been stopped must not keep anybody from the facts. A router gives its
workers half a second, and then its facts 0.2 s to be written: 0.7 s together."""

ENDS_WRITTEN_S = 1.0
"""How long the last facts of requests that have just ended may take to be written, all of one call together."""

_POLL_S = 0.05


class Inspected(NamedTuple):
    """The live document of a request, if its router is "answering"; or why there is none."""

    document: dict[str, Any] | None
    router: RouterIs

    @classmethod
    def of(cls, document: dict[str, Any] | None) -> Inspected:
        """What the router said of it; None: it holds no such request."""
        return cls(document, "unknowing" if document is None else "answering")


UNASKED = Inspected(None, "unasked")
SILENT = Inspected(None, "silent")


class Look(NamedTuple):
    """`summary`: that of `summarize`; `found` has the facts that it was made of."""

    found: Found
    summary: dict[str, Any]

    def document(self) -> dict[str, Any]:
        """What `omnizmq trace --json` prints."""
        return self.summary | {
            "deployment": self.found.store.name,
            "started_at": self.found.started.isoformat(),
            "other_matches": self.found.others,
            "other_deployments": list(self.found.elsewhere),
        }


def joined(found: Found, answer: Inspected, until: float) -> Look:
    """`until`: on the monotonic clock, how long facts of an end may be waited for."""
    if answer.router == "unknowing":
        found = _written(found, until)
    elif answer is not UNASKED:
        with suppress(OmnizmqError):  # its trace may hold no row of it
            found = again(found)  # what has happened while it was asked
    router = "lost" if found.lost else answer.router
    return Look(found, summarize(found.facts, running=found.running, live=answer.document, router=router))


def _written(found: Found, until: float) -> Found:
    """Its router holds it no more: with the facts of its end, as soon as they are there."""
    with suppress(OmnizmqError):  # its trace may have been removed meanwhile
        while (found := again(found)).may_be_live and time.monotonic() < until:
            time.sleep(_POLL_S)
    return found


def unwritten(store: Store, live: dict[str, Any]) -> Found:
    """A request of which the trace has no row, because none could be written or none has been yet. `live`: what its
    router says of it. Raises `NotFoundError` where its deployment has ended meanwhile."""
    if store.pid is None:
        raise NotFoundError(f"deployment {store.name!r} has ended meanwhile")
    about = Traced(live["request_id"], live["external_id"], time.time_ns(), store.pid, ended=False)
    return Found(store, about, [])
