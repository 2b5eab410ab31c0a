"""How the verdict and all who show it say a length of time. Pure."""

from __future__ import annotations


def duration(ms: float) -> str:
    """`3.4 ms`, `812 ms`, `12.3 s`, `4 min 5 s`, `2 h 3 min`."""
    if ms < 10:
        return f"{max(ms, 0.0):.1f} ms"
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    seconds = round(ms / 1000)
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"
