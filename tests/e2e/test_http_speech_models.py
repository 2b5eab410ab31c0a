"""Speech through the bridge from tiny models of several stages: each in the way in which it can be fed a text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.bridge import official
from support.running import eventually, launched
from support.sounds import decoded, written

pytest.importorskip("torch", reason="not installed: the extra `transformers`")
pytest.importorskip("transformers", reason="not installed: the extra `transformers`")

pytestmark = [pytest.mark.transformers, pytest.mark.http]

TEXT = "babebi lu lo, zaziba."
SAID = ("--param", f"thinker.say={TEXT}")


@pytest.mark.parametrize(
    ("config", "chat"),
    [
        ("csm_tiny", (TEXT, "--modalities", "audio")),
        ("qwen3_omni_tiny", (TEXT, *SAID)),
    ],
)
def test_speech_is_what_the_command_line_writes(config: str, chat: tuple[str, ...], tmp_path: Path) -> None:
    with launched(config, "plugins.http.port=0") as running:
        wave = written(tmp_path / "reply.wav", *chat, "--connect", running.name)
        with official(running) as client:
            said = client.audio.speech.create(model=running.name, voice="alloy", input=TEXT, response_format="pcm")
        assert np.array_equal(decoded(said.content, "pcm", len(wave)), wave)
        assert len(wave) > 24000
        assert eventually(running.idle)
