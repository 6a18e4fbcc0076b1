"""Build Linux's memory selftests from Debian's package ``linux-source`` in ``build/conform``."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from pathlib import Path

CACHE = Path(__file__).resolve().parents[1] / "build" / "conform"
SOURCES = Path("/usr/src")

#: Sources of the tests; kernel headers come from Debian's linux-libc-dev.
_NEEDED = ("tools/testing/selftests/", "tools/include/", "include/vdso/", "mm/", "lib/test_hmm")


def folder() -> Path:
    """The folder of the tests: ``vm`` until Linux 6.2, then ``mm``."""
    selftests = CACHE / "linux" / "tools" / "testing" / "selftests"
    return next((at for name in ("mm", "vm") if (at := selftests / name).is_dir()), selftests)


def is_built() -> bool:
    return (CACHE / "built").exists()


def build() -> list[str]:
    """Unpack and compile the selftests, once for each version of the package.

    Returns:
        Programs that do not compile, or one line that says what is missing.
    """
    archives = sorted(SOURCES.glob("linux-source-*.tar.xz"))
    if not archives:
        return ["no kernel source: install the Debian package `linux-source`"]
    archive, stamp = archives[-1], CACHE / "built"
    what = f"{archive.name} {archive.stat().st_size}\n"
    if not stamp.exists() or stamp.read_text().partition("\n")[0] + "\n" != what:
        shutil.rmtree(CACHE / "linux", ignore_errors=True)
        stamp.unlink(missing_ok=True)
        _unpack(archive)
        # -k: go on after a program that does not compile.
        done = subprocess.run(
            ["make", "-k", "-C", str(folder()), "KHDR_INCLUDES="], capture_output=True, text=True
        )
        failed = re.findall(r"\*\*\* \[.*?: .*/(\S+)\] Error", done.stderr)
        stamp.write_text(what + "".join(f"{name}\n" for name in failed))
    return stamp.read_text().splitlines()[1:]


def _unpack(archive: Path) -> None:
    with tarfile.open(archive, "r:xz") as source:
        for member in source:
            head, _, path = member.name.partition("/")
            if path.startswith(_NEEDED):
                member.name = f"linux/{path}"
                source.extract(member, CACHE, filter="tar")
