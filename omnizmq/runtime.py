"""Where a deployment lives on this machine: its directories, its lock, and how it is found again (F6, W2, I3).

A deployment's runtime directory, `<runtime root>/NAME` (0700), holds its sockets, its lock and `deployment.json`, and
goes with it. Traces and logs live in `<state root>/NAME` and stay.

Whether a deployment runs is decided by its lock alone: an flock on `NAME/lock`, which the kernel frees however the
owner ends. The descriptor is closed on exec, so a worker that was spawned does not hold it; one that was only forked
would. Facts that follow:

- One owner a name. A second `create` is refused, and says who has it.
- What a `kill -9` left is removed by the next `create`, `running`, `find` or `remove_if_dead`.
- Those four judge a lock by trying to take it, so they take turns (an flock on the root directory itself): none can
  mistake another's attempt for a live owner, or a dead owner's `deployment.json` for a live one's.
- Whoever removes what a dead owner left also ends the process groups that it had recorded there: a worker that is
  stopped, or that cannot look up from its work, does not hear of its router's death by itself.
- The owner's `remove` needs no turn. It unlinks the lock before the directory; whoever had just opened that lock finds
  by its inode that it guards nothing, and tries again.

This module knows nothing of sockets or engines.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from omnizmq.errors import ConfigError, LaunchError, NotFoundError

_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
_LOCK = "lock"
_PUBLISHED = "deployment.json"
_GROUP = ".group"
_TURN_TIMEOUT_S = 5.0
_TURN_POLL_S = 0.005
_SOCKET_PATH_BYTES = 107  # sockaddr_un.sun_path has 108, the last is a NUL


class Deployment(msgspec.Struct, frozen=True):
    """What a running deployment tells those who look for it. Readable by its own user alone: it holds a secret."""

    name: str
    endpoint: str  # of the clients' socket: ipc://…/clients.sock
    nonce: str  # the launch's secret, which every hello must bear
    pid: int  # of the router
    started_at: float  # wall clock, seconds since the epoch
    version: int  # of the protocol


# --- Names and directories -----------------------------------------------------------------------------------------


def check_name(name: str) -> str:
    """The name itself, or `ConfigError`: a deployment's name becomes a directory's (1 to 40 of A-Z a-z 0-9 _ -)."""
    if not _NAME.fullmatch(name):
        shown = name if len(name) <= 60 else name[:60] + "…"
        raise ConfigError(f"deployment name {shown!r} is not usable: a name has 1 to 40 letters, digits, '_' and '-'")
    return name


def runtime_root() -> Path:
    """`$XDG_RUNTIME_DIR/omnizmq`, or `/tmp/omnizmq-UID`; made when it is missing.

    `ConfigError` when it is not a directory of this user's that is closed to all others (W2).
    """
    base = _xdg("XDG_RUNTIME_DIR")
    if base is not None and not base.is_dir():
        raise ConfigError(
            f"XDG_RUNTIME_DIR is {base}, which is not a directory: make it, or unset the variable to use {_fallback()}"
        )
    root = base / "omnizmq" if base is not None else _fallback()
    try:
        with suppress(FileExistsError):
            root.mkdir(mode=0o700)
        _check_private(root)
    except OSError as error:
        raise ConfigError(f"runtime directory {root} cannot be used: {error.strerror}; set XDG_RUNTIME_DIR") from error
    return root


def state_root() -> Path:
    """`$XDG_STATE_HOME/omnizmq`, or `~/.local/state/omnizmq`. It may not exist yet."""
    base = _xdg("XDG_STATE_HOME")
    if base is None:
        try:
            base = Path.home() / ".local" / "state"
        except RuntimeError as error:
            raise ConfigError("no place for traces and logs: set HOME or XDG_STATE_HOME") from error
    return base / "omnizmq"


def state_dir(name: str) -> Path:
    """Where the traces and logs of the deployment `name` go; made (0700) when it is missing, else `ConfigError`."""
    path = state_root() / check_name(name)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"state directory {path} cannot be made: {error.strerror}; set XDG_STATE_HOME") from error
    return path


def ipc_endpoint(path: Path) -> str:
    """The ZeroMQ endpoint of the Unix socket at the absolute `path`, or `ConfigError` when that is too long."""
    size = len(os.fsencode(path))
    if size > _SOCKET_PATH_BYTES:
        raise ConfigError(
            f"socket path {path} has {size} bytes and a Unix socket takes {_SOCKET_PATH_BYTES}: "
            "set XDG_RUNTIME_DIR to a shorter directory, or choose a shorter name"
        )
    return f"ipc://{path}"


def _xdg(variable: str) -> Path | None:
    """The directory a variable of the XDG base directory specification names; it says to ignore relative ones."""
    value = os.environ.get(variable, "")
    return Path(value) if value.startswith("/") else None


def _fallback() -> Path:
    return Path(f"/tmp/omnizmq-{os.getuid()}")


def _check_private(root: Path) -> None:
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode):
        wrong = "is not a directory"
    elif found.st_uid != os.getuid():
        wrong = f"belongs to uid {found.st_uid}, not to you (uid {os.getuid()})"
    elif found.st_mode & 0o077:
        wrong = f"is open to others (mode {stat.S_IMODE(found.st_mode):04o}, it must be 0700)"
    else:
        return
    raise ConfigError(
        f"runtime directory {root} {wrong}: remove it, or set XDG_RUNTIME_DIR to a private directory of yours"
    )


# --- Owning ----------------------------------------------------------------------------------------------------------


class RuntimeDir:
    """A runtime directory that this process owns until `remove`, or until it ends."""

    def __init__(self, path: Path, lock: int) -> None:
        """`lock` is the descriptor of the lock that is held. Use `create`."""
        self.path = path
        self._lock: int | None = lock

    @classmethod
    def create(cls, name: str) -> RuntimeDir:
        """Own the name: an empty directory (0700) whose lock this process holds.

        What a dead owner left there is removed first. `LaunchError` when a live one has it.
        """
        path = runtime_root() / check_name(name)
        try:
            with _turn(path.parent):
                lock = _take(path)
                if lock is None:
                    raise LaunchError(f"a deployment named {name!r} is already running ({_owner(path)})")
                _occupy(path, lock)
        except OSError as error:
            raise LaunchError(f"runtime directory {path} cannot be made: {error.strerror}") from error
        return cls(path, lock)

    def publish(self, deployment: Deployment) -> None:
        """Let it be found: readers see the whole of it or nothing. May be repeated; the last one counts."""
        draft = self.path / f"{_PUBLISHED}.new"
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(msgspec.json.encode(deployment))
            draft.replace(self.path / _PUBLISHED)
        except OSError as error:
            raise LaunchError(f"runtime directory {self.path} cannot be written: {error.strerror}") from error

    def remove(self) -> None:
        """Give the name up and remove the directory with all that is in it. May be repeated."""
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        _remove(self.path, lock)


def record_group(directory: Path, pid: int) -> None:
    """The process `pid` leads a group that shall end with the deployment. `OSError` when that cannot be written."""
    (directory / f"{pid}{_GROUP}").write_text(_started(pid))


def forget_group(directory: Path, pid: int) -> None:
    """The group has ended."""
    (directory / f"{pid}{_GROUP}").unlink(missing_ok=True)


def remove_if_dead(path: Path, nonce: str) -> bool:
    """Remove what a dead router left: for its workers, each of which may be the last (F6). True: it was removed.

    Nothing happens while the lock is held (the router lives, or the name has a new owner), or when the directory is
    that of another launch.
    """
    if not path.is_dir():
        return False
    with _turn(path.parent):
        lock = _take(path)
        if lock is None:
            return False
        found = _published(path)
        if found is not None and found.nonce != nonce:
            os.close(lock)
            return False
        _remove(path, lock)
        return True


# --- Finding ---------------------------------------------------------------------------------------------------------


def running() -> list[Deployment]:
    """The deployments of this user that live and have published, by name. What dead ones left is removed."""
    root = runtime_root()
    found = []
    with _turn(root):
        for path in sorted(root.iterdir()):
            if not _NAME.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
                continue
            lock = _take(path)
            if lock is not None:
                _remove(path, lock)
            elif (deployment := _published(path)) is not None:
                found.append(deployment)
    return found


def find(connect: str | None = None) -> Deployment:
    """The running deployment with this name or endpoint; None: the only one.

    `NotFoundError` when there is none, or when None was asked for and there are several: they are listed.
    """
    found = running()
    if connect is not None:
        return _named(connect, found)
    if not found:
        raise NotFoundError("no deployment is running: start one with `omnizmq launch --config embedded`")
    if len(found) > 1:
        raise NotFoundError(f"{len(found)} deployments are running, choose one with --connect NAME: {_listed(found)}")
    return found[0]


def _named(connect: str, found: list[Deployment]) -> Deployment:
    for deployment in found:
        if connect in (deployment.name, deployment.endpoint):
            return deployment
    if _NAME.fullmatch(connect) and (runtime_root() / connect).is_dir():
        raise NotFoundError(f"deployment {connect!r} is still starting: wait for its `ready` line")
    shown = connect if len(connect) <= 120 else connect[:120] + "…"
    if not found:
        raise NotFoundError(
            f"no deployment {shown!r} is running, nor any other: start one with `omnizmq launch --config embedded`"
        )
    raise NotFoundError(f"no deployment {shown!r} is running; those that are: {_listed(found)}")


def _listed(found: list[Deployment]) -> str:
    return ", ".join(f"{deployment.name} (pid {deployment.pid})" for deployment in found)


def _published(path: Path) -> Deployment | None:
    """What the directory's owner has published. None: nothing yet, or nothing that this version understands."""
    try:
        return msgspec.json.decode((path / _PUBLISHED).read_bytes(), type=Deployment)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return None


# --- Locks -----------------------------------------------------------------------------------------------------------


@contextmanager
def _turn(root: Path) -> Iterator[None]:
    """One process at a time judges the locks below `root`. `LaunchError` when another one takes unreasonably long."""
    deadline = time.monotonic() + _TURN_TIMEOUT_S
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while not _flock(directory):
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"another process has kept {root} locked for {_TURN_TIMEOUT_S:g} s: "
                    "is an omnizmq command stopped (Ctrl-Z) there?"
                )
            time.sleep(_TURN_POLL_S)
        yield
    finally:
        os.close(directory)


def _take(path: Path) -> int | None:
    """The descriptor of the directory's lock, now held; the directory is made when it is missing. None: in use.

    Only in a turn. It goes round again when the owner removed the directory meanwhile.
    """
    while True:
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        try:
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            continue
        held = _flock(lock)
        if _is_at(lock, path / _LOCK):
            if held:
                return lock
            os.close(lock)
            return None
        os.close(lock)


def _flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is (still) the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _occupy(path: Path, lock: int) -> None:
    """Make the directory new, and say in its lock who holds it."""
    try:
        _empty(path)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    except OSError:
        os.close(lock)
        raise


def _owner(path: Path) -> str:
    try:
        return f"pid {int((path / _LOCK).read_bytes())}"
    except (OSError, ValueError):
        return "pid unknown"


def _remove(path: Path, lock: int) -> None:
    """Remove the directory whose `lock` is held, and free it. A directory that is no longer ours is left alone."""
    try:
        if _is_at(lock, path / _LOCK):
            _empty(path)
            (path / _LOCK).unlink(missing_ok=True)
            with suppress(OSError):  # a new owner may be there already
                path.rmdir()
    finally:
        os.close(lock)


def _empty(path: Path) -> None:
    """Remove everything but the lock, what makes it findable first; end the groups that are recorded here."""
    (path / _PUBLISHED).unlink(missing_ok=True)
    _end_groups(path)
    for entry in list(os.scandir(path)):
        if entry.name == _LOCK:
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            Path(entry.path).unlink(missing_ok=True)


# --- Process groups --------------------------------------------------------------------------------------------------


def _end_groups(path: Path) -> None:
    """Kill the recorded groups but our own. A number that another process bears today is left alone."""
    for record in path.glob(f"*{_GROUP}"):
        with suppress(OSError, ValueError):
            pid = int(record.stem)
            if pid != os.getpgrp() and _started(pid) == record.read_text():
                os.killpg(pid, signal.SIGKILL)


def _started(pid: int) -> str:
    """When the process started, in the kernel's ticks since boot. `OSError` when there is none of that number."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
