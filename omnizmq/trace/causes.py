"""The fixed words of a verdict: its cause, and why a complete request brought nothing of a stage (T2).

docs/tracing.md says to users what each means. A cause may also be the code of an error (`errors.BY_CODE`).
"""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """First what a request that goes on waits for, then how one has ended."""

    CLIENT = "client"
    QUEUE = "queue"
    REDRIVE = "redrive"
    REGISTRATION = "registration"
    INPUT = "input"
    SLOT = "slot"
    ENGINE = "engine"
    STUCK_STEP = "stuck_step"
    CREDIT = "credit"
    RING = "ring"
    CALLER_READS = "caller_reads"
    REPORT = "report"
    ABORT_CONFIRM = "abort_confirm"
    WORKER_SILENT = "worker_silent"
    REPLICA_LOST = "replica_lost"
    ROUTER_SILENT = "router_silent"
    TERMINAL = "terminal"

    COMPLETE = "complete"
    ABORTED = "aborted"
    CALLER_GONE = "caller_gone"
    REFUSED = "refused"
    FAILED = "failed"
    ENDED = "ended"
    ROUTER_LOST = "router_lost"
    UNKNOWN = "unknown"


class Reason(StrEnum):
    """Why a stage whose output was to be delivered brought nothing."""

    NOT_SUBMITTED = "not_submitted"
    NOT_REGISTERED = "not_registered"
    NO_INPUT = "no_input"
    NO_CHUNKS = "no_chunks"
    NO_OUTPUT = "no_output"
    FILTERED = "filtered"
