"""Events are facts and commands are orders: nobody changes one that has been given."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from omnizmq.router.lifecycle import Command, Event


@pytest.mark.parametrize("kind", [*get_args(Event), *get_args(Command)], ids=lambda kind: kind.__name__)
def test_none_can_be_changed(kind: type[msgspec.Struct]) -> None:
    given = kind(*[""] * len(kind.__struct_fields__))
    for name in kind.__struct_fields__:
        with pytest.raises(AttributeError, match="immutable"):
            setattr(given, name, "else")
    assert kind.__struct_config__.frozen
