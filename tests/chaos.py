"""Chaos: kill commands at random points, and check what they leave.

A round of a case runs its command, sends it a signal at a random moment, and then checks that

* an earlier result is still there, or the complete new one in its place;
* a result is complete, or its readers report in one line that it is not;
* the command printed at most one error, and left no process running;
* the same command, run again, succeeds with the same result, and leaves no hidden files beside it.

Commands run in forks of this process, so that a kill seldom hits the start of Python. ``make
chaos`` runs many rounds, ``tests/test_chaos.py`` a few::

    python tests/chaos.py --rounds 20 --seed 1 [CASE...]

The case ``run`` (:mod:`chaos_run`) instead kills a process of a program under ``nearfar run``, or
one of nearfar's helpers.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import chaos_run
from chaos_commands import Broken, Ended, run

ROOT = Path(__file__).resolve().parents[1]
CAPTURES = ROOT / "tests/data/captures"
#: SIGKILL, which no process can handle, is twice as likely.
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
#: The largest file, in bytes, of :func:`full_disk`.
FILE_LIMIT = 4096


@dataclass(frozen=True)
class Case:
    """A command that leaves a result.

    Attributes:
        name: of the case.
        words: the command, given the folder that it works in.
        result: name of the file or folder that it makes.
        force: options to replace an earlier result; empty if none are needed.
        look: checks a result whose bytes vary or that grows: raises :class:`Broken` if it is
            damaged, and returns whether it is complete.
        slow: not run by ``make test-long``.
    """

    name: str
    words: Callable[[Path], list[str]]
    result: str
    force: tuple[str, ...] = ("--force",)
    look: Callable[[Path], bool] | None = None
    slow: bool = False


def _trace(name: str) -> str:
    return str(CAPTURES / f"{name}.trace")


def cases() -> list[Case]:
    """Every case whose command and tools are installed."""
    found = [
        Case(
            "generate",
            lambda f: ["generate", "uniform", "-o", str(f / "out"), "--refs", "3000000",
                       "--pages", "50000", "--seed", "1"],
            "out",
        ),
        Case(
            "import",
            lambda f: ["import", str(_dinero(f)), "--format", "dinero", "-o", str(f / "out")],
            "out",
        ),
        Case(
            "export",
            lambda f: ["export", _trace("pdf"), "--format", "csv", "-o", str(f / "out")],
            "out",
        ),
        Case(
            "paging",
            lambda f: ["paging", _trace("pdf"), "-o", str(f / "out"), "--page-sizes", "4K,...,64K",
                       "--format", "json"],
            "out",
        ),
        Case(
            "info",
            lambda f: ["info", _trace("pdf"), "--html", str(f / "out"), "--format", "json"],
            "out", slow=True,
        ),
        Case(
            "tiering",
            lambda f: ["tiering", "--workload", "nomad-small", "--policy", "tpp",
                       "--scale", "1/512", "-o", str(f / "out"), "--format", "json"],
            "out",
        ),
        Case(
            "ssd",
            lambda f: ["ssd", _trace("game"), "-o", str(f / "out"), "--format", "json"],
            "out", slow=True,
        ),
        Case(
            "numa",
            lambda f: ["numa", "alloc", "--size", "80G", "-o", str(f / "out"), "--format", "json"],
            "out",
        ),
        Case(
            "reproduce",
            lambda f: ["reproduce", "numa", "--html", str(f / "out"), "--format", "json"],
            "out", slow=True,
        ),
    ]  # fmt: skip
    found += [
        Case(
            "sweep",
            lambda f: ["sweep", str(_grid(f)), "-o", str(f / "out"), "--workers", "1",
                       "--format", "json"],
            "out", (), look=look_at_cells, slow=True,
        ),
        Case(
            "report",
            lambda f: ["report", str(_run(f)), "-o", str(f / "out")],
            "out", slow=True,
        ),
    ]  # fmt: skip
    if shutil.which("qemu-x86_64"):
        found += [
            Case(
                "capture",
                lambda f: ["capture", "-o", str(f / "out"), "--", "cksum", str(_dinero(f))],
                "out", look=look_at_trace, slow=True,
            ),
            Case(
                "workload",
                lambda f: ["workload", "capture", "gunzip", "--small", "-o", str(f)],
                "gunzip.trace", look=look_at_trace, slow=True,
            ),
        ]  # fmt: skip
    if shutil.which("qemu-system-x86_64"):
        found.append(
            Case(
                "guest",
                lambda f: ["guest", "--arch", "x86_64", "-o", str(f / "out"), "--",
                           "sh", "-c", "seq 100000 > /out/numbers"],
                "out", slow=True,
            )
        )  # fmt: skip
    return [one for one in found if _exists(one.words(Path("/nonexistent"))[0])]


def _exists(command: str) -> bool:
    return any(
        importlib.util.find_spec(f"nearfar.cli.{command}{end}") is not None for end in ("", "_")
    )


def _dinero(folder: Path, count: int = 150_000) -> Path:
    """A Dinero trace, the input of `import` and of captured programs."""
    path = folder / "in.din"
    if folder.is_dir() and not path.exists():
        draw = random.Random(1)
        lines = (f"{draw.randrange(3)} {draw.getrandbits(32):x}\n" for _ in range(count))
        path.write_text("".join(lines), encoding="ascii")
    return path


def _grid(
    folder: Path, name: str = "pdf", policies: str = '"clock", "lru"', page_sizes: str = "4K,64K"
) -> Path:
    """A sweep of a few quick cells."""
    path = folder / "grid.toml"
    if folder.is_dir() and not path.exists():
        path.write_text(
            f"""study = "paging"
[grid]
trace = ["{_trace(name)}"]
replacement = [{policies}]
[options]
memory = "50%"
page_sizes = "{page_sizes}"
""",
            encoding="utf-8",
        )
    return path


def _run(folder: Path) -> Path:
    """A finished run, the input of `report`."""
    path = folder / "run"
    if folder.is_dir() and not path.exists():
        words = ["paging", _trace("pdf"), "-o", str(path), "--page-sizes", "4K,64K"]
        run([*words, "--format", "json"], folder)
    return path


# --- checks


def content(path: Path) -> dict[str, bytes] | None:
    """Bytes of a file or of a folder's files, by name, without durations; None if absent."""
    if not path.exists():
        return None
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    timed = re.compile(rb'"wall_seconds": [-+.e\d]+')
    return {str(one.relative_to(path.parent)): timed.sub(b"", one.read_bytes()) for one in files}


def check_said(ended: Ended) -> None:
    """Check that standard error has at most one error, and that every line is nearfar's."""
    lines = [line for line in ended.said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("nearfar: error: ")]
    if len(errors) > 1 or not all(line.startswith("nearfar: ") for line in lines):
        raise Broken(f"said: {ended.said!r}")


def look_at_trace(path: Path) -> bool:
    """Check a trace against its trace.json; returns whether that says it is complete."""
    import pyarrow.parquet as pq

    from nearfar.errors import NearfarError
    from nearfar.info import info as look

    try:
        look(path, verify=True, reuse=False, heatmap=False)
    except NearfarError as error:
        raise Broken(f"does not verify: {error}") from None
    info = json.loads((path / "trace.json").read_text(encoding="utf-8"))
    parts = {part["file"]: part["records"] for part in info["parts"]}
    for name, records in parts.items():
        if pq.read_metadata(path / name).num_rows != records:
            raise Broken(f"{path / name}: not {records} records")
    if sum(parts.values()) != info["records"]:
        raise Broken(f"{path}: trace.json contradicts its parts")
    stray = {one.name for one in path.glob("part-*")} - set(parts)
    # A part gets its name before trace.json lists it, so the last part may be unlisted.
    if len(stray) > (0 if info["complete"] else 1):
        raise Broken(f"{path}: parts that trace.json does not list: {sorted(stray)}")
    return bool(info["complete"])


def look_at_cells(path: Path) -> bool:
    """Check that every finished cell of a sweep can be read."""
    import pyarrow.parquet as pq

    for one in path.rglob("[!.]*.parquet"):
        # Hidden folders hold unfinished files.
        if not any(part.startswith(".") for part in one.relative_to(path).parts):
            pq.read_table(one)
    return True


def check_left(
    case: Case, folder: Path, old: dict[str, bytes] | None, new: dict[str, bytes] | None
) -> None:
    """Check that a killed command left the old result, the new one, or one marked incomplete."""
    path = folder / case.result
    left = content(path)
    if left is None:
        if old is not None:
            raise Broken(f"{case.name}: the earlier result is gone")
        return
    if left == old or (case.look is None and left == new):
        return
    if case.look is None:
        raise Broken(f"{case.name}: half a result: {sorted(left)}")
    whole = case.look(path)
    backup = (folder / f".{case.result}.replaced").exists()
    has_records = any(name.endswith(".parquet") for name in left if "regions" not in name)
    if old is not None and not (whole or backup or has_records):
        raise Broken(f"{case.name}: the earlier result is gone, and nothing came of the new one")


def check_whole(case: Case, folder: Path, ended: Ended, new: dict[str, bytes] | None) -> None:
    """Check a command that was not killed, and its result."""
    if ended.code != 0:
        raise Broken(f"{case.name}: again: exit code {ended.code}: {ended.said}")
    check_said(ended)
    left = content(folder / case.result)
    if left is None:
        raise Broken(f"{case.name}: again: no result")
    if case.look is not None:
        if not case.look(folder / case.result):
            raise Broken(f"{case.name}: again: not whole")
    elif left != new:
        differ = [name for name in left if left[name] != (new or {}).get(name)]
        raise Broken(f"{case.name}: again: not the same result: {differ}")
    if stray := [one.name for one in folder.iterdir() if one.name.startswith(".")]:
        raise Broken(f"{case.name}: left beside the result: {stray}")


# --- rounds


def kills(case: Case, folder: Path, rounds: int, draw: random.Random) -> Iterator[str]:
    """Kill ``case`` at ``rounds`` random points; yields a line of progress for each."""
    words = case.words(folder)
    path = folder / case.result
    first = run(words, folder)
    check_whole(case, folder, first, content(path))
    new = content(path)
    for number in range(rounds):
        replaces = number % 2 == 0
        old = content(path) if replaces else None
        if not replaces:
            remove(path)
        # Half of the kills come near the end, when results are renamed into place.
        share = draw.uniform(0.7, 1.05) if draw.random() < 0.5 else draw.uniform(0, 1)
        sent = draw.choice(SIGNALS)
        ended = run(forced(case, words, replaces), folder, share * first.seconds, sent)
        check_said(ended)
        check_left(case, folder, old, new)
        again = run(forced(case, words, path.exists()), folder)
        check_whole(case, folder, again, new)
        yield f"{sent.name} at {share:.0%}: ended with {ended.code}"


def forced(case: Case, words: list[str], replace: bool) -> list[str]:
    """The command, with the options to replace a result if it is to ``replace`` one."""
    end = words.index("--") if "--" in words else len(words)
    return [*words[:end], *(case.force if replace else ()), *words[end:]]


def full_disk(case: Case, folder: Path) -> str:
    """Run ``case`` where files may not exceed :data:`FILE_LIMIT` bytes, then without limit."""
    words = case.words(folder)
    path = folder / case.result
    remove(path)
    ended = run(words, folder, limit=FILE_LIMIT)
    check_said(ended)
    if ended.code == 0 and sum(map(len, (content(path) or {}).values())) > FILE_LIMIT:
        raise Broken(f"{case.name}: exit code 0 where nothing could be written")
    if ended.code not in (0, 1, 2, 3):
        raise Broken(f"{case.name}: no room: exit code {ended.code}: {ended.said}")
    if ended.code != 0 and (left := content(path)) is not None and case.look is None:
        raise Broken(f"{case.name}: no room, and yet something is there: {sorted(left)}")
    remove(path)
    again = run(words, folder)
    check_whole(case, folder, again, content(path))
    return f"no room: ended with {ended.code}"


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def preload() -> None:
    """Import the commands' modules, none of which starts threads, so that kills hit later work."""
    import nearfar.advise
    import nearfar.cli._application
    import nearfar.numa
    import nearfar.paging
    import nearfar.reproduce
    import nearfar.ssd
    import nearfar.tiering  # noqa: F401


def main() -> int:
    """Run the named cases, or all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    known = {case.name: case for case in cases()}
    names = [*known, "run"]
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=20, help="kills of each case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="without the slow cases")
    parser.add_argument(
        "--far", choices=chaos_run.FARS, help="far tier of the case run [all, in turn]"
    )
    asked = parser.parse_args()
    if unknown := set(asked.cases) - set(names):
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    chosen = [known[name] for name in asked.cases or known if name != "run"]
    preload()
    failed = 0
    if "run" in asked.cases or not (asked.cases or asked.quick):
        failed += chaos_run.main(asked.rounds, asked.seed, asked.far)
    for case in chosen:
        if case.slow and asked.quick and not asked.cases:
            continue
        # A case draws the same numbers, whichever other cases run.
        draw = random.Random(f"{asked.seed} {case.name}")
        with tempfile.TemporaryDirectory(prefix="nearfar-chaos-") as scratch:
            folder = Path(scratch) / "work"
            folder.mkdir()
            try:
                for answer in kills(case, folder, asked.rounds, draw):
                    print(f"{case.name}: {answer}", flush=True)
                print(f"{case.name}: {full_disk(case, folder)}", flush=True)
            except Broken as broken:
                failed += 1
                print(f"{case.name}: BROKEN: {broken}", flush=True)
    print(f"{failed} cases broken" if failed else "nothing lost, nothing half-written")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
