"""Engines, asked before anything is started: where each is found, which packages it lacks, what it says of its options
and of the memory that its stage needs.

An engine's packages are read from its module's source, without importing it: what it imports, unless it may do without
(`try: import …`, or for types alone), and the names in its `PACKAGES`, where it has one. Only a module with a function
`check_options(stage, options)`, which raises `ConfigError`, or `estimate_memory(asked)` (see `omnizmq.workers.memory`)
is imported, to call them: by having one of them it promises that it is cheap to import.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ast

    from omnizmq.config import Config, StageConfig
    from omnizmq.workers.memory import MemoryNeed

_PROBE = """
import json, sys
import omnizmq
from omnizmq import protocol
if [omnizmq.__version__, protocol.VERSION] != json.loads(sys.argv[2]):
    print(json.dumps({"other": [omnizmq.__version__, protocol.VERSION]}))
    sys.exit()
from omnizmq.commands.engines import probe
print(json.dumps(probe(*json.loads(sys.argv[1]))))
"""
"""Of another version nothing is asked but which it is: the rest may differ."""

_PROBE_TIMEOUT_S = 60
_HOOKS = {"check_options", "estimate_memory", "check_stages", "check_start"}
"""Functions that a module may have; the last two of a plugin's alone (`omnizmq.plugin`)."""


@dataclass(frozen=True, slots=True)
class Found:
    """What all engines said. `engines`: each once an interpreter, where it is found and which packages it lacks."""

    engines: list[dict[str, Any]] = field(default_factory=list)
    needs: dict[str, MemoryNeed] = field(default_factory=dict)  # of the replicas whose engine says it
    absent: dict[str, str] = field(default_factory=dict)  # stages whose model is not on this machine, and the line

    def missing(self, stage: StageConfig) -> list[str]:
        """Packages that the stage's engine needs and its interpreter does not have."""
        asked = (stage.engine, stage.python)
        return next(one["missing"] for one in self.engines if (one["engine"], one["python"]) == asked)


def look(config: Config) -> Found:
    """Ask them all.

    Raises `ConfigError` for an engine that is not installed, an interpreter of no use, a wrong option, or a model that
    is damaged or another engine's.
    """
    found = Found()
    engines: dict[tuple[str, str | None], dict[str, Any]] = {}
    for stage in config.stage:
        for replicas in _alike(stage):
            answer = _answer(config, stage, stage.devices_of(replicas[0]))
            if need := _need(answer):
                found.needs.update({f"{stage.name}/{n}": need for n in replicas})
            if line := answer.pop("absent", None):
                found.absent[stage.name] = line
            engines[stage.engine, stage.python] = {"engine": stage.engine, "python": stage.python, **answer}
    found.engines.extend(engines.values())
    return found


def needs_of(config: Config, stage: StageConfig) -> dict[str, MemoryNeed]:
    """Of the stage's replicas, if its engine says it. Raises `ConfigError`."""
    needs = {}
    for replicas in _alike(stage):
        if need := _need(_answer(config, stage, stage.devices_of(replicas[0]))):
            needs.update({f"{stage.name}/{n}": need for n in replicas})
    return needs


def _need(answer: dict[str, Any]) -> MemoryNeed | None:
    """Taken out of what `probe` said."""
    from omnizmq.workers.memory import MemoryNeed

    said = answer.pop("memory", None)
    return None if said is None else MemoryNeed(**{**said, "notes": tuple(said["notes"])})


def _alike(stage: StageConfig) -> list[list[int]]:
    """The replicas by how many GPUs they compute on, none being the CPU: which GPUs, an engine does not care."""
    alike: dict[int, list[int]] = {}
    for n in range(stage.replicas):
        alike.setdefault(len(stage.devices_of(n)), []).append(n)
    return list(alike.values())


def _answer(config: Config, stage: StageConfig, devices: tuple[str, ...]) -> dict[str, Any]:
    """What `probe` says of a replica there. Raises `ConfigError` for its `error`."""
    from omnizmq.errors import ConfigError

    asked = _asked(config, stage, devices)
    answer = probe(stage.engine, asked) if stage.python is None else _probe_elsewhere(stage, stage.python, asked)
    if "error" in answer:
        raise ConfigError(answer["error"])
    return answer


def _asked(config: Config, stage: StageConfig, devices: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a `MemoryAsked`, ready for JSON."""
    options = {other.name: other.options for other in config.stage}
    return {
        "stage": stage.name,
        "model": config.model,
        "options": stage.options,
        "device": devices,
        "max_inflight": stage.max_inflight,
        "max_registered": stage.max_registered,
        "sources": {edge.source: options[edge.source] for edge in config.edge if edge.target == stage.name},
        "targets": [edge.target for edge in config.edge if edge.source == stage.name],
        "final_output": stage.final_output,
    }


def probe(engine: str, asked: dict[str, Any]) -> dict[str, Any]:
    """What this interpreter knows of a stage's engine: `entry_point` and `missing` packages, and where its module says
    it `memory`, or `absent`, a line; or `error`, a line."""
    from importlib.metadata import entry_points
    from importlib.util import find_spec

    from omnizmq.errors import OmnizmqError
    from omnizmq.tables import nearest

    stage = asked["stage"]
    known = {entry.name: entry for entry in entry_points(group="omnizmq.engines")}
    entry = known.get(engine)
    if entry is None:
        return {"error": f'stage.{stage}.engine: "{engine}": not an installed engine: {nearest(engine, sorted(known))}'}
    packages, hooks = stated_in(entry.module)
    missing = sorted(name for name in packages if find_spec(name) is None)
    try:
        said = _call(entry.module, hooks, missing, asked)
    except OmnizmqError as error:
        return {"error": error.message}
    except Exception as error:  # noqa: BLE001 (anybody's code)
        problem = f"its options or memory cannot be checked: {type(error).__name__}: {error}"
        return {"error": f'stage.{stage}.engine: "{engine}": {problem}'}
    return {"entry_point": entry.value, "missing": missing, **said}


def _call(module: str, hooks: set[str], missing: list[str], asked: dict[str, Any]) -> dict[str, Any]:
    """What the module's own functions say: nothing where it has none, or needs a missing package to be imported."""
    from importlib import import_module

    from omnizmq.errors import ConfigError, LaunchError, ModelNotFoundError
    from omnizmq.workers.memory import MemoryAsked

    if not hooks:
        return {}
    try:
        engine = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] in missing:
            return {}
        raise
    if "check_options" in hooks:
        engine.check_options(asked["stage"], asked["options"])
    if "estimate_memory" not in hooks:
        return {}
    try:
        tuples = {key: tuple(asked[key]) for key in ("device", "targets")}  # JSON has lists
        return {"memory": asdict(engine.estimate_memory(MemoryAsked(**{**asked, **tuples})))}
    except ModelNotFoundError as error:
        return {"absent": error.message}
    except LaunchError as error:
        raise ConfigError(f'model = "{asked["model"]}": {error.message}') from error


def stated_in(module: str) -> tuple[set[str], set[str]]:
    """The top-level packages that the module's source says it needs, and which of `_HOOKS` it has.

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
        return {module.partition(".")[0]}, set()
    if not spec.origin.endswith(".py"):
        return set(), set()
    tree = ast.parse(Path(spec.origin).read_bytes())
    hooks = _HOOKS & {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return {name for node in _needed(tree) for name in _packages(node)}, hooks


def _needed(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes, but what is tried, where a failing import is caught, and what is for types alone."""
    import ast

    yield node
    for child in ast.iter_child_nodes(node):
        tried = isinstance(node, ast.Try) and child in node.body and any(map(_catches_imports, node.handlers))
        typed = isinstance(node, ast.If) and child in node.body and "TYPE_CHECKING" in ast.unparse(node.test)
        if not tried and not typed:
            yield from _needed(child)


def _catches_imports(handler: ast.ExceptHandler) -> bool:
    import ast

    names = "" if handler.type is None else ast.unparse(handler.type)
    return not names or any(name in names for name in ("ImportError", "ModuleNotFoundError", "Exception"))


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


def _answered(stdout: str) -> dict[str, Any] | None:
    """None: that is no answer of `_PROBE`."""
    try:
        answer = json.loads(stdout)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _probe_elsewhere(stage: StageConfig, python: str, asked: dict[str, Any]) -> dict[str, Any]:
    """The same, asked of the stage's own interpreter."""
    import subprocess

    from omnizmq import __version__
    from omnizmq.protocol import VERSION

    question = json.dumps([stage.engine, asked], default=str)
    command = [python, "-P", "-c", _PROBE, question, json.dumps([__version__, VERSION])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False)
    except OSError as error:
        problem = f"it cannot be run: {error.strerror}"
    except subprocess.TimeoutExpired:
        problem = f"it did not answer within {_PROBE_TIMEOUT_S} s"
    else:
        answer = _answered(done.stdout) if done.returncode == 0 else None
        if answer is not None and "other" not in answer:
            return answer
        if answer is not None:
            problem = f"omnizmq {_version(*answer['other'])} is there, and here {_version(__version__, VERSION)}"
            return {"error": f'stage.{stage.name}.python: "{python}": {problem}: install the same in both'}
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}, and no answer"])[-1]
        problem = f"omnizmq does not run there: {last}"
    return {"error": f'stage.{stage.name}.python: "{python}": {problem}'}


def _version(release: str, protocol: int) -> str:
    return f"{release} (protocol {protocol})"
