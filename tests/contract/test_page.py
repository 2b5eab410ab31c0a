"""The contract's page says what is so: what holds names tests that are there, and mutations that fit the code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from support.mutations import ROOT, Mutation, load

PAGE = (ROOT / "docs" / "contract.md").read_text()
TESTS = ROOT / "tests"
STATES = dict(re.findall(r"^\| \*\*([A-Z]\d)\*\* \| .* \| ([^|]+) \|$", PAGE, re.MULTILINE))
PROVEN = {
    statement: re.findall(r"`([^`]+)`", line)
    for statement, line in re.findall(r"^- \*\*([A-Z]\d)\*\* (.+)$", PAGE, re.MULTILINE)
}
PARTLY: set[str] = set()
HOLDING = sorted(STATES.keys() - PARTLY)
COUNTS = {"I": 3, "P": 5, "S": 4, "R": 5, "C": 6, "A": 8, "F": 6, "B": 4, "W": 3, "T": 2}
MUTATIONS = load()


@cache
def names(file: Path) -> frozenset[str]:
    """Classes and tests of a file: `TestC4`, `TestC4::test_late`, `test_alone`."""
    found = set()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            found.add(node.name)
            found.update(f"{node.name}::{one.name}" for one in node.body if isinstance(one, functions))
        elif isinstance(node, functions) and node.name.startswith("test_"):
            found.add(node.name)
    return frozenset(found)


def is_there(test: str) -> bool:
    """`test` is a node id as seen from `tests/`: a file, a class or a test."""
    file, _, rest = test.partition("::")
    path = TESTS / file
    return path.is_file() and path.name.startswith("test_") and (not rest or rest in names(path))


def test_every_statement_is_on_the_page_once() -> None:
    rows = re.findall(r"^\| \*\*([A-Z]\d)\*\* \|", PAGE, re.MULTILINE)
    assert rows == [f"{letter}{number}" for letter, count in COUNTS.items() for number in range(1, count + 1)]
    assert list(STATES) == rows


def test_all_hold_but_those_that_say_what_is_to_come() -> None:
    assert {statement for statement, state in STATES.items() if not re.match(r"\*\*holds\*\*(;|$)", state)} == PARTLY
    assert all(STATES[statement].startswith("**partly**: ") for statement in PARTLY)


@pytest.mark.parametrize("statement", HOLDING)
def test_what_holds_names_tests_that_are_there(statement: str) -> None:
    assert PROVEN[statement]
    assert [test for test in PROVEN[statement] if not is_there(test)] == []


@pytest.mark.parametrize("statement", HOLDING)
def test_what_holds_has_been_broken(statement: str) -> None:
    assert [mutation for mutation in MUTATIONS if mutation.statement == statement]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: f"{one.statement} {one.what}")
def test_a_mutation_fits_the_code(mutation: Mutation) -> None:
    assert mutation.statement in STATES
    code = (ROOT / mutation.file).read_text()
    assert code.count(mutation.old) == 1
    assert mutation.new != mutation.old
    ast.parse(code.replace(mutation.old, mutation.new))  # a mistake, and no syntax error
    assert mutation.tests
    assert [test for test in mutation.tests if not is_there(test)] == []


def test_no_mutation_is_listed_twice() -> None:
    assert len({(mutation.file, mutation.old, mutation.new) for mutation in MUTATIONS}) == len(MUTATIONS)
    assert len({mutation.what for mutation in MUTATIONS}) == len(MUTATIONS)


@pytest.mark.parametrize(
    "test",
    [
        "contract/test_nowhere.py",
        "support/mutations.py",
        "contract/test_page.py::TestNowhere",
        "contract/test_page.py::test_nowhere",
        "contract/test_page.py::is_there",
    ],
)
def test_what_is_not_there_is_noticed(test: str) -> None:
    assert not is_there(test)
