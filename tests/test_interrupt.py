"""Ctrl-C ends a long run of the engine and leaves nothing half-written; the GIL is free meanwhile.

The signal is sent after the first progress report, so that the engine surely runs.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import HANG, Run

#: References of the trace; enough for many progress reports of every study.
REFS = 12_000_000


@pytest.fixture(scope="module")
def long_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from nearfar.generate import generate

    path = tmp_path_factory.mktemp("long") / "long.trace"
    return generate("zipf", path, refs=REFS, pages=30_000, write_ratio=0.3, seed=1)


#: Statements to put into CHILD, which defines `out` and `progress`, and is given `trace`.
RUNS = {
    "paging": "paging.paging(trace, progress=progress)",
    "paging, lru": "paging.paging(trace, replacement='lru', progress=progress)",
    "paging, filtered": "paging.paging(trace, filter='cache', progress=progress)",
    "advise": "advise.advise(trace, progress=progress)",
    "tiering": "tiering.tiering(scale='1/16', progress=progress)",
    "tiering, trace": "tiering.tiering(trace, filter='none', progress=progress)",
    "ssd": "ssd.ssd(trace, dram=['8M'], progress=progress)",
    "numa": "numa.run(trace, progress=progress)",
    "numa, pair": "numa.pair(trace, trace, progress=progress)",
    "info": "info.info(trace, progress=progress)",
    "generate": "generate.generate('zipf', out, refs=10**9, pages=9999, progress=progress)",
    "import": "importer.import_trace(out.with_name('in.csv'), out, progress=progress)",
    "export": "exporter.export_trace(trace, out, format='csv', progress=progress)",
}

CHILD = """
# No eval() of the statement: after a KeyboardInterrupt from eval(), Python exits by SIGINT.
import json, os, signal, threading, time
from pathlib import Path
from nearfar import advise, exporter, generate, importer, info, numa, paging, ssd, tiering

out = Path("out").absolute()
if name == "import":
    exporter.export_trace(trace, Path("in.csv"), format="csv", max_refs=4_000_000)
began, sent = threading.Event(), []

def progress(count):
    began.set()

def interrupt():
    began.wait()
    sent[:] = [time.monotonic(), time.process_time()]
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    WORK
    outcome = {"finished": True}
except KeyboardInterrupt:
    outcome = {"finished": False, "seconds": time.monotonic() - sent[0],
            "cpu": time.process_time() - sent[1]}
print(json.dumps(outcome))
"""


@pytest.mark.parametrize("name", RUNS)
def test_ctrl_c_ends_a_run(nearfar: Run, name: str, long_trace: Path, tmp_path: Path) -> None:
    code, given = CHILD.replace("WORK", RUNS[name]), {"name": name, "trace": str(long_trace)}
    done = nearfar(
        "--version", first=f"exec({code!r}, {given})", cwd=tmp_path, TMPDIR=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[0])
    assert not outcome["finished"]
    print(f"{name}: {outcome['seconds']:.2f} s, {outcome['cpu']:.2f} s of processor time")
    left = {path.name for path in tmp_path.iterdir()} - {"in.csv"}
    assert not left, f"left behind: {left}"


@pytest.mark.parametrize(
    "words",
    [
        "generate zipf -o out.trace --refs 1000000000 --pages 9999",
        "paging {trace} -o out.result --html out.html",
        "export {trace} --format csv -o out.csv",
    ],
)
def test_ctrl_c_at_the_command_line_leaves_one_error_and_no_file(
    words: str, long_trace: Path, tmp_path: Path
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "nearfar", *words.format(trace=long_trace).split()]
        + ["--progress", "always"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert child.stderr is not None
    first = child.stderr.read(1)  # progress is reported: the engine runs
    assert first == b"\r"
    child.send_signal(signal.SIGINT)
    printed, errors = child.communicate(timeout=HANG)
    assert child.returncode == 130
    assert printed == b""
    last = errors.decode().splitlines()[-1]
    assert last.endswith("nearfar: error: interrupted"), errors
    assert "Traceback" not in errors.decode()
    assert list(tmp_path.iterdir()) == []


def ticks_during(work: Callable[[], Any]) -> int:
    """Turns of another Python thread, at most one per millisecond, while ``work`` runs."""
    count, stop = 0, threading.Event()

    def tick() -> None:
        nonlocal count
        while not stop.is_set():
            count += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        before = count
        work()
        return count - before
    finally:
        stop.set()
        thread.join()


def test_the_engine_releases_the_gil(tmp_path: Path) -> None:
    from nearfar import machine, numa
    from nearfar.generate import generate
    from nearfar.info import info
    from nearfar.paging import paging
    from nearfar.ssd import ssd
    from nearfar.tiering import tiering

    assert machine.names()
    trace = generate("zipf", tmp_path / "a.trace", refs=1_000_000, pages=30_000, seed=1)
    works: dict[str, Callable[[], Any]] = {
        "paging": lambda: paging(trace, page_sizes="4K,64K", memory="50%"),
        "tiering": lambda: tiering(policy="tpp", scale="1/256", rounds=1),
        "ssd": lambda: ssd(trace, dram=["64M"], epf=["all"]),
        "numa": lambda: numa.run(trace, mode=["alius"]),
        "info": lambda: info(trace, heatmap=False),
    }
    for name, work in works.items():
        # A call that keeps the GIL gives two turns at most; a busy machine may need several tries.
        assert any(ticks_during(work) > 20 for _ in range(20)), name


def test_few_ticks_are_counted_while_a_call_keeps_the_gil() -> None:
    """Sorting integers is one call into C that does not release the GIL."""
    numbers = list(range(3_000_000, 0, -1))
    assert min(ticks_during(lambda: sorted(numbers, key=None)) for _ in range(5)) <= 5
