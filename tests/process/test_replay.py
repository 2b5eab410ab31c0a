"""Recordings of real deployments, and the command that replays them.

That every other deployment of the tests agrees with its recording is looked after by `launched`.
"""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support.drill import play
from support.running import Asking, Held, document, omnizmq, recorded, until

from omnizmq import AsyncClient
from omnizmq.recording import file

pytestmark = pytest.mark.usefixtures("no_leaks")

SCENARIOS = Path(__file__).parents[1] / "scenarios"
PROMPT = "sesame uncovers every treasure"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Of two requests beside each other, of a deployment that was stopped."""
    path = tmp_path / "recording.jsonl"

    async def both(client: AsyncClient) -> None:
        params = {"thinker": {"max_tokens": 4}}
        asked = [Asking(client, PROMPT, request_id=name, params=params) for name in ("one", "two")]
        for asking in asked:
            assert await asking.error() is None

    with recorded(path, "synthetic") as deployment:
        play(deployment, both)
        assert deployment.stop() == 0
    return path


def test_a_fresh_router_orders_the_same_and_nothing_can_be_read_of_what_was_said(recording: Path) -> None:
    done = omnizmq("replay", str(recording))
    assert done.returncode == 0
    assert done.stdout.rstrip().endswith("commands: all the same")
    found = document(omnizmq("replay", str(recording), "--json"))
    assert (found["same"], found["ended"], found["difference"]) == (True, "the deployment has stopped", None)
    written = recording.read_text()
    assert not any(word in written for word in PROMPT.split())
    assert stat.S_IMODE(recording.stat().st_mode) == 0o600


def test_events_can_be_listed_shown_and_left_out(recording: Path) -> None:
    listed = document(omnizmq("replay", str(recording), "--json", "--commands", "--request", "one"))["listed"]
    assert listed[0]["input"] == "ClientSent Submit"
    assert "Fact asked" in listed[0]["commands"]
    first = listed[0]["n"]
    shown = document(omnizmq("replay", str(recording), "--json", "--show", str(first)))["event"]
    assert shown["input"]["frame"]["prompt"]["text"] == {"$chars": len(PROMPT)}
    assert shown["expected"] == shown["got"]
    assert document(omnizmq("replay", str(recording), "--json", "--until", str(first)))["events"] == first
    text = omnizmq("replay", str(recording), "--commands", "--show", str(first)).stdout
    assert f"event {first}: ClientSent(client=" in text
    assert "-> ToWorker SubmitStage code2wav/0" in text
    assert "\n          (no commands)\n" in text
    label, facts = (
        text.index("  the router's commands:\n"),
        text.index("  facts for the trace, which are not compared:\n"),
    )
    assert label < text.index("ToWorker(replica=code2wav/0", label) < facts < text.index("event=asked", facts)


def test_one_command_makes_a_scenario_of_one_request(recording: Path, tmp_path: Path) -> None:
    made = tmp_path / "one.jsonl"
    done = omnizmq("replay", str(recording), "--request", "one", "--scenario", str(made))
    assert done.returncode == 0, done.stderr
    assert "/run/" in recording.read_text(), "where the sockets were"
    assert "/run/" not in made.read_text(), "a scenario is of no machine"
    assert f"{made}: written" in done.stdout
    assert document(omnizmq("replay", str(made), "--json"))["same"]
    lines = file.read(made).lines
    assert len(lines) < len(file.read(recording).lines)
    assert "one-" in made.read_text()
    assert "two-" not in made.read_text()


FAULTS = (
    "router.heartbeat_interval_s=0.2",
    "router.redrive=never",
    "router.output_window=1",
    "stage.talker.options.silent_at=2",
    "stage.talker.options.fault_only=silent",
    "stage.code2wav.step_timeout_s=3",
    "stage.code2wav.options.hang_at=2",
    "stage.code2wav.options.fault_only=hang",
)


def test_faults_beside_each_other_become_scenarios_of_one_each(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"

    async def faults(client: AsyncClient) -> None:
        silent = Asking(client, PROMPT, request_id="silent", deadline_s=15)
        await until(lambda: len(silent.outputs) > 0)
        hang = Held(client, PROMPT, after=1, request_id="hang")  # it does not hang before it is read
        await until(lambda: len(hang.outputs) > 0)
        assert (await client.status())["live_requests"] == 2  # it names both
        assert await client.inspect("silent")
        assert await hang.error() is not None
        assert await silent.error() is not None

    with recorded(path, "synthetic", *FAULTS) as deployment:
        play(deployment, faults)
        assert deployment.stop() == 0
    for name, other in (("hang", "silent"), ("silent", "hang")):
        made = tmp_path / f"{name}.jsonl"
        done = omnizmq("replay", str(path), "--request", name, "--scenario", str(made), "--json")
        assert done.returncode == 0, done.stderr
        assert document(done)["scenario"]["beside"] == []
        assert document(omnizmq("replay", str(made), "--json"))["same"]
        found = file.read(made)
        assert found.header.about.startswith(f"{name}-")
        frames = [line.event["frame"]["$"] for line in found.lines if "frame" in line.event]
        assert not set(frames) & {"AskStatus", "AskTrace", "StageAnswer"}
        assert frames.count("Submit") == 1, f"{other} is not needed"
        assert any(order["$"] == "KillReplica" for line in found.lines for order in line.effects)


def test_a_scenario_that_cannot_be_written_is_said(recording: Path, tmp_path: Path) -> None:
    done = omnizmq("replay", str(recording), "--scenario", str(tmp_path / "nowhere" / "out.jsonl"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "out.jsonl cannot be written: No such file or directory" in done.stderr
    done = omnizmq("replay", str(recording), "--questions")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--questions: it is about what --scenario writes" in done.stderr


def test_the_recording_of_a_router_that_was_killed_is_read_to_where_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"

    async def one(client: AsyncClient) -> None:
        assert await Asking(client, PROMPT, request_id="one").error() is None
        await until(lambda: b'"Terminal"' in path.read_bytes())

    with recorded(path, "synthetic") as deployment:
        play(deployment, one)
        deployment.stop(signal.SIGKILL)
    done = omnizmq("replay", str(path))
    assert done.returncode == 0
    assert "all the same (" in done.stdout
    assert "the router was killed, or still" in done.stdout


def test_a_recording_that_has_its_size_ends_there_and_the_status_says_so(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"

    async def much(client: AsyncClient) -> None:
        assert await Asking(client, "x", request_id="one", modalities=["text"]).error() is None
        assert (await client.status())["recording_ended"] == "it has its 1 MiB (--record-max-mib)"

    many = ("stage.thinker.options.echo=false", "stage.thinker.options.chunks=5000")
    with recorded(path, "synthetic", *many, max_mib=1) as deployment:
        assert deployment.status()["recording_ended"] is None
        play(deployment, much)
        assert deployment.stop() == 0
    assert path.stat().st_size < (1 << 20) + 100
    found = document(omnizmq("replay", str(path), "--json"))
    assert (found["same"], found["ended"]) == (True, "it has its 1 MiB (--record-max-mib)")


def test_a_second_recording_does_not_overwrite_the_first(recording: Path) -> None:
    before = recording.read_bytes()
    done = omnizmq("launch", "--config", "synthetic", "--record", str(recording))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"--record {recording}: it exists already; name a new file" in done.stderr
    assert recording.read_bytes() == before


PLANTED = {
    "a stage is not told of an abort": (
        "abort_midway",
        "whole = Lifecycle._abort_stages; Lifecycle._abort_stages = lambda self: whole(self)[1:]",
        ("ClientSent", "Abort"),
    ),
    "the grace never ends": (
        "terminal_withheld",
        "Lifecycle._grace_expired = lambda self: []",
        ("Ticked", None),
    ),
    "a lost attempt fails": (
        "replica_killed",
        "Lifecycle._superseded = lambda self: []",
        ("ReplicaExited", None),
    ),
    "a terminal has another reason": (
        "text_and_audio",
        'Lifecycle._reason = lambda self: "length"',
        ("WorkerSent", "StageFinished"),
    ),
    "a caller is paused for ever": (
        "slow_reader",
        "from omnizmq.router.delivered import Delivered; Delivered.consume = lambda self, deliveries: False",
        ("ClientSent", "Consumed"),
    ),
}
"""What is changed, the scenario that meets it, and the event at which it shows."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_change_is_found_at_its_first_difference(name: str) -> None:
    scenario, change, (event, frame) = PLANTED[name]
    path = str(SCENARIOS / f"{scenario}.jsonl")
    assert omnizmq("replay", path).returncode == 0
    changed = changed_replay(change, path, "--json")
    found = document(changed)["difference"]
    assert changed.returncode == 1
    assert found["input"]["$"] == event
    assert found["input"].get("frame", {}).get("$") == frame
    assert found["expected"] != found["got"]
    said = changed_replay(change, path).stdout
    assert f"the first difference is at event {found['event']}," in said
    assert "(- recorded, + now)" in said


def changed_replay(change: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = (
        f"import sys; sys.argv = ['omnizmq', 'replay', *{arguments!r}]\n"
        f"from omnizmq import cli; from omnizmq.router.lifecycle import Lifecycle\n{change}\ncli.main()"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
