"""What a trace is made of: facts, each with its time, its owner and the three ids (T1).

No prompt, no output, no chunk's content ever becomes part of a fact. Pure data; no sockets, no engines.

The events, in the order in which a request usually meets them:

    asked            by the client: its `generate` was called. Time zero of the request
    received         by the router. detail: stages, final_stages, last_stage, all_stages (comma-separated names in
                     topological order; all_stages: the whole pipeline, planned or not), and, where the router gives
                     them, edges (comma-separated `from>to`, those of the plan; without them a chain is assumed)
    refused          by the router, before the request existed. detail: code, message
    queued           by the router: no replica had room
    bound            a stage's replica was chosen. stage, engine_id; detail: replica
    submitted        the router sent a stage its submission. stage
    registered       the worker holds it. stage, owner: the replica
    input_ready      its gate saw the input it needs. stage, owner: the replica
    running          its engine was first asked to compute it. stage, owner: the replica
    first_output     its engine gave the first content or chunk. stage, owner: the replica
    paused           its caller has to read before the stage goes on (the first time alone). stage, owner: the replica
    output_ended     a final stage's output has ended. stage, owner: the replica
    edge             what a stage sent over one edge. stage: the producer; detail: to, chunks, bytes, first_ns, last_ns
    finished         a stage's own report. stage, owner: the replica; detail: finish_reason, outputs, and error_code,
                     error_message where it failed
    withheld         all outputs are complete, a report is awaited. detail: stages (comma-separated)
    abort_asked      by the router. detail: why (caller, or disconnect: …)
    replica_lost     the replica that a stage was bound to died, before the request had ended. stage; detail: replica,
                     reason
    redriven         another attempt begins; its facts bear its number. detail: why, code
    left_behind      an aborted stage did not confirm in time. stage; detail: replica
    terminal         the one end. stage; detail: finish_reason, usage_incomplete, and error_code, error_stage,
                     error_replica, error_message where it failed
    dropped          never recorded by anyone: a reader of the store adds it where rows were lost while the request
                     ran, its own or others'. owner: "trace"; detail: rows, why
"""

from __future__ import annotations

import msgspec

from omnizmq.protocol import Value


class Fact(msgspec.Struct, frozen=True):
    """One row of a trace. `at_ns` is CLOCK_MONOTONIC, which all processes of one machine share."""

    request_id: str
    external_id: str
    attempt: int
    at_ns: int
    owner: str  # "client", "router", a replica such as "talker/0", or "trace" for a fact about the trace itself
    event: str
    stage: str | None = None
    engine_id: str | None = None
    detail: dict[str, Value] = {}
