"""Programs and options that cannot be captured, and missing tools, are an error of one line."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from capturing import (
    NEARFAR,
    aarch64_program,
    info,
    nearfar,
    needs_cc,
    needs_qemu,
    regions,
)
from conftest import refused
from nearfar import capture
from nearfar.errors import NearfarError


def elf(machine: int, bits: int = 2, order: int = 1, kind: int = 2) -> bytes:
    head = b"\x7fELF" + bytes([bits, order, 1]) + bytes(9)
    return head + struct.pack("<HH" if order == 1 else ">HH", kind, machine) + bytes(100)


BAD_PROGRAMS = [
    (elf(243), "riscv64: it needs qemu-riscv64"),
    (elf(40, bits=1), "arm: it needs qemu-arm"),
    (elf(3, bits=1), "i386: it needs qemu-i386"),
    (elf(183, order=2), "aarch64_be: it needs qemu-aarch64_be"),
    (elf(9999), "ELF machine 9999"),
    (elf(62, kind=1), "not a program (object file"),
    (b"hello", "neither an ELF program nor a `#!` script"),
    (b"", "neither an ELF program nor a `#!` script"),
    (b"\x7fELF\x02\x01", "neither an ELF program"),
    (b"#!/no/such/interpreter\n", "interpreter /no/such/interpreter cannot be run"),
    (b"#!\n", "interpreter  cannot be run"),
]


@pytest.mark.parametrize(("content", "message"), BAD_PROGRAMS)
def test_a_bad_program_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    program = tmp_path / "program"
    program.write_bytes(content)
    program.chmod(0o755)
    with pytest.raises(NearfarError) as raised:
        capture.capture([program], tmp_path / "x.trace")
    assert raised.value.exit_code == 2
    assert message in str(raised.value) and str(program) in str(raised.value)
    assert not (tmp_path / "x.trace").exists()


def test_a_missing_program_is_refused(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_bytes(elf(62))
    for command, message in [
        (["no-such-program"], "no such program in PATH"),
        ([str(tmp_path / "none")], "cannot be run"),
        ([str(tmp_path)], "is not a program"),
        ([str(plain)], "is not executable"),
    ]:
        refused(nearfar("-o", tmp_path / "x.trace", "--", *command), message, command[0])
    assert not (tmp_path / "x.trace").exists()
    with pytest.raises(NearfarError):
        capture.capture([])


@needs_qemu
def test_options_that_contradict_the_program_or_the_output_are_refused(tmp_path: Path) -> None:
    true = shutil.which("true")
    done = nearfar("--arch", "aarch64", "-o", tmp_path / "x.trace", "--", true)
    if os.uname().machine == "x86_64":
        assert done.returncode == 2 and "is a program for x86_64, not aarch64" in done.stderr
    assert nearfar("--max-refs", "0", "--", true).returncode == 2
    trace = capture.capture([true], tmp_path / "x.trace")
    done = nearfar("-o", trace, "--", true)
    assert done.returncode == 2 and "exists already" in done.stderr
    assert nearfar("--force", "-o", trace, "--", true).returncode == 0


def test_a_missing_qemu_is_an_error_that_names_the_package(tmp_path: Path) -> None:
    program = tmp_path / "arm"
    program.write_bytes(aarch64_program())
    program.chmod(0o755)
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = nearfar("-o", tmp_path / "x.trace", "--", program, env=environment)
    refused(done, "apt-get install qemu-user", codes=(3,))
    assert not (tmp_path / "x.trace").exists()


def test_a_program_whose_loader_is_missing_is_refused(tmp_path: Path) -> None:
    name = b"/no/such/ld.so\0"
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 183, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    head += struct.pack("<IIQQQQQQ", 3, 4, 120, 0, 0, len(name), len(name), 1)
    program = tmp_path / "arm"
    program.write_bytes(head + name)
    program.chmod(0o755)
    with pytest.raises(NearfarError, match="loader /no/such/ld.so does not exist") as raised:
        capture.capture([program], tmp_path / "x.trace")
    assert raised.value.exit_code == 3


def test_probe_names_tools_and_fixes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = {probe.name: probe for probe in capture.probe()}
    assert set(found) == {"qemu-x86_64", "qemu-aarch64", "capture plugin", "shared memory"}
    assert found["capture plugin"].available and found["shared memory"].available
    if shutil.which("qemu-x86_64"):
        assert found["qemu-x86_64"].available, found["qemu-x86_64"]
        assert "accepts the plugin" in found["qemu-x86_64"].why
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(capture, "PLUGIN", tmp_path / "none.so")
    found = {probe.name: probe for probe in capture.probe()}
    assert not found["qemu-x86_64"].available and "apt-get" in found["qemu-x86_64"].fix
    assert not found["capture plugin"].available and found["capture plugin"].fix == "make plugin"


@needs_qemu
def test_a_program_that_closes_every_descriptor_is_recorded(tmp_path: Path) -> None:
    trace = tmp_path / "sh.trace"
    done = nearfar("-o", trace, "--", "/bin/sh", "-c", "exec 3<&- 4<&- 5<&- 6<&-; ls /proc/self/fd")
    assert done.returncode == 0, done.stderr
    # 0 to 2, and the folder that ls has open; none of nearfar's.
    assert done.stdout.split() == ["0", "1", "2", "3"]
    assert info(trace)["complete"]


@needs_qemu
def test_executing_a_named_pipe_fails_as_usual(tmp_path: Path) -> None:
    """The capture must not wait for the pipe's other end."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o755)
    done = nearfar("-o", tmp_path / "sh.trace", "--", "/bin/sh", "-c", f"exec {pipe}")
    assert "ermission denied" in done.stderr and "exited with status 126" in done.stderr
    assert done.returncode == 0 and info(tmp_path / "sh.trace")["complete"]


RESERVE = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

int main(int count, char **words)
{
	size_t bytes = strtoull(words[1], 0, 10) << 30;
	char *at = mmap(0, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	puts(at == MAP_FAILED ? "failed" : "reserved");
	return 0;
}
"""


@needs_qemu
@needs_cc
def test_a_reservation_that_needs_too_much_memory_in_qemu_ends_the_capture(
    build: Callable[..., Path], tmp_path: Path
) -> None:
    """QEMU 7.2 keeps 24 bytes for each page that is mapped: 2.3 TiB for 400 TiB of addresses."""
    version = subprocess.run(["qemu-x86_64", "--version"], capture_output=True, text=True).stdout
    if int(version.split("version ")[1].split(".")[0]) >= 8:
        pytest.skip("this QEMU keeps ranges")
    program, trace = build(RESERVE), tmp_path / "reserve.trace"
    # If the mapping were tried, the limit would make it fail before QEMU fills its tables.
    limit = ["prlimit", f"--as={64 << 30}"]
    command = [*limit, *NEARFAR, "capture", "--force", "-o", str(trace), "--", str(program)]
    done = subprocess.run([*command, "16"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "reserved\n"), done.stderr
    assert 16 << 30 in {region["length"] for region in regions(trace)}
    done = subprocess.run([*command, "409600"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert "before it mapped 409600 GiB, for which this QEMU would take 2400.0 GiB" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("nearfar: the trace is marked incomplete")
    assert not info(trace)["complete"] and info(trace)["records"] > 0
