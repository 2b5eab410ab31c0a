"""Engines, asked before anything is started: where each is found, which packages it lacks, what it says of its options.

An engine's packages are read from its module's source, without importing it: what it imports, and the names in its
`PACKAGES`, where it has one. Only a module with a function `check_options(stage, options)` is imported, to call that:
it raises `ConfigError`, and by having it the module promises that it is cheap to import.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ast

    from omnizmq.config import Config, StageConfig

_PROBE = """
import json, sys
from omnizmq.commands.engines import probe
print(json.dumps(probe(*json.loads(sys.argv[1]))))
"""
_PROBE_TIMEOUT_S = 60


def look(config: Config) -> list[dict[str, Any]]:
    """Each engine once an interpreter: where it is found there, and which packages it lacks.

    Raises `ConfigError` for an engine that is not installed, an interpreter of no use, or a wrong option.
    """
    from omnizmq.errors import ConfigError

    found: dict[tuple[str, str | None], dict[str, Any]] = {}
    for stage in config.stage:
        if stage.python is None:
            result = probe(stage.name, stage.engine, stage.options)
        else:
            result = _probe_elsewhere(stage, stage.python)
        if "error" in result:
            raise ConfigError(result["error"])
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
    packages, checks = stated_in(entry.module)
    missing = sorted(name for name in packages if find_spec(name) is None)
    if checks and not missing:
        try:
            import_module(entry.module).check_options(stage, options)
        except ConfigError as error:
            return {"error": error.message}
        except Exception as error:  # noqa: BLE001 (anybody's code)
            problem = f"its options cannot be checked: {type(error).__name__}: {error}"
            return {"error": f'stage.{stage}.engine: "{engine}": {problem}'}
    return {"entry_point": entry.value, "missing": missing}


def stated_in(module: str) -> tuple[set[str], bool]:
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
