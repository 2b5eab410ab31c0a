"""How much memory may still be allocated: procfs and control groups of every kind, as files in a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from omnizmq.shm.available import available_bytes

MIB = 1 << 20


class Machine:
    """A procfs with 1000 MiB available, and control groups mounted beside it."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.groups = root / "cgroup of this machine"
        write(self.proc / "meminfo", f"MemTotal: 9000000 kB\nMemFree: 1 kB\nMemAvailable: {1000 << 10} kB\n")

    def process_in(self, *lines: str) -> None:
        write(self.proc / "self/cgroup", "".join(line + "\n" for line in lines))

    def mounted(self, *mounts: tuple[str, str, str]) -> None:
        """Of each: file system type, the group that is mounted, options."""
        where = str(self.groups).replace(" ", r"\040")
        rows = ["22 1 0:21 / /proc rw,relatime shared:5 - proc proc rw\n"]
        for kind, root, options in mounts:
            point = where if kind == "cgroup2" else f"{where}/{options}"
            rows.append(f"30 23 0:26 {root} {point} rw,nosuid shared:9 master:1 - {kind} {kind} rw,{options}\n")
        write(self.proc / "self/mountinfo", "".join(rows))

    def v2(self, group: str, limit: str, used_mib: int, *, cache_mib: int = 0) -> None:
        directory = self.groups / group
        write(directory / "memory.max", f"{limit}\n")
        write(directory / "memory.current", f"{used_mib * MIB}\n")
        half = cache_mib * MIB // 2
        write(directory / "memory.stat", f"anon 5\nfile 999999999\nshmem 7\ninactive_file {half}\nactive_file {half}\n")

    def v1(self, group: str, limit: int, used_mib: int, *, cache_mib: int = 0) -> None:
        directory = self.groups / "memory" / group
        write(directory / "memory.limit_in_bytes", f"{limit}\n")
        write(directory / "memory.usage_in_bytes", f"{used_mib * MIB}\n")
        half = cache_mib * MIB // 2
        stat = f"cache 999999999\ninactive_file 3\ntotal_inactive_file {half}\ntotal_active_file {half}\n"
        write(directory / "memory.stat", stat)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def mib(machine: Machine) -> tuple[float, str]:
    room, limit = available_bytes(machine.proc)
    return room / MIB, limit.replace(f" of {machine.groups}", " of ")


def test_without_control_groups_the_machine_limits(machine: Machine) -> None:
    assert mib(machine) == (1000, "this machine")


def test_v2_a_limit_less_what_is_used(machine: Machine) -> None:
    machine.process_in("0::/app.slice/worker")
    machine.mounted(("cgroup2", "/", "nsdelegate"))
    machine.v2("app.slice/worker", str(300 * MIB), 120)
    assert mib(machine) == (180, "its control group (memory.max of /app.slice/worker)")


def test_v2_file_cache_can_be_given_back_but_shared_memory_cannot(machine: Machine) -> None:
    machine.process_in("0::/worker")
    machine.mounted(("cgroup2", "/", "nsdelegate"))
    machine.v2("worker", str(300 * MIB), 120, cache_mib=50)
    assert mib(machine)[0] == 230


def test_v2_an_ancestors_limit_counts(machine: Machine) -> None:
    machine.process_in("0::/outer/middle/inner")
    machine.mounted(("cgroup2", "/", "nsdelegate"))
    machine.v2("outer", str(100 * MIB), 90)
    machine.v2("outer/middle", "max", 80)
    machine.v2("outer/middle/inner", str(500 * MIB), 10)
    assert mib(machine) == (10, "its control group (memory.max of /outer)")


def test_v2_no_limit_at_all(machine: Machine) -> None:
    machine.process_in("0::/worker")
    machine.mounted(("cgroup2", "/", "nsdelegate"))
    machine.v2("worker", "max", 5000)
    assert mib(machine) == (1000, "this machine")


def test_v2_a_container_whose_own_group_is_the_mount(machine: Machine) -> None:
    machine.process_in("0::/")
    machine.mounted(("cgroup2", "/", "nsdelegate"))
    machine.v2("", str(64 * MIB), 4)
    assert mib(machine)[0] == 60


@pytest.mark.parametrize("path", ["/../../host.slice/other", "/kubepods/pod7"])
def test_v2_a_path_outside_of_what_is_mounted(machine: Machine, path: str) -> None:
    machine.process_in(f"0::{path}")
    machine.mounted(("cgroup2", "/docker/4711", "nsdelegate"))
    machine.v2("", str(64 * MIB), 4)
    assert mib(machine)[0] == 60


def test_more_used_than_allowed_is_nothing_left(machine: Machine) -> None:
    machine.process_in("0::/worker")
    machine.mounted(("cgroup2", "/", "nsdelegate"))
    machine.v2("worker", str(64 * MIB), 65)
    assert mib(machine)[0] == 0


def test_v1_the_memory_controller_among_others(machine: Machine) -> None:
    machine.process_in("5:cpu,cpuacct:/elsewhere", "4:memory:/docker/4711/worker", "0::/")
    machine.mounted(("cgroup", "/docker/4711", "cpu"), ("cgroup", "/docker/4711", "memory"))
    machine.v1("", 400 * MIB, 100)
    machine.v1("worker", 300 * MIB, 120, cache_mib=20)
    assert mib(machine) == (200, "its control group (memory.limit_in_bytes of /memory/worker)")


def test_v1_an_unlimited_group(machine: Machine) -> None:
    machine.process_in("4:memory:/")
    machine.mounted(("cgroup", "/", "memory"))
    machine.v1("", 9223372036854771712, 100)
    assert mib(machine) == (1000, "this machine")


def test_both_versions_the_smaller_one_counts(machine: Machine) -> None:
    machine.process_in("4:memory:/old", "0::/new")
    machine.mounted(("cgroup", "/", "memory"), ("cgroup2", "/", "nsdelegate"))
    machine.v1("old", 400 * MIB, 100)
    machine.v2("new", str(350 * MIB), 100)
    assert mib(machine)[0] == 250
    machine.v1("old", 120 * MIB, 100)
    assert mib(machine)[0] == 20


def test_groups_that_are_listed_but_not_mounted(machine: Machine) -> None:
    machine.process_in("4:memory:/old", "0::/new")
    machine.mounted()
    assert mib(machine) == (1000, "this machine")


def test_no_procfs_means_nothing_is_known_to_be_available(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) == (0, f"{tmp_path}/meminfo, which cannot be read")


def test_this_machine_itself_has_something_available() -> None:
    room, limit = available_bytes()
    assert room > MIB
    assert limit
