"""Captures of whole virtual machines, whose records have guest-physical addresses."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from capturing import info, records
from conftest import Run, fetched, refused, tool
from nearfar import capture
from nearfar.guest import Guest

#: Stores to pages, some across the border to the next page, and prints their physical addresses.
TOUCH = r"""
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <fcntl.h>
#include <unistd.h>

enum { PAGES = 16, WORD = 8 };

int main(void) {
    char *memory = mmap(0, (PAGES + 1) * 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int page = 0; page <= PAGES; page++) *(volatile char *)(memory + page * 4096) = 1;
    int map = open("/proc/self/pagemap", O_RDONLY);
    for (int page = 0; page < PAGES; page++) {
        for (int i = 0; i < 10000 + 100 * page; i++)
            *(volatile uint64_t *)(memory + page * 4096 + i % 500 * WORD) = i;
        for (int i = 0; i < 1000; i++)
            *(volatile uint64_t *)(memory + page * 4096 + 4096 - 3) = i;
        uint64_t entry = 0;
        if (pread(map, &entry, 8, (uintptr_t)(memory + page * 4096) / 4096 * 8) != 8) return 1;
        printf("page %d at %llx\n", page, (unsigned long long)(entry & ((1ull << 55) - 1)) << 12);
    }
    return 0;
}
"""
PAGES = 16


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program above, statically linked."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "touch.c").write_text(TOUCH)
    command = [tool("cc", "gcc"), "-O1", "-static", "-o", "touch", "touch.c"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "touch"


@pytest.fixture(scope="module")
def recorded(
    nearfar: Run, program: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """The trace of a machine with memory below and above the PCI hole, and its console output."""
    fetched("x86_64")
    trace = tmp_path_factory.mktemp("vm") / "vm.trace"
    done = nearfar(
        *("capture", "--vm-image", "debian", "--arch", "x86_64", "--memory", "3G", "--cpus", "2"),
        "--by-task",
        *("--put", program, "-o", trace, "--", "sh", "-c", "/work/touch; exit 3"),
    )
    assert done.returncode == 0, done.stderr
    assert "the program exited with status 3" in done.stderr
    return trace, done.stdout


def stores_of(trace: Path) -> Counter[int]:
    """Stores by page, of the program only, since other tasks may use the same page."""
    threads = info(trace)["threads"]
    own = [one["index"] for one in threads if one.get("name", "").startswith("touch ")]
    table = records(trace)
    made = pc.and_(pc.equal(table["kind"], "store"), pc.is_in(table["thread"], pa.array(own)))
    return Counter((table["addr"].filter(made).to_numpy() // 4096 * 4096).tolist())


def test_records_have_the_physical_addresses_of_the_guest(recorded: tuple[Path, str]) -> None:
    """Stores that cross into a page count for it too."""
    trace, console = recorded
    places = [int(at, 16) for at in re.findall(r"^page \d+ at ([0-9a-f]+)", console, re.M)]
    assert len(places) == PAGES
    assert max(places) >= 1 << 32, "none is above the hole"
    stores = stores_of(trace)
    for page, place in enumerate(places):
        crossing = 1000 if page == 0 else 2000
        assert stores[place] == 1 + 10_000 + 100 * page + crossing, page


def test_kernel_and_program_have_different_kinds(recorded: tuple[Path, str]) -> None:
    trace, _ = recorded
    kinds = info(trace)["records_by_kind"]
    assert set(kinds) == {
        *("load", "store", "fetch", "kernel-load", "kernel-store", "kernel-fetch")
    }
    assert 0.05 < kinds["kernel-fetch"] / (kinds["fetch"] + kinds["kernel-fetch"]) < 0.95


def test_references_have_a_task(recorded: tuple[Path, str]) -> None:
    """Except those before the first task switch of each processor."""
    trace, _ = recorded
    names = {thread["index"]: thread.get("name", "") for thread in info(trace)["threads"]}
    assert {name.split()[0] for name in names.values() if name} >= {"touch", "sh"}
    table = records(trace)
    # Records of 4 KiB stand for memory that was touched before recording began.
    made = table.filter(pc.less(table["size"], 4096))
    counts = Counter(made["thread"].to_pylist())
    assert sum(count for index, count in counts.items() if names[index]) > 0.9 * len(made)
    stores = made["thread"].filter(pc.equal(made["kind"], "store"))
    assert {names[index].split()[0] for index in pc.unique(stores).to_pylist()} >= {"touch", "sh"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--memory", "1G", "--", "true"], "--memory: is for virtual machines"),
        (["--vm", "none.qcow2"], "none.qcow2: cannot read"),
        (["--vm", "none.qcow2", "--", "true"], "--vm: no COMMAND is possible with"),
        (["--vm-image", "debian"], "command: is empty"),
        (["--vm-image", "debian", "--memory", "1M", "--", "true"], "at least"),
        (["--vm", "a", "--start", "never"], "'never' is not a start condition"),
        (["--vm", "a", "--arch", "aarch64"], "an aarch64 machine needs a kernel"),
        (["--vm", "a", "--initrd", "b"], "--initrd: needs a kernel"),
        (["--vm", "a", "--vm-image", "debian", "--", "true"], "--vm"),
    ],
)
def test_bad_options_are_an_error_of_one_line(nearfar: Run, words: list[str], why: str) -> None:
    refused(nearfar("capture", *words), why)


@pytest.mark.long("one more guest under TCG")
@pytest.mark.parametrize(
    ("options", "command", "why"),
    [
        ([], "echo c >/proc/sysrq-trigger", "panicked: sysrq triggered crash"),
        ([], "poweroff -f", "the virtual machine ended before the guest wrote `stop`"),
        (["--start", "console:never", "--boot-timeout", "3s"], "true", "did not begin within 3 s"),
    ],
)
def test_a_machine_that_fails_leaves_an_incomplete_trace_with_the_reason(
    nearfar: Run, tmp_path: Path, options: list[str], command: str, why: str
) -> None:
    fetched("x86_64")
    trace = tmp_path / "vm.trace"
    done = nearfar(
        "capture", "--vm-image", "debian", *options, "-o", trace, "--", "sh", "-c", command
    )
    assert done.returncode == 1
    assert why in done.stderr.splitlines()[-1] and why in info(trace)["incomplete_reason"]


@pytest.mark.long("one more guest under TCG")
def test_a_disk_image_is_read_and_not_written(tmp_path: Path) -> None:
    """The user gives kernel and initrd, and a marker of the guest starts the recording."""
    fetched("x86_64")
    disk, archive = tmp_path / "disk.img", tmp_path / "initrd"
    disk.write_bytes(b"mark" * (1 << 18))
    guest = Guest("x86_64", modules=["virtio_blk"])
    script = "head -c 8 /dev/vda; echo; echo changed >/dev/vda; sync; exit 5"
    kernel = guest.write(archive, ["sh", "-c", script], {})
    outcome = capture.run(
        [],
        tmp_path / "vm.trace",
        vm=str(disk),
        kernel=str(kernel.image),
        initrd=str(archive),
        append=" ".join(guest.kernel_parameters()),
        start="marker",
    )
    assert outcome.complete and outcome.exit_code == 5
    assert disk.read_bytes() == b"mark" * (1 << 18)


@pytest.mark.long("one more guest under TCG")
def test_an_aarch64_machine_is_recorded(nearfar: Run, tmp_path: Path) -> None:
    """Its RAM begins at 1 GiB."""
    fetched("aarch64")
    trace = tmp_path / "vm.trace"
    options = ("--vm-image", "debian", "--arch", "aarch64", "--by-task")
    done = nearfar("capture", *options, "-o", trace, "--", "sh", "-c", "seq 1000 | wc -l")
    assert done.returncode == 0 and "1000" in done.stdout
    table = records(trace)
    low, high = pc.min_max(table["addr"]).as_py().values()
    assert low >= 1 << 30 and high < (1 << 30) + (512 << 20)
    assert any(thread.get("name", "").startswith("sh ") for thread in info(trace)["threads"])


@pytest.mark.long("one more guest under TCG")
def test_a_sample_of_a_machine_has_all_references_to_its_pages(
    nearfar: Run, program: Path, tmp_path: Path
) -> None:
    fetched("x86_64")
    trace = tmp_path / "vm.trace"
    options = ("--vm-image", "debian", "--by-task", "--sample", "25%", "--put", program)
    done = nearfar("capture", *options, "-o", trace, "--", "/work/touch")
    assert done.returncode == 0, done.stderr
    stores = stores_of(trace)
    places = [int(at, 16) for at in re.findall(r"^page \d+ at ([0-9a-f]+)", done.stdout, re.M)]
    whole = [1 + 10_000 + 100 * page + (1000 if page == 0 else 2000) for page in range(PAGES)]
    counts = [stores[place] for place in places]
    # Sampled pages may have more, because the task may have used them at its start.
    more = [count - expected for count, expected in zip(counts, whole, strict=True)]
    assert 0 < sum(0 <= each < 500 for each in more) < PAGES
    assert max(more) < 500
