"""``nearfar tiering``: counts and times, policies in Python, lifetimes, errors, command, page."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet
import pytest

import browser
from capturing import nearfar as capture
from capturing import needs_cc, needs_qemu
from conftest import HANG, Run
from nearfar._engine import Memory, Thread
from nearfar.declared import names
from nearfar.errors import NearfarError
from nearfar.tiering import Policy, policies, read_knobs, tiering, workloads

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SMALL: dict[str, Any] = {"scale": "1/256", "rounds": 2, "fast": "13G"}
COUNTS = ("promotions", "demotions", "shadow_copies", "shadow_faults", "shadow_reclaims")


def counts(result: Any, policy: str) -> dict[str, float]:
    return {count: result.total(policy, count) for count in COUNTS}


def test_every_policy_runs_and_is_described() -> None:
    known = {policy["name"]: policy for policy in policies()}
    for policy in known.values():
        assert policy["what"]
        assert policy["not_for"]
        assert all(knob["source"] and knob["what"] for knob in policy["knobs"])
    result = tiering("nomad-medium", policy=",".join(known), **SMALL)
    assert [row["phase"] for row in result.rows] == ["warm-up", "round-1", "round-2"] * len(known)
    for row in result.rows:
        assert row["accesses"] == 30_000_000 // 256
        assert row["demotions"] == row["demotions_remapped"] + row["demotions_copied"]
        assert row["bandwidth_mb_s"] == pytest.approx(
            row["accesses"] * 4096 / 2**20 / row["seconds"]
        )
        assert row["mean_latency_ns"] == pytest.approx(row["seconds"] / row["accesses"] * 1e9)
    by_policy = {row["policy"]: row for row in result.rows if row["phase"] == "round-2"}
    bound = by_policy.pop("oracle")["bandwidth_mb_s"]
    assert all(row["bandwidth_mb_s"] <= bound for row in by_policy.values())
    assert by_policy["nomad"]["fast_hit_ratio"] > by_policy["none"]["fast_hit_ratio"]


def test_ssp_makes_fewer_shadows_of_written_pages_and_as_many_of_read_ones() -> None:
    options = {**SMALL, "rounds": 4, "policy": "nomad,ssp"}
    written = tiering("nomad-medium", mix="write", **options)
    mixed = tiering("nomad-medium", mix="mixed", **options)
    read = tiering("nomad-medium", mix="read", **options)

    def ratio(result: Any, count: str, rounds_only: bool = False) -> float:
        one, other = (result.total(p, count, rounds_only=rounds_only) for p in ("ssp", "nomad"))
        return float(one / other)

    assert ratio(written, "shadow_copies") < ratio(mixed, "shadow_copies") + 0.1
    assert ratio(written, "shadow_copies") < 0.75
    assert ratio(read, "shadow_copies", True) > 0.9
    assert ratio(written, "shadow_faults") < 1
    assert ratio(written, "shadow_reclaims") < 0.5


def test_results_repeat_and_depend_on_the_seed() -> None:
    one = tiering("nomad-small", policy="nomad", seeds=2, **SMALL)
    again = tiering("nomad-small", policy="nomad", seeds=2, threads=1, **SMALL)
    assert one.to_json() == again.to_json()
    first, second = ([r for r in one.rows if r["seed"] == seed] for seed in (1, 2))
    assert [r["seconds"] for r in first] != [r["seconds"] for r in second]


def test_ssp_in_python_decides_as_in_rust(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from ssp import Ssp

    assert len((EXAMPLES / "ssp.py").read_text().splitlines()) < 60
    rust = tiering("nomad-medium", policy="ssp", mix="mixed", **SMALL)
    python = tiering("nomad-medium", policy=Ssp(), mix="mixed", **SMALL)
    assert rust.total("ssp", "promotions") > 1000

    def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**row, "policy": ""} for row in rows]

    assert plain(rust.rows) == plain(python.rows)
    assert plain(rust.series) == plain(python.series)


class PromoteAtOnce(Policy):
    """A policy without a base: it arms each slow page when mapped, and promotes it when used."""

    def __init__(self) -> None:
        self.seen: list[tuple[Thread, int]] = []
        self.fifo: list[int] = []

    def start(self, memory: Memory) -> list[tuple[Thread, float]]:
        assert memory.nodes() == 2
        assert memory.capacity(0) > 0
        assert memory.next_mapped(0) is None
        assert memory.capabilities() == ["accessed-bits", "dirty-bits", "samples", "far-is-mapped"]
        assert memory.tenants() == 1
        assert memory.limit(0, 1) == (0, memory.capacity(1))
        self.watcher = memory.spawn("watcher")
        assert self.watcher.name == "watcher"
        assert self.watcher != memory.spawn("idle")
        return [(self.watcher, 1000.0)]

    def allocated(self, memory: Memory, page: int) -> None:
        assert memory.mapped(page)
        assert memory.next_mapped(page) == page
        if memory.node_of(page):
            assert memory.arm_hint(page)
        else:
            self.fifo.append(page)

    def hint_fault(self, memory: Memory, page: int, write: bool) -> None:
        if not memory.free(0):
            victims = [self.fifo.pop(0)]
            held = memory.used(0, 1)
            assert memory.move_pages([*victims, *victims, 1 << 31], 1) == [True, False, False]
            assert memory.used(0, 1) == held + 1
            assert memory.arm_hints([*victims, 1 << 31]) == [True, False]
        fast, slow = (memory.loaded_latency(node) for node in (0, 1))
        assert fast is not None
        assert slow is not None
        assert fast < slow
        assert memory.move_page(page, 0)
        assert not memory.move_page(page, 0)
        assert not memory.remap_to_shadow(page)
        self.fifo.append(page)

    def write_fault(self, memory: Memory, page: int) -> None:
        raise AssertionError("nothing is write-protected")

    def work(self, memory: Memory, thread: Thread) -> float | None:
        with pytest.raises(RuntimeError, match="`start`"):
            memory.spawn("late")
        self.seen.append((thread, memory.now()))
        return 50_000.0 if len(self.seen) < 10 else None


def test_a_policy_is_loaded_from_a_file(tmp_path: Path) -> None:
    small: dict[str, Any] = {"scale": "1/256", "rounds": 1}
    file = EXAMPLES / "ssp.py"
    ours = tiering("nomad-medium", policy=f"nomad,{file}", **small)
    assert [row["policy"] for row in ours.rows[::2]] == ["nomad", "ssp-python"]
    assert f"--policy nomad,{file} " in str(ours.run["command"])
    rust = tiering("nomad-medium", policy="ssp", **small)
    assert [{**row, "policy": "ssp"} for row in ours.rows[2:]] == rust.rows
    two = tmp_path / "two.py"
    two.write_text(
        "from nearfar.tiering import Policy\n"
        "class A(Policy):\n    base = 'nomad'\nclass B(Policy):\n    base = 'tpp'\n"
    )
    assert tiering("nomad-medium", policy=f"{two}:B", **small).rows[0]["policy"] == "b"
    (tmp_path / "bad.py").write_text("x = = 1")
    (tmp_path / "none.py").write_text("from nearfar.tiering import Policy")
    for file, says in {
        "two.py": "name one of A, B",
        "two.py:C": "name one of A, B",
        "bad.py": "SyntaxError",
        "none.py": "has no class",
        "no.py": "no such file",
    }.items():
        with pytest.raises(NearfarError, match=says):
            tiering("nomad-medium", policy=str(tmp_path / file))


def test_a_policy_without_a_base() -> None:
    # `Noted` keeps the object that the run makes.
    made: list[PromoteAtOnce] = []

    class Noted(PromoteAtOnce):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    result = tiering("nomad-medium", policy=Noted, scale="1/1024", rounds=1, fast="14G")
    rows = result.rows
    assert rows[0]["policy"] == "noted"
    assert sum(row["promotions"] for row in rows) == sum(row["hint_faults"] for row in rows) > 0
    assert rows[-1]["fast_hit_ratio"] == 1.0
    assert [thread for thread, _ in made[0].seen] == [made[0].watcher] * 10
    times = [at for _, at in made[0].seen]
    assert times[0] >= 1000
    assert all(later - earlier >= 50_000 for earlier, later in zip(times, times[1:], strict=False))


class CopyOnFault(Policy):
    """Promotes by an asynchronous copy; its thread is woken to commit the complete copy."""

    def __init__(self) -> None:
        self.copying: list[int] = []
        self.outcomes: list[bool | None] = []

    def start(self, memory: Memory) -> None:
        self.mover = memory.spawn("mover")

    def place(self, page: int, free: list[int], frames: int) -> int:
        return 0 if free[0] > 2000 else 1

    def allocated(self, memory: Memory, page: int) -> None:
        memory.arm_hint(page)

    def hint_fault(self, memory: Memory, page: int, write: bool) -> None:
        memory.disarm_hint(page)
        if memory.node_of(page) and memory.begin_copy(page, 0, self.mover):
            # The copy is not complete before the fault is over.
            assert memory.commit_copy(page, False) is None
            self.copying.append(page)

    def work(self, memory: Memory, thread: Thread) -> None:
        assert thread == self.mover
        self.outcomes += [memory.commit_copy(page, False) for page in self.copying]
        self.copying.clear()


def test_a_complete_copy_wakes_the_policys_thread() -> None:
    made: list[CopyOnFault] = []

    class Noted(CopyOnFault):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    result = tiering("nomad-medium", policy=Noted, scale="1/1024", rounds=1, fast="14G")
    promotions = result.total("noted", "promotions")
    assert promotions == made[0].outcomes.count(True) > 0
    assert len(made[0].outcomes) == promotions + result.total("noted", "aborts")


class Foresees(Policy):
    """Notes the use counts of each phase."""

    phases: ClassVar[list[int]] = []

    def foresee(self, memory: Memory, counts: list[int]) -> None:
        self.phases.append(sum(counts))


@pytest.mark.parametrize("policy", [Foresees, Foresees()])
def test_a_class_and_an_object_foresee_each_phase(policy: Policy | type[Policy]) -> None:
    Foresees.phases.clear()
    tiering("nomad-medium", policy=policy, scale="1/1024", rounds=2)
    assert len(Foresees.phases) >= 2 and all(Foresees.phases)


def raising(hook: str) -> type[Policy]:
    def fail(self: object, *arguments: object) -> None:
        raise KeyError("the policy's own mistake")

    return type("Bad", (Policy,), {"base": "nomad", hook: fail})


@pytest.mark.parametrize(
    "hook", ["start", "allocated", "hint_fault", "write_fault", "keep_shadow", "demoting"]
)
def test_an_exception_in_a_hook_comes_out_and_ends_the_run(hook: str) -> None:
    with pytest.raises(KeyError, match="own mistake"):
        tiering("nomad-medium", policy=raising(hook), **SMALL)


def test_memory_cannot_be_used_after_a_hook() -> None:
    kept: list[Any] = []

    class Keeps(Policy):
        def start(self, memory: Memory) -> None:
            kept.append(memory)

    tiering("nomad-medium", policy=Keeps, scale="1/1024", rounds=1)
    with pytest.raises(RuntimeError, match="while a hook runs"):
        kept[0].page_limit()


def test_progress_may_stop_a_run() -> None:
    def stop(count: int) -> None:
        raise KeyboardInterrupt

    class Idle(Policy):
        pass

    for policy in ("nomad", Idle):
        with pytest.raises(KeyboardInterrupt):
            tiering("nomad-medium", policy=policy, scale="1/64", progress=stop)


def test_policies_on_a_trace(mixed: Path) -> None:
    result = tiering(mixed, policy="none,nomad,tpp,oracle", fast="30%", rounds=2)
    pages = result.run["footprint_bytes"] // 4096
    assert 300 < pages <= 700
    assert result.run["node_bytes"]["fast"] == -(-pages * 3 // 10) * 4096
    assert {row["phase"] for row in result.rows} == {"round-1", "round-2"}
    last = {row["policy"]: row for row in result.rows if row["phase"] == "round-2"}
    assert last["oracle"]["fast_hit_ratio"] > last["none"]["fast_hit_ratio"]
    # The oracle also places first touches by their future.
    first = {row["policy"]: row for row in result.rows if row["phase"] == "round-1"}
    assert first["oracle"]["bandwidth_mb_s"] >= 0.99 * max(
        row["bandwidth_mb_s"] for row in first.values()
    )
    assert last["nomad"]["promotions"] > 0
    # Without the filter every reference counts.
    whole = tiering(mixed, policy="none", fast="30%", filter="none")
    assert whole.rows[0]["accesses"] == 200_000 > last["none"]["accesses"]


TURNS = r"""
#define _GNU_SOURCE
#include <sys/mman.h>
int main(void) {
    /* Ten times 1 MiB, each at addresses of its own, each gone before the next. */
    for (long turn = 0; turn < 10; turn++) {
        void *at = (void *)(0x5000000000L + (turn << 24));
        volatile char *p = mmap(at, 256 * 4096, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        for (int round = 0; round < 2; round++)
            for (long i = 0; i < 256 * 64; i++) p[i * 64] += 1;
        munmap(at, 256 * 4096);
    }
    return 0;
}
"""


class Counted(Policy):
    """Moves no pages, and notes allocated and released ones."""

    now: ClassVar[set[int]] = set()
    ended: ClassVar[list[int]] = []

    def allocated(self, memory: Memory, page: int) -> None:
        assert page not in self.now
        self.now.add(page)

    def released(self, memory: Memory, page: int, span: int) -> None:
        assert span == 1
        assert not memory.mapped(page)
        self.now.remove(page)
        self.ended.append(page)


def adds_up(rows: Sequence[Mapping[str, Any]]) -> None:
    """Check that `fast_pages` is the pages that entered the fast node minus those that left."""
    there: dict[tuple[str, int], int] = {}
    for row in rows:
        run = (row["policy"], row["seed"])
        entered = row["fast_allocated"] + row["promotions"]
        left = row["fast_freed"] + row["demotions"]
        there[run] = there.get(run, 0) + entered - left
        assert row["fast_pages"] == there[run], row


def test_the_counters_of_a_row_add_up() -> None:
    found = tiering("nomad-medium", policy=",".join(p["name"] for p in policies()), **SMALL)
    assert any(row["promotions"] for row in found.rows)
    adds_up(found.rows)


@needs_qemu
@needs_cc
def test_unmapped_pages_leave_the_nodes(build: Callable[..., Path], tmp_path: Path) -> None:
    trace = tmp_path / "turns.trace"
    assert capture("-o", trace, "--", build(TURNS)).returncode == 0
    every = ",".join(policy["name"] for policy in policies())
    for filtered, some in (("none", every), ("cache", "none,nomad")):
        options: dict[str, Any] = {"fast": "50%", "filter": filtered, "rounds": 1}
        off = tiering(trace, policy=some, lifetimes="off", **options)
        on = tiering(trace, policy=some, **options)
        footprint, peak = on.run["footprint_bytes"], on.run["peak_resident_bytes"]
        assert footprint == off.run["footprint_bytes"]
        assert off.run["peak_resident_bytes"] is None
        # Of ten mappings, one is resident at a time; loader and C library add a little.
        assert footprint - peak == pytest.approx(9 * (1 << 20), abs=1 << 17)
        assert 1 << 20 <= peak < 2 << 20
        assert on.run["node_bytes"]["fast"] == -(-peak // 4096 // 2) * 4096
        for row, endless in zip(on.rows, off.rows, strict=True):
            assert row["accesses"] == endless["accesses"]
            assert row["fast_pages"] <= on.run["node_bytes"]["fast"] // 4096
        adds_up(on.rows)
    # With its peak as fast memory, nothing is slow.
    on = tiering(trace, policy="none", fast="100%", filter="none", rounds=2)
    assert [row["fast_hit_ratio"] for row in on.rows] == [1, 1]
    tiering(trace, policy=Counted, fast="50%", filter="none", rounds=1)
    assert len(Counted.ended) >= 10 * 256
    assert len(Counted.now) < 256
    # With write-backs, lifetimes are off, as a line may be written back after its page is unmapped.
    late = {"policy": "none", "filter": "cache-write-backs"}
    assert tiering(trace, **late).rows == tiering(trace, lifetimes="off", **late).rows


def test_without_events_pages_never_end(mixed: Path) -> None:
    options: dict[str, Any] = {"policy": "tpp,nomad", "fast": "30%"}
    on, off = (tiering(mixed, lifetimes=given, **options) for given in ("on", "off"))
    assert (on.rows, on.series) == (off.rows, off.series)
    assert on.run["peak_resident_bytes"] is None


def test_huge_pages_are_promoted_whole() -> None:
    result = tiering("nomad-medium", policy="tpp", huge=True, scale="1/64", rounds=1)
    row = next(row for row in result.rows if row["promotions"])
    assert row["promotions"] % 512 == 0


def test_a_machine_may_have_three_nodes(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[1] / "machines" / "cxl-a.toml").read_text()
    third = text[text.index("[node.slow]") : text.index("# Weak sources")]
    third = third.replace("node.slow", "node.slower").replace("407ns", "900ns")
    (tmp_path / "three.toml").write_text(text + "\n" + third)
    machine = str(tmp_path / "three.toml")
    result = tiering("nomad-medium", policy="nomad,tpp", machine=machine, **SMALL)
    assert list(result.run["node_bytes"]) == ["fast", "slow", "slower"]
    assert result.total("nomad", "promotions") > 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"policy": "nomat"}, "did you mean `nomad`"),
        ({"policy": "nomad,nomad"}, "given twice"),
        ({"knobs": {"nomad.mqp_size": "3"}, "policy": "nomad"}, "did you mean `mpq_size`"),
        ({"knobs": {"tpp.batch": "3"}, "policy": "nomad"}, "no such policy in this run"),
        ({"knobs": {"batch": "3"}}, "policy.knob=value"),
        ({"knobs": {"nomad.batch": "x"}, "policy": "nomad"}, "whole number"),
        ({"mix": "blend"}, "--mix"),
        ({"pattern": "bell"}, "scrambled-zipf, zipf"),
        ({"placement": "left"}, "uniform, hottest-first"),
        ({"scale": "1/0"}, "--scale"),
        ({"scale": "-1"}, "--scale"),
        ({"seeds": 0}, "--seeds"),
        ({"rounds": -1}, "--rounds"),
        ({"fast": "lots"}, "--fast"),
        ({"slow": "1G"}, "frames"),
        ({"machine": "nvme"}, "two to four"),
        ({"machine": "cxl-2socket"}, "cost.hint_fault"),
        ({"cost_scale": -1.0}, "--cost-scale"),
        ({"workload": "nomad-tiny"}, "nomad-medium"),
        ({"workload": "no/such.trace"}, "no/such.trace"),
    ],
)
def test_mistakes_are_one_clear_line(options: dict[str, Any], says: str) -> None:
    options = {"workload": "nomad-medium", "scale": "1/512", **options}
    with pytest.raises(NearfarError) as raised:
        tiering(options.pop("workload"), **options)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 2


def test_keep_shadow_needs_the_base_nomad() -> None:
    class Odd(Policy):
        base = "tpp"

        def keep_shadow(self, page: int) -> bool:
            return True

    with pytest.raises(NearfarError, match="on the base `nomad`"):
        tiering("nomad-medium", policy=Odd, scale="1/512")


def test_shadows_are_freed_for_each_control_group() -> None:
    """With ten groups, a pass of kswapd frees more shadows, so fewer writes hit a shadow."""
    options: dict[str, Any] = {
        "policy": "nomad",
        "mix": "write",
        "fast": "13707M",
        "slow": "15559M",
    }
    one, ten = (
        tiering("nomad-medium", knobs={"nomad.groups": groups}, scale="1/128", rounds=2, **options)
        for groups in (1, 10)
    )
    assert ten.total("nomad", "shadow_faults") < 0.8 * one.total("nomad", "shadow_faults")
    assert ten.total("nomad", "shadow_reclaims") > one.total("nomad", "shadow_reclaims")


def test_knobs_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "knobs.toml"
    file.write_text('[ssp]\nnotice = "write-protect"\npagevec = 7\narm_demoted = true\n')
    assert read_knobs(file) == {
        "ssp.notice": "write-protect",
        "ssp.pagevec": "7",
        "ssp.arm_demoted": "true",
    }
    options = {**SMALL, "rounds": 4}
    watched = tiering("nomad-medium", policy="ssp", knobs=read_knobs(file), **options)
    other = {"ssp.pagevec": "7", "ssp.notice": "dirty-bit"}
    plain = tiering("nomad-medium", policy="ssp", knobs=other, **options)
    assert watched.total("ssp", "write_faults") > plain.total("ssp", "write_faults")
    file.write_text("notice = 3\n")
    with pytest.raises(NearfarError, match="under a table"):
        read_knobs(file)
    with pytest.raises(NearfarError, match=r"none\.toml"):
        read_knobs(tmp_path / "none.toml")


def test_scale_is_a_fraction_or_a_number() -> None:
    rows = [
        tiering(policy="none", scale=scale, rounds=1).rows
        for scale in ("1/256", 1 / 256, "1 / 256")
    ]
    assert rows[0] == rows[1] == rows[2]
    assert workloads() == dict(names.WORKLOAD)


def test_pointer_chase_is_bound_by_latency_only() -> None:
    row = tiering("pointer-chase", policy="none", mix="read", scale="1/256", rounds=1).rows[-1]
    fast = row["fast_hit_ratio"]
    # Latencies of NOMAD's table 1, platform A, and 30 ns for a page walk of nearly every access.
    expected = fast * 150 + (1 - fast) * 407 + 30
    assert row["mean_latency_ns"] == pytest.approx(expected, rel=0.01)


# --- the command


def test_the_command_prints_and_writes_rows_and_series(nearfar: Run, tmp_path: Path) -> None:
    words = ("tiering", "--scale", "1/256", "--policy", "nomad,ssp", "--seeds", "2", "--rounds", 1)
    done = nearfar(
        *words, "-o", tmp_path / "out", "--html", tmp_path / "p.html", "--format", "json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert done.stderr == ""
    assert [row["seed"] for row in found["rows"]] == [1, 1, 2, 2] * 2
    assert list(found["rows"][0])[:5] == ["policy", "workload", "mix", "seed", "phase"]
    series = pyarrow.parquet.read_table(tmp_path / "out" / "series.parquet").to_pylist()
    assert series == found["series"]
    # 2 policies, 2 seeds, 2 phases, 40 points.
    assert len(series) == 2 * 2 * 2 * 40
    csv = nearfar(*words, "--format", "csv").stdout.splitlines()
    assert len(csv) == 9
    assert "Over the run" not in nearfar(*words).stdout
    points = nearfar(*words, "--points", "2").stdout.partition("Over the run")[2].splitlines()
    assert sum("round-1" in line for line in points) == 2 * 2, "two policies, two points, one seed"
    last = found["series"][-1]
    rows = [row for row in found["rows"] if (row["policy"], row["seed"]) == ("ssp", last["seed"])]
    for count in ("shadow_copies", "shadow_faults", "shadow_reclaims", "demotions_remapped"):
        assert last[count] == sum(row[count] for row in rows), count
    assert csv[0].startswith('"policy","workload"')
    bad = nearfar("tiering", "--format", "xml")
    assert (bad.returncode, "Traceback" in bad.stderr) == (2, False)
    listed = nearfar("tiering", "--list")
    assert "mpq_size" in listed.stdout
    assert nearfar("tiering", "--knob", "nomad.batch").returncode == 2


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tiering("nomad-medium", policy="none,nomad,ssp", seeds=3, **SMALL)
    path = tmp_path_factory.mktemp("page") / "tiering.html"
    text = result.html()
    assert text == result.html()
    assert len(text) < 3_000_000
    path.write_text(text, encoding="utf-8")
    return path


def test_the_page_works_in_a_browser(page: Path) -> None:
    with browser.opened(page) as (shown, problems):
        shown.wait_for_function("document.querySelectorAll('svg.marks').length >= 11")
        assert shown.text_content(".finding").startswith("ssp is fastest")
        assert shown.locator("table").first.is_visible()
    assert problems == []


def test_the_example_runs(nearfar: Callable[..., Any]) -> None:
    import subprocess

    command = [sys.executable, str(EXAMPLES / "ssp.py"), "1/512"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    assert "the same decisions" in done.stdout
