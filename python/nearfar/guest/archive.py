"""The initial file system of a guest: a cpio archive that its kernel unpacks into memory.

Its files never exist on the host, so setting owners and creating devices needs no root.
"""

from __future__ import annotations

import stat
import subprocess
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO, Final

from nearfar.errors import NearfarError
from nearfar.guest.packages import program

#: Folders that are links into ``usr`` since Debian 12, even if a package has them as folders.
_MERGED: Final = ("bin", "sbin", "lib", "lib64")


class Archive:
    """Writes an archive (``newc``) of files that belong to root."""

    def __init__(self, out: IO[bytes]) -> None:
        """Write to ``out`` from its current position."""
        self._out = out
        self._known: set[str] = set()

    def folder(self, path: str, mode: int = 0o755) -> None:
        """Add a folder and its parents, unless they exist."""
        inside = _path_inside(path)
        for parent in reversed(PurePosixPath(inside).parents[:-1]):
            self._entry(str(parent), stat.S_IFDIR | 0o755)
        if inside:
            self._entry(inside, stat.S_IFDIR | mode)

    def file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Add a file, unless the path exists."""
        self._entry(self._with_parent(path), stat.S_IFREG | mode, data)

    def link(self, path: str, target: str) -> None:
        """Add a symbolic link, unless the path exists."""
        self._entry(self._with_parent(path), stat.S_IFLNK | 0o777, target.encode())

    def copy(self, path: str, source: Path) -> None:
        """Add a file or folder of the host.

        Raises:
            NearfarError: it cannot be read.
        """
        try:
            if source.is_dir():
                self.folder(path)
                for inside in sorted(source.iterdir()):
                    if inside.is_symlink():
                        self.link(f"{path}/{inside.name}", str(inside.readlink()))
                    else:
                        self.copy(f"{path}/{inside.name}", inside)
            elif source.is_file():
                self.file(path, source.read_bytes(), source.stat().st_mode & 0o777)
            else:
                raise NearfarError(f"{source}: no such file or folder; check the path")
        except OSError as error:
            raise NearfarError(f"{error.filename}: {error.strerror}; check the path") from None

    def console_device(self) -> None:
        """Add the device that the kernel opens for the first process."""
        self.folder("dev")
        self._entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))

    def usr_links(self) -> None:
        """Add the links into ``usr``."""
        for name in _MERGED:
            self.folder(f"usr/{name}")
            self._entry(name, stat.S_IFLNK | 0o777, f"usr/{name}".encode())

    def package(self, file: Path) -> None:
        """Add all files of a Debian package; its scripts do not run.

        Raises:
            NearfarError: ``dpkg-deb`` is missing or cannot read it (exit code 3).
        """
        command = [program("dpkg-deb"), "--fsys-tarfile", str(file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
            assert child.stdout is not None
            try:
                with tarfile.open(fileobj=child.stdout, mode="r|") as tar:
                    for member in tar:
                        self._member(tar, member)
            except (tarfile.TarError, EOFError) as error:
                raise NearfarError(f"{file}: {error}; remove it", 3) from None
            child.stdout.read()
        if child.returncode != 0:
            raise NearfarError(f"{file}: dpkg-deb cannot read it; remove it", 3)

    def _member(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path, mode = member.name, stat.S_IMODE(member.mode)
        if member.isdir():
            self.folder(path, mode)
        elif member.issym():
            self.link(path, member.linkname)
        elif member.islnk():  # a hard link becomes a symbolic link
            self.link(path, f"/{_path_inside(member.linkname)}")
        elif data := tar.extractfile(member):
            self.file(path, data.read(), mode)

    def close(self) -> None:
        """End the archive. Another may follow in the same file."""
        self._entry("TRAILER!!!", 0)

    def _with_parent(self, path: str) -> str:
        """Add the parent folder of a path; returns the path in the archive."""
        inside = _path_inside(path)
        self.folder(str(PurePosixPath(inside).parent))
        return inside

    def _entry(
        self, path: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)
    ) -> None:
        if path in self._known:
            return
        self._known.add(path)
        name = path.encode() + b"\0"
        # newc: inode, mode, uid, gid, links, time, size, device and
        # rdevice (major, minor), name size, checksum.
        fields = [len(self._known), mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name), 0]
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + name
        for part in (head, data):
            self._out.write(part + bytes(-len(part) % 4))


def _path_inside(path: str) -> str:
    """The path in the archive: relative to the root, and in ``usr`` for ``/bin`` and others."""
    inside = PurePosixPath("/", path).relative_to("/")
    if inside.parts and inside.parts[0] in _MERGED:
        inside = "usr" / inside
    return "" if not inside.parts else str(inside)
