"""The examples for curl, as they are printed; the port alone is another."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile
from support.running import Running

pytestmark = [
    pytest.mark.embedded,
    pytest.mark.http,
    pytest.mark.skipif(shutil.which("curl") is None, reason="not installed: curl"),
]

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
HERE = "http://127.0.0.1:8091"


def examples() -> list[str]:
    """Every block of commands that begins with curl and asks the bridge."""
    blocks = [block for page in PAGES for block in re.findall(r"```\w*\n(curl .*?)```", page.read_text(), re.DOTALL)]
    return list(dict.fromkeys(block for block in blocks if HERE in block))


def chat(shown: str, _: Path) -> None:
    assert json.loads(shown)["choices"][0]["message"]["content"].endswith(".")


def stream(shown: str, _: Path) -> None:
    *lines, done = [line.removeprefix("data: ") for line in shown.split("\n\n") if line]
    assert done == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    deltas = [choice["delta"].get("audio") or {} for chunk in chunks for choice in chunk["choices"]]
    assert len(base64.b64decode("".join(delta.get("data", "") for delta in deltas))) > 24000
    assert chunks[-1]["usage"]["completion_tokens"] > 3


def sound(shown: str, folder: Path) -> None:
    assert shown == ""
    (path,) = folder.iterdir()
    with soundfile.SoundFile(path) as file:
        assert file.format == path.suffix[1:].upper()
        assert len(file.read()) > 24000


def own_request(shown: str, _: Path) -> None:
    decoder, documents = json.JSONDecoder(), []
    while shown:
        document, end = decoder.raw_decode(shown)
        documents.append(document)
        shown = shown[end:].lstrip()
    answer, trace, abort = documents
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert (trace["external_id"], trace["state"]) == ("mine", "ended")
    assert abort == {"id": "mine", "aborted": 0}


def served(shown: str, _: Path) -> None:
    assert '"id":"embedded"' in shown
    assert shown.endswith('{"status":"ready"}')


KINDS: dict[str, Callable[[str, Path], None]] = {
    "x-request-id": own_request,
    '"stream": true': stream,
    "/v1/audio/speech": sound,
    "/v1/chat/completions": chat,
    "/health/ready": served,
}
"""What an example shows, by the first of these that it has."""


def test_each_kind_has_an_example() -> None:
    found = [next(kind for kind in KINDS if kind in example) for example in examples()]
    assert set(found) == set(KINDS)


@pytest.mark.parametrize("example", examples())
def test_an_example_does_what_it_is_printed_for(example: str, deployment: Running, tmp_path: Path) -> None:
    command = example.replace(HERE, deployment.ready["plugins"]["http"]).replace("curl ", "curl -sS ")
    done = subprocess.run(
        ["bash", "-ec", command], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    KINDS[next(kind for kind in KINDS if kind in example)](done.stdout, tmp_path)
