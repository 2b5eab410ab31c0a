"""`AsyncClient` and `Client` on a real deployment: cancelled, closed early, used at once and from several threads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.running import Asking, Held, Running, collect, eventually, kill, launched, text_of, until

from omnizmq import AsyncClient, Client
from omnizmq import protocol as wire
from omnizmq.errors import (
    ConfigError,
    InvalidRequestError,
    LaunchError,
    NotFoundError,
    OmnizmqError,
    RouterLostError,
    UnavailableError,
)

SETS = ("stage.thinker.options.silent_at=3", "stage.thinker.options.fault_only=quiet")
NEVER = "one two three"


pytestmark = pytest.mark.usefixtures("deployment")


@pytest.fixture
def home(module_home: Path) -> Path:
    return module_home


class TestAsyncClient:
    def test_a7_a_cancelled_caller_aborts_its_request_and_stays_cancelled(self, deployment: Running) -> None:
        async def scenario() -> None:
            async with AsyncClient.connect(deployment.name) as client:
                asking = Asking(client, NEVER, request_id="quiet")
                await asking.has(2)
                asking.task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking.task
                status = await client.status()  # it has been waited for
                assert (status["live_requests"], status["bindings"]) == (0, 0)

        before = deployment.status()["counters"]["aborted"]
        asyncio.run(scenario())
        assert deployment.status()["counters"]["aborted"] == before + 1

    def test_a7_a_cancellation_does_not_wait_for_a_router_that_does_not_answer(self, deployment: Running) -> None:
        async def scenario() -> float:
            async with AsyncClient.connect(deployment.name) as client:
                asking = Asking(client, NEVER, request_id="quiet")
                await asking.has(2)
                kill(deployment.pid, signal.SIGSTOP)
                loop = asyncio.get_running_loop()
                start = loop.time()
                try:
                    asking.task.cancel()
                    await asyncio.wait([asking.task], timeout=10)
                    return loop.time() - start
                finally:
                    kill(deployment.pid, signal.SIGCONT)

        assert asyncio.run(scenario()) < 3

    def test_a7_a_generator_that_is_closed_early_aborts(self, deployment: Running) -> None:
        async def scenario() -> None:
            async with AsyncClient.connect(deployment.name) as client:
                outputs = client.generate(NEVER, request_id="quiet")
                assert (await anext(outputs)).external_id == "quiet"
                await outputs.aclose()
                assert (await client.status())["live_requests"] == 0
                async with contextlib.aclosing(client.generate(NEVER, request_id="quiet")) as again:
                    async for _ in again:
                        break
                assert (await client.status())["live_requests"] == 0
                never_read = client.generate(NEVER, request_id="quiet")
                await never_read.aclose()
                assert text_of(await collect(client, "still here")) == "still here"

        asyncio.run(scenario())

    def test_a7_a_generator_that_is_dropped_aborts(self, deployment: Running) -> None:
        async def scenario() -> None:
            async with AsyncClient.connect(deployment.name) as client:
                async for _ in client.generate(NEVER, request_id="quiet"):
                    break
                while (await client.status())["live_requests"]:
                    await asyncio.sleep(0.01)

        asyncio.run(scenario())

    def test_many_at_once(self, deployment: Running) -> None:
        async def scenario() -> list[str]:
            async with AsyncClient.connect(deployment.name) as client:
                asked = (collect(client, f"number {number}") for number in range(150))
                return [text_of(outputs) for outputs in await asyncio.gather(*asked)]

        assert asyncio.run(scenario()) == [f"number {number}" for number in range(150)]

    def test_f6_closing_ends_what_is_live(self, deployment: Running) -> None:
        async def scenario() -> OmnizmqError | None:
            async with AsyncClient.connect(deployment.name) as client:
                asking = Asking(client, NEVER, request_id="quiet")
                await asking.has(2)
            error = await asking.error()
            with pytest.raises(RouterLostError, match="this client is closed"):
                await client.status()
            await client.close()
            return error

        error = asyncio.run(scenario())
        assert isinstance(error, RouterLostError)
        assert error.message == "the router is gone: this client is closed"

    def test_one_that_the_router_has_forgotten_is_told_so(self, deployment: Running) -> None:
        async def scenario() -> None:
            async with AsyncClient.connect(deployment.name) as client:
                client._send(wire.Bye("said by mistake"))
                with pytest.raises(RouterLostError, match="this client was given up: said goodbye"):
                    await asyncio.wait_for(client.status(), 5)

        asyncio.run(scenario())

    def test_before_it_is_connected(self) -> None:
        async def scenario() -> None:
            client = AsyncClient.connect()
            with pytest.raises(RuntimeError, match="use it in `async with`"):
                await collect(client, "hi")
            await client.close()
            async with client:
                pass
            with pytest.raises(RuntimeError, match="make another"):
                await client.__aenter__()

        asyncio.run(scenario())

    def test_connecting_to_nothing(self, home: Path) -> None:
        async def scenario() -> None:
            with pytest.raises(NotFoundError, match="no deployment 'nowhere' is running"):
                async with AsyncClient.connect("nowhere"):
                    pass

        asyncio.run(scenario())
        assert os.listdir(home / "run" / "omnizmq") == ["synthetic"]

    def test_connecting_to_a_router_that_does_not_answer(self, deployment: Running, monkeypatch: object) -> None:
        async def scenario() -> None:
            with pytest.raises(RouterLostError, match=rf"synthetic \(pid {deployment.pid}\) does not answer"):
                async with AsyncClient.connect():
                    pass

        pytest.MonkeyPatch.setattr(monkeypatch, "omnizmq.frontend.client.CONNECT_TIMEOUT_S", 0.3)  # type: ignore[arg-type]
        kill(deployment.pid, signal.SIGSTOP)
        try:
            asyncio.run(scenario())
        finally:
            kill(deployment.pid, signal.SIGCONT)

    def test_bad_requests_are_refused_before_anything_is_sent(self, deployment: Running) -> None:
        async def scenario() -> None:
            async with AsyncClient.connect() as client:
                for prompt, options in (
                    ("hi", {"request_id": "two words"}),
                    ("hi", {"modalities": "text"}),
                    ([], {}),
                    ([{"role": "user"}], {}),
                    ("\udcff", {}),
                    ("x" * (5 << 20), {}),
                ):
                    with pytest.raises(InvalidRequestError):
                        await collect(client, prompt, **options)  # type: ignore[arg-type]

        before = deployment.status()["counters"]
        asyncio.run(scenario())
        after = deployment.status()["counters"]
        assert (after["requests"], after["refused"]) == (before["requests"], before["refused"])

    def test_a_deployment_that_is_drained_meanwhile(self) -> None:
        async def scenario(drained: Running) -> None:
            async with AsyncClient.connect("drained") as client:
                asking = Held(client, "a b c d e", after=1, modalities=["text"])
                await asking.has(1)
                drained.process.send_signal(signal.SIGTERM)
                while (await client.status())["state"] != "draining":
                    await asyncio.sleep(0.01)
                assert await asking.error() is None  # it may end
                assert text_of(asking.outputs) == "a b c d e"
                await until(lambda: drained.process.poll() is not None)
                error = await Asking(client, "hi").error()
                assert isinstance(error, RouterLostError | UnavailableError)
                with pytest.raises(RouterLostError, match="the deployment has stopped"):
                    await client.status()

        with launched("synthetic", "router.output_window=2", name="drained") as drained:
            asyncio.run(scenario(drained))


class TestLaunch:
    def test_a_deployment_of_its_own_ends_with_the_client(self, home: Path) -> None:
        async def scenario() -> None:
            async with AsyncClient.launch("synthetic", name="mine", sets=["stage.thinker.replicas=2"]) as client:
                assert client.name == "mine"
                assert len((await client.status())["stages"]["thinker"]["replicas"]) == 2
                assert text_of(await collect(client, "hello you")) == "hello you"

        asyncio.run(scenario())
        assert os.listdir(home / "run" / "omnizmq") == ["synthetic"]

    def test_what_does_not_start_raises_what_kept_it(self, home: Path) -> None:
        async def scenario(*sets: str) -> None:
            async with AsyncClient.launch("synthetic", sets=sets):
                pass

        with pytest.raises(LaunchError, match=r"talker/0 did not start: .*; its last lines:\n  \| ") as failed:
            asyncio.run(scenario("stage.talker.options.fail_start=true"))
        assert failed.value.stage == "talker"
        with pytest.raises(ConfigError, match=r'--set .*=nope: stage\.talker\.engine: "nope": not an installed engine'):
            asyncio.run(scenario("stage.talker.engine=nope"))
        with pytest.raises(ConfigError, match="no stage 'talkr'"):
            asyncio.run(scenario("stage.talkr.replicas=2"))
        assert os.listdir(home / "run" / "omnizmq") == ["synthetic"]

    def test_a_cancelled_start_rolls_back(self, home: Path) -> None:
        async def scenario() -> None:
            loading = asyncio.Event()
            client = AsyncClient.launch(
                "synthetic", sets=["stage.talker.options.start_delay_ms=60000"], progress=lambda *_: loading.set()
            )
            starting = asyncio.create_task(client.__aenter__())
            await loading.wait()
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting

        asyncio.run(scenario())
        assert os.listdir(home / "run" / "omnizmq") == ["synthetic"]

    def test_the_blocking_client_launches_too(self) -> None:
        told: list[str] = []
        with Client.launch("synthetic", progress=lambda replica, text: told.append(f"{replica} {text}")) as client:
            assert text_of(list(client.generate("hello you"))) == "hello you"
            assert client.stages == {"thinker": "text", "talker": None, "code2wav": "audio"}
        assert {"thinker/0 ready", "talker/0 ready", "code2wav/0 ready"} <= set(told)


class TestClient:
    def test_it_generates_aborts_and_tells(self, deployment: Running) -> None:
        with Client.connect(deployment.name) as client:
            assert text_of(list(client.generate("one two", modalities=["text"]))) == "one two"
            outputs = client.generate(NEVER, request_id="quiet", modalities=["text"])
            assert [next(outputs).text, next(outputs).text] == ["one", " two"]
            assert client.abort("quiet") == 1
            assert [output.finish_reason for output in outputs] == [None, "abort"]
            assert client.abort("quiet") == 0
            assert client.status()["name"] == "synthetic"
            with pytest.raises(InvalidRequestError):
                list(client.generate("hi", modalities=["smell"]))

    def test_a7_closing_the_iterator_aborts(self, deployment: Running) -> None:
        with Client.connect() as client:
            outputs = client.generate(NEVER, request_id="quiet")
            next(outputs)
            outputs.close()
            assert client.status()["live_requests"] == 0
        assert eventually(deployment.idle)

    def test_several_threads_share_one(self) -> None:
        with Client.connect() as client, ThreadPoolExecutor(8) as pool:
            answers = pool.map(lambda number: text_of(list(client.generate(f"number {number}"))), range(40))
            assert list(answers) == [f"number {number}" for number in range(40)]

    def test_f6_closing_while_other_threads_wait(self) -> None:
        errors = []
        started = threading.Barrier(4)

        def ask(client: Client) -> None:
            outputs = client.generate(NEVER, request_id="quiet")
            next(outputs)
            started.wait()
            try:
                list(outputs)
            except RouterLostError as error:
                errors.append(error.message)

        with Client.connect() as client:
            threads = [threading.Thread(target=ask, args=(client,)) for _ in range(3)]
            for thread in threads:
                thread.start()
            started.wait()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        assert errors == ["the router is gone: this client is closed"] * 3
        with pytest.raises(RouterLostError, match="this client is closed"):
            client.status()
        with pytest.raises(RouterLostError, match="this client is closed"):
            list(client.generate("hi"))

    def test_never_entered(self) -> None:
        client = Client.connect()
        with pytest.raises(RuntimeError, match="use it in `with`"):
            client.status()
        with pytest.raises(RuntimeError, match="use it in `with`"):
            list(client.generate("hi"))
        with pytest.raises(NotFoundError), Client.connect("nowhere"):
            pass

    INTERRUPTED = """
import sys
from omnizmq import Client
with Client.connect() as client:
    try:
        for output in client.generate("one two three", request_id="quiet"):
            print(output.text, flush=True)
    except KeyboardInterrupt:
        print(client.status()["live_requests"], flush=True)
        raise
"""

    def test_a7_ctrl_c_aborts_and_is_raised_on(self, deployment: Running) -> None:
        before = deployment.status()["counters"]["aborted"]
        process = subprocess.Popen(
            [sys.executable, "-c", self.INTERRUPTED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert out.splitlines()[-1] == "0"
        assert process.returncode == -signal.SIGINT
        assert err.splitlines()[-1] == "KeyboardInterrupt"
        assert "During handling" not in err
        assert deployment.status()["counters"]["aborted"] == before + 1
