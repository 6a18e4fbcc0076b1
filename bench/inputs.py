"""Inputs of the bench: a text, its capture, generated traces, libCacheSim's files.

Each is made once a run, on first use, in the scratch folder. All but captures have the same bytes
in every run.
"""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from measure import BenchError, Finished, nearfar, run

from nearfar.inputs import words as write_words

#: A safe lower estimate: `gzip -dc` makes about fourteen references for each byte of text.
REFS_PER_BYTE = 10
QEMU = "qemu-x86_64"


@dataclass
class Inputs:
    """The inputs of one run.

    Attributes:
        scratch: a folder for this run only; the caller removes it.
        refs: minimum references of the capture. The Zipf trace has a third of this number,
            or all of it if it is below a million.
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
        """A gzip file of ``size`` bytes of text, which compresses about as prose does."""
        path = self.scratch / f"text-{size}.gz"
        if not path.exists():
            plain = path.with_suffix("")
            write_words(plain, bytes=size)
            path.write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
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
