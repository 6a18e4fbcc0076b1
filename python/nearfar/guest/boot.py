"""QEMU from its start to its end: what a guest hands back, and why one did not."""

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

#: Seconds until a guest has run nothing yet that are too many, however busy the host is.
BOOT_SECONDS: Final = 900.0
#: Seconds between two looks at a guest.
_PAUSE: Final = 0.05
#: Serial ports of the guest, each a file of the host: the command's streams, how far it is, and an
#: archive of the files that are handed back.
_STREAMS: Final = ("output", "error")
_PORTS: Final = (*_STREAMS, "result", "files")
#: What a console says of a failure, the cause before what follows from it; and what that means.
_FAILURES: Final = (
    (r"(?m)^nearfar: (.*)$", "{}"),
    (r"Initramfs unpacking failed", "its files do not fit into its memory; give it more"),
    (r"Kernel panic - not syncing: (.*)", "its kernel panicked: {}"),
)


class Run:
    """One run of QEMU in a folder of its own."""

    def __init__(self, architecture: Architecture, folder: Path) -> None:
        """Nothing is started before :meth:`run`."""
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
        """Boot, wait for the end, answer the command's exit code.

        Args:
            image: the kernel.
            archive: its first file system.
            options: QEMU's, for the hardware.
            parameters: the kernel's.
            start: words before QEMU's.
            timeout: seconds that the command may take; None for no limit.
            stream: called with ``output`` or ``error`` and what the command wrote there since.

        Raises:
            NearfarError: there is no QEMU, or it did not come to its end (exit code 3).
        """
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
        """All that the command wrote to a stream, ``output`` or ``error``."""
        return (self._folder / name).read_bytes()

    def console(self) -> str:
        """What the kernel and the first process wrote."""
        text = (self._folder / "console").read_text(encoding="utf-8", errors="replace")
        return text.replace("\r", "")

    def hand_back(self, out: Path) -> None:
        """Write the files and folders that the guest handed back below ``out``, a new folder.

        Raises:
            NearfarError: they are not all there (exit code 1).
        """
        archive = self._folder / "files"
        try:
            # Two empty blocks are the end of an archive.
            with archive.open("rb") as data:
                data.seek(max(0, archive.stat().st_size - 1024))
                if data.read() != bytes(1024):
                    raise tarfile.TarError("no end")
            with tarfile.open(archive) as tar:
                for member in tar:
                    _write(tar, member, out / PurePosixPath("/", member.name).relative_to("/"))
        except tarfile.TarError:
            why = "what it handed back is cut off; check the free space"
            raise NearfarError(f"guest: {why}", 1) from None

    def _wait(
        self,
        child: subprocess.Popen[bytes],
        timeout: float | None,
        stream: Callable[[str, bytes], None],
    ) -> None:
        """Wait until QEMU has ended, passing on what the command writes."""
        began, since = False, time.monotonic()
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
                if not began and (self._folder / "result").stat().st_size:
                    began, since = True, now
                if began and timeout is not None and now - since > timeout:
                    raise NearfarError(f"guest: the command did not end within {timeout:g} s", 1)
                if not began and now - since > BOOT_SECONDS:
                    self._fail(f"did not boot within {BOOT_SECONDS:g} s")
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_PAUSE)

    def _exit_code(self, status: int) -> int:
        """The command's exit code, if the guest came to its end."""
        if status != 0:
            lines = (self._folder / "qemu").read_text(errors="replace").strip().splitlines()
            why = lines[-1] if lines else f"ended with {status}"
            raise NearfarError(f"guest: {why}", 3)
        lines = self.output("result").decode(errors="replace").splitlines()
        if lines[-1:] != ["end"]:
            self._fail("ended before the command did; more memory may help")
        return int(lines[1].removeprefix("exit "))

    def _fail(self, how: str) -> NoReturn:
        """Raise the line that says why a guest did not do what it should."""
        console = self.console()
        for pattern, why in _FAILURES:
            if found := re.search(pattern, console):
                raise NearfarError(f"guest: {why.format(*found.groups())}", 1)
        last = console.strip().splitlines()[-1:] or ["nothing"]
        raise NearfarError(f"guest: {how}; last on its console: {last[0]}", 1)


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    """Write a file or folder of a guest's archive; what is neither is passed over."""
    if ".." in path.parts:
        raise tarfile.TarError(member.name)
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
    elif member.isfile() and (data := tar.extractfile(member)):
        with path.open("wb") as file:
            shutil.copyfileobj(data, file)
        path.chmod(member.mode & 0o777)
