"""Names of code: which file has the symbols of a captured one, and what it calls its functions.

A capture notes the build id of every program file that was mapped. A file that has another now is
not asked: it would name the wrong functions.

>>> Symbols({}).functions("[heap]", [0x10])
[Code(function='0x10', file=None, line=None)]
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from nearfar import _engine
from nearfar.errors import NearfarError

#: Where distributions put debug files.
_SYSTEM: Final = Path("/usr/lib/debug")
#: What leads to a line.
_KEYS: Final = ("program", "library", "function", "file", "line")
#: Digits of a build id that a sentence shows.
_SHOWN: Final = 12
#: Why code has no names, or may have wrong ones.
_STRIPPED: Final = "stripped, so functions have no names; give debug files with --symbols"
_GONE: Final = "not there, so functions have no names; give copies with --symbols"
_CHANGED: Final = (
    "another build id than when it was captured, so functions have no names; give the file of then "
    "with --symbols"
)
_UNCHECKED: Final = "the trace has no build id; names are right if the file is the same as then"


class Code(NamedTuple):
    """What a piece of code is called."""

    #: Its function; the address where that begins, in hexadecimal digits, where it has no name.
    function: str
    file: str | None
    line: int | None


@dataclass(frozen=True)
class _Files:
    """The file that was mapped, and the one that has its debug information."""

    image: Path
    debug: Path | None


class Symbols:
    """Finds names, and keeps what it found none for."""

    def __init__(
        self,
        build_ids: Mapping[str, str],
        given: Iterable[str | Path] = (),
        maps: Iterable[Path] = (),
    ) -> None:
        """Keep where to look.

        Args:
            build_ids: of the files that were mapped, by path, as ``trace.json`` has them.
            given: files and folders to look at before the system's own.
            maps: perf maps of the captured processes.

        Raises:
            NearfarError: one that is given does not exist.
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
        """What stands at these offsets of a file that was mapped."""
        files = self._files(file) if file.startswith("/") else None
        if files is None:
            return [_address(offset) for offset in offsets]
        found = json.loads(_engine.elf_names(files.image, offsets, debug=files.debug))
        if not any(name["function"] for name in found):
            self._note(_STRIPPED, file)
        return [
            Code(
                name["function"] or hex(offset if name["start"] is None else name["start"]),
                name["file"],
                name["line"],
            )
            for name, offset in zip(found, offsets, strict=True)
        ]

    def jit(self, addrs: Sequence[int]) -> list[Code | None]:
        """What perf maps say of addresses."""
        found: list[str | None] = [None] * len(addrs)
        for file in self._maps:
            names = _engine.perf_names(file, addrs)
            found = [old or new for old, new in zip(found, names, strict=True)]
        return [None if name is None else Code(name, None, None) for name in found]

    @property
    def notes(self) -> list[str]:
        """What has no names, and why, a sentence for each reason."""
        return [f"{', '.join(files)}: {why}" for why, files in self._unknown.items()]

    def _note(self, why: str, file: str) -> None:
        self._unknown.setdefault(why, []).append(file)

    def _files(self, file: str) -> _Files | None:
        if file not in self._known:
            self._known[file] = self._look(file)
        return self._known[file]

    def _look(self, file: str) -> _Files | None:
        wanted = self._build_ids.get(file)
        name = Path(file).name
        places = [path for path in self._given if path.name == name]
        places += [folder / tail for folder in self._folders for tail in (file[1:], name)]
        places.append(Path(file))
        there = [path for path in places if path.is_file()]
        image = next((path for path in there if wanted in (None, _build_id(path))), None)
        if image is None:
            if there:
                now = _build_id(there[-1]) or "none"
                self._note(_CHANGED, f"{file} ({str(wanted)[:_SHOWN]}, now {now[:_SHOWN]})")
            else:
                self._note(_GONE, file)
            return None
        own = _build_id(image)
        if wanted is None and own is not None:
            self._note(_UNCHECKED, file)
        return _Files(image, self._debug(own, name))

    def _debug(self, own: str | None, name: str) -> Path | None:
        """The debug file of the file with this build id."""
        if own is None:
            return None
        tail = Path(".build-id") / own[:2] / f"{own[2:]}.debug"
        places = [folder / tail for folder in (*self._folders, _SYSTEM)]
        places += [folder / f"{name}.debug" for folder in self._folders]
        places += self._given
        return next((path for path in places if path.is_file() and _build_id(path) == own), None)


def by_line(
    sites: Sequence[Mapping[str, Any]],
    symbols: Symbols,
    command: Sequence[str],
    counts: Sequence[str],
) -> list[Any]:
    """Pieces of code taken together by program, library, function and line, most ``ns`` first.

    Args:
        sites: what the engine says of each: its region, program, offset and address.
        symbols: what names it.
        command: the captured one.
        counts: what is added up.
    """
    first = Path(command[0]).name if command else ""
    of_file: dict[str, list[Mapping[str, Any]]] = {}
    for site in sites:
        of_file.setdefault(site["name"] if site["offset"] is not None else "", []).append(site)
    known: dict[tuple[Any, ...], dict[str, Any]] = {}
    for file, of in of_file.items():
        named: Sequence[Code | None]
        if file:
            named = symbols.functions(file, [site["offset"] for site in of])
        else:
            named = symbols.jit([site["addr"] or 0 for site in of])
        for site, code in zip(of, named, strict=True):
            library = file or ("(compiled at run time)" if code else site["name"])
            function, source, line = code or _address(site["addr"])
            key = (Path(site["program"]).name or first, library, function, source, line)
            one = known.setdefault(
                key, {**dict(zip(_KEYS, key, strict=True)), **dict.fromkeys(counts, 0)}
            )
            for count in counts:
                one[count] += site[count]
    return sorted(known.values(), key=lambda one: -one["ns"])


def _address(offset: int | None) -> Code:
    return Code("" if offset is None else hex(offset), None, None)


def _build_id(file: Path) -> str | None:
    try:
        return _engine.elf_build_id(file)
    except NearfarError:
        return None
