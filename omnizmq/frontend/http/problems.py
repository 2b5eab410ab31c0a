"""Errors as OpenAI's clients know them: a body, a status, and whether the client should try again by itself.

The official clients try 408, 409, 429 and 5xx again twice, unless `x-should-retry` says otherwise. It says so where
computing has been spent already or the request's own time is over: else one overload would become three.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from omnizmq.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    NotFoundError,
    OmnizmqError,
    OverloadedError,
    UnavailableError,
)

RETRY_AFTER_S = 1
"""How long a refused caller waits: as long as a stage takes to have room again, or a replica to come back."""

ABORTED = 499
"""Nginx's "client closed request": the caller, or an operator, ended it."""


QUOTED_CHARS = 200


class BridgeError(Exception):
    """Refused by the bridge itself, with this status. `param` is the field at fault, as in `messages[0].role`."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.request_id: str | None = None


class RefusedError(InvalidRequestError):
    """A stage does not take the request: `error` as it says it. `param` is the field at fault, where that is known."""

    def __init__(self, message: str, error: InvalidRequestError, param: str | None) -> None:
        super().__init__(message, stage=error.stage, replica=error.replica)
        self.request_id = error.request_id
        self.param = param


def of(error: OmnizmqError | BridgeError) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers."""
    if isinstance(error, BridgeError):
        return (
            error.status,
            body(error.status, error.code, error.message, error.param),
            retry(error.status in (429, 503)),
        )
    again = isinstance(error, OverloadedError | UnavailableError)
    status = error.http_status
    param = error.param if isinstance(error, RefusedError) else None
    return status, body(status, error.code, _told(error), param), retry(again)


def body(status: int, code: str, message: str, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": _type(status, code), "param": param, "code": code}}


def quoted(text: str) -> str:
    """A caller's words in a message, cut where they are long."""
    return repr(text) if len(text) <= QUOTED_CHARS else f"{text[:QUOTED_CHARS]!r}…"


def retry(again: bool) -> dict[str, str]:
    headers = {"x-should-retry": "true" if again else "false"}
    if again:
        headers["retry-after"] = str(RETRY_AFTER_S)
    return headers


def of_stage(error: OmnizmqError) -> str:
    """Its message with its stage's name, once: some engines say it themselves."""
    named = error.message.startswith((f"stage {error.stage}:", f"stage {error.stage} "))
    return error.message if named else f"{error.stage}: {error.message}"


def _told(error: OmnizmqError) -> str:
    """What the caller should read: whose fault it was is the deployment's business where it was not the caller's."""
    if isinstance(error, InvalidRequestError | NotFoundError | DeadlineExceededError) or error.stage is None:
        return error.message
    return of_stage(error)


def _type(status: int, code: str) -> str:
    if code in ("replica_lost", "router_lost"):  # of the same status as what has no room at present
        return "server_error"
    known = {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        408: "timeout_error",
        413: "invalid_request_error",
        429: "rate_limit_error",
        499: "request_aborted",
        503: "overloaded_error",
        504: "timeout_error",
    }
    return known.get(status, "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error")
