"""omnizmq serves omni-modality models: stages in processes of their own, every request ended exactly once.

    from omnizmq import AsyncClient, Client

Nothing is imported before it is used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers know it; `typing` would be imported before an interrupt can be answered
if TYPE_CHECKING:
    from omnizmq.frontend.client import AsyncClient
    from omnizmq.frontend.output import RequestOutput
    from omnizmq.frontend.sync import Client
    from omnizmq.protocol import TokenLogprob

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "RequestOutput", "TokenLogprob", "__version__"]

_HOMES = {
    "AsyncClient": "omnizmq.frontend.client",
    "Client": "omnizmq.frontend.sync",
    "RequestOutput": "omnizmq.frontend.output",
    "TokenLogprob": "omnizmq.protocol",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'omnizmq' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
