"""Checks the tools that nearfar can use, and names the fix for missing ones.

Each probe is a function in :data:`PROBES`. Probes do not change the machine.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

#: Free space that a capture should have.
MIN_FREE_BYTES: Final = 1 << 30
#: Time limit of a program that a probe runs, seconds.
_TIMEOUT: Final = 30
_VERSION: Final = ("--version",)


@dataclass(frozen=True)
class Finding:
    """A tool or path: whether it is available, why (not), the fix, and its use."""

    name: str
    available: bool
    why: str
    #: The command or step; empty if nothing is missing.
    fix: str
    used_for: str
    #: Whether only nearfar's tests, checks and demo use it.
    for_tests: bool = False

    def to_dict(self) -> dict[str, str | bool]:
        """Plain values for JSON."""
        return asdict(self)


Probe = Callable[[], Iterable[Finding]]


def capture() -> Iterable[Finding]:
    """Check QEMU, the plugin and shared memory."""
    from nearfar.capture import probe

    for found in probe():
        fix = "" if found.available else found.fix
        yield Finding(found.name, found.available, found.why, fix, "nearfar capture")


def userfaultfd() -> Iterable[Finding]:
    """Check the kernel features of ``nearfar run``."""
    from nearfar import live

    refused = live.refused()
    why, fix = "moves pages and reports forks", ""
    if refused is not None:
        why, _, fix = refused.partition(": ")[2].partition("; ")
    yield Finding("userfaultfd", refused is None, why, fix, "nearfar run")


def lackey() -> Iterable[Finding]:
    """Run Valgrind's Lackey on a program that does nothing."""
    yield _program(
        "valgrind",
        "traces by Valgrind Lackey, for nearfar import; make bench",
        "valgrind",
        version=True,
        attempt=("--tool=lackey", "--log-file=/dev/null", "true"),
    )


def perf() -> Iterable[Finding]:
    """Look for perf, and check that this user may sample memory with it."""
    used_for = "sampled traces from `perf script`, for nearfar import"
    found = _program("perf", used_for, "linux-perf", version=True)
    why = fix = ""
    if found.available:
        try:
            level = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text(encoding="ascii"))
            if level > 2 and os.geteuid() != 0:
                why = f"{found.why}, but kernel.perf_event_paranoid is {level}"
                fix = "sudo sysctl kernel.perf_event_paranoid=2"
        except (OSError, ValueError):
            why = "this kernel has no perf events (no /proc/sys/kernel/perf_event_paranoid)"
            fix = "use a kernel built with perf events"
    yield replace(found, available=False, why=why, fix=fix) if fix else found


def captured_programs() -> Iterable[Finding]:
    """Look for the programs that the demonstration, tests and benchmarks capture."""
    demo, test = "make demo", "make test and make bench"
    for name, package, used_by in (
        ("redis-server", "redis-server", demo),
        ("redis-benchmark", "redis-tools", demo),
        ("cc", "gcc libc6-dev", demo),
        ("gzip", "gzip", test),
        ("pigz", "pigz", test),
    ):
        yield _program(name, f"{used_by}, for programs to capture", package, for_tests=True)


def emitters() -> Iterable[Finding]:
    """Look for QEMU's system emulators, and tools for the output of ``nearfar advise --emit``."""
    used_for = "make test, to check the output of nearfar advise --emit"
    libvirt = "libvirt-clients libxml2-utils"
    yield _program("virt-xml-validate", used_for, libvirt, for_tests=True)
    yield _program("virt-xml", "the output of nearfar advise --emit libvirt", "virtinst")
    uses = f"nearfar guest; nearfar capture --vm; make validate; {used_for}"
    yield _program("qemu-system-x86_64", uses, "qemu-system-x86", version=True)
    uses = "nearfar guest and nearfar capture --vm with --arch aarch64"
    yield _program("qemu-system-aarch64", uses, "qemu-system-arm", version=True)
    yield _program("systemd-analyze", used_for, "systemd", version=True, for_tests=True)


def memory_nodes() -> Iterable[Finding]:
    """Look for the tools that configure memory nodes."""
    script = "the scripts of nearfar numa plan --emit"
    for name, package, used_for in (
        ("numactl", "numactl", script),
        ("daxctl", "daxctl", script),
        ("iasl", "acpica-tools", "disassembled ACPI tables for nearfar numa import"),
    ):
        yield _program(name, used_for, package)
    validate = "make validate, to compare nearfar numa with the real kernel"
    yield _program("rustc", validate, "rustc", version=True, for_tests=True)


def chromium() -> Iterable[Finding]:
    """Look for a headless browser."""
    names = ("chromium", "chromium-browser", "google-chrome")
    name = next((name for name in names if shutil.which(name)), names[0])
    used_for = "make test, to open the HTML report"
    finding = _program(name, used_for, "chromium", version=True, for_tests=True)
    yield replace(finding, name="chromium")


def page_sizes() -> Iterable[Finding]:
    """Check the page sizes that the kernel can set."""
    from nearfar.apply.setting import SYSFS, switches
    from nearfar.errors import NearfarError
    from nearfar.sizes import short

    name, used_for = "huge pages", "nearfar apply"
    try:
        sizes = ", ".join(short(size) for size in switches())
    except NearfarError as error:
        why, _, reason = str(error).partition("; ")
        yield Finding(name, False, why, f"use another kernel: {reason}", used_for)
        return
    writable = os.access(SYSFS / "enabled", os.W_OK)
    why = f"this kernel can set {sizes}" + ("" if writable else ", but only root may")
    yield Finding(name, writable, why, "" if writable else "sudo nearfar apply ...", used_for)


def disk() -> Iterable[Finding]:
    """Check the free space of the current folder."""
    free = shutil.disk_usage(Path.cwd()).free
    enough = free >= MIN_FREE_BYTES
    yield Finding(
        "disk space",
        enough,
        f"{free / (1 << 30):.1f} GiB free in the current folder",
        "" if enough else "free 1 GiB, or write traces to another disk with -o",
        "traces",
    )


def extras() -> Iterable[Finding]:
    """Look for the optional Python packages."""
    check = "make bench and make test, as an independent check"
    for name, used_for, install, for_tests in (
        ("polars", "results as Polars data frames", "pip install 'nearfar[polars]'", False),
        ("libcachesim", check, "make env", True),
    ):
        installed = importlib.util.find_spec(name) is not None
        why = "not installed in this Python"
        if installed:
            try:
                why = f"version {importlib.metadata.version(name)}"
            except importlib.metadata.PackageNotFoundError:
                why = "version unknown"
        yield Finding(name, installed, why, "" if installed else install, used_for, for_tests)


PROBES: Final[tuple[Probe, ...]] = (
    capture,
    userfaultfd,
    lackey,
    perf,
    captured_programs,
    chromium,
    page_sizes,
    memory_nodes,
    emitters,
    disk,
    extras,
)


def examine(probes: Iterable[Probe] = PROBES) -> list[Finding]:
    """Run all probes. If a probe fails, its tool counts as unavailable, with the reason."""
    findings: list[Finding] = []
    for probe in probes:
        try:
            findings.extend(probe())
        except Exception as error:  # noqa: BLE001 - a broken tool must not break the diagnosis
            name = getattr(probe, "__name__", "probe")
            findings.append(Finding(name, False, f"the probe failed: {error}", "report this", ""))
    return findings


def _program(
    name: str,
    used_for: str,
    package: str,
    *,
    version: bool = False,
    attempt: tuple[str, ...] = (),
    for_tests: bool = False,
) -> Finding:
    """Look for a program in PATH; run it for its version, then with the arguments ``attempt``."""
    missing = partial(Finding, name, False, used_for=used_for, for_tests=for_tests)
    fix = f"sudo apt-get install {package}"
    # Root's PATH lacks /usr/games, where Debian puts games.
    path = shutil.which(name) or shutil.which(name, path="/usr/games")
    if path is None:
        return missing("not in PATH", fix)
    why = path
    runs = [arguments for arguments in (_VERSION if version else (), attempt) if arguments]
    for arguments in runs:
        try:
            done = subprocess.run(
                [path, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return missing(f"{path} does not run: {error}", fix)
        lines = (done.stdout.strip() or done.stderr.strip()).decode(errors="replace").splitlines()
        first = lines[0].strip()[:100] if lines else ""
        if done.returncode != 0:
            why = f"{path} {' '.join(arguments)} exits with {done.returncode}: {first}"
            return missing(why, fix)
        if arguments is _VERSION and first:
            why = first
    return Finding(name, True, why, "", used_for, for_tests)
