"""What a trace is made of: facts, each with its time, its owner and the three ids (T1).

No prompt, no output, no chunk's content ever becomes part of a fact, unless `router.trace_contents` asks for it. Pure
data; no sockets, no engines. In a detail, `..._ns` is a moment of CLOCK_MONOTONIC; `parked_ns` alone is a duration.

The events, in the order in which a request usually meets them:

    asked            by the client: its `generate` was called. Time zero of the request
    received         by the router. detail: stages, final_stages, last_stage, all_stages (comma-separated names in
                     topological order; all_stages: the whole pipeline, planned or not), and, where the router gives
                     them, edges (comma-separated `from>to`, those of the plan; without them a chain is assumed);
                     modalities (asked for; empty: all), and deadline_s, priority, traceparent where they are set
    refused          by the router, before the request existed. detail: code, message
    prompt           with `router.trace_contents` alone. detail: kind, and text (its beginning) and chars, or tokens
    queued           by the router: no replica had room. detail: why (no_replica, starting: its replicas load, drained,
                     full, behind: others wait for the same places), lacks (the stage that has none for it), replicas
                     (of that stage, in words), ahead (how many wait before it for the same places)
    bound            a stage's replica was chosen. stage, engine_id; detail: replica
    submitted        the router sent a stage its submission. stage
    registered       the worker holds it. stage, owner: the replica
    input_ready      its gate saw the input it needs. stage, owner: the replica
    running          its engine was first asked to compute it. stage, owner: the replica
    first_output     its engine gave the first content or chunk. stage, owner: the replica
    published        the router sent the first output of a final stage to the caller. stage
    consumed         the first credit for a final stage came: its caller reads. stage; detail: outputs
    parked           an edge out has no credit or no room, so the stage may not go on; once for each edge and cause.
                     stage, owner: the replica; detail: to, replica (the consumer's), why (credit: its window is full,
                     ring: it holds its whole quota, line: others wait for room before), sent and unconsumed (chunks),
                     and held_bytes and quota_bytes of a ring
    paused           its caller has to read before the stage goes on (the first time alone). stage, owner: the replica
    resumed          it has read, so the stage goes on (the first time alone). stage, owner: the replica
    chunk_sent       with `router.trace_chunks` alone. stage, owner: the replica; detail: to, seq, bytes
    chunk_came       with `router.trace_chunks` alone. stage (the consumer), owner: the replica; detail: from, seq
    output           with `router.trace_contents` alone. stage; detail: kind, and text and chars, or bytes and
                     sample_rate
    delivered        the router sent the last output of a final stage to the caller. stage
    output_ended     a final stage's output has ended. stage, owner: the replica
    edge             what a stage sent over one edge. stage: the producer; detail: to, chunks, bytes, first_ns, last_ns,
                     and parked_ns: for how long, in all, the edge kept the stage from going on
    finished         a stage's own report. stage, owner: the replica; detail: finish_reason, outputs, usage_NAME for
                     what its engine counted (tokens, samples, …), note (what the engine remarks, such as why there is
                     no output), and error_code, error_message, error_stage (whose error it was: its own, or
                     that of an input) where it failed
    withheld         all outputs are complete, a report is awaited. detail: stages (comma-separated)
    abort_asked      by the router. detail: why (caller; operator: another client asked; or
                     disconnect: …)
    replica_lost     the replica that a stage was bound to died, before the request had ended. stage; detail: replica,
                     reason
    redriven         another attempt begins; its facts bear its number. detail: why, code
    left_behind      an aborted stage did not confirm in time. stage; detail: replica
    last_output      by the router, when a request ends while a final stage has given something and not its end: when
                     the last of it went to the caller. stage; detail: outputs
    terminal         the one end. stage; detail: finish_reason, usage_incomplete, and error_code, error_stage,
                     error_replica, error_message where it failed
    cleaned          the router has done with the request: every stage of every attempt has reported, was lost, or was
                     left behind
    dropped          never recorded by anyone: a reader of the store adds it where rows were lost while the request
                     ran, its own or others'. owner: "trace"; detail: rows, why
"""

from __future__ import annotations

import msgspec

from omnizmq.protocol import Value


class Fact(msgspec.Struct, frozen=True, gc=False):
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
