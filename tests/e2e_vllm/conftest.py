"""Tests with vLLM, which lives in an environment of its own: `make test-vllm` makes it, with the model they use."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv-vllm"
START_S = 300
"""vLLM is imported and built in half a minute, on busy cores in more."""

Offline = Callable[[list[tuple[str, dict[str, Any]]]], list[dict[str, Any]]]


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The interpreter of that environment."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        pytest.skip("no environment with vLLM: `make test-vllm` makes it")
    return python


@pytest.fixture(scope="session")
def smollm(vllm_python: Path) -> Path:  # noqa: ARG001
    """A real small model: SmolLM2-135M-Instruct."""
    return ENVIRONMENT / "smollm2-135m"


@pytest.fixture(scope="session")
def offline(vllm_python: Path, smollm: Path) -> Offline:
    """What vLLM makes of prompts by itself."""

    def run(asked: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        command = [vllm_python, ROOT / "tests" / "support" / "vllm_offline.py", smollm]
        done = subprocess.run(
            command, input=json.dumps(asked), capture_output=True, text=True, timeout=START_S, check=False
        )
        assert done.returncode == 0, done.stderr
        made: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
        return made

    return run
