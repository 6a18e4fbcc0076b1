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
from nearfar.units import clean

PROC: Final = Path("/proc")
CGROUP: Final = Path("/sys/fs/cgroup")
#: Folders below :data:`CGROUP` that may have groups: version 2, the memory controller of version 1,
#: version 2 beside version 1, and systemd's own.
_MOUNTS: Final = ("", "memory", "unified", "systemd")
#: PF_KTHREAD, a flag in ``/proc/PID/stat``; and capabilities by number.
_KERNEL_THREAD: Final = 0x200000
_CAPABILITIES: Final = {1: "CAP_DAC_OVERRIDE", 19: "CAP_SYS_PTRACE"}


@dataclass(frozen=True)
class Target:
    """A process and its descendants, or the processes of a control group.

    Attributes:
        name: for messages and file names.
        pid: the process; None for a group.
        started: when it started, in ticks since boot, because the kernel reuses PIDs.
        group: the folder of the control group, if one is watched.
    """

    name: str
    pid: int | None = None
    started: int = 0
    group: Path | None = None

    @property
    def words(self) -> list[str]:
        """The arguments of ``nearfar watch`` for this target."""
        return [str(self.pid)] if self.group is None else ["--cgroup", str(self.group)]

    def pids(self) -> list[int]:
        """The processes that exist now; empty once the target has ended."""
        if self.group is not None:
            return [pid for pid in _members(self.group) if pid]  # 0: of another namespace
        assert self.pid is not None
        return process_tree(self.pid) if started(self.pid) == self.started else []


def of_pid(pid: int) -> Target:
    """A process and its descendants.

    Raises:
        NearfarError: there is no such process, or it is a kernel thread.
    """
    when = started(pid)
    if when is None:
        if _is_hidden(pid):
            raise NearfarError(f"{pid}: is hidden from this user (/proc has hidepid); run as root")
        raise NearfarError(f"{pid}: no such process; `pgrep -a NAME` finds one")
    try:
        name = clean((PROC / str(pid) / "comm").read_text(errors="replace").strip())
        flags = int(stat(pid)[6])
    except OSError:
        raise NearfarError(f"{pid}: ended just now") from None
    if flags & _KERNEL_THREAD:
        raise NearfarError(f"{pid}: `{name}` is a kernel thread, which has no memory of its own")
    return Target(name, pid, when)


def of_group(path: str) -> Target:
    """The processes of a control group: a folder, or its path below a root of `_MOUNTS`.

    Raises:
        NearfarError: there is no such group, or it is empty.
    """
    places = [Path(path), *(CGROUP / mount / path.lstrip("/") for mount in _MOUNTS)]
    groups = [place for place in places if (place / "cgroup.procs").is_file()]
    if not groups:
        raise NearfarError(f"--cgroup {path}: no such control group; see /proc/PID/cgroup")
    group = next(filter(_counts_memory, groups), groups[0])
    pids = _members(group)
    if not pids:
        raise NearfarError(f"--cgroup {path}: has no process")
    if not any(pids):
        raise NearfarError(
            f"--cgroup {path}: its processes are in another PID namespace; run outside the "
            "container"
        )
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
    path, error = _output(words)
    if not path:
        raise NearfarError(f"--unit {name}: {error}; `systemctl status {name}` says more")
    return Target(name.removesuffix(".service"), group=of_group(path).group)


def _output(words: list[str]) -> tuple[str, str]:
    """The output of a command, and the first line of its errors."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip(), (done.stderr.strip().splitlines() or ["it does not run"])[0]


def of_container(name: str) -> Target:
    """The processes of a container: its control group, or else its first process and descendants.

    Raises:
        NearfarError: there is neither docker nor podman (exit code 3), or the container does
            not run.
    """
    tools = [tool for tool in map(shutil.which, ("docker", "podman")) if tool]
    if not tools:
        raise NearfarError("--container: no docker or podman here; give a PID", 3)
    errors = []
    for tool in tools:
        text, error = _output(
            [tool, "container", "inspect", "--format", "{{.State.Pid}} {{.Id}}", name]
        )
        pid, _, identifier = text.partition(" ")
        if pid.isdecimal() and pid != "0":
            found = of_pid(int(pid))
            group = _group(int(pid))
            # Podman may leave a container in the group of the user who started it.
            if group is not None and identifier and identifier in str(group):
                return Target(name, group=group)
            return Target(name, found.pid, found.started)
        errors.append(error)
    raise NearfarError(f"--container {name}: {errors[0]}")


def group_of(target: Target) -> Path | None:
    """The control group that counts the memory of a target alone; None if there is none."""
    if target.pid is None:
        return target.group
    group = _group(target.pid)
    if group is None or not set(_members(group)) <= set(target.pids()):
        return None
    return group


def _group(pid: int) -> Path | None:
    """The control group that counts the memory of a process; None for the root group."""
    try:
        lines = (PROC / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:  # `ID:CONTROLLERS:PATH`; version 2 names no controllers
        _, controllers, path = line.split(":", 2)
        mounts = {"": ("", "unified"), "memory": ("memory",)}.get(controllers, ())
        for group in (CGROUP / mount / path.lstrip("/") for mount in mounts):
            if path != "/" and _counts_memory(group):
                return group
    return None


def denied(pid: int, *files: str) -> str | None:
    """What is missing to open files of a process, and how to get it.

    None if nothing is missing, or if the process has ended.

    Args:
        pid: the process.
        files: names in ``/proc/PID``; ``clear_refs`` is opened to be written.
    """
    try:
        for name in files:
            (PROC / str(pid) / name).open("wb" if name == "clear_refs" else "rb").close()
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError:
        held = int(_field("self", "CapEff"), 16)
        lacking = " and ".join(name for bit, name in _CAPABILITIES.items() if not held >> bit & 1)
        if os.geteuid() == 0:
            given = f", or add {lacking} to it" if lacking else ""
            reason = f"root in this container may not read process {pid}"
            return f"{reason}; run outside the container{given}"
        try:
            user = int(_field(str(pid), "Uid").split()[0])
        except OSError:
            return None
        whose = "may not be read by its own user" if user == os.geteuid() else "is another user's"
        given = f", or give Python {lacking}" if lacking else ""
        return f"process {pid} {whose}; run as root{given}"
    return None


def _field(pid: str, name: str) -> str:
    lines = (PROC / pid / "status").read_text(errors="replace").splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:"))


def started(pid: int) -> int | None:
    """When a process started, in ticks since boot; None if there is none, or a zombie."""
    try:
        fields = stat(pid)
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def stat(pid: int) -> list[str]:
    """``/proc/PID/stat`` (man 5 proc) from the state, its third field, on.

    Raises:
        OSError: there is no such process.
    """
    text = (PROC / str(pid) / "stat").read_text(errors="replace")
    return text.rpartition(")")[2].split()


def _is_hidden(pid: int) -> bool:
    """Whether a process exists that ``/proc`` does not show."""
    try:
        os.getpgid(pid)
    except OSError:
        return False
    return pid > 0 and not (PROC / str(pid)).exists()


def _counts_memory(group: Path) -> bool:
    return any((group / name).is_file() for name in ("memory.current", "memory.usage_in_bytes"))


def is_virtual_machine(pid: int) -> bool:
    """Whether a process runs a virtual machine with KVM; False if we may not see its files."""
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
