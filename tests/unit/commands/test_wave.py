"""The WAV file of an answer."""

from __future__ import annotations

import os
import wave
from pathlib import Path

import numpy as np
import pytest

from omnizmq.commands.wave import WaveFile, check_writable
from omnizmq.errors import InvalidRequestError


class TestWriting:
    def test_16_bit_mono_and_clipped(self, tmp_path: Path) -> None:
        file = WaveFile(tmp_path / "a.wav")
        file.write(np.array([0.0, 0.5, -0.5], np.float32), 24000)
        file.write(np.array([1.5, -1.5], np.float32), 24000)
        file.close()
        assert file.document() == {"path": str(tmp_path / "a.wav"), "sample_rate": 24000, "seconds": 0.0}
        with wave.open(str(tmp_path / "a.wav")) as sound:
            assert (sound.getnchannels(), sound.getsampwidth(), sound.getframerate()) == (1, 2, 24000)
            samples = np.frombuffer(sound.readframes(10), "<i2")
        assert samples.tolist() == [0, 16384, -16384, 32767, -32768]

    def test_without_sound_there_is_no_file(self, tmp_path: Path) -> None:
        file = WaveFile(tmp_path / "a.wav")
        file.close()
        assert file.document() is None
        assert os.listdir(tmp_path) == []

    def test_a_disk_that_is_full_is_told(self) -> None:
        file = WaveFile(Path("/dev/full"))
        with pytest.raises(InvalidRequestError, match="--output /dev/full cannot be written: "):
            file.write(np.zeros(10_000_000, np.float32), 24000)
        file.close()


class TestChecking:
    def test_it_leaves_nothing_that_was_not_there(self, tmp_path: Path) -> None:
        check_writable(tmp_path / "new.wav")
        (tmp_path / "old.WAV").write_bytes(b"sound")
        check_writable(tmp_path / "old.WAV")
        (tmp_path / "link.wav").symlink_to(tmp_path / "elsewhere.wav")
        check_writable(tmp_path / "link.wav")
        assert sorted(os.listdir(tmp_path)) == ["link.wav", "old.WAV"]
        assert (tmp_path / "old.WAV").read_bytes() == b"sound"
        assert (tmp_path / "link.wav").is_symlink()

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("a.mp3", "is not a .wav file: that is what is written"),
            ("wav", "is not a .wav file: that is what is written"),
            ("none/a.wav", "cannot be written: No such file or directory"),
            ("folder.wav", "cannot be written: Is a directory"),
            ("file/a.wav", "cannot be written: Not a directory"),
            ("x" * 300 + ".wav", "cannot be written: File name too long"),
        ],
    )
    def test_what_cannot_be_written_is_refused(self, tmp_path: Path, name: str, said: str) -> None:
        (tmp_path / "folder.wav").mkdir()
        (tmp_path / "file").touch()
        with pytest.raises(InvalidRequestError) as refused:
            check_writable(tmp_path / name)
        assert refused.value.message == f"--output {tmp_path / name} {said}"
