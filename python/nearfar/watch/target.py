"""What is watched: a process and its children, a control group, a systemd unit, a container."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nearfar.errors import NearfarError
from nearfar.processes import process_tree

PROC: Final = Path("/proc")
#: Mount points of control groups of version 2, and of the memory controller of version 1.
_MOUNTS: Final = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
_MEMORY_V1: Final = Path("/sys/fs/cgroup/memory")


@dataclass(frozen=True)
class Target:
    """A process and its descendants, or the processes of a control group.

    Attributes:
        name: for messages and file names.
        pid: the process; None for a group.
        started: when it started, in ticks since boot, because the kernel uses numbers again.
        group: the folder of the control group, if one is watched.
    """

    name: str
    pid: int | None = None
    started: int = 0
    group: Path | None = None

    def pids(self) -> list[int]:
        """The processes that exist now; empty once the target has ended."""
        if self.group is not None:
            return _members(self.group)
        assert self.pid is not None
        return process_tree(self.pid) if started(self.pid) == self.started else []


def of_pid(pid: int) -> Target:
    """A process and its descendants.

    Raises:
        NearfarError: there is no such process, or it is a kernel thread.
    """
    when = started(pid)
    if when is None:
        raise NearfarError(f"{pid}: no such process; `pgrep -a NAME` finds one")
    try:
        command = (PROC / str(pid) / "cmdline").read_bytes()
        name = (PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        raise NearfarError(f"{pid}: ended just now") from None
    if not command:
        raise NearfarError(f"{pid}: `{name}` is a kernel thread, which has no memory of its own")
    return Target(name, pid, when)


def of_group(path: str) -> Target:
    """The processes of a control group: a folder, or its path below the root of version 2.

    Raises:
        NearfarError: there is no such group, or it is empty.
    """
    places = [Path(path), *(mount / path.lstrip("/") for mount in (*_MOUNTS, _MEMORY_V1))]
    group = next((place for place in places if (place / "cgroup.procs").is_file()), None)
    if group is None:
        raise NearfarError(f"--cgroup {path}: no such control group; see /proc/PID/cgroup")
    if not _members(group):
        raise NearfarError(f"--cgroup {path}: has no process")
    return Target(group.name or "root", group=group)


def of_unit(name: str) -> Target:
    """The processes of a systemd unit.

    Raises:
        NearfarError: there is no systemctl (exit code 3), or the unit does not run.
    """
    systemctl = shutil.which("systemctl")
    if systemctl is None:
        raise NearfarError("--unit: no systemctl here; give --cgroup or a PID", 3)
    words = [systemctl, "show", "--property=ControlGroup", "--value", "--", name]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        said = (done.stderr.strip().splitlines() or ["it does not run"])[0]
        raise NearfarError(f"--unit {name}: {said}; `systemctl status {name}` says more")
    return Target(name.removesuffix(".service"), group=of_group(done.stdout.strip()).group)


def of_container(name: str) -> Target:
    """The first process of a container, and its descendants.

    Raises:
        NearfarError: there is neither docker nor podman (exit code 3), or it does not run.
    """
    tool = shutil.which("docker") or shutil.which("podman")
    if tool is None:
        raise NearfarError("--container: no docker or podman here; give a PID", 3)
    words = [tool, "inspect", "--format", "{{.State.Pid}}", name]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    text = done.stdout.strip()
    if not text.isdecimal() or text == "0":
        said = (done.stderr.strip().splitlines() or ["it does not run"])[0]
        raise NearfarError(f"--container {name}: {said}")
    found = of_pid(int(text))
    return Target(name, found.pid, found.started)


def started(pid: int) -> int | None:
    """When a process started, in ticks since boot; None if there is none, or only its exit code."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def is_virtual_machine(pid: int) -> bool:
    """Whether a process runs a virtual machine with KVM, as far as we may see."""
    try:
        return any(
            str(file.readlink()) == "anon_inode:kvm-vm"
            for file in (PROC / str(pid) / "fd").iterdir()
        )
    except OSError:
        return False


def _members(group: Path) -> list[int]:
    found: set[int] = set()
    for folder, _, _ in os.walk(group):
        try:
            found |= {int(word) for word in (Path(folder) / "cgroup.procs").read_text().split()}
        except OSError:
            continue  # removed meanwhile, or a group of threads
    return sorted(found)
