"""Emitters of a page size: real tools accept the output; sizes a tool cannot set are refused."""

from __future__ import annotations

import re
import shlex
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from conftest import HANG, tool
from emitted import MIB, command_of, played, row, run
from nearfar import emit
from nearfar.advise.architectures import ARCHITECTURES
from nearfar.errors import NearfarError

SIZES = [(size.page_bytes, size.mechanism) for size in ARCHITECTURES["x86-64"]]
LARGE = [(size, how) for size, how in SIZES if size >= 2 * MIB]
#: Emitters of a page size; those of placement are tested in test_numa_emit.py.
PAGES = emit.names("settable_page_bytes")
#: Emitters for programs on a machine, tested in test_emit_memory.py.
PROGRAMS = sorted({*emit.names("peak_bytes"), *emit.names("swapped_bytes"), *emit.names("regions")})
THP = Path("/sys/kernel/mm/transparent_hugepage")
#: A realistic domain with settings that must stay.
DOMAIN = """
<domain type='test'>
  <name>web</name>
  <uuid>6695eb01-f6a4-8304-79aa-97f2502e193e</uuid>
  <memory unit='KiB'>8388608</memory>
  <currentMemory unit='KiB'>2097152</currentMemory>
  <memoryBacking>{backing}<nosharepages/><locked/></memoryBacking>
  <vcpu>2</vcpu>
  <os><type arch='x86_64'>hvm</type></os>
  <devices>
    <disk type='file' device='disk'>
      <source file='/guest/web.img'/>
      <target dev='vda' bus='virtio'/>
    </disk>
  </devices>
</domain>
"""


def text_of(name: str, size: int, mechanism: str) -> str | None:
    """The output of an emitter; None if it refuses with advice on what to do instead."""
    try:
        return emit.emit(name, row(size, mechanism))
    except NearfarError as error:
        assert "--emit sysfs" in str(error) or "nothing to reserve" in str(error)
        return None


def test_every_emitter_is_documented_and_ends_its_lines() -> None:
    for name in emit.names():
        module = emit.emitter(name)
        assert module.SUMMARY and module.SUFFIX.startswith(".")
        for word in ("Sets:", "Cannot:", "Do not use:"):
            assert word in module.__doc__, f"{name} does not say: {word}"
    for name in PAGES:
        texts = [text for size, how in SIZES if (text := text_of(name, size, how))]
        # hugetlb sets 2M and 1G, libvirt and QEMU also the base page, the others all sizes.
        assert len(texts) == (2 if name == "hugetlb" else 3 if name in ("libvirt", "qemu") else 10)
        assert all(text.endswith("\n") for text in texts)


def test_the_docs_have_a_row_for_every_emitter() -> None:
    page = (Path(__file__).parents[1] / "docs" / "apply.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| kind \| makes .*\n.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    pages, programs, placement = (
        re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE) for table in tables
    )
    assert sorted(pages) == PAGES and sorted(programs) == PROGRAMS
    assert sorted(placement) == emit.names("nodes")
    assert sorted(pages + programs + placement) == emit.names()


# --- libvirt


@pytest.fixture
def domain(tmp_path: Path) -> str:
    """A URI of libvirt with the domain ``web``."""
    node = tmp_path / "node.xml"
    node.write_text(f"<node>{DOMAIN.format(backing='')}</node>")
    return f"test://{node}"


def edited(uri: str, script: str) -> list[ET.Element]:
    """The domain after each command of a script."""
    done = run("sh", "-c", script, "sh", "web", "--print-xml", LIBVIRT_DEFAULT_URI=uri)
    assert done.returncode == 0, done.stderr
    return [ET.fromstring(one) for one in re.findall(r"<domain.*?</domain>", done.stdout, re.S)]


def same(one: ET.Element, other: ET.Element) -> bool:
    """Whether two elements are equal but for white space and the order of attributes."""

    def plain(element: ET.Element) -> object:
        text = (element.text or "").strip()
        return element.tag, text, sorted(element.items()), [plain(child) for child in element]

    return plain(one) == plain(other)


@pytest.mark.parametrize(("size", "mechanism"), LARGE)
def test_virt_xml_sets_the_pages_and_keeps_the_rest(
    tmp_path: Path, domain: str, size: int, mechanism: str
) -> None:
    tool("virt-xml", "virtinst")
    check = tool("virt-xml-validate", "libvirt-clients")
    tool("xmllint", "libxml2-utils")
    before = run("virt-xml", "--connect", domain, "web", "--edit", "--vcpus", "2", "--print-xml")
    old = ET.fromstring(before.stdout)
    script = emit.emit("libvirt", row(size, mechanism))
    (new,) = edited(domain, script)
    path = tmp_path / "new.xml"
    path.write_bytes(ET.tostring(new))
    done = run(check, path, "domain")
    assert done.returncode == 0, done.stdout + done.stderr
    backing = new.find("memoryBacking")
    assert backing is not None
    (page,) = backing.findall("hugepages/page")
    assert page.attrib == {"size": str(size // 1024), "unit": "KiB"}
    # The fragment for merging by hand is equal.
    fragment = ET.fromstring("".join(re.findall(r"^#   (.*)$", script, re.M)))
    pages = backing.find("hugepages")
    assert pages is not None and same(fragment[0], pages)
    backing.remove(pages)
    assert same(new, old), "nothing else has changed"
    assert old.findtext("memory") == "8388608"


def test_virt_xml_changes_existing_pages(tmp_path: Path) -> None:
    tool("virt-xml", "virtinst")
    node = tmp_path / "node.xml"
    there = "<hugepages><page size='1' unit='GiB'/></hugepages>"
    node.write_text(f"<node>{DOMAIN.format(backing=there)}</node>")
    (new,) = edited(f"test://{node}", emit.emit("libvirt", row(2 * MIB, "thp")))
    (page,) = new.findall("memoryBacking/hugepages/page")
    assert page.attrib == {"size": "2048", "unit": "KiB"}


def test_virt_xml_sets_an_advised_guest_memory(domain: str) -> None:
    tool("virt-xml", "virtinst")
    for size, how, memory in (
        (65536, "mthp", 768),
        (2 * MIB, "thp", 768),
        (1 << 30, "hugetlb", 1024),
    ):
        script = emit.emit("libvirt", row(size, how, guest_memory_bytes=768 * MIB))
        new = edited(domain, script)[-1]
        for name in ("memory", "currentMemory"):
            element = new.find(name)
            assert element is not None and element.get("unit") == "KiB"
            assert element.text == str(memory * 1024)
        assert script.count("virt-xml ") == (1 if size < 2 * MIB else 2)


def test_virt_xml_redefines_the_domain(domain: str) -> None:
    tool("virt-xml", "virtinst")
    script = emit.emit("libvirt", row(2 * MIB, "thp"))
    done = run("sh", "-c", script, LIBVIRT_DEFAULT_URI=domain)
    assert done.returncode == 0 and "defined successfully" in done.stdout, done.stderr
    other = run("sh", "-c", script, "sh", "other", LIBVIRT_DEFAULT_URI=domain)
    assert other.returncode != 0 and "other" in other.stderr
    wrong = script.replace("page0.size", "page0.sice")
    assert run("sh", "-c", wrong, LIBVIRT_DEFAULT_URI=domain).returncode != 0


def test_the_base_page_leaves_nothing_to_set() -> None:
    for name in ("libvirt", "qemu"):
        text = emit.emit(name, row(4096, "base"))
        assert "nothing to set" in text
        assert not [line for line in text.splitlines() if line not in (":", "set -eu") and
                    not line.startswith("#")]  # fmt: skip


# --- QEMU


def options_of(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return [word for line in lines for word in shlex.split(line)]


@pytest.mark.parametrize("guest", [None, 768 * MIB])
@pytest.mark.parametrize(("size", "mechanism"), LARGE)
def test_qemu_accepts_the_options_after_a_guests_own(
    tmp_path: Path, size: int, mechanism: str, guest: int | None
) -> None:
    """With a folder in place of the mount of huge pages; test_emit_guest.py has a real one."""
    command = tool("qemu-system-x86_64", "qemu-system-x86")
    emitted = options_of(emit.emit("qemu", row(size, mechanism, guest_memory_bytes=guest)))
    assert emitted[0] == "-mem-path" and emitted[1].startswith("/dev/hugepages")
    emitted[1] = str(tmp_path)
    own = ["-S", "-display", "none", "-nodefaults", "-machine", "q35", "-m", "96M"]

    def start(words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [command, *own, "-monitor", "stdio", *words],
            input="info memdev\nqom-get /objects/pc.ram mem-path\ninfo memory_size_summary\nquit\n",
            capture_output=True, text=True, timeout=HANG, check=False,
        )  # fmt: skip

    done = start(emitted)
    assert done.returncode == 0, done.stderr
    assert "memory backend: pc.ram" in done.stdout or "memory backend: ram" in done.stdout
    memory = 96 * MIB if guest is None else max(guest, size)
    assert f"base memory: {memory}" in done.stdout, done.stdout
    # QEMU refuses the options if the command line has a memory backend, as the emitter documents.
    more = ["-object", "memory-backend-ram,id=m,size=96M", "-machine", "memory-backend=m"]
    assert start([*more, *emitted]).returncode != 0


# --- sysfs, systemd, hugetlb: on a folder; on a kernel in test_emit_guest.py


def thp_folder(root: Path, size: int, own: str, global_switch: str) -> Path:
    """Write a page size's switch and the global one; returns the former."""
    file = root / str(THP).lstrip("/") / f"hugepages-{size // 1024}kB" / "enabled"
    file.parent.mkdir(parents=True)
    file.write_text(own + "\n")
    (file.parents[1] / "enabled").write_text(global_switch + "\n")
    return file


def started(root: Path, text: str) -> None:
    """Run a script, or the start command of a unit."""
    lines = command_of(text, "ExecStart") if "[Unit]" in text else text
    done = played(root, lines, RUNTIME_DIRECTORY=str(root))
    assert done.returncode == 0, done.stderr


def stopped(root: Path, text: str) -> bool:
    """Run the stop command of a unit; false for a script."""
    if "[Unit]" not in text:
        return False
    stop = command_of(text, "ExecStop")
    assert played(root, stop, RUNTIME_DIRECTORY=str(root)).returncode == 0
    return True


NEVER = "always inherit madvise [never]"
INHERIT = "always [inherit] madvise never"


@pytest.mark.parametrize(
    ("own", "global_switch", "after"),
    [
        (NEVER, "always [madvise] never", "madvise"),
        (INHERIT, "always madvise [never]", "madvise"),
        (INHERIT, "[always] madvise never", INHERIT),
        ("[always] inherit madvise never", "always madvise [never]",
         "[always] inherit madvise never"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["sysfs", "systemd"])
def test_transparent_pages_are_allowed_where_they_are_off(
    tmp_path: Path, kind: str, own: str, global_switch: str, after: str
) -> None:
    file = thp_folder(tmp_path, 65536, own, global_switch)
    text = emit.emit(kind, row(65536, "mthp"))
    started(tmp_path, text)
    assert file.read_text() == after + "\n"
    if stopped(tmp_path, text):
        words = own.replace("[", " [ ").replace("]", " ] ").split()
        assert file.read_text() == words[words.index("[") + 1] + "\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[always] madvise never", "madvise"),
        ("always [madvise] never", "always [madvise] never"),
        ("always madvise [never]", "always madvise [never]"),
    ],
)
@pytest.mark.parametrize("kind", ["sysfs", "systemd"])
def test_4_kib_sets_always_to_madvise(tmp_path: Path, kind: str, before: str, after: str) -> None:
    file = thp_folder(tmp_path, 65536, INHERIT, before).parents[1] / "enabled"
    text = emit.emit(kind, row(4096, "base"))
    started(tmp_path, text)
    assert file.read_text() == after + "\n"
    if stopped(tmp_path, text):
        assert f"[{file.read_text().strip()}]" in before


def pool_folder(root: Path, pages: int, free: int, reserved: int) -> Path:
    folder = root / "sys/kernel/mm/hugepages/hugepages-2048kB"
    folder.mkdir(parents=True)
    for name, value in (("nr", pages), ("free", free), ("resv", reserved)):
        (folder / f"{name}_hugepages").write_text(f"{value}\n")
    return folder / "nr_hugepages"


@pytest.mark.parametrize(
    ("there", "after"), [((0, 0, 0), 3), ((10, 1, 0), 12), ((10, 5, 4), 12), ((10, 5, 1), 10)]
)
def test_the_pool_grows_by_what_is_not_free(
    tmp_path: Path, there: tuple[int, int, int], after: int
) -> None:
    """A folder allocates no pages, so the script fails after it has grown the pool."""
    file = pool_folder(tmp_path, *there)
    done = played(tmp_path, emit.emit("hugetlb", row(2 * MIB, "thp")))
    assert int(file.read_text()) == after
    if after > there[0]:
        free = there[1] - there[2]
        says = f"only {free} of 3 huge pages of 2M are free; reserve them at boot\n"
        assert (done.returncode, done.stderr) == (1, says)
    else:
        assert (done.returncode, done.stderr) == (0, "")


def test_a_host_has_one_pool_per_page_size_for_all_vms() -> None:
    rows = [row(2 * MIB, "thp", vm="a"), row(2 * MIB, "thp", vm="b"), row(65536, "mthp", vm="c"),
            row(1 << 30, "hugetlb", vm="d", guest_memory_bytes=3 << 30)]  # fmt: skip
    text = emit.emit_host("hugetlb", "/etc/my machine.toml", rows)
    assert "hugepagesz=2M hugepages=6 hugepagesz=1G hugepages=3" in text
    assert text.count("pool=/sys") == 2 and "_etc_my_machine.toml" in text
    alone = "Sized for the programs only"
    assert alone not in text and alone in emit.emit("hugetlb", rows[0])
    with pytest.raises(NearfarError, match="h: no VM has pages of 2M or 1G; nothing to reserve"):
        emit.emit_host("hugetlb", "h", rows[2:3])


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
    paths = re.findall(r"^(?:file|pool)=(\S+)$", text, re.M)
    assert len(paths) == 1
    for path in map(Path, paths):
        if mechanism == "hugetlb":
            if not path.exists():
                pytest.skip(f"this kernel has no {path}")
            assert all((path / f"{name}_hugepages").exists() for name in ("nr", "free", "resv"))
        else:
            if not list(THP.glob("hugepages-*kB")):
                pytest.skip("this kernel has no multi-size THP (Linux 6.8 and later)")
            # The kernel lists the words that it accepts, with the chosen one in brackets.
            assert "madvise" in path.read_text().replace("[", " ").replace("]", " ").split()


def test_kernel_parameters_are_spelt_as_in_linux_6_12() -> None:
    """By Documentation/admin-guide/kernel-parameters.txt."""
    emitted = {size: emit.emit("kernel-cmdline", row(size, how)).strip() for size, how in SIZES}
    # Not `never`, which would deny large pages to programs that call madvise.
    assert emitted[4096] == "transparent_hugepage=madvise"
    assert emitted[16384] == "thp_anon=16K:always"
    assert emitted[MIB] == "thp_anon=1M:always"
    assert emitted[2 * MIB] == "transparent_hugepage=always thp_anon=2M:always"
    assert emitted[1024 * MIB] == "hugepagesz=1G hugepages=1"
    guest = row(1024 * MIB, "hugetlb", guest_memory_bytes=5 << 30)
    assert emit.emit("kernel-cmdline", guest) == "hugepagesz=1G hugepages=1\n", "its program"


def test_a_size_that_a_tool_cannot_set_is_refused() -> None:
    for name in PAGES:
        with pytest.raises(NearfarError, match="CONFIG_ARM64_64K_PAGES"):
            emit.emit(name, row(65536, "granule", arch="aarch64"))
    for name, tool_name in (("libvirt", "libvirt"), ("qemu", "QEMU"), ("hugetlb", "hugetlbfs")):
        says = f"web: {tool_name} cannot set pages of 64K; set them on the host: --emit sysfs$"
        with pytest.raises(NearfarError, match=says):
            emit.emit(name, row(65536, "mthp"))


def test_hostile_vm_names_inject_nothing() -> None:
    hostile = "-a'; touch x; <b> %h\n--> & $(id) \u2028ExecStart=/bin/false"
    for name in PAGES:
        text = emit.emit(name, row(2 * MIB, "thp", vm=hostile))
        assert text.count("\n") == emit.emit(name, row(2 * MIB, "thp")).count("\n")
        assert "%h" not in text and "touch x" not in text and "$(id)" not in text
    assert re.fullmatch(r"_[A-Za-z0-9._-]+", emit.safe_name(hostile))
    assert [emit.safe_name(name) for name in ("", "..", "-x", "a-b.c")] == [
        "_",
        "_.",
        "_x",
        "a-b.c",
    ]
    assert emit.file_name("qemu", hostile) == emit.safe_name(hostile) + ".args"


def test_unknown_emitters_and_missing_columns_are_errors() -> None:
    with pytest.raises(NearfarError, match="did you mean libvirt"):
        emit.emit("libvrit", row(4096, "base"))
    with pytest.raises(NearfarError, match="needs mechanism, which this study does not compute"):
        emit.emit("sysfs", {**row(4096, "base"), "mechanism": None})
