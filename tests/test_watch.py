"""`nearfar watch`: the memory that a running program needs."""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import browser
from capturing import needs_cc
from conftest import HANG, Run, fetched, refused, until
from nearfar.errors import NearfarError
from nearfar.guest import Guest, Hardware, Node
from nearfar.processes import children
from nearfar.report.watch import lines
from nearfar.run_folder import open_run
from nearfar.watch import Plan, WatchResult, _row, answers, confirm, monitor, watch
from nearfar.watch.curve import PAGE, Prices, enough, of_cycles, of_refaults
from nearfar.watch.methods import ORDER, choose, damon, method, squeeze, touch
from nearfar.watch.samples import (
    GROWTH,
    SHORTEST,
    Area,
    Memory,
    Refaults,
    Watched,
    WorkingSet,
    lengths,
    read,
    used,
    windows,
)
from nearfar.watch.target import Target, of_container, of_group, of_pid, of_unit, started
from pseudo_terminal import Terminal
from watch_fixture import row, watched

MIB = 1 << 20
PACKAGE = Path(__file__).parent.parent / "python" / "nearfar"
GUEST = Path(__file__).parent / "watch_guest.py"
FAST = ("--for", "1s", "--budget", "50%", "--swap", "zram", "--machine", "nvme")
PRICES = Prices(swap=8000, file=60000)


@pytest.fixture(scope="module")
def hot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hot") / "hot"
    source = Path(__file__).parent / "hot.c"
    subprocess.run(["cc", "-O1", "-static", "-o", made, source], check=True)
    return made


@pytest.fixture
def running(hot: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program that uses 16 of its 64 MiB all the time."""
    with subprocess.Popen([hot, "16", "64"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        yield child
        child.kill()


def sized(target: int | Target, **options: Any) -> dict[str, Any]:
    given = {"for_": 4, "budget": "50%", "swap": "zram", "machine": "nvme", **options}
    return dict(watch(target, **given).rows[0])


def using(pid: int, low: float, high: float) -> dict[str, Any]:
    """The first row with anonymous memory in this range (MiB); a busy host disturbs others."""

    def found() -> dict[str, Any]:
        row = sized(pid)
        return row if low * MIB <= row["anonymous_bytes"] <= high * MIB else {}

    row: dict[str, Any] = until(found, f"{low} to {high} MiB are used")
    return row


# --- curves


def cycle(*sizes: float, file: float = 0.0) -> list[WorkingSet]:
    """Working sets of these pages, in windows that grow by GROWTH from SHORTEST."""
    return [
        WorkingSet(SHORTEST * GROWTH**step, size * PAGE, file * PAGE)
        for step, size in enumerate(sizes)
    ]


def test_faults_are_the_growth_of_the_working_set() -> None:
    curve = of_cycles([cycle(100, 140, 150, 150)], PRICES)
    times = [one.seconds for one in cycle(0, 0, 0, 0)]
    rates = [40 / (times[1] - times[0]), 10 / (times[2] - times[1]), 0]
    assert [point.faults for point in curve] == pytest.approx(rates)
    assert [point.bytes for point in curve] == [120 * PAGE, 145 * PAGE, 150 * PAGE]
    assert curve[0].seconds == pytest.approx((times[0] + times[1]) / 2)
    assert curve[0].slowdown == pytest.approx(rates[0] * 8e-6)
    assert enough(curve, 0.0) == curve[2] and enough(curve, 1.0) == curve[0]
    between = enough(curve, (curve[0].slowdown * curve[1].slowdown) ** 0.5)
    assert between is not None and between.bytes == pytest.approx(132.5 * PAGE)
    assert enough(curve[:1], 0.001) is None


def test_a_cliff_is_not_interpolated() -> None:
    """A program that loops over 140 pages faults on all of them with 139."""
    curve = of_cycles([cycle(100, 140, 141, 141)], PRICES)
    assert enough(curve, (curve[0].slowdown * curve[1].slowdown) ** 0.5) == curve[1]


def test_pages_of_files_cost_the_time_of_the_disk() -> None:
    sets = [WorkingSet(1.0, 0, 0), WorkingSet(2.0, 0, 10 * PAGE)]
    (point,) = of_cycles([sets], PRICES)
    assert point.slowdown == pytest.approx(10 * 60e-6)


def test_refaults_give_points_by_memory() -> None:
    seen = [
        Refaults(3 * MIB, 0, 0, 0, 0),
        Refaults(MIB, 0, 100, 0, 0),
        Refaults(2 * MIB, 0, 50, 0, 0),
    ]
    curve = of_refaults(seen, 0.5, PRICES)
    assert [point.bytes for point in curve] == [MIB, 2 * MIB, 3 * MIB]
    assert [point.faults for point in curve] == [100, 50, 0]


@settings(deadline=None)
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


def test_without_a_window_of_few_faults_the_answer_is_the_peak() -> None:
    """The interval begins below the last point of the curve, which has 250 pages."""
    plan = Plan.of(of_pid(os.getpid()), swap="zram", machine="nvme", slowdown="0.001%")
    last = Memory(anonymous=1000 * PAGE)
    seen = Watched([cycle(100, 200, 300)], seconds=1.0, most=1000 * PAGE, last=last)
    curve = of_cycles(seen.cycles, plan.prices())
    row = _row(plan, seen, curve, [curve], 1000 * PAGE, (0.1, 0.1))
    assert row["memory_bytes"] == row["high_end_bytes"] == 1000 * PAGE
    assert row["low_bytes"] == pytest.approx(0.9 * 250 * PAGE, abs=1)


@settings(deadline=None)
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
    row = using(running.pid, 15.2, 16.8)
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
            assert using(shell.pid, 7, 9.5)["processes"] == 3
        finally:
            os.killpg(shell.pid, signal.SIGKILL)


@needs_cc
def test_a_program_that_ends_gets_an_answer_without_limits(
    running: subprocess.Popen[bytes],
) -> None:
    def end(so_far: Watched) -> None:
        if so_far.cycles:
            running.kill()
            running.wait()

    row = sized(running.pid, progress=end)
    assert row["no_limit"] == "the program ended during the measurement"
    assert row["max_bytes"] is None
    assert 15 * MIB <= row["anonymous_bytes"] <= 65 * MIB


MAPPING = """
import mmap, sys
file = open(sys.argv[1], "r+b")
print("ready", flush=True)
input()
shared, mapped = mmap.mmap(-1, 8 << 20), mmap.mmap(file.fileno(), 4 << 20)
for at in range(0, 8 << 20, 4096): shared[at], _ = 1, mapped[at // 2]
print("done", flush=True)
input()
"""


def test_shared_memory_needs_swap_and_mapped_files_do_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(4 * MIB))
    words = [sys.executable, "-c", MAPPING, str(tmp_path / "file")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None
        seen = []
        for _ in range(2):
            child.stdout.readline()
            seen.append(read([child.pid]))
            child.stdin.write(b"\n")
            child.stdin.flush()
    before, after = seen
    assert before is not None and after is not None
    assert after.anonymous - before.anonymous == pytest.approx(8 * MIB, rel=0.1)
    assert after.file - before.file == pytest.approx(4 * MIB, rel=0.1)


def area(rss: int, pss: int, own: int, referenced: int) -> Area:
    return Area(0, 64, rss, pss, own, referenced, anonymous=rss, swap=0, swap_pss=0, locked=0)


def test_shared_memory_is_used_if_any_process_uses_it() -> None:
    assert used([area(8, 4, 0, 8), area(8, 4, 0, 0)]) == 8
    assert used([area(8, 4, 0, 4), area(8, 4, 0, 4)]) == 6
    assert used([area(8, 8, 8, 3), area(8, 8, 8, 2)]) == 5
    # Two private pages, and two that it shares with an unwatched process.
    assert used([area(4, 3, 2, 4)]) == 3
    assert used([area(0, 0, 0, 0)]) == 0


SHARING = """
import mmap, os, time
memory = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for at in range(0, 16 << 20, 4096): memory[at] = 1
uses = not os.fork()
if uses: print("ready", flush=True)
while uses:
    for at in range(0, 8 << 20, 4096): memory[at]
time.sleep(1000)
"""


def test_memory_shared_with_a_fork_is_used_if_the_child_uses_it() -> None:
    words = [sys.executable, "-c", SHARING]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            seen = method("accessed").watch(of_pid(child.pid), 2, 0.5, lambda seconds: None)
        finally:
            os.killpg(child.pid, signal.SIGKILL)
    longest = max((one for cycle in seen.cycles for one in cycle), key=lambda one: one.seconds)
    # The child uses 8 MiB, and the interpreter has its own.
    assert 7.8 * MIB <= longest.anonymous <= 14 * MIB


# --- refusals


def test_wrong_targets_and_options_are_refused() -> None:
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
    with pytest.raises(
        NearfarError, match="--method squeeze: it reclaims memory of a control group"
    ):
        watch(own, method="squeeze")
    with pytest.raises(NearfarError, match="--confirm: "):
        watch(own, confirm=True)  # not alone in its group, or it is of version 1
    with pytest.raises(NearfarError, match="too much for a budget of 0.0%"):
        watch(own, for_=2, budget="0.0001%")


def test_paging_out_ends_once_it_would_cost_more_than_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chunks = []

    def costly(pids: list[int]) -> Iterator[int]:
        for _ in pids * 100:
            end = time.thread_time() + 0.004
            while time.thread_time() < end:
                pass
            chunks.append(touch.CHUNK)
            yield touch.CHUNK

    monkeypatch.setattr(touch, "_chunks", costly)
    with pytest.raises(NearfarError, match="paging its memory out takes .* budget of 0.01 s"):
        touch._page_out("own", [os.getpid()], 0.01)
    assert len(chunks) == 1
    touch._page_out("own", [os.getpid()], 1000)
    assert len(chunks) == 101


def test_a_group_of_version_1_is_not_squeezed(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text(f"0\n{os.getpid()}\n")
    (tmp_path / "memory.usage_in_bytes").write_text("1\n")
    target = of_group(str(tmp_path))
    with pytest.raises(NearfarError, match="group is of version 1.*unified_cgroup_hierarchy"):
        choose("squeeze", target)
    (tmp_path / "cgroup.procs").write_text("0\n0\n")
    with pytest.raises(NearfarError, match="in another PID namespace"):
        of_group(str(tmp_path))


@pytest.mark.parametrize(
    ("tool", "call", "script", "says"),
    [
        ("docker", of_container, "echo no such container: web >&2", "web: no such container: web"),
        ("podman", of_container, "echo 0", "--container web: it does not run"),
        ("systemctl", of_unit, "exit 1", "--unit web: it does not run; `systemctl status web`"),
        ("none", of_container, "", "--container: no docker or podman here; give a PID"),
        ("none", of_unit, "", "--unit: no systemctl here; give --cgroup or a PID"),
    ],
)
def test_unknown_units_and_containers_are_refused(
    tool: str,
    call: Callable[[str], Target],
    script: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / tool).write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NearfarError, match=says) as raised:
        call("web")
    assert raised.value.exit_code == (3 if tool == "none" else 2)


def _ended(pid: int) -> None:
    until(lambda: started(pid) is None, "the end of the program")


def test_a_program_that_was_started_ends_with_its_watcher(hot: Path) -> None:
    command = [sys.executable, "-m", "nearfar", "watch", *FAST, "--follow", "--"]
    command += [str(hot), "4", "8"]
    for number in (signal.SIGTERM, signal.SIGKILL):
        with subprocess.Popen(command, stderr=subprocess.PIPE) as child:
            assert child.stderr is not None and child.stderr.readline() == b"ready\n"
            (program,) = children(child.pid)
            child.send_signal(number)
        _ended(program)


def test_a_reused_pid_is_another_process() -> None:
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


def test_damon_samples_more_rarely_if_the_budget_is_small() -> None:
    assert damon.slower(0.005, used=0.005, share=0.02) == 0.005
    assert damon.slower(0.005, used=0.1, share=0.02) == pytest.approx(0.05)


def test_a_damon_sample_without_regions_is_no_working_set(tmp_path: Path) -> None:
    """DAMON's thread may be late; made-up files stand for its regions in sysfs."""
    pid = os.getpid()
    assert damon._working_sets(tmp_path, [pid], 1.0, 0.005) == []
    region = tmp_path / "schemes/0/tried_regions/0"
    region.mkdir(parents=True)
    memory = mmap.mmap(-1, 4 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(b"x" * 4 * MIB)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    values = {"start": start, "end": start + 2 * MIB, "nr_accesses": damon.SAMPLES, "age": 3}
    for name, value in values.items():
        (region / name).write_text(str(value))
    sets = damon._working_sets(tmp_path, [pid], 1.0, 0.005)
    assert [one.anonymous for one in sets] == pytest.approx([2 * MIB] * len(sets), rel=0.1)


def test_squeezing_begins_with_small_steps() -> None:
    least, most = squeeze.STEPS
    steps = [least]
    while steps[-1] < most:
        steps.append(squeeze.next_step(steps[-1], 0.0))
    assert len(steps) == 5 and steps[-1] == most == squeeze.next_step(most, 0.0)
    assert squeeze.next_step(most, squeeze.STALL / 3) == most
    assert squeeze.next_step(most, squeeze.STALL / 2) == most / 2
    assert squeeze.next_step(least, squeeze.STALL / 2) == least


def test_a_step_that_stalls_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An amount below what the kernel reclaims at a time is left for the next step."""
    taken: list[int] = []
    stalled = 0
    monkeypatch.setattr(squeeze.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(squeeze, "reclaim", lambda group, count: taken.append(count))
    monkeypatch.setattr(squeeze, "counts", lambda group: (0, 0, stalled * len(taken)))
    assert squeeze.spread(tmp_path, 5 * MIB, 0.0, 0) == 0 and taken == [MIB] * 5
    taken.clear()
    stalled = round(squeeze.STALL / 4 * squeeze.EVERY * 1e6)
    assert squeeze.spread(tmp_path, 5 * MIB, 0.0, 0) == 0 and taken == [MIB] * 2
    taken.clear()
    due = squeeze.spread(tmp_path, squeeze.LEAST / 2, 0.0, 0)
    assert taken == [] and due == squeeze.LEAST / 2
    assert squeeze.spread(tmp_path, squeeze.LEAST, due, 0) < squeeze.LEAST / 2
    assert taken and min(taken) >= squeeze.LEAST


def test_every_method_says_what_it_is() -> None:
    for name in ORDER:
        chosen = method(name)
        assert chosen.SUMMARY and 0 < chosen.ERROR[0] < 1 and chosen.ERROR[1] > 0
        assert "Do not use:" in (sys.modules[f"nearfar.watch.methods.{name}"].__doc__ or "")


@pytest.mark.parametrize("name", ORDER)
def test_the_error_of_a_method_is_the_measured_one(name: str) -> None:
    """Rounded up to a multiple of 5 %, at least 10 %; the documentation has the same."""
    from cases.watch import stated

    less, more = (max(math.ceil(share * 20) / 20, 0.1) for share in stated(name))
    assert (less, more) == method(name).ERROR
    page = (PACKAGE.parents[1] / "docs" / "watch.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
    assert f"{100 * less:.0f} % less to {100 * more:.0f} % more" in row


# --- the command


@needs_cc
def test_an_answer_is_printed_stored_compared_and_emitted(
    nearfar: Run, running: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "hot.watch"
    options = ("--for", "2s", "--budget", "50%", "--swap", "zram", "--machine", "nvme")
    done = nearfar("watch", running.pid, *options, "-o", folder)
    assert done.returncode == 0, done.stderr
    heads = [line.split("  ")[0] for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert heads == ["memory", "swap", "limits", "based on", "cost", "risk"]
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
        (["1", "--cgroup", "/x"], "give one of: a PID, --cgroup, --unit, --container, -- COMMAND"),
        (["--", "no-such-program"], "no-such-program: no such program"),
        (["1", "--emit", "qemu"], "has no emitter 'qemu'"),
        (["1", "--for", "x"], "--for"),
        (["--", "true"], "true: ended before it could be watched"),
        (["1", "--follow", "--emit", "cgroup"], "--follow: prints many answers; leave out"),
        (["1", "--follow", "--confirm"], "--follow: prints many answers; leave out"),
        (["1", "--follow", "--format", "csv"], "--follow: has no format csv"),
    ],
)
def test_refusals_are_one_line(nearfar: Run, words: list[str], says: str) -> None:
    refused(nearfar("watch", *words), says)


# --- follow


def followed(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "nearfar", "watch", "--follow", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@needs_cc
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_follow_ends_with_whole_files_at_a_signal(
    running: subprocess.Popen[bytes], tmp_path: Path, number: signal.Signals
) -> None:
    folder, file = tmp_path / "hot.watch", tmp_path / "hot.prom"
    options = (*FAST, "--format", "json", "-o", folder, "--prometheus", file)
    with followed(running.pid, *options) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(2)]
        child.send_signal(number)
        rest, said = child.communicate()
    assert (child.returncode, said) == (0, "")
    assert rest == "" or rest.endswith("\n")
    answers = [json.loads(line) for line in (*lines, *rest.splitlines())]
    printed: Any = None
    for answer in answers:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", answer.pop("time"))
        changed = answer.pop("changed")
        assert changed == monitor.has_changed(answer, printed)
        printed = answer if changed else printed
    stored = open_run(folder).result
    assert isinstance(stored, WatchResult) and stored.rows[0]["memory_bytes"] in {
        answer["memory_bytes"] for answer in answers
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hot.prom", "hot.watch"]
    assert file.read_text().endswith("\n") and running.poll() is None


@needs_cc
def test_a_killed_watcher_leaves_whole_metrics(
    nearfar: Run, running: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    file = tmp_path / "hot.prom"
    with followed(running.pid, *FAST, "--prometheus", file) as child:
        until(file.exists, "metrics")
        child.kill()
    text = file.read_text()
    assert text.startswith("# HELP ") and '\nnearfar_watch_processes{program="hot"' in text
    assert nearfar("watch", running.pid, *FAST, "--prometheus", file).returncode == 0
    assert list(tmp_path.iterdir()) == [file] and running.poll() is None


@needs_cc
def test_follow_ends_with_the_program(running: subprocess.Popen[bytes]) -> None:
    with followed(running.pid, *FAST) as child:
        assert child.stdout is not None
        first = child.stdout.readline()
        running.kill()
        running.wait()
        _, said = child.communicate()
    assert (child.returncode, said) == (0, "nearfar: note: hot has ended\n")
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  memory [\d.]+ MiB \(", first)


@needs_cc
def test_follow_at_a_terminal(running: subprocess.Popen[bytes]) -> None:
    command = [sys.executable, "-m", "nearfar", "watch", "--follow", running.pid, *FAST]
    with Terminal(list(map(str, command))) as shown:
        heads = ("answer", "resident", "used in", "faults")
        until(lambda: all(head.encode() in shown.read() for head in heads), "the live view")
        until(lambda: b"MemoryMax" in shown.read(), "an answer")
        shown.child.send_signal(signal.SIGINT)
        assert shown.end() == 0
    assert b"Traceback" not in shown.text and running.poll() is None


def test_follow_takes_a_slow_method_only_if_it_is_named() -> None:
    plan = Plan.of(of_pid(os.getpid()), swap="zram")
    answers(plan)
    slow = replace(plan, method="touch", why="x")
    with pytest.raises(NearfarError, match="--follow: only touch works here"):
        answers(slow)
    answers(replace(slow, options={**plan.options, "method": "touch"}))


def test_an_answer_changes_outside_of_the_interval_or_above_memory_max() -> None:
    before = row()
    assert monitor.has_changed(before, None) and not monitor.has_changed(before, before)
    for memory, expected in ((15, False), (20, False), (21, True), (14, True)):
        assert monitor.has_changed(row(memory_bytes=memory * MIB), before) == expected
    # Outside of the interval, but by less than 5 %.
    narrow = row(low_bytes=16 * MIB, high_end_bytes=16 * MIB)
    assert not monitor.has_changed(row(memory_bytes=int(16.5 * MIB)), narrow)
    assert monitor.has_changed(row(memory_bytes=17 * MIB), narrow)
    # A peak above the advised MemoryMax would kill the program.
    assert monitor.has_changed(row(peak_bytes=97 * MIB), before)


def test_metrics_follow_prometheus() -> None:
    """Its text format and conventions: gauges, names with base units."""
    text = monitor.metrics(row(vm='a"\\\n', high_bytes=None), Target("a", 7), 12.5)
    samples = {}
    for block in text.split("# HELP ")[1:]:
        help_line, kind, sample = block.splitlines()
        name = help_line.split()[0]
        assert kind == f"# TYPE {name} gauge" and name not in samples
        assert re.fullmatch(
            r"nearfar_watch_([a-z_]+_(bytes|seconds|ratio|per_second)|info|processes)", name
        )
        found = re.fullmatch(rf'{name}\{{((?:[a-z]+="(?:[^"\\]|\\.)*",?)*)\}} (\S+)', sample)
        assert found is not None and found[1].startswith('program="a\\"\\\\\\n",target="7"')
        samples[name] = float(found[2])
    assert samples["nearfar_watch_memory_bytes"] == 16 * MIB
    assert samples["nearfar_watch_slowdown_ratio"] == 0.05
    assert samples["nearfar_watch_answer_timestamp_seconds"] == 12.5
    assert "nearfar_watch_high_bytes" not in samples


def test_metrics_replace_only_metrics(nearfar: Run, tmp_path: Path) -> None:
    file = tmp_path / "a.prom"
    target = Target("a", 7)
    monitor.write_metrics(file, row(), target, 1)
    monitor.check_metrics(file, force=False)
    monitor.write_metrics(file, row(), target, 2)
    assert "} 2.000" in file.read_text() and list(tmp_path.iterdir()) == [file]
    other = tmp_path / "b.prom"
    other.write_text("my_metric 1\n")
    done = nearfar("watch", "1", "--prometheus", other)
    refused(done, "exists, and was not written by `nearfar watch`")
    assert other.read_text() == "my_metric 1\n"


# --- what a result can do


def test_a_stored_answer_is_drawn_and_compared(nearfar: Run, tmp_path: Path) -> None:
    first = watched().write(tmp_path / "a.watch")
    second = watched(memory_bytes=24 * MIB).write(tmp_path / "b.watch")
    done = nearfar("diff", first, second, "--fail-above", "10%")
    assert done.returncode == 1 and "1 worse" in done.stdout
    for name, folders in (("one", [first]), ("both", [first, second])):
        page = tmp_path / f"{name}.html"
        assert nearfar("report", *folders, "-o", page).returncode == 0
        with browser.opened(page) as (shown, problems):
            assert shown.locator("figure").count() == (2 if name == "one" else 1)
            assert "16\u00a0MiB" in shown.inner_text("body")
        assert not problems, problems
    spec = watched().plot().to_dict()
    (mark,) = [one for one in spec["datasets"]["marks"] if "within" in one["text"]]
    assert mark["bytes"] == 16 * MIB


@needs_cc
@pytest.mark.parametrize(("stalled", "code"), [(0.01, 0), (0.2, 1)])
def test_the_exit_code_is_that_of_the_trial(
    nearfar: Run, running: subprocess.Popen[bytes], stalled: float, code: int
) -> None:
    """The trial is made up, as a real one needs a guest."""
    first = f"""
from nearfar.watch import confirm
confirm.lacks = lambda target, swap: None
made = confirm.Tried
confirm.confirm = lambda target, goal, *_, made=made: made(goal, 7.0, {stalled}, None)
"""
    done = nearfar("watch", running.pid, *FAST, "--confirm", "--format", "json", first=first)
    assert done.returncode == code, done.stderr
    (found,) = json.loads(done.stdout)["rows"]
    assert found["tried_bytes"] == found["memory_bytes"] < found["resident_bytes"]
    assert (found["tried_faults"], found["tried_slowdown"]) == (7.0, stalled)
    assert found["tried_stopped"] is None


def test_a_trial_is_shown_beside_the_prediction() -> None:
    tried = {"tried_bytes": 17 * MIB, "tried_faults": 100.0, "tried_slowdown": 0.01}
    (line,) = [text for head, text in lines(row(**tried)) if head == "tried"]
    assert line == (
        "with 17 MiB it waited for memory 1 % of the time, with 100 faults/s; "
        "predicted 5 % and 5000 faults/s."
    )
    (line,) = [text for head, text in lines(row(tried_stopped="it ended")) if head == "tried"]
    assert line == "no, because it ended."
    assert not confirm.refuted(row(**tried), 0.05) and not confirm.refuted(row(), 0.05)
    assert confirm.refuted(row(**{**tried, "tried_slowdown": 0.06}), 0.05)
    assert confirm.refuted(row(**tried, tried_stopped="the kernel reclaimed no more"), 0.05)


# --- other methods, on a kernel that has them


@needs_cc
@pytest.mark.long("a guest under TCG")
def test_methods_on_a_kernel_that_has_them(hot: Path) -> None:
    """Methods, `--confirm`, names of targets, and what is refused: one boot for all."""
    fetched("x86_64")
    files = {"work/hot": hot.read_bytes(), "work/watch.py": GUEST.read_bytes()}
    for name in ("__init__.py", "errors.py", "processes.py", "size/swap.py", "units.py"):
        files[f"work/python/nearfar/{name}"] = (PACKAGE / name).read_bytes()
    for file in (PACKAGE / "watch").rglob("*.py"):
        files[f"work/python/nearfar/{file.relative_to(PACKAGE)}"] = file.read_bytes()
    hardware = Hardware((Node(memory=768 * MIB, cpus=2),))
    guest = Guest("x86_64", hardware=hardware, zram=256 * MIB, packages=["python3"])
    done = guest.run(["python3", "/work/watch.py"], files=files, timeout=HANG)
    assert done.exit_code == 0, done.error.decode()
    said = dict(line.split(" ", 1) for line in done.output.decode().splitlines())
    assert said["accessed"] == "16" and said["touch"] in ("16", "17")
    assert 8 <= int(said["damon"]) <= 32
    assert 14 <= int(said["squeeze"]) <= 20
    assert said["kdamonds"] == "0" and said["running"] == "True"
    # No limit is set, and none is left by a watcher that was killed.
    assert (said["limits"], said["after"]) == ("max max max", "max max max True")
    held, *rest = said["held"].split(" ", 2)
    assert 10 <= int(held) <= 20 and rest == ["True", "None"]
    assert said["refuted"] == "True True"
    assert said["unit"] == "web /sys/fs/cgroup/tried" == said["container"]
    assert said["shared"] == "True None"
    assert said["stopped"] == "--container web: it does not run"
    assert said["many"] == "31 True True"
    assert said["sharing"].startswith(
        "the process shares its control group with others; give --cgroup"
    )
    assert said["empty"] == "--cgroup empty: has no process"
    assert said["kernel"].startswith("2: `kthreadd` is a kernel thread")
    assert said["root"].startswith(
        "the control group has no memory controller; name a group below the root"
    )
    assert said["root-here"].startswith(
        "root in this container may not read process 1; run outside"
    )
    assert said["user"].startswith("process 1 is another user's; run as root, or give Python CAP_")
    assert said["hidden"] == "1: is hidden from this user (/proc has hidepid); run as root"
