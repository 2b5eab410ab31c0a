"""Events and effects of the router core as trees for JSON, without what callers said or got. Pure.

A struct is an object whose `$` is its name, so that a line can be read, and so that a scenario outlives a change of the
wire that only adds fields: they are null, or empty. What a caller said or got is replaced by its size, which is all
that the core looks at:

    {"$chars": 5}       a text of 5 characters; of a prompt: 5 bytes of UTF-8; of a parameter: 5 bytes of JSON
    {"$bytes": 96}      sound, pictures, a relay edge's content
    {"$tokens": 7}      token ids
    {"…", "other": true}  the output in which a new attempt turned out to say something else than the caller has (F2)
    {"$float": "nan"}   what JSON has no number for
    {"$pairs": […]}     a mapping some key of which begins with `$`
    {"$error": "…"}     an exception: its type and message

Ids, names, numbers, the texts of errors and notes stay.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from typing import Any, cast, get_type_hints

import msgspec
from msgspec.structs import asdict

from omnizmq import protocol as wire
from omnizmq.errors import ProtocolError
from omnizmq.recording.trees import parting
from omnizmq.router import messages
from omnizmq.trace.events import CONTENTS
from omnizmq.trace.facts import Fact

Tree = Any
"""What JSON can say: dicts, lists, strings, numbers, booleans, None."""

OUTSIDE_COUNTERS = ("refused", "late_frames", "bad_frames", "router_errors")
"""Counters of the status that sockets raise too; no event says so, so they are left out."""

_PLAIN = frozenset((str, int, bool, type(None)))


# --- To a tree -----------------------------------------------------------------------------------------------------


def tree(value: Any) -> Tree:
    """Of an event, an effect, or what they are made of."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    described = _DESCRIBED.get(kind)
    if described is not None:
        return described(value)
    if kind is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if kind is dict:
        return _mapping({name: tree(item) for name, item in value.items()})
    if kind is list or kind is tuple:
        return [tree(item) for item in value]
    if kind is bytes:
        return b64encode(value).decode()
    if isinstance(value, BaseException):
        return {"$error": f"{kind.__name__}: {value}"}
    raise TypeError(f"a {kind.__name__} has no place in a recording")


def marked_other(event: Tree) -> Tree:
    """The tree of an output's event that says something else than its caller has."""
    content = event["frame"]["content"]
    for size in content.values():
        if isinstance(size, dict):
            size["other"] = True
    return event


def chars(text: str | None) -> Tree:
    return None if text is None else {"$chars": len(text)}


def utf8(text: str | None) -> Tree:
    return None if text is None else {"$chars": len(text.encode())}


def nbytes(data: bytes) -> Tree:
    return {"$bytes": len(data)}


def logprobs(given: list[wire.TokenLogprob]) -> Tree:
    """As many tokens of the same sizes, each with what was likely in its place."""
    sizes = [each.size() - wire.LOGPROB_BYTES for each in given]
    return [{"$": "TokenLogprob", "token": {"$bytes": size}, "logprob": 0.0, "top": []} for size in sizes]


def tokens(ids: list[int] | None) -> Tree:
    return None if ids is None else {"$tokens": len(ids)}


def params(given: dict[str, Any]) -> Tree:
    """Sampling parameters, by stage or of one. Names and single numbers stay; texts, and lists and tables of numbers,
    which may be tokens, become texts as long in JSON (the door counts that)."""
    return _mapping({name: _param(value) for name, value in given.items()})


def _param(value: Any) -> Tree:
    if isinstance(value, dict):
        return params(value)
    if isinstance(value, list):
        return [_param(item) if isinstance(item, str | dict | list) else _hidden(item) for item in value]
    return _hidden(value) if isinstance(value, str) else tree(value)


def _hidden(value: Any) -> Tree:
    """As long in JSON as the value, a text has two quotes there; or as much as a message holds, which is far more than
    the door lets in."""
    return {"$chars": min(max(0, len(wire.encode_json(value)) - 2), wire.MESSAGE_BYTES)}


def _mapping(items: dict[str, Tree]) -> Tree:
    for name in items:
        if name.startswith("$"):
            return {"$pairs": [list(pair) for pair in items.items()]}
    return items


def _document(data: bytes | None) -> Tree:
    """A document of the router, without what its sockets count."""
    if data is None:
        return None
    found = msgspec.json.decode(data)
    if isinstance(found, dict) and isinstance(counters := found.get("counters"), dict):
        found["counters"] = {name: count for name, count in counters.items() if name not in OUTSIDE_COUNTERS}
    return tree(found)


def _fact(fact: Fact) -> Tree:
    found = {"$": "Fact", **{name: tree(getattr(fact, name)) for name in Fact.__struct_fields__}}
    if fact.event in CONTENTS:
        found["detail"] = {}
    return found


_HIDDEN: dict[tuple[type, str], Callable[[Any], Tree]] = {
    (wire.Prompt, "text"): utf8,
    (wire.Prompt, "token_ids"): tokens,
    (wire.TextPart, "text"): utf8,
    (wire.AudioPart, "data"): nbytes,
    (wire.ImagePart, "data"): nbytes,
    (wire.Text, "text"): chars,
    (wire.TextWithLogprobs, "text"): chars,
    (wire.TextWithLogprobs, "logprobs"): logprobs,
    (wire.Audio, "data"): nbytes,
    (wire.RelayContent, "data"): nbytes,
    (wire.FeedStage, "data"): nbytes,
    (wire.Submit, "params"): params,
    (wire.SubmitStage, "params"): params,
    (wire.Status, "json"): _document,
    (wire.Traced, "json"): _document,
}
"""The fields that hold what callers said or got, or that are no event's doing."""


def _describer(kind: type[msgspec.Struct]) -> Callable[[Any], Tree]:
    name = kind.__name__
    hidden = {field: as_tree for (of, field), as_tree in _HIDDEN.items() if of is kind}

    def describe(value: Any) -> Tree:
        found = {"$": name, **asdict(value)}
        for field, item in found.items():
            if field in hidden:
                found[field] = hidden[field](item)
            elif type(item) not in _PLAIN:
                found[field] = tree(item)
        return found

    return describe


def _structs(module: Any) -> dict[str, type[msgspec.Struct]]:
    found = vars(module).values()
    return {
        kind.__name__: kind
        for kind in found
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == module.__name__
    }


_NAMED = {**_structs(wire), **_structs(messages)}
_DESCRIBED: dict[type, Callable[[Any], Tree]] = {
    **{kind: _describer(kind) for kind in _NAMED.values()},
    Fact: _fact,
}


def completed(of: Tree) -> Tree:
    """The tree of a struct with the fields that it has got since it was written, null or empty."""
    if isinstance(of, list):
        return [completed(item) for item in of]
    if not isinstance(of, dict):
        return of
    found = {name: completed(item) for name, item in of.items()}
    kind = _NAMED.get(of["$"]) if "$" in of else None
    return found if kind is None else {"$": of["$"], **_empty(kind), **found}


_EMPTY: list[Any] = [None, False, 0, 0.0, "", [], {}]


@cache
def _empty(kind: type[msgspec.Struct]) -> dict[str, Tree]:
    """Each field with null or, where that is no value of it, with what is empty; with null again where nothing is."""
    types = get_type_hints(kind)
    return {name: next((one for one in _EMPTY if _fits(one, types[name])), None) for name in kind.__struct_fields__}


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


# --- From a tree ---------------------------------------------------------------------------------------------------


def event(of: Tree) -> messages.Input:
    """The event, with stand-ins of the same size. `trees.Checker` has seen the tree. Raises `ProtocolError` for what is
    no event."""
    kind = _NAMED.get(of.get("$", "")) if isinstance(of, dict) else None
    if kind is None or kind.__module__ != messages.__name__:
        raise ProtocolError(f"an event of the router was expected, not {_start(of)}")
    try:
        found: Any = msgspec.convert(values(of), kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"a {kind.__name__} that does not decode: {error}") from error
    return cast(messages.Input, found)


def check_written(event: messages.Input, of: Tree) -> None:
    """Raises `ProtocolError` where this, with all its fields, is not how the event is written: more decodes than that.
    Whoever reads the tree may rely on its names being texts, and its frames being structs."""
    told = tree(event)
    frame = getattr(event, "frame", None)
    other = isinstance(frame, wire.Output) and frame.content is not None and of != told
    told = marked_other(told) if other else told
    if of != told:
        where, found, expected = parting(of, told)
        raise ProtocolError(f"a {told['$']} whose {where} is {_start(found)}, where {_start(expected)} was expected")


def _start(of: Tree) -> str:
    return wire.encode_json(of)[:60].decode(errors="replace")


def values(of: Tree) -> Any:
    """What the tree stands for, as msgspec converts it: structs of the wire are arrays there."""
    if isinstance(of, list):
        return [values(item) for item in of]
    if not isinstance(of, dict):
        return of
    if "$" in of:
        return _packed_struct(of)
    if "$chars" in of:
        return _text("y" if of.get("other") else "x", of["$chars"])
    if "$bytes" in of:
        return _data(b"\1" if of.get("other") else b"\0", of["$bytes"])
    if "$tokens" in of:
        return [0] * of["$tokens"]
    if "$float" in of:
        return float(of["$float"])
    if "$pairs" in of:
        return {name: values(item) for name, item in of["$pairs"]}
    return {name: values(item) for name, item in of.items()}


@cache
def _text(of: str, size: int) -> str:
    """One for all of its size: a recording's events are all held at once."""
    return of * size


@cache
def _data(of: bytes, size: int) -> bytes:
    return of * size


def _packed_struct(of: dict[str, Tree]) -> Any:
    kind = _NAMED.get(of["$"])
    if kind is None:
        raise ProtocolError(f"no frame or event is named {of['$']}")
    unknown = of.keys() - {"$", *kind.__struct_fields__}
    if unknown:
        raise ProtocolError(f"a {of['$']} has no {', '.join(sorted(unknown))}")
    fields = {name: values(of.get(name, empty)) for name, empty in _empty(kind).items()}
    settings = kind.__struct_config__
    if not settings.array_like:
        return fields
    return [*([settings.tag] if settings.tag is not None else []), *fields.values()]
