"""Machine descriptions: what a machine is made of, how long its accesses take.

>>> machine = load("desktop-nvm")
>>> machine.io_ns("nvm-10x", [512, 4096])
[500.0, 4000.0]
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearfar import _engine
from nearfar.errors import NearfarError
from nearfar.schema import MachineLike

#: The machine that is meant unless another is named.
USUAL = "desktop-nvm"

#: Folder in which a machine given by name is looked for before the built-in ones.
SEARCH = Path("machines")


@dataclass(frozen=True)
class AccessTimes:
    """Times of one memory reference, nanoseconds (T_TLB and T_DRAM of papers 000 and 001)."""

    tlb_ns: float
    dram_ns: float
    #: What a second-level TLB hit adds; None where the machine has no second level.
    stlb_ns: float | None


@dataclass(frozen=True)
class Machine:
    """One machine, already checked.

    Attributes:
        name: its file's stem.
        json: the description as JSON text that follows :func:`schema`.
    """

    name: str
    json: str

    def to_dict(self) -> dict[str, Any]:
        """Give the description as plain values: each number is ``{"value", "source"}``."""
        result: dict[str, Any] = json.loads(self.json)
        return result

    @property
    def description(self) -> str:
        """What the machine stands for."""
        return str(self.to_dict()["description"])

    @property
    def storages(self) -> dict[str, str]:
        """Kind of each storage device, by name."""
        devices = self.to_dict().get("storage", {})
        return {name: next(iter(device)) for name, device in devices.items()}

    def access_times(self) -> AccessTimes:
        """Give the times of one reference; an error if the machine has no TLB or no DRAM."""
        return AccessTimes(*_engine.machine_access_times(self.name, self.json))

    def io_ns(self, storage: str, page_bytes: Sequence[int]) -> list[float]:
        """Nanoseconds to read a page of each size, in bytes, from ``storage``."""
        return self._io(storage, page_bytes)[0]

    def write_ns(self, storage: str, page_bytes: Sequence[int]) -> list[float]:
        """Nanoseconds to write a page of each size, in bytes, to ``storage``."""
        return self._io(storage, page_bytes)[1]

    def _io(self, storage: str, page_bytes: Sequence[int]) -> tuple[list[float], list[float]]:
        read, write = _engine.machine_io(self.name, self.json, storage, list(page_bytes))
        return list(read), list(write)


def names() -> list[str]:
    """Names of the built-in machines, sorted."""
    return [name for name, _ in _engine.machine_builtin()]


def paging_to_storage() -> list[str]:
    """Names of the built-in machines that have a storage to page to, sorted."""
    return [name for name in names() if load(name).storages]


def load(path_or_name: MachineLike, search: Path = SEARCH) -> Machine:
    """Load a machine.

    Args:
        path_or_name: a path (it holds a ``/`` or ends in ``.toml``), or a name, looked for as
            ``search/NAME.toml`` and then among the built-in machines.
        search: the folder to look in.

    Raises:
        NearfarError: there is no such machine, or its file is wrong; the message names the file,
            the line and the key.
    """
    text = _engine.machine_load(str(path_or_name), search)
    return Machine(Path(path_or_name).name.removesuffix(".toml"), text)


def with_storage(storage: str, first: str) -> str:
    """Name of a built-in machine that has ``storage``: ``first`` if it does, else by name.

    Raises:
        NearfarError: no built-in machine has it; the message names the nearest that one has.
    """
    known: dict[str, str] = {}
    for name in [first, *names()]:
        for device in load(name).storages:
            known.setdefault(device, name)
    if storage not in known:
        near = difflib.get_close_matches(storage, known, 1, 0.0)
        raise NearfarError(
            f"storage {storage[:40]!r}: no built-in machine has it; did you mean {near[0]}? "
            "or name the machine (see `nearfar machine list`)"
        )
    return known[storage]


def parse(name: str, text: str) -> Machine:
    """Check the text of a machine file; ``name`` is used in messages. Raises as :func:`load`."""
    checked = _engine.machine_parse(name, text)
    return Machine(Path(name).name.removesuffix(".toml"), checked)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a machine file, made from the types that read it."""
    result: dict[str, Any] = json.loads(_engine.machine_schema())
    return result
