"""Inputs of the bench: a text, its capture, generated traces, libCacheSim's files.

Each is made once a run, on first use, in the scratch folder. All but captures have the same bytes
in every run.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from measure import BenchError, Finished, nearfar, run
from programs import PROGRAMS

#: A safe lower estimate: `gzip -dc` makes about twelve references for each byte of :func:`text`.
REFS_PER_BYTE = 10
QEMU = "qemu-x86_64"


def text(size: int) -> bytes:
    """``size`` bytes of words drawn by Zipf's law, which compress about as prose does."""
    draw = random.Random(1)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    weights = [1 / (rank + 2) for rank in range(len(letters))]
    words = ["".join(draw.choices(letters, weights, k=draw.randint(2, 10))) for _ in range(8000)]
    shares = [1 / (rank + 1) for rank in range(len(words))]
    made: list[str] = []
    length = 0
    while length < size:
        more = " ".join(draw.choices(words, shares, k=4096)) + "\n"
        made.append(more)
        length += len(more)
    return "".join(made).encode()[:size]


@dataclass
class Inputs:
    """The inputs of one run.

    Attributes:
        scratch: a folder for this run only; the caller removes it.
        refs: minimum references of the capture. The Zipf and uniform traces have a third of this
            number, or all of it if it is below a million.
        zipf_pages: pages of the Zipf trace.
        engine: the built `nearfar-bench`.
        remarks: what the reader of the figures must know, such as skipped cases.
        cells: measurements of the current case, which the record keeps.
        machine_file: text of the measured machine file; empty if no case measured the machine.
    """

    scratch: Path
    refs: int
    zipf_pages: int
    engine: Path
    remarks: list[str] = field(default_factory=list)
    cells: list[dict[str, Any]] = field(default_factory=list)
    machine_file: str = ""

    def compressed(self, size: int) -> Path:
        """A gzip file of ``size`` bytes of text."""
        path = self.scratch / f"text-{size}.gz"
        if not path.exists():
            path.write_bytes(gzip.compress(text(size), mtime=0))
        return path

    def command(self, size: int) -> list[str]:
        """The command that is captured: decompresses ``size`` bytes of text."""
        found = shutil.which("gzip")
        if found is None:
            raise BenchError("gzip: not found; install it")
        return [found, "-dc", str(self.compressed(size))]

    def capture(self, size: int, to: Path, *flags: str) -> Finished:
        """Capture :meth:`command` with the ``flags``; returns the process of `nearfar capture`."""
        words = nearfar("capture", *flags, "--force", "-o", to, "--", *self.command(size))
        return run(words, discard=True)

    @property
    def can_capture(self) -> bool:
        """Whether QEMU is installed."""
        return shutil.which(QEMU) is not None

    @cached_property
    def text_bytes(self) -> int:
        """Bytes of text whose decompression makes at least :attr:`refs` references."""
        return max(self.refs // REFS_PER_BYTE, 1000)

    @cached_property
    def captured(self) -> Path:
        """The capture of gzip; without QEMU a generated trace, and a remark."""
        to = self.scratch / "gzip.trace"
        if not self.can_capture:
            self.remarks.append(f"{QEMU} is not installed: a generated trace replaces the capture")
            parts = "zipf:0.6,sequential:0.4"
            return self.generate("mix", to, self.refs, 2000, "--mix", parts)
        self.capture(self.text_bytes, to)
        records = info(to)["records"]
        if records < self.refs:
            self.text_bytes = self.text_bytes * self.refs // records * 11 // 10
            self.capture(self.text_bytes, to)
        return to

    @cached_property
    def pigz(self) -> Path:
        """The capture of ``pigz -d`` with its threads, which writes to a file."""
        to = self.scratch / "pigz.trace"
        packed = self.compressed(self.text_bytes)
        words = ("pigz", "-d", "-k", "-f", "-p", "5", packed)
        run(nearfar("capture", "--force", "-o", to, "--", *words), discard=True)
        return to

    @cached_property
    def zipf(self) -> Path:
        """A trace of Zipf(1.0) over :attr:`zipf_pages` pages."""
        to = self.scratch / "zipf.trace"
        refs = self.refs if self.refs < 1_000_000 else self.refs // 3
        return self.generate("zipf", to, refs, self.zipf_pages, "--alpha", "1")

    @cached_property
    def uniform(self) -> Path:
        """A trace as long as the Zipf trace, over as many pages, uniformly distributed."""
        refs = self.refs if self.refs < 1_000_000 else self.refs // 3
        return self.generate("uniform", self.scratch / "uniform.trace", refs, self.zipf_pages)

    @cached_property
    def graph(self) -> Path | None:
        """The capture of a graph program with a large footprint; ``None`` without QEMU or gcc."""
        program = next(program for program in PROGRAMS if program.name == "graph")
        if not self.can_capture or program.missing():
            self.remarks.append("graph: QEMU or gcc is not there; its capture is left out")
            return None
        to = self.scratch / "graph.trace"
        scale = 2.0 if self.refs >= 1_000_000 else 0.1
        run(nearfar("capture", "--force", "-o", to, "--", *program.make(self.scratch, scale)))
        return to

    def generate(self, name: str, to: Path, refs: int, pages: int, *more: str) -> Path:
        """A generated trace of 4 KiB pages."""
        sizes = ["--refs", str(refs), "--pages", str(pages), "--seed", "1"]
        run(nearfar("generate", name, *sizes, "-o", to, "--force", *more), discard=True)
        return to

    def page_file(self, trace: Path, page_bytes: int) -> Path:
        """Page references of a trace as an oracleGeneral file, which libCacheSim reads fastest."""
        to = self.scratch / f"{trace.stem}-{page_bytes}.oracleGeneral.bin"
        if not to.exists():
            size = ["--page-bytes", str(page_bytes)]
            words = nearfar("export", trace, "-o", to, "--format", "oracle-general", *size)
            run(words, discard=True)
        return to

    def measure(self, command: str, trace: Path, *more: str, cores: int = 0) -> dict[str, Any]:
        """The JSON that `nearfar-bench COMMAND TRACE ...` prints, plus its ``peak_bytes``."""
        done = run([self.engine, command, trace, *more], cores=cores)
        answer: dict[str, Any] = done.json()
        answer["peak_bytes"] = done.peak_bytes
        return answer


def info(trace: Path) -> dict[str, Any]:
    """The contents of a trace's ``trace.json``."""
    found: dict[str, Any] = json.loads((trace / "trace.json").read_text())
    return found
