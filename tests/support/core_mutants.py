"""Breaks the pure cores operator by operator, and looks whether their own fast tests go red.

    cd tests && python -m support.core_mutants router/queue.py workers/slots.py [--limit 60] [--seed 1] [--line 54]

Where `mutations` breaks what each statement promises, this breaks whatever the code says: a comparison, `and` and `or`,
`not`, a whole number, a truth value, `+` and `-`, `min` and `max`; it leaves out calls and assignments to attributes,
and returns nothing. One change a mutant, each at its place in the text, so that lines keep their numbers. Names of
types, texts with figures in them, decorators and assertions are left alone.

A file's mutants are judged by the tests that `TESTS` names for it, in a copy of the project, each in a fork that has
imported the tools already and nothing of the project. A mutant is killed when a test fails, when the file or a test no
longer imports, or when it has not come to an end after `LIMIT_S`. Survivors are printed, with what their line became;
docs/decisions/0016 says why those that are left can be.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import resource
import select
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy  # noqa: F401  what every fork would import
import pytest
from click import echo as say
from hypothesis import Phase, settings

from support.mutations import ROOT, Mutation, Tree, UnfitError, trees

LIMIT_S = 30
MEMORY_BYTES = 4 << 30
"""Of address space: an endless loop that collects something ends there before the machine does."""

_VERDICT = (
    "unit/trace/test_verdict_live.py",
    "unit/trace/test_verdict_ended.py",
    "unit/trace/test_verdict.py",
)

TESTS = {
    "router/delivered.py": (
        "unit/router/test_delivered.py",
        "contract/test_redrive_router.py",
    ),
    "router/queue.py": (
        "unit/router/test_queue.py",
        "contract/test_places_router.py",
        "contract/test_redrive_router.py",
    ),
    "router/admission.py": (
        "contract/test_places_router.py",
        "contract/test_redrive_router.py",
        "contract/test_faults_router.py",
        "unit/router/test_core.py",
        "unit/router/test_ticks.py",
    ),
    "router/operating.py": (
        "unit/router/test_operating.py",
        "contract/test_operations_router.py",
        "contract/test_faults_router.py",
    ),
    "router/timers.py": (
        "contract/test_faults_router.py",
        "unit/router/test_timers_heap.py",
        "unit/router/test_timers.py",
    ),
    "router/pools.py": (
        "unit/router/test_pools.py",
        "unit/router/test_pools_incarnations.py",
        "unit/router/test_pools_places.py",
        "contract/test_places_router.py",
        "contract/test_operations_router.py",
        "contract/test_redrive_router.py",
    ),
    "router/lifecycle.py": (
        "unit/router/test_lifecycle.py",
        "unit/router/test_lifecycle_facts.py",
        "unit/router/test_lifecycle_grace.py",
        "unit/router/test_lifecycle_joins.py",
        "contract/test_completion.py",
        "contract/test_abort_router.py",
        "contract/test_redrive_router.py",
        "contract/test_submission.py",
    ),
    "router/inquiries.py": ("contract/test_trace_router.py",),
    "workers/caller.py": (
        "unit/workers/test_caller_window.py",
        "unit/workers/test_caller.py",
        "unit/workers/test_gate_caller.py",
    ),
    "workers/slots.py": (
        "unit/workers/test_slots.py",
        "unit/workers/test_gate_slots.py",
    ),
    "workers/running.py": (
        "unit/workers/test_gate_slots.py",
        "unit/workers/test_gate.py",
        "unit/workers/test_gate_time.py",
    ),
    "workers/deadlines.py": (
        "unit/workers/test_deadlines.py",
        "unit/workers/test_gate_time.py",
    ),
    "workers/edges.py": (
        "unit/workers/test_edges.py",
        "unit/workers/test_edges_room.py",
        "unit/workers/test_gate_time.py",
        "unit/workers/test_gate.py",
    ),
    "workers/ring.py": (
        "unit/workers/test_ring.py",
        "unit/workers/test_gate_ring.py",
    ),
    "workers/answer.py": ("unit/workers/test_answer.py",),
    "shm/holes.py": ("unit/shm/test_ledger.py",),
    "shm/ledger.py": ("unit/shm/test_ledger.py",),
    "frontend/core.py": (
        "unit/frontend/test_first_credits.py",
        "unit/frontend/test_core.py",
        "contract/test_client_table.py",
    ),
    "launcher/supervisor.py": ("unit/launcher/test_supervisor.py",),
    "pipeline.py": ("unit/test_pipeline.py", "contract/test_plan.py"),
    "trace/timeline.py": ("unit/trace/test_summary.py", "unit/trace/test_phases.py", *_VERDICT),
    "trace/phases.py": ("unit/trace/test_phases.py", "unit/commands/terminal/test_bars.py"),
    "trace/verdict.py": _VERDICT,
    "trace/waits.py": _VERDICT,
    "trace/blame.py": _VERDICT,
    "trace/outcome.py": _VERDICT,
    "trace/absence.py": _VERDICT,
    "trace/scene.py": ("unit/trace/test_scene.py", *_VERDICT),
    "trace/finding.py": ("unit/trace/test_finding.py", "unit/trace/test_command.py", "unit/trace/test_lists.py"),
    "commands/terminal/bars.py": ("unit/commands/terminal/test_bars.py",),
    "commands/terminal/live_view.py": ("unit/commands/terminal/test_live_view.py",),
    "commands/terminal/view.py": ("unit/commands/terminal/test_view.py",),
}
"""By file, as seen from `omnizmq/`; the tests as seen from `tests/`, those first that kill most."""

_COMPARED = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
}
_ADDED = {ast.Add: (r"\+", "-"), ast.Sub: ("-", "+")}
_JOINED = {ast.And: ("and", "or"), ast.Or: ("or", "and")}
_CHOSEN = {"min": "max", "max": "min"}

Place = tuple[int, int]
"""A range of bytes in the file."""


@dataclass(frozen=True)
class Mutant:
    line: int
    before: str
    after: str
    text: str
    """The whole file."""

    def __str__(self) -> str:
        return f"{self.line}: {_brief(self.before)} -> {_brief(self.after)}"


class _Finder:
    """All changes of one file, in the order of the text."""

    def __init__(self, source: str) -> None:
        self._bytes = source.encode()
        self._starts = [0]
        for line in self._bytes.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def all(self) -> list[Mutant]:
        changes = sorted(set(self._visit(ast.parse(self._bytes), "")))
        return [self._mutant(place, new) for place, new in changes]

    def _visit(self, node: ast.AST, returns: str) -> Iterator[tuple[Place, str]]:
        """`returns`: the type that the function around it declares."""
        if isinstance(node, ast.Assert | ast.JoinedStr):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            returns = "" if node.returns is None else ast.unparse(node.returns)
        yield from self._of_expression(node)
        yield from self._of_statement(node, returns)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self._visit(child, returns)

    def _of_expression(self, node: ast.AST) -> Iterator[tuple[Place, str]]:
        match node:
            case ast.Compare():
                sides = [node.left, *node.comparators]
                for number, operator in enumerate(node.ops):
                    yield from self._between(sides[number], sides[number + 1], *_COMPARED[type(operator)])
            case ast.BoolOp():
                for left, right in zip(node.values, node.values[1:], strict=False):
                    yield from self._between(left, right, *_JOINED[type(node.op)])
            case ast.BinOp() if type(node.op) in _ADDED:
                yield from self._between(node.left, node.right, *_ADDED[type(node.op)])
            case ast.UnaryOp(op=ast.Not()):
                start, _ = self._place(node)
                yield (start, start + len("not ")), ""
            case ast.Constant(value=bool(value)):
                yield self._place(node), str(not value)
            case ast.Constant(value=int(value)):
                yield self._place(node), str(value + 1)
            case ast.Call(func=ast.Name(id=name)) if name in _CHOSEN:
                yield self._place(node.func), _CHOSEN[name]

    def _of_statement(self, node: ast.AST, returns: str) -> Iterator[tuple[Place, str]]:
        match node:
            case ast.Expr(value=ast.Call()):
                yield self._place(node), self._instead(node, "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Tuple(elts=[ast.Attribute(), *_])]):
                yield self._place(node), self._instead(node, "pass")
            case ast.AugAssign():
                if isinstance(node.target, ast.Attribute):
                    yield self._place(node), self._instead(node, "pass")
                if type(node.op) in _ADDED:
                    yield from self._between(node.target, node.value, *_ADDED[type(node.op)])
            case ast.Return(value=ast.expr() as value) if not _says_nothing(value):
                nothing = "[]" if returns.startswith("list") else "None"
                yield self._place(value), self._instead(value, nothing)

    def _between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[tuple[Place, str]]:
        _, start = self._place(left)
        end, _ = self._place(right)
        found = re.search(old.encode(), self._bytes[start:end])
        if found is not None:
            yield (start + found.start(), start + found.end()), new

    def _place(self, node: ast.expr | ast.stmt) -> Place:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _instead(self, node: ast.expr | ast.stmt, new: str) -> str:
        """Over as many lines as before, in brackets where they would end a statement."""
        start, end = self._place(node)
        lines = self._bytes[start:end].count(b"\n")
        return f"({new}{chr(10) * lines})" if lines and new != "pass" else new + "\n" * lines

    def _mutant(self, place: Place, new: str) -> Mutant:
        start, end = place
        first = self._bytes.rfind(b"\n", 0, start) + 1
        last = self._bytes.find(b"\n", end)
        before = self._bytes[first:last].decode()
        after = (self._bytes[first:start] + new.encode() + self._bytes[end:last]).decode()
        whole = (self._bytes[:start] + new.encode() + self._bytes[end:]).decode()
        return Mutant(self._bytes.count(b"\n", 0, start) + 1, before, after, whole)


def _says_nothing(value: ast.expr) -> bool:
    """Nothing already, or a truth value, which is turned into the other one instead."""
    match value:
        case ast.Constant(value=None | bool()) | ast.List(elts=[]):
            return True
    return False


def _brief(text: str) -> str:
    return " ".join(text.split())


def mutants(source: str) -> list[Mutant]:
    """All of a file's text, in order. Those that Python would not read are none."""
    return [mutant for mutant in _Finder(source).all() if _reads(mutant.text)]


def _reads(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def verdict(root: Path, tests: Sequence[str]) -> str:
    """What pytest says in a fork: `green`, `red`, `unfit` (something does not import) or `endless`."""
    child = os.fork()
    if child == 0:
        _test(root, tests)
    ended = select.poll()
    descriptor = os.pidfd_open(child)
    ended.register(descriptor, select.POLLIN)
    in_time = bool(ended.poll(LIMIT_S * 1000))
    os.close(descriptor)
    if not in_time:
        os.kill(child, 9)
    _, status = os.waitpid(child, 0)
    if not in_time:
        return "endless"
    return {0: "green", 1: "red"}.get(os.waitstatus_to_exitcode(status), "unfit")


def _test(root: Path, tests: Sequence[str]) -> None:
    """In the fork, which ends here. The project is imported anew, from the copy."""
    status = 70
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        for name in [name for name in sys.modules if name.split(".")[0] in ("support", "omnizmq")]:
            del sys.modules[name]
        os.chdir(root)
        sys.path[:0] = [str(root)]
        settings.register_profile("no shrinking", phases=[Phase.explicit, Phase.generate])
        settings.load_profile("no shrinking")
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        status = int(pytest.main([*options, *(f"tests/{one}" for one in tests)]))
    finally:
        os._exit(status)


def examine(tree: Tree, file: str, limit: int | None, seed: int, lines: Sequence[int]) -> Counter[str]:
    """Prints each survivor. Raises `UnfitError` when its tests are not green to begin with."""
    tests = TESTS[file]
    name = f"omnizmq/{file}"
    whole = (ROOT / name).read_text()
    chosen = [mutant for mutant in mutants(whole) if not lines or mutant.line in lines]
    total = len(chosen)
    if limit is not None and limit < total:
        chosen = sorted(random.Random(seed).sample(chosen, limit), key=lambda mutant: mutant.line)
    if verdict(tree.root, tests) != "green":
        raise UnfitError(f"{file}: its tests are not green before anything is broken: {' '.join(tests)}")
    began, counts = time.monotonic(), Counter[str]()
    for mutant in chosen:
        with tree.broken(Mutation("", str(mutant), name, whole, mutant.text, ())):
            said = verdict(tree.root, tests)
        counts[said] += 1
        if said == "green":
            say(f"{file}:{mutant}")
    killed = counts.total() - counts["green"]
    say(
        f"== {file}: {killed} of {counts.total()} killed ({counts['unfit']} did not import, {counts['endless']} were "
        f"endless), {counts['green']} survived; it has {total}; {time.monotonic() - began:.0f} s"
    )
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Break the pure cores operator by operator; their tests must go red.")
    parser.add_argument("files", nargs="+", choices=list(TESTS), metavar="FILE", help="as seen from omnizmq/")
    parser.add_argument("--limit", type=int, help="so many mutants a file, by chance")
    parser.add_argument("--seed", type=int, default=1, help="of that chance")
    parser.add_argument("--line", type=int, action="append", default=[], help="this line's alone; may be repeated")
    options = parser.parse_args(arguments)
    counts = Counter[str]()
    try:
        with trees(1) as (tree,):
            for file in options.files:
                counts += examine(tree, file, options.limit, options.seed, options.line)
    except UnfitError as unfit:
        say(str(unfit), err=True)
        return 1
    say(f"{counts.total() - counts['green']} of {counts.total()} mutants were killed, {counts['green']} survived")
    return 1 if counts["green"] else 0


if __name__ == "__main__":
    sys.exit(main())
