"""Helpers of the capture tests: run ``nearfar capture`` and read its trace."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import HANG

LOAD, STORE, FETCH = "load", "store", "fetch"
KERNEL_LOAD, KERNEL_STORE = "kernel-load", "kernel-store"
#: Addresses from here on are the kernel's.
KERNEL = 1 << 63
NEARFAR = [sys.executable, "-c", "from nearfar.cli import main; main()"]

needs_qemu = pytest.mark.skipif(
    shutil.which("qemu-x86_64") is None, reason="qemu-user is not installed"
)
needs_qemu_arm = pytest.mark.skipif(
    shutil.which("qemu-aarch64") is None, reason="qemu-user is not installed"
)
needs_cc = pytest.mark.skipif(
    shutil.which("cc") is None or os.uname().machine != "x86_64", reason="no x86-64 C compiler"
)


def records(trace: Path) -> pa.Table:
    """The records of all finished parts, in order."""
    parts = sorted(trace.glob("part-*.parquet"))
    return pa.concat_tables([pq.read_table(part) for part in parts])


def columns(trace: Path) -> list[tuple[Any, ...]]:
    """Address, kind, size, thread and gap (instructions since the last record) of each record."""
    table = records(trace)
    names = ["addr", "kind", "size", "thread", "instr"]
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


def regions(trace: Path, *, idle: bool = False) -> list[dict[str, Any]]:
    """The trace's events other than ``idle``, or the ``idle`` ones alone."""
    events = pq.read_table(trace / "regions.parquet").to_pylist()
    return [event for event in events if (event["event"] == "idle") == idle]


def info(trace: Path) -> dict[str, Any]:
    return json.loads((trace / "trace.json").read_text())


def nearfar(*words: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run ``nearfar capture``."""
    return subprocess.run(
        [*NEARFAR, "capture", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
        **more,
    )


#: Compiler flags for assembly that needs no library.
ALONE = ("-nostdlib", "-static", "-no-pie")

_LOOP = """
.globl _start
_start:
    mov ${turns}, %ecx
1:  mov (%rsp), %rax
    mov %rax, -8(%rsp)
    dec %ecx
    jnz 1b
    mov $60, %eax
    xor %edi, %edi
    syscall
"""


def loop(turns: int) -> str:
    """Assembly of ``turns`` iterations of a load and a store, then exit(0)."""
    return _LOOP.replace("{turns}", str(turns))


# 100 iterations of a load and a store, then exit(5).
AARCH64_LOOP = struct.pack(
    "<9I",
    0xD2800C80,  # mov x0, #100
    0xF94003E1,  # ldr x1, [sp]
    0xF81F03E1,  # stur x1, [sp, #-16]
    0xF1000400,  # subs x0, x0, #1
    0x54FFFFA1,  # b.ne -12
    0xD2800BA8,  # mov x8, #93
    0xD28000A0,  # mov x0, #5
    0xD4000001,  # svc #0
    0xD503201F,  # nop
)


def aarch64_program(code: bytes = AARCH64_LOOP, memory: int = 0) -> bytes:
    """A static ELF of this code; with ``memory``, its segment is writable, of that many bytes."""
    base = 0x400000
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 2, 183, 1, base + 120, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    size = 120 + len(code)
    segment = (1, 7 if memory else 5, 0, base, base, size, max(size, memory), 4096)
    return head + struct.pack("<IIQQQQQQ", *segment) + code
