"""Ways that frames take: one for each direction of each connection (the model is in the package's docstring).

A frame's delay, and whether it comes again, hang on its name: the way, the kind of frame, the request, and how many of
these went before. So what is left out of a story leaves the rest as it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec

from omnizmq import protocol as wire
from omnizmq.errors import ProtocolError
from sim.schedule import Schedule, chance, share
from sim.story import Story

_ONCE = (
    wire.Submit,
    wire.SubmitStage,
    wire.RingOffer,
    wire.Delivery,
    wire.Terminal,
    wire.Refused,
    wire.Welcome,
    wire.AbortAck,
    wire.Operate,
    wire.Operated,
    wire.Bye,
)
"""Frames that no connection repeats."""

_QUIET = (wire.Heartbeat, wire.Ping)
"""Frames that always go."""

Log = Callable[[str, object], None]


class Network:
    """`flying`: frames under way. `repeated`: names of those that came again."""

    def __init__(self, story: Story, schedule: Schedule, log: Log | None) -> None:
        self.story = story
        self.schedule = schedule
        self.log = log
        self.flying = 0
        self.garbled = 0
        self.repeated: list[str] = []
        self.only = None if story.only is None else set(story.only)

    def delay(self, dice: int) -> float:
        """From 32 bits."""
        net = self.story.net
        part = (dice & 0xFFFF) / 0x10000
        delay = net.base_s + net.spread_s * part * part * part
        return delay + net.stall_s if (dice >> 16 & 0xFF) < net.stall * 256 else delay

    def repeats(self, name: str, dice: int) -> bool:
        if self.only is not None:
            return name in self.only
        return (dice >> 24) < self.story.net.repeats * 256


class Way:
    """`arrive` gets each frame. Once it is cut, nothing arrives any more but what is replayed to who takes it."""

    def __init__(
        self,
        network: Network,
        name: str,
        decoder: msgspec.msgpack.Decoder[Any],
        arrive: Callable[[Any], None],
        *,
        replays: bool = False,
        stopped_until: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.name = name
        self._network = network
        self._arrive = arrive
        self._packer = wire.Packer()
        self._unpacker: wire.Unpacker[Any] = wire.Unpacker(decoder)
        self._last = 0.0
        self._cut: float | None = None
        self._replays = replays  # also when its sender is dead
        self._stopped_until = stopped_until  # the receiver: what has arrived waits for it
        self._counts: dict[tuple[type, str], int] = defaultdict(int)

    def put(self, frame: msgspec.Struct) -> None:
        """Raises `ProtocolError` for what cannot be sent."""
        network, kind = self._network, type(frame)
        request_id = getattr(frame, "request_id", "")
        self._counts[(kind, request_id)] += 1
        name = f"{self.name} {kind.__name__} {request_id} {self._counts[(kind, request_id)]}"
        dice = chance(network.story.seed, name)
        self._last = at = max(self._last, network.schedule.now + network.delay(dice))
        if self._cut is not None:
            return
        garbled = network.story.net.garbage and (dice & 0xFF) < network.story.net.garbage * 256
        again = not isinstance(frame, _ONCE) and network.repeats(name, dice)
        loud = not isinstance(frame, _QUIET)
        for message in self._packer.pack(frame):
            if garbled:
                network.schedule.at(at, self._garbage, message[:-1])
            network.flying += loud
            network.schedule.at(at, self._arrives, message, loud, name if again else "")

    def cut(self, at: float) -> None:
        """What has not arrived by then is lost."""
        if self._cut is None:
            self._cut = at

    def _arrives(self, message: bytes, loud: bool, again: str) -> None:
        """`again`: its name, if it will come again: what was lost never does."""
        network = self._network
        if self._cut is not None and network.schedule.now > self._cut:
            network.flying -= loud
            return
        if (until := self._stopped_until()) > network.schedule.now:
            network.schedule.at(until, self._arrives, message, loud, again)
            return
        network.flying -= loud
        if again:
            network.repeated.append(again)
            later = network.story.net.repeat_s * share(network.story.seed, again + " again")
            network.flying += loud
            network.schedule.after(later, self._arrives_again, message, loud)
        self._take(message)

    def _arrives_again(self, message: bytes, loud: bool) -> None:
        self._network.flying -= loud
        if self._cut is None or self._replays:
            self._take(message)

    def _take(self, message: bytes) -> None:
        frame = self._unpacker.unpack(message)
        if frame is None:
            return
        if self._network.log is not None and not isinstance(frame, _QUIET):
            self._network.log(self.name, frame)
        self._arrive(frame)

    def _garbage(self, message: bytes) -> None:
        """A frame that was cut short, and one that never was any: both are refused and harm nothing."""
        for data in (message, b"\xc1" + message):
            try:
                self._unpacker.unpack(data)
            except ProtocolError:
                self._network.garbled += 1
            else:
                raise AssertionError(f"{self.name}: {data!r} was taken for a frame")
