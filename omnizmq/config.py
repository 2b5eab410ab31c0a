"""TOML to frozen structs: every key, its default, its unit and its consequence.

`load` is the way in. What it returns has been validated as a whole: names are unique, edges join known stages, the
graph has no cycle, something is final. Anything else is a `ConfigError` of one line that names file, key, value and
what would do.

This module knows nothing of sockets or engines.
"""

from __future__ import annotations

import copy
import graphlib
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from omnizmq.errors import ConfigError
from omnizmq.protocol import CONTENT_BYTES, Param
from omnizmq.tables import BadValueError, Section, label, nearest, parse_file, parse_value, read

Mode = Literal["chunk", "payload", "relay"]
Policy = Literal["round_robin", "least_loaded", "affinity"]
Modality = Literal["text", "audio"]
RemoteEndpoint = Annotated[
    str,
    Meta(
        pattern=r"\A(tcp://(\*|[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]):[0-9]{1,5})?\Z",
        description='an address such as "tcp://0.0.0.0:5790" or "tcp://[::]:5790", or ""',
    ),
]
OtlpEndpoint = Annotated[
    str,
    Meta(
        pattern=r"\A(https?://[^\s/?#]+/\S*)?\Z",
        description='a URL with its path such as "http://127.0.0.1:4318/v1/traces", or ""',
    ),
]
Redrive = Literal["never", "other", "wait"]

Name = Annotated[
    str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z", description="a name of 1 to 64 letters, digits, '_' and '-'")
]
DeploymentName = Annotated[
    str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,40}\Z", description="a name of 1 to 40 letters, digits, '_' and '-'")
]
Device = Annotated[
    str,
    Meta(
        pattern=r"\A(cpu|cuda:[0-9]{1,4}|(GPU|MIG)-[0-9A-Za-z/-]{1,100})\Z",
        description='"cuda:N", a UUID ("GPU-…", "MIG-…") or "cpu"',
    ),
]
Devices = Annotated[
    list[Device | Annotated[list[Device], Meta(min_length=1)]],
    Meta(
        description='a list such as ["cuda:0", "cuda:1"], or [["cuda:0", "cuda:1"]] for one replica over two, '
        'of "cuda:N", UUIDs ("GPU-…", "MIG-…") and "cpu",'
    ),
]
Word = Annotated[str, Meta(min_length=1, description="a string that is not empty")]
Replicas = Annotated[int, Meta(ge=0, le=256)]
MOST = 1_000_000
Count = Annotated[int, Meta(ge=1, le=MOST)]
CountOrNone = Annotated[int, Meta(ge=0, le=MOST)]
MessageBytes = Annotated[int, Meta(ge=1, le=CONTENT_BYTES)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
RingMib = Annotated[int, Meta(ge=1, le=1 << 20)]
SecondsOrNone = Annotated[float, Meta(ge=0, le=86_400)]
ParamValue = Annotated[Param, Meta(description="a string, a number, true, false, or a flat list or table of these,")]
Gib = Annotated[float, Meta(gt=0, le=1 << 20)]
Days = Annotated[float, Meta(gt=0, le=36_500)]


class StageConfig(Section, frozen=True):
    """One `[[stage]]`: a logical step of the pipeline."""

    label_keys: ClassVar[tuple[str, ...]] = ("name",)

    name: Name
    """Letters, digits, `_` and `-`; unique."""

    engine: Word
    """A name in the entry-point group `omnizmq.engines`."""

    final_output: Modality | None = None
    """What a caller can ask for from this stage. None: its outputs never leave the pipeline."""

    devices: Devices = []
    """One entry a replica; a nested list for a replica over several devices. Empty: CPU. `cuda:N` counts the GPUs that
    the launcher sees (its CUDA_VISIBLE_DEVICES); a worker sees its own alone, and its first is `cuda:0` to it."""

    replicas: Replicas = 0
    """0: one a device, or one on the CPU."""

    max_inflight: Count = 64
    """Requests that one replica computes at once; more wait, in the router's queue or at the replica. Those that wait
    for input, or for their caller to read, are not counted. Lower bounds memory, higher batches."""

    max_registered: CountOrNone = 0
    """Requests bound to one replica at once, those that wait there too; more wait in the router's queue. 0: four times
    `max_inflight`."""

    policy: Policy = "least_loaded"
    """How a replica is chosen for a request (S4)."""

    ready: Literal["all", "any"] = "all"
    """With several input edges: compute when all of them have input, or when any has (P5)."""

    wants_prompt: bool = False
    """Whether a stage that is fed over edges also gets the caller's prompt."""

    python: Word | None = None
    """The interpreter of this stage's workers, where its packages clash with the others'. None: this one."""

    start_timeout_s: Seconds = 600.0
    """A worker that is not ready after this long is a failed start (F5)."""

    step_timeout_s: Seconds = 120.0
    """An engine step longer than this is stuck: the worker is killed and replaced (F2)."""

    output_timeout_s: Seconds = 120.0
    """A request for which this stage has what it needs, and of which it neither makes anything nor reports the end for
    so long, fails with `stage_error`. Time in the queue, paused or in a step does not count."""

    params: dict[str, ParamValue] = {}
    """Default sampling parameters; a request's own override them by name."""

    options: dict[str, Any] = {}
    """The engine's own settings, checked by the engine."""

    def devices_of(self, replica: int) -> tuple[str, ...]:
        """The GPUs of one replica; none: the CPU."""
        entry = self.devices[replica] if self.devices else "cpu"
        return tuple(device for device in ([entry] if isinstance(entry, str) else entry) if device != "cpu")


class EdgeConfig(Section, frozen=True):
    """One `[[edge]]`: a directed input of a stage."""

    label_keys: ClassVar[tuple[str, ...]] = ("from", "to")

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")

    mode: Mode = "chunk"
    """`chunk`: fed in increments; `payload`: fed once, whole; `relay`: by the router, when the source has ended."""

    window_chunks: Count = 32
    """Chunks of one request that may be unconsumed; beyond it that request is parked at the producer."""

    ring_mib: RingMib = 64
    """What the edge may hold of its producer's shared-memory ring, which is the sum over the edges out of a stage,
    allocated whole at the start (half a second a GiB). Each replica of the consumer gets an equal part: views take at
    most half of that, and what arrives beyond is copied; so give it twice what an engine has in use at a time. Where
    it is full, requests pause. Chunks of up to 64 KiB do not need it, nor do relay edges."""

    input_timeout_s: Seconds = 60.0
    """A request whose producer has what it needs, and sends nothing over this edge for so long, fails with
    `input_timeout` (R4). Time in which the producer is queued, paused or in a long step does not count."""


class RouterConfig(Section, frozen=True):
    """`[router]`: limits and timeouts of the deployment."""

    heartbeat_interval_s: Seconds = 1.0
    """How often router and workers say that they live. Lower finds a dead worker sooner and wakes all more often."""

    heartbeat_timeout_s: Seconds = 10.0
    """Silence after which a worker is killed and replaced (F2), and after which a worker gives its router up (F6)."""

    abort_timeout_s: Seconds = 5.0
    """An aborted stage that has not confirmed by then is left behind, and counted as a leftover (A6)."""

    terminal_grace_s: SecondsOrNone = 5.0
    """With all outputs complete, a report still missing after this is given up: its usage is incomplete (C5)."""

    drain_timeout_s: SecondsOrNone = 30.0
    """After SIGTERM, how long live requests may take to end; then they end with `unavailable`."""

    max_queued: CountOrNone = 256
    """Requests waiting for a replica; beyond it, new ones are refused with `overloaded` (B1)."""

    max_prompt_bytes: MessageBytes = 4 << 20
    """A larger prompt is refused with `prompt_too_large`."""

    relay_max_bytes: MessageBytes = 32 << 20
    """A stage whose output over a relay edge is larger fails with `stage_error`."""

    output_window: Count = 1024
    """Outputs of a final stage that a request's caller may leave unconsumed; beyond it that request pauses (B1)."""

    output_window_mib: Count = 8
    """The same, in MiB of content; one output may always go."""

    slow_reader_grace_s: Seconds = 30.0
    """A request that has been paused for so long, and whose caller has not read an eighth of a window meanwhile, ends
    with `slow_reader`. At least three heartbeats: so long does a worker take to know that the router is
    silent, and no caller."""

    remote: RemoteEndpoint = ""
    """Where clients of other machines may connect, such as `tcp://0.0.0.0:5790`, or `tcp://[::]:5790` for IPv6 as well;
    they need the deployment's `remote.json` (W2). Empty: nowhere."""

    max_clients: Count = 4096
    """Connected clients; beyond it new ones are refused with `overloaded`. Each costs a descriptor or two."""

    max_operators: Count = 16
    """Connected operators (`omnizmq status`, `abort`, `restart`, `drain`), which take no place of `max_clients`; beyond
    it new ones are refused with `overloaded`."""

    max_peer_queue: Count = 65_536
    """Messages waiting for one client whose socket is full; beyond it the client counts as gone. The windows of its
    requests bound them; what it asks besides is bounded by this alone."""

    redrive: Redrive = "other"
    """What follows for a request when a replica that it needs has died: `never`, it ends with `replica_lost`; `other`,
    it is driven again from the start where every stage has a live replica; `wait`, also when one comes back (F2)."""

    redrive_wait_s: Seconds = 300.0
    """With `redrive = "wait"`: how long a stage may have no live replica before the requests that wait for one end."""

    max_attempts: Annotated[int, Meta(ge=1, le=100)] = 3
    """Attempts of one request, the first included: one that kills its replicas does not kill all of them."""

    priority_age_s: Seconds = 5.0
    """Waiting this long for a replica counts as much as one more of priority, so that nothing starves (B2)."""

    restart_delay_s: SecondsOrNone = 0.5
    """Before a dead worker's first restart; doubled by each further death within a minute."""

    max_restart_delay_s: SecondsOrNone = 30.0
    """The longest delay between restarts."""

    trace_max_mib: Count = 64
    """The trace database of a deployment; the oldest requests are dropped above it."""

    trace_max_age_days: Days = 7.0
    """Traces older than this are dropped."""

    trace: bool = True
    """Off: nothing is recorded of any request. `omnizmq trace` then knows live requests alone."""

    trace_chunks: bool = False
    """Each chunk of each edge becomes a fact at both its ends. Costs two frames and two rows a chunk."""

    trace_contents: bool = False
    """Prompts and outputs are stored with the trace, of text the first 4096 characters. Off: none ever is."""

    trace_otlp: OtlpEndpoint = ""
    """An OpenTelemetry collector's OTLP/HTTP endpoint for traces, such as `http://127.0.0.1:4318/v1/traces`: the facts
    go there too, as spans (extra `otel`). A collector that is slow or down costs spans, and no request. Empty: none."""


class Config(Section, frozen=True, kw_only=True):
    """A deployment."""

    name: DeploymentName
    """Letters, digits, `_` and `-`, at most 40: it becomes a directory's."""

    model: str = ""
    """A path or a hub's name, handed to the engines."""

    stage: list[StageConfig]
    edge: list[EdgeConfig] = []
    router: RouterConfig = RouterConfig()

    device_memory_gib: dict[Device, Gib] = {}
    """What a device may be filled with, such as `"cuda:0" = 80` or `"cpu" = 16`: for a machine that the check of memory
    cannot see, or where something else needs the rest. The lesser of this and what is found counts."""

    plugins: dict[str, dict[str, Any]] = {}


# --- Loading -------------------------------------------------------------------------------------------------------


def shipped() -> dict[str, Path]:
    """The configurations that come with omnizmq, by their bare names."""
    package = Path(__file__).parent
    folder = package / "configs"
    if not folder.is_dir():  # a checkout: the wheel moves them into the package
        folder = package.parent / "configs"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def resolve(path_or_name: str | Path) -> Path:
    """The file that is meant: a bare name such as `embedded` is a shipped one. `ConfigError` when there is none."""
    text = os.fspath(path_or_name)
    ours = shipped()
    if text in ours:
        return ours[text]
    try:
        os.stat(text)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{text!r}: no such file, nor a shipped name: those are {', '.join(ours)}") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{text!r}: cannot be read: {why}") from None
    return Path(text)


def load(
    path_or_name: str | Path, sets: Sequence[str] = (), *, judge: Callable[[Config], object] | None = None
) -> Config:
    """The validated configuration, with replicas filled in. `sets` are overrides such as `router.max_queued=10`.

    A value is TOML; a bare word is a string. Keys: `name`, `model`, `router.KEY`, `stage.NAME.KEY`,
    `stage.NAME.params.KEY`, `edge.FROM->TO.KEY`, `plugins.NAME.KEY`. `judge` may refuse what is valid: it knows the
    engines. Raises `ConfigError`, which names the override that is at fault, or else the file.
    """
    path = resolve(path_or_name)
    data = parse_file(path)
    given = _overridden(data, sets)
    try:
        return _judged(given, judge)
    except ConfigError as error:
        culprit = _culprit(data, sets, judge, error.message)
        raise ConfigError(f"{path if culprit is None else f'--set {culprit}'}: {error.message}") from None


def _judged(data: dict[str, Any], judge: Callable[[Config], object] | None) -> Config:
    config = _validated(read(Config, data))
    if judge is not None:
        judge(config)
    return config


def _culprit(
    data: dict[str, Any], sets: Sequence[str], judge: Callable[[Config], object] | None, problem: str
) -> str | None:
    """The override whose key the problem names, else the one after which nothing was right any more.

    None: the file is wrong without them.
    """
    for text in reversed(sets):
        key = text.partition("=")[0].strip()
        if problem.startswith((f"{key}:", f"{key}.", f"{key} ")):
            return text
    for count in reversed(range(len(sets))):
        try:
            _judged(_overridden(data, sets[:count]), judge)
        except ConfigError:
            continue
        return sets[count]
    return None


def validate(config: Config) -> Config:
    """The same with replicas filled in, for a configuration that was built in Python; else `ConfigError`."""
    return _validated(read(Config, effective(config)))


def effective(config: Config) -> dict[str, Any]:
    """Every value by its key in the file, defaults filled in: dicts, lists and scalars, ready for JSON."""
    values: dict[str, Any] = msgspec.to_builtins(config)
    return values


def _overridden(data: dict[str, Any], sets: Sequence[str]) -> dict[str, Any]:
    """The parsed file with all of them set, in order; the file's own tables are left alone."""
    changed = copy.deepcopy(data)
    for text in sets:
        _override(changed, text)
    return changed


def _override(data: dict[str, Any], text: str) -> None:
    """Set one value in the parsed file."""
    key, equals, raw = text.partition("=")
    steps = key.strip().split(".")
    if not equals or not all(steps):
        raise ConfigError(f"--set {text!r}: KEY=VALUE was expected, such as stage.talker.replicas=2")
    table = data
    if steps[0] in ("stage", "edge"):
        if len(steps) < 3:
            raise ConfigError(f"--set {text!r}: stage.NAME.KEY=VALUE or edge.FROM->TO.KEY=VALUE was expected")
        table = _named_table(data, steps[0], steps[1], text)
        steps = steps[2:]
    for step in steps[:-1]:
        table = table.setdefault(step, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {text!r}: {step!r} is a value, not a table that holds others")
    try:
        table[steps[-1]] = parse_value(raw.strip())
    except ConfigError as error:
        raise ConfigError(f"--set {text!r}: {error}") from None


def _named_table(data: dict[str, Any], kind: str, name: str, text: str) -> dict[str, Any]:
    """The `[[stage]]` or `[[edge]]` of that name."""
    section = StageConfig if kind == "stage" else EdgeConfig
    tables = data.get(kind, [])
    by_label = {label(section, table): table for table in tables} if isinstance(tables, list) else {}
    if name not in by_label:
        raise ConfigError(f"--set {text!r}: no {kind} {name!r}: {nearest(name, filter(None, by_label))}")
    found: dict[str, Any] = by_label[name]
    return found


# --- The whole -----------------------------------------------------------------------------------------------------


def _validated(config: Config) -> Config:
    """The configuration with replicas filled in, or `BadValueError`."""
    if not config.stage:
        raise BadValueError("stage", "empty: at least one [[stage]] was expected")
    names = [stage.name for stage in config.stage]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise BadValueError("stage", f"two stages are named {twice[0]!r}: each needs a name of its own")
    _check_edges(config.edge, names)
    _check_acyclic(config.edge)
    if not any(stage.final_output for stage in config.stage):
        raise BadValueError(
            "stage", 'no stage has a final_output, so nothing could be asked for: "text" or "audio" on one was expected'
        )
    _check_router(config.router)
    for stage in config.stage:
        _check_devices(stage)
    return msgspec.structs.replace(config, stage=[_with_replicas(stage) for stage in config.stage])


def _check_edges(edges: Sequence[EdgeConfig], names: Sequence[str]) -> None:
    seen = set()
    for edge in edges:
        key = f"edge.{edge.source}->{edge.target}"
        for end, name in (("from", edge.source), ("to", edge.target)):
            if name not in names:
                raise BadValueError(f"{key}.{end}", f"no stage is named {name!r}: {nearest(name, names)}")
        if edge.source == edge.target:
            raise BadValueError(key, "a stage cannot feed itself: two different stages were expected")
        if (edge.source, edge.target) in seen:
            raise BadValueError(key, "stated twice: one edge between two stages was expected")
        seen.add((edge.source, edge.target))


def _check_acyclic(edges: Sequence[EdgeConfig]) -> None:
    graph = graphlib.TopologicalSorter[str]()
    for edge in edges:
        graph.add(edge.target, edge.source)
    try:
        graph.prepare()
    except graphlib.CycleError as error:
        cycle = " -> ".join(error.args[1])
        raise BadValueError("edge", f"the stages form a cycle, {cycle}: a graph without one was expected") from None


def _check_devices(stage: StageConfig) -> None:
    for entry in stage.devices:
        if isinstance(entry, list) and (len(set(entry)) < len(entry) or ("cpu" in entry and len(entry) > 1)):
            raise BadValueError(
                f"stage.{stage.name}.devices", f"{json.dumps(entry)}: for one replica, different GPUs were expected"
            )


def _with_replicas(stage: StageConfig) -> StageConfig:
    devices = len(stage.devices)
    if stage.replicas and devices and stage.replicas != devices:
        raise BadValueError(
            f"stage.{stage.name}.replicas",
            f"{stage.replicas}, but devices has {devices}: one device a replica was expected "
            "(name a device again where replicas share it, or leave replicas out)",
        )
    return msgspec.structs.replace(
        stage,
        replicas=stage.replicas or devices or 1,
        max_registered=_registered(stage),
    )


def _registered(stage: StageConfig) -> int:
    if 0 < stage.max_registered < stage.max_inflight:
        raise BadValueError(
            f"stage.{stage.name}.max_registered",
            f"{stage.max_registered}: at least max_inflight ({stage.max_inflight}) was expected, or 0",
        )
    return stage.max_registered or min(4 * stage.max_inflight, MOST)


def _check_router(router: RouterConfig) -> None:
    if router.heartbeat_timeout_s < 2 * router.heartbeat_interval_s:
        raise BadValueError(
            "router.heartbeat_timeout_s",
            f"{router.heartbeat_timeout_s:g}: at least two heartbeats "
            f"(2 x heartbeat_interval_s = {2 * router.heartbeat_interval_s:g}) were expected",
        )
    if router.slow_reader_grace_s < (least_s := round(3 * router.heartbeat_interval_s, 9)):
        raise BadValueError(
            "router.slow_reader_grace_s",
            f"{router.slow_reader_grace_s:g}: at least three heartbeats (3 x heartbeat_interval_s = {least_s:g}) were "
            "expected, or a pause of the router is taken for its callers'",
        )
    if router.redrive == "wait" and router.redrive_wait_s <= router.restart_delay_s:
        raise BadValueError(
            "router.redrive_wait_s",
            f'{router.redrive_wait_s:g}: with redrive = "wait", more than restart_delay_s '
            f"({router.restart_delay_s:g}) was expected: no replica is back sooner",
        )
    port = router.remote.rpartition(":")[2]
    if router.remote and not 0 < int(port) < 1 << 16:
        raise BadValueError("router.remote", f"port {port}: a port from 1 to 65535 was expected")
    if router.trace_otlp and not router.trace:
        raise BadValueError(
            "router.trace_otlp", "with trace = false there is nothing to send: one of both was expected"
        )
    if problem := _url_problem(router.trace_otlp):
        raise BadValueError("router.trace_otlp", f"{router.trace_otlp}: {problem}")
    if router.max_restart_delay_s < router.restart_delay_s:
        raise BadValueError(
            "router.max_restart_delay_s",
            f"{router.max_restart_delay_s:g}: at least restart_delay_s ({router.restart_delay_s:g}) was expected",
        )


def _url_problem(url: str) -> str | None:
    """What is wrong with a URL of the right form."""
    try:
        parts = urlsplit(url)
        usable = not url or (bool(parts.hostname) and parts.port != 0)
    except ValueError as error:
        return str(error)
    return None if usable else "a host, and a port from 1 to 65535 or none, were expected"
