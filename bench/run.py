"""`make bench`: nearfar's speed against its peers, in one run on one machine (docs/validation.md).

.venv/bin/python bench/run.py [--quick] [--only NAME,...] [--format table|json] ...
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from cases import (
    big,
    capture,
    captured_sample,
    decode,
    epf,
    first_access,
    fit_choice,
    guest_pages,
    huge,
    kernel_faults,
    live,
    lru,
    mglru_guest,
    page_gain,
    paging,
    real_programs,
    replacement,
    ssd,
    sweep,
    thp,
    thp_guest,
    tiering,
    tiering_guest,
    view,
    vm,
    watch,
    watch_cost,
    zipf,
)
from inputs import QEMU, Inputs
from measure import BenchError, Row
from table import render

ROOT = Path(__file__).parent.parent

#: Cases of speed, which run by default, in this order.
CASES = [
    capture,
    decode,
    paging,
    lru,
    zipf,
    replacement,
    view,
    tiering,
    ssd,
    sweep,
    live,
]
#: Cases of validation, mostly against a real kernel; each has its own file of results.
VALIDATION = [
    kernel_faults,
    mglru_guest,
    tiering_guest,
    page_gain,
    thp,
    thp_guest,
    first_access,
    guest_pages,
    real_programs,
    epf,
    fit_choice,
    watch,
    watch_cost,
    captured_sample,
    big,
    vm,
]


def main() -> int:
    """Run the chosen cases; return 0, or 1 if `--check` is given and a goal missed, 2 on error."""
    options = arguments()
    chosen = choose(options.only)
    inherited = tempfile.gettempdir()
    scratch = Path(tempfile.mkdtemp(prefix="nearfar-bench-", dir=options.scratch or inherited))
    try:
        result = bench(options, chosen, scratch)
    except BenchError as error:
        print(f"bench: error: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    text = json.dumps(result, indent=1) + "\n"
    # A run in which every case was skipped replaces no record.
    if options.output is not None and result["rows"]:
        name = options.output
        name = name.with_suffix("") if name.suffix in {".json", ".md"} else name
        write(name.with_name(f"{name.name}.json"), text)
        write(name.with_name(f"{name.name}.md"), render(result))
    print(text if options.format == "json" else render(result), end="")
    missed = [row for row in result["rows"] if row["holds"] is False]
    return 1 if options.check and missed else 0


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ", ".join(f"{case.NAME} ({case.SUMMARY})" for case in (*CASES, *VALIDATION))
    parser.add_argument("--quick", action="store_true", help="small inputs; no goal is judged")
    parser.add_argument("--only", metavar="NAME,...", default="", help=f"of: {names}")
    parser.add_argument(
        "--refs", type=positive, help="least references of the capture [30 M; quick 200,000]"
    )
    parser.add_argument("--rounds", type=positive, help="alternating repeats [3; quick 1]")
    parser.add_argument(
        "--huge", type=positive, nargs="?", const=huge.PAGES, metavar="PAGES", help=huge.SUMMARY
    )
    parser.add_argument("--check", action="store_true", help="exit 1 when a goal is missed")
    parser.add_argument("--format", choices=["table", "json"], default="table")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="also record: FILE.json and FILE.md"
    )
    parser.add_argument("--scratch", type=Path, help="folder for inputs (5 GB) [the system's]")
    return parser.parse_args()


def positive(text: str) -> int:
    """Read a whole number above 0, `_` allowed."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def choose(only: str) -> list[Any]:
    """Return the cases of a comma-separated list of names; :data:`CASES` if it is empty."""
    if not only:
        return CASES
    known = {case.NAME: case for case in (*CASES, *VALIDATION)}
    wrong = [name for name in only.split(",") if name not in known]
    if wrong:
        print(f"bench: error: --only: no case {wrong[0]!r}; choose from {', '.join(known)}",
              file=sys.stderr)  # fmt: skip
        raise SystemExit(2)
    return [known[name] for name in only.split(",")]


def bench(options: argparse.Namespace, chosen: list[Any], scratch: Path) -> dict[str, Any]:
    """Run the cases; return the record that is printed."""
    quick = options.quick
    refs = options.refs or (200_000 if quick else 30_000_000)
    rounds = options.rounds or (1 if quick else 3)
    inputs = Inputs(scratch, refs, 20_000 if quick else 1_000_000, build())
    before = os.getloadavg()
    rows: list[Row] = []
    cells: list[dict[str, Any]] = []
    for case in chosen:
        print(f"bench: {case.NAME}", file=sys.stderr)
        inputs.cells = []
        found = case.run_case(inputs, rounds, quick)
        rows += found
        cells += inputs.cells
        # Remarks "NAME: ..." are about one program, others about the whole case.
        names = (f"{case.NAME}:", f"{case.NAME} ")
        own = [remark for remark in inputs.remarks if remark.startswith(names)]
        if not found and own and all(remark.startswith(f"{case.NAME}: ") for remark in own):
            inputs.remarks.append(f"{case.NAME} skipped: none of its programs is installed")
    if options.huge:
        print("bench: huge", file=sys.stderr)
        rows += huge.run_case(inputs, options.huge)
    if quick:
        rows = [replace(row, holds=None) for row in rows]
    return {
        "machine": machine(),
        "load_average": {"before": before, "after": os.getloadavg()},
        "options": {"quick": quick, "refs": refs, "rounds": rounds},
        "remarks": inputs.remarks,
        "rows": [row.to_dict() for row in rows],
        "cells": cells,
        **({"machine_file": inputs.machine_file} if inputs.machine_file else {}),
    }


def build() -> Path:
    """Build `nearfar-bench` in release mode; return its path."""
    if shutil.which("cargo") is None:
        raise BenchError("cargo: not found; install a Rust toolchain")
    # A build of this package alone would enable other features of dependencies, and recompile them.
    command = ["cargo", "build", "--release", "--quiet", "--workspace", "--bin", "nearfar-bench"]
    command += ["--message-format", "json-render-diagnostics"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise BenchError("cargo: could not build nearfar-bench; see above")
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    return Path(next(message["executable"] for message in messages if message.get("executable")))


def machine() -> dict[str, Any]:
    """Return the hardware and software versions that the figures depend on."""
    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    cpu = {key.strip(): value.strip() for key, _, value in lines}
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": cpu.get("model name", platform.machine()),
        "family": f"{cpu.get('cpu family', '?')}, model {cpu.get('model', '?')}",
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "nearfar": importlib.metadata.version("nearfar"),
        "libcachesim": importlib.metadata.version("libcachesim"),
        "qemu": version(QEMU),
        "valgrind": version("valgrind"),
    }


def version(tool: str) -> str | None:
    """Return the first line of `tool --version`."""
    if shutil.which(tool) is None:
        return None
    done = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False)
    return (done.stdout.splitlines() or [""])[0]


def write(path: Path, text: str) -> None:
    """Write a file atomically: to a temporary name, then rename."""
    temporary = path.with_name(f".{path.name}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_text(text, encoding="utf-8")
    temporary.rename(path)


if __name__ == "__main__":
    sys.exit(main())
