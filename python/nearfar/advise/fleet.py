"""``fleet.toml``: many virtual machines, each with a workload, a memory size and a storage.

::

    storage = "optane-ssd"        # default of every VM
    machine = "optane-ssd"

    [vm.web]
    trace = "web.trace"           # relative to this file
    memory = "60%"                # of the peak resident set, or bytes: "512MiB"

    [vm.archive]
    trace = "archive.trace"
    memory = "64MiB"
    machine = "desktop-hdd"
    storage = "hdd"
    min_gain = "10%"

An unknown key is an error that names the nearest valid key. Sizes and shares need a unit.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Final

from nearfar import machine as machines
from nearfar.errors import NearfarError
from nearfar.strict import read_toml

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PERCENT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*%")


@dataclass(frozen=True)
class Vm:
    """A virtual machine: one workload, memory size and storage.

    Attributes:
        name: letters, digits, ``.``, ``_`` and ``-``.
        trace: the trace folder of its workload.
        workload: the name of the workload.
        memory: one size as ``nearfar paging --memory`` takes it: bytes, or ``60%`` of the peak
            resident set.
        machine: name or path of a machine file.
        storage: one of the machine's storages.
        arch: a key of :data:`nearfar.advise.architectures.ARCHITECTURES`.
        min_gain: share of the time with 4 KiB pages that another size must save to be advised.
        scenario: name of a group of VMs; may be empty.
    """

    name: str
    trace: Path
    workload: str
    memory: str
    machine: str
    storage: str
    arch: str
    min_gain: float
    scenario: str = ""


#: Keys of a VM that may also be at the top of the file, as defaults.
_SHARED: Final = ("memory", "machine", "storage", "arch", "min_gain")
_TOP_KEYS: Final = (*_SHARED, "vm")
_VM_KEYS: Final = (*_SHARED, "trace", "workload", "scenario")


def share(value: str | float, flag: str) -> float:
    """Parse a share: text such as ``5%``, or a number from 0 to below 1.

    Raises:
        NearfarError: it is not one; the message names ``flag``.
    """
    text = value.strip() if isinstance(value, str) else share_text(value)
    match = _PERCENT.fullmatch(text)
    if match is None or not float(match[1]) < 100:
        raise NearfarError(f"{flag}: {text[:40]!r} is not a share below 100 %; write 5%")
    return float(match[1]) / 100


def share_text(value: float) -> str:
    """A share as text that :func:`share` reads, such as ``5%``."""
    return f"{100 * value:.13f}".rstrip("0").rstrip(".") + "%"


def read(path: str | Path, defaults: Mapping[str, str]) -> list[Vm]:
    """Read the VMs of a fleet file, in its order.

    Args:
        path: the file.
        defaults: values of shared keys that the file leaves out: ``memory``, ``arch``,
            ``min_gain``, and optionally ``machine`` and ``storage``.

    Raises:
        NearfarError: the file cannot be read, or a key or value is wrong.
    """
    file = Path(path)
    content = read_toml(file, "a fleet file", "docs/advise.md")
    _check_keys(file, "", content, _TOP_KEYS)
    top: dict[str, str] = {key: _text(file, key, content[key]) for key in _SHARED if key in content}
    sections = content.get("vm")
    if not isinstance(sections, dict) or not sections:
        raise NearfarError(f"{file}: no virtual machines; add a section such as [vm.web]")
    vms = []
    for name, section in sections.items():
        where = f"[vm.{name[:70]}] "
        if not _NAME.fullmatch(name):
            raise NearfarError(
                f"{file}: {where}is not a name for a VM; use up to 64 letters, digits, `.`, `_` "
                "and `-`"
            )
        if not isinstance(section, dict):
            raise NearfarError(f"{file}: vm.{name} is not a section; write [vm.{name}]")
        _check_keys(file, where, section, _VM_KEYS)
        values = {key: _text(file, where + key, value) for key, value in section.items()}
        vms.append(_vm(file, where, name, {**defaults, **top, **values}))
    return vms


def inputs_of(
    given: str | PathLike[str] | Sequence[str | PathLike[str]],
) -> tuple[list[Path], Path | None]:
    """The given paths, and the fleet file among them; None if all are traces.

    Raises:
        NearfarError: a fleet file is given together with other paths.
    """
    paths = [Path(path) for path in ([given] if isinstance(given, str | PathLike) else given)]
    fleet = next((path for path in paths if path.suffix == ".toml"), None)
    if fleet is not None and len(paths) > 1:
        raise NearfarError(f"{fleet}: give one fleet file and nothing else, or only traces")
    return paths, fleet


def distinct(vms: Sequence[Vm]) -> list[Vm]:
    """The VMs with ``-2``, ``-3``, ... appended to repeated names, which become file names."""
    given, used = {vm.name for vm in vms}, set[str]()
    renamed = []
    for vm in vms:
        name, count = vm.name, 1
        while name in used or (count > 1 and name in given):
            count += 1
            name = f"{vm.name}-{count}"
        used.add(name)
        renamed.append(replace(vm, name=name))
    return renamed


def _vm(file: Path, where: str, name: str, values: Mapping[str, str]) -> Vm:
    if "trace" not in values:
        raise NearfarError(f"{file}: {where}trace: is missing; name the trace folder of the VM")
    trace = file.parent / values["trace"]
    machine = values.get("machine") or machines.usual()
    if machine.endswith(".toml") and (file.parent / machine).is_file():
        machine = str(file.parent / machine)
    storage = values.get("storage") or _only_storage(f"{file}: {where}", machine)
    return Vm(
        name=name,
        trace=trace,
        workload=values.get("workload", trace.name.removesuffix(".trace")),
        memory=values["memory"],
        machine=machine,
        storage=storage,
        arch=values["arch"],
        min_gain=share(values["min_gain"], f"{file}: {where}min_gain"),
        scenario=values.get("scenario", ""),
    )


def _only_storage(where: str, machine: str) -> str:
    """The storage of a machine with one storage.

    Raises:
        NearfarError: it has several or none.
    """
    storages = list(machines.load(machine).storages)
    if len(storages) == 1:
        return storages[0]
    has = f"has {', '.join(storages)}" if storages else "has none"
    raise NearfarError(f"{where}storage: is missing, and machine {machine} {has}; name one")


def _check_keys(file: Path, where: str, section: Mapping[str, object], keys: Sequence[str]) -> None:
    for key in section:
        if key not in keys:
            near = difflib.get_close_matches(key, keys, n=1, cutoff=0.0)
            raise NearfarError(
                f"{file}: {where}{key[:40]}: unknown key; did you mean `{near[0]}`? "
                f"(keys: {', '.join(keys)})"
            )


def _text(file: Path, key: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise NearfarError(
            f'{file}: {key}: is not text; quote it, with its unit, as in "60%" or "512MiB"'
        )
    return value.strip()
