"""Make the n-th read, write, open, mapping or allocation of a command fail, for every n.

A preloaded library (``faults.c``) wraps libc's functions. A command runs in a fork of this process,
which has imported the command's modules. The library counts the command's calls of one kind and
lets the n-th fail. Then the command

* ends with the exit code of an error and one line, or succeeds without the call that failed;
* leaves its complete result or none (a sweep: complete cells; a capture: the parts it lists);
* succeeds when run again, and removes what was left beside the result.

``make chaos`` goes through every n, ``tests/test_faults.py`` through a few::

    python tests/faults.py --most 10 import read
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import chaos
from chaos import Broken, Case

HERE = Path(__file__).resolve().parent
#: Kinds of calls, as faults.c numbers them.
KINDS = {"open": 1, "read": 2, "write": 3, "map": 4, "allocate": 5}
#: Kinds whose failure makes libraries abort or crash, with the exit codes (SIGABRT, SIGSEGV).
SIGNALS = {"map": (-6, -11), "allocate": (-6, -11)}


def cases() -> list[Case]:
    """Short commands that read, compute and write."""
    found = [
        Case("import", lambda f: ["import", str(chaos._dinero(f, 5000)), "--format", "dinero",
                                  "-o", str(f / "out")],
             "out"),
        Case("paging", lambda f: ["paging", chaos._trace("game"), "--memory", "50%", "--page-sizes",
                                  "4K", "--threads", "1", "-o", str(f / "out"), "--format", "json"],
             "out"),
        Case("sweep", lambda f: ["sweep", str(chaos._grid(f, "game", '"clock"', "4K")),
                                 "-o", str(f / "out"), "--workers", "1", "--format", "json"],
             "out", (), look=chaos.look_at_cells),
    ]  # fmt: skip
    if any(case.name == "capture" for case in chaos.cases()):
        found.append(
            Case("capture", lambda f: ["capture", "-o", str(f / "out"), "--", "true"], "out",
                 look=chaos.look_at_trace)
        )  # fmt: skip
    return found


@contextmanager
def armed(kind: str, number: int, report: int) -> Iterator[None]:
    """Let call ``number`` of a kind fail (0: none); write the number of calls to ``report``."""
    from nearfar.sweep import cell, local

    def here(jobs: Iterable[cell.Job], _workers: int) -> Generator[cell.Outcome]:
        yield from map(cell.run, jobs)

    # A worker would be another process, in which nothing is armed.
    local.run = here
    library = ctypes.CDLL(None)
    library.faults_counted.restype = ctypes.c_long
    library.faults_arm(KINDS[kind], ctypes.c_long(number))
    try:
        yield
    finally:
        os.write(report, str(library.faults_counted()).encode())


def once(case: Case, folder: Path, kind: str, number: int) -> tuple[chaos.Ended, int]:
    """Run a case with one failure; how it ended, and how many calls there were."""
    reader, writer = os.pipe()
    ended = chaos.run(case.words(folder), folder, around=armed(kind, number, writer))
    os.close(writer)
    counted = os.read(reader, 32)
    os.close(reader)
    return ended, int(counted or 0)


def check(case: Case, folder: Path, ended: chaos.Ended, expected: dict[str, bytes] | None) -> None:
    """Check the exit code and result of a command of which one call failed."""
    chaos.check_said(ended)
    path = folder / case.result
    left = chaos.content(path)
    if ended.code not in (0, 1, 2, 3):
        raise Broken(f"exit code {ended.code}: {ended.said}")
    if ended.code == 0 and case.look is None and left != expected:
        raise Broken("exit code 0, and another result")
    if ended.code != 0 and not ended.said:
        raise Broken(f"exit code {ended.code}, and not a word")
    if case.look is not None and left is not None:
        case.look(path)
    elif ended.code != 0 and left not in (None, expected):
        raise Broken(f"exit code {ended.code}, and a result: {sorted(left)}")


def attack(case: Case, kind: str, folder: Path, most: int) -> Iterator[str]:
    """Let each call fail in turn, or ``most`` evenly spread ones if not 0; yields what broke."""
    path = folder / case.result
    ended, calls = once(case, folder, kind, 0)
    expected = chaos.content(path)
    chaos.check_whole(case, folder, ended, expected)
    numbers = range(1, calls + 1)
    if most and calls > most:
        numbers = sorted({1 + round(at * (calls - 1) / (most - 1)) for at in range(most)})
    codes: dict[int, int] = {}
    for number in numbers:
        chaos.remove(path)
        ended, _ = once(case, folder, kind, number)
        codes[ended.code] = codes.get(ended.code, 0) + 1
        try:
            if ended.code not in SIGNALS.get(kind, ()):
                check(case, folder, ended, expected)
            elif chaos.content(path) is not None and case.look is None:
                raise Broken(f"exit code {ended.code}, and a result")
        except Broken as broken:
            why = str(broken)[-400:]
            yield f"{case.name}: {kind} {number} of {calls}: BROKEN: {why}"
    again = chaos.run(chaos.forced(case, case.words(folder), path.exists()), folder)
    try:
        chaos.check_whole(case, folder, again, expected)
    except Broken as broken:
        yield f"{case.name}: {kind}: BROKEN: {broken}"
    said = ", ".join(f"{count} with {code}" for code, count in sorted(codes.items()))
    print(f"{case.name}: {kind}: {len(numbers)} of {calls} calls failed, ended: {said}", flush=True)


def main() -> int:
    """Attack the named cases and kinds, or all."""
    known = [case.name for case in cases()]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--most", type=int, default=0, help="calls of a kind that fail [all]")
    parser.add_argument("names", nargs="*", metavar="NAME",
                        help=f"of {', '.join([*known, *KINDS])}")  # fmt: skip
    asked = parser.parse_args()
    if unknown := set(asked.names) - {*known, *KINDS}:
        parser.error(f"no case or kind {', '.join(sorted(unknown))}")
    if "faults" not in os.environ.get("LD_PRELOAD", ""):
        return _preloaded()
    # Not for child processes.
    del os.environ["LD_PRELOAD"]
    chaos.preload()
    # Arrow imports pandas when it makes the first table.
    for module in ("pandas", "pyarrow.parquet", "scipy.optimize", "nearfar.sweep"):
        importlib.import_module(module)
    broken = 0
    for case in cases():
        for kind in KINDS:
            if not {case.name, kind} >= set(asked.names):
                continue
            with tempfile.TemporaryDirectory(prefix="nearfar-faults-") as scratch:
                folder = Path(scratch) / "work"
                folder.mkdir()
                for line in attack(case, kind, folder, asked.most):
                    broken += 1
                    print(line, flush=True)
    print(f"{broken} broken" if broken else "one line each, nothing half-written")
    return 1 if broken else 0


def _preloaded() -> int:
    """Run this program again, with the library preloaded."""
    with tempfile.TemporaryDirectory(prefix="nearfar-faults-") as folder:
        library = Path(folder) / "faults.so"
        flags = ["-shared", "-fPIC", "-O1", "-o", str(library)]
        subprocess.run(["cc", *flags, str(HERE / "faults.c")], check=True)
        # The engine's allocator maps memory piece by piece, not a gigabyte at once.
        own = {"LD_PRELOAD": str(library), "MIMALLOC_ARENA_RESERVE": "0"}
        environment = {**os.environ, **own}
        words = [sys.executable, *sys.argv]
        return subprocess.run(words, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
