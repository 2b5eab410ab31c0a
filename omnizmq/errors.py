"""One tree of errors: whose fault it is, its code, its HTTP status, and whether a retry can help (`retriable`).

Every error that a caller of omnizmq can see is an `OmnizmqError`. Its `code` is stable and goes over the wire; the
class is found again from the code by `from_code`, so the error raised in a client is the one the router meant.

Whether an HTTP client should try again by itself is another question, which `frontend.http.problems.of` answers: not
where computing has been spent already, though the same request may well succeed.
"""

from __future__ import annotations

from typing import ClassVar


class OmnizmqError(Exception):
    """The root. `stage` and `replica` name where it happened, `request_id` the request, when that is known."""

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    retriable: ClassVar[bool] = False

    def __init__(self, message: str, *, stage: str | None = None, replica: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.stage = stage
        self.replica = replica
        self.request_id: str | None = None


# --- The caller's fault: the same request will fail again. ---------------------------------------------------------


class InvalidRequestError(OmnizmqError):
    """A request that the deployment can never serve as it stands: bad id, unknown modality, prompt too long."""

    code = "invalid_request"
    http_status = 400


class PromptTooLargeError(InvalidRequestError):
    """A prompt of more bytes than the deployment takes (`router.max_prompt_bytes`)."""

    code = "prompt_too_large"
    http_status = 413

    @classmethod
    def of(cls, size: int, limit: int) -> PromptTooLargeError:
        """Both in bytes."""
        return cls(f"the prompt has {size} bytes; this deployment takes at most {limit} (router.max_prompt_bytes)")


class ConfigError(OmnizmqError):
    """A configuration that cannot be used. The message names file, key, value and what would be accepted."""

    code = "invalid_config"
    http_status = 400


class ModelNotFoundError(ConfigError):
    """A model that is not on this machine: `omnizmq check` tells it, `launch` refuses it."""


class NotFoundError(OmnizmqError):
    """No such deployment, request or trace."""

    code = "not_found"
    http_status = 404


class SlowReaderError(OmnizmqError):
    """The caller did not read its outputs for longer than the deployment waits (B1)."""

    code = "slow_reader"
    http_status = 408


class DeadlineExceededError(OmnizmqError):
    """The request's own deadline passed (B2)."""

    code = "deadline_exceeded"
    http_status = 504


# --- The deployment's state: a retry may help. ---------------------------------------------------------------------


class OverloadedError(OmnizmqError):
    """A limit of the deployment is reached (B1)."""

    code = "overloaded"
    http_status = 429
    retriable = True


class UnavailableError(OmnizmqError):
    """A needed stage has no live replica, or the deployment is draining (F4)."""

    code = "unavailable"
    http_status = 503
    retriable = True


class ReplicaLostError(OmnizmqError):
    """The replica that held the request died (F2)."""

    code = "replica_lost"
    http_status = 503
    retriable = True


class RouterLostError(OmnizmqError):
    """The router is gone; what it was doing is lost (F6)."""

    code = "router_lost"
    http_status = 503
    retriable = True


class InputTimeoutError(OmnizmqError):
    """An edge's input stopped arriving (R4)."""

    code = "input_timeout"
    http_status = 504
    retriable = True


# --- omnizmq's or an engine's fault. -------------------------------------------------------------------------------


class StageError(OmnizmqError):
    """A stage's engine failed on this request (F1)."""

    code = "stage_error"
    http_status = 500


class IncompleteInputError(OmnizmqError):
    """A gap in an edge's sequence numbers, or a total that does not match (R2)."""

    code = "incomplete_input"
    http_status = 500
    retriable = True


class ProtocolError(OmnizmqError):
    """A frame that does not decode, of another version, or that nobody should have sent (W1)."""

    code = "protocol_error"
    http_status = 500


class LaunchError(OmnizmqError):
    """A deployment did not come up. The message holds the stage, the reason and the worker's last lines (F5)."""

    code = "launch_failed"
    http_status = 500


BY_CODE: dict[str, type[OmnizmqError]] = {
    cls.code: cls
    for cls in (
        OmnizmqError,
        InvalidRequestError,
        PromptTooLargeError,
        ConfigError,
        NotFoundError,
        SlowReaderError,
        DeadlineExceededError,
        OverloadedError,
        UnavailableError,
        ReplicaLostError,
        RouterLostError,
        InputTimeoutError,
        StageError,
        IncompleteInputError,
        ProtocolError,
        LaunchError,
    )
}


def from_code(code: str, message: str, *, stage: str | None = None, replica: str | None = None) -> OmnizmqError:
    """The error that `code` stands for; an unknown code (a newer peer) becomes the root of the tree."""
    return BY_CODE.get(code, OmnizmqError)(message, stage=stage, replica=replica)
