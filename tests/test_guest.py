"""A guest boots, runs a command and returns its output files; every failure is one line.

Most tests boot no guest: ``cpio`` reads the archives, and a script stands in for apt.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Run, fetched, tool, until
from nearfar.errors import NearfarError
from nearfar.guest import ARCHITECTURES, Guest, Hardware, Link, Node
from nearfar.guest.archive import Archive
from nearfar.guest.kernel import Kernel
from nearfar.guest.packages import Packages
from nearfar.processes import running, terminate_as_interrupt

MIB = 1 << 20


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files; the test must leave no file in it and no process using it."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    assert not list(folder.iterdir())
    assert not running_in(folder)


def running_in(folder: Path) -> list[str]:
    """Command lines of processes that name the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if f"{folder}/" in words:
            found.append(words)
    return found


# --- guests that boot

#: Prints figures of the NUMA nodes; fills a control group of 12 MiB with 32 MiB and reads it back.
SWAPS = """
for node in 0 1; do
  cd /sys/devices/system/node/node$node
  echo node $node $(cat distance access0/initiators/read_latency access0/initiators/read_bandwidth)
done
head -c 32m /dev/urandom > /work/random
cd /sys/fs/cgroup; echo +memory > cgroup.subtree_control; mkdir small; cd small
echo 12M > memory.max
echo 0 > cgroup.procs
cat /work/random > /tmp/swapped
cmp /work/random /tmp/swapped && echo the same
grep pswpin /proc/vmstat
cat /work/given/text > /out/text; cp /work/tool /out; echo late > /out/.late
echo to standard error >&2
exit 7
"""


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory, nearfar: Run) -> tuple[Path, Run]:
    fetched("x86_64")
    return tmp_path_factory.mktemp("guest"), nearfar


def test_a_command_runs_with_two_nodes_and_swap(booted: tuple[Path, Run], scratch: Path) -> None:
    folder, nearfar = booted
    (folder / "given").mkdir()
    (folder / "given" / "text").write_text("from the host\n")
    given = folder / "tool"
    given.write_text("#!/bin/sh\n" + SWAPS)
    given.chmod(0o755)
    words = ["guest", "--arch", "x86_64", "--memory", "256M", "--far", "128M", "--zram", "128M"]
    words += ["--latency", "80ns,250ns", "--bandwidth", "100G,25G"]
    words += ["--put", folder / "given", "--put", given, "-o", folder / "out", "--", "./tool"]
    done = nearfar(*words)
    assert (done.returncode, done.stderr) == (7, "to standard error\n")
    lines = done.stdout.splitlines()
    assert lines[:2] == ["node 0 10 20 80 102400", "node 1 20 10 250 25600"]
    assert lines[2] == "the same"
    name, pages = lines[3].split()
    assert name == "pswpin" and int(pages) > (32 - 12) * MIB // 4096
    out = folder / "out"
    assert sorted(path.name for path in out.iterdir()) == [".late", "guest.json", "text", "tool"]
    assert (out / "text").read_text() == "from the host\n"
    assert os.access(out / "tool", os.X_OK) and not os.access(out / "text", os.X_OK)
    again = nearfar(*words)
    assert again.returncode == 2 and "exists already" in again.stderr


@pytest.mark.long("one more guest under TCG")
def test_a_command_that_hangs_is_ended(booted: tuple[Path, Run], scratch: Path) -> None:
    with pytest.raises(NearfarError, match="the command did not end within 1 s$") as caught:
        Guest("x86_64").run(["sleep", "100000"], timeout=1)
    assert caught.value.exit_code == 1


@pytest.mark.long("one more guest under TCG")
def test_a_kernel_panic_is_reported(booted: tuple[Path, Run], scratch: Path) -> None:
    with pytest.raises(NearfarError, match="its kernel panicked: sysrq triggered crash$"):
        Guest("x86_64").run(["sh", "-c", "echo c > /proc/sysrq-trigger"])


@pytest.mark.long("one more guest under TCG")
def test_sigterm_ends_qemu_and_removes_its_files(booted: tuple[Path, Run], scratch: Path) -> None:
    words = ["nearfar", "guest", "--arch", "x86_64", "--", "sleep", "100000"]
    command = [sys.executable, "-m", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        until(lambda: running_in(scratch), "QEMU")
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate()
    assert (child.returncode, said) == (130, "nearfar: error: interrupted\n")


def test_a_signal_that_arrives_while_a_program_starts_ends_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupted(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(command, **options))
        os.kill(os.getpid(), signal.SIGTERM)
        return started[0]

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        terminate_as_interrupt(),
        running(["sleep", "100000"]),
    ):
        pytest.fail("it was not interrupted")
    assert started[0].returncode == -signal.SIGTERM


@pytest.mark.long("one more guest under TCG")
def test_an_aarch64_guest_boots_with_a_clock_that_counts_instructions(scratch: Path) -> None:
    nodes = [Node(192 * MIB, cpus=2), Node(64 * MIB)]
    guest = Guest(fetched("aarch64"), Hardware(nodes), zram=64 * MIB, icount=1)
    look = "uname -m; nproc; cat /sys/devices/system/node/online; tail -n 1 /proc/swaps"
    done = guest.run(["sh", "-c", f"{look}; sleep 200; cut -d. -f1 /proc/uptime"])
    assert done.exit_code == 0
    machine, cores, online, swap, uptime = done.output.decode().splitlines()
    assert (machine, cores, online) == ("aarch64", "2", "0-1")
    # Guest time: sleep advances the instruction clock, without real waiting.
    assert int(uptime) >= 200
    assert swap.split()[:3] == ["/dev/zram0", "partition", str((64 << 10) - 4)]


# --- without a guest


def test_impossible_hardware_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(256 * MIB, cpus=1)
    for guest, said in (
        (Guest("sparc"), "no architecture sparc; use x86_64 or aarch64"),
        (Guest("x86_64", Hardware([Node(MIB)])), "processors on node 0"),
        (Guest("x86_64", Hardware([node, Node(MIB, 2)])), "same number of processors on each node"),
        (
            Guest("x86_64", Hardware([node, Node(MIB, 1, 1), Node(MIB, 1, 1)])),
            "on each socket",
        ),
        (
            Guest("aarch64", Hardware([node], links={(0, 0): Link(80)})),
            "cannot report latencies to Linux; leave the latencies out or use x86_64",
        ),
    ):
        with pytest.raises(NearfarError, match=said) as caught:
            guest.run(["true"])
        assert caught.value.exit_code == 2
    with pytest.raises(NearfarError, match="no command"):
        Guest("x86_64").run([])


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is first in PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def pretended(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty kernel, and the path for a script in place of QEMU."""
    modules = tmp_path / "kernel" / "lib" / "modules" / "6.12"
    (modules / "kernel").mkdir(parents=True)
    (modules / "modules.builtin").write_text("kernel/lib/built-in.ko\n")
    (tmp_path / "kernel" / "boot").mkdir()
    (tmp_path / "kernel" / "boot" / "vmlinuz-6.12").touch()
    root = tmp_path / "root.cpio"
    root.touch()
    monkeypatch.setattr(Guest, "fetch", lambda _: (Kernel(tmp_path / "kernel"), root))
    return programs / "qemu-system-x86_64"


#: Enters the folder of the serial ports' files, found in QEMU's command line.
#: It starts no process, which could outlive the script.
ENTER_FOLDER = 'for word; do case $word in file:*) word=${word#file:}; cd "${word%/*}"; esac; done'


@pytest.mark.parametrize(
    ("does", "said", "code"),
    [
        ("echo 'qemu: no such thing' >&2; exit 1", "guest: qemu: no such thing", 3),
        ("echo 'nearfar: no swap on zram' > console", "guest: no swap on zram", 1),
        (
            "echo '[ 0.1] Kernel panic - not syncing: VFS: no root' > console",
            "guest: its kernel panicked: VFS: no root",
            1,
        ),
        (
            "printf 'Initramfs unpacking failed\\n Kernel panic - not syncing: x\\n' > console",
            "guest: its files do not fit into its memory; give it more",
            1,
        ),
        (
            "printf 'begin\\nexit 0\\n' > result; printf 'one\\r\\ntwo\\r\\n' > console",
            "guest: ended before the command; give it more memory; last console line: two",
            1,
        ),
        (
            "printf 'begin\\nexit 0\\nend\\n' > result; tar -cf - result | head -c 700 > files",
            "guest: its output files are cut off; check the free space",
            1,
        ),
        ("exec sleep 1000", "guest: did not boot within 0 s; last console line: nothing", 1),
    ],
)
def test_a_guest_that_fails_is_one_line(
    does: str,
    said: str,
    code: int,
    pretended: Path,
    scratch: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if does.startswith("exec"):
        monkeypatch.setattr("nearfar.guest.boot.BOOT_SECONDS", 0.0)
    script(pretended, f"{ENTER_FOLDER}\n{does}")
    with pytest.raises(NearfarError) as caught:
        Guest("x86_64").run(["true"], out=tmp_path / "out")
    assert (str(caught.value), caught.value.exit_code) == (said, code)
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]


def test_a_wrapper_command_may_start_qemu(pretended: Path, scratch: Path, tmp_path: Path) -> None:
    script(
        pretended,
        f"{ENTER_FOLDER}\nprintf 'begin\\nexit 4\\nend\\n' > result; echo ran >> {tmp_path}/seen",
    )
    first = ("sh", "-c", f'echo first > {tmp_path}/seen; exec "$@"', "sh")
    assert Guest("x86_64", start=first).run(["true"]).exit_code == 4
    assert (tmp_path / "seen").read_text() == "first\nran\n"


def test_a_node_may_have_no_memory() -> None:
    words = Hardware([Node(256 * MIB, 1), Node(0)]).options(ARCHITECTURES["x86_64"])
    assert "node,nodeid=0,memdev=m0" in words and "node,nodeid=1" in words
    assert not any("id=m1" in word for word in words)


def test_without_qemu_the_package_is_named(
    pretended: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(pretended.parent))
    with pytest.raises(NearfarError, match="apt-get install qemu-system-x86$") as caught:
        Guest("x86_64").run(["true"])
    assert caught.value.exit_code == 3


def test_files_that_do_not_fit_are_refused(pretended: Path, scratch: Path) -> None:
    with pytest.raises(NearfarError, match="do not fit into 256 MiB of memory; .* 328 MiB"):
        Guest("x86_64", Hardware([Node(256 * MIB, 1)])).run(
            ["true"], files={"big": bytes(100 * MIB)}
        )


def test_modules_come_after_their_dependencies(tmp_path: Path, pretended: Path) -> None:
    kernel, _ = Guest("x86_64").fetch()
    folder = kernel.folder / "lib" / "modules" / "6.12" / "kernel"
    for name, needs in (("a-b", "c,built-in"), ("c", "d"), ("d", ""), ("e", "c")):
        (folder / f"{name}.ko").write_bytes(b"x\0depends=%s\0y" % needs.encode())
    assert [name for name, _ in kernel.modules(["a_b", "e"])] == ["d", "c", "a_b", "e"]
    with pytest.raises(NearfarError, match="6.12 has no module f"):
        kernel.modules(["f"])
    with pytest.raises(NearfarError, match="has no kernel"):
        Kernel(tmp_path / "programs").modules([])


# --- archives


def listed(path: Path) -> dict[str, list[str]]:
    """The listing of an archive by ``cpio``, by name."""
    tool("cpio", "cpio")
    with path.open("rb") as data:
        done = subprocess.run(
            ["cpio", "-itv", "--quiet"], stdin=data, capture_output=True, check=True, text=True
        )
    # A device has two numbers in place of a size.
    rows = (line.replace(",", " ").split() for line in done.stdout.splitlines())
    return {" ".join(row[8 + (row[0][0] == "c") :]): row for row in rows}


def test_a_package_is_unpacked_for_a_merged_usr(tmp_path: Path) -> None:
    tool("dpkg-deb", "dpkg")
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(
        "Package: foo\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b>\nDescription: foo\n"
    )
    (tree / "bin").mkdir()
    script(tree / "bin" / "foo", "exit 0")
    (tree / "bin" / "same").hardlink_to(tree / "bin" / "foo")
    (tree / "usr" / "share").mkdir(parents=True)
    (tree / "usr" / "share" / "link").symlink_to("../x")
    package = tmp_path / "foo.deb"
    subprocess.run(["dpkg-deb", "--build", tree, package], check=True, capture_output=True)
    with (tmp_path / "cpio").open("wb") as out:
        archive = Archive(out)
        archive.usr_links()
        archive.console_device()
        archive.package(package)
        archive.link("bin/sh", "foo")
        archive.link("bin/foo", "never: it is there")
        archive.close()
    found = listed(tmp_path / "cpio")
    assert found["bin -> usr/bin"] and found["usr/bin/sh -> foo"]
    assert found["dev/console"][0] == "crw-------"
    assert found["usr/share/link -> ../x"][2:4] == ["root", "root"]
    # The package decides which of two hard links of a file comes first.
    names = {name for name in found if name.startswith("usr/bin/") and name != "usr/bin/sh -> foo"}
    assert names in (
        {"usr/bin/foo", "usr/bin/same -> /usr/bin/foo"},
        {"usr/bin/same", "usr/bin/foo -> /usr/bin/same"},
    )
    package.write_bytes(package.read_bytes()[:300])
    with (tmp_path / "cpio").open("wb") as out, pytest.raises(NearfarError, match="remove it"):
        Archive(out).package(package)


def test_a_folder_of_the_host_is_copied(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_bytes(b"12345")
    (folder / "round").symlink_to(".")
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "cpio").open("wb") as out:
        archive = Archive(out)
        archive.copy("/work/folder", folder)
        with pytest.raises(NearfarError, match="pipe: no such file or folder"):
            archive.copy("/pipe", tmp_path / "pipe")
        archive.close()
    found = listed(tmp_path / "cpio")
    assert found["work/folder/deep/file"][4] == "5"
    names = ["", "/folder", "/folder/deep", "/folder/deep/file", "/folder/round -> ."]
    assert list(found) == [f"work{name}" for name in names]


# --- packages

#: An apt with the two packages in the folder `mirror`; it logs its arguments to the file `asked`.
APT = """
cd {mirror} && echo "$@" >> asked
case " $* " in
*" update "*) ;;
*" --print-uris "*no-such*) echo "E: Unable to locate package no-such" >&2; exit 100 ;;
*" --print-uris "*)
  for file in *.deb; do
    set -- $(sha256sum "$file")
    echo "'http://mirror/$file' $file $(stat -c %s "$file") SHA256:$1"
  done ;;
*" download "*) cd "$OLDPWD" && cp {mirror}/*.deb . ;;
esac
"""


@pytest.fixture
def mirror(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "mirror"
    folder.mkdir()
    (folder / "foo_1%3a2-3_amd64.deb").write_bytes(b"foo" * 1000)
    (folder / "bar_1_all.deb").write_bytes(b"bar")
    script(programs / "apt-get", APT.format(mirror=shlex.quote(str(folder))))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def apt_calls(mirror: Path) -> list[str]:
    """The arguments of apt's calls; clears the log."""
    path = mirror / "asked"
    words = [line.rpartition("status ")[2] for line in path.read_text().splitlines()]
    path.write_text("")
    return [line.rpartition("/cache ")[2] for line in words]


def test_packages_are_fetched_once(mirror: Path) -> None:
    files = Packages("amd64").fetch(["foo"])
    assert [path.name for path in files] == ["bar_1_all.deb", "foo_1%3a2-3_amd64.deb"]
    assert files[1].read_bytes() == b"foo" * 1000
    assert apt_calls(mirror) == [
        "update",
        "--print-uris -y --no-install-recommends install foo",
        "download bar=1 foo:amd64=1:2-3",
    ]
    assert Packages("amd64").fetch(["foo"]) == files
    assert apt_calls(mirror) == []


def test_a_kernel_may_be_a_folder(mirror: Path, tmp_path: Path) -> None:
    (tmp_path / "built" / "boot").mkdir(parents=True)
    (tmp_path / "built" / "boot" / "vmlinuz-6.12-ours").touch()
    # apt is called only for the packages, which cannot be unpacked here.
    guest = Guest("x86_64", kernel=tmp_path / "built", packages=["foo"])
    with pytest.raises(NearfarError, match="remove it"):
        guest.fetch()
    assert not [line for line in apt_calls(mirror) if "linux" in line]
    assert Kernel(tmp_path / "built").release == "6.12-ours"


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "record"])
def test_a_damaged_package_is_fetched_again(mirror: Path, damage: str) -> None:
    (first, second) = Packages("amd64").fetch(["foo"])
    apt_calls(mirror)
    if damage == "cut":
        second.write_bytes(second.read_bytes()[:-1])
    elif damage == "changed":
        second.write_bytes(b"f00" + second.read_bytes()[3:])
    elif damage == "gone":
        second.unlink()
    else:
        next(first.parent.parent.glob("set-*.json")).write_text(json.dumps([{"file": 1}]))
    assert Packages("amd64").fetch(["foo"]) == [first, second]
    assert second.read_bytes() == b"foo" * 1000
    again = apt_calls(mirror)
    # An undamaged package is not fetched again.
    assert again[2:] == ([] if damage == "record" else ["download foo:amd64=1:2-3"])


def test_a_package_that_differs_from_apts_list_is_not_used(mirror: Path, programs: Path) -> None:
    apt = programs / "apt-get"
    apt.write_text(apt.read_text() + 'case " $* " in *" download "*) echo >> bar_1_all.deb; esac\n')
    with pytest.raises(NearfarError, match="bar_1_all.deb: differs from apt") as caught:
        Packages("amd64").fetch(["foo"])
    assert caught.value.exit_code == 3
    assert not list((mirror.parent / "cache").rglob("*.deb"))


def test_an_unknown_package_is_an_error_that_names_it(mirror: Path) -> None:
    with pytest.raises(NearfarError, match="Unable to locate package no-such$"):
        Packages("amd64").fetch(["no-such"])


def test_a_missing_apt_is_an_error(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(mirror))
    with pytest.raises(NearfarError, match="apt-get is not installed; use Debian") as caught:
        Packages("amd64").fetch(["foo"])
    assert caught.value.exit_code == 3


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(NearfarError, match="set XDG_CACHE_HOME"):
        Packages("amd64").fetch(["foo"])
