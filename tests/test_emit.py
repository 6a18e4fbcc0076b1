"""Emitters: what they make is put to the real tools; what they cannot express they refuse."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from conftest import HANG, tool
from nearfar import emit
from nearfar.advise.architectures import ARCHITECTURES
from nearfar.errors import NearfarError

MIB = 1024 * 1024
SIZES = [(size.page_bytes, size.mechanism) for size in ARCHITECTURES["x86-64"]]
#: Emitters of a page size; those of placement are tested in test_numa_emit.py.
PAGES = emit.names("settable_page_bytes")
THP = Path("/sys/kernel/mm/transparent_hugepage")


def row(size: int, mechanism: str, **more: Any) -> dict[str, Any]:
    return {
        "vm": "web",
        "advised_page_bytes": size,
        "settable_page_bytes": size,
        "mechanism": mechanism,
        "memory_bytes": 5 * MIB + 12345,
        "arch": "x86-64",
        **more,
    }


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=HANG, check=False
    )


def test_every_emitter_keeps_the_contract() -> None:
    for name in emit.names():
        module = emit.emitter(name)
        assert module.SUMMARY and module.SUFFIX.startswith(".")
        for word in ("Sets:", "Cannot:", "Do not use:"):
            assert word in module.__doc__, f"{name} does not say: {word}"
    for name in PAGES:
        for size, mechanism in SIZES:
            text = emit.emit(name, row(size, mechanism))
            assert text.endswith("\n") and text == emit.emit(name, row(size, mechanism))


def test_the_docs_have_a_row_for_every_emitter() -> None:
    page = (Path(__file__).parents[1] / "docs" / "emit.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| kind \| makes .*\n.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    pages, placement = (re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE) for table in tables)
    assert sorted(pages) == PAGES and sorted(placement) == emit.names("nodes")
    assert sorted(pages + placement) == emit.names()


@pytest.mark.parametrize(("size", "mechanism"), SIZES)
def test_libvirt_validates_the_domain(tmp_path: Path, size: int, mechanism: str) -> None:
    command = tool("virt-xml-validate", "libvirt-clients")
    tool("xmllint", "libxml2-utils")
    for arch in ("x86-64", "aarch64"):
        path = tmp_path / f"{arch}.xml"
        path.write_text(emit.emit("libvirt", row(size, mechanism, arch=arch)))
        done = run(command, path, "domain")
        assert done.returncode == 0, done.stdout + done.stderr
        pages = re.search(r"<page size='(\d+)' unit='KiB'/>", path.read_text())
        assert (pages is not None) == (size >= 2 * MIB)
        memory = re.search(r"<memory unit='KiB'>(\d+)<", path.read_text())
        assert memory is not None and int(memory[1]) * 1024 >= 5 * MIB + 12345
        if pages:
            assert int(pages[1]) * 1024 == size
            assert int(memory[1]) * 1024 % size == 0, "whole huge pages"
        elif mechanism == "mthp":
            assert "libvirt cannot set" in path.read_text()


def test_libvirt_would_refuse_another_domain(tmp_path: Path) -> None:
    """The check can fail: a unit that libvirt does not know."""
    command = tool("virt-xml-validate", "libvirt-clients")
    path = tmp_path / "bad.xml"
    path.write_text(emit.emit("libvirt", row(2 * MIB, "thp")).replace("unit='KiB'/", "unit='oz'/"))
    assert run(command, path, "domain").returncode != 0


@pytest.mark.parametrize(("size", "mechanism"), SIZES)
def test_qemu_accepts_the_options(size: int, mechanism: str) -> None:
    command = tool("qemu-system-x86_64", "qemu-system-x86")
    text = emit.emit("qemu", row(size, mechanism))
    options = [word for line in text.splitlines() if not line.startswith("#")
               for word in shlex.split(line)]  # fmt: skip
    # Huge pages need not be there for the test: QEMU then maps them without reserving any.
    options = [f"{word},reserve=off" if "hugetlb=on" in word else word for word in options]

    def start(words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [command, "-S", "-display", "none", "-nodefaults", "-monitor", "stdio", *words],
            input="info memdev\nquit\n", capture_output=True, text=True, timeout=HANG, check=False,
        )  # fmt: skip

    done = start(options)
    assert done.returncode == 0, done.stderr
    assert "memory backend: ram0" in done.stdout
    wrong = [word.replace("memory-backend", "memory-behind") for word in options]
    assert start(wrong).returncode != 0


@pytest.mark.parametrize(("size", "mechanism"), SIZES)
def test_systemd_verifies_the_unit(tmp_path: Path, size: int, mechanism: str) -> None:
    command = tool("systemd-analyze", "systemd")
    path = tmp_path / "pages.service"
    path.write_text(emit.emit("systemd", row(size, mechanism)))
    done = run(command, "verify", path)
    assert done.returncode == 0 and not done.stderr, done.stderr
    path.write_text(path.read_text().replace("Type=oneshot", "Type=onceshot"))
    done = run(command, "verify", path)
    assert done.returncode != 0 or done.stderr


@pytest.mark.parametrize(("size", "mechanism"), SIZES)
def test_sysfs_paths_are_those_of_the_running_kernel(size: int, mechanism: str) -> None:
    text = emit.emit("sysfs", row(size, mechanism))
    assert run("sh", "-n", "-c", text).returncode == 0
    lines = re.findall(r"^echo (\S+) > (\S+)$", text, re.M)
    assert len(lines) == (0 if mechanism == "base" else 1)
    for value, path in lines:
        if mechanism in ("mthp", "thp"):
            if not list(THP.glob("hugepages-*kB")):
                pytest.skip("this kernel has no multi-size THP (Linux 6.8 and later)")
            # The kernel lists what it takes, the present one in brackets.
            assert value in Path(path).read_text().replace("[", " ").replace("]", " ").split()
        else:
            if not Path(path).exists():
                pytest.skip(f"this kernel has no {path}")
            assert int(value) * size >= 5 * MIB and int(Path(path).read_text()) >= 0


def test_kernel_parameters() -> None:
    """As Documentation/admin-guide/kernel-parameters.txt of Linux 6.12 spells them."""
    answer = {size: emit.emit("kernel-cmdline", row(size, how)).strip() for size, how in SIZES}
    assert answer[4096] == "transparent_hugepage=never"
    assert answer[16384] == "thp_anon=16K:always"
    assert answer[MIB] == "thp_anon=1M:always"
    assert answer[2 * MIB] == "transparent_hugepage=always"
    assert answer[1024 * MIB] == "hugepagesz=1G hugepages=1"


def test_a_base_page_of_another_kernel_is_refused() -> None:
    for name in PAGES:
        with pytest.raises(NearfarError, match="CONFIG_ARM64_64K_PAGES"):
            emit.emit(name, row(65536, "granule", arch="aarch64"))


def test_names_mean_nothing_to_any_tool(tmp_path: Path) -> None:
    hostile = "a'; touch x; <b> %h\n--> & \u2028ExecStart=/bin/false"
    for name in PAGES:
        answer = emit.emit(name, row(2 * MIB, "thp", vm=hostile))
        assert answer.count("\n") == emit.emit(name, row(2 * MIB, "thp")).count("\n")
        assert "%h" not in answer and "touch x" not in answer
        assert re.fullmatch(r"[A-Za-z0-9._-]+", emit.file_name(name, row(4096, "base", vm=hostile)))


def test_unknown_emitters_and_lacking_keys_are_errors() -> None:
    with pytest.raises(NearfarError, match="did you mean libvirt"):
        emit.emit("libvrit", row(4096, "base"))
    with pytest.raises(NearfarError, match="needs mechanism, which this study does not give"):
        emit.emit("sysfs", {**row(4096, "base"), "mechanism": None})
