"""One worker process: what it is told, what becomes of its group, its log; with real processes that are no workers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support.running import alive, eventually

from omnizmq.config import Config, StageConfig
from omnizmq.launcher import process
from omnizmq.launcher.process import WorkerProcess, trim_log
from omnizmq.workers.spec import WorkerSpec, decode

Scenario = Callable[[WorkerProcess, Path], Awaitable[None]]


def specification(stage: StageConfig) -> WorkerSpec:
    config = Config(name="x", stage=[stage])
    return WorkerSpec(config, "one", "one/0", 1, [], "r", "d", "nonce", "/run", "/private", os.getpid())


def run(tmp_path: Path, script: str, scenario: Scenario | None = None) -> tuple[str, WorkerProcess]:
    """Run a shell script as if it were a worker; why it ended."""
    shell = tmp_path / "python"
    shell.write_text(f"#!/bin/sh\ncd {tmp_path}\n{script}\n")
    shell.chmod(0o700)
    stage = StageConfig("one", "synthetic", final_output="text", python=str(shell))
    spec = WorkerSpec(
        Config(name="x", stage=[stage]), "one", "one/0", 1, [], "r", "d", "nonce", "/r", "/p", os.getpid()
    )

    async def main() -> tuple[str, WorkerProcess]:
        reasons: list[str] = []
        worker = WorkerProcess(spec, tmp_path / "one.log", reasons.append)
        if scenario is not None:
            await scenario(worker, tmp_path)
        await asyncio.wait_for(worker.gone, 10)
        assert len(reasons) == 1
        assert not alive(worker.pid)
        return reasons[0], worker

    return asyncio.run(main())


async def appears(path: Path) -> None:
    assert await asyncio.to_thread(eventually, lambda: path.exists() and path.stat().st_size > 0)


def test_it_is_told_its_specification_and_reaped(tmp_path: Path) -> None:
    reason, worker = run(tmp_path, "read line; echo $line > told; echo $@ > arguments; exit 7")
    assert (reason, worker.status) == ("exit status 7", 7)
    assert decode((tmp_path / "told").read_bytes()) == worker.spec
    assert (tmp_path / "arguments").read_text() == "-P -m omnizmq.workers\n"


def test_its_input_stays_open_until_it_is_reaped(tmp_path: Path) -> None:
    async def scenario(worker: WorkerProcess, here: Path) -> None:
        await appears(here / "started")
        assert not (here / "ended").exists()
        worker.terminate()

    reason, _ = run(tmp_path, "read line; echo x > started; read more; echo x > ended", scenario)
    assert reason == "killed by SIGTERM"
    assert not (tmp_path / "ended").exists()


def test_it_has_a_session_of_its_own(tmp_path: Path) -> None:
    _, worker = run(tmp_path, "ps -o sid= -p $$ > session || cut -d' ' -f6 /proc/$$/stat > session; exit 0")
    assert int((tmp_path / "session").read_text()) == worker.pid != os.getsid(0)


def test_f6_its_group_ends_with_it(tmp_path: Path) -> None:
    run(tmp_path, "sleep 1000 & echo $! > child; exit 0")
    child = int((tmp_path / "child").read_text())
    assert eventually(lambda: not alive(child))


def test_kill_ends_the_group_and_is_harmless_later(tmp_path: Path) -> None:
    async def scenario(worker: WorkerProcess, here: Path) -> None:
        await appears(here / "child")
        worker.kill()

    reason, worker = run(tmp_path, "trap '' TERM; sleep 1000 & echo $! > child; wait; wait", scenario)
    assert (reason, worker.status) == ("killed by SIGKILL", -signal.SIGKILL)
    assert eventually(lambda: not alive(int((tmp_path / "child").read_text())))
    worker.kill()
    worker.terminate()


def test_f5_its_last_lines_are_of_this_incarnation(tmp_path: Path) -> None:
    (tmp_path / "one.log").write_text("of an earlier one\n")
    _, worker = run(tmp_path, 'for n in $(seq 20); do echo "line $n"; done; printf "caf\\351\\n" >&2')
    assert worker.last_lines() == [*(f"line {n}" for n in range(10, 21)), "caf\ufffd"]
    assert (tmp_path / "one.log").read_text(errors="replace").startswith("of an earlier one\n")


def test_one_that_cannot_be_started(tmp_path: Path) -> None:
    stage = StageConfig("one", "synthetic", python=str(tmp_path / "nowhere"))
    spec = specification(stage)

    async def main() -> None:
        with pytest.raises(FileNotFoundError, match="nowhere"):
            WorkerProcess(spec, tmp_path / "one.log", lambda _: None)

    asyncio.run(main())


def test_a_long_log_is_put_aside_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LOG_BYTES", 100)
    log = tmp_path / "one.log"
    trim_log(log)
    assert not log.exists()
    with open(log, "ab") as writer:
        writer.write(b"x" * 100)
        writer.flush()
        trim_log(log)
        assert log.stat().st_size == 100
        writer.write(b"y")
        writer.flush()
        trim_log(log)
        assert (log.stat().st_size, (tmp_path / "one.log.1").stat().st_size) == (0, 101)
        writer.write(b"z")
    assert log.read_bytes() == b"z"
