"""`AsyncClient` at the socket: credits that go (B1), callers that are cancelled at once (A7), an operator's orders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from support.running import Asking, collect, eventually, until
from support.scripted_router import scripted_router

from omnizmq import AsyncClient, Client
from omnizmq import protocol as wire
from omnizmq.errors import InvalidRequestError, ReplicaLostError, RouterLostError
from omnizmq.frontend import client as frontend

pytestmark = pytest.mark.usefixtures("no_leaks")

CALLERS = 500


def says(rid: str, *texts: str) -> list[wire.RouterToClient]:
    return [wire.Delivery(rid, "thinker", "text", wire.Text(text), False) for text in texts]


def ends(rid: str, reason: str = "stop") -> list[wire.RouterToClient]:
    mark = wire.Delivery(rid, "thinker", "text", None, True)
    return [mark, wire.Terminal(rid, "thinker", "text", reason, None, {}, [], {})]


def one_word(frame: wire.ClientToRouter) -> Iterable[wire.RouterToClient]:
    """To a request; it is ended by its abort."""
    if isinstance(frame, wire.Submit):
        return says(frame.request_id, "word")
    return ends(frame.id, "abort") if isinstance(frame, wire.Abort) else []


def first_words(frame: wire.ClientToRouter) -> Iterable[wire.RouterToClient]:
    return says(frame.request_id, *"0123456789") if isinstance(frame, wire.Submit) else []


class TestB1:
    def test_b1_credits_go_when_the_caller_is_back_for_more(self) -> None:
        async def scenario() -> None:
            async with AsyncClient.connect() as client:
                outputs = client.generate("hi", request_id="mine")
                for number in range(10):
                    assert (await anext(outputs)).text == str(number)
                    heard = [frame.outputs for frame in router.heard_of(wire.Consumed)]
                    assert all(said <= number for said in heard)  # the one that it has here is not consumed
                rid = router.heard_of(wire.Submit)[0].request_id
                router.say(*ends(rid))
                assert [output.finished async for output in outputs] == [False, True]
                await client.close()
            expected = [wire.Consumed(rid, "thinker", consumed) for consumed in (2, 4, 6, 8)]
            await until(lambda: bool(router.heard_of(wire.Bye)))
            assert router.heard_of(wire.Consumed)[:4] == expected
            assert len(router.heard_of(wire.Consumed)) <= 5  # the tenth races the end

        with scripted_router(first_words, window=16) as router:
            asyncio.run(scenario())

    def test_b1_a_caller_that_wants_the_whole_does_not_have_to_read_meanwhile(self) -> None:
        async def scenario() -> None:
            async with AsyncClient.connect() as client:
                asking = Asking(client, "hi", output_kind="final")
                await until(lambda: len(router.heard_of(wire.Consumed)) == 5)
                rid = router.heard_of(wire.Submit)[0].request_id
                assert router.heard_of(wire.Consumed)[-1] == wire.Consumed(rid, "thinker", 10)
                assert asking.outputs == []
                router.say(*ends(rid))
                assert await asking.error() is None
                assert [output.text for output in asking.outputs] == ["0123456789", None]

        with scripted_router(first_words, window=16) as router:
            asyncio.run(scenario())

    def test_b1_the_window_that_is_asked_for_is_the_deployments(self) -> None:
        async def scenario() -> None:
            async with AsyncClient.connect() as client:
                await Asking(client, "hi").has(10)

        with scripted_router(first_words, window=40) as router:
            asyncio.run(scenario())
            assert router.heard_of(wire.Submit)[0].window == 40

    def test_b1_a_credit_that_cannot_go_takes_nothing_from_its_caller(self) -> None:
        """What had come is read to its end, as with any lost router (F6)."""

        async def scenario() -> None:
            async with AsyncClient.connect() as client:
                outputs = client.generate("hi")
                texts = [(await anext(outputs)).text]
                (rid,) = client._table._records
                await until(lambda: len(client._table._records[rid].items) == 9)
                assert client._dealer is not None
                client._dealer._limit = 0  # it takes nothing more
                texts += [(await anext(outputs)).text for _ in range(9)]
                assert texts == list("0123456789")
                with pytest.raises(RouterLostError, match="the router is gone: it does not read"):
                    await anext(outputs)

        with scripted_router(first_words, window=8):
            asyncio.run(scenario())


class TestA7:
    @staticmethod
    async def cancel_all(client: AsyncClient) -> None:
        """Callers that each have an output, and one that has none yet, cancelled in one moment."""
        asking = [Asking(client, "hi", request_id=f"caller-{number}") for number in range(CALLERS)]
        await until(lambda: all(len(one.outputs) == 1 for one in asking))
        assert len(client._table) == CALLERS
        for one in asking:
            one.task.cancel()
        results = await asyncio.gather(*(one.task for one in asking), return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        assert len(client._table) == 0
        assert client._waiting == {}

    def test_a7_500_callers_that_are_cancelled_at_once_each_abort_their_own_request(self) -> None:
        async def scenario() -> None:
            async with AsyncClient.connect() as client:
                await self.cancel_all(client)
                assert client._table.late == 0  # every end was waited for

        with scripted_router(one_word) as router:
            asyncio.run(scenario())
            submitted = [frame.request_id for frame in router.heard_of(wire.Submit)]
            aborted = [frame.id for frame in router.heard_of(wire.Abort)]
            assert len(submitted) == CALLERS
            assert sorted(aborted) == sorted(submitted)

    def test_a7_they_wait_side_by_side_for_a_router_that_does_not_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def scenario() -> None:
            async with AsyncClient.connect() as client:
                await asyncio.wait_for(self.cancel_all(client), CALLERS * frontend.ABORT_WAIT_S / 4)

        def no_end(frame: wire.ClientToRouter) -> Iterable[wire.RouterToClient]:
            return [] if isinstance(frame, wire.Abort) else one_word(frame)

        monkeypatch.setattr(frontend, "ABORT_WAIT_S", 0.3)
        with scripted_router(no_end) as router:
            asyncio.run(scenario())
            assert eventually(lambda: len(router.heard_of(wire.Abort)) == CALLERS)


def answered(error: wire.ErrorInfo | None = None) -> Callable[[wire.ClientToRouter], Iterable[wire.RouterToClient]]:
    def answer(frame: wire.ClientToRouter) -> Iterable[wire.RouterToClient]:
        return [wire.Operated(frame.call, error)] if isinstance(frame, wire.Operate) else []

    return answer


class TestOrders:
    def test_each_says_what_is_to_be_done(self) -> None:
        async def scenario() -> None:
            async with AsyncClient.connect() as client:
                await client.restart("talker")
                await client.restart("talker/1", timeout_s=5, force=True)
                await client.drain("talker/1", timeout_s=0.5)
                await client.resume("talker/1")

        with scripted_router(answered()) as router:
            asyncio.run(scenario())
            assert router.heard_of(wire.Operate) == [
                wire.Operate(1, "restart", "talker", 30.0, False),
                wire.Operate(2, "restart", "talker/1", 5.0, True),
                wire.Operate(3, "drain", "talker/1", 0.5, False),
                wire.Operate(4, "resume", "talker/1", 30.0, False),
            ]

    def test_the_blocking_client_gives_them_too(self) -> None:
        with scripted_router(answered()) as router:
            with Client.connect() as client:
                client.restart("talker", timeout_s=1, force=True)
                client.drain("talker/0", timeout_s=2)
                client.resume("talker/0")
            orders = [
                (order.action, order.target, order.timeout_s, order.force) for order in router.heard_of(wire.Operate)
            ]
            assert orders == [
                ("restart", "talker", 1.0, True),
                ("drain", "talker/0", 2.0, False),
                ("resume", "talker/0", 30.0, False),
            ]

    def test_what_kept_it_from_being_done_is_raised(self) -> None:
        async def scenario() -> None:
            async with AsyncClient.connect() as client:
                with pytest.raises(ReplicaLostError, match="it died meanwhile") as failed:
                    await client.restart("talker")
                assert failed.value.replica == "talker/0"

        lost = wire.ErrorInfo("replica_lost", "it died meanwhile", "talker", "talker/0", True)
        with scripted_router(answered(lost)):
            asyncio.run(scenario())

    def test_it_takes_as_long_as_it_takes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def scenario() -> None:
            async with AsyncClient.connect() as client:
                restarting = asyncio.create_task(client.restart("talker"))
                await until(lambda: bool(router.heard))
                with pytest.raises(RouterLostError, match=r"did not answer within 0\.1 s"):
                    await client.status()  # which has a limit, and began later
                assert not restarting.done()
                router.say(wire.Operated(1, None))
                await restarting

        monkeypatch.setattr(frontend, "CALL_TIMEOUT_S", 0.1)
        with scripted_router(lambda frame: []) as router:  # noqa: ARG005
            asyncio.run(scenario())

    def test_f6_a_router_that_goes_away_ends_the_waiting(self) -> None:
        async def scenario() -> None:
            async with AsyncClient.connect() as client:
                restarting = asyncio.create_task(client.restart("talker"))
                await until(lambda: bool(router.heard))
                router.say(wire.Bye("the deployment has stopped"))
                with pytest.raises(RouterLostError, match="the deployment has stopped"):
                    await restarting

        with scripted_router(lambda frame: []) as router:  # noqa: ARG005
            asyncio.run(scenario())

    @pytest.mark.parametrize(
        ("target", "options", "said"),
        [
            (5, {}, "5 is no stage or replica: these are such as talker and talker/0"),
            ("", {}, "'' is no stage or replica"),
            ("talker/x", {}, "'talker/x' is no stage or replica"),
            ("talker/0\n", {}, r"'talker/0\\n' is no stage or replica"),
            ("\ud800", {}, "is no stage or replica"),
            ("x" * 500, {}, "'x*… is no stage or replica"),
            ("talker", {"timeout_s": "5"}, "timeout_s is '5': seconds from 0 to 86400 are expected"),
            ("talker", {"timeout_s": -1}, "timeout_s is -1"),
            ("talker", {"timeout_s": True}, "timeout_s is True"),
            ("talker", {"timeout_s": float("nan")}, "timeout_s is nan"),
            ("talker", {"timeout_s": float("inf")}, "timeout_s is inf"),
        ],
    )
    def test_one_that_the_router_could_only_drop_is_refused_here(
        self, target: Any, options: dict[str, Any], said: str
    ) -> None:
        async def scenario() -> None:
            async with AsyncClient.connect() as client:
                with pytest.raises(InvalidRequestError, match=said):
                    await client.restart(target, **options)
                await collect(client, "still here")

        def whole(frame: wire.ClientToRouter) -> Iterable[wire.RouterToClient]:
            return ends(frame.request_id) if isinstance(frame, wire.Submit) else []

        with scripted_router(whole) as router:
            asyncio.run(scenario())
            assert router.heard_of(wire.Operate) == []
