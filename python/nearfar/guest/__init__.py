"""Runs one command in a small Debian guest under QEMU, to test a given kernel on any host.

apt fetches the kernel and the packages from Debian into a cache folder. Processors are emulated
(TCG): no privileges are needed, every architecture runs on every host, and times are meaningless.

>>> print(Guest(packages=["python3-minimal"]).run(["python3", "-V"]).output)      # doctest: +SKIP
b'Python 3.11.2\\n'
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nearfar.errors import NearfarError
from nearfar.guest.archive import Archive
from nearfar.guest.boot import Run
from nearfar.guest.hardware import ARCHITECTURES, Architecture, Hardware, Link, Node
from nearfar.guest.kernel import Kernel, unpacked
from nearfar.guest.packages import Packages
from nearfar.output import check_output, claimed, commit
from nearfar.processes import terminate_as_interrupt
from nearfar.units import size

__all__ = ["ARCHITECTURES", "Finished", "Guest", "Hardware", "Link", "Node", "placed"]

#: The file in an output folder that records the command.
RECORD: Final = "guest.json"
#: The package of every guest: a shell and its tools, statically linked.
_BASE: Final = "busybox-static"
#: Memory that a kernel needs to boot and run a shell.
_KERNEL_BYTES: Final = 128 << 20
#: Version of the output of :func:`_write_root`; a change makes cached archives invalid.
_ROOT_VERSION: Final = "1"
_INIT: Final = Path(__file__).parent / "init.sh"
_ETC: Final = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost\n",
}
#: Parameters of every kernel. ``no_timer_check``: on a busy host the emulated timer may be so late
#: that the kernel takes it for broken.
_PARAMETERS: Final = (
    *("quiet", "panic=-1", "oops=panic", "mitigations=off", "no_timer_check"),
    # ramfs is not swapped out, and may use all memory.
    "rootfstype=ramfs",
)


@dataclass(frozen=True)
class Finished:
    """The outcome of a command in a guest.

    Attributes:
        exit_code: of the command; 128 + N if signal N ended it, as in a shell.
        output: its standard output.
        error: its standard error.
        console: messages of the kernel.
    """

    exit_code: int
    output: bytes
    error: bytes
    console: str


@dataclass(frozen=True)
class Guest:
    """The description of a guest, which can be booted any number of times.

    Attributes:
        architecture: one of :data:`ARCHITECTURES`, or ``auto`` for that of the host.
        hardware: processors and memory nodes.
        kernel: Debian package of the kernel, or a folder with an unpacked one; None for cloud
            kernel 6.12 or, if the release has none, its newest one.
        packages: Debian packages to install; their scripts do not run.
        modules: kernel modules to load, with their dependencies.
        zram: bytes of swap on zram; 0 for none.
        tasks: whether a capture distinguishes tasks, for which the guest sends it kernel symbols
            and BTF.
        icount: use instructions as the clock, each 2^icount ns; None for the host's clock.
        parameters: additional kernel parameters.
        qemu: additional options of QEMU.
        start: a command prefix for QEMU, such as ``taskset -c 1``.
    """

    architecture: str = "auto"
    hardware: Hardware = Hardware((Node(memory=512 << 20, cpus=1),))
    kernel: str | Path | None = None
    packages: Sequence[str] = ()
    modules: Sequence[str] = ()
    zram: int = 0
    tasks: bool = False
    icount: int | None = None
    parameters: Sequence[str] = ()
    qemu: Sequence[str] = ()
    start: Sequence[str] = ()

    def fetch(self) -> tuple[Kernel, Path]:
        """The kernel and the archive of the packages, from the cache or the network.

        Raises:
            NearfarError: they are not available (exit code 3).
        """
        architecture = self._architecture()
        packages = Packages(architecture.debian)
        if isinstance(self.kernel, Path):
            kernel = Kernel(self.kernel)
        else:
            names = [self.kernel] if self.kernel else architecture.kernels
            kernel = unpacked(packages.fetch_kernel(names))
        files = packages.fetch([_BASE, *self.packages])
        made_of = [_ROOT_VERSION, *(file.name for file in files)]
        digits = hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:16]
        root = packages.folder / f"root-{digits}.cpio"
        if not root.exists():
            _write_root(root, files)
        return kernel, root

    def run(
        self,
        command: Sequence[str],
        *,
        files: Mapping[str, Path | bytes] | None = None,
        out: str | os.PathLike[str] | None = None,
        force: bool = False,
        timeout: float | None = 600,
        stream: Callable[[str, bytes], None] = lambda _stream, _written: None,
    ) -> Finished:
        """Boot, run ``command`` in the folder ``/work``, and power off.

        Args:
            command: the program and its arguments. Its standard input is empty.
            files: files to copy into the guest, by their path there: a file or folder of the host,
                or the bytes of a program.
            out: folder for the files that the command writes to ``/out``; None to discard them.
            force: replace an existing folder.
            timeout: time limit of the command, seconds; None for no limit.
            stream: called with ``output`` or ``error`` and new bytes of that stream.

        Raises:
            NearfarError: QEMU, the kernel or a package is missing (exit code 3), or the guest did
                not finish (1).
        """
        if not command:
            raise NearfarError("guest: no command; put it after `--`")
        path = None if out is None else Path(out)
        if path is not None:
            check_output(path, force=force, holds=RECORD)
        architecture = self._architecture()
        options = self.hardware.options(architecture)
        if self.icount is not None:
            options += ["-icount", f"shift={self.icount},sleep=off"]
        with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="nearfar-") as scratch:
            archive = Path(scratch) / "archive"
            kernel = self.write(archive, command, files or {})
            run = Run(architecture, Path(scratch))
            code = run.run(
                kernel.image,
                archive,
                [*options, *self.qemu],
                self.kernel_parameters(),
                timeout=timeout,
                start=self.start,
                stream=stream,
            )
            if path is not None:
                with claimed(path, force=force, holds=RECORD) as temporary:
                    run.hand_back(temporary)
                    record = {"command": [*command], "exit_code": code, "kernel": kernel.release}
                    (temporary / RECORD).write_text(json.dumps(record) + "\n")
            return Finished(code, run.output("output"), run.output("error"), run.console())

    def kernel_parameters(self) -> list[str]:
        """All parameters of the kernel."""
        return [*_PARAMETERS, f"console={self._architecture().console}", *self.parameters]

    def write(
        self, archive: Path, command: Sequence[str], files: Mapping[str, Path | bytes]
    ) -> Kernel:
        """Write the initial file system, which runs ``command``, and return its kernel.

        Raises:
            NearfarError: the kernel or a package is missing (exit code 3), or the files do not fit
                into the memory.
        """
        kernel, root = self.fetch()
        with archive.open("wb") as file:
            with root.open("rb") as base:
                shutil.copyfileobj(base, file)
            self._add(Archive(file), kernel, command, files)
        self._check_room(archive.stat().st_size)
        return kernel

    def _architecture(self) -> Architecture:
        name = platform.machine() if self.architecture == "auto" else self.architecture
        if name not in ARCHITECTURES:
            raise NearfarError(f"guest: no architecture {name}; use {' or '.join(ARCHITECTURES)}")
        return ARCHITECTURES[name]

    def _add(
        self,
        archive: Archive,
        kernel: Kernel,
        command: Sequence[str],
        files: Mapping[str, Path | bytes],
    ) -> None:
        """Add the files that differ from run to run."""
        archive.file("init", _INIT.read_bytes(), 0o755)
        modules = [*self.modules, *(["zram"] if self.zram else [])]
        for number, (name, data) in enumerate(kernel.modules(modules)):
            archive.file(f"nearfar/modules/{number:02}-{name}.ko", data)
        settings = f"zram={self.zram or ''}\ntasks={'1' if self.tasks else ''}\n"
        archive.file("nearfar/settings", settings.encode())
        archive.file("nearfar/command", f"exec {shlex.join(command)}\n".encode())
        for path, source in files.items():
            if isinstance(source, bytes):
                archive.file(path, source, 0o755)
            else:
                archive.copy(path, source)
        archive.close()

    def _check_room(self, archive_bytes: int) -> None:
        """Check the memory, which holds both the archive and its files during unpacking."""
        memory, needed = self.hardware.memory, _KERNEL_BYTES + 2 * archive_bytes
        if memory < needed:
            why = f"the kernel and the files do not fit into {size(memory)} of memory"
            raise NearfarError(f"guest: {why}; give it at least {size(needed)}")


def placed(put: str) -> tuple[str, Path]:
    """The path in the guest of a file of the host, and the file; ``put`` is ``PATH[=GUEST]``."""
    source, _, place = put.partition("=")
    return place or f"/work/{Path(source).absolute().name}", Path(source)


def _write_root(root: Path, packages: Sequence[Path]) -> None:
    """Write an archive of packages, and of a few files that no package has."""
    with tempfile.TemporaryDirectory(prefix=".", dir=root.parent) as scratch:
        temporary = Path(scratch) / root.name
        with temporary.open("wb") as out:
            archive = Archive(out)
            archive.usr_links()
            archive.console_device()
            for package in packages:
                archive.package(package)
            for path, text in _ETC.items():
                archive.file(path, text.encode())
            archive.link("bin/sh", "busybox")
            archive.close()
        commit(temporary, root)
