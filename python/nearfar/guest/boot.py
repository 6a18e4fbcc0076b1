"""Runs QEMU, and collects the outputs of a guest or the reason of its failure."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path, PurePosixPath
from typing import Final, NoReturn

from nearfar.errors import NearfarError
from nearfar.guest.hardware import Architecture
from nearfar.guest.packages import program
from nearfar.processes import running

#: Time limit of the boot, seconds; long, because the host may be busy.
BOOT_SECONDS: Final = 900.0
#: Seconds between polls of a guest.
_PAUSE: Final = 0.05
#: Serial ports of the guest, each a file of the host: the command's streams, its progress, and an
#: archive of its output files.
_STREAMS: Final = ("output", "error")
_PORTS: Final = (*_STREAMS, "result", "files")
#: Patterns of failures on the console, causes before consequences, and their explanations.
_FAILURES: Final = (
    (r"(?m)^nearfar: (.*)$", "{}"),
    (r"Initramfs unpacking failed", "its files do not fit into its memory; give it more"),
    (r"Kernel panic - not syncing: (.*)", "its kernel panicked: {}"),
)


class Run:
    """One run of QEMU, with its files in a temporary folder."""

    def __init__(self, architecture: Architecture, folder: Path) -> None:
        """Set paths only; :meth:`run` starts QEMU."""
        self._architecture, self._folder = architecture, folder

    def run(
        self,
        image: Path,
        archive: Path,
        options: Sequence[str],
        parameters: Sequence[str],
        *,
        start: Sequence[str],
        timeout: float | None,
        stream: Callable[[str, bytes], None],
    ) -> int:
        """Boot, wait for the end, and return the command's exit code.

        Args:
            image: the kernel.
            archive: its initial file system.
            options: of QEMU, for the hardware.
            parameters: of the kernel.
            start: a command prefix for QEMU, such as ``taskset -c 1``.
            timeout: time limit of the command, seconds; None for no limit.
            stream: called with ``output`` or ``error`` and new bytes of that stream.

        Raises:
            NearfarError: QEMU is missing or failed (exit code 3), or the guest did not finish (1).
        """
        # Emulation (tcg) needs no access to /dev/kvm.
        words = [*start, program(*self._architecture.qemu), "-no-user-config", "-nodefaults"]
        words += [*options, "-accel", "tcg", "-display", "none", "-no-reboot"]
        words += ["-serial", f"file:{self._folder / 'console'}", "-device", "virtio-serial-pci"]
        for name in _PORTS:
            words += ["-chardev", f"file,id={name},path={self._folder / name}"]
            words += ["-device", f"virtserialport,chardev={name},name={name}"]
        words += ["-kernel", str(image), "-initrd", str(archive), "-append", " ".join(parameters)]
        for name in ("console", "qemu", *_PORTS):
            (self._folder / name).touch()
        with (
            (self._folder / "qemu").open("wb") as errors,
            running(words, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors) as child,
        ):
            self._wait(child, timeout, stream)
        return self._exit_code(child.returncode)

    def output(self, name: str) -> bytes:
        """The command's ``output`` or ``error``."""
        return (self._folder / name).read_bytes()

    def console(self) -> str:
        """The output of the kernel and of the first process."""
        text = (self._folder / "console").read_text(encoding="utf-8", errors="replace")
        return text.replace("\r", "")

    def hand_back(self, out: Path) -> None:
        """Extract the guest's output files into ``out``, a new folder.

        Raises:
            NearfarError: they are incomplete (exit code 1).
        """
        archive = self._folder / "files"
        try:
            # An archive ends with two empty blocks.
            with archive.open("rb") as data:
                data.seek(max(0, archive.stat().st_size - 1024))
                if data.read() != bytes(1024):
                    raise tarfile.TarError("no end")
            with tarfile.open(archive) as tar:
                for member in tar:
                    _write(tar, member, out / PurePosixPath("/", member.name).relative_to("/"))
        except tarfile.TarError:
            why = "its output files are cut off; check the free space"
            raise NearfarError(f"guest: {why}", 1) from None

    def _wait(
        self,
        child: subprocess.Popen[bytes],
        timeout: float | None,
        stream: Callable[[str, bytes], None],
    ) -> None:
        """Wait until QEMU has ended, and forward the command's output."""
        booted, since = False, time.monotonic()
        with ExitStack() as stack:
            streams = {
                name: stack.enter_context((self._folder / name).open("rb")) for name in _STREAMS
            }
            while True:
                ended = child.poll() is not None
                for name, file in streams.items():
                    if written := file.read():
                        stream(name, written)
                if ended:
                    return
                now = time.monotonic()
                if not booted and (self._folder / "result").stat().st_size:
                    booted, since = True, now
                if booted and timeout is not None and now - since > timeout:
                    raise NearfarError(f"guest: the command did not end within {timeout:g} s", 1)
                if not booted and now - since > BOOT_SECONDS:
                    self._fail(f"did not boot within {BOOT_SECONDS:g} s")
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_PAUSE)

    def _exit_code(self, status: int) -> int:
        """The command's exit code, if the guest finished."""
        if status != 0:
            lines = (self._folder / "qemu").read_text(errors="replace").strip().splitlines()
            why = lines[-1] if lines else f"ended with {status}"
            raise NearfarError(f"guest: {why}", 3)
        # init.sh writes "begin" and "exit CODE" and, once it has sent the output files, "end".
        lines = self.output("result").decode(errors="replace").splitlines()
        if lines[-1:] != ["end"]:
            self._fail("ended before the command; give it more memory")
        return int(lines[1].removeprefix("exit "))

    def _fail(self, how: str) -> NoReturn:
        """Raise the error of a guest that did not finish."""
        console = self.console()
        for pattern, why in _FAILURES:
            if match := re.search(pattern, console):
                raise NearfarError(f"guest: {why.format(*match.groups())}", 1)
        last = console.strip().splitlines()[-1:] or ["nothing"]
        raise NearfarError(f"guest: {how}; last console line: {last[0]}", 1)


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    """Extract a file or folder of a guest's archive; other members are skipped."""
    if ".." in path.parts:
        raise tarfile.TarError(member.name)
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
    elif member.isfile() and (data := tar.extractfile(member)):
        with path.open("wb") as file:
            shutil.copyfileobj(data, file)
        path.chmod(member.mode & 0o777)
