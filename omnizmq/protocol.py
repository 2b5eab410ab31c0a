"""The wire: ids, frames, codec, handshake and limits (I1-I3, W1, W3).

Every frame is a msgspec struct, packed as an array whose first element is the struct's name. Wire structs have no
defaults: a truncated frame does not decode. The one exception is `Hello`, a map that ignores fields it does not know,
so that two versions can always tell each other who they are.

A message larger than `PART_BYTES` travels as `Part`s, each a ZeroMQ message of its own, so that no receiver has to
accept large ones. Parts do not reorder: what is sent later on a connection arrives later. An abort behind a message of
4 MiB waits some 10 ms for it, behind the largest one some 0.2 s. No pickle anywhere.

This module knows nothing of sockets or shared memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Generic, Literal, TypeVar

import msgspec

from omnizmq.errors import InvalidRequestError, OmnizmqError, ProtocolError, from_code

VERSION = 6
"""Raised by one with every change of a frame. Peers of different versions refuse each other."""

FRAME_BYTES = 1 << 20
"""No single ZeroMQ message is larger: receivers set it as their `MAXMSGSIZE`."""

PART_BYTES = 256 << 10
"""A message above this size goes in parts of this size."""

MESSAGE_BYTES = 64 << 20
"""The largest message, all parts together: prompts, final outputs, relay content and inline chunks."""

CONTENT_BYTES = MESSAGE_BYTES - (64 << 10)
"""What a message can carry besides the ids, names and numbers around it."""

OPEN_TRANSFERS = 64
"""Messages in parts that one peer may have under way at once; together they hold at most `MESSAGE_BYTES`."""

MAX_ID_CHARS = 128
_EXTERNAL_ID = re.compile(rf"[\x21-\x7e]{{1,{MAX_ID_CHARS}}}")
_SUFFIX_BYTES = 8
_ERROR_CHARS = 4096

Ns = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""A moment of CLOCK_MONOTONIC, or a duration, in nanoseconds. Any other number does not decode."""

Action = Literal["drain", "resume", "restart"]
Value = bool | int | float | str | None
Param = Value | list[bool | int | float | str | None] | dict[str, bool | int | float | str | None]


# --- Ids (I1, I3) --------------------------------------------------------------------------------------------------


def is_external_id(external_id: object) -> bool:
    """Whether a caller may call a request so: 1 to 128 printable ASCII characters without spaces."""
    return isinstance(external_id, str) and _EXTERNAL_ID.fullmatch(external_id) is not None


def check_external_id(external_id: str) -> str:
    """The id itself, or `InvalidRequestError`: 1 to 128 printable ASCII characters without spaces."""
    if is_external_id(external_id):
        return external_id
    shown = repr(external_id)
    shown = shown if len(shown) <= 40 else shown[:40] + "…"
    raise InvalidRequestError(
        f"request id {shown} is not usable: an id has 1 to {MAX_ID_CHARS} printable ASCII characters, no spaces"
    )


def check_asked_id(id_: object) -> str:
    """The id itself, or `InvalidRequestError` for what is no text. Any text may be asked for: who bears it is known to
    the router, and that nobody does is no error."""
    if not isinstance(id_, str):
        raise InvalidRequestError(f"a request id is a string, not {id_!r}")
    try:
        id_.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(f"request id {ascii(id_)[:200]} is not usable: it is no UTF-8 text") from None
    return id_


def make_request_id(external_id: str, entropy: bytes) -> str:
    """`external_id` plus 64 random bits, which the caller draws (this module has no randomness of its own)."""
    if len(entropy) != _SUFFIX_BYTES:
        raise ValueError(f"a request id needs {_SUFFIX_BYTES} random bytes, not {len(entropy)}")
    return f"{external_id}-{entropy.hex()}"


def check_request_id(request_id: str, external_id: str) -> str:
    """The id itself, or `InvalidRequestError` when it was not made from `external_id` by `make_request_id`."""
    check_external_id(external_id)
    prefix, _, suffix = request_id.rpartition("-")
    if prefix != external_id or not re.fullmatch(r"[0-9a-f]{16}", suffix):
        raise InvalidRequestError(f"request id {request_id[:200]!r} does not belong to external id {external_id!r}")
    return request_id


def make_engine_id(request_id: str, attempt: int, stage: str) -> str:
    """The id by which one stage's engine knows one attempt of a request."""
    return f"{request_id}/{attempt}/{stage}"


def _fitting(text: object) -> str | None:
    if text is None:
        return None
    whole = " ".join(str(text).encode(errors="replace").decode().split("\n"))
    return whole if len(whole) <= _ERROR_CHARS else whole[:_ERROR_CHARS] + "…"


# --- What frames are made of ---------------------------------------------------------------------------------------


class _Wire(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part of a frame."""


class _Frame(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """A frame, or one choice among several parts of a frame."""


class TextPart(_Frame, frozen=True):
    text: str


class AudioPart(_Frame, frozen=True):
    """An encoded sound file (WAV, FLAC, …), as the caller had it."""

    data: bytes


class ImagePart(_Frame, frozen=True):
    """An encoded image file."""

    data: bytes


class Message(_Wire, frozen=True):
    """One turn of a conversation; `role` is system, user or assistant."""

    role: str
    content: list[TextPart | AudioPart | ImagePart]


class Prompt(_Wire, frozen=True):
    """Exactly one of the three is set."""

    text: str | None
    messages: list[Message] | None
    token_ids: list[int] | None

    def size(self) -> int:
        """Bytes that count against a prompt limit: text in UTF-8, files as they are, 4 a token."""
        if self.text is not None:
            return len(self.text.encode())
        if self.token_ids is not None:
            return 4 * len(self.token_ids)
        parts = (part for message in self.messages or () for part in message.content)
        return sum(len(part.text.encode()) if isinstance(part, TextPart) else len(part.data) for part in parts)


class Text(_Frame, frozen=True):
    text: str


LOGPROB_BYTES = 20
"""On the wire beside a token, at most: a number, and the headers of what they are in."""


class TokenLogprob(_Wire, frozen=True):
    """A token that was generated and the natural logarithm of its probability; those that were likeliest in its place,
    with theirs, the likeliest first. A token is the UTF-8 of its text, which may be a part of a character. A logarithm
    may be minus infinity."""

    token: bytes
    logprob: float
    top: list[tuple[bytes, float]]

    def size(self) -> int:
        """Bytes, at most; with what the wire puts around them."""
        return len(self.token) + LOGPROB_BYTES + sum(len(token) + LOGPROB_BYTES for token, _ in self.top)


class TextWithLogprobs(Text, frozen=True):
    """With the tokens that were generated since the last one. Their text may come later: a character may be incomplete,
    and a stop text may have begun."""

    logprobs: list[TokenLogprob]


class Audio(_Frame, frozen=True):
    """Mono sound: float32 little-endian samples. Any other number of bytes, or no rate, does not decode."""

    data: bytes
    sample_rate: int

    def __post_init__(self) -> None:
        if len(self.data) % 4 or self.sample_rate < 1:
            raise ValueError(f"{len(self.data)} bytes at {self.sample_rate} Hz are no float32 sound")


Content = Text | TextWithLogprobs | Audio


def content_bytes(content: Content | None) -> int:
    """Bytes, as a caller's window counts them (B1): text in UTF-8."""
    match content:
        case None:
            return 0
        case Audio():
            return len(content.data)
        case TextWithLogprobs(text, logprobs):
            return _text_bytes(text) + sum(each.size() for each in logprobs)
        case Text(text):
            return _text_bytes(text)


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


class ErrorInfo(_Wire, frozen=True):
    """An error on the wire; `code` is one of `omnizmq.errors`.

    `of` makes any error fit: its message becomes one line, what cannot be UTF-8 is replaced, what is too long is cut.
    """

    code: str
    message: str
    stage: str | None
    replica: str | None
    retriable: bool

    @classmethod
    def of(cls, error: OmnizmqError, *, stage: str | None = None, replica: str | None = None) -> ErrorInfo:
        where = _fitting(error.stage or stage), _fitting(error.replica or replica)
        return cls(error.code, _fitting(error.message) or "", *where, error.retriable)

    def exception(self) -> OmnizmqError:
        return from_code(self.code, self.message, stage=self.stage, replica=self.replica)


class EdgeCount(_Wire, frozen=True):
    """What a producer sent over one edge for one request. Times are CLOCK_MONOTONIC, in nanoseconds; 0: none.
    `parked_ns`: for how long in all the request could not go on because of this edge."""

    target: str
    chunks: int
    bytes: int
    first_ns: Ns
    last_ns: Ns
    parked_ns: Ns


class ArrayData(_Wire, frozen=True):
    """An array of a chunk, inline: numpy's dtype string, shape, C-ordered bytes."""

    name: str
    dtype: str
    shape: list[int]
    data: bytes


class ArrayShape(_Wire, frozen=True):
    """An array of a chunk whose bytes are elsewhere: numpy's dtype string and its shape, C-ordered. Where they are,
    `omnizmq.shm.arrays.offsets` says: a change there is a change of this frame."""

    name: str
    dtype: str
    shape: list[int]


class Segment(_Wire, frozen=True):
    """Shared memory without a name: a descriptor of a process, and what must be found there (numbers are reused)."""

    pid: int
    fd: int
    inode: int
    device: int
    nbytes: int


class RingUse(_Wire, frozen=True):
    """What one edge may hold of a worker's ring (the quotas of its readers together), holds of it, and holds besides in
    segments of their own. Of a slot with several readers each counts all."""

    target: str
    capacity: int
    used: int
    spilled: int


class Source(_Wire, frozen=True):
    """An upstream stage of a submission: who will send, in which mode."""

    stage: str
    replica: str
    incarnation: int
    mode: str


class Target(_Wire, frozen=True):
    """A downstream stage of a submission: whom to send to, in which mode, how many chunks may go unconsumed, and for
    how long the edge may be silent while its producer has all it needs (R4)."""

    stage: str
    replica: str
    incarnation: int
    endpoint: str
    mode: str
    window: int
    input_timeout_s: float


# --- Handshake -----------------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, tag="hello", tag_field="frame"):
    """The first message on every connection, from the side that connects. `nonce` is the launch's secret.

    role "client": `pid` is watched (A7). role "operator": the same, but it submits nothing and is counted apart.
    role "worker": replica, incarnation and data endpoint are set.
    role "producer" (on a data socket): replica and incarnation are set.
    """

    version: int
    nonce: str
    role: str
    pid: int = 0
    replica: str = ""
    incarnation: int = 0
    endpoint: str = ""


class StageInfo(_Wire, frozen=True):
    """What a client may know of a stage."""

    name: str
    modality: str | None  # of its final output


class Welcome(_Frame, frozen=True):
    """The router's answer to a good hello. A router that has said nothing for `lease_s` is gone."""

    version: int
    name: str
    pid: int
    stages: list[StageInfo]
    max_prompt_bytes: int
    output_window: int
    output_window_bytes: int
    lease_s: float


class Refused(_Frame, frozen=True):
    """An answer of the router: to a hello (`request_id` empty) or to a submission. Not a terminal (A2)."""

    request_id: str
    error: ErrorInfo


# --- Client and router ---------------------------------------------------------------------------------------------


class Submit(_Frame, frozen=True):
    """A request. `modalities` None: all that the pipeline has. `window`: outputs of each final stage that may go
    unconsumed (B1); more than the deployment's own window means that one. `traceparent`: the caller's span, as in W3C
    Trace Context."""

    request_id: str
    external_id: str
    prompt: Prompt
    modalities: list[str] | None
    params: dict[str, dict[str, Param]]
    priority: int
    deadline_s: float | None
    affinity: str | None
    window: int
    at_ns: Ns
    traceparent: str | None


class Abort(_Frame, frozen=True):
    """Ends all live requests that bear exactly this external id, or the one with this request id (I2, A1)."""

    call: int
    id: str


class Consumed(_Frame, frozen=True):
    """A credit: how many deliveries of this final stage the caller has consumed so far (B1)."""

    request_id: str
    stage: str
    outputs: int


class AskStatus(_Frame, frozen=True):
    call: int


class AskTrace(_Frame, frozen=True):
    """Where a live request is, now: by its request id, or the newest that bears this external id (T1)."""

    call: int
    id: str


class Operate(_Frame, frozen=True):
    """An operator's order about a stage (`restart` alone) or one of its replicas. `Operated` answers when it is done.

    `drain`: no new requests there; done when the last one has ended. `resume`: it takes requests again. `restart`: each
    replica is drained, its process ended in good order, and another one ready before the next follows; requests that
    have not ended within `timeout_s` stop the restart, or with `force` are ended there and driven anew (F2).
    """

    call: int
    action: Action
    target: str
    timeout_s: float
    force: bool


class Bye(_Frame, frozen=True):
    """The sender goes away in good order."""

    reason: str


class Ping(_Frame, frozen=True):
    """The router lives. A client that cannot be sent to is noticed so (A7), a dead router by its workers (F6)."""


class Delivery(_Frame, frozen=True):
    """A final stage's output on its way to the caller. `stage_finished`: that stage's output has ended (C3)."""

    request_id: str
    stage: str
    modality: str
    content: Content | None
    stage_finished: bool


class Terminal(_Frame, frozen=True):
    """The one message after which the caller hears nothing more (C4). It carries no content."""

    request_id: str
    stage: str
    modality: str
    finish_reason: str  # stop, length, abort or error
    error: ErrorInfo | None
    usage: dict[str, dict[str, int | float]]
    usage_incomplete: list[str]
    notes: dict[str, str]


class AbortAck(_Frame, frozen=True):
    call: int
    matched: int


class Operated(_Frame, frozen=True):
    """The answer to `Operate`. `error`: why it was not done, or not to its end."""

    call: int
    error: ErrorInfo | None


class Status(_Frame, frozen=True):
    """The answer to `AskStatus`: a JSON document, as `omnizmq status --json` prints it."""

    call: int
    json: bytes


class Traced(_Frame, frozen=True):
    """The answer to `AskTrace`: a JSON document, as `AsyncClient.inspect` says; None: no such request is live."""

    call: int
    json: bytes | None


# --- Router and worker ---------------------------------------------------------------------------------------------


class SubmitStage(_Frame, frozen=True):
    """Work for a stage: its own submission, at most once an attempt (S2). Without a prompt, input comes over edges.

    Of a final stage's outputs at most `window`, and `window_bytes` bytes of content beyond the first, go unread by the
    caller; of those of earlier attempts it has still to read `unread` (B1). `traceparent` is this stage's span.
    """

    request_id: str
    external_id: str
    attempt: int
    engine_id: str
    prompt: Prompt | None
    original_prompt: Prompt | None
    params: dict[str, Param]
    priority: int
    final: bool
    window: int
    window_bytes: int
    unread: int
    sources: list[Source]
    targets: list[Target]
    traceparent: str


class FeedStage(_Frame, frozen=True):
    """The whole output of an upstream stage over a relay edge, handed on by the router undecoded (P5)."""

    request_id: str
    attempt: int
    source: str
    data: bytes


class OutputCredit(_Frame, frozen=True):
    """How many of the final stage's outputs of this attempt have been consumed (B1), counted from the first. Negative:
    so many of earlier attempts are still unread. The first `skipped` of them did not go to the caller (F2)."""

    request_id: str
    attempt: int
    consumed: int
    skipped: int


class AbortStage(_Frame, frozen=True):
    request_id: str
    attempt: int


class AskStage(_Frame, frozen=True):
    """What the worker knows of an attempt, now: its gate, its edges, its credits (T1)."""

    call: int
    request_id: str
    attempt: int


class Heartbeat(_Frame, frozen=True):
    """A worker says what its engine does (`loading`, `idle`, `stepping`, `computing`; `failed`: it did not load, or is
    broken, and `text` says why) and since when, what its ring holds, how many frames it has dropped, and how many
    outputs it has discarded because their request had ended before its caller's window let them go."""

    incarnation: int
    state: str
    since_ns: Ns
    text: str
    rings: list[RingUse]
    late_frames: int
    bad_frames: int
    discarded: int


class PeerLost(_Frame, frozen=True):
    """A worker has died and was reaped: forget its edges and connections."""

    replica: str
    incarnation: int


class StageFact(_Frame, frozen=True):
    """One of the facts that are never derived from each other (S2): registered, input_ready, running, first_output; and
    parked, with what it waits for. With `router.trace_chunks` also chunk_sent and chunk_came."""

    request_id: str
    attempt: int
    incarnation: int
    fact: str
    at_ns: Ns
    detail: dict[str, Value]


class InputState(_Wire, frozen=True):
    """An edge in, at its consumer: chunks that came, and of these those that the engine has taken. `last_ns`: when the
    last one came, CLOCK_MONOTONIC; 0: none has."""

    source: str
    replica: str
    mode: str
    received: int
    taken: int
    ended: bool
    closed: bool
    last_ns: Ns


class EdgeState(_Wire, frozen=True):
    """An edge out, at its producer. `full`: why no chunk may go: "credit" (`window` chunks are not consumed), "ring"
    (the consumer holds its whole quota), "line" (others wait for room before it); None: one may. `holders`: other
    requests that hold that consumer's part of the ring, those with the most bytes first."""

    target: str
    replica: str
    mode: str
    made: int
    sent: int
    consumed: int
    window: int
    bytes: int
    ended: bool
    closed: bool
    last_ns: Ns
    full: str | None
    full_since_ns: Ns
    held_bytes: int
    quota_bytes: int
    holders: list[str]


class CallerState(_Wire, frozen=True):
    """A final stage's way to its caller, at the stage: outputs sent, and of these those that the caller has read;
    `waiting`: outputs that the window does not let go."""

    sent: int
    consumed: int
    window: int
    unread_bytes: int
    window_bytes: int
    waiting: int
    full: bool
    since_ns: Ns


class StageAnswer(_Frame, frozen=True):
    """The answer to `AskStage`. `state` is the gate's (`WorkState`), or GONE where it holds no such attempt; `since_ns`
    since when, as far as it knows. `running` requests hold one of the engine's `slots`, `waiting` want one.
    `engaged`: what `engine` says is for this request, too.
    `made_ns`: when the engine last made something of this request, or was given something for it."""

    call: int
    request_id: str
    attempt: int
    incarnation: int
    state: str
    at_ns: Ns
    since_ns: Ns
    running: int
    slots: int
    waiting: int
    engine: str
    engine_since_ns: Ns
    engaged: bool
    made_ns: Ns
    outputs: int
    inputs: list[InputState]
    edges: list[EdgeState]
    caller: CallerState | None


class StagePaused(_Frame, frozen=True):
    """The stage makes no more of this request until its caller has read (B1); or, `paused` false, it may go on."""

    request_id: str
    attempt: int
    incarnation: int
    paused: bool
    at_ns: Ns


class Output(_Frame, frozen=True):
    """Final content of a stage. `last`: the stage's output has ended, though its report may still come (C3)."""

    request_id: str
    attempt: int
    incarnation: int
    seq: int
    content: Content | None
    last: bool
    at_ns: Ns


class RelayContent(_Frame, frozen=True):
    """The whole output of a stage over a relay edge, before its report."""

    request_id: str
    attempt: int
    incarnation: int
    target: str
    data: bytes


class StageFinished(_Frame, frozen=True):
    """The stage's own end: reason or error, usage, and how many outputs and chunks it sent (C2, R2)."""

    request_id: str
    attempt: int
    incarnation: int
    finish_reason: str | None
    error: ErrorInfo | None
    usage: dict[str, int | float]
    note: str | None
    outputs: int
    edges: list[EdgeCount]
    at_ns: Ns


# --- Worker and worker ---------------------------------------------------------------------------------------------


class ChunkFrame(_Frame, frozen=True):
    """A chunk, inline. `seq` counts from 1 on each edge of each attempt (R2)."""

    request_id: str
    attempt: int
    incarnation: int
    source: str
    seq: int
    meta: dict[str, Value]
    arrays: list[ArrayData]


class RingChunk(_Frame, frozen=True):
    """A chunk whose arrays lie one after the other in a slot: of the producer's ring at `offset`, or of `spill`."""

    request_id: str
    attempt: int
    incarnation: int
    source: str
    seq: int
    meta: dict[str, Value]
    arrays: list[ArrayShape]
    slot: int
    offset: int | None
    nbytes: int
    spill: Segment | None


class RingOffer(_Frame, frozen=True):
    """From a producer, after its hello: where its ring is, and how much of it this consumer may hold."""

    ring: int
    segment: Segment
    quota: int


class RingAnswer(_Frame, frozen=True):
    """From the consumer: it reads from the ring; or why it cannot, and chunks go inline."""

    refused: str | None


class SlotsFreed(_Frame, frozen=True):
    """From the consumer: nothing there needs the bytes of these slots any more."""

    slots: list[int]


class EdgeEnd(_Frame, frozen=True):
    """No more chunks; there were `total`."""

    request_id: str
    attempt: int
    incarnation: int
    source: str
    total: int


class EdgeFailed(_Frame, frozen=True):
    """The producer failed: its consumers end at once, with its error (R3)."""

    request_id: str
    attempt: int
    incarnation: int
    source: str
    error: ErrorInfo


class EdgeCredit(_Frame, frozen=True):
    """From the consumer: every chunk up to `consumed` has been taken by its engine, or is kept for it."""

    request_id: str
    attempt: int
    incarnation: int
    target: str
    consumed: int


class EdgeClosed(_Frame, frozen=True):
    """From the consumer: it needs no more of this edge (R5)."""

    request_id: str
    attempt: int
    incarnation: int
    target: str


class Part(_Frame, frozen=True):
    """A piece of a larger message."""

    transfer: int
    index: int
    count: int
    data: bytes


ClientToRouter = Submit | Abort | Consumed | AskStatus | AskTrace | Operate | Bye
RouterToClient = Welcome | Refused | Ping | Delivery | Terminal | AbortAck | Status | Traced | Operated | Bye
RouterToWorker = Welcome | Refused | Ping | SubmitStage | FeedStage | OutputCredit | AbortStage | AskStage | PeerLost
WorkerToRouter = Heartbeat | StageFact | StagePaused | Output | RelayContent | StageFinished | StageAnswer
OnEdge = ChunkFrame | RingChunk | EdgeEnd | EdgeFailed
ProducerToConsumer = OnEdge | RingOffer
BackOnEdge = EdgeCredit | EdgeClosed
ConsumerToProducer = BackOnEdge | RingAnswer | SlotsFreed
Relayed = list[ChunkFrame]

F = TypeVar("F")

_packer = msgspec.msgpack.Encoder()
_hello = msgspec.msgpack.Decoder(Hello)
_part = msgspec.msgpack.Decoder(Part)
_submit = msgspec.msgpack.Decoder(Submit)
_relayed = msgspec.msgpack.Decoder(Relayed)
_UNDECODABLE = (msgspec.ValidationError, msgspec.DecodeError, RecursionError, UnicodeDecodeError)


def encode_hello(hello: Hello) -> bytes:
    return _packer.encode(hello)


def decode_hello(data: bytes) -> Hello:
    """The hello, or `ProtocolError`. Its version and nonce are the caller's to compare."""
    try:
        return _hello.decode(data)
    except _UNDECODABLE as error:
        raise ProtocolError(f"not a hello: {error}") from error


def encode_json(document: object) -> bytes:
    """A JSON document, for people and programs."""
    return msgspec.json.encode(document)


def encode_relay(chunks: Relayed) -> bytes:
    """What goes over a relay edge: all its chunks."""
    return _packer.encode(chunks)


def decode_relay(data: bytes) -> Relayed:
    try:
        return _relayed.decode(data)
    except _UNDECODABLE as error:
        raise ProtocolError(f"relay content does not decode: {error}") from error


def check_submit(frame: Submit) -> Submit:
    """The frame itself, or `InvalidRequestError`: Python checks no types, and the router could only drop it.

    The prompt is left out; it has been checked where it was made.
    """
    for stage, params in frame.params.items():
        for name, value in params.items():
            _check_param(f"{stage}.{name}", value)
    bare = msgspec.structs.replace(frame, prompt=Prompt("", None, None))
    try:
        _submit.decode(_packer.encode(bare))
    except (*_UNDECODABLE, UnicodeEncodeError, TypeError, OverflowError) as error:
        raise InvalidRequestError(f"the request is not usable: {_at_field(str(error))}") from error
    return frame


def _check_param(name: str, value: object) -> None:
    try:
        msgspec.convert(value, Param)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(
            f"parameter {name}: a number, a text, true, false, None, or a flat list or table (with texts as keys) of "
            "these was expected; where an engine wants more, it takes it as JSON in a text"
        ) from error


def _at_field(text: str) -> str:
    """msgspec counts the elements of a frame; a caller knows its fields by name."""
    named = re.sub(r"\$\[(\d+)\]", lambda found: Submit.__struct_fields__[int(found[1]) - 1], text)
    return named.replace("`", "")


class Packer:
    """Frames to messages, in parts where needed. One for each direction of each peer or peer group."""

    def __init__(self) -> None:
        self._transfers = 0

    def pack(self, frame: msgspec.Struct) -> Iterator[bytes]:
        """Raises `ProtocolError`, before the first message, for what does not encode or is larger than a message."""
        kind = type(frame).__name__
        try:
            data = _packer.encode(frame)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ProtocolError(f"a {kind} does not encode: {error}") from error
        if len(data) <= PART_BYTES:
            yield data
            return
        if len(data) > MESSAGE_BYTES:
            raise ProtocolError(f"a {kind} of {len(data)} bytes is larger than a message may be ({MESSAGE_BYTES})")
        self._transfers += 1
        count = -(-len(data) // PART_BYTES)
        for index in range(count):
            piece = data[index * PART_BYTES : (index + 1) * PART_BYTES]
            yield _packer.encode(Part(self._transfers, index, count, piece))


class Unpacker(Generic[F]):
    """Messages of one peer to frames. Bounded: what exceeds a limit raises `ProtocolError` and is forgotten."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[F]) -> None:
        self._decoder = decoder
        self._open: dict[int, list[bytes]] = {}
        self._bytes = 0

    def unpack(self, data: bytes) -> F | None:
        """The frame, None when more parts must come, or `ProtocolError`."""
        try:
            if data[:6] == _PART_PREFIX:
                whole = self._join(_part.decode(data))
                return None if whole is None else self._decoder.decode(whole)
            return self._decoder.decode(data)
        except _UNDECODABLE as error:
            raise ProtocolError(f"frame does not decode: {error}") from error

    def _join(self, part: Part) -> bytes | None:
        if not (0 <= part.index < part.count <= MESSAGE_BYTES // PART_BYTES) or len(part.data) > PART_BYTES:
            raise ProtocolError(f"part {part.index} of {part.count} with {len(part.data)} bytes is out of bounds")
        pieces = self._open.setdefault(part.transfer, [])
        over = len(self._open) > OPEN_TRANSFERS or self._bytes + len(part.data) > MESSAGE_BYTES
        if part.index != len(pieces) or over:
            self._forget(part.transfer)
            raise ProtocolError(f"part {part.index} of transfer {part.transfer} is out of order or over the limit")
        pieces.append(part.data)
        self._bytes += len(part.data)
        if len(pieces) < part.count:
            return None
        self._forget(part.transfer)
        return b"".join(pieces)

    def _forget(self, transfer: int) -> None:
        self._bytes -= sum(map(len, self._open.pop(transfer, ())))


_PART_PREFIX = _packer.encode(Part(0, 0, 0, b""))[:6]

client_to_router = msgspec.msgpack.Decoder(ClientToRouter)
router_to_client = msgspec.msgpack.Decoder(RouterToClient)
router_to_worker = msgspec.msgpack.Decoder(RouterToWorker)
worker_to_router = msgspec.msgpack.Decoder(WorkerToRouter)
producer_to_consumer = msgspec.msgpack.Decoder(ProducerToConsumer)
consumer_to_producer = msgspec.msgpack.Decoder(ConsumerToProducer)
