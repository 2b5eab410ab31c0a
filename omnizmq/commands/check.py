"""`omnizmq check`: whether a configuration is valid, and what it means: graph, placement, engines, every value.

A bad value, an unknown engine or an interpreter that cannot be used is an error (exit code 2). A package that an engine
needs and that is not installed here is told, and is none: the deployment may be for another machine.

An engine's packages are read from its module's source, without importing it: what it imports, and the names in its
`PACKAGES`, where it has one. Only a module with a function `check_options(stage, options)` is imported, to call that:
it raises `ConfigError`, and by having it the module promises that it is cheap to import.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import ast

    from omnizmq.config import Config, StageConfig

_PROBE = """
import json, sys
from omnizmq.commands.check import probe
print(json.dumps(probe(*json.loads(sys.argv[1]))))
"""
_PROBE_TIMEOUT_S = 60


@click.command()
@click.argument("file")
@click.option("--set", "sets", multiple=True, metavar="K=V", help="Override a value: stage.talker.replicas=2.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def check(file: str, sets: tuple[str, ...], as_json: bool) -> None:
    """Validate FILE (a TOML file, or a shipped name such as `embedded`) and show what it means."""
    from omnizmq.errors import ConfigError

    try:
        document = examine(file, sets)
    except ConfigError as error:
        if as_json:
            failure = {"valid": False, "error": {"code": error.code, "message": error.message}}
            click.echo(json.dumps(failure, indent=2))
        raise
    click.echo(json.dumps(document, indent=2, default=str) if as_json else _render(document))


def examine(file: str, sets: tuple[str, ...] = ()) -> dict[str, Any]:
    """The document that `--json` prints, or `ConfigError`."""
    from omnizmq import config as configuration
    from omnizmq.pipeline import Pipeline

    path = configuration.resolve(file)
    config = configuration.load(file, sets)
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
        "engines": _engines(config, str(path)),
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


# --- Engines ---------------------------------------------------------------------------------------------------------


def _engines(config: Config, path: str) -> list[dict[str, Any]]:
    """Each engine once an interpreter: where it is found there, and which packages it lacks."""
    from omnizmq.errors import ConfigError

    found: dict[tuple[str, str | None], dict[str, Any]] = {}
    for stage in config.stage:
        if stage.python is None:
            result = probe(stage.name, stage.engine, stage.options)
        else:
            result = _probe_elsewhere(stage, stage.python)
        if "error" in result:
            raise ConfigError(f"{path}: {result['error']}")
        found[stage.engine, stage.python] = {"engine": stage.engine, "python": stage.python, **result}
    return list(found.values())


def probe(stage: str, engine: str, options: dict[str, Any]) -> dict[str, Any]:
    """What this interpreter knows of a stage's engine: `entry_point` and `missing` packages; or `error`, a line."""
    from importlib import import_module
    from importlib.metadata import entry_points
    from importlib.util import find_spec

    from omnizmq.errors import ConfigError
    from omnizmq.tables import nearest

    known = {entry.name: entry for entry in entry_points(group="omnizmq.engines")}
    entry = known.get(engine)
    if entry is None:
        return {"error": f'stage.{stage}.engine: "{engine}": not an installed engine: {nearest(engine, sorted(known))}'}
    packages, checks = _stated_in(entry.module)
    missing = sorted(name for name in packages if find_spec(name) is None)
    if checks and not missing:
        try:
            import_module(entry.module).check_options(stage, options)
        except ConfigError as error:
            return {"error": error.message}
    return {"entry_point": entry.value, "missing": missing}


def _stated_in(module: str) -> tuple[set[str], bool]:
    """The top-level packages that the module's source says it needs, and whether it can check options.

    Of a module that cannot be found: its own package.
    """
    import ast
    from importlib.util import find_spec
    from pathlib import Path

    try:
        spec = find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        return {module.partition(".")[0]}, False
    if not spec.origin.endswith(".py"):
        return set(), False
    tree = ast.parse(Path(spec.origin).read_bytes())
    checks = any(isinstance(node, ast.FunctionDef) and node.name == "check_options" for node in tree.body)
    return {name for node in ast.walk(tree) for name in _packages(node)}, checks


def _packages(node: ast.AST) -> Iterator[str]:
    import ast

    match node:
        case ast.Import(names=names):
            yield from (alias.name.partition(".")[0] for alias in names)
        case ast.ImportFrom(module=str(module), level=0):
            yield module.partition(".")[0]
        case ast.Assign(targets=[ast.Name(id="PACKAGES")], value=value):
            yield from ast.literal_eval(value)
        case _:
            pass


def _probe_elsewhere(stage: StageConfig, python: str) -> dict[str, Any]:
    """The same, asked of the stage's own interpreter."""
    import subprocess

    question = json.dumps([stage.name, stage.engine, stage.options], default=str)
    command = [python, "-P", "-c", _PROBE, question]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False)
    except OSError as error:
        problem = f"it cannot be run: {error.strerror}"
    except subprocess.TimeoutExpired:
        problem = f"it did not answer within {_PROBE_TIMEOUT_S} s"
    else:
        if done.returncode == 0:
            answer: dict[str, Any] = json.loads(done.stdout)
            return answer
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        problem = f"omnizmq does not run there: {last}"
    return {"error": f'stage.{stage.name}.python: "{python}": {problem}'}


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
    lines += ["", "values", *(f"  {line}" for line in _assignments(document["values"]))]
    lines += [f"note: {note}" for note in document["notes"]]
    return "\n".join(lines)


def _engine_line(engine: dict[str, Any]) -> str:
    where = engine["python"] or sys.executable
    missing = f", missing packages: {', '.join(engine['missing'])}" if engine["missing"] else ""
    return f"{engine['engine']}  {engine['entry_point']} in {where}{missing}"


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
