"""tests/test_watch.py runs this script in a guest; each printed line is a key and values."""

# ruff: noqa: E402
from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

sys.path.insert(0, "/work/python")
# Skip these packages' __init__.py, which needs libraries that the guest lacks.
for package in ("watch", "size"):
    module = ModuleType(f"nearfar.{package}")
    module.__path__ = [f"/work/python/nearfar/{package}"]
    sys.modules[module.__name__] = module

from nearfar.errors import NearfarError
from nearfar.watch import confirm
from nearfar.watch.live import Looks
from nearfar.watch.methods import choose, damon, method
from nearfar.watch.samples import read
from nearfar.watch.target import CGROUP, denied, of_container, of_group, of_pid, of_unit

Program = subprocess.Popen[bytes]
HOT, TRIED = CGROUP / "hot", CGROUP / "tried"


def started(group: Path, hot: int, whole: int) -> Program:
    """A program in a control group that uses ``hot`` of ``whole`` MiB."""
    group.mkdir(exist_ok=True)
    words = f"echo 0 > {group}/cgroup.procs; exec /work/hot {hot} {whole}"
    program = subprocess.Popen(["sh", "-c", words], stdout=subprocess.PIPE)
    assert program.stdout is not None
    program.stdout.readline()
    return program


def methods() -> None:
    """What each method sees; DAMON ends with its watcher."""
    child = started(HOT, 16, 64)
    for name in ("accessed", "damon", "touch", "squeeze"):
        target = of_group(str(HOT)) if name == "squeeze" else of_pid(child.pid)
        assert choose(name, target)[0] == name
        # `touch` pages out for at most share * seconds; compression is slow under emulation.
        share = 10 if name == "touch" else 0.5
        # Several attempts: a busy host stops the guest for seconds, in which the program uses
        # nothing and DAMON takes all memory for one region.
        for _ in range(5):
            seen = method(name).watch(target, 10, share, lambda seen: None)
            if name == "squeeze":
                used = min(one.anonymous_bytes for one in seen.refaults) / 2**20
            else:
                used = max(one.anonymous for cycle in seen.cycles for one in cycle) / 2**20
            if 15 <= used <= 17:
                break
        print(name, round(used), flush=True)

    def kdamonds() -> str:
        return (damon.ADMIN / "nr_kdamonds").read_text().strip()

    print("kdamonds", kdamonds())
    monitor = os.fork()
    if not monitor:
        damon.watch(of_pid(child.pid), 60, 0.5, lambda seen: None)
    while kdamonds() == "0":
        time.sleep(0.1)
    assert method("damon").lacks(of_pid(child.pid)) == "somebody else uses DAMON"
    os.kill(monitor, signal.SIGKILL)
    while kdamonds() != "0":
        time.sleep(0.1)
    print("running", child.poll() is None)
    child.kill()


def trials(program: Program) -> None:
    """Advice that holds, advice that does not, and a watcher that is killed."""

    def tried(goal: int, slowdown: float, progress: Callable[[float], None]) -> confirm.Tried:
        target = of_pid(program.pid)
        assert confirm.lacks(target, "zram") is None, confirm.lacks(target, "zram")
        seen = confirm.confirm(target, goal << 20, slowdown, 300, progress)
        assert seen is not None
        return seen

    def limits() -> str:
        names = ("high", "max", "swap.max")
        return " ".join((TRIED / f"memory.{name}").read_text().strip() for name in names)

    print("limits", limits())
    seen = tried(20, 1, lambda seconds: None)
    print("held", seen.bytes >> 20, seen.seconds >= confirm.HOLD, seen.stopped)
    seen = tried(4, 0, lambda seconds: None)
    print("refuted", seen.bytes >> 20 > 4, bool(seen.stopped))
    begun, write_end = os.pipe()
    trial = os.fork()
    if not trial:
        with os.fdopen(write_end, "w") as file:
            tried(4, 1, lambda seconds: print(seconds, file=file, flush=True))
    os.read(begun, 1)
    os.kill(trial, signal.SIGKILL)
    os.waitpid(trial, 0)
    print("after", limits(), program.poll() is None)


def refused(call: Callable[..., object], *given: object) -> object:
    """What a call returns, or its error."""
    try:
        return call(*given)
    except NearfarError as error:
        return error


def names(program: Program) -> None:
    """Find targets by unit, container, group and process id."""
    folder = Path("/work/bin")
    folder.mkdir()
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"

    def stub(name: str, says: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\necho '{says}'\n")
        (folder / name).chmod(0o755)

    stub("systemctl", "/tried")
    print("unit", of_unit("web.service").name, of_unit("web").group)
    stub("docker", f"{program.pid} 0123")
    print("shared", of_container("web").pid == program.pid, of_container("web").group)
    stub("docker", f"{program.pid} tried")
    others = [started(TRIED, 1, 2) for _ in range(30)]
    many = of_group(str(TRIED))
    seen = read(many.pids())
    whole = seen is not None and seen.private > 30 * 2 << 20
    # Like processes of `docker exec`, these are no descendants of the container's first process.
    print("container", of_container("web").name, of_container("web").group)
    stub("docker", "0 tried")
    print("stopped", refused(of_container, "web"))
    print("many", len(many.pids()), whole, Looks(many).look().alone)
    print("sharing", confirm.lacks(of_pid(program.pid), "zram"))
    for other in others:
        other.kill()
    (CGROUP / "empty").mkdir()
    print("empty", refused(of_group, "empty"))
    print("kernel", refused(of_pid, 2))
    print("root", method("squeeze").lacks(of_group(str(CGROUP))))


def without_rights(call: Callable[[], str], user: int) -> None:
    """Call in a process without capabilities, and print the result."""
    sys.stdout.flush()
    if not os.fork():
        if user:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        else:
            header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
            assert ctypes.CDLL(None).capset(header, none) == 0
        print(call(), flush=True)
        os._exit(0)
    os.wait()


(CGROUP / "cgroup.subtree_control").write_text("+memory")
methods()
server = started(TRIED, 16, 64)
trials(server)
names(server)
without_rights(lambda: f"user {denied(1, 'smaps')}", 65534)
without_rights(lambda: f"root-here {denied(1, 'smaps')}", 0)
subprocess.run(["mount", "-o", "remount,hidepid=2", "/proc"], check=True)
without_rights(lambda: f"hidden {refused(of_pid, 1)}", 65534)
server.kill()
