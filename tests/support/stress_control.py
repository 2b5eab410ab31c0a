"""The negative control of the stress: views whose lease is given back early, while the engine still reads them.

Armed by an environment variable that nothing but this module reads.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from omnizmq.shm.leases import Ended

RELEASE_EARLY = "OMNIZMQ_STRESS_RELEASE_EARLY"


def arm() -> None:
    """In a worker, before its engine is made: from here on every view is given back as it is taken."""
    if os.environ.get(RELEASE_EARLY):
        from omnizmq.shm import ring

        ring.leased = _given_back


def _given_back(payload: NDArray[np.uint8], seq: int, ended: Ended) -> NDArray[np.uint8]:
    ended.put(seq)
    return payload
