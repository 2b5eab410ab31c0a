"""The deployment that is soaked: a chain with a shortcut, so its last stage joins two edges; windows and limits small
enough that minutes reach them.

Two replicas a stage. Those in `ELDERS` are never killed nor restarted: what leaks slowly is seen in them.
"""

from __future__ import annotations

HEARTBEAT_S = 0.5
SILENCE_S = 5.0
"""A worker that is stopped for longer is killed by its router."""

GRACE_S = 3.0
"""Of slow readers."""

INPUT_TIMEOUT_S = 8.0
WINDOW = 16
TRACE_MIB = 2
TEXT, MIDDLE, SOUND = "thinker", "talker", "code2wav"
SOUND_BYTES = 4096
"""Of one audio output: float32, so a quarter as many samples."""

FAULTY, QUIET = "faulty", "quiet"
"""An external id that contains it: the thinker fails, the talker falls silent, both before their second output."""

ELDERS = (f"{TEXT}/1", f"{SOUND}/1")


def toml(name: str) -> str:
    """Chunks of the first two stages go by ring. A chunk of the thinker has two consumers."""
    return f"""
name = "{name}"

[router]
heartbeat_interval_s = {HEARTBEAT_S}
heartbeat_timeout_s = {SILENCE_S}
output_window = {WINDOW}
slow_reader_grace_s = {GRACE_S}
redrive = "wait"
max_attempts = 50
restart_delay_s = 0.05
max_restart_delay_s = 0.5
trace_max_mib = {TRACE_MIB}

[[stage]]
name = "{TEXT}"
engine = "synthetic"
final_output = "text"
replicas = 2
max_inflight = 16
options = {{ echo = true, chunk_bytes = 100_000, interval_ms = 4, fail_at = 2, fault_only = "{FAULTY}" }}

[[stage]]
name = "{MIDDLE}"
engine = "synthetic"
replicas = 2
max_inflight = 16
policy = "affinity"
options = {{ chunk_bytes = 150_000, silent_at = 2, fault_only = "{QUIET}" }}

[[stage]]
name = "{SOUND}"
engine = "synthetic"
final_output = "audio"
replicas = 2
max_inflight = 16
policy = "affinity"
options = {{ chunk_bytes = {SOUND_BYTES} }}

[[edge]]
from = "{TEXT}"
to = "{MIDDLE}"
ring_mib = 8
input_timeout_s = {INPUT_TIMEOUT_S}

[[edge]]
from = "{TEXT}"
to = "{SOUND}"
ring_mib = 8
input_timeout_s = {INPUT_TIMEOUT_S}

[[edge]]
from = "{MIDDLE}"
to = "{SOUND}"
ring_mib = 8
input_timeout_s = {INPUT_TIMEOUT_S}
"""
