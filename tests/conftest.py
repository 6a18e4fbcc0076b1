"""Fixtures shared by the tests: traces made once a session, the command line as a process."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

import forks
from forks import HANG

DATA = Path(__file__).parent / "data"

# A shell's background jobs ignore SIGINT, and so would their children: tests of Ctrl-C would fail.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests do not read the user's configuration, which may hold a measured machine.
os.environ["XDG_CONFIG_HOME"] = os.devnull

# pytest-xdist sets COLUMNS, which would wrap printed tables.
os.environ.pop("COLUMNS", None)


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated trace with reuse, writes and scans: 200,000 references."""
    from nearfar.generate import generate

    path = tmp_path_factory.mktemp("mixed") / "mixed.trace"
    generate(
        "mix",
        path,
        refs=200_000,
        pages=700,
        seed=7,
        write_ratio=0.3,
        mix="zipf:0.7,sequential:0.3",
    )
    return path


def lacking(reason: str) -> NoReturn:
    """Skip the test, or fail where ``CI`` is set."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def tool(name: str, package: str) -> str:
    """Path of a tool; without it the test is :func:`lacking`."""
    return shutil.which(name) or lacking(
        f"{name} is absent: install the Debian package `{package}`"
    )


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The socket of a server that runs the command line (:mod:`forks`)."""
    at = tmp_path_factory.mktemp("commands") / "socket"
    server = subprocess.Popen([sys.executable, forks.__file__, "serve", str(at)])
    _SERVERS.append(server.pid)
    try:
        until(lambda: at.exists() or server.poll() is not None, "a server of commands")
        yield str(at)
    finally:
        server.kill()
        server.wait()
        _SERVERS.remove(server.pid)


@pytest.fixture(scope="session")
def nearfar(commands: str) -> Run:
    """Run the command line as a user does; returns the finished process."""

    def run(
        *words: object, first: str = "", stdin: bytes = b"", cwd: Path | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """``first``: Python code to run before; ``more``: additional environment variables."""
        given = list(map(str, words))
        with (
            contextlib.chdir(cwd or "."),
            tempfile.TemporaryFile() if stdin else Path(os.devnull).open("r+b") as given_input,
            tempfile.TemporaryFile("w+", errors="backslashreplace") as out,
            tempfile.TemporaryFile("w+", errors="backslashreplace") as err,
        ):
            given_input.write(stdin)
            given_input.seek(0)
            streams = (given_input.fileno(), out.fileno(), err.fileno())
            variables = {**os.environ, **more, "FORKS_FIRST": first}
            code = forks.run(commands, given, streams, variables)
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(given, code, out.read(), err.read())

    return run


def refused(
    done: subprocess.CompletedProcess[str], *says: str, codes: tuple[int, ...] = (2,)
) -> None:
    """Check that a command ended with an error of one line, which has these texts."""
    assert done.returncode in codes and done.stdout == "", done
    assert done.stderr.startswith("nearfar: error: ") and done.stderr.count("\n") == 1, done.stderr
    assert all(text in done.stderr for text in says), done.stderr


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until ``condition`` returns something true, and return that."""
    end = time.monotonic() + HANG
    while not (found := condition()):
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.02)
    return found


def no_guest(architecture: str) -> str | None:
    """Why guests cannot be booted here; None if they can."""
    from nearfar.errors import NearfarError
    from nearfar.guest import ARCHITECTURES, Guest
    from nearfar.guest.packages import program

    try:
        program(*ARCHITECTURES[architecture].qemu)
        Guest(architecture).fetch()
    except NearfarError as error:
        return str(error)
    return None


def fetched(architecture: str) -> str:
    """The architecture, if its guests can be booted here; skips or, where ``CI`` is set, fails."""
    if reason := no_guest(architecture):
        lacking(reason)
    return architecture


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of a file with a module fixture in one worker, to make the fixture once."""
    for item in items:
        known = getattr(item, "_fixtureinfo", None)
        fixtures = known.name2fixturedefs.values() if known else ()
        if any(one.scope == "module" for same_name in fixtures for one in same_name):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


# --- processor time

_BEGAN = pytest.StashKey[float]()
#: Process ids of the servers of commands.
_SERVERS: list[int] = []


def _processor_seconds() -> float:
    """Processor time of this process, its ended children, and the commands of its servers."""
    used = os.times()
    forked = 0
    for server in _SERVERS:
        words = Path(f"/proc/{server}/stat").read_text().rpartition(") ")[2].split()
        forked += sum(map(int, words[11:15]))  # utime, stime, cutime, cstime
    ticks = os.sysconf("SC_CLK_TCK")
    return used.user + used.system + used.children_user + used.children_system + forked / ticks


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[_BEGAN] = _processor_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Store a test's processor time in its teardown report, which xdist workers send on."""
    report = yield
    if report.when == "teardown":
        report.processor = _processor_seconds() - item.stash[_BEGAN]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the costliest files' processor time; a fixture counts for the first test using it."""
    files: dict[str, float] = {}
    for report in [report for reports in terminalreporter.stats.values() for report in reports]:
        if hasattr(report, "processor"):
            name = report.nodeid.partition("::")[0]
            files[name] = files.get(name, 0.0) + report.processor
    if sum(files.values()) > 60:
        terminalreporter.section("processor time")
        for name, seconds in sorted(files.items(), key=lambda one: -one[1])[:12]:
            terminalreporter.line(f"{seconds:7.1f} s  {name}")


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compile C or assembly source; the same source only once."""
    folder = tmp_path_factory.mktemp("programs")
    made: dict[tuple[str, ...], Path] = {}

    def compile_(text: str, *flags: str, suffix: str = ".c", compiler: str = "cc") -> Path:
        key = (text, compiler, *flags)
        if key not in made:
            source = folder / f"p{len(made)}{suffix}"
            source.write_text(text)
            program = source.with_suffix("")
            subprocess.run([compiler, "-O1", *flags, "-o", program, source], check=True)
            made[key] = program
        return made[key]

    return compile_


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """The kernel's huge page switches: 8K has none, 2M inherits the global one."""
    root = tmp_path / "transparent_hugepage"
    root.mkdir()
    (root / "enabled").write_text("always [madvise] never\n")
    for size, word in ((16, "never"), (64, "never"), (128, "always"), (2048, "inherit")):
        folder = root / f"hugepages-{size}kB"
        folder.mkdir()
        (folder / "enabled").write_text(
            " ".join(
                f"[{w}]" if w == word else w for w in ("always", "inherit", "madvise", "never")
            )
        )
    (root / "hugepages-8kB").mkdir()
    return root


def words(sysfs: Path) -> dict[str, str]:
    """The setting of each huge page switch below ``sysfs``."""
    found = {}
    for file in sysfs.glob("**/enabled"):
        text = file.read_text()
        inside = text.partition("[")[2].partition("]")[0]
        found[str(file.relative_to(sysfs))] = inside or text
    return found
