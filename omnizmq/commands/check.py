"""`omnizmq check`: whether a configuration is valid, and what it means: graph, placement, memory, engines, every value.

A bad value, an unknown engine, an interpreter that cannot be used, a damaged model or a placement that cannot fit is an
error (exit code 2). A package that an engine or a plugin needs or a model that is not here is told, and is none: the
deployment may be for another machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from omnizmq.commands.engines import Found
    from omnizmq.config import Config
    from omnizmq.pipeline import Pipeline


@click.command()
@click.argument("file")
@click.option("--set", "sets", multiple=True, metavar="K=V", help="Override a value: stage.talker.replicas=2.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def check(file: str, sets: tuple[str, ...], as_json: bool) -> None:
    """Validate FILE (a TOML file, or a shipped name such as `embedded`) and show what it means."""
    document = examine(file, sets)
    click.echo(json.dumps(document, indent=2, default=str) if as_json else _render(document))


def examine(file: str, sets: tuple[str, ...] = ()) -> dict[str, Any]:
    """The document that `--json` prints, or `ConfigError`."""
    from omnizmq import config as configuration
    from omnizmq.commands import memory, plugins
    from omnizmq.pipeline import Pipeline

    seen: list[tuple[Found, list[dict[str, Any]]]] = []

    def judge(config: Config) -> None:
        seen.append((memory.look(config), plugins.look(config)))

    path = configuration.resolve(file)
    config = configuration.load(file, sets, judge=judge)
    found, found_plugins = seen[-1]
    pipeline = Pipeline(config)
    return {
        "valid": True,
        "file": str(path),
        "name": config.name,
        "modalities": pipeline.modalities,
        "stages": [
            {
                "name": stage.name,
                "engine": stage.engine,
                "final_output": stage.final_output,
                "replicas": [
                    {"id": f"{stage.name}/{n}", "devices": list(stage.devices_of(n))} for n in range(stage.replicas)
                ],
            }
            for stage in pipeline.stages
        ],
        "edges": [{"from": edge.source, "to": edge.target, "mode": edge.mode} for edge in config.edge],
        "memory": memory.document(config, found),
        "engines": found.engines,
        "plugins": [{key: one[key] for key in ("plugin", "entry_point", "missing")} for one in found_plugins],
        "notes": list(_notes(pipeline, found, found_plugins)),
        "values": configuration.effective(config)
        | {"plugins": {one["plugin"]: one["options"] for one in found_plugins}},
    }


def _notes(pipeline: Pipeline, found: Found, plugins: list[dict[str, Any]]) -> Iterator[str]:
    from omnizmq.commands import packages

    needed = pipeline.plan(None).names
    for stage in pipeline.stages:
        if stage.name not in needed:
            yield f"stage {stage.name} never runs: no final stage depends on it"
    for line in dict.fromkeys(found.absent.values()):
        yield f"{line}; so its memory is not checked, and `launch` would refuse it on this machine"
    for one in plugins:
        if one["missing"]:
            line = packages.refusal(f"plugins.{one['plugin']}: it", one["missing"])
            yield f"{line}; so `launch` would refuse it on this machine"
    replicas = (f"{stage.name}/{n}" for stage in pipeline.stages for n in range(stage.replicas))
    yield from dict.fromkeys(note for one in replicas if one in found.needs for note in found.needs[one].notes)


# --- Text ------------------------------------------------------------------------------------------------------------


def _render(document: dict[str, Any]) -> str:
    lines = [f"{document['name']}: valid, {' and '.join(document['modalities'])} ({document['file']})"]
    lines += [f"note: {note}" for note in document["notes"]]
    lines += ["", "graph"]
    for stage in document["stages"]:
        output = f" => {stage['final_output']}" if stage["final_output"] else ""
        lines.append(f"  {stage['name']}{output}")
        lines += [f"    -> {e['to']} ({e['mode']})" for e in document["edges"] if e["from"] == stage["name"]]
    lines += ["", "placement"]
    replicas = [(replica, stage["engine"]) for stage in document["stages"] for replica in stage["replicas"]]
    width = max(len(replica["id"]) for replica, _ in replicas)
    for replica, engine in replicas:
        lines.append(f"  {replica['id']:<{width}}  {', '.join(replica['devices']) or 'cpu'}  {engine}")
    lines += ["", "memory", *(f"  {line}" for line in _memory(document["memory"]))]
    lines += ["", "engines", *(f"  {_engine_line(engine)}" for engine in document["engines"])]
    if document["plugins"]:
        lines += [
            "",
            "plugins",
            *(f"  {one['plugin']}  {one['entry_point']}{_lacking(one)}" for one in document["plugins"]),
        ]
    lines += ["", "values", *(f"  {line}" for line in _assignments(document["values"]))]
    return "\n".join(lines)


def _memory(document: dict[str, Any]) -> Iterator[str]:
    """What each replica needs where it computes, what each device is filled with, and what it has."""
    from omnizmq.commands.memory import gib

    columns = ("weights", "slots", "workspace", "sum")
    rows = [
        [one["id"], "+".join(one["devices"]), *(gib(one[f"{column}_bytes"]) for column in columns)]
        for one in document["replicas"]
        if one["sum_bytes"] is not None
    ]
    if rows:
        yield from _aligned([["replica", "device", *columns], *rows])
    unknown = [one["id"] for one in document["replicas"] if one["sum_bytes"] is None]
    if unknown:
        yield f"not known of {', '.join(unknown)}"
    for one in document["devices"]:
        yield f"{one['device']}: {_filled(one, document['replicas'])}"


def _filled(device: dict[str, Any], replicas: list[dict[str, Any]]) -> str:
    """What it is filled with, of what it has: each as far as it is known."""
    from omnizmq.commands.memory import gib

    name, need, has = device["device"], device["need_bytes"], device["has_bytes"]
    if need is None:
        return "not known" + ("" if has is None else f"; it has {gib(has)}")
    there = (one for one in replicas if name in ("cpu", *one["devices"]))
    least = "at least " if any(one["sum_bytes"] is None for one in there) else ""
    of = "; what it has is not known" if has is None else f" of {gib(has)}"
    return f"{least}{gib(need)}{of}{', with processes and rings' if name == 'cpu' else ''}"


def _aligned(rows: list[list[str]]) -> Iterator[str]:
    """Words to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if n < 2 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells)


def _engine_line(engine: dict[str, Any]) -> str:
    where = engine["python"] or sys.executable
    return f"{engine['engine']}  {engine['entry_point']} in {where}{_lacking(engine)}"


def _lacking(found: dict[str, Any]) -> str:
    return f", missing packages: {', '.join(found['missing'])}" if found["missing"] else ""


def _assignments(values: dict[str, Any]) -> Iterator[str]:
    """Every value under the key that `--set` takes."""
    for key, value in values.items():
        if key in ("stage", "edge"):
            for table in value:
                label = table["name"] if key == "stage" else f"{table['from']}->{table['to']}"
                yield from _flat(f"{key}.{label}", table)
        else:
            yield from _flat(key, value)


def _flat(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _flat(f"{key}.{name}", item)
    elif value is None:
        yield f"{key} is not set"
    else:
        yield f"{key} = {json.dumps(value, ensure_ascii=False, default=str)}"
