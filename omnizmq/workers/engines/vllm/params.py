"""A request's parameters as vLLM's `SamplingParams`, by its names and in its ranges.

vLLM checks most values itself; what it says becomes one line.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

import msgspec
from vllm import SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.sampling_params import RepetitionDetectionParams, RequestOutputKind, StructuredOutputsParams

from omnizmq.errors import InvalidRequestError
from omnizmq.protocol import Param
from omnizmq.tables import nearest

_INTERNAL = frozenset(
    {
        "n", "output_kind", "skip_clone", "output_text_buffer_length", "detokenize", "stream_interval", "flat_logprobs",
        "prompt_logprobs", "prompt_logprob_token_ids", "prompt_logprob_start", "logprob_token_ids", "extra_args",
        "routed_experts_prompt_start", "trace_decode_token_ids", "watermarking", "spaces_between_special_tokens",
    }
)  # fmt: skip
"""Fields that say how vLLM answers its caller, or ask for what an answer here has no place for."""

NAMES = sorted(name for name in SamplingParams.__struct_fields__ if name[0] != "_" and name not in _INTERNAL)

_TABLES: dict[str, Any] = {
    "structured_outputs": StructuredOutputsParams,
    "repetition_detection": RepetitionDetectionParams,
}
"""Values that are tables, some with tables inside, which a parameter cannot have: their JSON is taken too."""

_LINE_CHARS = 400


def read(given: Mapping[str, Param], defaults: Mapping[str, Any]) -> SamplingParams:
    """`defaults`: the checkpoint's own. Without `max_tokens` an answer may fill the context. Raises
    `InvalidRequestError`."""
    values = {"max_tokens": None, **defaults}
    for name, value in given.items():
        if name not in NAMES:
            raise InvalidRequestError(f"parameter {name} is unknown: {nearest(name, NAMES)}")
        if value is not None:
            values[name] = _value(name, value)
    try:
        params = msgspec.convert(values, SamplingParams)
    except (msgspec.ValidationError, VLLMClientError, ValueError, TypeError) as error:
        raise InvalidRequestError(_line(error)) from error
    if (params.logprobs or 0) < 0:
        raise InvalidRequestError(f"parameter logprobs = {params.logprobs} is not usable: it must be from 0")
    params.output_kind = RequestOutputKind.DELTA
    return params


def line_of(error: Exception) -> str:
    """What vLLM says, in one line and without the value that it repeats."""
    return " ".join(str(error).split()).partition(" (parameter=")[0][:_LINE_CHARS]


def prompt_alone() -> SamplingParams:
    """Of a request whose answer is known: its prompt is computed, and one token with it, which vLLM needs."""
    return SamplingParams(max_tokens=1, temperature=0, detokenize=False, output_kind=RequestOutputKind.DELTA)


def _value(name: str, value: Param) -> Any:
    if name in _TABLES:
        return _table(name, value)
    if name == "logit_bias" and isinstance(value, dict):
        try:
            biases = {int(token): bias for token, bias in value.items()}
        except ValueError as error:
            raise InvalidRequestError("parameter logit_bias: its keys must be ids of tokens") from error
        if any(isinstance(bias, float) and not isfinite(bias) for bias in biases.values()):
            raise InvalidRequestError("parameter logit_bias: its values must be finite")
        return biases
    return value


def _table(name: str, value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(f"parameter {name}: it is no JSON: {error}") from error
    known = [field.name for field in dataclasses.fields(_TABLES[name]) if field.init and field.name[0] != "_"]
    for key in value if isinstance(value, dict) else ():
        if key not in known:
            raise InvalidRequestError(f"parameter {name}.{key} is unknown: {nearest(key, known)}")
    return value


def _line(error: Exception) -> str:
    """`msgspec` ends with "- at `$.max_tokens`", vLLM with "(parameter=top_p, value=3.0)" or neither."""
    text = str(error).partition("\n")[0]
    if isinstance(error, msgspec.ValidationError) and " - at `" in text:
        what, _, where = text.partition(" - at `")
        return f"parameter {where.strip('`').removeprefix('key` in `').removeprefix('$.')}: {what}"
    return f"vLLM refuses a parameter: {line_of(error)}"
