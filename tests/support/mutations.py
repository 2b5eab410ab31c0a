"""Breaks the code behind each statement of the contract, one way at a time, and looks whether its tests go red.

    cd tests && python -m support.mutations [--statement C4] [--jobs 2] [--all]

`mutations.toml` says what is broken and which tests have to notice. Everything happens in a copy of the project, which
the tests import; the project itself is only read. Before anything is broken, all these tests must be green there.

A mutation is killed when pytest says that a test failed. A file that no longer imports, a test that is not found and a
run that pytest does not end by itself kill nothing. With `--all` every named test has to go red, not only the first.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from queue import SimpleQueue

from click import echo as say

ROOT = Path(__file__).parents[2]
LIST = ROOT / "tests" / "mutations.toml"
TEST_TIMEOUT_S = 100
RUN_TIMEOUT_S = 900
"""Of all tests together, beyond what pytest's own timeout allows to one."""

COPIED = ("omnizmq", "configs", "tests", "docs", "tools", "pyproject.toml", "README.md", "Makefile")
_NOT_COPIED = shutil.ignore_patterns("__pycache__", ".*_cache", ".hypothesis", ".git")
_SUMMARY = re.compile(r"^\d+ passed.*$", re.MULTILINE)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_TESTS_FAILED = 1
"""pytest's exit status for that, and nothing else: 2 is a file that does not import, 4 a test that does not exist."""


@dataclass(frozen=True)
class Mutation:
    """`old` occurs once in `file`; `tests` are node ids as seen from `tests/`, one of which has to go red."""

    statement: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    mutation: Mutation
    killed_by: str | None
    seconds: float
    story: str = ""
    """What pytest said, where nothing was killed."""

    def line(self) -> str:
        end = f"killed by {self.killed_by}" if self.killed_by else "SURVIVED"
        return f"{self.mutation.statement:>3}  {self.mutation.what}  {end}  {self.seconds:.1f} s"


class UnfitError(Exception):
    """Nothing can be said about any mutation, and why."""


def load(path: Path = LIST) -> list[Mutation]:
    entries = tomllib.loads(path.read_text())["mutation"]
    return [Mutation(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


class Tree:
    """A copy of the project."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, root / name, ignore=_NOT_COPIED, symlinks=True)
            elif (ROOT / name).is_file():
                shutil.copy2(ROOT / name, root / name)
        self._environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONSAFEPATH": ""}
        self._check()

    def _check(self) -> None:
        """That it is this copy which is imported, by tests and by the processes that they start."""
        command = [sys.executable, "-c", "import omnizmq; print(omnizmq.__file__)"]
        found = subprocess.run(command, cwd="/", env=self._environment, capture_output=True, text=True, check=False)
        if not found.stdout.startswith(str(self.root)):
            raise UnfitError(f"{found.stdout.strip() or found.stderr.strip()} is imported instead of {self.root}")

    @contextmanager
    def broken(self, mutation: Mutation) -> Iterator[None]:
        path = self.root / mutation.file
        whole = path.read_text()
        if whole.count(mutation.old) != 1:
            raise UnfitError(f"{mutation.file} has {whole.count(mutation.old)} times what {mutation.what!r} is about")
        self._write(path, whole.replace(mutation.old, mutation.new))
        try:
            yield
        finally:
            self._write(path, whole)

    def _write(self, path: Path, text: str) -> None:
        """What was compiled goes: Python would tell by a time in whole seconds, and a size."""
        path.write_text(text)
        Path(cache_from_source(str(path))).unlink(missing_ok=True)

    def pytest(self, tests: Sequence[str], *options: str) -> tuple[int | None, str]:
        """The exit status, and what it said. None: it did not end in time, which no timeout of a test explains."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line"]
        command += [f"--timeout={TEST_TIMEOUT_S}", *options, *(f"tests/{test}" for test in tests)]
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
            try:
                status: int | None = process.wait(RUN_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                process.kill()
                process.wait()
            said.seek(0)
            return status, said.read()


@contextmanager
def trees(count: int) -> Iterator[list[Tree]]:
    with tempfile.TemporaryDirectory(prefix="om-") as directory:
        roots = [Path(directory) / str(number) for number in range(count)]
        for root in roots:
            root.mkdir()
        yield [Tree(root) for root in roots]


def judge(tree: Tree, mutation: Mutation, *, all_of_them: bool) -> Verdict:
    began = time.monotonic()
    with tree.broken(mutation):
        status, said = tree.pytest(mutation.tests, *([] if all_of_them else ["-x"]))
    failed = [name.removeprefix("tests/") for name in _FAILED.findall(said)] if status == _TESTS_FAILED else []
    red = [test for test in mutation.tests if any(_is_part(name, test) for name in failed)]
    killed = len(red) == len(mutation.tests) if all_of_them else bool(failed)
    story = "" if killed else f"pytest ended with {status}\n{said[-2000:]}"
    return Verdict(mutation, ", ".join(failed[:1]) if killed else None, time.monotonic() - began, story)


def _is_part(name: str, test: str) -> bool:
    """Whether the test that failed is the named one, a method of it, or it with other arguments."""
    return name == test or name.startswith((f"{test}::", f"{test}["))


def prove(mutations: Sequence[Mutation], jobs: int, *, all_of_them: bool) -> list[Verdict]:
    """Prints a line as each is known. Raises `UnfitError` when the tests are not green to begin with."""
    with trees(jobs) as copies:
        tests = list(dict.fromkeys(test for mutation in mutations for test in mutation.tests))
        status, said = copies[0].pytest(tests)
        if status != 0:
            raise UnfitError(f"the tests are not green before anything is broken: pytest ended with {status}\n{said}")
        say(f"green before anything is broken: {' '.join(_SUMMARY.findall(said))}")
        free: SimpleQueue[Tree] = SimpleQueue()
        for copy in copies:
            free.put(copy)

        def one(mutation: Mutation) -> Verdict:
            tree = free.get()
            try:
                verdict = judge(tree, mutation, all_of_them=all_of_them)
            finally:
                free.put(tree)
            say(verdict.line())
            return verdict

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(one, mutations))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Break the code behind each statement; its tests must go red.")
    parser.add_argument("--statement", action="append", help="this one alone (C4); may be repeated")
    parser.add_argument("--jobs", type=int, default=1, help="so many copies at a time")
    parser.add_argument("--all", action="store_true", help="every named test must go red, not only the first")
    options = parser.parse_args(arguments)
    chosen = [one for one in load() if options.statement is None or one.statement in options.statement]
    if not chosen:
        parser.error(f"no mutation is about {', '.join(options.statement or ['anything'])}")
    began = time.monotonic()
    try:
        verdicts = prove(chosen, max(1, options.jobs), all_of_them=options.all)
    except UnfitError as unfit:
        say(str(unfit), err=True)
        return 1
    survivors = [verdict for verdict in verdicts if verdict.killed_by is None]
    for verdict in survivors:
        say(f"\n{verdict.line()}\n{verdict.story}", err=True)
    statements = len({mutation.statement for mutation in chosen})
    say(
        f"{len(verdicts) - len(survivors)} of {len(verdicts)} mutations of {statements} statements were killed, "
        f"{len(survivors)} survived, in {time.monotonic() - began:.0f} s"
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
