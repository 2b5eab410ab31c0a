"""Runtime directories, locks and discovery, with real processes and real kills (F6, W2, I3)."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from omnizmq import runtime
from omnizmq.errors import ConfigError, LaunchError, NotFoundError
from omnizmq.protocol import VERSION
from omnizmq.runtime import Deployment, RuntimeDir, find, remove_if_dead, running

OWNER = """
import sys, os, time
from omnizmq.runtime import Deployment, RuntimeDir
name, publish = sys.argv[1], sys.argv[2] == "publish"
mine = RuntimeDir.create(name)
(mine.path / "clients.sock").touch()
(mine.path / "engines").mkdir()
(mine.path / "engines" / "x.sock").touch()
if publish:
    endpoint = f"ipc://{mine.path}/clients.sock"
    mine.publish(Deployment(name, endpoint, f"nonce-of-{name}", os.getpid(), time.time(), 1))
print("ready", flush=True)
sys.stdin.read()
mine.remove()
mine.remove()
"""

WORKER = """
import pathlib, sys
from omnizmq.runtime import remove_if_dead
remove_if_dead(pathlib.Path(sys.argv[1]), "nonce-of-demo")
"""

CONTENDER = """
import os, random, sys
from omnizmq.errors import LaunchError
from omnizmq.runtime import Deployment, RuntimeDir
seed, rounds = int(sys.argv[1]), int(sys.argv[2])
draw = random.Random(seed)
owned = 0
while owned < rounds:
    try:
        mine = RuntimeDir.create("one")
    except LaunchError as error:
        assert "already running" in str(error), error
        continue
    owned += 1
    os.close(os.open(mine.path / "mark", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    mine.publish(Deployment("one", "ipc:///x", str(seed), os.getpid(), 0.0, 1))
    assert sorted(os.listdir(mine.path)) == ["deployment.json", "lock", "mark"], os.listdir(mine.path)
    if draw.random() < 0.5:
        mine.remove()
    else:
        os.close(mine._lock)
"""


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts owners that live until they are told, or killed."""
    started: list[subprocess.Popen[str]] = []

    def spawn(name: str, publish: bool = True) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", OWNER, name, "publish" if publish else "quiet"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield spawn
    for process in started:
        process.kill()
        process.communicate()


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def entries(base: Path) -> list[str]:
    return sorted(os.listdir(base / "omnizmq"))


class TestDirectories:
    def test_w2_root_is_private(self, base: Path) -> None:
        root = runtime.runtime_root()
        assert root == base / "omnizmq"
        assert stat.S_IMODE(root.stat().st_mode) == 0o700

    def test_without_xdg_the_root_bears_the_uid(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for value in ("", "relative/is/ignored"):
            monkeypatch.setenv("XDG_RUNTIME_DIR", value)
            made = Path(f"/tmp/omnizmq-{os.getuid()}").exists()
            root = runtime.runtime_root()
            assert root == Path(f"/tmp/omnizmq-{os.getuid()}")
            if not made:
                root.rmdir()

    @pytest.mark.parametrize("mode", [0o750, 0o701, 0o777])
    def test_w2_a_root_that_is_open_to_others_is_refused(self, base: Path, mode: int) -> None:
        (base / "omnizmq").mkdir()
        (base / "omnizmq").chmod(mode)
        with pytest.raises(ConfigError, match=rf"omnizmq is open to others \(mode {mode:04o}, it must be 0700\): "):
            runtime.runtime_root()

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
    def test_w2_a_root_of_another_user_is_refused(self, base: Path) -> None:
        (base / "omnizmq").mkdir(mode=0o700)
        os.chown(base / "omnizmq", 12345, -1)
        with pytest.raises(ConfigError, match=r"belongs to uid 12345, not to you \(uid 0\): remove it, or set XDG_"):
            runtime.runtime_root()

    @pytest.mark.parametrize("kind", ["file", "symlink"])
    def test_w2_a_root_that_is_no_directory_is_refused(self, base: Path, kind: str) -> None:
        (base / "elsewhere").mkdir(mode=0o700)
        root = base / "omnizmq"
        root.touch() if kind == "file" else root.symlink_to(base / "elsewhere")
        with pytest.raises(ConfigError, match="omnizmq is not a directory"):
            runtime.runtime_root()

    def test_a_base_that_is_missing_is_named(self, monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(base / "none"))
        with pytest.raises(ConfigError, match=r"^XDG_RUNTIME_DIR is .*/none, which is not a directory: make it, or un"):
            runtime.runtime_root()

    def test_state_stays_apart(self, monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
        assert runtime.state_root() == base / "state" / "omnizmq"
        assert not runtime.state_root().exists()
        path = runtime.state_dir("demo")
        assert path == base / "state" / "omnizmq" / "demo"
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        monkeypatch.delenv("XDG_STATE_HOME")
        monkeypatch.setenv("HOME", str(base))
        assert runtime.state_root() == base / ".local" / "state" / "omnizmq"

    def test_state_that_cannot_be_made_is_named(self, monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
        (base / "file").touch()
        monkeypatch.setenv("XDG_STATE_HOME", str(base / "file"))
        with pytest.raises(ConfigError, match=r"state directory .*/file/omnizmq/demo cannot be made: Not a directory"):
            runtime.state_dir("demo")

    @pytest.mark.parametrize("name", ["a", "A-b_9", "x" * 40])
    def test_i3_good_names(self, name: str) -> None:
        assert runtime.check_name(name) == name

    @pytest.mark.parametrize("name", ["", "x" * 41, "a b", "../a", "a/b", ".", "ä", "a\n", "a\0"])
    def test_i3_bad_names(self, name: str) -> None:
        with pytest.raises(ConfigError, match="is not usable: a name has 1 to 40 letters, digits, '_' and '-'"):
            runtime.check_name(name)
        with pytest.raises(ConfigError):
            RuntimeDir.create(name)

    def test_socket_paths_have_a_limit(self) -> None:
        path = Path("/" + "x" * 106)
        assert runtime.ipc_endpoint(path) == f"ipc://{path}"
        with pytest.raises(ConfigError, match=r"has 108 bytes and a Unix socket takes 107: set XDG_RUNTIME_DIR"):
            runtime.ipc_endpoint(Path("/" + "x" * 107))
        with pytest.raises(ConfigError, match="has 108 bytes"):
            runtime.ipc_endpoint(Path("/" + "x" * 105 + "ü"))


class TestOwning:
    def test_w2_the_directory_is_private_and_goes(self, base: Path) -> None:
        mine = RuntimeDir.create("demo")
        assert mine.path == base / "omnizmq" / "demo"
        assert stat.S_IMODE(mine.path.stat().st_mode) == 0o700
        mine.publish(Deployment("demo", "ipc:///x", "secret", os.getpid(), 1.5, VERSION))
        assert stat.S_IMODE((mine.path / "deployment.json").stat().st_mode) == 0o600
        assert running() == [Deployment("demo", "ipc:///x", "secret", os.getpid(), 1.5, VERSION)]
        mine.remove()
        mine.remove()
        assert entries(base) == []

    def test_a_name_has_one_owner(self, start: Callable[..., subprocess.Popen[str]]) -> None:
        owner = start("demo")
        with pytest.raises(LaunchError, match=rf"a deployment named 'demo' is already running \(pid {owner.pid}\)"):
            RuntimeDir.create("demo")
        owner.communicate("")
        assert owner.returncode == 0
        RuntimeDir.create("demo").remove()

    def test_f6_the_next_start_sweeps_what_a_kill_left(
        self, base: Path, start: Callable[..., subprocess.Popen[str]]
    ) -> None:
        kill(start("demo"))
        assert sorted(os.listdir(base / "omnizmq" / "demo")) == ["clients.sock", "deployment.json", "engines", "lock"]
        mine = RuntimeDir.create("demo")
        assert os.listdir(mine.path) == ["lock"]
        assert running() == []
        mine.remove()

    def test_a_lock_survives_no_exec(self, base: Path) -> None:
        mine = RuntimeDir.create("demo")
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
        try:
            mine.remove()
            RuntimeDir.create("demo").remove()
        finally:
            child.kill()
            child.wait()
        assert entries(base) == []

    def test_remove_leaves_a_successors_directory_alone(self, base: Path) -> None:
        old = RuntimeDir.create("demo")
        (base / "omnizmq" / "demo").rename(base / "away")
        new = RuntimeDir.create("demo")
        old.remove()
        assert os.listdir(new.path) == ["lock"]
        with pytest.raises(LaunchError, match="already running"):
            RuntimeDir.create("demo")
        new.remove()

    def test_symbolic_links_are_not_followed(self, base: Path) -> None:
        (base / "precious").mkdir()
        (base / "precious" / "file").touch()
        mine = RuntimeDir.create("demo")
        (mine.path / "link").symlink_to(base / "precious")
        mine.remove()
        assert entries(base) == []
        assert (base / "precious" / "file").exists()

    def test_publishing_into_a_directory_that_is_gone_fails_clearly(self, base: Path) -> None:
        mine = RuntimeDir.create("demo")
        (base / "omnizmq" / "demo").rename(base / "away")
        with pytest.raises(LaunchError, match=r"demo cannot be written: No such file or directory"):
            mine.publish(Deployment("demo", "ipc:///x", "", 1, 1.5, VERSION))
        mine.remove()

    def test_a_file_in_the_way_is_named(self, base: Path) -> None:
        runtime.runtime_root()
        (base / "omnizmq" / "demo").touch()
        with pytest.raises(LaunchError, match=r"omnizmq/demo cannot be made: Not a directory"):
            RuntimeDir.create("demo")
        assert running() == []

    def test_contenders_never_share_a_name(self, base: Path) -> None:
        """Four processes create, remove and abandon one name; each finds its directory new and its own."""
        command = [sys.executable, "-c", CONTENDER]
        contenders = [
            subprocess.Popen([*command, str(seed), "100"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for seed in range(4)
        ]
        seen = set()
        while any(contender.poll() is None for contender in contenders):
            seen |= {deployment.pid for deployment in running()}
        for contender in contenders:
            _, err = contender.communicate()
            assert contender.returncode == 0, err
        assert seen <= {contender.pid for contender in contenders}
        assert running() == []
        assert entries(base) == []


class TestFinding:
    def test_none(self) -> None:
        assert running() == []
        with pytest.raises(NotFoundError, match="no deployment is running: start one with `omnizmq launch --config em"):
            find()
        with pytest.raises(NotFoundError, match="no deployment 'x' is running, nor any other: start one with"):
            find("x")

    def test_by_name_by_endpoint_and_alone(self, base: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
        process = start("first")
        only = find()
        assert (only.name, only.nonce, only.pid, only.version) == ("first", "nonce-of-first", process.pid, 1)
        assert only.endpoint == f"ipc://{base}/omnizmq/first/clients.sock"
        assert find("first") == only
        assert find(only.endpoint) == only

    def test_two_are_an_error_that_lists_them(self, start: Callable[..., subprocess.Popen[str]]) -> None:
        b, a = start("b"), start("a")
        assert [deployment.name for deployment in running()] == ["a", "b"]
        listed = rf"a \(pid {a.pid}\), b \(pid {b.pid}\)"
        with pytest.raises(NotFoundError, match=rf"2 deployments are running, choose .* --connect NAME: {listed}"):
            find()
        with pytest.raises(NotFoundError, match=rf"no deployment 'c' is running; those that are: {listed}"):
            find("c")
        assert find("b").pid == b.pid

    def test_one_that_has_not_published_is_not_found_yet(self, start: Callable[..., subprocess.Popen[str]]) -> None:
        start("slow", publish=False)
        assert running() == []
        with pytest.raises(NotFoundError, match="deployment 'slow' is still starting: wait for its `ready` line"):
            find("slow")

    def test_f6_a_killed_one_is_swept(self, base: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
        kill(start("gone"))
        start("alive")
        assert [deployment.name for deployment in running()] == ["alive"]
        assert entries(base) == ["alive"]

    def test_what_is_not_a_deployment_is_left_alone(self, base: Path) -> None:
        root = runtime.runtime_root()
        (root / "not.a.name").mkdir()
        (root / "file").touch()
        (base / "elsewhere").mkdir()
        (root / "link").symlink_to(base / "elsewhere")
        assert running() == []
        assert entries(base) == ["file", "link", "not.a.name"]
        assert (base / "elsewhere").exists()

    def test_what_does_not_decode_is_not_listed(self) -> None:
        mine = RuntimeDir.create("demo")
        for broken in (b"", b"{", b'{"name": 1}', b"\xff\xfe", b"[" * 5000):
            (mine.path / "deployment.json").write_bytes(broken)
            assert running() == []
        mine.remove()

    @pytest.mark.parametrize("connect", ["../demo", "a b", "x" * 300, "tcp://host:1", ""])
    def test_i3_odd_names_are_not_found_and_touch_nothing(self, base: Path, connect: str) -> None:
        (base / "demo").mkdir()
        with pytest.raises(NotFoundError):
            find(connect)
        assert (base / "demo").exists()

    @pytest.mark.parametrize("judge", ["create", "running", "remove_if_dead"])
    def test_judges_take_turns_and_name_one_that_is_stopped(
        self, monkeypatch: pytest.MonkeyPatch, start: Callable[..., subprocess.Popen[str]], judge: str
    ) -> None:
        kill(start("demo"))
        monkeypatch.setattr(runtime, "_TURN_TIMEOUT_S", 0.05)
        root = runtime.runtime_root()
        judges: dict[str, Callable[[], object]] = {
            "create": lambda: RuntimeDir.create("demo"),
            "running": running,
            "remove_if_dead": lambda: remove_if_dead(root / "demo", "nonce-of-demo"),
        }
        with runtime._turn(root), pytest.raises(LaunchError, match=r"another process has kept .* locked for 0.05 s"):
            judges[judge]()
        assert (root / "demo" / "clients.sock").exists()
        assert running() == []


class TestRemoveIfDead:
    def test_f6_a_dead_routers_directory_goes(self, base: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
        kill(start("demo"))
        path = base / "omnizmq" / "demo"
        assert not remove_if_dead(path, "nonce-of-another")
        assert path.exists()
        assert remove_if_dead(path, "nonce-of-demo")
        assert entries(base) == []
        assert not remove_if_dead(path, "nonce-of-demo")
        assert entries(base) == []

    def test_f6_one_that_died_before_it_published(
        self, base: Path, start: Callable[..., subprocess.Popen[str]]
    ) -> None:
        kill(start("demo", publish=False))
        assert remove_if_dead(base / "omnizmq" / "demo", "any")
        assert entries(base) == []

    def test_f6_the_living_keep_theirs(self, base: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
        process = start("demo")
        assert not remove_if_dead(base / "omnizmq" / "demo", "nonce-of-demo")
        assert find("demo").pid == process.pid

    def test_f6_a_successor_keeps_its_own(self, base: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
        kill(start("demo"))
        start("demo", publish=False)
        assert not remove_if_dead(base / "omnizmq" / "demo", "nonce-of-demo")
        assert (base / "omnizmq" / "demo" / "clients.sock").exists()

    def test_f6_many_workers_at_once(self, base: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
        kill(start("demo"))
        path = str(base / "omnizmq" / "demo")
        workers = [subprocess.Popen([sys.executable, "-c", WORKER, path]) for _ in range(4)]
        assert [worker.wait() for worker in workers] == [0, 0, 0, 0]
        assert entries(base) == []
