"""``nearfar apply`` on a folder in place of the kernel's switches, and as root on the real ones."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from capturing import needs_cc, needs_qemu
from conftest import HANG, Run, refused, until, words
from nearfar.apply import apply, plan, restore
from nearfar.apply.setting import SYSFS, applied
from nearfar.capture import capture
from nearfar.errors import NearfarError
from nearfar.processes import children
from nearfar.thp import settings, thp
from nearfar.watch.target import stat

SLEEP = "import time; print('up', flush=True); time.sleep(86400)"
#: Touches each page of 16 MiB once.
TOUCH = """
import mmap
m = mmap.mmap(-1, 16 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, 16 << 20, 4096): m[at] = 1
# Long enough for its memory to be sampled on a slow machine.
import time; time.sleep(2)
"""


#: Reads each page of 16 MiB, then writes each.
READ_FIRST = """
#include <sys/mman.h>
int main(void) {
    volatile char *m =
        mmap(0, 16 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (long at = 0; at < 16 << 20; at += 4096) (void)m[at];
    for (long at = 0; at < 16 << 20; at += 4096) m[at] = 1;
    return 0;
}
"""


# --- plans


def test_a_plan_allows_the_size_and_forbids_the_others(sysfs: Path) -> None:
    found = plan(64 << 10, sysfs)
    assert not found.disable
    assert [(c.file, c.was, c.becomes) for c in found.changes] == [
        ("hugepages-64kB/enabled", "never", "always"),
        ("hugepages-128kB/enabled", "always", "madvise"),
    ]
    assert [c.file for c in plan(2 << 20, sysfs).changes] == [
        "hugepages-128kB/enabled",
        "hugepages-2048kB/enabled",
    ]
    assert plan(128 << 10, sysfs).changes == ()


def test_a_huge_page_policy_is_planned_and_restored(sysfs: Path, tmp_path: Path) -> None:
    (sysfs / "defrag").write_text("always defer defer+madvise [madvise] never\n")
    before = words(sysfs)
    found = plan(2 << 20, sysfs, values=settings("defer"))
    assert {c.file: c.becomes for c in found.changes} == {
        "enabled": "always", "defrag": "defer", "hugepages-128kB/enabled": "never"
    }  # fmt: skip
    sizes = plan(2 << 20, sysfs, values=settings("64K=always+2M=madvise"))
    assert {c.file: c.becomes for c in sizes.changes} == {
        "hugepages-64kB/enabled": "always",
        "hugepages-128kB/enabled": "never",
        "hugepages-2048kB/enabled": "madvise",
    }
    (tmp_path / "run").mkdir(mode=0o700)
    with applied(2 << 20, sysfs, tmp_path / "run", values=settings("defer")):
        assert (sysfs / "defrag").read_text() == "defer"
    assert words(sysfs) == before and (sysfs / "defrag").read_text() == "madvise"
    with pytest.raises(NearfarError, match="cannot set always"):
        plan(2 << 20, sysfs, values=settings("32K=always"))


def test_a_size_that_inherits_the_global_switch_is_planned_by_it(sysfs: Path) -> None:
    (sysfs / "enabled").write_text("[always] madvise never\n")
    changed = {c.file: (c.was, c.becomes) for c in plan(64 << 10, sysfs).changes}
    assert changed["hugepages-2048kB/enabled"] == ("inherit", "madvise")
    assert "hugepages-2048kB/enabled" not in {c.file for c in plan(2 << 20, sysfs).changes}


def test_memory_with_madvise_gets_one_size_and_other_memory_none(sysfs: Path) -> None:
    """QEMU calls madvise for a guest's memory, so other sizes must be off."""
    found = plan(64 << 10, sysfs, asking=True)
    assert not found.disable
    changed = {c.file: c.becomes for c in found.changes}
    assert changed.pop("hugepages-64kB/enabled") == "madvise"
    assert set(changed.values()) == {"never"} and "hugepages-128kB/enabled" in changed
    assert not any(c.becomes == "always" for c in found.changes)


def test_the_base_size_needs_no_switch(tmp_path: Path) -> None:
    found = plan(os.sysconf("SC_PAGE_SIZE"), tmp_path / "none")
    assert found.disable and found.changes == ()


def test_kernels_before_6_8_have_one_switch(tmp_path: Path) -> None:
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    (tmp_path / "hpage_pmd_size").write_text("2097152\n")
    (change,) = plan(2 << 20, tmp_path).changes
    assert (change.file, change.was, change.becomes) == ("enabled", "madvise", "always")
    with pytest.raises(NearfarError, match="the nearest size that this kernel can set is 2M"):
        plan(512 << 10, tmp_path)


@pytest.mark.parametrize(
    ("size", "nearest"), [(32 << 10, "16K"), (8 << 10, "4K"), (1 << 30, "2M"), (96 << 10, "128K")]
)
def test_a_size_that_cannot_be_set_names_the_nearest(sysfs: Path, size: int, nearest: str) -> None:
    with pytest.raises(
        NearfarError, match=f"the nearest size that this kernel can set is {nearest} "
    ) as raised:
        plan(size, sysfs)
    assert raised.value.exit_code == 2


def test_a_kernel_without_huge_pages_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NearfarError, match="CONFIG_TRANSPARENT_HUGEPAGE") as raised:
        plan(64 << 10, tmp_path)
    assert raised.value.exit_code == 3


def test_without_yes_nothing_is_changed_or_run(sysfs: Path, tmp_path: Path) -> None:
    before, mark = words(sysfs), tmp_path / "mark"
    found = apply(["touch", str(mark)], page="64K", sysfs=sysfs, runtime=tmp_path / "run")
    assert not found.done and found.rows == [] and found.exit_code == 0
    assert words(sysfs) == before and not mark.exists() and not (tmp_path / "run").exists()


# --- changes, and their restoration


def test_switches_hold_while_the_command_runs(sysfs: Path, tmp_path: Path) -> None:
    before = words(sysfs)
    seen = tmp_path / "seen"
    command = ["cp", f"{sysfs}/hugepages-64kB/enabled", str(seen)]
    found = apply(command, page="64K", yes=True, sysfs=sysfs, runtime=tmp_path / "run")
    assert seen.read_text() == "always"
    assert words(sysfs) == before
    assert not (tmp_path / "run" / "apply.json").exists()
    assert found.exit_code == 0 and [row["setting"] for row in found.rows] == ["page"]


def test_compared_runs_alternate_between_base_and_page(sysfs: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f"cat {sysfs}/hugepages-64kB/enabled >> {log}; echo >> {log}"
    found = apply(
        ["sh", "-c", script],
        page="64K",
        yes=True,
        compare=True,
        repeat=2,
        sysfs=sysfs,
        runtime=tmp_path / "run",
    )
    lines = [line for line in log.read_text().splitlines() if line]
    assert ["[never]" in line or line == "never" for line in lines] == [True, False, True, False]
    assert [(row["run"], row["setting"]) for row in found.rows] == [
        (1, "base"), (1, "page"), (2, "base"), (2, "page"),
    ]  # fmt: skip
    for row in found.summary:
        values = [r[row["quantity"]] for r in found.rows if r["setting"] == "page"]
        if None not in values:
            assert min(values) <= row["page"] <= max(values)
    assert found.table.num_rows == 4


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 128 + 9)]
)
def test_the_exit_code_is_that_of_the_command(
    sysfs: Path, tmp_path: Path, script: str, code: int
) -> None:
    before = words(sysfs)
    found = apply(["sh", "-c", script], page="64K", yes=True, sysfs=sysfs, runtime=tmp_path / "r")
    assert found.exit_code == code == found.rows[0]["exit_code"]
    assert words(sysfs) == before


def test_a_switch_set_by_another_process_is_not_restored(sysfs: Path, tmp_path: Path) -> None:
    script = f"echo madvise > {sysfs}/hugepages-64kB/enabled"
    apply(["sh", "-c", script], page="64K", yes=True, sysfs=sysfs, runtime=tmp_path / "r")
    found = words(sysfs)
    assert found["hugepages-64kB/enabled"].strip() == "madvise"
    assert found["hugepages-128kB/enabled"] == "always"


def start(sysfs: Path, runtime: Path, page: str = "64K") -> subprocess.Popen[str]:
    """Apply to a command that does not end, in a separate process; waits until it runs."""
    code = (
        "import sys; from pathlib import Path; from nearfar.apply import apply\n"
        f"found = apply([sys.executable, '-c', {SLEEP!r}], page={page!r}, yes=True,"
        f" sysfs=Path({str(sysfs)!r}), runtime=Path({str(runtime)!r}))\n"
        "sys.exit(found.exit_code)"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert running.stdout is not None and running.stdout.readline() == "up\n"
    return running


def finish(running: subprocess.Popen[str]) -> None:
    """Kill the apply and its command, which outlives a killed apply."""
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    assert running.stdout is not None
    running.stdout.close()


def test_the_watchdog_of_a_killed_apply_restores(sysfs: Path, tmp_path: Path) -> None:
    before, runtime = words(sysfs), tmp_path / "run"
    running = start(sysfs, runtime)
    try:
        assert words(sysfs) != before
        running.kill()
        until(lambda: words(sysfs) == before, "the settings put back")
        until(lambda: not (runtime / "apply.json").exists(), "the journal removed")
    finally:
        finish(running)


def leaders(pid: int) -> list[int]:
    """Children that lead a session."""
    return [child for child in children(pid) if os.getsid(child) == child]


def test_the_next_run_restores_if_the_watchdog_is_killed_too(sysfs: Path, tmp_path: Path) -> None:
    before, runtime = words(sysfs), tmp_path / "run"
    for restored_by in ("restore", "next run"):
        running = start(sysfs, runtime)
        try:
            changed = words(sysfs)
            # The watchdog is the first child that leads a session.
            (watchdog,) = until(lambda pid=running.pid: leaders(pid), "the watchdog")
            os.kill(watchdog, signal.SIGKILL)
            # Killed before the apply, or it would restore.
            until(lambda pid=watchdog: stat(pid)[0] in "ZX", "the end of the watchdog")
            running.kill()
            running.wait()
        finally:
            finish(running)
        assert words(sysfs) == changed != before
        assert (runtime / "apply.json").exists()
        if restored_by == "restore":
            undone = {change.file for change in restore(sysfs, runtime)}
            assert undone == {"hugepages-64kB/enabled", "hugepages-128kB/enabled"}
        else:
            apply(["true"], page="16K", yes=True, sysfs=sysfs, runtime=runtime)
        assert {k: v.strip("[]") for k, v in words(sysfs).items()} == before
        assert not (runtime / "apply.json").exists()
    assert restore(sysfs, runtime) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_command_and_restores(
    sysfs: Path, tmp_path: Path, number: signal.Signals
) -> None:
    before = words(sysfs)
    running = start(sysfs, tmp_path / "run")
    try:
        running.send_signal(number)
        # The command is Python, which also on SIGINT ends by the signal.
        assert running.wait(timeout=HANG) == 128 + number
        assert words(sysfs) == before
    finally:
        if running.poll() is None:
            finish(running)
        elif running.stdout is not None:
            running.stdout.close()


def test_a_concurrent_apply_is_refused(sysfs: Path, tmp_path: Path) -> None:
    running = start(sysfs, tmp_path / "run")
    try:
        during = words(sysfs)
        with pytest.raises(NearfarError, match="another `nearfar apply` is running"):
            apply(["true"], page="16K", yes=True, sysfs=sysfs, runtime=tmp_path / "run")
        with pytest.raises(NearfarError, match="another `nearfar apply` is running"):
            restore(sysfs, tmp_path / "run")
        assert words(sysfs) == during
    finally:
        finish(running)


def test_switches_are_restored_without_the_journal(sysfs: Path, tmp_path: Path) -> None:
    before, runtime = words(sysfs), tmp_path / "run"
    found = apply(["rm", "-r", str(runtime)], page="64K", yes=True, sysfs=sysfs, runtime=runtime)
    assert found.exit_code == 0 and not runtime.exists()
    assert {k: v.strip("[]") for k, v in words(sysfs).items()} == before
    running = start(sysfs, runtime)
    try:
        assert runtime.stat().st_mode & 0o777 == 0o700
        shutil.rmtree(runtime)
        running.kill()
        until(lambda: words(sysfs) == before, "the settings put back")
    finally:
        finish(running)


@pytest.mark.parametrize("how", ["shared", "link"])
def test_a_journal_that_others_may_change_is_refused(sysfs: Path, tmp_path: Path, how: str) -> None:
    before, runtime = words(sysfs), tmp_path / "run"
    if how == "shared":
        runtime.mkdir()
        runtime.chmod(0o777)
    else:
        runtime.symlink_to(sysfs)
    with pytest.raises(NearfarError, match="other users could change the journal"):
        apply(["true"], page="64K", yes=True, sysfs=sysfs, runtime=runtime)
    assert words(sysfs) == before


def test_a_journal_of_another_boot_is_only_removed(sysfs: Path, tmp_path: Path) -> None:
    before = words(sysfs)
    change = {"file": "hugepages-16kB/enabled", "was": "always", "becomes": "never"}
    journal = tmp_path / "apply.json"
    journal.write_text(json.dumps({"boot": "another", "changes": [change]}))
    assert restore(sysfs, tmp_path) == []
    assert words(sysfs) == before and not journal.exists()


def test_a_switch_that_fails_undoes_the_others(sysfs: Path, tmp_path: Path) -> None:
    """An immutable file, which not even root may write, stands in for a switch that refuses."""
    before, ours = words(sysfs), sysfs / "hugepages-128kB" / "enabled"
    if subprocess.run(["chattr", "+i", ours], capture_output=True, check=False).returncode:
        pytest.skip("cannot make a file immutable here")
    try:
        with (
            pytest.raises(NearfarError, match="128kB/enabled: cannot be set to madvise"),
            applied(64 << 10, sysfs, tmp_path / "run"),
        ):
            pytest.fail("the block must not begin")
        assert words(sysfs) == before
        assert not (tmp_path / "run" / "apply.json").exists()
    finally:
        subprocess.run(["chattr", "-i", ours], check=True)


# --- measurements and predictions


def test_faults_of_a_commands_children_are_counted() -> None:
    """A child that touches 16 MiB has 4096 faults, beside those of Python's start."""
    if os.sysconf("SC_PAGE_SIZE") != 4096:
        pytest.skip("the base page is not 4 KiB")
    found = apply(["sh", "-c", '"$0" -c "$1"; true', sys.executable, TOUCH], page="4K", yes=True)
    (row,) = found.rows
    assert 4096 <= row["minor_faults"] < 4096 + 40_000
    assert row["peak_rss_bytes"] >= 16 << 20
    assert row["seconds"] > 0 and row["user_seconds"] + row["system_seconds"] > 0


def test_a_trace_gives_a_prediction(mixed: Path, sysfs: Path, tmp_path: Path) -> None:
    from nearfar.paging import paging

    found = apply(
        ["true"], page="64K", yes=True, compare=True, trace=mixed, sysfs=sysfs, runtime=tmp_path
    )
    rows = {row["quantity"]: row for row in found.prediction}
    study = paging(mixed, page_sizes="4K,64K", memory="100%").rows
    for row in study:
        key = "base" if row["page_bytes"] == 4096 else "page"
        assert rows["tlb_miss_rate"][key] == row["tlb_miss_rate"]
        faults = rows["faults"][key]
        assert faults == row["pages"]
        assert rows["fault_rate"][key] == pytest.approx(faults / row["references"])
    minor = next(row for row in found.summary if row["quantity"] == "minor_faults")
    assert rows["faults"]["measured_ratio"] == minor["ratio"]
    assert rows["tlb_miss_rate"]["comparable"] == "direction"
    assert rows["fault_rate"]["comparable"] == "no" and rows["fault_rate"]["why"]


def test_a_huge_page_policy_is_predicted(mixed: Path, sysfs: Path, tmp_path: Path) -> None:
    options = {"yes": True, "trace": mixed, "sysfs": sysfs, "runtime": tmp_path}
    found = apply(["true"], page="always", **options)
    rows = {row["quantity"]: row for row in found.prediction}
    assert list(rows) == ["seconds", "peak_rss_bytes", "faults", "stalls"]
    (always,) = thp(mixed, policy="always").rows
    assert rows["stalls"]["page"] == always["stalls"] > 0 == rows["stalls"]["base"]
    assert rows["stalls"]["measured"] == "huge_allocations"


@needs_qemu
@needs_cc
def test_memory_that_is_read_first_is_predicted_to_fault_twice(
    build: Callable[..., Path], tmp_path: Path
) -> None:
    """Reading maps the zero page; the first write copies it."""
    if os.sysconf("SC_PAGE_SIZE") != 4096:
        pytest.skip("the base page is not 4 KiB")
    program, trace = build(READ_FIRST), tmp_path / "t.trace"
    capture([program], trace)
    found = apply([str(program)], page="4K", yes=True, trace=trace)
    (faults,) = (row for row in found.prediction if row["quantity"] == "faults")
    assert 2 * 4096 <= faults["base"] < 2 * 4096 + 200
    (row,) = found.rows
    assert abs(row["minor_faults"] - faults["base"]) < 200


# --- the command line


def test_a_dry_run_prints_the_plan_and_bad_options_are_one_line(nearfar: Run) -> None:
    base = f"{os.sysconf('SC_PAGE_SIZE') // 1024}K"
    said = nearfar("apply", "--page", base, "--", "sleep", "60")
    assert said.returncode == 0 and "PR_SET_THP_DISABLE" in said.stdout
    assert "Nothing was changed or run" in said.stdout
    for options, expected in (
        (["--page", base, "--yes", "--dry-run", "--", "true"], "--dry-run"),
        (["--", "true"], "--page: is missing"),
        (["--page", "fast", "--", "true"], "is not a size"),
        (["--page", base, "--yes", "--", "no-such-program"], "no such program"),
        (["--page", base], "command: is empty"),
        (["--page", base, "-o", "/no/such/x.json", "--", "true"], "no folder"),
        (["--page", base, "--yes", "--trace", "/no/such.trace", "--", "true"], "/no/such.trace"),
        (["--page", base, "--repeat", "0", "--", "true"], "--repeat: 0 is out of range"),
        (["--page", base, "--repeat", "x", "--", "true"], "--repeat: x is out of range"),
        (["--page", base, "--threads", "1025", "--", "true"], "from 0 to 1024"),
        (["--restore", "--page", base], "runs nothing"),
        (["--page", base, "--format", "xml", "--", "true"], "xml"),
    ):
        refused(nearfar("apply", *options), expected)


def test_the_commands_output_and_exit_code_are_kept(nearfar: Run, tmp_path: Path) -> None:
    base = f"{os.sysconf('SC_PAGE_SIZE') // 1024}K"
    script = ["sh", "-c", "echo out; exit 5"]
    plain = nearfar("apply", "--page", base, "--yes", "--", *script)
    assert (plain.returncode, plain.stdout) == (5, "out\n") and "minor faults" in plain.stderr
    out = tmp_path / "result.json"
    done = nearfar("apply", "--page", base, "--yes", "--format", "json", "-o", out, "--", *script)
    assert done.returncode == 5 and done.stderr == "out\n"
    assert json.loads(done.stdout) == json.loads(out.read_text())
    assert json.loads(done.stdout)["rows"][0]["exit_code"] == 5
    assert nearfar("apply", "--page", base, "--yes", "-o", out, "--", "true").returncode == 2
    csv = nearfar("apply", "--page", base, "--yes", "--format", "csv", "--", "true").stdout
    assert csv.startswith('"run","setting","page_bytes","exit_code","seconds"')


def test_a_lock_that_cannot_be_made_is_an_error(sysfs: Path) -> None:
    before = words(sysfs)
    with pytest.raises(NearfarError, match="/dev/null/run: Not a directory; run as root"):
        apply(["true"], page="64K", yes=True, sysfs=sysfs, runtime=Path("/dev/null/run"))
    assert words(sysfs) == before


# --- the real kernel


def need_real_switches() -> None:
    if os.geteuid() != 0 or not (SYSFS / "hugepages-64kB" / "enabled").exists():
        pytest.skip("needs root and a kernel with a switch for 64 KiB pages")
    if not os.access(SYSFS / "hugepages-64kB" / "enabled", os.W_OK):
        pytest.skip("the switches may not be written here")


def test_the_real_kernel_allocates_pages_of_the_size(nearfar: Run) -> None:
    need_real_switches()
    before = words(SYSFS)
    words_of = ["--page", "64K", "--yes", "--compare", "--format", "json"]
    done = nearfar("apply", *words_of, "--", sys.executable, "-c", TOUCH)
    assert done.returncode == 0, done.stderr
    assert words(SYSFS) == before
    base, page = json.loads(done.stdout)["rows"]
    assert base["setting"] == "base" and page["setting"] == "page"
    # 256 faults of 64 KiB instead of 4096 of 4 KiB, beside those of Python's start in both.
    assert page["minor_faults"] < base["minor_faults"] - 3000
    if page["huge_allocations"] is not None:
        assert page["huge_allocations"] >= 250


def test_the_real_kernel_is_restored_after_a_kill(tmp_path: Path) -> None:
    need_real_switches()
    before = words(SYSFS)
    # With a journal and lock of the test's own, since the machine's may be in use.
    running = start(SYSFS, tmp_path / "run")
    try:
        assert words(SYSFS)["hugepages-64kB/enabled"] == "always"
        running.kill()
        until(lambda: words(SYSFS) == before, "the settings put back")
    finally:
        finish(running)
