"""Names of shared memory are unlinked when all who have them are dead, also when their group was killed at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from support.running import eventually

SCRIPT = """
import multiprocessing, os, time
from multiprocessing import shared_memory
from omnizmq.workers.engines.vllm import tracker

tracker.start()
before = set(os.listdir("/dev/shm"))

def child():
    made = shared_memory.SharedMemory(create=True, size=100)
    print(made.name, flush=True)
    time.sleep(600)

memory = shared_memory.SharedMemory(create=True, size=100)
lock = multiprocessing.get_context("spawn").Lock()
print(memory.name, lock._semlock.name.replace("/", "sem."), flush=True)
multiprocessing.get_context("fork").Process(target=child).start()
time.sleep(600)
"""


def test_what_a_killed_group_had_is_gone() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    with process:
        names = [*process.stdout.readline().split(), *process.stdout.readline().split()]
        assert len(names) == 3
        assert all(os.path.exists(f"/dev/shm/{name}") for name in names)
        os.killpg(process.pid, signal.SIGKILL)
    assert eventually(lambda: not any(os.path.exists(f"/dev/shm/{name}") for name in names)), names
