"""Debian packages for a guest: fetched with apt into a cache folder, and verified.

apt uses the user's sources and keys, but its own lists in the cache, so it needs no root and works
for any architecture. The versions of a set of packages are recorded: a guest stays the same, and
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
from nearfar.output import commit, shows_progress, write_whole

#: Time limit of a call of apt, seconds.
_TIMEOUT: Final = 1800
#: A line of ``apt-get --print-uris``: URI, file name, size, hash.
_URI: Final = re.compile(r"^'\S+' (\S+_\S+_\S+\.deb) (\d+) SHA256:([0-9a-f]+)$", re.M)


@dataclass(frozen=True)
class Package:
    """The file of a package.

    Attributes:
        file: ``NAME_VERSION_ARCHITECTURE.deb`` with ``:`` as ``%3a``.
        size: bytes.
        sha256: hexadecimal digits.
    """

    file: str
    size: int
    sha256: str

    @property
    def apt_name(self) -> str:
        """The argument of apt for this package and version."""
        name, version, architecture = unquote(self.file.removesuffix(".deb")).split("_")
        suffix = "" if architecture == "all" else f":{architecture}"
        return f"{name}{suffix}={version}"

    def is_in(self, folder: Path) -> bool:
        """Whether ``folder`` has the file with this size and hash."""
        path = folder / self.file
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        with path.open("rb") as data:
            return hashlib.file_digest(data, "sha256").hexdigest() == self.sha256


def program(name: str, package: str = "") -> str:
    """The path of a program.

    Raises:
        NearfarError: it is not installed (exit code 3).
    """
    path = shutil.which(name)
    if path is None:
        fix = f"apt-get install {package}" if package else "use Debian or a derivative"
        raise NearfarError(f"guest: {name} is not installed; {fix}", 3)
    return path


def cache() -> Path:
    """The cache folder of guests."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "nearfar" / "guest"


class Packages:
    """Packages of one Debian architecture, such as ``amd64``."""

    def __init__(self, architecture: str) -> None:
        """Set paths only; no I/O."""
        self.architecture = architecture
        self.folder = cache() / architecture
        self.files = self.folder / "packages"

    def fetch(self, names: Sequence[str]) -> list[Path]:
        """The files of packages and their dependencies.

        Raises:
            NearfarError: apt or a package is missing, or a download failed (exit code 3).
        """
        words = ("--print-uris", "-y", "--no-install-recommends", "install", *names)
        return self._cached(sorted(names), lambda: self._apt("apt-get", *words))

    def fetch_kernel(self, names: Sequence[str]) -> Path:
        """The file of the first kernel that apt knows, without its dependencies.

        Args:
            names: packages with a kernel image, or metapackages that depend on the newest one.

        Raises:
            NearfarError: as :meth:`fetch`.
        """

        def uris() -> str:
            for name in names:
                listed = self._apt("apt-cache", "depends", name, may_fail=True)
                match = re.search(r"Depends: (linux-image-[^:\s]+)", listed)
                image = match[1] if match else name
                line = self._apt("apt-get", "--print-uris", "download", image, may_fail=True)
                if line:
                    return line
            raise NearfarError(f"guest: apt has no {' or '.join(names)}; name another kernel", 3)

        return self._cached(["kernel", *names], uris)[0]

    def _cached(self, key: Sequence[str], uris: Callable[[], str]) -> list[Path]:
        """The files of a set: the recorded ones if all are in the cache, else downloaded ones."""
        digits = hashlib.sha256("\n".join(key).encode()).hexdigest()[:16]
        record = self.folder / f"set-{digits}.json"
        packages = _read(record)
        if not self._has(packages):
            try:
                self.files.mkdir(parents=True, exist_ok=True)
                with (self.folder / "lock").open("w") as lock:
                    # Another process may have fetched it meanwhile.
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    packages = _read(record)
                    if not self._has(packages):
                        packages = self._resolved(key, uris)
                        text = json.dumps([asdict(package) for package in packages]) + "\n"
                        write_whole(record, text, force=True)
            except OSError as error:
                where = error.filename or self.folder
                raise NearfarError(f"{where}: {error.strerror}; set XDG_CACHE_HOME", 3) from None
        return [self.files / package.file for package in packages]

    def _resolved(self, key: Sequence[str], uris: Callable[[], str]) -> list[Package]:
        """The packages of a set according to apt, downloaded."""
        self._update()
        packages = [Package(file, int(size), sha256) for file, size, sha256 in _URI.findall(uris())]
        if not packages:
            raise NearfarError(f"guest: apt names no file for {' '.join(key)}", 3)
        self._download([package for package in packages if not package.is_in(self.files)])
        return packages

    def _has(self, packages: Sequence[Package]) -> bool:
        return bool(packages) and all(package.is_in(self.files) for package in packages)

    def _update(self) -> None:
        """Update apt's lists. Failing sources are ignored; a missing package is an error later."""
        for part in ("lists/partial", "cache/archives/partial"):
            (self.folder / "apt" / part).mkdir(parents=True, exist_ok=True)
        (self.folder / "apt" / "status").touch()
        self._apt("apt-get", "update", may_fail=True)

    def _download(self, packages: Sequence[Package]) -> None:
        if not packages:
            return
        if shows_progress():
            size = sum(package.size for package in packages) / 1e6
            print(f"guest: fetching {len(packages)} packages, {size:.0f} MB", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix=".", dir=self.files) as folder:
            names = [package.apt_name for package in packages]
            self._apt("apt-get", "download", *names, cwd=folder)
            for package in packages:
                if not package.is_in(Path(folder)):
                    raise NearfarError(
                        f"guest: {package.file}: differs from apt's list; try again", 3
                    )
                commit(Path(folder) / package.file, self.files / package.file)

    def _apt(self, tool: str, *words: str, cwd: str | None = None, may_fail: bool = False) -> str:
        """The output of a tool of apt; empty if it fails and ``may_fail``."""
        at = self.folder / "apt"
        options = {
            "APT::Architecture": self.architecture,
            "APT::Architectures": self.architecture,
            # As root, apt would change to the user _apt, who cannot write to the cache.
            "APT::Sandbox::User": "root",
            "Acquire::ForceHash": "SHA256",
            "Acquire::Languages": "none",
            "Dir::State": at,
            "Dir::State::status": at / "status",
            "Dir::Cache": at / "cache",
        }
        flags = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        try:
            done = subprocess.run(
                [program(tool), "-q", *flags, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                cwd=cwd,
                env={**os.environ, "LC_ALL": "C"},
                timeout=_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NearfarError(f"guest: {tool} took more than {_TIMEOUT} s", 3) from None
        if done.returncode == 0:
            return done.stdout
        if may_fail:
            return ""
        lines = [line for line in done.stderr.splitlines() if line.startswith("E:")]
        why = "; ".join(line[2:].strip() for line in lines) or f"exit code {done.returncode}"
        raise NearfarError(f"guest: {tool}: {why}", 3)


def _read(record: Path) -> list[Package]:
    """The packages of a recorded set; empty if there is no valid record."""
    try:
        rows = json.loads(record.read_text(encoding="utf-8"))
        return [Package(**row) for row in rows]
    except (OSError, ValueError, TypeError, KeyError):
        return []
