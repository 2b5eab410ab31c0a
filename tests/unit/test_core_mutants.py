"""What the mutation run over the pure cores changes, and what it leaves alone."""

from __future__ import annotations

from support.core_mutants import mutants

SOURCE = '''
def first(items: list[int], limit: int = 1) -> list[int]:
    """Not 2 of them, and not 3."""
    assert limit > 0, f"{limit + 1}"
    if limit <= 8 and not items:
        return []
    self.seen += 4
    self.told(
        "one",
    )
    return [item for item in items if item is not None]
'''


def test_one_change_each_and_lines_keep_their_numbers() -> None:
    found = mutants(SOURCE)
    assert [(mutant.line, mutant.after.strip().splitlines()[0]) for mutant in found] == [
        (2, "def first(items: list[int], limit: int = 2) -> list[int]:"),
        (5, "if limit < 8 and not items:"),
        (5, "if limit <= 9 and not items:"),
        (5, "if limit <= 8 or not items:"),
        (5, "if limit <= 8 and items:"),
        (7, "pass"),
        (7, "self.seen -= 4"),
        (7, "self.seen += 5"),
        (8, "pass"),
        (11, "return []"),
        (11, "return [item for item in items if item is None]"),
    ]
    assert all(mutant.text.count("\n") == SOURCE.count("\n") for mutant in found)
