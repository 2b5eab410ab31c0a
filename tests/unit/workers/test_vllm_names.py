"""Names of shared memory that nobody needs any more are unlinked, and no others."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import multiprocessing, os
from multiprocessing import resource_tracker, shared_memory
from omnizmq.workers.engines.vllm import names

before = set(os.listdir("/dev/shm"))
memory = shared_memory.SharedMemory(create=True, size=100)
lock = multiprocessing.get_context("spawn").Lock()
made = set(os.listdir("/dev/shm")) - before
assert len(made) == 2, made
names.unlink()
assert not made & set(os.listdir("/dev/shm"))
memory.buf[0] = 7
assert lock.acquire(timeout=1)
resource_tracker.unregister(memory._name, "shared_memory")
resource_tracker.unregister(lock._semlock.name, "semaphore")
os._exit(0)
"""


def test_its_own_are_gone_and_work_on_and_those_of_others_stay() -> None:
    others = f"/dev/shm/psm_of_another_{os.getpid()}"
    with open(others, "wb"):
        try:
            done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert os.path.exists(others)
        finally:
            os.unlink(others)
