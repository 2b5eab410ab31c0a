"""A model by its hub's name, found where an earlier download left it; nothing is fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from omnizmq.errors import ModelNotFoundError
from omnizmq.workers.engines.hf import hub

NAME = "Some-Org/Model-30B.v1"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path / ".cache" / "huggingface" / "hub"


def downloaded(cache: Path, *revisions: str, main: str | None = None) -> Path:
    folder = cache / "models--Some-Org--Model-30B.v1"
    for revision in revisions:
        (folder / "snapshots" / revision).mkdir(parents=True)
    if main is not None:
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(main)
    return folder / "snapshots"


def test_the_revision_that_main_is(cache: Path) -> None:
    snapshots = downloaded(cache, "a1", "b2", main="b2")
    assert hub.find(NAME) == snapshots / "b2"


def test_the_only_revision_where_there_is_no_main(cache: Path) -> None:
    snapshots = downloaded(cache, "a1")
    assert hub.find(NAME) == snapshots / "a1"


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"HF_HUB_CACHE": "own"}, "own"),
        ({"HF_HOME": "home"}, "home/hub"),
        ({"XDG_CACHE_HOME": "xdg"}, "xdg/huggingface/hub"),
        ({"HF_HUB_CACHE": "own", "HF_HOME": "home"}, "own"),
    ],
)
def test_the_hubs_own_variables_say_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], place: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    snapshots = downloaded(tmp_path / place, "a1", main="a1")
    assert hub.find(NAME) == snapshots / "a1"


def test_a_directory_comes_first(cache: Path, tmp_path: Path) -> None:
    downloaded(cache, "a1", main="a1")
    (tmp_path / NAME).mkdir(parents=True)
    assert hub.find(NAME) == Path(NAME)
    assert hub.find("~/Some-Org") == tmp_path / "Some-Org"


@pytest.mark.parametrize(("revisions", "main"), [((), None), (("a1", "b2"), None), (("a1",), "c3")])
def test_what_was_not_downloaded_is_said_with_the_command(
    cache: Path, revisions: tuple[str, ...], main: str | None
) -> None:
    downloaded(cache, *revisions, main=main)
    with pytest.raises(ModelNotFoundError) as caught:
        hub.find(NAME)
    said = f'neither a directory nor in the hub\'s cache {cache}; "hf download {NAME}" brings it there'
    assert caught.value.message == f'model = "{NAME}": {said}'


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("model", ["", "/nowhere/at/all", "nowhere", "a/b/c", "../x"])
def test_what_is_no_name_of_a_hub_must_be_a_directory(model: str) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no such directory; it must be that of a checkpoint"):
        hub.find(model)
