"""How a command says that it failed: one line for a person, one document on stdout with `--json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import click

from omnizmq.errors import ConfigError, InvalidRequestError, OmnizmqError


def describe(error: OmnizmqError) -> dict[str, object]:
    """An error as a document's `error`."""
    return {
        "code": error.code,
        "stage": error.stage,
        "replica": error.replica,
        "message": error.message,
        "retriable": error.retriable,
    }


def said(error: OmnizmqError) -> str:
    """An error as a person reads it: where it happened comes first (F1), unless the message says so itself, or the
    person has to ask for something else."""
    where = None if isinstance(error, ConfigError | InvalidRequestError) else error.replica or error.stage
    return error.message if where is None or where in error.message else f"{where}: {error.message}"


@contextmanager
def one_document(as_json: bool) -> Iterator[None]:
    """An `OmnizmqError` that leaves the block becomes `{"error": …}` on stdout, and is raised on."""
    try:
        yield
    except OmnizmqError as error:
        if as_json:
            click.echo(json.dumps({"error": describe(error)}))
        raise
