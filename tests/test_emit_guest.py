"""Emitted settings on real kernels: a huge page pool of this machine, and a guest that uses it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import HANG, fetched, tool
from emitted import MIB, row, run
from nearfar import emit
from nearfar.errors import NearfarError
from nearfar.guest import Architecture, Finished, Guest, Hardware, Node
from test_emit import options_of
from test_emit_memory import row as program_row

POOL = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
#: With less than 512 MiB, the kernel turns transparent huge pages off, despite its parameters.
MEMORY = 640 * MIB
#: Prints a key and its values per line.
GUEST_SCRIPT = """
cd /sys/kernel/mm/transparent_hugepage
echo all $(cat enabled)
echo 64K $(cat hugepages-64kB/enabled)
head -c 16m /dev/zero | tail -c 16m >/dev/null
echo faults $(cat hugepages-64kB/stats/anon_fault_alloc)
echo 32K $(cat hugepages-32kB/enabled)
sh /work/sysfs.sh && echo 32K-after $(cat hugepages-32kB/enabled)
sh /work/sysfs-64.sh && echo 64K-after $(cat hugepages-64kB/enabled)
cd /sys/kernel/mm/hugepages/hugepages-2048kB
sh /work/hugetlb.sh && echo pool $(cat nr_hugepages)
sh /work/hugetlb.sh && echo pool-again $(cat nr_hugepages)
cd /sys/fs/cgroup
sh /work/cgroup.sh web || echo refused $?
echo +memory > cgroup.subtree_control
sh /work/cgroup.sh web && echo limits $(cat web/memory.high web/memory.max)
"""


@dataclass(frozen=True)
class Plain(Hardware):
    """A usual virtual machine, whose memory is given by ``-m`` alone."""

    def options(self, architecture: Architecture) -> list[str]:
        machine, processor = architecture.machine
        return ["-machine", machine, "-cpu", processor, "-m", f"{self.memory >> 20}M"]


def free_pages() -> int:
    return int((POOL / "free_hugepages").read_text())


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A mount of huge pages, with the pool that the emitted script reserves for a guest."""
    if os.geteuid() != 0 or not os.access(POOL / "nr_hugepages", os.W_OK):
        pytest.skip("may not reserve huge pages here")
    folder = tmp_path_factory.mktemp("hugepages")
    asked = row(2 * MIB, "thp", guest_memory_bytes=MEMORY)
    (mount,) = re.findall(r"^#   (mount .*)$", emit.emit("qemu", asked), re.M)
    before = (POOL / "nr_hugepages").read_text()
    try:
        done = run("sh", "-c", emit.emit("hugetlb", asked))
        if done.returncode:
            pytest.skip(f"this machine's memory has no such pages: {done.stderr.strip()}")
        assert free_pages() >= MEMORY // (2 * MIB)
        words = shlex.split(mount.replace("/dev/hugepages", str(folder)))
        if subprocess.run(words, capture_output=True, check=False).returncode:
            pytest.skip("may not mount here")
        try:
            yield folder
        finally:
            subprocess.run(["umount", folder], check=True)
    finally:
        (POOL / "nr_hugepages").write_text(before)


def skip_if_taken(said: str) -> None:
    """After a failed start of QEMU: skip if the shared pool has too few pages, else fail."""
    if "unable to map backing store" in said:
        pytest.skip("somebody else has taken huge pages from the pool")
    pytest.fail(said)


def options(folder: Path) -> list[str]:
    """The options for QEMU, with another mount of huge pages."""
    text = emit.emit("qemu", row(2 * MIB, "thp"))
    return options_of(text.replace("/dev/hugepages", str(folder)))


def test_a_pool_that_is_large_enough_does_not_grow(pool: Path) -> None:
    there = (POOL / "nr_hugepages").read_text()
    done = run("sh", "-c", emit.emit("hugetlb", row(2 * MIB, "thp")))
    assert (done.returncode, done.stderr) == (0, "")
    assert (POOL / "nr_hugepages").read_text() == there


def test_the_memory_of_a_guest_is_in_huge_pages(pool: Path) -> None:
    """Read from QEMU's smaps, before the guest's first instruction."""
    command = tool("qemu-system-x86_64", "qemu-system-x86")
    words = [command, "-S", "-display", "none", "-nodefaults", "-machine", "q35", "-m", "64M",
             "-monitor", "stdio", *options(pool)]  # fmt: skip
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(words, text=True, **pipes) as child:
        assert child.stdin and child.stdout and child.stderr
        child.stdin.write("info memdev\n")
        child.stdin.flush()
        shown = ""
        while "size:" not in shown:
            line = child.stdout.readline()
            if not line:
                skip_if_taken(child.stderr.read())
            shown += line
        smaps = Path(f"/proc/{child.pid}/smaps").read_text()
        said, _ = child.communicate("quit\n", timeout=HANG)
    assert "size:  67108864" in shown + said
    (mapping,) = re.findall(rf"{pool}/.*\n(?:.*\n)*?VmFlags:.*", smaps)
    assert "KernelPageSize:     2048 kB" in mapping and "Size:              65536 kB" in mapping


@pytest.fixture(scope="module")
def booted(pool: Path) -> tuple[Finished, int]:
    """A guest run with emitted settings, and the huge pages that it took."""
    fetched("x86_64")
    parameters = [emit.emit("kernel-cmdline", row(size, how)).strip()
                  for size, how in ((65536, "mthp"), (2 * MIB, "thp"))]  # fmt: skip
    files = {
        "work/sysfs.sh": emit.emit("sysfs", row(32768, "mthp")),
        "work/sysfs-64.sh": emit.emit("sysfs", row(65536, "mthp")),
        "work/hugetlb.sh": emit.emit("hugetlb", row(2 * MIB, "thp")),
        "work/cgroup.sh": emit.emit("cgroup", program_row()),
    }
    most, taken = free_pages(), []
    guest = Guest(
        "x86_64",
        hardware=Plain((Node(memory=MEMORY, cpus=1),)),
        parameters=parameters,
        qemu=options(pool),
    )
    try:
        finished = guest.run(
            ["sh", "-c", GUEST_SCRIPT],
            files={path: text.encode() for path, text in files.items()},
            stream=lambda _stream, _written: taken.append(most - free_pages()),
        )
    except NearfarError as error:
        skip_if_taken(str(error))
        raise
    return finished, max(taken)


@pytest.mark.long("a guest under TCG")
def test_a_guest_boots_with_emitted_settings(booted: tuple[Finished, int]) -> None:
    finished, taken = booted
    assert finished.exit_code == 0, finished.error
    said = dict(line.split(" ", 1) for line in finished.output.decode().splitlines())
    # Its kernel's parameters.
    assert said["all"] == "[always] madvise never"
    assert "[always]" in said["64K"] and int(said["faults"]) > 8 * MIB // 65536
    # Its sysfs: a size that was off is on, an allowed one stays.
    assert "[never]" in said["32K"] and "[madvise]" in said["32K-after"]
    assert said["64K-after"] == said["64K"]
    # Memory of a little more than 4 MiB, in pages of 2 MiB.
    assert (said["pool"], said["pool-again"]) == ("3", "3")
    # Its control groups, of version 2.
    assert said["limits"] == f"{101 * MIB} {500 * MIB}"
    assert said["refused"] == "1"
    assert b"web: write +memory to ../cgroup.subtree_control" in finished.error
    # Its memory on the host: that of kernel, files and script.
    assert 48 * MIB < taken * 2 * MIB <= MEMORY
