"""An operator's order to the router, checked: Python checks no types, and the router could only drop what is wrong.

Which stages and replicas there are, and what can be done with them, the router says.
"""

from __future__ import annotations

import re
from typing import Literal

from omnizmq.errors import InvalidRequestError
from omnizmq.protocol import Operate

Action = Literal["drain", "resume", "restart"]

ORDER_TIMEOUT_S = 30.0
"""How long requests may take to end, unless the operator says otherwise."""

MAX_TIMEOUT_S = 86_400.0
_TARGET = re.compile(r"[A-Za-z0-9_-]{1,64}(/[0-9]{1,9})?")


def make_order(call: int, action: Action, target: str, timeout_s: float, force: bool) -> Operate:
    """Raises `InvalidRequestError` that says what is wrong and what would be right."""
    if not isinstance(target, str) or not _TARGET.fullmatch(target):
        raise InvalidRequestError(f"{_shown(target)} is no stage or replica: these are such as talker and talker/0")
    if not isinstance(timeout_s, int | float) or isinstance(timeout_s, bool) or not 0 <= timeout_s <= MAX_TIMEOUT_S:
        raise InvalidRequestError(f"timeout_s is {_shown(timeout_s)}: seconds from 0 to {MAX_TIMEOUT_S:g} are expected")
    return Operate(call, action, target, float(timeout_s), bool(force))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"
