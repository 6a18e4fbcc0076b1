"""The plan of a sweep: ``study.toml``, checked, and the cells of its grid.

::

    study = "paging"

    [grid]                                  # every combination is a cell
    trace = ["gzip.trace", "sqlite.trace"]  # relative to this file
    replacement = ["clock", "linux"]

    [options]                               # the same in every cell
    machine = "optane-ssd"
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias, TypedDict

from nearfar import _engine, studies
from nearfar import machine as machines
from nearfar.errors import NearfarError
from nearfar.strict import Complaint, Json, parse_json, parse_toml, read_text, read_trace
from nearfar.studies import Study

#: A grid with more cells is a mistake.
MAX_CELLS: Final = 20_000
_KEYS: Final = ("study", "grid", "options")

#: By path: size, time of change and inode of a file, and its hash; ``inputs.json`` of the sweep's
#: folder keeps them.
Digests: TypeAlias = dict[str, tuple[list[int], str]]


class SweepRun(TypedDict, total=False):
    """The ``run.json`` of a sweep; ``cells`` are keys."""

    study: str
    of: str
    grid: dict[str, list[object]]
    options: Mapping[str, object]
    version: str
    cells: list[str]


@dataclass(frozen=True)
class Cell:
    """One combination of the grid.

    Attributes:
        place: its index in the grid.
        key: hash of everything that the result depends on: study, parameters, contents of traces
            and machines, version of nearfar.
        parameters: arguments of the study's function, with absolute paths.
        written: every parameter as in the file, or its default; for columns of the result.
        renamed: paths as in the file, by absolute path.
        records: sum of the records of its traces; 0 without traces.
        error: why it cannot run, if known in advance.
    """

    place: int
    key: str
    parameters: Mapping[str, object]
    written: Mapping[str, object]
    renamed: dict[str, str]
    records: int
    error: str | None = None


@dataclass
class Plan:
    """A sweep's file, checked.

    Attributes:
        study: the study to run.
        grid: the values of each varying parameter.
        options: the values of other parameters.
        base: the folder that paths are relative to.
        name: the name in messages and of the result's folder.
    """

    study: Study
    grid: dict[str, list[object]]
    options: Mapping[str, object]
    base: Path
    name: str
    #: Hash and records of each trace, by path.
    _digests: dict[str, tuple[str, int]] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        """The number of cells."""
        return math.prod(len(values) for values in self.grid.values())

    def cells(self, known: Digests | None = None) -> Iterator[Cell]:
        """The cells; the last parameter of the grid varies fastest.

        Args:
            known: hashes of files from an earlier sweep; extended.
        """
        digests = {} if known is None else known
        for place, values in enumerate(itertools.product(*self.grid.values())):
            given = {**self.options, **dict(zip(self.grid, values, strict=True))}
            yield self._cell(place, given, digests)

    def to_dict(self) -> SweepRun:
        """The ``run.json`` of the sweep, without cells."""
        return {
            "study": "sweep",
            "of": self.study.name,
            "grid": self.grid,
            "options": self.options,
            "version": _engine.__version__,
        }

    def _cell(self, place: int, given: Mapping[str, object], digests: Digests) -> Cell:
        parameters = dict(given)
        written = {
            name: given.get(
                name, None if parameter.default is parameter.empty else parameter.default
            )
            for name, parameter in self.study.parameters().items()
        }
        renamed: dict[str, str] = {}
        inputs: dict[str, str] = {}
        records, error = 0, None
        for name in (*self.study.traces, *self.study.machines):
            value = written.get(name)
            texts = value if isinstance(value, list | tuple) else [value]
            resolved: list[object] = []
            for text in texts:
                if not isinstance(text, str):
                    resolved.append(text)
                    if text is None and name in self.study.machines:
                        inputs[f"{name}:"] = self._machine(machines.usual())[1]
                    continue
                try:
                    if name in self.study.traces:
                        path, digest, count = self._trace(text, digests)
                        records += count
                    else:
                        path, digest = self._machine(text)
                except NearfarError as wrong:
                    path, digest, error = text, "missing", error or str(wrong)
                inputs[f"{name}:{text}"] = digest
                if path != text:
                    renamed[path] = text
                resolved.append(path)
            # A default, such as a machine's name, may also become a path.
            if name in given or renamed:
                parameters[name] = resolved if isinstance(value, list | tuple) else resolved[0]
        inputs |= _scripts(written)
        hashed = {
            "study": self.study.name,
            "parameters": written,
            "inputs": inputs,
            "version": _engine.__version__,
        }
        text = json.dumps(hashed, sort_keys=True, default=list)
        key = hashlib.sha256(text.encode()).hexdigest()[:32]
        return Cell(place, key, parameters, written, renamed, records, error)

    def _trace(self, text: str, known: Digests) -> tuple[str, str, int]:
        """Absolute path, hash and records of a trace; ``text`` itself if it is not a path."""
        folder = self.base / text
        if not (folder / "trace.json").is_file():
            if "/" in text or text.endswith(".trace") or folder.is_dir():
                raise NearfarError(f"{text}: no trace there; check the path")
            return text, "", 0
        path = str(folder.absolute())
        if path not in self._digests:
            self._digests[path] = trace_digest(folder, known)
        return path, *self._digests[path]

    def _machine(self, text: str) -> tuple[str, str]:
        """Path or name of a machine, and the hash of its description."""
        for file in (self.base / text, machines.SEARCH / f"{text}.toml"):
            if file.suffix == ".toml" and file.is_file():
                text = str(file.absolute())
                break
        found = machines.load(text)
        return text, hashlib.sha256(found.to_json().encode()).hexdigest()


def _scripts(values: Mapping[str, object]) -> dict[str, str]:
    """The hashes of Python files that parameters name, such as a policy."""
    found = {}
    for name, value in values.items():
        for text in value if isinstance(value, list | tuple) else [value]:
            for word in text.split(",") if isinstance(text, str) else []:
                file = Path(word.partition(":")[0])
                if file.suffix == ".py" and file.is_file():
                    found[f"{name}:{word}"] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def read(source: str | Path | Mapping[str, object]) -> Plan:
    """Read and check a sweep's file, or a mapping of the same form.

    Raises:
        NearfarError: it cannot be read or is wrong; the message names the file, the line, the key
            and the nearest valid key.
    """
    if isinstance(source, Mapping):
        name, base, text = "sweep", Path(), ""
        tables: Json = dict(source)
    else:
        file = Path(source)
        name, base = file.name.removesuffix(".toml"), file.parent
        text = read_text(file, "a sweep's file")
        tables = parse_toml(file, text, "docs/sweep.md")
    wrong = Complaint(name if isinstance(source, Mapping) else str(source), text)
    for key in tables:
        wrong.unless_known(key, key, dict.fromkeys(_KEYS))
    if "study" not in tables:
        raise wrong("study", f"is missing; write one of {', '.join(studies.STUDIES)}")
    try:
        study = studies.find(tables["study"])
    except NearfarError as error:
        raise wrong("study", str(error).partition(": ")[2]) from None
    known = study.parameters()
    grid, options = tables.get("grid", {}), tables.get("options", {})
    for table, values in (("grid", grid), ("options", options)):
        if not isinstance(values, dict):
            raise wrong(table, f"is not a table; write [{table}]")
        for key, value in values.items():
            where = f"{table}.{key}"
            wrong.unless_known(where, key, known)
            if table == "grid" and (not isinstance(value, list) or not value):
                raise wrong(where, "is not a list of values; write [ ... ]")
            for item in value if table == "grid" else [value]:
                if not studies.fits(known[key].annotation, item):
                    shape = studies.describe(known[key].annotation)
                    raise wrong(where, f"{str(item)[:40]!r} is not {shape}")
            if table == "grid" and len({json.dumps(item) for item in value}) < len(value):
                raise wrong(where, "names a value twice; name each once")
    both = next((key for key in grid if key in options), None)
    if both is not None:
        raise wrong(f"options.{both}", "is in [grid] as well; leave it out of one of them")
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in grid and key not in options:
            raise wrong(f"options.{key}", f"is missing; {study.name} needs it here or in [grid]")
    plan = Plan(study, dict(grid), dict(options), base, name)
    if len(plan) > MAX_CELLS:
        raise wrong("grid", f"has {len(plan):,} cells; give at most {MAX_CELLS:,}")
    return plan


def trace_digest(folder: Path, known: Digests) -> tuple[str, int]:
    """The hash of ``trace.json`` and every part, and the number of records.

    Args:
        folder: the trace.
        known: hashes of files, which are computed again only after a change; extended.

    Raises:
        NearfarError: it is not a trace, or a part is missing.
    """
    digest = hashlib.sha256()
    try:
        text = read_trace(folder)
        info = parse_json(text)
        digest.update(text)
        for part in info["parts"]:
            digest.update(_file_digest(folder / part["file"], known).encode())
        return digest.hexdigest(), int(info["records"])
    except OSError as error:
        raise NearfarError(f"{error.filename}: {error.strerror}; capture it again") from None
    except (ValueError, KeyError, TypeError):
        raise NearfarError(f"{folder / 'trace.json'}: is damaged; capture it again") from None


def _file_digest(file: Path, known: Digests) -> str:
    if not file.is_file():
        raise NearfarError(f"{file}: is not a regular file; capture the trace again")
    status = file.stat()
    name = str(file.absolute())
    stamp = [status.st_size, status.st_mtime_ns, status.st_ino]
    entry = known.get(name, ())
    # An edited `inputs.json` may hold anything.
    if len(entry) != 2 or list(entry[0]) != stamp:
        with file.open("rb") as stream:
            entry = stamp, hashlib.file_digest(stream, "sha256").hexdigest()
        known[name] = entry
    return str(entry[1])
