"""Workloads: real programs with real inputs, each described by a file and captured by one command.

``workloads/NAME.toml`` says what the workload represents, what it needs, which inputs are generated
for it, and what runs. ``docs/workload.md`` describes the keys.

>>> load("sqlite").packages
['sqlite3']
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Final, Unpack

from nearfar import _engine
from nearfar.declared import workload as declared
from nearfar.errors import NearfarError, did_you_mean
from nearfar.inputs import INPUTS
from nearfar.output import check_output, claimed
from nearfar.processes import running
from nearfar.schema import Option, complete, takes
from nearfar.strict import Complaint, Json, read_text
from nearfar.workload_guest import SLOWER, in_guest

#: Folder in which a workload given by name is looked for before the built-in ones.
SEARCH: Final = Path("workloads")
#: Where Debian puts games; not in root's PATH.
GAMES: Final = "/usr/games"
#: Seconds to wait for a program that has clients.
PATIENCE: Final = 300.0

#: The options of ``capture``; ``make declared`` writes them to ``nearfar.declared.workload``.
OPTIONS: Final = (
    Option(
        "small",
        "bool",
        "Capture only the short part given by `small` in the workload file, as for tests.",
        default=False,
    ),
    Option(
        "vm",
        "bool",
        "Capture a virtual machine that runs the workload, with its kernel, display and clients, "
        "as NAME-vm.trace.",
        default=False,
    ),
)


@dataclass(frozen=True)
class Workload:
    """One checked workload. Commands run in a folder with the inputs.

    Attributes:
        name: the stem of its file.
        description: what the program does, in a sentence.
        stands_for: the program of a paper, or the kind of server, that it represents.
        differs: how it differs from that.
        papers: numbers of the papers concerned, such as ``000``; empty if there are none.
        packages: Debian packages.
        command: the program to capture, and its arguments.
        expected: approximate ``records``, ``pages`` (of 4 KiB) and ``seconds`` of a full capture.
        small: records to skip (``skip_refs``) and to record (``max_refs``) in the small capture.
        max_refs: maximum records of a full capture; None: no limit.
        files: inputs to create, by name: ``{"text": ...}`` or ``{"make": GENERATOR, ...}``.
        prepare: commands to run first, not captured.
        stdin: the file for standard input; None: empty.
        environment: environment variables.
        needs: required files besides the programs of the commands.
        display: whether it needs a display; Xvfb provides it.
        ready: a file that the program creates when clients may start.
        client: commands that run beside the program; the last one ends it. ``<`` and a file name
            redirect standard input.
    """

    name: str
    description: str
    stands_for: str
    differs: str
    papers: list[str]
    packages: list[str]
    command: list[str]
    expected: dict[str, int]
    small: dict[str, int]
    max_refs: int | None = None
    files: dict[str, Json] = field(default_factory=dict)
    prepare: list[list[str]] = field(default_factory=list)
    stdin: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    needs: list[str] = field(default_factory=list)
    display: bool = False
    ready: str | None = None
    client: list[list[str]] = field(default_factory=list)

    def to_dict(self) -> Json:
        """Plain values for JSON."""
        return asdict(self)

    def missing(self, vm: bool = False) -> list[str]:
        """Programs and files that are not installed; with ``vm``, only programs of the host."""
        programs = [words[0] for words in self.prepare]
        if not vm:
            programs += [self.command[0], *(words[0] for words in self.client)]
            programs += ["Xvfb"] if self.display else []
        needs = [] if vm else self.needs
        programs = [name for name in dict.fromkeys(programs) if name not in self.files]
        missing = [name for name in programs if not shutil.which(name, path=_path())]
        return missing + [name for name in needs if not Path(name).exists()]

    def check_there(self, vm: bool = False) -> None:
        """Raise an error (exit code 3) that says what to install, if something is missing."""
        if missing := self.missing(vm):
            what = f"workload {self.name}: not installed: {', '.join(missing)}"
            fix = f"apt-get install {' '.join(self.packages)}"
            raise NearfarError(f"{what}; {fix}", 3)


@dataclass(frozen=True)
class Captured:
    """The capture of one workload.

    Attributes:
        name: the workload.
        trace: the trace folder.
        records: number of records.
        pages: distinct pages of 4 KiB.
        seconds: duration; not part of any reproducible output.
    """

    name: str
    trace: Path
    records: int
    pages: int
    seconds: float = field(compare=False, default=0.0)


def trace_name(name: str, vm: bool = False) -> str:
    """The name of a workload's trace."""
    return f"{name}-vm.trace" if vm else f"{name}.trace"


def names() -> list[str]:
    """Names of the built-in workloads, sorted."""
    return [name for name, _ in _engine.workload_builtin()]


def load(path_or_name: str, search: Path = SEARCH) -> Workload:
    """Load a workload.

    Args:
        path_or_name: a path (it has a ``/`` or ends in ``.toml``), or the name of
            ``search/NAME.toml`` or of a built-in workload.
        search: the folder to search first.

    Raises:
        NearfarError: there is no such workload, or its file is wrong; the message names the file,
            the line and the key.
    """
    is_path = "/" in path_or_name or path_or_name.endswith(".toml")
    file = Path(path_or_name) if is_path else search / f"{path_or_name}.toml"
    if is_path or file.is_file():
        return parse(str(file), read_text(file, "a workload file"))
    builtin = dict(_engine.workload_builtin())
    if path_or_name in builtin:
        return parse(path_or_name, builtin[path_or_name])
    hint = did_you_mean(path_or_name, builtin)
    raise NearfarError(
        f"workload {path_or_name[:60]!r}: no such workload{hint}; give a path to a .toml file or "
        f"one of: {', '.join(builtin)}"
    )


def parse(name: str, text: str) -> Workload:
    """Check the text of a workload file; ``name`` is used in messages. Raises as :func:`load`."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also huge numbers and deep nesting
        raise NearfarError(f"{name}: not TOML: {error}") from None
    complaint = Complaint(name, text)
    known = {field.name: field for field in fields(Workload) if field.name != "name"}
    for key in table:
        complaint.unless_known(key, key, known)
    for key, declared_key in known.items():
        if key in table:
            what, is_valid = _CHECKS[str(declared_key.type)]
            if not is_valid(table[key]):
                raise complaint(key, f"is not {what}")
        elif declared_key.default is MISSING and declared_key.default_factory is MISSING:
            raise complaint(key, "is missing")
    workload = Workload(name=Path(name).name.removesuffix(".toml"), **table)
    _check(workload, complaint)
    return workload


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_table(value: object, of: Callable[[object], bool]) -> bool:
    return isinstance(value, dict) and all(map(of, value.values()))


#: For each type of a field of :class:`Workload`: what a value should be, and a check.
_CHECKS: Final[dict[str, tuple[str, Callable[[object], bool]]]] = {
    "str": ("a text that is not empty", lambda v: isinstance(v, str) and bool(v.strip())),
    "str | None": ("a text", _is_text),
    "bool": ("true or false", lambda v: isinstance(v, bool)),
    "int | None": ("a whole number from 1", lambda v: _is_count(v) and v != 0),
    "list[str]": ("a list of texts", _is_texts),
    "list[list[str]]": (
        "a list of commands, each a list of texts",
        lambda v: isinstance(v, list) and all(_is_texts(words) and words for words in v),
    ),
    "dict[str, int]": ("a table of whole numbers", lambda v: _is_table(v, _is_count)),
    "dict[str, str]": ("a table of texts", lambda v: _is_table(v, _is_text)),
    "dict[str, Json]": (
        "a table of files",
        lambda v: _is_table(v, lambda file: isinstance(file, dict)),
    ),
}


def _check(workload: Workload, complaint: Complaint) -> None:
    """Check what :data:`_CHECKS` does not: keys inside tables, and keys that depend on others."""
    if not workload.command:
        raise complaint("command", "is empty; give the program and its arguments")
    for key, wanted in (("expected", ("records", "pages", "seconds")),
                        ("small", ("skip_refs", "max_refs"))):  # fmt: skip
        table = getattr(workload, key)
        for name in table:
            complaint.unless_known(f"{key}.{name}", name, dict.fromkeys(wanted))
        for name in wanted:
            if name not in table:
                raise complaint(key, f"lacks `{name}`")
    if workload.small["max_refs"] < 1:
        raise complaint("small.max_refs", "is not 1 or more")
    for name, file in workload.files.items():
        path = f"files.{name}"
        if Path(name).name != name or name in ("", ".", ".."):
            raise complaint(path, "is not a plain file name")
        if file.keys() == {"text"} and isinstance(file["text"], str):
            continue
        make = file.get("make")
        if not isinstance(make, str):
            raise complaint(path, 'has neither `text = "..."` nor `make = "GENERATOR"`')
        if make not in INPUTS:
            hint = did_you_mean(make, INPUTS)
            raise complaint(
                path, f"no generator {make[:60]!r}{hint} (there are: {', '.join(INPUTS)})"
            )
        parameters = [key for key in inspect.signature(INPUTS[make]).parameters if key != "path"]
        for key, value in file.items():
            complaint.unless_known(path, key, dict.fromkeys(["make", *parameters]))
            if key != "make" and not _is_count(value):
                raise complaint(path, f"`{key}` is not a whole number from 0")
    if workload.ready is not None and not workload.client:
        raise complaint("ready", "says when clients may start, but there is no `client`")


@takes(OPTIONS)
def capture(
    workload: Workload,
    out: str | os.PathLike[str] = ".",
    *,
    force: bool = False,
    **options: Unpack[declared.Options],
) -> Captured:
    """Make a workload's inputs, run it under capture, and write ``out/NAME.trace``.

    A virtual machine has its programs from its own packages; ``prepare`` runs on the host.

    Args:
        workload: from :func:`load`.
        out: the folder to write to, created if missing.
        force: replace an existing trace.
        {options}

    Raises:
        NearfarError: something is missing (exit code 3), a command failed, or the program did
            not complete its work.
    """
    given = complete(OPTIONS, options)
    small, vm = given["small"], given["vm"]
    workload.check_there(vm)
    trace = Path(out).absolute() / trace_name(workload.name, vm)
    check_output(trace, force=force, holds="trace.json")
    limits = ["--skip-refs", str(workload.small["skip_refs"])] if small else []
    most = workload.small["max_refs"] if small else workload.max_refs
    limits += ["--max-refs", str(most)] if most is not None else []
    program = shutil.which(workload.command[0], path=_path()) or workload.command[0]
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nearfar-")))
        folder = scratch / "work"
        folder.mkdir()
        environment = _environment(workload, folder)
        make_inputs(workload, folder)
        for words in workload.prepare:
            _run(workload, words, folder, environment)
        if workload.display and not vm:
            environment["DISPLAY"] = stack.enter_context(_display(workload, environment))
        began = time.monotonic()
        captured = scratch / trace.name
        nearfar = [sys.executable, "-P", "-m", "nearfar", "capture", "-o", str(captured), *limits]
        words = ["--", program, *workload.command[1:]]
        if vm:
            words = in_guest(workload.to_dict(), folder)
        messages = stack.enter_context((scratch / "messages").open("w+b"))
        stdin = folder / workload.stdin if workload.stdin else Path(os.devnull)
        with stdin.open("rb") as stdin_file:
            child = stack.enter_context(
                running(
                    [*nearfar, *words],
                    cwd=folder,
                    # The cache of a guest's packages is below the user's HOME.
                    env=None if vm else environment,
                    stdin=stdin_file,
                    stdout=subprocess.DEVNULL,
                    stderr=messages,
                )
            )
        patience = PATIENCE
        if vm:
            patience *= 4 * SLOWER  # for the guest's start and its clients too
        else:
            _clients(workload, folder, environment, child)
        try:
            # A program that its clients failed to end would never end.
            code = child.wait(patience if workload.client else None)
        except subprocess.TimeoutExpired:
            late = f"did not end within {patience:.0f} s{'' if vm else ' of its last client'}"
            raise NearfarError(f"workload {workload.name}: {late}", 1) from None
        seconds = time.monotonic() - began
        messages.seek(0)
        lines = messages.read().decode(errors="replace").strip().splitlines()
        # A failure of the program itself is only a message of `nearfar capture`.
        if code != 0 or any("the program exited" in line for line in lines):
            last = [line for line in lines if line.strip()][-3:]
            why = " | ".join(last) if last else f"status {code}"
            raise NearfarError(f"workload {workload.name}: did not run to its end: {why}",
                               code if code in (2, 3, 130) else 1)  # fmt: skip
        info = json.loads((captured / "trace.json").read_text(encoding="utf-8"))
        if info["records"] == 0:
            raise NearfarError(
                f"workload {workload.name}: ended before `small.skip_refs` records", 1
            )
        with claimed(trace, force=force, holds="trace.json") as temporary:
            for file in captured.iterdir():
                shutil.move(file, temporary)
    pages = sum(info["pages_by_kinds"].values())
    return Captured(workload.name, trace, info["records"], pages, seconds)


def make_inputs(workload: Workload, folder: Path) -> None:
    """Write the files of a workload into ``folder``."""
    for name, file in workload.files.items():
        path = folder / name
        if "text" in file:
            path.write_text(file["text"], encoding="utf-8")
        else:
            options = {key: value for key, value in file.items() if key != "make"}
            INPUTS[file["make"]](path, **options)


def _path() -> str:
    return os.environ.get("PATH", os.defpath) + f":{GAMES}"


def _environment(workload: Workload, folder: Path) -> dict[str, str]:
    """A reproducible environment, without the user's settings."""
    names = ("QEMU_LD_PREFIX", "LD_LIBRARY_PATH")
    inherited = {key: os.environ[key] for key in names if key in os.environ}
    plain = {
        "PATH": _path(),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
    }
    return {**inherited, **plain, **workload.environment}


def _run(workload: Workload, words: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Run a command natively; ``<`` and a file name redirect its standard input."""
    stdin_path = Path(os.devnull)
    if "<" in words:
        at = words.index("<")
        words, stdin_path = words[:at], folder / words[at + 1]
    try:
        with stdin_path.open("rb") as stdin:
            done = subprocess.run(
                words,
                cwd=folder,
                env=environment,
                stdin=stdin,
                capture_output=True,
                timeout=4 * PATIENCE,
                check=False,
            )
        why = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [""]
        code = done.returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        why, code = [str(error)], -1
    if code != 0:
        shown = shlex.join(words)[:120]
        raise NearfarError(f"workload {workload.name}: `{shown}` failed ({code}): {why[0]}", 1)


def _clients(
    workload: Workload,
    folder: Path,
    environment: dict[str, str],
    child: subprocess.Popen[bytes],
) -> None:
    """Wait until the program is ready, then run its clients one after the other."""
    if not workload.client:
        return
    if workload.ready is not None:
        since = time.monotonic()
        while not (folder / workload.ready).exists():
            if child.poll() is not None:
                return
            if time.monotonic() - since > PATIENCE:
                what = f"made no `{workload.ready}` within {PATIENCE:.0f} s"
                raise NearfarError(f"workload {workload.name}: {what}", 1)
            time.sleep(0.05)
    for words in workload.client:
        if child.poll() is not None:
            return
        _run(workload, words, folder, environment)


@contextlib.contextmanager
def _display(workload: Workload, environment: dict[str, str]) -> Iterator[str]:
    """Start a virtual display; yields its name (``:7``)."""
    reads, writes = os.pipe()
    screen = ["-screen", "0", "1280x1024x24", "-nolisten", "tcp"]
    command = ["Xvfb", "-displayfd", str(writes), *screen]
    with running(
        command,
        pass_fds=(writes,),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        os.close(writes)
        with os.fdopen(reads) as answer:
            late = threading.Timer(30, server.kill)
            late.start()
            number = answer.readline().strip()
            late.cancel()
        if not number:
            raise NearfarError(f"workload {workload.name}: Xvfb did not start", 3)
        yield f":{number}"


def bundled(kind: str = "captures") -> Path:
    """A data folder of the sources: small ``captures``, or ``views`` (reduced full captures).

    Raises:
        NearfarError: it is missing (exit code 3), as in an installed package.
    """
    folder = Path(__file__).resolve().parents[2] / "tests" / "data" / kind
    if not folder.is_dir():
        raise NearfarError(
            f"the {kind} that come with the sources are not part of the installed package; "
            "give --traces FOLDER, or --full to capture", 3,
        )  # fmt: skip
    return folder
