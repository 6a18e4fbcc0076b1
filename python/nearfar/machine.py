"""Machine descriptions: the parts of a machine and their access times.

>>> machine = load("desktop-nvm")
>>> machine.io_ns("nvm-10x", [512, 4096])
[500.0, 4000.0]
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from nearfar import _engine
from nearfar._engine import AccessTimes, Machine
from nearfar.errors import NearfarError
from nearfar.schema import MachineLike
from nearfar.sizes import list_of

__all__ = [
    "HERE",
    "SEARCH",
    "AccessTimes",
    "Machine",
    "MachineLike",
    "listed",
    "load",
    "measured_file",
    "names",
    "paging_machine",
    "paging_machines",
    "paging_to_storage",
    "parse",
    "parse_set",
    "schema",
    "usual",
    "with_storages",
    "words",
]

#: Folder of machine files, which take precedence over built-in machines of the same name.
SEARCH = Path("machines")

#: Name of this machine, after ``nearfar machine measure``.
HERE: Final = "here"

#: The default machine if this one was not measured.
_DEFAULT: Final = "nvme"


def names() -> list[str]:
    """Names of the built-in machines, sorted."""
    return [name for name, _ in _engine.machine_builtin()]


def paging_to_storage() -> list[str]:
    """Names of the built-in machines with a storage, sorted."""
    return [name for name in names() if load(name).storages]


def measured_file() -> Path:
    """The file that ``nearfar machine measure`` writes."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "nearfar" / f"{HERE}.toml"


def usual() -> str:
    """Name of the default machine of studies: this one if it was measured, else `nvme`."""
    return HERE if measured_file().is_file() else _DEFAULT


def load(
    machine: MachineLike,
    search: Path = SEARCH,
    *,
    set: Mapping[str, object] | None = None,  # noqa: A002
) -> Machine:
    """Load a machine.

    >>> load("cxl-a", set={"node.slow.read_latency": "200ns"}).set_values
    [('node.slow.read_latency', '200ns')]

    Args:
        machine: a path (contains ``/`` or ends in ``.toml``); a name, of ``search/NAME.toml`` or
            else of a built-in machine; or a machine.
        search: the folder of machine files.
        set: values that replace those of the file, by key, as ``--set`` (docs/machine.md).

    Raises:
        NearfarError: unknown machine; invalid file, with file, line and key; unknown key or
            invalid value in ``set``.
    """
    if isinstance(machine, Machine):
        loaded = machine
    elif machine == HERE and not (search / f"{HERE}.toml").exists():
        if not measured_file().is_file():
            raise NearfarError(
                f"machine {HERE}: this machine was not measured; run `nearfar machine measure`"
            )
        loaded = Machine.parse(HERE, measured_file().read_text(encoding="utf-8"))
    else:
        loaded = Machine.load(str(machine), search)
    if not set:
        return loaded
    return loaded.with_values([(key, str(value)) for key, value in set.items()])


def parse_set(texts: list[str]) -> dict[str, str]:
    """Parse ``KEY=VALUE`` texts.

    Raises:
        NearfarError: a text without ``=``.
    """
    values = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (key and equals and value):
            raise NearfarError(
                f"--set {text[:60]}: write KEY=VALUE, such as node.slow.read_latency=200ns"
            )
        values[key] = value
    return values


def paging_machine(machine: MachineLike | None, storage: Sequence[str] = ()) -> Machine:
    """The machine of a study with storage; None for the default machine.

    If the default machine was measured without storage, it borrows that of `nvme`.
    """
    loaded = load(usual() if machine is None else machine)
    if machine is None and not loaded.storages and not storage:
        storage = list(load(_DEFAULT).storages)
    return with_storages(loaded, storage)


def paging_machines(
    machine: MachineLike | Sequence[MachineLike] | None, storage: Sequence[str] = ()
) -> list[Machine]:
    """The machines of a study with storage: one as :func:`paging_machine`, or several.

    Several machines do not borrow storages.

    Raises:
        NearfarError: unknown machine, or two machines with the same name.
    """
    chosen = listed(machine)
    if chosen is None or len(chosen) == 1:
        return [paging_machine(None if chosen is None else chosen[0], storage)]
    loaded = [paging_machine(name) for name in chosen]
    names = [machine.name for machine in loaded]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None or not loaded:
        what = f"{twice!r} is given twice" if twice is not None else "none is given"
        raise NearfarError(f"--machine: {what}; give different machines")
    return loaded


def listed(machine: MachineLike | Sequence[MachineLike] | None) -> list[MachineLike] | None:
    """The machines of an option; None for None."""
    if machine == "all":
        return list(paging_to_storage())
    if isinstance(machine, str):
        return [*list_of(machine)]
    if isinstance(machine, Path | Machine):
        return [machine]
    return None if machine is None else list(machine)


def words(machine: MachineLike | Sequence[MachineLike] | None) -> list[str]:
    """Command-line words for these machines; ``--set`` is taken from the first, as all share it."""
    chosen = listed(machine)
    if chosen is None:
        return []
    # ``Machine.flags``: ``--machine``, its name or path, then ``--set`` options.
    flags = [entry.flags if isinstance(entry, Machine) else ["", str(entry)] for entry in chosen]
    return ["--machine", ",".join(each[1] for each in flags), *(flags[0][2:] if flags else [])]


def with_storages(machine: Machine, storage: Sequence[str]) -> Machine:
    """``machine`` with missing storages copied from built-in machines.

    >>> list(with_storages(load("nvme"), ["nvme", "optane-ssd"]).storages)
    ['nvme', 'optane-ssd']

    Raises:
        NearfarError: no built-in machine has the storage; the message names the nearest one.
    """
    owners = {name: _owner(name, machine) for name in storage if name not in machine.storages}
    # zram first, so that it keeps files on the machine's own disk, not on one copied here.
    for name in sorted(owners, key=lambda name: owners[name].storages[name] != "zram"):
        machine = machine.with_storage_of(owners[name], name)
    return machine


def _owner(storage: str, beside: Machine) -> Machine:
    """The first built-in machine, by name, with ``storage``, which ``beside`` lacks."""
    known = dict.fromkeys(beside.storages, beside)
    for name in names():
        machine = load(name)
        for device in machine.storages:
            known.setdefault(device, machine)
    if storage not in known:
        near = difflib.get_close_matches(storage, known, 1, 0.0)
        raise NearfarError(
            f"storage {storage[:40]!r}: neither machine {beside.name} nor a built-in one has it; "
            f"did you mean {near[0]}? (`nearfar machine list` lists them)"
        )
    return known[storage]


def parse(name: str, text: str) -> Machine:
    """Parse a machine file; ``name`` is for messages. Raises as :func:`load`."""
    return Machine.parse(name, text)


def schema() -> dict[str, object]:
    """JSON Schema (2020-12) of a machine file, generated from the types that parse it."""
    schema: dict[str, object] = json.loads(_engine.machine_schema())
    return schema
