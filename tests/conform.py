"""Other people's tests, bare and under nearfar (``make conform``).

A case of ``data/conform.toml`` is a program with a verdict of its own. It runs in several worlds:
``bare``; under ``nearfar run`` with two policies and three far tiers; under ``qemu``; under
``nearfar capture``, whose trace is then verified. A world is right when the program ends and says
what it did in the world beside it: bare, or QEMU without nearfar. What is known to differ stands in
the same file with its reason. A difference that is not listed fails, and so does one that is listed
and not seen, so that the list stays true.
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
#: Each policy and each far tier once or twice, for cases that take long.
FEW_RUNS = ("run tpp zstd", "run ssp shm", "run ssp file")
#: The world that one is compared with.
BESIDE = {**dict.fromkeys(RUNS, "bare"), "capture": "qemu"}
WORLDS = ("bare", *RUNS, "qemu", "capture")

#: What a line must hold to be compared, where a case does not say it: a verdict.
VERDICT = r"(?i)\b(ok|pass(ed)?|fail(ed|ure)?|skip|success\w*|error|invalid|cannot|done)\b"

#: The same of stress-ng; `error` may be of a system call that it expects to fail.
STRESSED = r"fail:|error:|run completed|skipp"

#: Records of a trace. What is verified is the same in a longer one.
MAX_REFS = 2_000_000

#: Delays system calls that change mappings. `nearfar run` finds what is mapped some tens of
#: milliseconds later, and most of these programs have ended by then.
PACED = (
    "strace -f -o {null} -e trace=mmap,mremap,brk,madvise "
    "-e inject=mmap,mremap,brk:delay_exit=50000"
)


@dataclass(frozen=True)
class Case:
    """A program and what of it is compared.

    Attributes:
        name: of the case, in tables.
        command: with ``{selftests}`` for the folder of Linux's, ``{tmp}`` for an empty folder.
        keep: lines in which this is found are compared; by default those with a verdict.
        timeout: seconds; then it hangs.
        fast: fast memory under ``nearfar run``.
        worlds: patterns of the worlds that it runs in.
        slow: under fewer of the policies and tiers.
        paced: once more with slow system calls, under ``nearfar run``.
        alone: changes settings of the machine: nothing else may run.
        quick: a part of ``make test-long``.
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
        """Program and arguments."""
        places = {"selftests": conform_build.folder(), "tmp": tmp, "null": os.devnull}
        return [word.format_map(places) for word in self.command.split()]

    def runs_in(self, world: str) -> bool:
        """Whether this world is one of its own."""
        if self.slow and world in RUNS and world not in FEW_RUNS:
            return False
        return any(fnmatch.fnmatch(world, mask) for mask in self.worlds)


@dataclass(frozen=True)
class Known:
    """A difference and its reason; `sometimes` if it is not seen each time."""

    case: str
    world: str
    reason: str
    sometimes: bool = False

    def is_of(self, cell: Cell) -> bool:
        """Whether it speaks of this cell."""
        return fnmatch.fnmatch(cell.case, self.case) and fnmatch.fnmatch(cell.world, self.world)


@dataclass(frozen=True)
class Cell:
    """What a case came to in a world.

    Attributes:
        exit: exit code, or ``timeout``.
        lines: what is compared of its output.
        why: what nearfar says went wrong.
        same: whether it is as in the world beside; None if there is none.
        reason: why it may differ, if that is listed.
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

    def says(self, other: Cell) -> bool:
        """Whether both end, and say the same."""
        return self.exit != "timeout" and (self.exit, self.lines) == (other.exit, other.lines)

    @property
    def word(self) -> str:
        """The cell of the table."""
        if self.same is None:
            return str(self.exit)
        return "same" if self.same else "known" if self.reason else "DIFFERS"


def load(path: Path = DATA) -> tuple[list[Case], list[Known]]:
    """Cases, those that are paced twice, and known differences."""
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
        # Bound by what is to be done: one that does not get there hangs.
        command = f"stress-ng -t 600 --verify {options}"
        worlds = ("run *",) if name in data["not-in-qemu"] else ("*",)
        case = Case(f"stress-ng {name}", command, STRESSED, timeout=90, worlds=worlds, slow=True)
        cases.append(case)
    return cases, [Known(**one) for one in data["differs"]]


def compared(output: str, keep: str) -> list[str]:
    """The lines that are compared, without what differs from run to run."""
    output = re.sub(r"\x1b\[[0-9;]*m", "", output)
    # A tester's progress, each step wiped out by the next.
    while "\b" in output:
        output = re.sub(r"[^\n\b]\x08|^\x08", "", output, flags=re.MULTILINE)
    lines = (line.strip() for line in output.splitlines() if re.search(keep, line))
    lines = (re.sub(r"0x[0-9a-f]+|\(nil\)", "0x", line) for line in lines)
    lines = (re.sub(r"\[\d+\]", "[]", line) for line in lines)
    return [re.sub(r"\d+(\.\d+)?( ?[mun]?s\b| secs)", "N s", line) for line in lines]


def _end(session: int) -> None:
    """Kill what is left of a session: a test that failed may leave children."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if os.getsid(int(entry.name)) == session:
                os.kill(int(entry.name), signal.SIGKILL)


def _settings() -> dict[Path, str]:
    """The machine's settings of memory that these tests change."""
    folders = [Path("/sys/kernel/mm/ksm"), Path("/sys/kernel/mm/transparent_hugepage")]
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    files.append(Path("/proc/sys/vm/nr_hugepages"))
    # Of several words the one in brackets holds.
    return {
        file: re.sub(r".*\[(.*)\].*", r"\1", file.read_text().strip())
        for file in files
        if file.stat().st_mode & 0o200 and os.access(file, os.R_OK | os.W_OK)
    }


@contextlib.contextmanager
def _restored() -> Iterator[None]:
    """Leave the machine's settings as they are: a test that is killed, or fails, does not."""
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
    """Run a case in a world; its output is kept in this folder."""
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
            # As a shell and nearfar have it.
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
        elif world not in BESIDE.values() and code != "timeout":
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
    """A case in these worlds, each compared with the one beside it.

    That one runs again where they differ: what a program says by itself once so and once otherwise
    is no difference.
    """
    beside: dict[str, list[Cell]] = {}
    for world in worlds:
        if not case.runs_in(world):
            continue
        other = BESIDE[world]
        if other not in beside:
            beside[other] = [run(case, other, keep_in)]
            yield beside[other][0]
        cell = run(case, world, keep_in)
        if not cell.says(beside[other][0]) and len(beside[other]) == 1:
            beside[other].append(run(case, other, keep_in))
        # A reference that hangs is none: there is nothing to compare with.
        hangs = all(one.exit == "timeout" for one in beside[other])
        same = None if hangs else cell.why is None and any(map(cell.says, beside[other]))
        reason = next((one.reason for one in known if one.is_of(cell)), None)
        yield replace(cell, same=same, reason=reason)


def wrong(found: Sequence[Cell], known: Sequence[Known]) -> list[str]:
    """What is not as the list says: a line each."""
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


def details(cell: Cell, beside: Cell) -> str:
    """What a cell and the one beside it said."""
    lines = [f"{cell.case}, {cell.world}: exit {cell.exit}, {beside.world} {beside.exit}"]
    lines += [f"  nearfar: {cell.why}"] if cell.why else []
    changes = difflib.unified_diff(beside.lines, cell.lines, lineterm="", n=0)
    return "\n".join(lines + [f"  {line}" for line in list(changes)[2:22] if line[:2] != "@@"])


def table(found: Sequence[Cell]) -> str:
    """Every cell: a row for each case."""
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
    """The differences that are listed, as a table of the docs."""
    lines = ["| test | where | why |", "|---|---|---|"]
    lines += [f"| `{one.case}` | {one.world} | {one.reason} |" for one in load()[1]]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run what is asked for; 1 if something is not as the list says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--case", default="*", help="of these names")
    parser.add_argument("--world", default="*", help="in these worlds")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    asked = parser.parse_args()
    missing = conform_build.build()
    if missing:
        print("not built:", *missing)
    cases, known = load()
    cases = [case for case in cases if fnmatch.fnmatch(case.name, asked.case)]
    worlds = [world for world in BESIDE if fnmatch.fnmatch(world, asked.world)]
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
            print(details(cell, by_place[cell.case, BESIDE[cell.world]]))
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
