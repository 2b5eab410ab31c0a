"""Documents of `inspect` as a router would give them at `NOW_MS` of a request, for the tests of verdict and summary."""

from __future__ import annotations

from typing import Any

from support.trace_stories import REQUEST, ns

NOW_MS = 10_000.0
Document = dict[str, Any]


def document(phase: str = "running", *, attempt: int = 1, silent: list[str] | None = None, **more: Any) -> Document:
    """`stages` maps names to `stage(…)`."""
    return {
        "request_id": REQUEST,
        "external_id": "demo",
        "attempt": attempt,
        "now_ns": ns(NOW_MS),
        "phase": phase,
        "caller": True,
        "deadline_ns": None,
        "queue": None,
        "deliveries": {},
        "stages": {},
        "silent": silent or [],
        **more,
    }


def stage(name: str, answer: Document | None = None, **more: Any) -> Document:
    """Submitted and registered, its replica ready and just heard of; with its worker's answer."""
    return {
        "replica": f"{name}/0",
        "incarnation": 1,
        "pid": 123,
        "state": "ready",
        "engine": "idle",
        "engine_since_ns": ns(NOW_MS - 10),
        "engine_text": "",
        "heard_ns": ns(NOW_MS - 10),
        "submitted": True,
        "registered": True,
        "output_ended": False,
        "finished": False,
        "answer": answer,
        **more,
    }


def answer(state: str = "RUNNING", *, made_ms: float = 40, step_ms: float | None = None, **more: Any) -> Document:
    """The engine is idle, or in a step since `step_ms`; it made something last at `made_ms`."""
    return {
        "state": state,
        "at_ns": ns(NOW_MS),
        "since_ns": ns(made_ms),
        "running": 1,
        "slots": 4,
        "waiting_for_slot": 0,
        "engine": "idle" if step_ms is None else "stepping",
        "engine_since_ns": ns(NOW_MS - 10 if step_ms is None else step_ms),
        "engaged": step_ms is not None,
        "made_ns": ns(made_ms),
        "outputs": 0,
        "inputs": [],
        "edges": [],
        "caller": None,
        **more,
    }


def came(source: str, received: int, *, last_ms: float = 39, **more: Any) -> Document:
    """An edge in, of which the engine has taken all that came."""
    edge = {"from": source, "replica": f"{source}/0", "mode": "chunk", "received": received, "taken": received}
    return {**edge, "ended": False, "closed": False, "last_ns": ns(last_ms) if received else 0, **more}


def sent(target: str, chunks: int, *, last_ms: float = 40, **more: Any) -> Document:
    """An edge out, of which all was consumed."""
    edge = {"to": target, "replica": f"{target}/0", "mode": "chunk", "made": chunks, "sent": chunks, "consumed": chunks}
    more = {"full": None, "full_since_ns": 0, "held_bytes": 0, "quota_bytes": 1000, "holders": [], **more}
    last_ns = ns(last_ms) if chunks else 0
    return {**edge, "window": 16, "bytes": 0, "ended": False, "closed": False, "last_ns": last_ns, **more}


def no_credit(target: str, *, since_ms: float = 50) -> Document:
    full = {"full": "credit", "full_since_ns": ns(since_ms)}
    return sent(target, 20, last_ms=since_ms, made=21, consumed=4, **full)


def no_room(target: str, *holders: str, since_ms: float = 50) -> Document:
    full = {"full": "ring", "full_since_ns": ns(since_ms), "held_bytes": 900, "holders": list(holders)}
    return sent(target, 0, made=1, **full)


def reader(unread: int, *, full: bool, since_ms: float = 50) -> Document:
    edge = {"sent": unread, "consumed": 0, "window": 16, "unread_bytes": unread * 10, "window_bytes": 1000}
    return {**edge, "waiting": 1, "full": full, "since_ns": ns(since_ms)}


def chain(**stages: Document) -> Document:
    """The speech pipeline in its middle: what is not named waits for the next chunk of what comes before it."""
    waits = {
        "thinker": stage("thinker", answer(edges=[sent("talker", 4)], outputs=4)),
        "talker": stage("talker", answer(inputs=[came("thinker", 4)], edges=[sent("code2wav", 4)])),
        "code2wav": stage("code2wav", answer(inputs=[came("talker", 4)], outputs=4)),
    }
    return document(stages=waits | stages)
