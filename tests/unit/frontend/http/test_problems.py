"""docs/http.md's table of errors is what the code says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="not installed: the extra `http`")

from omnizmq.errors import BY_CODE, LaunchError, OmnizmqError, ReplicaLostError, RouterLostError, UnavailableError
from omnizmq.frontend import http
from omnizmq.frontend.http import problems
from omnizmq.frontend.http.problems import BridgeError

pytestmark = pytest.mark.http

Row = tuple[int, str, bool]
"""Status, code, and whether the client asks again."""

PAGE = Path(__file__).parents[4] / "docs" / "http.md"
ROW = re.compile(r"^\| (\d{3}) \| ([^|]+) \| (yes|no)\b[^|]*\|$", re.MULTILINE)
NO_REQUESTS = {"invalid_config", LaunchError.code}
"""What there is only before a deployment."""


def told() -> set[Row]:
    table = PAGE.read_text().partition("## Errors")[2].partition("\n## ")[0]
    found = ROW.findall(table)
    return {(int(status), code, again == "yes") for status, codes, again in found for code in codes_of(codes)}


def codes_of(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def answered(error: OmnizmqError | BridgeError) -> Row:
    status, body, headers = problems.of(error)
    return status, body["error"]["code"], headers["x-should-retry"] == "true"


def refusals() -> Iterator[Row]:
    """Of every `BridgeError` that the bridge's code makes."""
    for path in sorted(Path(http.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "BridgeError":
                status, code = node.args[:2]
                assert isinstance(code, ast.Constant), f"{path.name}:{node.lineno}: a code is written where it is used"
                known = status.value if isinstance(status, ast.Constant) else getattr(problems, ast.unparse(status))
                assert isinstance(known, int)
                yield answered(BridgeError(known, str(code.value), "why"))


def test_the_table_has_what_a_request_may_end_with_and_nothing_else() -> None:
    errors = {answered(kind("why")) for code, kind in BY_CODE.items() if code not in NO_REQUESTS}
    # Starlette's own errors: no path or method, a body that is too slow or too large.
    others = {(404, "not_found"), (405, "method_not_allowed"), (408, "slow_body"), (413, "body_too_large")}
    assert told() == errors | set(refusals()) | {(*other, False) for other in others}


def test_a_code_is_told_once_for_each_status() -> None:
    assert len({code for _, code, _ in told()}) == len(told())


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("it broke", "thinker: it broke"),
        ("stage thinker: it broke", "stage thinker: it broke"),
        ("stage thinker has no live replica", "stage thinker has no live replica"),
        ("stage thinkers: it broke", "thinker: stage thinkers: it broke"),
    ],
)
def test_a_stage_is_named_once(message: str, told: str) -> None:
    _, body, _ = problems.of(UnavailableError(message, stage="thinker"))
    assert body["error"]["message"] == told


@pytest.mark.parametrize(
    ("error", "type_"),
    [
        (UnavailableError("why"), "overloaded_error"),
        (ReplicaLostError("why"), "server_error"),
        (RouterLostError("why"), "server_error"),
    ],
)
def test_what_is_lost_is_no_overload(error: OmnizmqError, type_: str) -> None:
    assert problems.of(error)[1]["error"]["type"] == type_
