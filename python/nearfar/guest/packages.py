"""Packages of Debian for a guest: asked for with apt, kept in a cache folder, checked.

apt works in a folder of the cache with lists of its own: the user's sources and keys, no root, and
any architecture. What a set of names came to is written down, so that a guest stays the same, and
needs no network, until its set is removed from the cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from nearfar.errors import NearfarError
from nearfar.output import commit, watched, write_whole

#: Seconds that apt may take, for lists or for packages.
_PATIENCE: Final = 1800
#: A line of ``apt-get --print-uris``: where from, the file's name, its bytes, its hash.
_URI: Final = re.compile(r"^'\S+' (\S+_\S+_\S+\.deb) (\d+) SHA256:([0-9a-f]+)$", re.M)


@dataclass(frozen=True)
class Package:
    """One package's file, and what must be in it.

    Attributes:
        file: its name, ``NAME_VERSION_ARCHITECTURE.deb`` with ``:`` as ``%3a``.
        size: bytes.
        sha256: hexadecimal digits.
    """

    file: str
    size: int
    sha256: str

    @property
    def wanted(self) -> str:
        """The package as apt is asked for it."""
        name, version, architecture = unquote(self.file.removesuffix(".deb")).split("_")
        own = "" if architecture == "all" else f":{architecture}"
        return f"{name}{own}={version}"

    def is_whole(self, folder: Path) -> bool:
        """Whether ``folder`` has it with these bytes and this hash."""
        path = folder / self.file
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        with path.open("rb") as data:
            return hashlib.file_digest(data, "sha256").hexdigest() == self.sha256


def program(name: str, package: str = "") -> str:
    """The path of a program.

    Raises:
        NearfarError: there is none (exit code 3).
    """
    found = shutil.which(name)
    if found is None:
        fix = f"apt-get install {package}" if package else "use Debian or a system made of it"
        raise NearfarError(f"guest: there is no {name}; {fix}", 3)
    return found


def cache() -> Path:
    """The folder of everything that guests are made of."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "nearfar" / "guest"


class Packages:
    """Packages of one architecture of Debian, such as ``amd64``."""

    def __init__(self, architecture: str) -> None:
        """Nothing is made or asked before something is fetched."""
        self.architecture = architecture
        self.folder = cache() / architecture
        self.files = self.folder / "packages"

    def fetch(self, names: Sequence[str]) -> list[Path]:
        """The files of packages and of all that they depend on.

        Raises:
            NearfarError: there is no apt, no such package, or no way to it (exit code 3).
        """
        words = ("--print-uris", "-y", "--no-install-recommends", "install", *names)
        return self._kept(sorted(names), lambda: self._apt("apt-get", *words))

    def fetch_kernel(self, names: Sequence[str]) -> Path:
        """The file of the first kernel that apt knows, without what it depends on.

        Args:
            names: packages with an image, or those that depend on the newest such.

        Raises:
            NearfarError: as :meth:`fetch`.
        """

        def uris() -> str:
            for name in names:
                listed = self._apt("apt-cache", "depends", name, may_fail=True)
                found = re.search(r"Depends: (linux-image-[^:\s]+)", listed)
                image = found[1] if found else name
                line = self._apt("apt-get", "--print-uris", "download", image, may_fail=True)
                if line:
                    return line
            raise NearfarError(f"guest: apt has no {' or '.join(names)}; name another kernel", 3)

        return self._kept(["kernel", *names], uris)[0]

    def _kept(self, key: Sequence[str], uris: Callable[[], str]) -> list[Path]:
        """The files of a set: those written down, if all are whole, or those that apt answers."""
        digits = hashlib.sha256("\n".join(key).encode()).hexdigest()[:16]
        record = self.folder / f"set-{digits}.json"
        packages = _read(record)
        if not self._has(packages):
            try:
                self.files.mkdir(parents=True, exist_ok=True)
                with (self.folder / "lock").open("w") as lock:
                    # Another process may be at it, and be done then.
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    packages = _read(record)
                    if not self._has(packages):
                        packages = self._resolved(key, uris)
                        text = json.dumps([asdict(one) for one in packages]) + "\n"
                        write_whole(record, text, force=True)
            except OSError as error:
                where = error.filename or self.folder
                raise NearfarError(f"{where}: {error.strerror}; set XDG_CACHE_HOME", 3) from None
        return [self.files / one.file for one in packages]

    def _resolved(self, key: Sequence[str], uris: Callable[[], str]) -> list[Package]:
        """What apt says that a set is, downloaded."""
        self._update()
        found = _URI.findall(uris())
        packages = [Package(file, int(size), sha256) for file, size, sha256 in found]
        if not packages:
            raise NearfarError(f"guest: apt names no file for {' '.join(key)}", 3)
        self._download([one for one in packages if not one.is_whole(self.files)])
        return packages

    def _has(self, packages: Sequence[Package]) -> bool:
        """Whether the files of a set are all here."""
        return bool(packages) and all(one.is_whole(self.files) for one in packages)

    def _update(self) -> None:
        """Bring the lists up to date. A source that fails is missed only if a package is."""
        for part in ("lists/partial", "cache/archives/partial"):
            (self.folder / "apt" / part).mkdir(parents=True, exist_ok=True)
        (self.folder / "apt" / "status").touch()
        self._apt("apt-get", "update", may_fail=True)

    def _download(self, packages: Sequence[Package]) -> None:
        """Put packages into the cache, each whole."""
        if not packages:
            return
        if watched():
            size = sum(one.size for one in packages) / 1e6
            print(f"guest: fetching {len(packages)} packages, {size:.0f} MB", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix=".", dir=self.files) as folder:
            self._apt("apt-get", "download", *(one.wanted for one in packages), cwd=folder)
            for one in packages:
                if not one.is_whole(Path(folder)):
                    raise NearfarError(f"guest: {one.file}: not what apt lists; try again", 3)
                commit(Path(folder) / one.file, self.files / one.file)

    def _apt(self, tool: str, *words: str, cwd: str | None = None, may_fail: bool = False) -> str:
        """What a tool of apt prints; nothing, if it fails and may."""
        at = self.folder / "apt"
        options = {
            "APT::Architecture": self.architecture,
            "APT::Architectures": self.architecture,
            "APT::Sandbox::User": "root",
            "Acquire::ForceHash": "SHA256",
            "Acquire::Languages": "none",
            "Dir::State": at,
            "Dir::State::status": at / "status",
            "Dir::Cache": at / "cache",
        }
        given = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        try:
            done = subprocess.run(
                [program(tool), "-q", *given, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                cwd=cwd,
                env={**os.environ, "LC_ALL": "C"},
                timeout=_PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NearfarError(f"guest: {tool} took more than {_PATIENCE} s", 3) from None
        if done.returncode == 0:
            return done.stdout
        if may_fail:
            return ""
        lines = [line for line in done.stderr.splitlines() if line.startswith("E:")]
        why = "; ".join(line[2:].strip() for line in lines) or f"exit code {done.returncode}"
        raise NearfarError(f"guest: {tool}: {why}", 3)


def _read(record: Path) -> list[Package]:
    """The packages of a set that was written down; none, if it was not or cannot be read."""
    try:
        rows = json.loads(record.read_text(encoding="utf-8"))
        return [Package(**row) for row in rows]
    except (OSError, ValueError, TypeError, KeyError):
        return []
