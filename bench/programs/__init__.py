"""Programs that the bench runs under a real kernel and captures.

At full size, each has a footprint of some 10,000 pages and runs for at most a second. None was
chosen by its results.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        name: of the program.
        kind: the class of programs that it represents, in a few words.
        needs: commands and libraries that must be installed.
        make: given a folder and a scale of the input, writes the input to the folder and returns
            the command.
    """

    name: str
    kind: str
    needs: tuple[str, ...]
    make: Callable[[Path, float], list[str]]

    def missing(self) -> list[str]:
        """The commands and libraries (such as ``libc``) of ``needs`` that are not installed."""
        return [name for name in self.needs if not (shutil.which(name) or _library(name))]


def _library(name: str) -> str | None:
    """File name of a library, such as ``libc.so.6`` for ``libc``; None if not installed."""
    return find_library(name.removeprefix("lib")) if name.startswith("lib") else None


def _lines(folder: Path, count: float, most: int = 180) -> str:
    """Write lines of 60 to ``most`` hexadecimal digits, the same in every run; returns the path."""
    draw = random.Random(1)
    digits = (draw.randint(60, most) for _ in range(int(count)))
    path = folder / f"lines-{int(count)}.txt"
    path.write_text("".join(f"{draw.getrandbits(4 * length):0{length}x}\n" for length in digits))
    return str(path)


def _source(folder: Path, functions: float) -> str:
    """Write a C file of functions that call each other; returns the path."""
    draw = random.Random(1)
    made = ["int table[4096];\n"]
    for number in range(int(functions)):
        body = [f"int f{number}(int a, int b)\n{{\n\tint c = a ^ {draw.getrandbits(16)};\n"]
        for _ in range(draw.randint(5, 40)):
            index, shift, limit = draw.randrange(4096), draw.randint(1, 7), draw.getrandbits(16)
            body.append(f"\tfor (int i = 0; i < (b & {shift}); i++)\n")
            body.append(f"\t\tc += table[(i + {index}) & 4095] << {shift};\n")
            body.append(f"\tif (c > {limit}) c -= a * {index};\n")
        if number:
            body.append(f"\tc += f{draw.randrange(number)}(b, c);\n")
        made.append("".join([*body, "\treturn c;\n}\n"]))
    path = folder / "unit.c"
    path.write_text("".join(made))
    return str(path)


def _found(name: str) -> str:
    """Full path of an installed program."""
    path = shutil.which(name)
    assert path is not None, name
    return path


def _printed(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def _sort(folder: Path, part: float) -> list[str]:
    text = _lines(folder, 250_000 * part)
    return [_found("sort"), "-S", "400M", "--parallel=1", text]


def _sqlite(_: Path, part: float) -> list[str]:
    return [sys.executable, str(HERE / "sqlite.py"), str(int(13_000 * part))]


def _node(_: Path, part: float) -> list[str]:
    words = [_found("node"), "--single-threaded", "--predictable-gc-schedule"]
    return [*words, str(HERE / "objects.js"), str(int(90_000 * part))]


def _numpy(_: Path, part: float) -> list[str]:
    return [sys.executable, str(HERE / "arrays.py"), str(int(1_000_000 * part))]


def _gcc(folder: Path, part: float) -> list[str]:
    compiler = _printed(_found("gcc"), "-print-prog-name=cc1")
    unit = _source(folder, 20 * part)
    return [compiler, "-quiet", "-O1", unit, "-o", "/dev/null"]


def _zstd(folder: Path, part: float) -> list[str]:
    text = _lines(folder, 25_000 * part)
    search = "--zstd=strat=3,wlog=24,hlog=22,clog=21"
    return [_found("zstd"), search, "--single-thread", "-c", text]


def _perl(folder: Path, part: float) -> list[str]:
    return [_found("perl"), str(HERE / "words.pl"), _lines(folder, 20_000 * part)]


def _redis(folder: Path, part: float) -> list[str]:
    from nearfar.inputs import redis_load

    load = folder / "load.txt"
    redis_load(load, keys=int(25_000 * part), commands=int(5_000 * part))
    return [_found("bash"), str(HERE / "redis.sh"), str(folder), str(load)]


def _graph(folder: Path, part: float) -> list[str]:
    program = str(folder / "graph")
    _printed(_found("gcc"), "-O2", "-o", program, str(HERE / "graph.c"))
    return [program, str(int(600_000 * part))]


def _shell(folder: Path, part: float) -> list[str]:
    text = _lines(folder, 220_000 * part)
    return [_found("bash"), str(HERE / "processes.sh"), text, str(int(25 * part))]


def _jq(folder: Path, part: float) -> list[str]:
    text = _lines(folder, 25_000 * part, most=900)
    program = "[inputs | {key: .[0:4], text: .}] | group_by(.key) | map(length) | max"
    return [_found("jq"), "-n", "-R", program, text]


def _java(folder: Path, _: float) -> list[str]:
    _printed(_found("javac"), "-d", str(folder), str(HERE / "live/Objects.java"))
    return [_found("java"), "-Xmx96m", "-XX:+UseSerialGC", "-cp", str(folder), "Objects", "1"]


def _go(folder: Path, _: float) -> list[str]:
    _printed(_found("go"), "build", "-o", str(folder / "objects"), str(HERE / "live/objects.go"))
    return [str(folder / "objects"), "1"]


def _bgsave(folder: Path, part: float) -> list[str]:
    return [_found("bash"), str(HERE / "bgsave.sh"), *_redis(folder, part)[2:]]


def _allocating(name: str, allocator: str, decay: str) -> Program:
    """``alloc.c`` with an allocator's library; ``decay``: jemalloc's decay time, milliseconds."""

    def make(folder: Path, part: float) -> list[str]:
        program, source = str(folder / "alloc"), str(HERE / "alloc.c")
        _printed(
            "gcc", "-O2", f'-DDECAY="{decay}"', "-o", program, source, f"-l:{_library(allocator)}"
        )
        return [program, str(max(1, round(6 * part)))]

    return Program(name, "objects that come and go", ("gcc", allocator), make)


#: Programs with their own memory management, for the case `thp`.
MANAGED = (
    Program("java", "a virtual machine with a collector", ("java", "javac"), _java),
    Program("go", "goroutines and a collector", ("go",), _go),
    Program("bgsave", "a server that saves by a fork", ("bash", "redis-server"), _bgsave),
    _allocating("jemalloc-0ms", "libjemalloc", "0"),
    _allocating("jemalloc-100ms", "libjemalloc", "100"),
    _allocating("tcmalloc", "libtcmalloc_minimal", "0"),
)

#: Programs of `kernel-faults`, `page-gain` and other cases.
PROGRAMS = (
    Program("sort", "a sort of lines", ("sort",), _sort),
    Program("sqlite", "a database, in Python", (), _sqlite),
    Program("node", "a compiled script language with a collector", ("node",), _node),
    Program("numpy", "arrays, in Python", (), _numpy),
    Program("cc1", "a compiler", ("gcc",), _gcc),
    Program("zstd", "a compressor", ("zstd",), _zstd),
    Program("perl", "an interpreter with a hash", ("perl",), _perl),
    Program("redis", "a server and its client", ("bash", "redis-server", "redis-cli"), _redis),
    Program("graph", "a graph, in C", ("gcc",), _graph),
    Program("shell", "a shell that starts many processes", ("bash",), _shell),
    Program("jq", "a tree of values", ("jq",), _jq),
)
