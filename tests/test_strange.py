"""Strange environments: pipes and devices as files, closed or full streams, names that are not
UTF-8, no memory, no descriptors, tiny terminals. Errors are one line and leave no files."""

from __future__ import annotations

import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import HANG, Run, refused

PROGRAM = [sys.executable, "-P", "-m", "nearfar"]


# --- pipes and devices as files


@pytest.fixture
def place(tmp_path: Path, mixed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a trace."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(mixed, tmp_path / "in.trace")
    return tmp_path


#: Commands, and the input that becomes a pipe or device.
NO_FILES = {
    "info in.trace": "in.trace/trace.json",
    "paging in.trace": "in.trace/part-00000.parquet",
    "paging in.trace --memory 10%": "in.trace/regions.parquet",
    "info in.trace --verify": "in.trace/regions.parquet",
    "import in.din --format dinero -o out": "in.din",
    "import in.din.gz -o out": "in.din.gz",
    "sweep study.toml": "study.toml",
    "sweep whole.toml": "in.trace/part-00000.parquet",
    "advise fleet.toml": "fleet.toml",
    "workload show ./mine.toml": "mine.toml",
    "tiering --knobs knobs.toml": "knobs.toml",
    "numa alloc --size 1G --machine ./machine.toml": "machine.toml",
    "numa import nodes.txt": "nodes.txt",
    "fit --csv points.csv": "points.csv",
    "report run": "run/run.json",
    "diff run run": "run/run.json",
    "explain run --page 4K": "run/run.json",
    "diff run run --full": "run/result.parquet",
}


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("words", NO_FILES)
def test_inputs_must_be_regular_files(place: Path, nearfar: Run, words: str, kind: str) -> None:
    (place / "whole.toml").write_text('study = "paging"\n[grid]\ntrace = ["in.trace"]\n')
    (place / "run").mkdir()
    (place / "run" / "run.json").write_text("{}")
    file = place / NO_FILES[words]
    file.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    done = nearfar(*words.split())
    if words.startswith("sweep whole"):  # a cell that fails is a note
        assert done.returncode == 1 and "is not a regular file" in done.stderr, done.stderr
    else:
        refused(done)
    assert not (place / "out").exists()


def test_import_reads_standard_input_from_a_pipe(place: Path) -> None:
    lines = "".join(f"0 {at:x}\n" for at in range(0, 1 << 20, 16))
    for source in ("-", "/dev/stdin", "/dev/fd/0", "<(cat)"):
        done = subprocess.run(
            ["bash", "-c", f"{shlex.join(PROGRAM)} import {source} --format dinero -o out --force"],
            input=lines, text=True, capture_output=True, timeout=HANG, check=False,
        )  # fmt: skip
        assert done.returncode == 0 and "65,536 references" in done.stdout, done.stderr


# --- resources


def limit(what: str, most: str) -> str:
    """Code that sets a limit; ``most`` may use ``used``, the bytes of address space in use."""
    return (
        "import resource, pathlib\n"
        "used = int(pathlib.Path('/proc/self/statm').read_text().split()[0]) << 12\n"
        f"resource.setrlimit(resource.{what}, ({most}, {most}))\n"
    )


def test_too_many_open_files_is_no_damage(place: Path, nearfar: Run) -> None:
    """The error names `ulimit`, not a damaged file."""
    codes = []
    for most in range(3, 40):
        done = nearfar("paging", "in.trace", "--memory", "50%", "-o", "out",
                       first=limit("RLIMIT_NOFILE", str(most)))  # fmt: skip
        codes.append(done.returncode)
        if done.returncode == 0:
            break
        refused(done, "`ulimit -n`")
        # A temporary folder may be left until the next run, as removing it takes a descriptor.
        assert not (place / "out").exists()
    assert len(codes) > 1 and codes[-1] == 0
    assert sorted(file.name for file in place.iterdir()) == ["in.trace", "out"]


def test_a_start_without_descriptors_is_one_line() -> None:
    for most in (3, 4, 5):
        done = subprocess.run(
            [*PROGRAM, "--version"], capture_output=True, text=True, timeout=HANG, check=False,
            preexec_fn=lambda most=most: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)),
        )  # fmt: skip
        # If Python itself cannot start or find nearfar, its own message is right.
        if done.returncode and not re.search(
            "Fatal Python|loading shared libraries|specification for", done.stderr
        ):
            refused(done)


def bomb(trace: Path, pages: str, count: int = 12_000_000) -> None:
    """Replace the part of a trace by a small file of many equal records."""
    import json

    import numpy
    import pyarrow as pa
    import pyarrow.parquet as pq

    zeros = numpy.zeros(count, dtype=numpy.uint64)
    table = pa.table(
        {
            "addr": zeros,
            "kind": pa.DictionaryArray.from_arrays(
                pa.array(numpy.zeros(count, numpy.int32)), pa.array(["load"])
            ),
            "size": pa.array(zeros + 8, pa.uint16()),
            "thread": pa.array(zeros, pa.uint32()),
            "instr": pa.array(zeros, pa.uint32()),
        }
    )
    part = trace / "part-00000.parquet"
    pq.write_table(
        table, part, compression="zstd", row_group_size=count, use_dictionary=["kind"],
        data_page_size=1 << 20 if pages == "small" else 1 << 30,
        max_rows_per_page=1 << 20 if pages == "small" else count,
    )  # fmt: skip
    assert part.stat().st_size < 2 << 20
    info = json.loads((trace / "trace.json").read_text())
    info["parts"] = [{"file": part.name, "records": count, "bytes": 1}]
    info |= {"records": count, "instructions": 0, "records_by_kind": {"load": count}}
    info |= {"pages_by_kinds": {"load": 1}}
    info["threads"] = [{"index": 0, "process": 0, "records": count, "instructions": 0}]
    (trace / "trace.json").write_text(json.dumps(info))


@pytest.fixture(scope="module")
def bombs(tmp_path_factory: pytest.TempPathFactory, mixed: Path) -> Path:
    folder = tmp_path_factory.mktemp("bombs")
    for pages in ("small", "large"):
        shutil.copytree(mixed, folder / pages)
        bomb(folder / pages, pages)
    return folder


def test_a_decompression_bomb_takes_little_memory(bombs: Path) -> None:
    """12 million records, 288 MB: read page by page, or refused if one page holds all."""
    words = ("-c", "from nearfar.cli import main; main()")
    code = (
        "import resource, subprocess, sys\n"
        "done = subprocess.run(sys.argv[1:]).returncode\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)\n"
        "sys.exit(done)\n"
    )
    for pages, expected in (("small", 0), ("large", 2)):
        done = subprocess.run(
            [sys.executable, "-c", code, sys.executable, *words, "paging", bombs / pages,
             "--memory", "64K", "--page-sizes", "4K", "--lifetimes", "off", "--format", "json",
             "--threads", "1"],
            capture_output=True, text=True, timeout=HANG, check=False,
        )  # fmt: skip
        assert done.returncode == expected, done.stderr
        mebibytes = int(done.stdout.splitlines()[-1])
        assert mebibytes < 300, f"{mebibytes} MiB"
        if expected:
            (line,) = done.stderr.splitlines()
            assert line.startswith("nearfar: error: ") and "over 64 MiB" in line


@pytest.mark.parametrize("words", ["tiering --policy tpp --scale 1/1 -o out", "info in.trace"])
def test_without_memory_there_is_one_line(place: Path, words: str) -> None:
    """Address spaces in which the engine cannot be loaded, or cannot allocate enough."""
    for mebibytes in (28, 34, 40):
        most = mebibytes << 20
        done = subprocess.run(
            [*PROGRAM, *words.split()], capture_output=True, text=True, timeout=HANG, check=False,
            preexec_fn=lambda most=most: resource.setrlimit(resource.RLIMIT_AS, (most, most)),
        )  # fmt: skip
        refused(done, "`ulimit -v`")
        assert not (place / "out").exists()


# --- streams


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """Run a shell's line with ``nearfar`` as a command; Python starts with the line's streams."""
    text = f'nearfar() {{ {shlex.join(PROGRAM)} "$@"; }}; {line}'
    return subprocess.run(
        ["bash", "-c", text], capture_output=True, text=True, timeout=HANG, check=False
    )


CLOSED = "import os; os.close({})\n"
FULL = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), {})\n"


#: Commands that print, by name of the test.
PRINTS = {
    "help": "--help",
    "version": "--version",
    "paging": "paging in.trace --memory 50% --page-sizes 4K",
    "json": "info in.trace --format json",
    "csv": "info in.trace --format csv",
    "parquet": "info in.trace --format parquet",
    "export": "export in.trace --format csv -o -",
    "generate": "generate uniform --refs 9 --pages 9 -o out --force",
    "machine": "machine show optane-ssd",
    "toml": "machine show optane-ssd --format toml",
    "doctor": "doctor",
    "sweep": "sweep study.toml",
    "advise": "advise in.trace --memory 50% --page-sizes 4K,64K",
    "apply": "apply --page 4K",
}


@pytest.mark.parametrize("words", PRINTS.values(), ids=list(PRINTS))
def test_an_answer_that_cannot_be_written_is_an_error(
    place: Path, nearfar: Run, words: str
) -> None:
    (place / "study.toml").write_text('study = "numa-alloc"\n[options]\nsize = ["1G"]\n')
    if words.startswith("apply"):
        words += " --dry-run -- true"
    given = words.split()
    for first, why in ((CLOSED, "Bad file descriptor"), (FULL, "No space left on device")):
        refused(nearfar(*given, first=first.format(1)), why, "standard output")
    # Notes on standard error may be lost without an error.
    for first in (FULL.format(2), CLOSED.format(0) + CLOSED.format(2)):
        done = nearfar(*given, first=first)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout


def test_errors_without_standard_error_keep_their_exit_code(place: Path, nearfar: Run) -> None:
    for first in (CLOSED.format(2), FULL.format(2), CLOSED.format(1) + CLOSED.format(2)):
        for words in ("info nowhere", "doctor --require nothing", "no-such", "info --no-such"):
            assert nearfar(*words.split(), first=first).returncode == 2


def test_streams_that_are_closed_from_the_start(place: Path) -> None:
    """No output file may get the number of a closed stream, or messages would go into the file."""
    for where, code in ((">&-", 2), (">/dev/full", 2), ("2>&-", 0), ("2>&- <&-", 0)):
        assert shell(f"nearfar info in.trace --no-reuse {where}").returncode == code, where
    done = shell("nearfar generate uniform --refs 99 --pages 9 -o out --progress always "
                 ">&- 2>&- <&-")  # fmt: skip
    assert done.returncode == 2  # standard output is closed
    assert shell("nearfar info out --verify >&2").returncode == 0


# --- names


def test_file_names_that_are_not_utf8(place: Path, nearfar: Run) -> None:
    """Commands read and write files with such names."""
    name = os.fsdecode(b"caf\xe9")
    (place / "in.trace").rename(place / f"{name}.trace")
    (place / f"{name}.din").write_text("0 1000\n1 2000\n")
    (place / f"{name}.toml").write_text('study = "numa-alloc"\n[options]\nsize = ["1G"]\n')
    (place / f"{name}.csv").write_text(
        "page_bytes,tlb_miss_rate\n4096,0.5\n8192,0.3\n16384,0.2\n65536,0.1\n"
    )
    lines = [
        "info N.trace --html N.html",
        "info N.trace --format json",
        "info N.trace --format csv",
        "paging N.trace --memory 50% --page-sizes 4K,64K -o N.run --html N1.html",
        "explain N.run --page 4K",
        "report N.run -o N2.html",
        "diff N.run N.run",
        "advise N.trace --memory 50% --page-sizes 4K,64K -o N.advice",
        "ssd N.trace --dram 1M -o N.ssd",
        "numa run N.trace -o N.numa",
        "export N.trace --format dinero -o N2.din",
        "import N.din --format dinero -o N2.trace",
        "import N.din --format dinero -o N3.trace --json",
        "generate uniform --refs 9 --pages 9 -o N4.trace",
        "sweep N.toml",
        "fit --csv N.csv",
        "apply --page 4K --yes -o N.json -- true",
        "machine show optane-ssd --format toml",
    ]
    for line in lines:
        done = nearfar(*line.replace("N", name).split())
        assert done.returncode == 0 and "Traceback" not in done.stderr, f"{line}: {done.stderr}"
    for line in ("info N", "machine show N", "tiering --policy N", "workload show N", "N"):
        refused(nearfar(*line.replace("N", name).split()))


@pytest.mark.parametrize("size", [(1, 1), (9, 3)])
def test_tiny_terminals(
    place: Path, nearfar: Run, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(size[0]))
    monkeypatch.setenv("LINES", str(size[1]))
    assert nearfar(*["paging", "in.trace", "--memory", "50%", "-o", "run"]).returncode == 0
    for words in (
        "paging in.trace --memory 10%,50% --progress always --color always",
        "info in.trace",
        "advise in.trace --memory 50%",
        "tiering --policy tpp --scale 1/4096",
        "numa alloc --size 1G",
        "machine list",
        "machine show optane-ssd",
        "workload list",
        "doctor",
        "explain run --page 4K",
        "diff run run --full",
        "--help",
        "paging --help",
    ):
        done = nearfar(*words.split())
        assert done.returncode == 0 and "Traceback" not in done.stderr, f"{words}: {done.stderr}"
