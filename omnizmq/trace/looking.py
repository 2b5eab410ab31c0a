"""A request's facts joined with what its router answers: what `omnizmq trace` shows of it (T1, T2).

Reads traces, and asks nobody itself: it is handed the router's answers, or who asks for them. A router answers when the
facts that it knew are written (`omnizmq.router.server`), so a trace that is read after an answer has them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from omnizmq.errors import NotFoundError, OmnizmqError
from omnizmq.runtime import running
from omnizmq.trace.finding import Complain, Found, again, find, ignore, store_of
from omnizmq.trace.store import Traced
from omnizmq.trace.summary import summarize
from omnizmq.trace.verdict import RouterIs

ASKING_S = 0.9
"""For all questions to one router; one that has been stopped must not keep anybody from the facts. A router gives its
workers half a second, and then its facts 0.2 s to be written: 0.7 s together."""


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


Ask = Callable[[str, Sequence[str]], list[Inspected]]
"""What the router of the running deployment of that name says of these request ids (or external ids)."""


def joined(found: Found, answer: Inspected) -> Look:
    """With what has happened while it was asked."""
    if answer is not UNASKED:
        with suppress(OmnizmqError):  # its trace may hold no row of it, or have been removed meanwhile
            found = again(found)
    router = "lost" if found.lost else answer.router
    return Look(found, summarize(found.facts, running=found.running, live=answer.document, router=router))


def seek(id_: str | None, connect: str | None, ask: Ask, complain: Complain = ignore) -> Found:
    """As `find`; where no trace has a row of it, because none could be written or none has been yet, in the running
    routers. Raises as `find`."""
    try:
        return find(id_, connect, complain)
    except NotFoundError:
        if id_ is None:
            raise
    return _held(id_, connect, ask) or find(id_, connect)  # its first row or its end may have just been written


def _held(id_: str, connect: str | None, ask: Ask) -> Found | None:
    """Without facts; None: no router holds it."""
    for deployment in running():
        if connect in (None, deployment.name, deployment.endpoint):
            (answer,) = ask(deployment.name, [id_])
            if (live := answer.document) is not None:
                about = Traced(live["request_id"], live["external_id"], time.time_ns(), deployment.pid, ended=False)
                return Found(store_of(deployment), about, [])
    return None
