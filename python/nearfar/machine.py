"""Machine descriptions: what a machine is made of, how long its accesses take.

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
from typing import Any, Final

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

#: Folder in which a machine given by name is looked for before the built-in ones.
SEARCH = Path("machines")

#: Name of the machine that this runs on, once ``nearfar machine measure`` was run.
HERE: Final = "here"

#: The machine of a study where this one was not measured.
_USUAL: Final = "nvme"


def names() -> list[str]:
    """Names of the built-in machines, sorted."""
    return [name for name, _ in _engine.machine_builtin()]


def paging_to_storage() -> list[str]:
    """Names of the built-in machines that have a storage to page to, sorted."""
    return [name for name in names() if load(name).storages]


def measured_file() -> Path:
    """Where ``nearfar machine measure`` keeps what it found of this machine."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "nearfar" / f"{HERE}.toml"


def usual() -> str:
    """Name of the machine of a study that names none: this one if it was measured, else `nvme`."""
    return HERE if measured_file().is_file() else _USUAL


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
        machine: a path (it holds a ``/`` or ends in ``.toml``), or a name, looked for as
            ``search/NAME.toml`` and then among the built-in machines; or a machine.
        search: the folder to look in.
        set: values in place of the file's, by key, as ``--set`` (docs/machine.md).

    Raises:
        NearfarError: there is no such machine, or its file is wrong; the message names the file,
            the line and the key. Or a key of ``set`` is unknown or its value wrong.
    """
    if isinstance(machine, Machine):
        found = machine
    elif machine == HERE and not (search / f"{HERE}.toml").exists():
        if not measured_file().is_file():
            raise NearfarError(
                f"machine {HERE}: this machine was not measured; run `nearfar machine measure`"
            )
        found = Machine.parse(HERE, measured_file().read_text(encoding="utf-8"))
    else:
        found = Machine.load(str(machine), search)
    if not set:
        return found
    return found.with_values([(key, str(value)) for key, value in set.items()])


def parse_set(texts: list[str]) -> dict[str, str]:
    """Keys and values of ``KEY=VALUE`` texts.

    Raises:
        NearfarError: one has no ``=``.
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
    """The machine of a study that pages to storage; None is the usual one.

    One that was measured without a storage has the usual one's.
    """
    found = load(usual() if machine is None else machine)
    if machine is None and not found.storages and not storage:
        storage = list(load(_USUAL).storages)
    return with_storages(found, storage)


def paging_machines(
    machine: MachineLike | Sequence[MachineLike] | None, storage: Sequence[str] = ()
) -> list[Machine]:
    """The machines of a study that pages to storage: one as :func:`paging_machine` has it.

    Several are whole hosts, each with the storages that it has.

    Raises:
        NearfarError: there is no such machine, or two have one name.
    """
    chosen = listed(machine)
    if chosen is None or len(chosen) == 1:
        return [paging_machine(None if chosen is None else chosen[0], storage)]
    found = [paging_machine(one) for one in chosen]
    names = [one.name for one in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None or not found:
        what = f"{twice!r} is given twice" if twice is not None else "none is given"
        raise NearfarError(f"--machine: {what}; give different machines")
    return found


def listed(machine: MachineLike | Sequence[MachineLike] | None) -> list[MachineLike] | None:
    """The machines that an option names; None stays None."""
    if machine == "all":
        return list(paging_to_storage())
    if isinstance(machine, str):
        return [*list_of(machine)]
    if isinstance(machine, Path | Machine):
        return [machine]
    return None if machine is None else list(machine)


def words(machine: MachineLike | Sequence[MachineLike] | None) -> list[str]:
    """Words of a command line that mean these machines; values that were set are one for all."""
    chosen = listed(machine)
    if chosen is None:
        return []
    flags = [one.flags if isinstance(one, Machine) else ["", str(one)] for one in chosen]
    return ["--machine", ",".join(own[1] for own in flags), *(flags[0][2:] if flags else [])]


def with_storages(machine: Machine, storage: Sequence[str]) -> Machine:
    """``machine`` with those of ``storage`` that it lacks, as a built-in machine describes them.

    >>> list(with_storages(load("nvme"), ["nvme", "optane-ssd"]).storages)
    ['nvme', 'optane-ssd']

    Raises:
        NearfarError: no built-in machine has one; the message names the nearest that there is.
    """
    for name in storage:
        if name not in machine.storages:
            machine = machine.with_storage_of(_owner(name, machine), name)
    return machine


def _owner(storage: str, beside: Machine) -> Machine:
    """The first built-in machine, by name, that has ``storage``."""
    known = dict.fromkeys(beside.storages, beside)
    for name in names():
        one = load(name)
        for device in one.storages:
            known.setdefault(device, one)
    if storage not in known:
        near = difflib.get_close_matches(storage, known, 1, 0.0)
        raise NearfarError(
            f"--storage: neither machine {beside.name} nor a built-in one has "
            f"{storage[:40]!r}; did you mean {near[0]}? (`nearfar machine list` has them)"
        )
    return known[storage]


def parse(name: str, text: str) -> Machine:
    """Check the text of a machine file; ``name`` is used in messages. Raises as :func:`load`."""
    return Machine.parse(name, text)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a machine file, made from the types that read it."""
    result: dict[str, Any] = json.loads(_engine.machine_schema())
    return result
