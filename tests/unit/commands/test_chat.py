"""What `omnizmq chat` makes of its options, and what it makes of an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from omnizmq import RequestOutput
from omnizmq.commands import chat
from omnizmq.commands.asking import Asked, split_param
from omnizmq.commands.turn import Turn
from omnizmq.commands.wave import WaveFile
from omnizmq.errors import (
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    ReplicaLostError,
    SlowReaderError,
    StageError,
)
from omnizmq.protocol import VERSION
from omnizmq.runtime import Deployment, RuntimeDir

DIED = "talker/0 died: killed by SIGKILL"
SLOW = "1024 outputs unread for 30 s (router.slow_reader_grace_s)"
STAGES = {"thinker": "text", "talker": None, "code2wav": "audio"}


def asked(**options: Any) -> Asked:
    empty: dict[str, Any] = dict.fromkeys(Asked.__dataclass_fields__)
    return Asked(
        **{
            **empty,
            "modalities": ["text"],
            "images": (),
            "audios": (),
            "sets": (),
            "params": (),
            "as_json": False,
            **options,
        }
    )


class TestOptions:
    @pytest.mark.parametrize(
        ("given", "output", "wanted"),
        [
            (None, None, ["text"]),
            (None, Path("a.wav"), ["text", "audio"]),
            ("audio", None, ["audio"]),
            (" text , audio,", Path("a.wav"), ["text", "audio"]),
        ],
    )
    def test_modalities(self, given: str | None, output: Path | None, wanted: list[str]) -> None:
        assert chat._modalities(given, output) == wanted

    def test_no_modality_is_wrong_usage(self) -> None:
        with pytest.raises(click.UsageError, match="--modalities is empty"):
            chat._modalities(" , ", None)

    @pytest.mark.parametrize(
        ("setting", "value"),
        [
            ("thinker.temperature=0.7", 0.7),
            ("thinker.temperature=", ""),
            ("thinker.temperature=warm = hot", "warm = hot"),
            ("thinker.temperature=[1, 2]", [1, 2]),
            ('thinker.temperature="7"', "7"),
            ("thinker.temperature=true", True),
            ("thinker.temperature=null", None),
        ],
    )
    def test_a_parameter_is_json_or_a_string(self, setting: str, value: object) -> None:
        assert split_param(setting) == ("thinker", "temperature", value)

    @pytest.mark.parametrize("setting", ["", "temperature=1", "thinker.temperature", ".x=1", "thinker.=1", "=1"])
    def test_a_wrong_parameter_says_what_is_right(self, setting: str) -> None:
        with pytest.raises(InvalidRequestError, match=r"is not STAGE\.KEY=VALUE, such as thinker\.temperature=0\.7"):
            split_param(setting)

    def test_parameters_of_the_stages(self) -> None:
        options = asked(seed=3, max_tokens=5, params=("talker.speed=1.5", "thinker.seed=9"))
        assert options.stage_params(STAGES) == {
            "thinker": {"seed": 9, "max_tokens": 5},
            "talker": {"seed": 3, "speed": 1.5},
            "code2wav": {"seed": 3},
        }
        assert asked().stage_params(STAGES) == {"thinker": {}, "talker": {}, "code2wav": {}}

    def test_a_sound_file_goes_along(self, tmp_path: Path) -> None:
        (tmp_path / "a.wav").write_bytes(b"sound")
        assert asked().user("hi") == {"role": "user", "content": "hi"}
        assert asked(audios=(tmp_path / "a.wav",)).user("hi")["content"] == [
            {"type": "text", "text": "hi"},
            {"type": "audio", "data": b"sound"},
        ]
        with pytest.raises(InvalidRequestError, match=r"--audio .*b\.wav cannot be read: No such file or directory"):
            asked(audios=(tmp_path / "b.wav",)).user("hi")


class TestWhichDeployment:
    @pytest.fixture(autouse=True)
    def directories(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    @staticmethod
    def runs(name: str) -> RuntimeDir:
        directory = RuntimeDir.create(name)
        directory.publish(Deployment(name, f"ipc:///{name}", "nonce", 1, 0.0, VERSION))
        return directory

    def test_without_one_it_starts_the_embedded_one(self) -> None:
        owned = chat._client(asked(), "hi", None)._owned
        assert owned is not None
        assert owned._config == "embedded"
        assert owned.name.startswith("own-")

    def test_the_only_one_is_used_and_a_config_means_an_own_one(self) -> None:
        running = self.runs("demo")
        client = chat._client(asked(), "hi", None)
        assert (client._connect_to, client._owned) == ("demo", None)
        owned = chat._client(asked(config="synthetic", sets=("router.max_queued=1",)), "hi", None)._owned
        assert owned is not None
        assert (owned._config, owned._sets) == ("synthetic", ("router.max_queued=1",))
        running.remove()

    def test_one_of_several_must_be_named(self) -> None:
        both = [self.runs("demo"), self.runs("other")]
        with pytest.raises(NotFoundError, match="2 deployments are running, choose one with --connect NAME: demo "):
            chat._client(asked(), "hi", None)
        assert chat._client(asked(connect="other"), "hi", None)._connect_to == "other"
        assert chat._client(asked(connect="ipc:///other"), "hi", None)._connect_to == "other"
        with pytest.raises(NotFoundError, match="no deployment 'third' is running"):
            chat._client(asked(connect="third"), "hi", None)
        for running in both:
            running.remove()

    def test_what_an_own_one_could_never_do_is_refused_before_it_starts(self) -> None:
        with pytest.raises(InvalidRequestError, match="unknown modality 'smell': this deployment has text, audio"):
            chat._client(asked(config="synthetic", modalities=["smell"]), "hi", None)
        with pytest.raises(InvalidRequestError, match="the prompt has 11 bytes; this deployment takes at most 10"):
            chat._client(asked(config="synthetic", sets=("router.max_prompt_bytes=10",)), "x" * 11, None)

    def test_files_count_too(self, tmp_path: Path) -> None:
        image = tmp_path / "image.png"
        image.write_bytes(b"x" * 9)
        with pytest.raises(InvalidRequestError, match="the prompt has 11 bytes; this deployment takes at most 10"):
            chat._client(asked(config="synthetic", sets=("router.max_prompt_bytes=10",), images=(image,)), "hi", None)

    def test_files_are_parts_of_the_message_after_its_text(self, tmp_path: Path) -> None:
        image, audio = tmp_path / "image", tmp_path / "audio"
        image.write_bytes(b"PNG")
        audio.write_bytes(b"RIFF")
        said, seen = {"type": "text", "text": "hi"}, {"type": "image", "data": b"PNG"}
        heard = {"type": "audio", "data": b"RIFF"}
        assert asked().user("hi")["content"] == "hi"
        assert asked(images=(image,)).user("hi")["content"] == [said, seen]
        assert asked(images=(image,)).user("")["content"] == [seen]
        assert asked(images=(image,), audios=(audio, audio)).user("hi")["content"] == [said, seen, heard, heard]


class TestTurns:
    @staticmethod
    def turn(*outputs: RequestOutput | Exception, wave: WaveFile | None = None, text: bool = True) -> tuple[Turn, str]:
        """What comes of these outputs, and what was shown."""
        shown: list[str] = []
        turn = Turn("mine", text, wave, shown.append)

        async def generate() -> AsyncGenerator[RequestOutput, None]:
            for output in outputs:
                if isinstance(output, Exception):
                    raise output
                yield output

        asyncio.run(turn.consume(generate()))
        return turn, "".join(shown)

    ONE = RequestOutput("mine-1", "mine", "thinker", "text", text="one")
    SOUND = RequestOutput("mine-1", "mine", "wav", "audio", audio=np.zeros(2400, np.float32), sample_rate=24000)
    END = RequestOutput("mine-1", "mine", "wav", "audio", finished=True, finish_reason="stop", usage={"a": {"b": 1}})

    def test_text_sound_and_end(self, tmp_path: Path) -> None:
        wave = WaveFile(tmp_path / "a.wav")
        turn, shown = self.turn(self.ONE, self.SOUND, another(" two"), self.END, wave=wave)
        document = json.loads(json.dumps(turn.document()))
        timings = document.pop("timings")
        assert shown == "one two"
        assert turn.succeeded
        assert timings["ttft_ms"] <= timings["ttfa_ms"] <= timings["total_ms"]
        assert document == {
            "request_id": "mine-1",
            "external_id": "mine",
            "text": "one two",
            "audio": {"path": str(tmp_path / "a.wav"), "sample_rate": 24000, "seconds": 0.1},
            "finish_reason": "stop",
            "usage": {"a": {"b": 1}},
            "usage_incomplete": [],
            "notes": {},
            "error": None,
        }

    def test_text_that_nobody_asked_for_is_null(self) -> None:
        turn, _ = self.turn(self.END, text=False)
        assert turn.document()["text"] is None
        turn, _ = self.turn(self.END)
        assert turn.document()["text"] == ""

    def test_an_error_keeps_what_came_before(self) -> None:
        turn, shown = self.turn(self.ONE, StageError("broke", stage="talker", replica="talker/0"))
        document = turn.document()
        assert (shown, document["text"], document["finish_reason"]) == ("one", "one", "error")
        assert document["error"] == {
            "code": "stage_error",
            "stage": "talker",
            "replica": "talker/0",
            "message": "broke",
            "retriable": False,
        }
        assert not turn.succeeded

    def test_an_interrupted_one_is_an_abort(self) -> None:
        turn = Turn("mine", True, None, lambda _: None)
        turn.interrupted = True
        assert (turn.finish_reason, turn.succeeded) == ("abort", False)

    def test_a_sound_file_that_cannot_be_written_ends_it(self) -> None:
        turn, _ = self.turn(self.SOUND, self.END, wave=WaveFile(Path("/nowhere/a.wav")))
        assert isinstance(turn.error, InvalidRequestError)
        assert turn.terminal is None

    @pytest.mark.parametrize(
        ("error", "interrupted", "code", "said"),
        [
            (None, False, 0, ""),
            (InvalidRequestError("no"), False, 2, "omnizmq chat: no\n"),
            (InvalidRequestError("no", stage="talker", replica="talker/0"), False, 2, "omnizmq chat: no\n"),
            (OverloadedError("full"), False, 1, "omnizmq chat: full\n"),
            (StageError("broke", stage="talker", replica="talker/0"), False, 1, "omnizmq chat: talker/0: broke\n"),
            (StageError("broke", stage="talker"), False, 1, "omnizmq chat: talker: broke\n"),
            (ReplicaLostError(DIED, stage="talker", replica="talker/0"), False, 1, f"omnizmq chat: {DIED}\n"),
            (
                SlowReaderError(SLOW, stage="thinker", replica="thinker/0"),
                False,
                1,
                f"omnizmq chat: thinker/0: {SLOW}\n",
            ),
            (None, True, 130, "omnizmq chat: interrupted\n"),
        ],
    )
    def test_exit_codes(
        self,
        capsys: pytest.CaptureFixture[str],
        error: Exception | None,
        interrupted: bool,
        code: int,
        said: str,
    ) -> None:
        turn, _ = self.turn(*([error] if error else [] if interrupted else [self.END]))
        turn.interrupted = interrupted
        assert asked().tell(turn) == code
        assert capsys.readouterr() == ("", said)


def another(text: str) -> RequestOutput:
    return RequestOutput("mine-1", "mine", "thinker", "text", text=text)
