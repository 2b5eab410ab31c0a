"""`omnizmq check`: whether a configuration is valid, and what it means: graph, placement, engines, every value.

A bad value, an unknown engine or an interpreter that cannot be used is an error (exit code 2). A package that an engine
needs and that is not installed here is told, and is none: the deployment may be for another machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from omnizmq.config import StageConfig


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
    from omnizmq.commands import engines, plugins
    from omnizmq.pipeline import Pipeline

    found: list[dict[str, Any]] = []
    path = configuration.resolve(file)
    config = configuration.load(file, sets, judge=lambda config: found.extend(engines.look(config)))
    found_plugins = plugins.look(config)
    pipeline = Pipeline(config)
    needed = pipeline.plan(None).names
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
                "replicas": [{"id": f"{stage.name}/{n}", "devices": _devices(stage, n)} for n in range(stage.replicas)],
            }
            for stage in pipeline.stages
        ],
        "edges": [{"from": edge.source, "to": edge.target, "mode": edge.mode} for edge in config.edge],
        "engines": found,
        "plugins": found_plugins,
        "notes": [
            f"stage {stage.name} never runs: no final stage depends on it"
            for stage in pipeline.stages
            if stage.name not in needed
        ],
        "values": configuration.effective(config),
    }


def _devices(stage: StageConfig, replica: int) -> list[str]:
    """The devices of one replica; none: the CPU."""
    if not stage.devices:
        return []
    entry = stage.devices[replica]
    return [entry] if isinstance(entry, str) else entry


# --- Text ------------------------------------------------------------------------------------------------------------


def _render(document: dict[str, Any]) -> str:
    lines = [f"{document['name']}: valid, {' and '.join(document['modalities'])} ({document['file']})", "", "graph"]
    for stage in document["stages"]:
        output = f" => {stage['final_output']}" if stage["final_output"] else ""
        lines.append(f"  {stage['name']}{output}")
        lines += [f"    -> {e['to']} ({e['mode']})" for e in document["edges"] if e["from"] == stage["name"]]
    lines += ["", "placement"]
    replicas = [(replica, stage["engine"]) for stage in document["stages"] for replica in stage["replicas"]]
    width = max(len(replica["id"]) for replica, _ in replicas)
    for replica, engine in replicas:
        lines.append(f"  {replica['id']:<{width}}  {', '.join(replica['devices']) or 'cpu'}  {engine}")
    lines += ["", "engines", *(f"  {_engine_line(engine)}" for engine in document["engines"])]
    if document["plugins"]:
        lines += [
            "",
            "plugins",
            *(f"  {one['plugin']}  {one['entry_point']}{_lacking(one)}" for one in document["plugins"]),
        ]
    lines += ["", "values", *(f"  {line}" for line in _assignments(document["values"]))]
    lines += [f"note: {note}" for note in document["notes"]]
    return "\n".join(lines)


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
