"""A whole deployment of synthetic stages: asked, answered, stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.running import eventually, launched, omnizmq

pytestmark = pytest.mark.usefixtures("no_leaks")


def test_a_prompt_goes_in_and_text_and_sound_come_out(home: Path) -> None:
    with launched() as deployment:
        done = omnizmq(
            "chat", "one two three", "--modalities", "text,audio", "--output", str(home / "out.wav"), "--json"
        )
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["text"] == "one two three"
        assert answer["audio"]["seconds"] == pytest.approx(0.3)
        assert answer["error"] is None
        assert eventually(deployment.idle)
        assert deployment.stop() == 0
