"""Which GPUs real workers may see, from their first instruction on, also after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.running import Running, collect, eventually, kill, launched, omnizmq, text_of
from support.stress import visible

from omnizmq import AsyncClient

pytestmark = pytest.mark.usefixtures("no_leaks")

TWO = ('stage.thinker.engine="place"', 'stage.thinker.devices=["cuda:1", ["cuda:0", "cuda:1"]]')


def seen(pid: int) -> str | None:
    """What the process was started with."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    variables = dict(entry.decode().split("=", 1) for entry in entries if b"=" in entry)
    return variables.get("CUDA_VISIBLE_DEVICES")


async def places(deployment: Running, count: int) -> set[str]:
    async with AsyncClient.connect(deployment.name) as client:
        return {text_of(await collect(client, "where?", modalities=["text"])) for _ in range(count)}


def test_each_worker_sees_its_own_gpus_by_its_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-8932f937")
    policy = "stage.thinker.policy=round_robin"
    with visible(), launched("synthetic", "stage.thinker.options={}", *TWO, policy) as deployment:
        assert [seen(deployment.worker_pid(f"thinker/{n}")) for n in (0, 1)] == ["GPU-8932f937", "5,GPU-8932f937"]
        assert [seen(deployment.worker_pid(f"{stage}/0")) for stage in ("talker", "code2wav")] == ["", ""]
        assert asyncio.run(places(deployment, 2)) == {
            "cuda:0 of 'GPU-8932f937'",
            "cuda:0 cuda:1 of '5,GPU-8932f937'",
        }
        kill(deployment.worker_pid("thinker/0"))
        assert eventually(lambda: deployment.replica("thinker/0")["restarts"] == 1, timeout_s=30)
        assert seen(deployment.worker_pid("thinker/0")) == "GPU-8932f937"


@pytest.mark.parametrize(
    ("device", "line"),
    [
        ("cuda:2", "stage.talker.devices: cuda:2: this process sees 2 GPUs, CUDA_VISIBLE_DEVICES=4,5"),
        ("gpu:0", 'stage.talker.devices: ["gpu:0"]: a list such as'),
    ],
)
def test_a_device_that_cannot_be_is_said_in_one_line(device: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    done = omnizmq("launch", "--config", "synthetic", "--set", f'stage.talker.devices=["{device}"]')
    assert done.returncode == 2
    assert line in done.stderr
    assert "Traceback" not in done.stderr
