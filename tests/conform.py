"""Other projects' tests, bare and under nearfar (``make conform``).

A case of ``data/conform.toml`` is a test program. It runs in several worlds: ``bare``; under
``nearfar run`` with two policies and three far tiers; under ``qemu``; under ``nearfar capture``,
whose trace is then verified. A world passes if the program ends with the exit code and verdicts of
the reference world: bare, or QEMU without nearfar. ``data/conform.toml`` also lists known
differences. A difference that is not listed fails, and so does a listed one that no longer occurs.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import fnmatch
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import conform_build

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(__file__).with_name("data") / "conform.toml"

POLICIES = ("tpp", "ssp")
FAR = ("zstd", "shm", "file")
RUNS = tuple(f"run {policy} {far}" for policy in POLICIES for far in FAR)
#: Each policy and each far tier once or twice, for slow cases.
FEW_RUNS = ("run tpp zstd", "run ssp shm", "run ssp file")
#: The reference of each world.
REFERENCE = {**dict.fromkeys(RUNS, "bare"), "capture": "qemu"}
WORLDS = ("bare", *RUNS, "qemu", "capture")

#: Default of ``Case.keep``: the lines with a verdict.
VERDICT = r"(?i)\b(ok|pass(ed)?|fail(ed|ure)?|skip|success\w*|error|invalid|cannot|done)\b"

#: ``Case.keep`` of stress-ng, which prints `error` also of system calls that ought to fail.
STRESSED = r"fail:|error:|run completed|skipp"

#: Record limit of a trace; more records would verify nothing further.
MAX_REFS = 2_000_000

#: Delays system calls that change mappings by 50 ms each, because `nearfar run` finds new mappings
#: only after tens of milliseconds.
PACED = (
    "strace -f -o {null} -e trace=mmap,mremap,brk,madvise "
    "-e inject=mmap,mremap,brk:delay_exit=50000"
)


@dataclass(frozen=True)
class Case:
    """A program, and the lines of its output that are compared.

    Attributes:
        name: of the case, in tables.
        command: with ``{selftests}`` for the folder of Linux's selftests, ``{tmp}`` for an empty
            folder, ``{null}`` for /dev/null.
        keep: regular expression of the lines that are compared.
        timeout: seconds after which the program counts as hanging.
        fast: size of fast memory under ``nearfar run``.
        worlds: patterns of the worlds that it runs in.
        slow: of ``nearfar run``'s worlds, runs only in :data:`FEW_RUNS`.
        paced: under ``nearfar run``, also runs with :data:`PACED`.
        alone: changes settings of the machine, so no other case may run.
        quick: also runs in ``make test-long``.
    """

    name: str
    command: str
    keep: str = VERDICT
    timeout: float = 60
    fast: str = "1M"
    worlds: tuple[str, ...] = ("*",)
    slow: bool = False
    paced: bool = False
    alone: bool = False
    quick: bool = False

    def words(self, tmp: Path) -> list[str]:
        places = {"selftests": conform_build.folder(), "tmp": tmp, "null": os.devnull}
        return [word.format_map(places) for word in self.command.split()]

    def runs_in(self, world: str) -> bool:
        if self.slow and world in RUNS and world not in FEW_RUNS:
            return False
        return any(fnmatch.fnmatch(world, mask) for mask in self.worlds)


@dataclass(frozen=True)
class Known:
    """A known difference and its reason; `sometimes` if it does not always occur."""

    case: str
    world: str
    reason: str
    sometimes: bool = False

    def is_of(self, cell: Cell) -> bool:
        return fnmatch.fnmatch(cell.case, self.case) and fnmatch.fnmatch(cell.world, self.world)


@dataclass(frozen=True)
class Cell:
    """The outcome of a case in a world.

    Attributes:
        exit: exit code, or ``timeout``.
        lines: the compared lines of its output.
        why: nearfar's message, if something went wrong.
        same: whether it equals the reference; None without a reference.
        reason: why it may differ, if the difference is listed.
    """

    case: str
    world: str
    exit: int | str | None
    lines: list[str]
    why: str | None = None
    seconds: float = 0.0
    counters: dict[str, int] = field(default_factory=dict)
    same: bool | None = None
    reason: str | None = None

    def agrees_with(self, other: Cell) -> bool:
        """Whether both end, with the same exit code and lines."""
        return self.exit != "timeout" and (self.exit, self.lines) == (other.exit, other.lines)

    @property
    def word(self) -> str:
        """The text of the table's cell."""
        if self.same is None:
            return str(self.exit)
        return "same" if self.same else "known" if self.reason else "DIFFERS"


def load(path: Path = DATA) -> tuple[list[Case], list[Known]]:
    """Cases (of a paced one, both variants) and known differences."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    cases = []
    for one in data["case"]:
        case = Case(**{**one, "worlds": tuple(one.get("worlds", ("*",)))})
        cases.append(replace(case, paced=False))
        if case.paced:
            command = f"{PACED} {case.command}"
            cases.append(
                replace(case, name=f"{case.name}, paced", command=command, worlds=("run *",))
            )
    for name, options in data["stress-ng"].items():
        # Its number of operations ends a stressor before -t does, unless it hangs.
        command = f"stress-ng -t 600 --verify {options}"
        worlds = ("run *",) if name in data["not-in-qemu"] else ("*",)
        case = Case(f"stress-ng {name}", command, STRESSED, timeout=90, worlds=worlds, slow=True)
        cases.append(case)
    return cases, [Known(**one) for one in data["differs"]]


def compared(output: str, keep: str) -> list[str]:
    """The lines that are compared, without addresses, process ids and durations."""
    output = re.sub(r"\x1b\[[0-9;]*m", "", output)
    # Progress is erased by backspaces.
    while "\b" in output:
        output = re.sub(r"[^\n\b]\x08|^\x08", "", output, flags=re.MULTILINE)
    lines = (line.strip() for line in output.splitlines() if re.search(keep, line))
    lines = (re.sub(r"0x[0-9a-f]+|\(nil\)", "0x", line) for line in lines)
    lines = (re.sub(r"\[\d+\]", "[]", line) for line in lines)
    return [re.sub(r"\d+(\.\d+)?( ?[mun]?s\b| secs)", "N s", line) for line in lines]


def _end(session: int) -> None:
    """Kill all processes of a session: a failed test may leave children."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if os.getsid(int(entry.name)) == session:
                os.kill(int(entry.name), signal.SIGKILL)


def _settings() -> dict[Path, str]:
    """The machine's memory settings that these tests change, by file."""
    folders = [Path("/sys/kernel/mm/ksm"), Path("/sys/kernel/mm/transparent_hugepage")]
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    files.append(Path("/proc/sys/vm/nr_hugepages"))
    # Brackets mark the chosen one of several words.
    return {
        file: re.sub(r".*\[(.*)\].*", r"\1", file.read_text().strip())
        for file in files
        if file.stat().st_mode & 0o200 and os.access(file, os.R_OK | os.W_OK)
    }


@contextlib.contextmanager
def _restored() -> Iterator[None]:
    """Restore the machine's settings, since a killed or failed test does not."""
    before = _settings()
    try:
        yield
    finally:
        after = _settings()
        for file, value in before.items():
            if after.get(file) != value:
                with contextlib.suppress(OSError):
                    file.write_text(value)


def run(case: Case, world: str, keep_in: Path | None = None) -> Cell:
    """Run a case in a world; store its output in the folder ``keep_in``."""
    with (
        _restored() if case.alone else contextlib.nullcontext(),
        tempfile.TemporaryDirectory(prefix="conform-") as made,
    ):
        tmp = Path(made)
        result, outcome = tmp / "outcome", {}
        (tmp / "work").mkdir()
        words = case.words(tmp / "work")
        inside = [sys.executable, str(Path(__file__).with_name("conform_world.py"))]
        asked: dict[str, Any]
        if world.startswith("run "):
            _, policy, far = world.split()
            far = f"file:{tmp / 'far'}" if far == "file" else far
            asked = {"fast": case.fast, "far_size": "2G", "policy": policy, "far": far}
            words = [*inside, "run", str(result), json.dumps(asked), *words]
        elif world == "capture":
            asked = {"output": str(tmp / "trace"), "max_refs": MAX_REFS}
            asked |= {"fetch": False, "follow_forks": True}
            words = [*inside, "capture", str(result), json.dumps(asked), *words]
        elif world == "qemu":
            words = ["qemu-x86_64", shutil.which(words[0]) or words[0], *words[1:]]
        begun = time.monotonic()
        process = subprocess.Popen(
            words,
            cwd=tmp / "work",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        )
        code: int | str | None
        try:
            output, _ = process.communicate(timeout=case.timeout)
            # A shell's and nearfar's exit code for a signal.
            code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        except subprocess.TimeoutExpired:
            _end(process.pid)
            output, _ = process.communicate()
            code = "timeout"
        _end(process.pid)
        text = output.decode(errors="replace")
        if result.exists():
            outcome = json.loads(result.read_text())
            code = outcome["exit"]
        elif world not in REFERENCE.values() and code != "timeout":
            outcome = {"why": f"nearfar failed: {text.strip().splitlines()[-1:]}"}
    if keep_in is not None:
        keep_in.mkdir(parents=True, exist_ok=True)
        (keep_in / f"{case.name}.{world}.txt".replace("/", "_")).write_text(text)
    return Cell(
        case=case.name,
        world=world,
        exit=code,
        lines=compared(text, case.keep),
        why=outcome.get("why"),
        seconds=round(time.monotonic() - begun, 2),
        counters={name: many for name, many in outcome.get("counters", {}).items() if many},
    )


def cells(
    case: Case, worlds: Sequence[str], known: Sequence[Known], keep_in: Path | None = None
) -> Iterator[Cell]:
    """A case in these worlds, each compared with its reference.

    If they differ, the reference runs again: a program whose own output varies does not differ.
    """
    references: dict[str, list[Cell]] = {}
    for world in worlds:
        if not case.runs_in(world):
            continue
        base = REFERENCE[world]
        if base not in references:
            references[base] = [run(case, base, keep_in)]
            yield references[base][0]
        cell = run(case, world, keep_in)
        if not cell.agrees_with(references[base][0]) and len(references[base]) == 1:
            references[base].append(run(case, base, keep_in))
        # Runs that all hang are no reference.
        hangs = all(one.exit == "timeout" for one in references[base])
        same = None if hangs else cell.why is None and any(map(cell.agrees_with, references[base]))
        reason = next((one.reason for one in known if one.is_of(cell)), None)
        yield replace(cell, same=same, reason=reason)


def wrong(found: Sequence[Cell], known: Sequence[Known]) -> list[str]:
    """A line for each contradiction between the cells and the known differences."""
    lines = [
        f"{cell.case}, {cell.world}: differs, and no reason is listed"
        for cell in found
        if cell.same is False and cell.reason is None
    ]
    for one in known:
        seen = [cell for cell in found if cell.same is not None and one.is_of(cell)]
        if seen and all(cell.same for cell in seen) and not one.sometimes:
            lines.append(f"{one.case}, {one.world}: is listed, and does not differ any more")
    return lines


def details(cell: Cell, reference: Cell) -> str:
    lines = [f"{cell.case}, {cell.world}: exit {cell.exit}, {reference.world} {reference.exit}"]
    lines += [f"  nearfar: {cell.why}"] if cell.why else []
    changes = difflib.unified_diff(reference.lines, cell.lines, lineterm="", n=0)
    return "\n".join(lines + [f"  {line}" for line in list(changes)[2:22] if line[:2] != "@@"])


def table(found: Sequence[Cell]) -> str:
    """The cells as a table, with a row for each case."""
    by_case: dict[str, dict[str, str]] = {}
    for cell in found:
        by_case.setdefault(cell.case, {})[cell.world] = cell.word
    first = max(map(len, by_case), default=0)
    heads = [world.removeprefix("run ") for world in WORLDS]
    rows = [("case", heads)]
    rows += [(case, [of.get(world, "-") for world in WORLDS]) for case, of in by_case.items()]
    return "\n".join(
        f"{case:{first}}  " + "  ".join(f"{word:>9}" for word in words) for case, words in rows
    )


def reasons() -> str:
    """The known differences, as a table of the docs."""
    lines = ["| test | where | why |", "|---|---|---|"]
    lines += [f"| `{one.case}` | {one.world} | {one.reason} |" for one in load()[1]]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the chosen cases; 1 if something contradicts the known differences."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--case", default="*", help="pattern of the names of cases to run")
    parser.add_argument("--world", default="*", help="pattern of the worlds to run in")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    asked = parser.parse_args()
    missing = conform_build.build()
    if missing:
        print("not built:", *missing)
    cases, known = load()
    cases = [case for case in cases if fnmatch.fnmatch(case.name, asked.case)]
    worlds = [world for world in REFERENCE if fnmatch.fnmatch(world, asked.world)]
    found: list[Cell] = []

    def whole(case: Case) -> None:
        mine = list(cells(case, worlds, known, conform_build.CACHE / "output"))
        found.extend(mine)
        words = ", ".join(f"{cell.world} {cell.word}" for cell in mine)
        print(f"{case.name}: {words}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(asked.jobs) as pool:
        list(pool.map(whole, [case for case in cases if not case.alone]))
    for case in cases:
        if case.alone:
            whole(case)
    order = {case.name: place for place, case in enumerate(cases)}
    found.sort(key=lambda cell: (order[cell.case], WORLDS.index(cell.world)))
    by_place = {(cell.case, cell.world): cell for cell in found}
    print(table(found))
    for cell in found:
        if cell.same is False:
            print(details(cell, by_place[cell.case, REFERENCE[cell.world]]))
    lines = wrong(found, known)
    result = {
        "kernel": platform.release(),
        "not built": missing,
        "wrong": lines,
        "cells": [{**asdict(cell), "cell": cell.word} for cell in found],
    }
    (conform_build.CACHE / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print("\n".join(lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
