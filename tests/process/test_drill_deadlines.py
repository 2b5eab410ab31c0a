"""What waits too long, wherever it is: requests with a deadline (B2), edges on which nothing comes (R4), steps that do
not end (F2); and who goes first of those that wait (B2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from support.drill import (
    FAST,
    STAGES,
    Beside,
    assert_part,
    assert_whole,
    back,
    bound_together,
    ended,
    healthy,
    heard,
    play,
    replica,
    sounds,
    status_when,
    words,
)
from support.running import Asking, launched, text_of

from omnizmq import AsyncClient, RequestOutput
from omnizmq.errors import DeadlineExceededError

pytestmark = pytest.mark.usefixtures("no_leaks")

SOON_S = 0.6
PATIENT = ("router.heartbeat_timeout_s=60",)
"""Nobody who is stopped is given up for it."""

PROMPT = words("w", 5)


class TestDeadlines:
    """`quiet`: the Thinker says two words; `mute`: none; `late`: Code2Wav's report does not come."""

    async def passes(self, client: AsyncClient, name: str, deadline_s: float = SOON_S, **options: Any) -> Asking:
        """A request that its deadline ends with that error."""
        asking = Asking(client, PROMPT, request_id=name, deadline_s=deadline_s, **options)
        error = await ended(asking, "deadline_exceeded", None)
        assert isinstance(error, DeadlineExceededError)
        assert error.message == f"the request's deadline of {deadline_s} s has passed"
        assert_part(asking.outputs, PROMPT)
        return asking

    def test_b2_it_passes_while_streaming_and_while_waiting_for_input(self) -> None:
        """Code2Wav waits for the first chunk of a Talker whose Thinker is silent, or of a silent Talker."""
        sets = (
            "stage.thinker.options.silent_at=3",
            "stage.thinker.options.fault_only=quiet",
            "stage.talker.options.silent_at=1",
            "stage.talker.options.fault_only=mute",
        )

        async def scenario(client: AsyncClient) -> None:
            async with healthy(client):
                streaming, waiting = await asyncio.gather(
                    self.passes(client, "quiet"), self.passes(client, "mute", modalities=["audio"])
                )
                assert (heard(streaming.outputs), sounds(streaming.outputs)) == (2, 2)
                assert waiting.outputs == []

        with launched("synthetic", *FAST, *sets, "stage.thinker.options.interval_ms=30") as deployment:
            play(deployment, scenario)
            assert deployment.stop() == 0

    def test_b2_it_passes_in_the_routers_queue_and_in_a_workers(self) -> None:
        """At the Talker, which is busy with one that says nothing: two have their text, a third has not begun."""
        sets = (
            "stage.talker.options.silent_at=1",
            "stage.talker.options.fault_only=mute",
            "stage.talker.max_inflight=1",
            "stage.talker.max_registered=3",
            "edge.thinker->talker.mode=payload",  # who has its place has all its input, and keeps it
        )

        async def scenario(client: AsyncClient) -> None:
            async with bound_together(client, 3):
                holder = Asking(client, PROMPT, request_id="mute")
                behind = [asyncio.create_task(self.passes(client, f"behind-{n}", 1.5)) for n in range(2)]
            for task in behind:
                asking = await task
                assert (text_of(asking.outputs), sounds(asking.outputs)) == (PROMPT, 0)
            queued = asyncio.create_task(self.passes(client, "queued"))
            beside = Beside(client, ["well"], 12, modalities=["text"])
            await beside.are_right()  # it needs no Talker
            assert (await queued).outputs == []
            assert not holder.task.done()
            assert await client.abort("mute") == 1
            assert await holder.error() is None

        with launched("synthetic", *FAST, *sets) as deployment:
            play(deployment, scenario)
            assert deployment.stop() == 0

    def test_b2_it_passes_while_paused(self) -> None:
        async def scenario(client: AsyncClient) -> None:
            outputs = client.generate(words("w", 100), modalities=["text"], request_id="slow", deadline_s=SOON_S)
            text = (await anext(outputs)).text or ""
            beside = Beside(client, [f"well-{n}" for n in range(4)], 40)
            await status_when(client, lambda status: status["counters"]["failed"] == 1)
            for _ in range(7):
                text += (await anext(outputs)).text or ""
            assert text == words("w", 8)  # what was delivered stands
            with pytest.raises(DeadlineExceededError):
                await anext(outputs)
            await beside.are_right()

        with launched("synthetic", *FAST, "router.output_window=8") as deployment:
            play(deployment, scenario)
            assert "paused" in [event["event"] for event in deployment.trace("slow")["events"]]
            assert deployment.stop() == 0


class TestSilentEdges:
    TIMEOUTS = ("edge.thinker->talker.input_timeout_s=0.5", "edge.talker->code2wav.input_timeout_s=0.5")
    ONE_PLACE = ("stage.talker.max_inflight=1", "stage.talker.max_registered=64")

    @pytest.mark.parametrize(
        "busy",
        [
            (*ONE_PLACE, "stage.talker.options.interval_ms=80"),  # four words a request: the last waits for 2.5 s
            ("stage.talker.options.slow_at=2", "stage.talker.options.fault_only=hog"),
        ],
        ids=["one place", "a long step"],
    )
    def test_r4_eight_requests_queued_behind_a_busy_talker_do_not_end(self, busy: Sequence[str]) -> None:
        """They wait for longer than their edges may be silent."""

        async def scenario(client: AsyncClient) -> None:
            async with bound_together(client, 10):
                hogs = [Asking(client, words("hog", 4), request_id=f"hog-{n}") for n in range(2)]
                beside = Beside(client, [f"well-{n}" for n in range(8)], 4)
            await beside.are_right()
            for hog in hogs:
                assert await hog.error() is None
                assert_whole(hog.outputs, words("hog", 4))

        with launched("synthetic", *FAST, *PATIENT, *self.TIMEOUTS, *busy) as deployment:
            play(deployment, scenario)
            counters = deployment.status()["counters"]
            assert (counters["failed"], counters["finished"]) == (0, 10)
            assert deployment.stop() == 0

    def test_r4_one_that_falls_silent_among_them_is_found_and_the_queue_moves_on(self) -> None:
        """It has the only place; whoever waits behind it has a right answer afterwards."""
        silent = ("stage.talker.options.silent_at=3", "stage.talker.options.fault_only=quiet")

        async def scenario(client: AsyncClient) -> None:
            async with bound_together(client, 9):
                quiet = Asking(client, PROMPT, request_id="quiet")
                beside = Beside(client, [f"well-{n}" for n in range(8)], 4)
            error = await ended(quiet, "input_timeout", "talker")
            assert "edge talker->code2wav: talker/0 sent nothing" in error.message
            assert "after chunk 2" in error.message
            assert (text_of(quiet.outputs), sounds(quiet.outputs)) == (PROMPT, 2)
            await beside.are_right()

        with launched("synthetic", *FAST, *PATIENT, *self.TIMEOUTS, *self.ONE_PLACE, *silent) as deployment:
            play(deployment, scenario)
            assert deployment.stop() == 0

    def test_r4_of_two_silences_the_most_upstream_one_is_named(self) -> None:
        """The Talker is silent because its Thinker is, and has the shorter deadline."""
        sets = (
            "stage.thinker.options.silent_at=3",
            "stage.thinker.options.fault_only=quiet",
            "edge.thinker->talker.input_timeout_s=1",
            "edge.talker->code2wav.input_timeout_s=0.3",
        )

        async def scenario(client: AsyncClient) -> None:
            error = await ended(Asking(client, PROMPT, request_id="quiet"), "input_timeout", "thinker")
            assert "edge thinker->talker: thinker/0 sent nothing" in error.message
            assert "after chunk 2" in error.message

        with launched("synthetic", *FAST, *sets) as deployment:
            play(deployment, scenario)
            assert deployment.stop() == 0


class TestStuckSteps:
    def test_f2_one_that_loads_for_longer_than_a_step_may_take_is_left_alone(self) -> None:
        """Also for longer than it may be silent; its requests wait for it."""
        sets = (
            *(f"stage.{stage}.step_timeout_s=1" for stage in STAGES),
            "stage.talker.options.hang_at=3",
            "stage.talker.options.fault_only=hang",
            "stage.talker.options.fault_once=true",
            "stage.talker.options.start_delay_ms=2500",
            "router.redrive=wait",
        )

        async def scenario(client: AsyncClient) -> None:
            struck = Asking(client, PROMPT, request_id="hang")
            await status_when(client, lambda status: status["stages"]["talker"]["replicas"][0]["incarnation"] == 2)
            text_alone = Beside(client, ["well"], 12, modalities=["text"])
            await text_alone.are_right()
            assert await struck.error() is None
            assert_whole(struck.outputs, PROMPT, redriven=True)
            await back(client, "talker/0", 2)
            assert (await replica(client, "talker/0"))["restarts"] == 1

        with launched("synthetic", *FAST, *sets) as deployment:
            play(deployment, scenario)
            trace = deployment.trace("hang")
            (lost,) = [event for event in trace["events"] if event["event"] == "replica_lost"]
            assert lost["replica"] == "talker/0"
            assert lost["reason"].startswith("stuck in a step for ")
            assert deployment.stop() == 0

    def test_f2_a_stuck_worker_takes_the_requests_of_its_step_along_and_nobody_elses(self) -> None:
        sets = (
            "stage.talker.step_timeout_s=1",
            "stage.talker.options.hang_at=2",
            "stage.talker.options.fault_only=hang",
            "stage.talker.replicas=2",
            "stage.talker.policy=round_robin",
            "stage.thinker.options.interval_ms=20",
            "router.redrive=never",
            *PATIENT,
        )

        async def scenario(client: AsyncClient) -> None:
            pid = (await replica(client, "talker/0"))["pid"]
            names = ["hang-0", "well-1", "with-0", "well-2"]
            async with bound_together(client, len(names)):  # in turn to the one Talker and to the other
                asked = {name: Asking(client, words(name, 20), request_id=name) for name in names}
            for name in ("hang-0", "with-0"):
                error = await ended(asked[name], "replica_lost", "talker")
                assert error.message.startswith("talker/0 died: stuck in a step for ")
                assert_part(asked[name].outputs, words(name, 20))
            for name in ("well-1", "well-2"):
                assert await asked[name].error() is None
                assert_whole(asked[name].outputs, words(name, 20))
            await back(client, "talker/0", 2)
            assert (await replica(client, "talker/0"))["pid"] != pid

        with launched("synthetic", *FAST, *sets) as deployment:
            play(deployment, scenario)
            assert deployment.stop() == 0


class Racer(Asking):
    """It notes in `came`, which all share, when its first output of that modality is there."""

    def __init__(self, client: AsyncClient, priority: int, *, number: int, modality: str, came: list[int]) -> None:
        self._number, self._modality, self._came = number, modality, came
        super().__init__(client, PROMPT, priority=priority)

    async def _read(self, outputs: AsyncIterator[RequestOutput]) -> None:
        async for output in outputs:
            self.outputs.append(output)
            if output.modality == self._modality and self._number not in self._came:
                self._came.append(self._number)


def race(
    client: AsyncClient, priorities: Sequence[int], modality: str, came: list[int], *, begin: int = 0
) -> list[Racer]:
    """Requests of these priorities, asked in this order; who came first, as it becomes known, goes into `came`."""
    return [
        Racer(client, priority, number=number, modality=modality, came=came)
        for number, priority in enumerate(priorities, begin)
    ]


class TestPriorities:
    """Nobody ages here within the test, or all do at once."""

    PRIORITIES = (0, 5, -3, 5, 100, 0, -100, 1)
    NEVER_AGES = "router.priority_age_s=86400"

    async def ended_well(self, asked: Sequence[Asking]) -> None:
        for asking in asked:
            assert await asking.error() is None
            assert_whole(asking.outputs, PROMPT)

    def expected(self) -> list[int]:
        return sorted(range(len(self.PRIORITIES)), key=lambda number: (-self.PRIORITIES[number], number))

    def test_b2_higher_goes_first_out_of_the_routers_queue_and_equals_in_their_order(self) -> None:
        sets = (
            "stage.thinker.max_inflight=1",
            "stage.thinker.options.silent_at=2",
            "stage.thinker.options.fault_only=quiet",
            "stage.thinker.options.interval_ms=10",
        )

        async def scenario(client: AsyncClient) -> None:
            holder = Asking(client, PROMPT, request_id="quiet")
            await holder.has(1)
            came: list[int] = []
            asked = race(client, self.PRIORITIES, "text", came)
            await status_when(client, lambda status: status["queued"] == len(asked))
            assert await client.abort("quiet") == 1
            await self.ended_well(asked)
            assert came == self.expected()
            assert await holder.error() is None

        with launched("synthetic", *FAST, *sets, self.NEVER_AGES) as deployment:
            play(deployment, scenario)
            assert deployment.stop() == 0

    def test_b2_higher_goes_first_at_a_worker_whose_places_are_taken(self) -> None:
        sets = (
            "stage.talker.max_inflight=1",
            "stage.talker.max_registered=64",
            "stage.talker.options.silent_at=2",
            "stage.talker.options.fault_only=quiet",
            "stage.talker.options.interval_ms=10",
            "edge.thinker->talker.mode=payload",
            *PATIENT,
        )

        async def scenario(client: AsyncClient) -> None:
            everybody = len(self.PRIORITIES) + 1
            came: list[int] = []
            async with bound_together(client, everybody):
                holder = Asking(client, PROMPT, request_id="quiet")
                asked = race(client, self.PRIORITIES, "audio", came)
            await status_when(client, lambda status: status["stages"]["talker"]["replicas"][0]["active"] == everybody)
            await holder.has(6)  # a sound: it has the place
            assert not came
            assert await client.abort("quiet") == 1
            await self.ended_well(asked)
            assert came == self.expected()
            assert await holder.error() is None

        with launched("synthetic", *FAST, *sets, self.NEVER_AGES) as deployment:
            play(deployment, scenario)
            assert deployment.stop() == 0

    def test_b2_waiting_raises_it_so_that_nothing_starves(self) -> None:
        """When the others come, the first has waited for ten times as long as they are ahead of it."""
        sets = (
            "stage.thinker.max_inflight=1",
            "stage.thinker.options.silent_at=2",
            "stage.thinker.options.fault_only=quiet",
            "stage.thinker.options.interval_ms=50",
            "router.priority_age_s=0.01",
        )

        async def scenario(client: AsyncClient) -> None:
            holder = Asking(client, PROMPT, request_id="quiet")
            await holder.has(1)
            came: list[int] = []
            first = race(client, [0], "text", came)
            await status_when(client, lambda status: status["queued"] == 1)
            await asyncio.sleep(0.5)
            others = race(client, [5, 5, 5], "text", came, begin=1)
            await status_when(client, lambda status: status["queued"] == 4)
            assert not came
            assert await client.abort("quiet") == 1
            await self.ended_well([*first, *others])
            assert came == [0, 1, 2, 3]
            assert await holder.error() is None

        with launched("synthetic", *FAST, *sets) as deployment:
            play(deployment, scenario)
            assert deployment.stop() == 0
