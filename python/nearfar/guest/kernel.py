"""The kernel of a guest: its image and the modules that are loaded before anything runs."""

from __future__ import annotations

import contextlib
import lzma
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nearfar.errors import NearfarError
from nearfar.guest.packages import program

_SUFFIX: Final = re.compile(r"\.ko(\.xz)?$")


@dataclass(frozen=True)
class Kernel:
    """An unpacked package of a kernel.

    Attributes:
        folder: what it was unpacked to.
    """

    folder: Path

    @property
    def image(self) -> Path:
        """What QEMU starts.

        Raises:
            NearfarError: the package has none (exit code 3).
        """
        found = sorted(self.folder.glob("boot/vmlinu*"))
        if not found:
            raise NearfarError(f"guest: {self.folder.name}: no kernel in it; name another", 3)
        return found[0]

    @property
    def release(self) -> str:
        """Its version, as ``uname -r`` prints it."""
        return self.image.name.partition("-")[2]

    def modules(self, names: Sequence[str]) -> list[tuple[str, bytes]]:
        """Modules and what they need, in the order of loading; what is built in is left out.

        Raises:
            NearfarError: the kernel has no such module, or the package no kernel (exit code 3).
        """
        root = self.folder / "lib" / "modules" / self.release
        if not root.is_dir():
            root = self.folder / "usr" / root.relative_to(self.folder)
        files = {_SUFFIX.sub("", path.name).replace("-", "_"): path for path in root.rglob("*.ko*")}
        listed = root / "modules.builtin"
        lines = listed.read_text(encoding="utf-8").splitlines() if listed.exists() else []
        built_in = {Path(line).stem.replace("-", "_") for line in lines}
        found: dict[str, bytes] = {}

        def load(name: str) -> None:
            if name in found or name in built_in:
                return
            if name not in files:
                raise NearfarError(f"guest: {self.release} has no module {name}", 3)
            data = files[name].read_bytes()
            if files[name].suffix == ".xz":
                data = lzma.decompress(data)
            needed = re.search(rb"\0depends=([^\0]*)\0", data)
            for other in (needed[1].decode() if needed else "").split(","):
                if other:
                    load(other.replace("-", "_"))
            found[name] = data

        for name in names:
            load(name)
        return list(found.items())


def unpacked(package: Path) -> Kernel:
    """Unpack a kernel's package beside it, once.

    Raises:
        NearfarError: ``dpkg-deb`` is missing or cannot read it (exit code 3).
    """
    folder = package.parent.parent / "kernels" / package.stem
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=folder.parent) as scratch:
            made = Path(scratch) / "kernel"
            command = [program("dpkg-deb"), "-x", str(package), str(made)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise NearfarError(f"{package}: {done.stderr.strip()}; remove it", 3)
            # Another process may have been as fast.
            with contextlib.suppress(OSError):
                made.replace(folder)
    return Kernel(folder)
