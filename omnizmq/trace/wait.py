"""What is awaited of a request, as one value. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

from omnizmq.trace.scene import Node


@dataclass(frozen=True, slots=True)
class Wait:
    """`cause`: a `Cause`, or the code of the error that ends it; `what` completes "waiting for …"; `owner`: whose move
    it is; `text`: the whole sentence.
    `stage` and `replica` are at fault, or awaited. `moves`: there was progress just now, so that nothing is stuck."""

    cause: str
    what: str
    owner: str
    since_ns: int
    text: str
    stage: str | None = None
    replica: str | None = None
    moves: bool = False


def of_node(cause: str, what: str, node: Node, since_ns: int, text: str, *, moves: bool = False) -> Wait:
    """It is the move of the stage's own replica."""
    return Wait(cause, what, node.who, since_ns, text, node.name, node.replica, moves)


def of_router(cause: str, what: str, since_ns: int, text: str, node: Node | None = None) -> Wait:
    """It is the router's move, maybe because of a stage."""
    stage, replica = (None, None) if node is None else (node.name, node.replica)
    return Wait(cause, what, "router", since_ns, text, stage, replica)
