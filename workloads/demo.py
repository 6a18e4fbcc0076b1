"""The demonstration: capture real programs, study their page sizes, write the pages.

Run by ``make demo``. Captures a gzip decompression and a desktop program (GnuGo playing against
itself, else Ghostscript drawing a page), whichever are installed; without QEMU it goes on with the
small captures in ``tests/data/captures``. Everything lands in ``out/demo``.
"""

from __future__ import annotations

import gzip
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from nearfar.errors import NearfarError
from nearfar.output import write_aside

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "out" / "demo"
BUNDLED = ROOT / "tests" / "data" / "captures"
MACHINE = "optane-ssd"


def text(size: int, seed: int = 1) -> bytes:
    """Make ``size`` bytes of words with the skewed frequencies of a language."""
    chance = random.Random(seed)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(8000)]
    weights = [1 / (rank + 2) for rank in range(len(words))]
    out = " ".join(chance.choices(words, weights, k=size // 4))
    return out.encode()[:size]


def gzip_command(work: Path) -> list[str]:
    """Decompress 3 MB of text."""
    source = work / "text.gz"
    source.write_bytes(gzip.compress(text(3_000_000), 6, mtime=0))
    return ["gzip", "-dc", str(source)]


def program_path(name: str) -> str | None:
    """Find a program, games included: root has no /usr/games in its PATH."""
    return shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/games")


def gnugo_command(_work: Path) -> list[str]:
    """Play the first moves of a game on a small board."""
    gnugo = program_path("gnugo") or "gnugo"
    return [gnugo, *["--mode", "gtp", "--level", "1", "--boardsize", "9", "--seed", "1"]]


def gs_command(work: Path) -> list[str]:
    """Draw a page of curves and text to nowhere."""
    source = work / "page.ps"
    lines = ["%!PS", "/Times-Roman findfont 14 scalefont setfont"]
    for i in range(150):
        lines.append(
            f"newpath {i * 4} 0 moveto 0 {i * 5} 600 {800 - i * 3} {600 - i * 2} 800 curveto"
        )
        lines.append(f"stroke 40 {10 + i * 5} moveto (Which pages belong near {i}) show")
    source.write_text("\n".join([*lines, "showpage"]) + "\n")
    return [
        "gs",
        "-q",
        "-dBATCH",
        "-dNOPAUSE",
        "-sDEVICE=ppmraw",
        "-r72",
        "-o",
        "/dev/null",
        str(source),
    ]


#: Programs in order of preference within each group; standard input of each.
GROUPS: list[list[tuple[str, Callable[[Path], list[str]], bytes]]] = [
    [("gzip", gzip_command, b"")],
    [
        ("gnugo", gnugo_command, b"genmove black\ngenmove white\ngenmove black\nquit\n"),
        ("gs", gs_command, b""),
    ],
]


def capture(name: str, make: Callable[[Path], list[str]], typed: bytes) -> Path:
    """Capture one program through the command line, its output thrown away."""
    trace = OUT / f"{name}.trace"
    program = make(OUT)
    command = [
        sys.executable,
        "-m",
        "nearfar",
        "capture",
        "--force",
        "-o",
        str(trace),
        "--",
        *program,
    ]
    print(
        f"$ nearfar capture -o {trace.relative_to(ROOT)} -- {' '.join(program[:2])} ...", flush=True
    )
    subprocess.run(command, input=typed, stdout=subprocess.DEVNULL, check=True)
    return trace


def traces() -> list[Path]:
    """Capture what can be captured; the bundled captures where nothing can."""
    from nearfar.capture import probe

    if not all(
        found.available for found in probe() if "x86_64" in found.name or "plugin" in found.name
    ):
        print("QEMU is not here: going on with the small captures that come with nearfar.")
        return sorted(BUNDLED.glob("*.trace"))
    found = []
    for group in GROUPS:
        for name, make, typed in group:
            if program_path(name):
                found.append(capture(name, make, typed))
                break
        else:
            names = " or ".join(name for name, _, _ in group)
            print(f"{names}: not installed, left out; apt-get install gnugo")
    return found


def main() -> int:
    """Run everything; say where the pages are."""
    from nearfar.info import info
    from nearfar.paging import paging
    from nearfar.report import tables
    from nearfar.report.html import info_page

    OUT.mkdir(parents=True, exist_ok=True)
    pages = []
    for trace in traces():
        print(f"\n$ nearfar paging {trace.name} --machine {MACHINE}", flush=True)
        result = paging(trace, machine=MACHINE)
        found = info(trace)
        heatmap = found["heatmap"]
        tables.show(tables.paging(result.to_dict()))
        for kind, page in (
            ("paging", result.html(heatmap)),
            ("info", info_page(found, heatmap)),
        ):
            path = OUT / f"{trace.stem}-{kind}.html"
            write_aside(path, page)
            pages.append(path)
    print("\nOpen in a browser:")
    for path in pages:
        print(f"  {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NearfarError as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
