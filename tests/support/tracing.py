"""`omnizmq trace` in this process, and traces and deployments for it to find."""

from __future__ import annotations

import io
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

import pytest

from omnizmq.cli import main
from omnizmq.runtime import state_dir
from omnizmq.trace.database import FILE_NAME
from omnizmq.trace.facts import Fact
from omnizmq.trace.store import TraceWriter

from . import trace_stories as stories

SECOND = 10**9


class Result(NamedTuple):
    exit_code: object
    stdout: str
    stderr: str


def run(*arguments: str) -> Result:
    """What a shell would see."""
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(io.StringIO()) as out,
        redirect_stderr(io.StringIO()) as err,
    ):
        patch.setattr(sys, "argv", ["omnizmq", "trace", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
    return Result(end.value.code, out.getvalue(), err.getvalue())


def begin(deployment: str, external_id: str, *, age_s: int) -> TraceWriter:
    """A request that was asked so long ago, in a trace that is still written by this process."""
    request_id = f"{external_id}-{1:016x}"
    began_ns = time.monotonic_ns() - age_s * SECOND
    writer = TraceWriter(state_dir(deployment) / FILE_NAME, max_mib=16, max_age_days=7.0)
    writer.append(Fact(request_id, external_id, 1, began_ns, "client", "asked"))
    writer.append(Fact(request_id, external_id, 1, began_ns + 10**6, "router", "received", detail=stories.SPEECH))
    assert writer.flush()
    return writer
