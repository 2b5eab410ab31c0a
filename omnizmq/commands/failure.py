"""How a command says that it failed: one line for a person, one document on stdout with `--json`; and its exit code."""

from __future__ import annotations

from omnizmq.errors import ConfigError, InvalidRequestError, OmnizmqError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

INTERRUPTED: dict[str, object] = {
    "code": "interrupted",
    "stage": None,
    "replica": None,
    "message": "interrupted",
    "retriable": False,
}
"""The `error` of a command that was interrupted before it had a document of its own to print."""


def describe(error: OmnizmqError) -> dict[str, object]:
    """An error as a document's `error`."""
    return {
        "code": error.code,
        "stage": error.stage,
        "replica": error.replica,
        "message": error.message,
        "retriable": error.retriable,
    }


def document(error: OmnizmqError) -> dict[str, object]:
    """All that a command prints with `--json` when it fails."""
    return {"error": describe(error)}


def said(error: OmnizmqError) -> str:
    """An error as a person reads it: where it happened comes first (F1), unless the message says so itself, or the
    person has to ask for something else."""
    where = None if status_of(error) == EXIT_USAGE else error.replica or error.stage
    return error.message if where is None or where in error.message else f"{where}: {error.message}"


def status_of(error: OmnizmqError) -> int:
    """The exit code that follows: whether what was asked for is wrong, or what became of it."""
    return EXIT_USAGE if isinstance(error, ConfigError | InvalidRequestError) else EXIT_FAILED
