"""`omnizmq restart` and `omnizmq drain`: what they order, what they say meanwhile, and how they end."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from support.scripted_router import scripted_router

from omnizmq import cli
from omnizmq import protocol as wire
from omnizmq.commands import operating
from omnizmq.commands.operating import Changes, replicas_of

pytestmark = pytest.mark.usefixtures("no_leaks")


def replica(id_: str, state: str = "ready", **more: Any) -> dict[str, Any]:
    empty = {"pid": 100, "inflight": 0, "restarts": 0, "incarnation": 1}
    return {"id": id_, "state": state, **empty, **more}


def document(*talkers: dict[str, Any]) -> dict[str, Any]:
    return {"stages": {"thinker": {"replicas": [replica("thinker/0")]}, "talker": {"replicas": list(talkers)}}}


class TestReplicas:
    def test_of_a_stage_of_one_and_of_what_is_unknown(self) -> None:
        both = [replica("talker/0"), replica("talker/1")]
        assert replicas_of(document(*both), "talker") == both
        assert replicas_of(document(*both), "talker/1") == both[1:]
        assert replicas_of(document(*both), "talker/2") == []
        assert replicas_of(document(*both), "talkr") == []


class TestChanges:
    def test_each_is_said_once(self) -> None:
        changes = Changes([replica("talker/0"), replica("talker/1")])
        assert changes.to([replica("talker/0"), replica("talker/1")]) == []
        draining = replica("talker/0", "draining", inflight=3)
        assert changes.to([draining, replica("talker/1")]) == ["talker/0: draining, 3 requests left"]
        assert changes.to([draining, replica("talker/1")]) == []
        assert changes.to([replica("talker/0", "draining", inflight=1)]) == ["talker/0: draining, 1 request left"]
        assert changes.to([replica("talker/0", "draining")]) == ["talker/0: draining, 0 requests left"]
        assert changes.to([replica("talker/0", "dead")]) == ["talker/0: ended"]
        assert changes.to([replica("talker/0", "starting", incarnation=2)]) == ["talker/0: loading"]
        assert changes.to([replica("talker/0", incarnation=2)]) == ["talker/0: ready"]
        assert changes.to([replica("talker/0", incarnation=2)]) == []

    def test_a_process_that_was_replaced_between_two_looks_is_seen(self) -> None:
        changes = Changes([replica("talker/0"), replica("talker/1")])
        after = [replica("talker/0", incarnation=2), replica("talker/1", "stuck")]
        assert changes.to(after) == ["talker/0: ready", "talker/1: stuck"]

    def test_those_that_wait_there_are_left_as_well(self) -> None:
        changes = Changes([])
        assert changes.to([replica("talker/0", "draining", inflight=1, registered=5)]) == [
            "talker/0: draining, 5 requests left"
        ]


class TestCommands:
    """Against a router that answers what the test says: first its status, then the order."""

    @staticmethod
    def answers(
        *documents: dict[str, Any], error: wire.ErrorInfo | None = None
    ) -> Callable[[wire.ClientToRouter], Iterable[wire.RouterToClient]]:
        """One document a status; the order is answered before the last of them."""
        left = list(documents)
        orders: list[int] = []

        def answer(frame: wire.ClientToRouter) -> Iterable[wire.RouterToClient]:
            said: list[wire.RouterToClient] = []
            if isinstance(frame, wire.Operate):
                orders.append(frame.call)
            elif isinstance(frame, wire.AskStatus):
                said.append(wire.Status(frame.call, wire.encode_json(left.pop(0) if len(left) > 1 else left[0])))
            if orders and len(left) == 1:
                said.append(wire.Operated(orders.pop(), error))
            return said

        return answer

    @pytest.fixture
    def run(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> Callable[..., tuple[int, str, str]]:
        """The exit code, stdout and stderr of a command."""
        monkeypatch.setattr(operating, "POLL_S", 0.01)

        def run(*arguments: str) -> tuple[int, str, str]:
            monkeypatch.setattr(sys, "argv", ["omnizmq", *arguments])
            with pytest.raises(SystemExit) as done:
                cli.main()
            assert isinstance(done.value.code, int)
            return (done.value.code, *capsys.readouterr())

        return run

    NEW = replica("talker/0", pid=101, restarts=1, incarnation=2)
    STORY = (
        document(replica("talker/0", inflight=1)),
        document(replica("talker/0", "draining", inflight=1)),
        document(replica("talker/0", "starting", pid=101, incarnation=2)),
        document(NEW),
    )
    SAID = "talker/0: draining, 1 request left\ntalker/0: loading\ntalker/0: ready\n"

    def test_a_restart_shows_how_it_goes(self, run: Callable[..., tuple[int, str, str]]) -> None:
        with scripted_router(self.answers(*self.STORY)) as router:
            code, out, err = run("restart", "talker")
            assert router.heard_of(wire.Operate) == [wire.Operate(2, "restart", "talker", 30.0, False)]
        assert (code, err) == (0, self.SAID)
        assert out.startswith("restarted talker/0 (pid 101) in ")
        assert out.count("\n") == 1

    def test_a_restart_as_a_document(self, run: Callable[..., tuple[int, str, str]]) -> None:
        with scripted_router(self.answers(*self.STORY)) as router:
            code, out, err = run(
                "restart", "talker/0", "--timeout", "2.5", "--force", "--connect", "scripted", "--json"
            )
            assert router.heard_of(wire.Operate) == [wire.Operate(2, "restart", "talker/0", 2.5, True)]
        assert (code, err) == (0, self.SAID)
        found = json.loads(out)
        assert found.pop("seconds") >= 0
        assert found == {
            "action": "restart",
            "target": "talker/0",
            "replicas": [{"id": "talker/0", "pid": 101, "state": "ready", "restarts": 1}],
        }

    def test_a_drain_and_its_undoing(self, run: Callable[..., tuple[int, str, str]]) -> None:
        ready, draining = document(replica("talker/0")), document(replica("talker/0", "draining"))
        with scripted_router(self.answers(ready, draining)) as router:
            code, out, err = run("drain", "talker/0", "--timeout", "3")
            assert router.heard_of(wire.Operate) == [wire.Operate(2, "drain", "talker/0", 3.0, False)]
        assert (code, err) == (0, "talker/0: draining, 0 requests left\n")
        assert out == "drained talker/0: it takes no new requests until `omnizmq drain talker/0 --undo`\n"
        with scripted_router(self.answers(draining, ready)) as router:
            assert run("drain", "talker/0", "--undo") == (0, "talker/0 takes requests again\n", "talker/0: ready\n")
            assert router.heard_of(wire.Operate) == [wire.Operate(2, "resume", "talker/0", 30.0, False)]
        with scripted_router(self.answers(draining, ready)):
            code, out, _ = run("drain", "talker/0", "--undo", "--json")
        assert (code, json.loads(out)["action"]) == (0, "resume")

    @pytest.mark.parametrize("command", ["restart", "drain"])
    @pytest.mark.parametrize(
        ("error", "code", "said"),
        [
            (wire.ErrorInfo("invalid_request", "no stage 'talkr'", None, None, False), 2, "no stage 'talkr'"),
            (
                wire.ErrorInfo("unavailable", "2 requests live on", "talker", "talker/0", True),
                1,
                "talker/0: 2 requests",
            ),
        ],
    )
    def test_what_was_not_done_is_one_line_and_one_document(
        self,
        run: Callable[..., tuple[int, str, str]],
        command: str,
        error: wire.ErrorInfo,
        code: int,
        said: str,
    ) -> None:
        with scripted_router(self.answers(document(replica("talker/0")), error=error)):
            got, out, err = run(command, "talker/0")
        assert (got, out) == (code, "")
        assert err.startswith(f"omnizmq {command}: {said}")
        assert err.count("\n") == 1
        with scripted_router(self.answers(document(replica("talker/0")), error=error)):
            got, out, _ = run(command, "talker/0", "--json")
        assert (got, json.loads(out)["error"]["code"]) == (code, error.code)

    def test_f6_a_router_that_dies_meanwhile(self, run: Callable[..., tuple[int, str, str]]) -> None:
        def answer(frame: wire.ClientToRouter) -> Iterable[wire.RouterToClient]:
            if isinstance(frame, wire.Operate):
                return [wire.Bye("the deployment has stopped")]
            asked = isinstance(frame, wire.AskStatus)
            return [wire.Status(frame.call, wire.encode_json(document()))] if asked else []  # type: ignore[union-attr]

        with scripted_router(answer):
            code, out, err = run("restart", "talker")
        said = "omnizmq restart: the router is gone: the deployment has stopped\n"
        assert (code, out, err) == (1, "", said)

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("restart",), "Missing argument 'STAGE[/N]'."),
            (("drain",), "Missing argument 'STAGE/N'."),
            (("restart", "talker", "--timeout", "-1"), "Invalid value for '--timeout'"),
            (("drain", "talker/0", "--timeout", "soon"), "Invalid value for '--timeout'"),
            (("drain", "talker/0", "--undo", "--timeout", "1"), "--undo waits for nothing: leave --timeout out"),
        ],
    )
    def test_wrong_usage(self, run: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...], said: str) -> None:
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert said in err
        assert err.count("\n") == 1

    @pytest.mark.parametrize(
        "arguments", [("status",), ("abort", "x"), ("restart", "talker"), ("drain", "talker/0"), ("chat", "hi")]
    )
    def test_f6_a_connection_that_ends_is_one_document_with_json(
        self, run: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...]
    ) -> None:
        with scripted_router(lambda frame: [wire.Bye("the deployment has stopped")]):  # noqa: ARG005
            code, out, err = run(*arguments, "--json")
        assert (code, err) == (1, f"omnizmq {arguments[0]}: the router is gone: the deployment has stopped\n")
        error = json.loads(out)["error"]
        assert (error["code"], error["retriable"], error["message"]) == (
            "router_lost",
            True,
            "the router is gone: the deployment has stopped",
        )

    @pytest.mark.parametrize(
        "arguments", [("talker 0",), ("talker", "--timeout", "nan"), ("talker", "--timeout", "1e9")]
    )
    def test_what_cannot_be_asked_is_wrong_usage_too(
        self, run: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...]
    ) -> None:
        with scripted_router(self.answers(document())) as router:
            code, out, err = run("restart", *arguments)
            assert router.heard_of(wire.Operate) == []
        assert (code, out) == (2, "")
        assert err.startswith("omnizmq restart: ")
        assert err.count("\n") == 1
