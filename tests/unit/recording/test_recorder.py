"""A recorder never holds its router up, and a recording that cannot go on ends there and says so."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.pipelines import SPEECH, config
from support.recordings import first_difference

from omnizmq.errors import ConfigError
from omnizmq.recording import file, recorder
from omnizmq.recording.recorder import Recorder
from omnizmq.router.core import RouterCore
from omnizmq.router.messages import StopAsked, Ticked

CONFIG = config(SPEECH)
HEADER = file.header(CONFIG, version="0", started=1.0)
Start = Callable[[], Recorder]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made = []

    def start() -> Recorder:
        made.append(Recorder(tmp_path / "r.jsonl", HEADER, max_mib=1))
        return made[-1]

    yield start
    for one in made:
        one.close("the test has ended")


def test_what_it_writes_can_be_replayed(start: Start, tmp_path: Path) -> None:
    core, one = RouterCore(CONFIG), start()
    for event in (Ticked(), StopAsked("enough")):
        one.add(event, 5.0, core.handle(event, 5.0), other=False)
    one.close("the deployment has stopped")
    found = file.read(tmp_path / "r.jsonl")
    assert [(line.n, line.now, line.event["$"]) for line in found.lines] == [(1, 5.0, "Ticked"), (2, 5.0, "StopAsked")]
    assert (found.ended, found.cut, one.ended) == ("the deployment has stopped", False, found.ended)
    assert first_difference(found) is None
    assert stat.S_IMODE((tmp_path / "r.jsonl").stat().st_mode) == 0o600


def test_nothing_comes_behind_the_end(start: Start, tmp_path: Path) -> None:
    one = start()
    one.close("first")
    one.add(Ticked(), 5.0, [], other=False)
    one.close("second")
    assert (tmp_path / "r.jsonl").read_bytes().splitlines()[1:] == [b'{"ended":"first"}']


def test_a_file_that_is_there_stays_as_it_is(start: Start, tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match=r"--record .*r.jsonl: it exists already; name a new file"):
        start()
    assert (tmp_path / "r.jsonl").read_text() == "mine"


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be made: No such file or directory"):
        Recorder(tmp_path / "nowhere" / "r.jsonl", HEADER, max_mib=1)


def test_it_ends_at_its_size(start: Start, tmp_path: Path) -> None:
    one, stop = start(), StopAsked("x" * 100_000)
    for _ in range(12):
        one.add(stop, 5.0, [], other=False)
    one.close("the test has ended")
    assert one.ended == "it has its 1 MiB (--record-max-mib)"
    found = file.read(tmp_path / "r.jsonl")
    assert (len(found.lines), found.ended) == (10, one.ended)
    assert (tmp_path / "r.jsonl").stat().st_size < (1 << 20) + 100


def test_it_ends_where_the_disk_does_not_keep_up(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "BUFFER_BYTES", 2000)
    one = start()
    one.add(StopAsked("x" * 2000), 5.0, [], other=False)
    one.close("the test has ended")
    assert one.ended
    assert "does not keep up" in one.ended
    assert file.read(tmp_path / "r.jsonl").ended == one.ended


def test_an_event_that_has_no_form_ends_it_and_raises_nothing(start: Start, tmp_path: Path) -> None:
    one = start()
    one.add(StopAsked(object()), 5.0, [], other=False)  # type: ignore[arg-type]
    one.add(Ticked(), 5.0, [], other=False)
    one.close("the test has ended")
    assert one.ended == "an event cannot be recorded: TypeError: a object has no place in a recording"
    assert file.read(tmp_path / "r.jsonl").ended == one.ended


FULL = """
import resource, sys
from pathlib import Path
from omnizmq.recording import recorder
from omnizmq.router.messages import StopAsked
from omnizmq.recording import file
from support.pipelines import SPEECH, config
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))  # what a full disk looks like
HEADER = file.header(config(SPEECH), version="0", started=1.0)
one = recorder.Recorder(Path(sys.argv[1]), HEADER, max_mib=1)
while one.ended is None:
    one.add(StopAsked("x" * 1000), 5.0, [], other=False)
    one._thread.join(0.1)
one.close("the test has ended")
print(one.ended)
"""


def test_a_full_disk_ends_it_with_whole_lines_and_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n{FULL}"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == f"{path} cannot be written: File too large\n"
    found = file.read(path)
    assert found.ended == done.stdout.strip()
    assert found.lines
