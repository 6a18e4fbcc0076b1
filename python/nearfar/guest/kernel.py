"""The kernel of a guest: its image, and the modules to load at boot."""

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
    """An unpacked kernel package in ``folder``."""

    folder: Path

    @property
    def image(self) -> Path:
        """The kernel image.

        Raises:
            NearfarError: the package has none (exit code 3).
        """
        images = sorted(self.folder.glob("boot/vmlinu*"))
        if not images:
            raise NearfarError(f"guest: {self.folder.name}: has no kernel; name another", 3)
        return images[0]

    @property
    def release(self) -> str:
        """Its version, as ``uname -r`` prints it."""
        return self.image.name.partition("-")[2]

    def modules(self, names: Sequence[str]) -> list[tuple[str, bytes]]:
        """Modules and their dependencies, in the order of loading, without built-in ones.

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
        loaded: dict[str, bytes] = {}

        def load(name: str) -> None:
            if name in loaded or name in built_in:
                return
            if name not in files:
                raise NearfarError(f"guest: {self.release} has no module {name}", 3)
            data = files[name].read_bytes()
            if files[name].suffix == ".xz":
                data = lzma.decompress(data)
            depends = re.search(rb"\0depends=([^\0]*)\0", data)
            for other in (depends[1].decode() if depends else "").split(","):
                if other:
                    load(other.replace("-", "_"))
            loaded[name] = data

        for name in names:
            load(name)
        return list(loaded.items())


def unpacked(package: Path) -> Kernel:
    """Unpack a kernel package into the cache, unless it is there.

    Raises:
        NearfarError: ``dpkg-deb`` is missing or cannot read it (exit code 3).
    """
    folder = package.parent.parent / "kernels" / package.stem
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=folder.parent) as scratch:
            temporary = Path(scratch) / "kernel"
            command = [program("dpkg-deb"), "-x", str(package), str(temporary)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise NearfarError(f"{package}: {done.stderr.strip()}; remove it", 3)
            # Another process may have unpacked it meanwhile.
            with contextlib.suppress(OSError):
                temporary.replace(folder)
    return Kernel(folder)
