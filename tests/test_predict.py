"""What `nearfar run` is predicted to come to, beside what it comes to."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from capturing import nearfar as capture
from capturing import needs_cc, needs_qemu
from conftest import Run
from nearfar.errors import NearfarError
from nearfar.predict import Prediction, predict
from nearfar.reproduce._live import MicroBenchmark
from tiers import needs_userfaultfd, run

COSTS = {
    "fault_ns": 8000, "read_ns": 250, "copy_ns": 1000, "copy_next_ns": 700, "take_ns": 800,
    "protect_ns": 600, "discard_ns": 1000, "store_ns": 50, "load_ns": 250, "fetch_ns": 0,
}  # fmt: skip
SMALL: Any = {"scale": "1/1024", "mix": "write"}
PROGRAM = Path(__file__).parent.parent / "bench" / "programs" / "touch.c"


def small(policy: str, **more: Any) -> Prediction:
    return predict(
        "nomad-medium", workload=SMALL, fast="13M", far="shm", policy=policy, costs=COSTS, **more
    )


def test_the_same_comes_twice_without_a_kernel() -> None:
    found = small("ssp", alone=0.1)
    assert found == small("ssp", alone=0.1)
    assert found.costs == COSTS
    assert 0 < found.counters["shadow_copies"] < found.counters["promotions"]
    # Memory is touched once before it begins, then five phases refer to it.
    pages, operations = int(27 * 2**18 / 1024), int(30e6 / 1024)
    assert found.references == pages + 5 * operations
    assert found.fast_bytes <= 13 << 20


def test_what_a_reference_takes_is_added() -> None:
    slow, quick = small("none", alone=1.0), small("none", alone=0.5)
    assert slow.counters == quick.counters
    assert slow.seconds - quick.seconds == pytest.approx(0.5, rel=1e-3)


def test_ssp_makes_fewer_shadows_than_nomad() -> None:
    made = {policy: small(policy).counters["shadow_copies"] for policy in ("nomad", "ssp")}
    assert made["ssp"] < 0.8 * made["nomad"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"policy": "memtis"}, "samples"),
        ({"alone": 0.0}, "above 0"),
        ({"costs": {"fault_ns": 1}}, "missing field"),
        ({"costs": {**COSTS, "wait_ns": 1}}, "unknown field"),
        ({"workload": {"scale": "0"}}, "share"),
    ],
)
def test_what_cannot_be_predicted_is_said_in_a_line(asked: dict[str, Any], says: str) -> None:
    usual: dict[str, Any] = {"fast": "13M", "costs": COSTS, "workload": SMALL}
    with pytest.raises(NearfarError, match=says) as raised:
        predict("nomad-medium", **{**usual, **asked})
    assert "\n" not in str(raised.value)


def test_a_table_of_what_came() -> None:
    found = small("nomad")
    lived: Any = SimpleNamespace(counters={**found.counters, "aborts": 7}, seconds=1.5)
    lines = found.beside(lived).splitlines()
    assert lines[0].split() == ["predicted", "lived"]
    assert lines[-1].split() == ["seconds", f"{found.seconds:.2f}", "1.50"]
    promotions = f"{found.counters['promotions']:,}"
    assert ["promotions", promotions, promotions] in [line.split() for line in lines]
    assert found.beside().splitlines()[0].split() == ["predicted"]


@needs_userfaultfd
@needs_qemu
@needs_cc
@pytest.mark.parametrize("writes", [0, 50])
def test_a_program_does_what_its_trace_says(writes: int, tmp_path: Path) -> None:
    """Without a policy nothing depends on time: the counts are those of its references alone."""
    program = tmp_path / "touch"
    subprocess.run(["cc", "-O2", "-o", program, PROGRAM, "-lm"], check=True)
    command = [str(program), "2048", "8000", str(writes), "zipf"]
    trace = tmp_path / "touch.trace"
    done = capture("-o", trace, "--no-fetch", "--", *command)
    assert done.returncode == 0, done.stderr
    options: dict[str, Any] = {"fast": "4M", "far": "shm", "policy": "none"}
    found = predict(trace, costs=COSTS, **options).counters
    _, outcome = run(*command, **options)
    lived = outcome.counters
    for count in ("hint_faults", "window_faults", "far_loads", "far_stores"):
        assert found[count] == pytest.approx(lived[count], rel=0.03), count
    assert lived["window_faults"] > 1000


@needs_userfaultfd
@needs_cc
def test_the_benchmark_of_the_paper_lives(tmp_path: Path) -> None:
    program = MicroBenchmark(tmp_path, 1 / 1024)
    lived = program.run("mixed", "ssp", 1, "13707M", "15559M")
    seen = lived.outcome.counters
    assert seen["promotions"] > seen["shadow_copies"] > 0
    assert len(lived.seconds) == 5 and lived.bandwidth_mb_s > 0
    assert program.alone("read") > 0


@needs_userfaultfd
@needs_cc
def test_the_command_line_shows_both(tmp_path: Path, nearfar: Run) -> None:
    program = tmp_path / "touch"
    subprocess.run(["cc", "-O2", "-o", program, PROGRAM, "-lm"], check=True)
    trace = tmp_path / "zipf.trace"
    assert nearfar("generate", "zipf", "--refs", 2000, "--pages", 600, "-o", trace).returncode == 0
    memory = ["--predict", trace, "--fast", "1M", "--far", "shm", "--policy", "none"]
    only = nearfar("run", *memory)
    assert only.returncode == 0 and only.stdout.split()[0] == "predicted", only.stderr
    both = nearfar("run", *memory, "--", program, 600, 2000, 0, "zipf")
    assert both.returncode == 0 and both.stdout == "0 wrong\n"
    assert "nearfar: seconds" in both.stderr and "predicted" in both.stderr
    for wrong in ([*memory, "--alone"], [*memory, "--watch", "auto"]):
        done = nearfar("run", *wrong)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
