"""Emitters for programs: limits of memory, size of swap, huge pages by mapping."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capturing import needs_cc
from conftest import DATA, Run, fetched, tool
from emitted import MIB, played, run
from nearfar import emit
from nearfar.errors import NearfarError
from nearfar.guest.packages import Packages
from nearfar.size import size

GRAPH = DATA / "captures" / "graph.trace"
CGROUP = Path("/sys/fs/cgroup")
#: Folder of the memory controller, and its files of the two limits, by version of control groups.
V1 = (CGROUP / "memory", ("memory.soft_limit_in_bytes", "memory.limit_in_bytes"))
V2 = (CGROUP, ("memory.high", "memory.max"))


def row(**more: Any) -> dict[str, Any]:
    return {
        "vm": "web",
        "storage": "zram",
        "memory_bytes": 100 * MIB,
        "peak_bytes": 400 * MIB,
        "high_bytes": 100 * MIB + 1,
        "max_bytes": 500 * MIB,
        "no_limit": None,
        "swapped_bytes": 300 * MIB,
        "zram_bytes": 150 * MIB,
        **more,
    }


def settings(text: str) -> dict[str, str]:
    """``KEY=VALUE`` lines, with or without spaces."""
    return dict(re.findall(r"^([\w-]+) ?= ?(.*)$", text, re.M))


# --- limits


def test_limits_are_rounded_up_to_mib() -> None:
    found = settings(emit.emit("systemd-memory", row()))
    assert found == {"MemoryHigh": "101M", "MemoryMax": "500M"}
    script = emit.emit("cgroup", row())
    assert f"echo {101 * MIB} > memory.high" in script
    assert f"echo {500 * MIB} > memory.max" in script


def test_systemd_accepts_the_drop_in(tmp_path: Path) -> None:
    command = tool("systemd-analyze", "systemd")
    folder = tmp_path / "etc/systemd/system/web.service.d"
    folder.mkdir(parents=True)
    unit = folder.with_suffix("")
    unit.write_text("[Service]\nExecStart=/bin/true\nMemoryMax=1G\n")
    (folder / "memory.conf").write_text(emit.emit("systemd-memory", row()))
    done = run(command, "verify", unit)
    assert done.returncode == 0 and not done.stderr, done.stderr
    shown = run(command, f"--root={tmp_path}", "cat-config", "systemd/system/web.service")
    last = {"MemoryHigh": "101M", "MemoryMax": "500M"}
    assert settings(shown.stdout) == {"ExecStart": "/bin/true", **last}, shown.stdout
    (folder / "memory.conf").write_text(emit.emit("systemd-memory", row()).replace("500M", "5oM"))
    done = run(command, "verify", unit)
    assert "Invalid memory limit '5oM'" in done.stderr


@pytest.fixture
def group() -> Iterator[tuple[str, Path]]:
    """Name and folder of a control group that may be made below that of this process."""
    parent, _ = V1 if V1[0].joinpath("memory.limit_in_bytes").exists() else V2
    controller = r"\d+:[\w,]*\bmemory\b[\w,]*:(.*)" if parent is V1[0] else r"0::(.*)"
    own = re.search(controller, Path("/proc/self/cgroup").read_text())
    name = f"{(own[1] if own else '').strip('/')}/nearfar-{os.getpid()}".strip("/")
    folder = parent / name
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"may not make a control group: {error.strerror}")
    folder.rmdir()
    yield name, folder
    if folder.is_dir():
        folder.rmdir()


def test_the_kernel_accepts_the_limits(group: tuple[str, Path]) -> None:
    name, folder = group
    done = run("sh", "-c", emit.emit("cgroup", row()), "sh", name)
    if "write +memory" in done.stderr:
        pytest.skip("the control group of this process does not hand on the memory controller")
    assert done.returncode == 0, done.stderr
    _, files = V1 if folder.is_relative_to(V1[0]) else V2
    read = [int((folder / file).read_text()) for file in files]
    assert read == [101 * MIB, 500 * MIB]
    # An existing group is changed.
    again = run("sh", "-c", emit.emit("cgroup", row(max_bytes=250 * MIB)), "sh", name)
    assert again.returncode == 0 and int((folder / files[1]).read_text()) == 250 * MIB


@pytest.mark.parametrize("version", [1, 2])
def test_limits_work_in_both_versions_of_control_groups(tmp_path: Path, version: int) -> None:
    root, files = V1 if version == 1 else V2
    folder = tmp_path / str(root / "web").lstrip("/")
    folder.mkdir(parents=True)
    if version == 1:
        (folder.parent / "memory.limit_in_bytes").touch()
    script = emit.emit("cgroup", row())
    done = played(tmp_path, script)
    if version == 2:
        # The parent group has not enabled the controller for its children.
        assert done.returncode == 1 and "write +memory to ../cgroup.subtree_control" in done.stderr
        (folder / "memory.high").touch()
        done = played(tmp_path, script)
    assert done.returncode == 0, done.stderr
    written = {path.name: path.read_text() for path in folder.iterdir()}
    assert written == dict(zip(files, (f"{101 * MIB}\n", f"{500 * MIB}\n"), strict=True))


# --- swap


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Debian's zram-generator, only unpacked, since once installed it sets up swap at boot."""
    folder = tmp_path_factory.mktemp("zram-generator")
    fetched("x86_64")
    # fetch_kernel fetches a package without its dependencies.
    package = Packages("amd64").fetch_kernel(["systemd-zram-generator"])
    subprocess.run([tool("dpkg-deb", "dpkg"), "-x", package, folder], check=True)
    return folder / "lib/systemd/system-generators/zram-generator"


def generated(generator: Path, root: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run the generator on a root that has a configuration and the emitted one."""
    etc, out = root / "etc/systemd/zram-generator.conf.d", root / "out"
    for folder in (etc, out, root / "proc"):
        folder.mkdir(parents=True, exist_ok=True)
    (root / "proc/meminfo").write_text("MemTotal:       16000000 kB\n")
    (root / "etc/systemd/zram-generator.conf").write_text("[zram0]\nswap-priority = 55\n")
    (etc / "nearfar.conf").write_text(text)
    return run(generator, out, out, out, ZRAM_GENERATOR_ROOT=str(root))


def test_zram_generator_makes_the_swap(generator: Path, tmp_path: Path) -> None:
    text = emit.emit("zram-generator", row())
    assert settings(text) == {"zram-size": "300", "compression-algorithm": "zstd"}
    done = generated(generator, tmp_path, text)
    assert done.returncode == 0, done.stderr
    swap = (tmp_path / "out/dev-zram0.swap").read_text()
    assert "What=/dev/zram0" in swap and "Priority=55" in swap, "the configuration stays"
    wrong = generated(generator, tmp_path, text.replace("= 300", "= ramm"))
    assert wrong.returncode != 0 and "zram-size" in wrong.stderr


def test_the_swap_of_a_host_is_the_sum_of_swapped_bytes() -> None:
    def size(*rows: dict[str, Any]) -> str:
        return settings(emit.emit_host("zram-generator", "host", rows))["zram-size"]

    assert size(row()) == "300"
    assert size(row(), row(swapped_bytes=MIB - 1)) == "301"
    with pytest.raises(NearfarError, match="web: needs all of its private memory"):
        emit.emit("zram-generator", row(swapped_bytes=0))


def test_without_swap_only_the_maximum_is_set() -> None:
    bare = row(high_bytes=None)
    assert settings(emit.emit("systemd-memory", bare)) == {"MemoryMax": "500M"}
    script = emit.emit("cgroup", bare)
    assert "memory.max" in script and "> memory.high" not in script
    with pytest.raises(NearfarError, match="web: no limit is advised: not recorded: its end"):
        emit.emit("cgroup", row(max_bytes=None, no_limit="not recorded: its end"))


def test_size_prints_an_emitters_output(nearfar: Run, tmp_path: Path) -> None:
    from test_size import whole

    trace = whole(GRAPH, tmp_path)
    (found,) = size(trace, machine="nvme", swap="zram").rows
    words = ("size", trace, "--machine", "nvme", "--swap", "zram", "--emit")
    for kind in ("systemd-memory", "cgroup", "docker", "kubernetes"):
        done = nearfar(*words, kind)
        assert (done.returncode, done.stdout) == (0, emit.emit(kind, found)), done.stderr


# --- mappings


def region(name: str, page_bytes: int, saved: float, added: int, advised: bool) -> dict[str, Any]:
    return {"name": name, "page_bytes": page_bytes, "saved_ns": saved, "saved_share": saved / 100,
            "added_bytes": added, "advised": advised}  # fmt: skip


def regions(*, heap: bool = True) -> list[dict[str, Any]]:
    return [
        region("[heap]", 4096, 0, 0, not heap),
        region("[heap]", 65536, 9, MIB, False),
        region("[heap]", 2 * MIB, 10, 4 * MIB, heap),
        region("(anonymous) 0x7f00", 4096, 0, 0, False),
        region("(anonymous) 0x7f00", 65536, 5, 0, True),
        region("(anonymous) 0x7f00", 2 * MIB, 3, 9 * MIB, False),
        region("/lib/x */ system(1);\n.so", 4096, 0, 0, False),
        region("/lib/x */ system(1);\n.so", 65536, 1, 0, True),
        region("/lib/x */ system(1);\n.so", 2 * MIB, 1, 0, False),
        region("[stack]", 4096, 0, 0, True),
    ]


def test_the_advised_page_size_of_each_mapping_is_listed() -> None:
    text = emit.emit("madvise", {"vm": "web", "regions": regions()})
    table = re.findall(r"^# +(\S+) +([\d.]+ %) +(\S+ \S+)  (.*)$", text, re.M)
    assert table == [
        ("2M", "10 %", "4 MiB", "[heap]"),
        ("64K", "5 %", "0 B", "(anonymous) 0x7f00"),
        ("64K", "1 %", "0 B", "/lib/x ? system(1);?.so"),
    ]
    assert "4K                   1 other region" in text
    # Heap and anonymous mapping: 64 KiB saves 9 + 5 %, 2 MiB 10 + 3 %.
    assert "With 64K for every region that can use madvise: gain 14 %, adds 1 MiB." in text
    assert "hugepages-64kB/enabled" in text and "hugepages-2048kB" not in text
    assert text.count("MADV_HUGEPAGE") == 1
    text = emit.emit("madvise", {"vm": "web", "regions": regions(heap=False)})
    assert "GLIBC_TUNABLES" not in text and 'exec "$@"' in text
    none = [one for one in regions(heap=False) if one["name"] in ("[heap]", "[stack]")]
    text = emit.emit("madvise", {"vm": "web", "regions": none})
    assert "No region gains from" in text and "prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);" in text


FLAGS = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#ifndef PR_THP_DISABLE_EXCEPT_ADVISED
#define PR_THP_DISABLE_EXCEPT_ADVISED 2
#endif
/* Print the VmFlags of the mapping of an address. */
static void flags(const char *what, void *at) {
  FILE *f = fopen("/proc/self/smaps", "r"); char line[4096]; int in = 0; unsigned long a, b;
  while (fgets(line, sizeof line, f)) {
    if (sscanf(line, "%lx-%lx ", &a, &b) == 2) in = a <= (unsigned long)at && (unsigned long)at < b;
    if (in && !strncmp(line, "VmFlags:", 8)) printf("%s %s", what, line);
  }
  fclose(f);
}
int main(void) {
  size_t length = 8 << 20;
  char *heap = malloc(1000), *plain, *start;
  plain = mmap(0, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  start = mmap(0, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  LINES
  flags("heap", heap); flags("plain", plain); flags("start", start);
  printf("disabled %d\n", prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0));
  return 0;
}
"""


@needs_cc
@pytest.mark.parametrize("advised", [False, True])
def test_only_advised_mappings_have_the_huge_page_flag(tmp_path: Path, advised: bool) -> None:
    text = emit.emit("madvise", {"vm": "web", "regions": regions()})
    lines = re.findall(r"^#   ((?:madvise|prctl)\(.*)$", text, re.M)
    assert len(lines) == 2
    program = tmp_path / "program"
    source = FLAGS.replace("LINES", "\n".join(lines) if advised else "")
    done = subprocess.run(["cc", "-x", "c", "-o", program, "-"], input=source, text=True,
                          capture_output=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    wrapper = tmp_path / "wrapper.sh"
    wrapper.write_text(text)
    shown = run(*(["sh", wrapper] if advised else []), program).stdout
    found = {line.split()[0]: line.split()[1:] for line in shown.splitlines()}
    modes = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not modes.exists():
        pytest.skip("this kernel has no transparent huge pages")
    assert ("hg" in found["start"]) == advised
    assert "hg" not in found["plain"]
    if "[madvise]" in modes.read_text() and glibc() >= (2, 35):
        assert ("hg" in found["heap"]) == advised
    if advised and kernel() >= (6, 18):
        assert found["disabled"] == ["3"], "disabled, except where advised"


def glibc() -> tuple[int, ...]:
    return numbers(os.confstr("CS_GNU_LIBC_VERSION") or "0")


def kernel() -> tuple[int, ...]:
    return numbers(os.uname().release)


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:2]))


def test_hostile_names_inject_nothing() -> None:
    hostile = "-a'; touch x; <b> %h\n--> & $(id) \u2028ExecStart=/bin/false"
    for name in ("systemd-memory", "cgroup", "docker", "kubernetes", "zram-generator", "madvise"):
        known = row(regions=regions())
        text = emit.emit(name, {**known, "vm": hostile, "storage": hostile})
        assert len(text.splitlines()) == len(emit.emit(name, known).splitlines())
        code = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        assert not re.search(r"touch x|%h|\$\(id\)|/bin/false", code)
