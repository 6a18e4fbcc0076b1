"""What a sweep is to do: ``study.toml``, checked, and the cells of its grid.

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, TypedDict

from nearfar import _engine, studies
from nearfar import machine as machines
from nearfar.errors import NearfarError
from nearfar.strict import Complaint, parse_json, parse_toml, read_text, read_trace
from nearfar.studies import Study

#: More cells than this are a mistake in the grid.
MOST_CELLS: Final = 1_000_000
_KEYS: Final = ("study", "grid", "options")


#: Size, time and number of a file, and its hash, by path.
Digests: TypeAlias = dict[str, Sequence[Any]]


class SweepRun(TypedDict, total=False):
    """What ``run.json`` of a sweep holds; ``cells`` are keys."""

    study: str
    of: str
    grid: dict[str, list[Any]]
    options: Mapping[str, Any]
    version: str
    cells: list[str]


@dataclass(frozen=True)
class Cell:
    """One combination of the grid.

    Attributes:
        place: its number in the grid, from 0.
        key: hash of everything its result depends on: study, parameters, contents of its traces
            and machines, version of nearfar.
        parameters: what the study's function is given, paths made absolute.
        written: the value of every parameter as the file has it, or its default: columns of the
            result.
        renamed: absolute paths, and how the file writes them.
        records: records of its traces together; 0 where it reads none.
        error: why it cannot run, where that is known before it is tried.
    """

    place: int
    key: str
    parameters: Mapping[str, Any]
    written: Mapping[str, Any]
    renamed: dict[str, str]
    records: int
    error: str | None = None


@dataclass
class Plan:
    """A sweep's file, checked.

    Attributes:
        study: what runs.
        grid: values of each parameter that varies.
        options: values of those that do not.
        base: the folder that paths are relative to.
        name: a name for messages and for the result's folder.
    """

    study: Study
    grid: dict[str, list[Any]]
    options: Mapping[str, Any]
    base: Path
    name: str
    _digests: dict[str, tuple[str, int]] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        """How many cells there are."""
        return math.prod(len(values) for values in self.grid.values())

    def cells(self, known: Digests | None = None) -> Iterator[Cell]:
        """The cells, the last parameter of the grid varying fastest.

        Args:
            known: hashes of files from an earlier sweep, by path, size and time; added to.
        """
        digests = {} if known is None else known
        for place, values in enumerate(itertools.product(*self.grid.values())):
            given = {**self.options, **dict(zip(self.grid, values, strict=True))}
            yield self._cell(place, given, digests)

    def to_dict(self) -> SweepRun:
        """What ``run.json`` of the sweep holds."""
        return {
            "study": "sweep",
            "of": self.study.name,
            "grid": self.grid,
            "options": self.options,
            "version": _engine.__version__,
        }

    def _cell(self, place: int, given: Mapping[str, Any], digests: Digests) -> Cell:
        parameters = dict(given)
        known = self.study.parameters()
        written = {
            name: given.get(name, None if one.required else one.default)
            for name, one in known.items()
        }
        renamed: dict[str, str] = {}
        inputs: dict[str, str] = {}
        records, error = 0, None
        for name in (*self.study.traces, *self.study.machines):
            value = written.get(name)
            texts = value if isinstance(value, list | tuple) else [value]
            resolved = []
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
            if name in given or renamed:
                parameters[name] = resolved if isinstance(value, list | tuple) else resolved[0]
        whole = {
            "study": self.study.name,
            "parameters": written,
            "inputs": inputs,
            "version": _engine.__version__,
        }
        text = json.dumps(whole, sort_keys=True, default=list)
        key = hashlib.sha256(text.encode()).hexdigest()[:32]
        return Cell(place, key, parameters, written, renamed, records, error)

    def _trace(self, text: str, known: Digests) -> tuple[str, str, int]:
        """Absolute path, hash and records of a trace; of another word the word itself."""
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


def read(source: str | Path | Mapping[str, Any]) -> Plan:
    """Read and check a sweep's file, or a mapping of the same form.

    Raises:
        NearfarError: it cannot be read, or holds something wrong; the message names the file, the
            line, the key and the nearest valid key.
    """
    if isinstance(source, Mapping):
        name, base, text, tables = "sweep", Path(), "", dict(source)
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
            for one in value if table == "grid" else [value]:
                if not studies.fits(known[key].annotation, one):
                    shape = studies.describe(known[key].annotation)
                    raise wrong(where, f"{str(one)[:40]!r} is not {shape}")
            if table == "grid" and len({json.dumps(one) for one in value}) < len(value):
                raise wrong(where, "names a value twice; name each once")
    both = next((key for key in grid if key in options), None)
    if both is not None:
        raise wrong(f"options.{both}", "is in [grid] as well; leave it out of one of them")
    for key, one in known.items():
        if one.required and key not in grid and key not in options:
            raise wrong(f"options.{key}", f"is missing; {study.name} needs it here or in [grid]")
    plan = Plan(study, dict(grid), dict(options), base, name)
    if len(plan) > MOST_CELLS:
        raise wrong("grid", f"has {len(plan):,} cells; give at most {MOST_CELLS:,}")
    return plan


def trace_digest(folder: Path, known: Digests) -> tuple[str, int]:
    """Hash of ``trace.json`` and of every part, and the records; parts are read once a change.

    Args:
        folder: the trace.
        known: hashes of files by path, size and time of change; added to.

    Raises:
        NearfarError: it is no trace, or a part is gone.
    """
    whole = hashlib.sha256()
    try:
        text = read_trace(folder)
        info = parse_json(text)
        whole.update(text)
        for part in info["parts"]:
            whole.update(_file_digest(folder / part["file"], known).encode())
        return whole.hexdigest(), int(info["records"])
    except OSError as error:
        raise NearfarError(f"{error.filename}: {error.strerror}; capture it again") from None
    except (ValueError, KeyError, TypeError):
        raise NearfarError(f"{folder / 'trace.json'}: is damaged; capture it again") from None


def _file_digest(file: Path, known: Digests) -> str:
    if not file.is_file():
        raise NearfarError(f"{file}: is no regular file; capture the trace again")
    status = file.stat()
    name = str(file.absolute())
    stamp = [status.st_size, status.st_mtime_ns, status.st_ino]
    found: Sequence[Any] = known.get(name, ())
    if len(found) != 2 or list(found[0]) != stamp:
        with file.open("rb") as stream:
            found = [stamp, hashlib.file_digest(stream, "sha256").hexdigest()]
        known[name] = found
    return str(found[1])
