"""iceoryx2 (Eclipse Foundation, Apache-2.0 or MIT): publish-subscribe in shared memory, and an event that wakes.

For the benchmark alone: `pip install iceoryx2`. One copy into a loaned sample, as omnizmq copies into its ring.
"""

from __future__ import annotations

import ctypes
import importlib.util
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from chunks_job import UNDER_WAY
from chunks_peers import RECEIVE_TIMEOUT_MS, Bytes, Pair

ABSENT = "iceoryx2 is not installed, and left out: `pip install iceoryx2` brings it (for this benchmark alone)"


def is_there() -> bool:
    return importlib.util.find_spec("iceoryx2") is not None


class Iceoryx(Pair):
    """Its files and shared memory bear a prefix of this run's own, and what it forgets is removed by it."""

    def __init__(self, folder: Path, largest: int) -> None:
        self._prefix = _prefix(folder)
        super().__init__("iceoryx2", "1", folder, largest, Sending, Receiving)

    def close(self) -> None:
        super().close()
        for left in Path("/dev/shm").glob(f"{self._prefix}*"):
            with suppress(FileNotFoundError):
                left.unlink()


def _prefix(folder: Path) -> str:
    return f"{folder.parent.name}_{folder.name}_"


class _Service:
    """A node of this process, and the two services that both ends open."""

    def __init__(self, folder: Path) -> None:
        import iceoryx2

        self.iox: Any = iceoryx2
        self.iox.set_log_level(self.iox.LogLevel.Error)
        config = self.iox.config.default()
        config.global_cfg.root_path = self.iox.Path.new(str(folder))
        config.global_cfg.prefix = self.iox.FileName.new(_prefix(folder))
        builder = self.iox.NodeBuilder.new().config(config).signal_handling_mode(self.iox.SignalHandlingMode.Disabled)
        self.node = builder.create(self.iox.ServiceType.Ipc)
        name = self.iox.ServiceName.new("chunks")
        samples = self.node.service_builder(name).publish_subscribe(self.iox.Slice[ctypes.c_uint8])
        samples = samples.enable_safe_overflow(False).subscriber_max_buffer_size(UNDER_WAY)
        self.samples = samples.subscriber_max_borrowed_samples(2).open_or_create()
        self.events = self.node.service_builder(name).event().open_or_create()


def _array(address: int, size: int) -> Bytes:
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)


class Sending:
    """A `Sender`."""

    def __init__(self, folder: Path, largest: int) -> None:
        self._service = service = _Service(folder)
        publisher = service.samples.publisher_builder().initial_max_slice_len(largest).max_loaned_samples(1)
        blocking = service.iox.BackpressureStrategy.RetryUntilDelivered
        self._publisher = publisher.backpressure_strategy(blocking).create()
        self._notifier = service.events.notifier_builder().create()

    def send(self, array: Bytes) -> None:
        sample = self._publisher.loan_slice_uninit(array.nbytes)
        np.copyto(_array(sample.payload_ptr, array.nbytes), array)
        sample.assume_init().send()
        self._notifier.notify()

    def freed(self, chunks: int) -> None:
        """iceoryx2 has its own accounts."""

    def close(self) -> None:
        self._notifier.delete()
        self._publisher.delete()
        del self._service


class Receiving:
    """A `Receiver`."""

    def __init__(self, folder: Path) -> None:
        self._service = service = _Service(folder)
        self._subscriber = service.samples.subscriber_builder().buffer_size(UNDER_WAY).create()
        self._listener = service.events.listener_builder().create()
        self._timeout = service.iox.Duration.from_millis(RECEIVE_TIMEOUT_MS // 10)
        self._sample: Any = None

    def receive(self) -> Bytes:
        deadline = time.monotonic() + RECEIVE_TIMEOUT_MS / 1000
        while (sample := self._subscriber.receive()) is None:
            if time.monotonic() > deadline:
                raise SystemExit("iceoryx2: nothing came")
            self._listener.timed_wait(self._timeout)  # ends early at times, without an event
        self._sample = sample
        return _array(sample.payload_ptr, sample.payload().len())

    def release(self) -> None:
        self._sample.delete()

    def close(self) -> None:
        self._listener.delete()
        self._subscriber.delete()
        del self._service
