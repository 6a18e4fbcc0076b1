"""Names of code: finds the file with the symbols of a captured file, and reads its functions.

A capture records the build id of every mapped program file. A file with another build id is not
used: its names would be wrong.

>>> Symbols({}).functions("[heap]", [0x10])
[Code(function='0x10', file=None, line=None)]
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypedDict, TypeVar, cast

from nearfar import _engine
from nearfar.declared import explain as declared
from nearfar.errors import NearfarError

#: The distributions' folder of debug files.
_SYSTEM: Final = Path("/usr/lib/debug")
#: The number of digits of a build id that a message shows.
_SHOWN: Final = 12
#: Reasons why code has no names, or may have wrong ones.
_STRIPPED: Final = "stripped, so functions have no names; give debug files with --symbols"
_GONE: Final = "missing, so functions have no names; give copies with --symbols"
_CHANGED: Final = (
    "not the build id of the capture, so functions have no names; give the captured file with "
    "--symbols"
)
_UNCHECKED: Final = "the trace has no build id; names are right if the file has not changed since"


class Costs(declared.TotalRow):
    """Counts, and the time that they cost: the common columns of the rows of ``explain``."""

    ns: float
    share: float


class Site(Costs):
    """A block of instructions: its region or file, its address, its offset in the file."""

    name: str
    program: str
    offset: int | None
    addr: int | None


class HotSite(TypedDict):
    """A block of instructions, and its sampled references to hot memory part number ``part``."""

    name: str
    program: str
    offset: int | None
    addr: int
    part: int
    samples: int


S = TypeVar("S", Site, HotSite)


class Code(NamedTuple):
    """The name of a piece of code."""

    #: Its function; without a name, the address of its start in hexadecimal digits.
    function: str
    file: str | None
    line: int | None


#: A mapped file, and the file with its debug information.
_Files = tuple[Path, Path | None]


class Symbols:
    """Finds the names of code, and keeps a list of files without names."""

    def __init__(
        self,
        build_ids: Mapping[str, str],
        given: Iterable[str | Path] = (),
        maps: Iterable[Path] = (),
    ) -> None:
        """Set where to search.

        Args:
            build_ids: of the mapped files, by path, from ``trace.json``.
            given: files and folders to search before the system's.
            maps: perf maps of the captured processes.

        Raises:
            NearfarError: one of ``given`` does not exist.
        """
        self._unknown: dict[str, list[str]] = {}
        self._build_ids = build_ids
        self._folders: list[Path] = []
        self._given: list[Path] = []
        self._maps: list[Path] = list(maps)
        for name in given:
            path = Path(name)
            if path.is_dir():
                self._folders.append(path)
                self._maps += sorted(path.glob("perf-*.map"))
            elif not path.is_file():
                raise NearfarError(f"--symbols: {path}: no such file or folder; check the path")
            elif path.suffix == ".map":
                self._maps.append(path)
            else:
                self._given.append(path)
        self._known: dict[str, _Files | None] = {}

    def functions(self, file: str, offsets: Sequence[int]) -> list[Code]:
        """The code at these offsets of a mapped file."""
        files = self._files(file) if file.startswith("/") else None
        if files is None:
            return [_address(offset) for offset in offsets]
        image, debug = files
        names = json.loads(_engine.elf_names(image, offsets, debug=debug))
        if not any(name["function"] for name in names):
            self._note(_STRIPPED, file)
        return [
            Code(
                name["function"] or hex(offset if name["start"] is None else name["start"]),
                name["file"],
                name["line"],
            )
            for name, offset in zip(names, offsets, strict=True)
        ]

    def jit(self, addrs: Sequence[int]) -> list[Code | None]:
        """The names of addresses in perf maps."""
        names: list[str | None] = [None] * len(addrs)
        for file in self._maps:
            more = _engine.perf_names(file, addrs)
            names = [old or new for old, new in zip(names, more, strict=True)]
        return [None if name is None else Code(name, None, None) for name in names]

    def codes(self, sites: Iterable[S]) -> Iterator[tuple[S, str, Code | None]]:
        """Each site with its file and its code, one file after the other.

        Code that was compiled at run time has no file, and a name only in perf maps.
        """
        by_file: dict[str, list[S]] = {}
        for site in sites:
            by_file.setdefault(site["name"] if site["offset"] is not None else "", []).append(site)
        for file, group in by_file.items():
            codes: Sequence[Code | None]
            if file:
                codes = self.functions(file, [site["offset"] or 0 for site in group])
            else:
                codes = self.jit([site["addr"] or 0 for site in group])
            for site, code in zip(group, codes, strict=True):
                yield site, file, code

    @property
    def notes(self) -> list[str]:
        """Files without names, a sentence for each reason."""
        return [f"{', '.join(files)}: {why}" for why, files in self._unknown.items()]

    def _note(self, why: str, file: str) -> None:
        self._unknown.setdefault(why, []).append(file)

    def _files(self, file: str) -> _Files | None:
        """The files of a mapped file, cached."""
        if file not in self._known:
            self._known[file] = self._search(file)
        return self._known[file]

    def _search(self, file: str) -> _Files | None:
        wanted = self._build_ids.get(file)
        name = Path(file).name
        places = [path for path in self._given if path.name == name]
        places += [folder / tail for folder in self._folders for tail in (file[1:], name)]
        places.append(Path(file))
        files = [path for path in places if path.is_file()]
        image = next((path for path in files if wanted in (None, _build_id(path))), None)
        if image is None:
            if files:
                now = _build_id(files[-1]) or "none"
                self._note(_CHANGED, f"{file} ({str(wanted)[:_SHOWN]}, now {now[:_SHOWN]})")
            else:
                self._note(_GONE, file)
            return None
        build_id = _build_id(image)
        if wanted is None and build_id is not None:
            self._note(_UNCHECKED, file)
        return image, self._debug(build_id, name)

    def _debug(self, build_id: str | None, name: str) -> Path | None:
        """The file with the debug information of the file with this build id."""
        if build_id is None:
            return None
        tail = Path(".build-id") / build_id[:2] / f"{build_id[2:]}.debug"
        places = [folder / tail for folder in (*self._folders, _SYSTEM)]
        places += [folder / f"{name}.debug" for folder in self._folders]
        places += self._given
        files = (path for path in places if path.is_file())
        return next((path for path in files if _build_id(path) == build_id), None)


def by_line(
    sites: Sequence[Site], symbols: Symbols, command: Sequence[str]
) -> list[declared.FunctionsRow]:
    """Sums over code of the same program, library, function and line, most ``ns`` first.

    Args:
        sites: the blocks of instructions.
        symbols: their names.
        command: the captured command.
    """
    first = Path(command[0]).name if command else ""
    lines: dict[tuple[str, str, str, str | None, int | None], declared.FunctionsRow] = {}
    for site, file, code in symbols.codes(sites):
        library = file or ("(compiled at run time)" if code else site["name"])
        function, source, line = code or _address(site["addr"])
        program = Path(site["program"]).name or first
        key = (program, library, function, source, line)
        if key in lines:
            add(lines[key], site)
            continue
        lines[key] = {
            "program": program,
            "library": library,
            "function": function,
            "file": source,
            "line": line,
            **costs_of(site),
        }
    return sorted(lines.values(), key=lambda row: -row["ns"])


def costs_of(row: Costs) -> Costs:
    """The counts and times of a row."""
    names = (*(column.name for column in declared.TOTAL_ROWS.columns), "ns", "share")
    return cast("Costs", {name: row[name] for name in names})  # type: ignore[literal-required]


def add(total: Costs, row: Costs) -> None:
    """Add the counts and times of a row to a total."""
    for name, value in costs_of(row).items():
        total[name] += value  # type: ignore[literal-required]


def _address(offset: int | None) -> Code:
    return Code("" if offset is None else hex(offset), None, None)


def _build_id(file: Path) -> str | None:
    try:
        return _engine.elf_build_id(file)
    except NearfarError:
        return None
