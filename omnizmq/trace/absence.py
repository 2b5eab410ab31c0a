"""Why a stage whose output was to be delivered brought nothing, although the request completed (T2). Pure.

Followed from the final stage to its sources, until a stage is found that had input and gave nothing, or that never
took part.
"""

from __future__ import annotations

from dataclasses import dataclass

from omnizmq.trace.causes import Reason
from omnizmq.trace.scene import Node, Scene
from omnizmq.trace.timeline import text


@dataclass(frozen=True, slots=True)
class Absence:
    """`stage` is where the output was lost."""

    reason: Reason
    stage: str | None
    replica: str | None
    text: str


def absences(scene: Scene) -> list[Absence]:
    """One for each final stage that gave its caller nothing; else one if the request asked for less than there is."""
    final = [scene.nodes[name] for name in scene.timeline.final_stages if name in scene.nodes]
    found = [_absent(scene, node) for node in final if not _gave(node)]
    return found or _filtered(scene)


def _gave(node: Node) -> bool:
    return "first_output" in node.story.at_ns


def _filtered(scene: Scene) -> list[Absence]:
    timeline = scene.timeline
    left_out = [name for name in timeline.pipeline if name not in timeline.planned]
    if not left_out or not timeline.final_stages:
        return []
    asked = " and ".join(timeline.modalities)
    why = f"the request asked for {asked} alone" if asked else "what the request asked for needs no more"
    return [Absence(Reason.FILTERED, left_out[-1], None, f"{' and '.join(left_out)} took no part: {why}")]


def _absent(scene: Scene, final: Node) -> Absence:
    reason, node, sentence = _root(scene, final, ())
    return Absence(reason, node.name, node.replica, f"{final.name} brought nothing: {sentence}")


def _root(scene: Scene, node: Node, seen: tuple[str, ...]) -> tuple[Reason, Node, str]:
    if not node.submitted:
        return Reason.NOT_SUBMITTED, node, f"{node.name} was not submitted"
    if not node.registered:
        return Reason.NOT_REGISTERED, node, f"{node.who} did not register the request"
    sources = [source for source in scene.sources(node.name) if source.name not in (*seen, node.name)]
    for source in sources:
        if not _gave(source) and not scene.chunks(source.name, node.name):
            return _root(scene, source, (*seen, node.name))
        if scene.chunks(source.name, node.name) == 0:
            return Reason.NO_CHUNKS, source, f"{source.who} gave output, and no chunk of it to {node.name}"
    if not node.has_input:
        return Reason.NO_INPUT, node, f"no input reached {node.who}"
    counts = [(scene.chunks(source.name, node.name), source.name) for source in sources]
    came = ", ".join(f"{chunks} chunks from {name}" for chunks, name in counts if chunks is not None)
    had = f" ({came})" if came else ""
    note = text(node.story.report, "note")
    said = f", because: {note}" if note else ""
    return Reason.NO_OUTPUT, node, f"{node.who} had input{had} and made no output{said}"
