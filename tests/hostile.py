"""Fuzz the readers written in Python with untrusted input.

The Rust readers are fuzzed by cargo-fuzz (``fuzz/``). Here inputs of the same corpus
(``fuzz/corpus/READER``) are changed at random; a reader returns, or raises an error of one line.
``make fuzz`` runs it for a time, ``tests/test_hostile.py`` for a few hundred inputs a reader::

    python tests/hostile.py --seconds 60 --seed 1

An input that breaks a reader is kept in ``fuzz/artifacts/READER/``; add it to the corpus with the
fix.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final
from unittest import mock

from nearfar.errors import NearfarError

FUZZ: Final = Path(__file__).resolve().parents[1] / "fuzz"
#: The largest input in bytes; larger ones find nothing more.
LARGEST: Final = 64 << 10
#: Text for insertion that readers tend to get wrong.
WORDS: Final = (
    b"\x00", b"\xff\xfe", b"\r", b"\n", b"\n[", b"]", b"[[", b"=", b'"', b"'''", b"{", b"}", b",",
    b"-1", b"0", b"1e999", b"nan", b"inf", b"true", b"null", b"[]", b"{}", b'""', b"../../x",
    "\u00b2".encode(), "\u2028".encode(), "\u0663".encode(), b"9" * 5000, b"[" * 3000,
    b"<a>" * 3000, b"18446744073709551616", b"\\u0000", b"%", b"64K",
)  # fmt: skip

Reader = Callable[[Path, bytes], object]


def _file(name: str, read: Callable[[Path], object]) -> Reader:
    """A reader that finds its input in a file of this name."""

    def given(folder: Path, data: bytes) -> object:
        path = folder / name
        path.write_bytes(data)
        return read(path)

    return given


def _workload(path: Path) -> object:
    from nearfar import workload

    return workload.load(str(path)).missing()


def _fleet(path: Path) -> object:
    from nearfar.advise import fleet

    return fleet.read(path, {"memory": "50%", "arch": "x86-64", "min_gain": "5%"})


def _statements(path: Path) -> object:
    from nearfar import reproduce

    return [
        one.row(1.0, "")
        for one in reproduce.read_statements(path.read_text(encoding="utf-8", errors="replace"))
    ]


def _journal(path: Path) -> object:
    from nearfar.apply import setting

    (path.parent / "sysfs").mkdir(exist_ok=True)
    (path.parent / "sysfs" / "enabled").write_text("always [madvise] never\n")
    boot = path.parent / "boot"
    boot.write_text("x\n")
    with mock.patch.object(setting, "_BOOT", boot):  # boot id "x", as in the corpus's journals
        return setting.restore(path.parent / "sysfs", path.parent)


def _numa(path: Path) -> object:
    from nearfar.numa import sources

    return repr(sources.read(path))


def _points(path: Path) -> object:
    from nearfar import fit

    return fit.fit_csv(path)


def _knobs(path: Path) -> object:
    from nearfar import tiering

    return tiering.read_knobs(path)


def _sweep(path: Path) -> object:
    from nearfar.sweep import plan

    found = plan.read(path)
    return [cell.key for cell in itertools.islice(found.cells(), 20)]


def _run(path: Path) -> object:
    """Read a run folder with valid rows; only ``run.json`` is untrusted."""
    import pyarrow.parquet

    from nearfar.diff import diff
    from nearfar.report import report
    from nearfar.run_folder import open_run
    from nearfar.studies import STUDIES

    metrics = [name for study in STUDIES.values() for name in study.columns.metrics]
    of_run = [column.name for column in STUDIES["run"].columns.columns]
    row = {**dict.fromkeys(of_run, 1), **dict.fromkeys(metrics, 1.0),
           "page_bytes": 4096, "memory_bytes": 1 << 20, "memory_fraction": 0.5, "storage": "disk",
           "dram_bytes": 1 << 20, "epf": "none", "policy": "nomad", "seed": 1}  # fmt: skip
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path.parent / "result.parquet")
    run = open_run(path.parent)
    for ask in (run.result.to_json, lambda: diff(path.parent, path.parent)):
        with suppress(NearfarError):
            ask()
    return report(path.parent)


def _damo(path: Path) -> object:
    from nearfar import damo
    from nearfar.heat import heat

    out = path.with_suffix(".heat")
    damo.read(path).write(out, force=True)
    return heat(out)


#: Readers by the name of their corpus.
READERS: Final[dict[str, Reader]] = {
    "workload": _file("workload.toml", _workload),
    "fleet": _file("fleet.toml", _fleet),
    "statements": _file("statements.toml", _statements),
    "journal": _file("apply.json", _journal),
    "numa": _file("described", _numa),
    "points": _file("points.csv", _points),
    "policy": _file("knobs.toml", _knobs),
    "sweep": _file("study.toml", _sweep),
    "run": _file("run.json", _run),
    "damo": _file("damon.data", _damo),
}


def corpus(name: str) -> list[bytes]:
    """Inputs of a reader, in the order of their names."""
    return [path.read_bytes() for path in sorted((FUZZ / "corpus" / name).iterdir())]


def changed(inputs: list[bytes], draw: random.Random) -> bytes:
    """One input, changed in a few places."""
    data = bytearray(draw.choice(inputs))
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        at = draw.randrange(len(data) + 1)
        upto = min(len(data), at + draw.choice((1, 1, 2, 4, 16, 200)))
        how = draw.randrange(7)
        if how == 0:
            data[at:upto] = b""
        elif how == 1 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif how == 2:
            data[at:at] = draw.choice(WORDS)
        elif how == 3:
            data[at:upto] = draw.choice(WORDS)
        elif how == 4:
            data[at:at] = data[at:upto] * draw.choice((1, 2, 50))
        elif how == 5:
            other = draw.choice(inputs)
            start = draw.randrange(len(other) + 1)
            data[at:upto] = other[start : start + draw.randrange(200)]
        else:
            del data[at:]
    return bytes(data[:LARGEST])


def broken(name: str, data: bytes, folder: Path) -> str | None:
    """What a reader did wrong with ``data``; None if nothing."""
    try:
        READERS[name](folder, data)
    except NearfarError as error:
        lines = str(error).splitlines()
        if len(lines) != 1 or error.exit_code not in (1, 2, 3):
            return f"an error of {len(lines)} lines: {str(error)[:200]!r}"
        if len(lines[0]) > 4000:
            return f"an error of {len(lines[0])} characters"
    except OSError:
        pass  # the command line reports it in one line
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None


def attack(name: str, draw: random.Random) -> Iterator[tuple[bytes, str | None]]:
    """Endless inputs, first those of the corpus, each with what it broke or None."""
    inputs = corpus(name)
    with tempfile.TemporaryDirectory(prefix="nearfar-hostile-") as scratch:
        folder = Path(scratch)
        for data in inputs:
            yield data, broken(name, data, folder)
        while True:
            data = changed(inputs, draw)
            yield data, broken(name, data, folder)


def main() -> int:
    """Try inputs for a time; keep those that break a reader."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="total duration")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    failed = 0
    for name in READERS:
        end = time.monotonic() + asked.seconds / len(READERS)
        runs, seen = 0, set()
        for data, why in attack(name, random.Random(f"{asked.seed} {name}")):
            runs += 1
            if why is not None and why not in seen:
                seen.add(why)
                kept = FUZZ / "artifacts" / name / f"crash-{hashlib.sha1(data).hexdigest()}"
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_bytes(data)
                print(f"{name}: {why}: {kept}")
            if time.monotonic() > end:
                break
        failed += len(seen)
        print(f"{name}: {runs} inputs, {len(seen)} broke it", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
