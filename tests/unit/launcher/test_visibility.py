"""Which GPUs a worker is let see, by the launcher's own CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import pytest

from omnizmq.config import Config, StageConfig, validate
from omnizmq.errors import ConfigError
from omnizmq.launcher.visibility import check, sight

UUIDS = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "MIG-5d0bb5d1-2a0f-4a0c-9a4d-000000000001"


@pytest.mark.parametrize(
    ("devices", "outer", "entries", "names"),
    [
        ((), None, "", ()),
        ((), "4,5", "", ()),
        (("cuda:1",), None, "1", ("cuda:0",)),
        (("cuda:3", "cuda:1"), None, "3,1", ("cuda:0", "cuda:1")),
        (("cuda:1",), "4, 5", "5", ("cuda:0",)),
        (("cuda:0",), f"{UUIDS[1]},{UUIDS[0]}", UUIDS[1], ("cuda:0",)),
        (("cuda:0",), "2,-1,3", "2", ("cuda:0",)),
        ((UUIDS[0],), None, UUIDS[0], ("cuda:0",)),
        ((UUIDS[0],), ",".join(UUIDS), UUIDS[0], ("cuda:0",)),
        ((UUIDS[0],), "4,5", UUIDS[0], ("cuda:0",)),
    ],
)
def test_a_worker_sees_its_own_and_no_other(
    devices: tuple[str, ...], outer: str | None, entries: str, names: tuple[str, ...]
) -> None:
    environment = {"HOME": "/"} if outer is None else {"HOME": "/", "CUDA_VISIBLE_DEVICES": outer}
    seen = sight("thinker", devices, environment)
    assert (seen.entries, seen.names) == (entries, names)
    assert seen.environment(environment) == {"HOME": "/", "CUDA_VISIBLE_DEVICES": entries}


@pytest.mark.parametrize(
    ("device", "outer", "line"),
    [
        ("cuda:2", "4,5", "stage.a.devices: cuda:2: this process sees 2 GPUs, CUDA_VISIBLE_DEVICES=4,5"),
        ("cuda:1", "2,-1,3", "stage.a.devices: cuda:1: this process sees 1 GPUs, CUDA_VISIBLE_DEVICES=2"),
        ("cuda:0", "", "stage.a.devices: cuda:0: this process sees no GPU, CUDA_VISIBLE_DEVICES is empty"),
        (UUIDS[0], "", f"stage.a.devices: {UUIDS[0]}: this process sees no GPU, CUDA_VISIBLE_DEVICES is empty"),
        (UUIDS[0], UUIDS[1], f"{UUIDS[0]}: this process sees 1 GPUs, CUDA_VISIBLE_DEVICES={UUIDS[1]}"),
    ],
)
def test_what_the_launcher_does_not_see_is_refused(device: str, outer: str, line: str) -> None:
    config = validate(Config(name="x", stage=[StageConfig("a", "synthetic", final_output="text", devices=[device])]))
    with pytest.raises(ConfigError) as refused:
        check(config, {"CUDA_VISIBLE_DEVICES": outer})
    assert line in refused.value.message
