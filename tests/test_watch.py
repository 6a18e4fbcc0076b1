"""`nearfar watch`: the memory that a running program needs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capturing import needs_cc
from conftest import Run, fetched
from nearfar.errors import NearfarError
from nearfar.guest import Guest, Hardware, Node
from nearfar.watch import watch
from nearfar.watch.curve import PAGE, Prices, enough, of_cycles, of_refaults
from nearfar.watch.methods import ORDER, choose, method
from nearfar.watch.samples import GROWTH, SHORTEST, Refaults, WorkingSet, lengths, windows
from nearfar.watch.target import Target, of_group, of_pid, started

MIB = 1 << 20
PACKAGE = Path(__file__).parent.parent / "python" / "nearfar"
PRICES = Prices(swap=8000, file=60000)


@pytest.fixture(scope="module")
def hot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hot") / "hot"
    source = Path(__file__).parent / "hot.c"
    subprocess.run(["cc", "-O1", "-static", "-o", made, source], check=True)
    return made


@pytest.fixture
def running(hot: Path) -> Iterator[subprocess.Popen[bytes]]:
    """16 of 64 MiB are used all the time."""
    with subprocess.Popen([hot, "16", "64"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        yield child
        child.kill()


def sized(target: int | Target, **options: Any) -> dict[str, Any]:
    given = {"for_": 4, "budget": "50%", "swap": "zram", "machine": "nvme", **options}
    return dict(watch(target, **given).rows[0])


# --- curves


def cycle(*sizes: float, file: float = 0.0) -> list[WorkingSet]:
    """Working sets of a second, two, three, ..., in pages."""
    return [
        WorkingSet(SHORTEST * GROWTH**step, size * PAGE, file * PAGE)
        for step, size in enumerate(sizes)
    ]


def test_faults_are_the_growth_of_the_working_set() -> None:
    curve = of_cycles([cycle(100, 140, 150, 150)], PRICES)
    times = [one.seconds for one in cycle(0, 0, 0, 0)]
    rates = [40 / (times[1] - times[0]), 10 / (times[2] - times[1]), 0]
    assert [point.faults for point in curve] == pytest.approx(rates)
    assert [point.bytes for point in curve] == [100 * PAGE, 140 * PAGE, 150 * PAGE]
    assert curve[0].slowdown == pytest.approx(rates[0] * 8e-6)
    assert enough(curve, 0.0) == curve[2] and enough(curve, 1.0) == curve[0]
    between = enough(curve, (curve[0].slowdown * curve[1].slowdown) ** 0.5)
    assert between is not None and between.bytes == pytest.approx(120 * PAGE)
    assert enough(curve[:1], 0.001) is None


def test_pages_of_files_cost_the_time_of_the_disk() -> None:
    sets = [WorkingSet(1.0, 0, 0), WorkingSet(2.0, 0, 10 * PAGE)]
    (point,) = of_cycles([sets], PRICES)
    assert point.slowdown == pytest.approx(10 * 60e-6)


def test_refaults() -> None:
    seen = [
        Refaults(3 * MIB, 0, 0, 0, 0),
        Refaults(MIB, 0, 100, 0, 0),
        Refaults(2 * MIB, 0, 50, 0, 0),
    ]
    curve = of_refaults(seen, 0.5, PRICES)
    assert [point.bytes for point in curve] == [MIB, 2 * MIB, 3 * MIB]
    assert [point.faults for point in curve] == [100, 50, 0]


@given(
    st.lists(
        st.lists(st.floats(0, 1e6), min_size=2, max_size=12).map(sorted), min_size=1, max_size=4
    ),
    st.floats(0, 1),
)
def test_more_memory_never_has_more_faults(cycles: list[list[float]], limit: float) -> None:
    curve = of_cycles([cycle(*sizes) for sizes in cycles], PRICES)
    assert all(one.slowdown >= two.slowdown for one, two in zip(curve, curve[1:], strict=False))
    assert all(one.bytes <= two.bytes for one, two in zip(curve, curve[1:], strict=False))
    found = enough(curve, limit)
    assert (found is None) == all(point.slowdown > limit for point in curve)
    assert found is None or found.slowdown <= limit * (1 + 1e-9)


@given(st.floats(1, 1000))
def test_cycles_fill_the_time(seconds: float) -> None:
    planned = lengths(seconds)
    assert sum(planned) <= seconds * (1 + 1e-9) and planned[0] == min(seconds / 4, 30)
    for length in planned:
        found = windows(length)
        assert found == sorted(found) and found[-1] == length


# --- a program whose need is known


@needs_cc
def test_the_working_set_of_a_program(running: subprocess.Popen[bytes]) -> None:
    row = sized(running.pid)
    assert 15.2 * MIB <= row["anonymous_bytes"] <= 16.8 * MIB
    assert row["low_bytes"] <= row["memory_bytes"] <= row["high_end_bytes"]
    assert row["swapped_bytes"] == pytest.approx(48 * MIB, rel=0.05)
    assert row["zram_bytes"] == pytest.approx(row["swapped_bytes"] / 2, abs=1)
    assert row["peak_bytes"] <= row["max_bytes"] and row["high_bytes"] > row["memory_bytes"]
    assert (row["method"], row["processes"]) == ("accessed", 1)
    assert running.poll() is None
    without = sized(running.pid, swap="none")
    assert without["anonymous_bytes"] >= 64 * MIB
    assert (without["storage"], without["high_bytes"]) == (None, None)


@needs_cc
def test_children_are_watched(hot: Path) -> None:
    words = ["sh", "-c", f"{hot} 4 8 & {hot} 4 8 & wait"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as shell:
        try:
            assert shell.stdout is not None
            assert shell.stdout.readline() + shell.stdout.readline() == b"ready\n" * 2
            row = sized(shell.pid)
            assert row["processes"] == 3 and 7 * MIB <= row["anonymous_bytes"] <= 9.5 * MIB
        finally:
            os.killpg(shell.pid, signal.SIGKILL)


@needs_cc
def test_a_program_that_ends_gets_an_answer_without_limits(hot: Path) -> None:
    with subprocess.Popen([hot, "8", "16", "2"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        row = sized(child.pid, for_=6)
    assert row["no_limit"] == "it ended while it was watched" and row["max_bytes"] is None
    assert 7 * MIB <= row["anonymous_bytes"] <= 16.5 * MIB


# --- refusals


def test_what_cannot_be_watched() -> None:
    with pytest.raises(NearfarError, match="4194999: no such process"):
        of_pid(4194999)
    with pytest.raises(NearfarError, match="no such control group"):
        of_group("/no/such/group")
    own = of_pid(os.getpid())
    with pytest.raises(NearfarError, match="--for: 0.5 s is too short"):
        watch(own, for_=0.5)
    with pytest.raises(NearfarError, match="--budget"):
        watch(own, budget="200%")
    with pytest.raises(NearfarError, match="--method: no method 'acessed'.*accessed"):
        watch(own, method="acessed")
    with pytest.raises(NearfarError, match="--method squeeze: it squeezes a control group"):
        watch(own, method="squeeze")
    with pytest.raises(NearfarError, match="too much for a budget of 0.0%"):
        watch(own, for_=2, budget="0.0001%")


def test_a_number_that_the_kernel_uses_again_is_another_process() -> None:
    assert Target("x", os.getpid(), started=(started(os.getpid()) or 0) + 1).pids() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_users_process_needs_rights() -> None:
    target = of_pid(1)
    os.seteuid(65534)
    try:
        with pytest.raises(NearfarError, match="process 1 is another user's; run as root, or give"):
            choose("accessed", target)
    finally:
        os.seteuid(0)


def test_every_method_says_what_it_is() -> None:
    for name in ORDER:
        chosen = method(name)
        assert chosen.SUMMARY and all(0 < share < 1 for share in chosen.ERROR)
        assert "Do not use:" in (sys.modules[f"nearfar.watch.methods.{name}"].__doc__ or "")


# --- the command


@needs_cc
def test_the_command(nearfar: Run, running: subprocess.Popen[bytes], tmp_path: Path) -> None:
    folder = tmp_path / "hot.watch"
    options = ("--for", "2s", "--budget", "50%", "--swap", "zram", "--machine", "nvme")
    done = nearfar("watch", running.pid, *options, "-o", folder)
    assert done.returncode == 0, done.stderr
    heads = [line.split("  ")[0] for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert heads == ["memory", "swap", "limits", "rests on", "cost", "risk"]
    stored = json.loads((folder / "run.json").read_text())
    assert stored["study"] == "watch" and (folder / "windows.parquet").is_file()
    assert "1 unchanged" in nearfar("diff", folder, folder).stdout
    text = nearfar("watch", running.pid, *options, "--emit", "cgroup").stdout
    assert "memory.max" in text


@needs_cc
def test_a_program_is_started(nearfar: Run, hot: Path) -> None:
    options = ("--for", "2s", "--budget", "50%", "--swap", "zram", "--format", "json")
    done = nearfar("watch", *options, "--", hot, "4", "8")
    (row,) = json.loads(done.stdout)["rows"]
    assert row["vm"] == "hot" and "ready" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["redis"], "'redis' is not a process; give its number"),
        (["1", "--cgroup", "/x"], "give a PID, --cgroup, --unit, --container or -- COMMAND"),
        (["--", "no-such-program"], "no-such-program: no such program"),
        (["1", "--emit", "qemu"], "has no emitter 'qemu'"),
        (["1", "--for", "x"], "--for"),
    ],
)
def test_refusals_are_one_line(nearfar: Run, words: list[str], says: str) -> None:
    done = nearfar("watch", *words)
    assert done.returncode == 2 and says in done.stderr and done.stderr.count("\n") == 1


# --- other methods, on a kernel that has them

GUEST = """
import os, signal, statistics, subprocess, sys, time, types
sys.path.insert(0, "/work/python")
# Without the libraries that the rest of the package needs.
package = types.ModuleType("nearfar.watch")
package.__path__ = ["/work/python/nearfar/watch"]
sys.modules["nearfar.watch"] = package
from nearfar.watch.methods import choose, damon, method
from nearfar.watch.target import of_group, of_pid

GROUP = "/sys/fs/cgroup/hot"
open("/sys/fs/cgroup/cgroup.subtree_control", "w").write("+memory")
os.makedirs(GROUP)
child = subprocess.Popen(
    ["sh", "-c", f"echo 0 > {GROUP}/cgroup.procs; exec /work/hot 16 64"], stdout=subprocess.PIPE
)
child.stdout.readline()

def kdamonds():
    return (damon.ADMIN / "nr_kdamonds").read_text().strip()

for name in ("accessed", "damon", "touch", "squeeze"):
    target = of_group(GROUP) if name == "squeeze" else of_pid(child.pid)
    assert choose(name, target)[0] == name
    seen = method(name).watch(target, 20, 0.5, lambda seconds: None)
    if name == "squeeze":
        print(name, min(one.anonymous_bytes for one in seen.refaults) >> 20)
    else:
        # A busy host stops the guest for longer than a short window.
        long = [cycle for cycle in seen.cycles if cycle[-1].seconds > 2]
        last = [max(one.anonymous for one in cycle) for cycle in long]
        print(name, round(statistics.median(last) / 2**20), round(max(last) / 2**20))
    sys.stdout.flush()
print("kdamonds", kdamonds())
monitor = os.fork()
if not monitor:
    damon.watch(of_pid(child.pid), 60, 0.5, lambda seconds: None)
while kdamonds() == "0":
    time.sleep(0.1)
assert method("damon").lacks(of_pid(child.pid)) == "somebody else uses DAMON"
os.kill(monitor, signal.SIGKILL)
while kdamonds() != "0":
    time.sleep(0.1)
print("running", child.poll() is None)
child.kill()
"""


@needs_cc
@pytest.mark.long("a guest under TCG")
def test_methods_on_a_kernel_that_has_them(hot: Path) -> None:
    """DAMON ends with its watcher; paging out and squeezing leave what is used."""
    fetched("x86_64")
    files = {"work/hot": hot.read_bytes(), "work/watch.py": GUEST.encode()}
    for name in ("__init__.py", "errors.py", "processes.py"):
        files[f"work/python/nearfar/{name}"] = (PACKAGE / name).read_bytes()
    for file in (PACKAGE / "watch").rglob("*.py"):
        files[f"work/python/nearfar/{file.relative_to(PACKAGE)}"] = file.read_bytes()
    hardware = Hardware((Node(memory=768 * MIB, cpus=2),))
    guest = Guest("x86_64", hardware=hardware, zram=256 * MIB, packages=["python3"])
    done = guest.run(["python3", "/work/watch.py"], files=files)
    assert done.exit_code == 0, done.error.decode()
    said = dict(line.split(" ", 1) for line in done.output.decode().splitlines())
    assert said["accessed"] == "16 16"
    assert said["touch"].split()[1] in ("16", "17")
    least, most = map(int, said["damon"].split())
    assert 8 <= least <= most <= 32
    assert 14 <= int(said["squeeze"]) <= 20
    assert said["kdamonds"] == "0" and said["running"] == "True"
