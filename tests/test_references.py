"""References of string, atomic and zeroing instructions, which QEMU treats specially."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from capturing import (
    FETCH,
    LOAD,
    STORE,
    aarch64_program,
    columns,
    info,
    needs_cc,
    needs_qemu,
    needs_qemu_arm,
)
from nearfar import capture

# After a shared mapping, QEMU executes atomic instructions as if threads ran in parallel.
SHARED = """
    mov $9, %eax
    xor %edi, %edi
    mov $4096, %esi
    mov $3, %edx
    mov $0x21, %r10d
    mov $-1, %r8
    xor %r9d, %r9d
    syscall
"""
X86 = """
.globl _start
_start:
{shared}
    lea buffer(%rip), %rbx
    jmp 1f
1:  mov %rbx, %rdi
    mov $5, %ecx
    xor %eax, %eax
    rep stosq               # 5 stores, and the count is 0
    mov %rbx, %rsi
    lea 512(%rbx), %rdi
    mov $3, %ecx
    rep movsb               # 3 loads, 3 stores
    mov $9, %ecx
    movb $1, 2(%rbx)
    mov %rbx, %rdi
    mov $1, %al
    repne scasb             # ends at the third
    xor %ecx, %ecx
    rep lodsb               # nothing
    mov $1, %ecx
    rep stosb               # 1 store
    lock incq (%rbx)
    xchg %rax, 8(%rbx)
    mov $3, %eax
    lock cmpxchgl %ecx, 16(%rbx)
    incl 24(%rbx)
    lock xaddb %al, 32(%rbx)
    lock cmpxchg16b 48(%rbx)
    mov $60, %eax
    xor %edi, %edi
    syscall
    .bss
    .balign 4096
buffer: .space 4096
"""


@needs_qemu
@needs_cc
@pytest.mark.parametrize("shared", ["", SHARED], ids=["alone", "side by side"])
def test_instructions_of_x86(build: Callable[..., Path], tmp_path: Path, shared: str) -> None:
    program = build(X86.format(shared=shared), "-nostdlib", "-static", "-no-pie", suffix=".s")
    outcome = capture.run([program], tmp_path / "t.trace")
    rows = columns(outcome.path)
    # The block after `jmp` is fetched at `first - 1`; its first store is to the buffer's start.
    first = next(at for at, row in enumerate(rows) if row[1] == STORE)
    base = rows[first][0]
    found = [(row[1], row[0] - base if row[1] != FETCH else 0, row[2]) for row in rows[first - 1 :]]
    turn = [(FETCH, 0, 3)]  # of `rep stosq`
    atomic = [
        (LOAD, 0, 8), (STORE, 0, 8), (LOAD, 8, 8), (STORE, 8, 8), (LOAD, 16, 4), (STORE, 16, 4),
        (LOAD, 24, 4), (STORE, 24, 4), (LOAD, 32, 1), (STORE, 32, 1),
    ]  # fmt: skip
    # A fetch has the summed lengths of the instructions of its block.
    expected = [(FETCH, 0, 3 + 5 + 2 + 3), (STORE, 0, 8)]
    for k in range(1, 5):
        expected += [*turn, (STORE, 8 * k, 8)]
    expected += [(FETCH, 0, 3 + 7 + 5 + 2), (LOAD, 0, 1), (STORE, 512, 1)]
    for k in range(1, 3):
        expected += [(FETCH, 0, 2), (LOAD, k, 1), (STORE, 512 + k, 1)]
    expected += [(FETCH, 0, 5 + 4 + 3 + 2 + 2), (STORE, 2, 1), (LOAD, 0, 1)]
    expected += [(FETCH, 0, 2), (LOAD, 1, 1), (FETCH, 0, 2), (LOAD, 2, 1)]
    expected += [(FETCH, 0, 2 + 2)]
    expected += [(FETCH, 0, 5 + 2), (STORE, 3, 1)]
    expected += [(FETCH, 0, 4 + 4 + 5 + 5 + 3 + 5 + 6 + 5 + 2 + 2)]
    assert found[: len(expected)] == expected
    rest = found[len(expected) :]
    assert rest[: len(atomic)] == atomic
    # `cmpxchg16b`: two halves of 8 bytes, or 16 bytes at once if threads run in parallel.
    assert [kind for kind, *_ in rest[len(atomic) :]] == [LOAD, LOAD, STORE, STORE] or rest[
        len(atomic) :
    ] == [(LOAD, 48, 16), (STORE, 48, 16)]
    before = 8 if shared else 0
    # Each further turn of a repeated instruction counts as one.
    turns = (4 + 4) + (4 + 2) + (5 + 2) + 2 + 2
    assert outcome.info["instructions"] == before + 1 + 1 + turns + 10


AARCH64_SHARED = [
    0xD2801BC8,  # mov x8, #222 (mmap)
    0xD2800000,  # mov x0, #0
    0xD2820001,  # mov x1, #4096
    0xD2800062,  # mov x2, #3
    0xD2800423,  # mov x3, #0x21
    0x92800004,  # mov x4, #-1
    0xD2800005,  # mov x5, #0
    0xD4000001,  # svc #0
]
AARCH64 = [
    0xD2801588,  # mov x8, #172 (getpid)
    0xD4000001,  # svc #0
    0xD12003E1,  # sub x1, sp, #2048
    0x9277D821,  # and x1, x1, #~511
    0x9100A026,  # add x6, x1, #40
    0xD50B7426,  # dc zva, x6
    0x91002027,  # add x7, x1, #8
    0xC85F7CE2,  # ldxr x2, [x7]
    0xC8037CE2,  # stxr w3, x2, [x7]
    0xF8220024,  # ldadd x2, x4, [x1]
    0xF82280E4,  # swp x2, x4, [x7]
    0xC8A57C22,  # cas x5, x2, [x1]
    0xC8DFFCE2,  # ldar x2, [x7]
    0xC89FFCE2,  # stlr x2, [x7]
    0xD2800BA8,  # mov x8, #93 (exit)
    0xD2800000,  # mov x0, #0
    0xD4000001,  # svc #0
    0xD503201F,  # nop
]


@needs_qemu_arm
@pytest.mark.parametrize("cpu", ["max", "cortex-a57"])
@pytest.mark.parametrize("shared", [[], AARCH64_SHARED], ids=["alone", "side by side"])
def test_instructions_of_aarch64(
    tmp_path: Path, shared: list[int], cpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `max` zeroes 512 bytes at a time, `cortex-a57` 64; only `max` has ARMv8.1's atomics.
    monkeypatch.setenv("QEMU_CPU", cpu)
    atomics = cpu == "max"
    code = [word for word in AARCH64 if atomics or word >> 24 != 0xF8 and word != 0xC8A57C22]
    program = tmp_path / "arm"
    program.write_bytes(aarch64_program(struct.pack(f"<{len(shared + code)}I", *shared, *code)))
    program.chmod(0o755)
    outcome = capture.run([program], tmp_path / "arm.trace")
    assert outcome.complete and not outcome.warnings, outcome.warnings
    rows = [row for row in columns(outcome.path) if row[1] != FETCH]
    base = rows[0][0]
    lines = 8 if atomics else 1
    expected = [(STORE, 64 * k, 64) for k in range(lines)]
    expected += [(LOAD, 8, 8), (STORE, 8, 8)]
    if atomics:
        expected += [(LOAD, 0, 8), (STORE, 0, 8), (LOAD, 8, 8), (STORE, 8, 8)]
        expected += [(LOAD, 0, 8), (STORE, 0, 8)]
    expected += [(LOAD, 8, 8), (STORE, 8, 8)]
    assert [(row[1], row[0] - base, row[2]) for row in rows] == expected
    assert base % 512 == 0
    assert outcome.info["instructions"] == len(shared) + len(code) - 1  # not the last nop


@needs_qemu_arm
def test_every_store_of_a_long_memset_is_recorded(tmp_path: Path) -> None:
    # Zeroes 2,048 blocks of 512 bytes, 1 MiB, from 0x500000.
    code = struct.pack(
        "<12I",
        0xD2801588,  # mov x8, #172 (getpid)
        0xD4000001,  # svc #0
        0xD2A00A01,  # mov x1, #0x500000
        0xD2810002,  # mov x2, #2048
        0xD50B7421,  # dc zva, x1
        0x91080021,  # add x1, x1, #512
        0xF1000442,  # subs x2, x2, #1
        0x54FFFFA1,  # b.ne -12
        0xD2800BA8,  # mov x8, #93 (exit)
        0xD2800000,  # mov x0, #0
        0xD4000001,  # svc #0
        0xD503201F,  # nop
    )
    program = tmp_path / "arm"
    program.write_bytes(aarch64_program(code, memory=4 << 20))
    program.chmod(0o755)
    trace = capture.capture([program], tmp_path / "arm.trace")
    stores = [row for row in columns(trace) if row[1] == STORE]
    assert [row[0] for row in stores] == list(range(0x500000, 0x600000, 64))
    assert {row[2] for row in stores} == {64}
    assert info(trace)["instructions"] == 4 + 4 * 2048 + 3
