"""What is checked of a submission before a request exists (I3, P2, B1, B2). Pure.

The frame has decoded and nothing more is known of it: its sender may be anybody's program. Messages quote at most a
few characters of it, whatever its size.
"""

from __future__ import annotations

import math

from omnizmq import protocol as wire
from omnizmq.config import RouterConfig
from omnizmq.errors import DeadlineExceededError, InvalidRequestError, PromptTooLargeError
from omnizmq.pipeline import Pipeline, Plan
from omnizmq.trace import context

SETTINGS_BYTES = 1 << 20
"""All of a submission besides its prompt: params, modalities and affinity, as JSON."""

MAX_PRIORITY = 100
"""Priorities go from minus this to this; 0 is the usual one. The highest waits at most `2 x 100 x priority_age_s` less
than the lowest."""

REQUEST_ID_CHARS = 2 * wire.MAX_ID_CHARS
"""What a refusal repeats of a request id at most; no good one is longer."""

_QUOTED_CHARS = 40


def check(frame: wire.Submit, pipeline: Pipeline, limits: RouterConfig) -> Plan:
    """The plan of what is asked, or `InvalidRequestError`, or `DeadlineExceededError` for one that is past already."""
    _check_prompt(frame.prompt, limits)
    _check_settings(frame, pipeline)
    _check_deadline(frame.deadline_s)
    context.check(frame.traceparent)
    return pipeline.plan(frame.modalities)


def _check_prompt(prompt: wire.Prompt, limits: RouterConfig) -> None:
    given = sum(kind is not None for kind in (prompt.text, prompt.messages, prompt.token_ids))
    if given != 1:
        raise InvalidRequestError(f"the prompt has {given} forms: one of text, messages or token ids was expected")
    size = prompt.size()
    if size > limits.max_prompt_bytes:
        raise PromptTooLargeError.of(size, limits.max_prompt_bytes)


def _check_settings(frame: wire.Submit, pipeline: Pipeline) -> None:
    size = len(wire.encode_json((frame.params, frame.modalities, frame.affinity)))
    if size > SETTINGS_BYTES:
        raise InvalidRequestError(
            f"params, modalities and affinity have {size} bytes; at most {SETTINGS_BYTES} are taken besides the prompt"
        )
    for stage in frame.params:
        if stage not in pipeline.by_name:
            raise InvalidRequestError(
                f"params name an unknown stage {stage[:_QUOTED_CHARS]!r}: "
                f"this deployment has {', '.join(pipeline.by_name)}"
            )
    if abs(frame.priority) > MAX_PRIORITY:
        raise InvalidRequestError(
            f"priority is {frame.priority}: a number from -{MAX_PRIORITY} to {MAX_PRIORITY} was expected"
        )
    if frame.window < 1:
        raise InvalidRequestError(f"window is {frame.window}: at least 1 output was expected")


def _check_deadline(deadline_s: float | None) -> None:
    if deadline_s is None:
        return
    if not math.isfinite(deadline_s):
        raise InvalidRequestError(f"deadline_s is {deadline_s}: seconds were expected, or nothing for no deadline")
    if deadline_s <= 0:
        raise DeadlineExceededError(f"deadline_s is {deadline_s:g}: it has passed already")
