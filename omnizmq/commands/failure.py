"""`--json` prints one document on stdout, also when the command fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import click

from omnizmq.errors import OmnizmqError


def describe(error: OmnizmqError) -> dict[str, object]:
    """An error as a document's `error`."""
    return {
        "code": error.code,
        "stage": error.stage,
        "replica": error.replica,
        "message": error.message,
        "retriable": error.retriable,
    }


@contextmanager
def one_document(as_json: bool) -> Iterator[None]:
    """An `OmnizmqError` that leaves the block becomes `{"error": …}` on stdout, and is raised on."""
    try:
        yield
    except OmnizmqError as error:
        if as_json:
            click.echo(json.dumps({"error": describe(error)}))
        raise
