"""What cannot be read as a recording is refused in one line that says where and why."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from support.pipelines import SPEECH, config
from support.recordings import first_difference, steps

from omnizmq.config import Config, RouterConfig
from omnizmq.errors import ConfigError
from omnizmq.protocol import VERSION
from omnizmq.recording import file
from omnizmq.recording.file import Header, Line

PATH = Path("r.jsonl")
HEADER = file.header(config(SPEECH), version="0.9", started=1.0)
TICK = Line(1, 5.0, {"$": "Ticked"}, [])


def raw(*lines: bytes, header: Header = HEADER) -> bytes:
    return file.encoded(header) + b"".join(lines)


def test_a_recording_whose_router_was_killed_is_read_to_its_last_whole_line() -> None:
    whole = raw(file.encoded(TICK))
    for cut in (b"", b'{"n":2,"now":'):
        found = file.parse(PATH, whole + cut)
        assert (len(found.lines), found.ended, found.cut) == (1, None, bool(cut))


@pytest.mark.parametrize("key", ["remote", "trace_otlp"])
def test_no_address_is_in_a_recording(key: str) -> None:
    secret = {"remote": "tcp://10.1.2.3:5790", "trace_otlp": "http://key@collector/v1/traces"}[key]
    whole = file.encoded(file.header(config(SPEECH, router={key: secret}), version="0.9", started=1.0)).decode()
    assert secret not in whole
    assert f'"{key}":""' in whole


def test_its_end_is_said() -> None:
    found = file.parse(PATH, file.whole(HEADER, [TICK], "the deployment has stopped"))
    assert (len(found.lines), found.ended, found.cut) == (1, "the deployment has stopped", False)


BAD = {
    "a directory": (None, "a directory, where a recording was expected"),
    "empty": (b"", "no header of a recording"),
    "no text": (b"\x00\xff\n", "no header of a recording"),
    "another document": (b"{}\n", "`omnizmq launch --record` makes one"),
    "a later format": (
        raw(header=msgspec.structs.replace(HEADER, recording=3)),
        "a recording of format 3; this omnizmq reads format 2",
    ),
    "another wire": (
        raw(header=msgspec.structs.replace(HEADER, wire=VERSION - 1)),
        f"a recording of omnizmq 0.9 with wire version {VERSION - 1}, and this one has {VERSION}: replay it with",
    ),
    "a bad configuration": (
        raw(header=msgspec.structs.replace(HEADER, config={**HEADER.config, "stage": []})),
        "line 1: its configuration is not usable: stage: empty",
    ),
    "a broken line": (raw(b'{"n":1,\n', file.encoded(TICK)), "line 2: no event of a recording"),
    "an end in the midst": (
        raw(b'{"ended":"x"}\n', file.encoded(TICK)),
        "line 3: the recording ended in the line before this one",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused(name: str, tmp_path: Path) -> None:
    data, why = BAD[name]
    path = tmp_path / "r.jsonl"
    path.mkdir() if data is None else path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        file.read(path)
    assert caught.value.message.startswith((f"{path}: ", f"{path}, line "))
    assert why in caught.value.message
    assert "\n" not in caught.value.message


def test_a_file_that_is_not_there_is_said() -> None:
    with pytest.raises(ConfigError, match=r"nowhere.jsonl: cannot be read: No such file"):
        file.read(Path("nowhere.jsonl"))


def test_a_line_that_is_no_event_is_named_by_its_number() -> None:
    found = file.parse(PATH, raw(file.encoded(TICK), file.encoded(Line(2, 5.0, {"$": "Tocked"}, []))))
    with pytest.raises(ConfigError, match=r"r.jsonl, line 3: an event of the router was expected"):
        steps(found)


def test_a_scenario_of_an_older_wire_is_read() -> None:
    """It names its fields, and what is new may be null."""
    scenario = msgspec.structs.replace(HEADER, wire=VERSION - 1, started=0.0)
    assert first_difference(file.parse(PATH, raw(file.encoded(TICK), header=scenario))) is None


def test_of_the_configuration_only_what_the_router_looks_at_is_kept() -> None:
    secret: Config = config(
        SPEECH, stages={"thinker": {"options": {"key": "sesame"}, "params": {"prefix": "sesame", "temperature": 0.5}}}
    )
    remote = RouterConfig(remote="tcp://sesame:5790")
    secret = msgspec.structs.replace(secret, plugins={"http": {"key": "sesame"}}, router=remote)
    header = file.header(secret, version="0.9", started=1.0)
    assert b"sesame" not in file.encoded(header)
    found = file.parse(PATH, raw(header=header)).config
    assert found.stage[0].params == {"prefix": "xxxxxx", "temperature": 0.5}
    assert (found.router, header.config["router"]["remote"]) == (RouterConfig(), "")
    assert [edge.target for edge in found.edge] == ["talker", "code2wav"]
