"""`omnizmq replay`: a recording (`launch --record`) is fed to a fresh router core, which must order the same."""

from __future__ import annotations

import json
from difflib import ndiff
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omnizmq.errors import InvalidRequestError, OmnizmqError

if TYPE_CHECKING:
    from omnizmq.recording.file import Recording
    from omnizmq.recording.needed import Events
    from omnizmq.recording.replayer import Step


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--until", type=click.IntRange(min=1), metavar="N", help="Stop after event N.")
@click.option("--show", type=click.IntRange(min=1), metavar="N", help="Show event N and all its commands.")
@click.option("--request", metavar="ID", help="Only this request: what --commands lists, what --scenario keeps.")
@click.option("--commands", "listed", is_flag=True, help="List the events and their commands, a line each.")
@click.option(
    "--scenario",
    "made",
    type=click.Path(path_type=Path),
    metavar="OUT",
    help="Write a scenario, the part that is needed.",
)
@click.option("--questions", is_flag=True, help="Keep what status and trace asked in the scenario.")
def replay(
    file: Path,
    as_json: bool,
    until: int | None,
    show: int | None,
    request: str | None,
    listed: bool,
    made: Path | None,
    questions: bool,
) -> int:
    """Feed FILE, a recording of `omnizmq launch --record FILE`, to a fresh router; show the first difference.

    Exit code 0: the same commands. 1: others. 2: FILE is no recording that this omnizmq can read.
    """
    from omnizmq.recording import file as recordings
    from omnizmq.recording.replayer import replay as replayed

    if questions and made is None:
        raise InvalidRequestError("--questions: it is about what --scenario writes; name that file too")
    if request is not None and not listed and made is None:
        raise click.UsageError(f"--request {request} goes with --commands or --scenario OUT: a replay is of all events")
    recording = recordings.read(file)
    events = list(recordings.events(recording))[:until]
    steps = list(replayed(recording.config, events))
    request_id = None if request is None else _request_id(steps, request)
    document = _document(recording, steps)
    if show is not None:
        document["event"] = _shown(steps, show)
    if listed:
        document["listed"] = [_listed(step) for step in steps if _concerns(step, request_id)]
    if made is not None:
        document["scenario"] = _write_scenario(made, recording, events, request_id, questions)
    click.echo(json.dumps(document, indent=2) if as_json else _render(document))
    return 0 if document["same"] or made is not None else 1


def _request_id(steps: list[Step], id_: str) -> str:
    from omnizmq.recording import scenario

    found = scenario.request_ids(steps, id_)
    if not found:
        raise InvalidRequestError(f"--request {id_}: the recording has no such request")
    return found[-1]


def _write_scenario(
    path: Path, recording: Recording, events: Events, request_id: str | None, questions: bool
) -> dict[str, Any]:
    """A scenario's orders are this omnizmq's, whatever was recorded: that is how one is brought up to date."""
    import omnizmq
    from omnizmq.commands.saving import save
    from omnizmq.recording import file as recordings
    from omnizmq.recording import scenario

    config, about, beside = recording.config, recording.header.about, []
    if request_id is None:
        lines = scenario.whole(config, events, questions=questions)
    else:
        lines = scenario.of_request(config, events, request_id, questions=questions)
        beside = scenario.others(lines, request_id)
        about = about or f"{request_id}{_beside(beside)}"
    header = recordings.header(config, version=omnizmq.__version__, started=0, about=about)
    try:
        save(path, recordings.whole(header, lines, "this is all of the scenario"))
    except OmnizmqError as error:
        raise InvalidRequestError(f"--scenario {error.message}") from None
    return {"file": str(path), "events": len(lines), "beside": beside}


def _beside(others: list[str]) -> str:
    return f"; it depends on {', '.join(others)}" if others else ""


def _document(recording: Recording, steps: list[Step]) -> dict[str, Any]:
    """What `--json` prints."""
    from omnizmq.recording.replayer import commands, difference

    parted = next((step for step in steps if not step.agrees), None)
    found: dict[str, Any] = {
        "same": parted is None,
        "events": len(steps),
        "commands": sum(len(commands(step.got)) for step in steps),
        "omnizmq": recording.header.omnizmq,
        "wire": recording.header.wire,
        "ended": recording.ended,
        "cut": recording.cut,
        "difference": None,
    }
    if parted is not None:
        first = difference(parted)
        found["difference"] = {
            "event": parted.n,
            "after_s": round(parted.now - steps[0].now, 6),
            "where": first.where,
            "expected": first.expected,
            "got": first.got,
            "input": parted.event,
            "expected_commands": commands(parted.expected),
            "got_commands": commands(parted.got),
        }
    return found


def _shown(steps: list[Step], n: int) -> dict[str, Any]:
    for step in steps:
        if step.n == n:
            return {"n": n, "now": step.now, "input": step.event, "expected": step.expected, "got": step.got}
    raise InvalidRequestError(f"--show {n}: the events are 1 to {len(steps)}")


def _concerns(step: Step, request_id: str | None) -> bool:
    from omnizmq.recording.replayer import mentions

    return request_id is None or mentions(step.event, request_id) or mentions(step.got, request_id)


def _listed(step: Step) -> dict[str, Any]:
    return {"n": step.n, "now": step.now, "input": _named(step.event), "commands": [_named(one) for one in step.got]}


def _named(tree: dict[str, Any]) -> str:
    """An event or an order in a few words."""
    frame = tree.get("frame") or {}
    fact = tree if tree["$"] == "Fact" else {}
    words = [tree["$"], frame.get("$", ""), fact.get("event", ""), tree.get("replica", ""), fact.get("stage") or ""]
    return " ".join(word for word in words if word)


# --- Text ------------------------------------------------------------------------------------------------------------


def _render(document: dict[str, Any]) -> str:
    lines = [
        f"{step['n']:>6}  {step['input']}"
        + ("".join(f"\n          -> {command}" for command in step["commands"]) or "\n          (no commands)")
        for step in document.get("listed", ())
    ]
    if "event" in document:
        shown = document["event"]
        lines += [f"event {shown['n']}: {_line(shown['input'])}", *_shown_commands(shown["expected"], shown["got"])]
    if "scenario" in document:
        made = document["scenario"]
        lines.append(f"{made['file']}: written, {made['events']} events{_beside(made['beside'])}")
    lines.append(_verdict(document))
    return "\n".join(lines)


def _verdict(document: dict[str, Any]) -> str:
    of = f"{document['events']} events"
    how = "" if document["ended"] or document["cut"] else " (no end was written: the router was killed, or still runs)"
    how = " (the last line is cut: the router was killed, or still writes)" if document["cut"] else how
    parted = document["difference"]
    if parted is None:
        return f"{of}, {document['commands']} commands: all the same{how}"
    return "\n".join(
        [
            f"{of}: the first difference is at event {parted['event']}, after {parted['after_s']:.3f} s{how}",
            f"  event     {_line(parted['input'])}",
            f"  where     command {parted['where'].replace('.', ', ', 1)}",
            f"  recorded  {_value(parted['expected'])}",
            f"  now       {_value(parted['got'])}",
            "its commands (- recorded, + now)",
            *_compared(parted["expected_commands"], parted["got_commands"]),
        ]
    )


def _shown_commands(expected: list[Any], got: list[Any]) -> list[str]:
    """The router's commands upon one event, and apart from them the facts that go to the trace."""
    from omnizmq.recording.replayer import commands

    before, now = commands(expected), commands(got)
    label = "the router's commands" if before == now else "the router's commands (- recorded, + now)"
    ordered = [f"  {line}" for line in _compared(before, now)]
    facts = [f"    {_line(order)}" for order in got if order["$"] == "Fact"]
    lines = [f"  {label}:", *ordered] if ordered else [f"  {label}: none"]
    return [*lines, "  facts for the trace, which are not compared:", *facts] if facts else lines


def _compared(expected: list[Any], got: list[Any]) -> list[str]:
    """Commands, a line each; those of one side alone are marked."""
    lines = ndiff([_line(one) for one in expected], [_line(one) for one in got])
    return [f"  {line}" for line in lines if not line.startswith("?")]


def _value(tree: Any) -> str:
    """Text in quotes, so that an empty one is seen."""
    return json.dumps(tree, ensure_ascii=False) if isinstance(tree, str) and tree != "nothing" else _line(tree)


def _line(tree: Any) -> str:
    """A tree as one line: `ToWorker(replica=talker/0, …)`."""
    if isinstance(tree, dict):
        fields = ", ".join(f"{name}={_line(item)}" for name, item in tree.items() if name != "$")
        return f"{tree['$']}({fields})" if "$" in tree else f"{{{fields}}}"
    if isinstance(tree, list):
        return f"[{', '.join(map(_line, tree))}]"
    return json.dumps(tree, ensure_ascii=False) if not isinstance(tree, str) else tree
