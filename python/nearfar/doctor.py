"""What this machine has of the tools nearfar can use, why not, and the exact fix.

One function a probe, in :data:`PROBES`. Nothing here changes the machine.
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

#: Free space below which a capture is likely to be cut short.
MIN_FREE_BYTES: Final = 1 << 30
_SECONDS: Final = 30


@dataclass(frozen=True)
class Finding:
    """One tool or path: is it there, why (not), what to do, and what it is for."""

    name: str
    available: bool
    why: str
    #: The exact command or step; empty when there is nothing to do.
    fix: str
    used_for: str
    #: Whether nearfar's own tests, checks and demonstration alone use it.
    for_tests: bool = False

    def to_dict(self) -> dict[str, str | bool]:
        """Plain values for JSON."""
        return asdict(self)


Probe = Callable[[], Iterable[Finding]]


def capture() -> Iterable[Finding]:
    """Ask the capture itself about QEMU, the plugin and shared memory."""
    from nearfar.capture import probe

    for found in probe():
        fix = "" if found.available else found.fix
        yield Finding(found.name, found.available, found.why, fix, "nearfar capture")


def userfaultfd() -> Iterable[Finding]:
    """Ask the kernel for what a program in two tiers of memory needs."""
    from nearfar import live

    why = live.refused()
    what = "userfaultfd"
    if why is None:
        yield Finding(what, True, "moves pages and reports forks", "", "nearfar run")
    else:
        _, _, rest = why.partition(": ")
        reason, _, fix = rest.partition("; ")
        yield Finding(what, False, reason, fix, "nearfar run")


def lackey() -> Iterable[Finding]:
    """Run Valgrind's Lackey on a program that does nothing."""
    yield _program(
        "valgrind",
        "traces by Valgrind Lackey, to import; bench",
        "valgrind",
        version=("--version",),
        attempt=("--tool=lackey", "--log-file=/dev/null", "true"),
    )


def perf() -> Iterable[Finding]:
    """Look for perf, and whether this user may sample memory with it."""
    used_for = "sampled traces, to import from `perf script`"
    found = _program("perf", used_for, "linux-perf", version=("--version",))
    if found.available:
        try:
            level = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text(encoding="ascii"))
        except (OSError, ValueError):
            level = None
        if level is None:
            why = "this kernel has no perf events (no /proc/sys/kernel/perf_event_paranoid)"
            found = Finding("perf", False, why, "use a kernel built with perf events", used_for)
        elif level > 2 and os.geteuid() != 0:
            why = f"{found.why}, but kernel.perf_event_paranoid is {level}"
            fix = "sudo sysctl kernel.perf_event_paranoid=2"
            found = Finding("perf", False, why, fix, used_for)
    yield found


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
    """Look for the tools that check what ``nearfar advise --emit`` makes."""
    used_for = "make test, to check what nearfar advise --emit makes"
    libvirt = "libvirt-clients libxml2-utils"
    yield _program("virt-xml-validate", used_for, libvirt, for_tests=True)
    yield _program("virt-xml", "what nearfar advise --emit libvirt makes", "virtinst")
    boots = f"nearfar guest; make validate; {used_for}"
    yield _program("qemu-system-x86_64", boots, "qemu-system-x86", version=("--version",))
    boots = "nearfar guest --arch aarch64"
    yield _program("qemu-system-aarch64", boots, "qemu-system-arm", version=("--version",))
    yield _program("systemd-analyze", used_for, "systemd", version=("--version",), for_tests=True)


def memory_nodes() -> Iterable[Finding]:
    """Look for the tools that set up memory nodes or stand in for them."""
    does = "nearfar numa plan --emit, whose script runs it"
    for name, package, used_for in (
        ("numactl", "numactl", does),
        ("daxctl", "daxctl", does),
        ("iasl", "acpica-tools", "nearfar numa import, which reads ACPI tables that it prints"),
    ):
        yield _program(name, used_for, package)
    validate = "make validate, to compare nearfar numa with the real kernel"
    yield _program("rustc", validate, "rustc", version=("--version",), for_tests=True)


def chromium() -> Iterable[Finding]:
    """Look for a browser that runs without a display."""
    names = ("chromium", "chromium-browser", "google-chrome")
    name = next((name for name in names if shutil.which(name)), names[0])
    used_for = "make test, to open the HTML report"
    found = _program(name, used_for, "chromium", version=("--version",), for_tests=True)
    yield replace(found, name="chromium")


def page_sizes() -> Iterable[Finding]:
    """Ask the kernel for the page sizes that a command can be given."""
    from nearfar.apply.setting import SYSFS, short, switches
    from nearfar.errors import NearfarError

    name, used_for = "huge pages", "nearfar apply"
    try:
        found = switches()
    except NearfarError as error:
        why, _, reason = str(error).partition("; ")
        yield Finding(name, False, why, f"use another kernel: {reason}", used_for)
        return
    sizes = ", ".join(short(size) for size in found)
    mine = os.access(SYSFS / "enabled", os.W_OK)
    why = f"this kernel can set {sizes}" + ("" if mine else ", but only root may")
    yield Finding(name, mine, why, "" if mine else "sudo nearfar apply ...", used_for)


def disk() -> Iterable[Finding]:
    """Compare the free space here with what a capture may need."""
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
        there = importlib.util.find_spec(name) is not None
        why = "not installed in this Python"
        if there:
            try:
                why = f"version {importlib.metadata.version(name)}"
            except importlib.metadata.PackageNotFoundError:
                why = "version unknown"
        yield Finding(name, there, why, "" if there else install, used_for, for_tests)


#: The registry: add a probe by adding its function.
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
    """Run every probe. A probe that fails counts as its tool not being usable, with the reason."""
    found: list[Finding] = []
    for probe in probes:
        try:
            found.extend(probe())
        except Exception as error:  # noqa: BLE001 - a broken tool must not break the diagnosis
            name = getattr(probe, "__name__", "probe")
            found.append(Finding(name, False, f"the probe failed: {error}", "report this", ""))
    return found


def _program(
    name: str,
    used_for: str,
    package: str,
    *,
    version: tuple[str, ...] = (),
    attempt: tuple[str, ...] = (),
    for_tests: bool = False,
) -> Finding:
    """Look for a program in PATH; run it with ``version``, then ``attempt``, where given."""
    missing = partial(Finding, name, False, used_for=used_for, for_tests=for_tests)
    fix = f"sudo apt-get install {package}"
    # Debian puts games there, and root's PATH leaves them out.
    path = shutil.which(name) or shutil.which(name, path="/usr/games")
    if path is None:
        return missing("not in PATH", fix)
    why = path
    for arguments in (version, attempt):
        if not arguments:
            continue
        try:
            done = subprocess.run(
                [path, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return missing(f"{path} does not run: {error}", fix)
        said = (done.stdout.strip() or done.stderr.strip()).decode(errors="replace").splitlines()
        first = said[0].strip()[:100] if said else ""
        if done.returncode != 0:
            why = f"{path} {' '.join(arguments)} exits with {done.returncode}: {first}"
            return missing(why, fix)
        if arguments is version and first:
            why = first
    return Finding(name, True, why, "", used_for, for_tests)
