"""``fleet.toml``: many virtual machines, what each runs, and with how much memory on what storage.

::

    storage = "optane-ssd"        # a default for every VM
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

Strict: an unknown key is an error that names the file, the key and the nearest valid key. Sizes and
shares carry their unit.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nearfar import machine as machines
from nearfar.errors import NearfarError
from nearfar.strict import read_toml

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PERCENT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*%")


@dataclass(frozen=True)
class Vm:
    """A virtual machine to advise: one workload, memory size and storage.

    Attributes:
        name: letters, digits, ``.``, ``_`` and ``-``.
        trace: the trace folder of what it runs; workload: a word for that.
        memory: ``60%`` of the peak resident set or bytes, as ``nearfar paging --memory`` takes
            one size.
        machine: name or path of a machine file; storage: one of its storages.
        arch: a key of :data:`nearfar.advise.architectures.ARCHITECTURES`.
        min_gain: share of the 4 KiB page's time that another page must save to be advised.
        scenario: a group it belongs to, such as the host it shares with others; may be empty.
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


#: Keys that may stand at the top, as defaults, and in each VM.
_SHARED: Final = ("memory", "machine", "storage", "arch", "min_gain")
_TOP: Final = (*_SHARED, "vm")
_EACH: Final = (*_SHARED, "trace", "workload", "scenario")


def share(given: str | float, flag: str) -> float:
    """A share: as text such as ``5%``, or a number from 0 to below 1.

    Raises:
        NearfarError: naming ``flag``, if it is not a share from 0 to below 100 %.
    """
    text = given.strip() if isinstance(given, str) else f"{100 * given:.15g}%"
    found = _PERCENT.fullmatch(text)
    if found is None or not float(found[1]) < 100:
        raise NearfarError(f"{flag}: {text[:40]!r} is no share below 100 %; write 5%")
    return float(found[1]) / 100


def read(path: str | Path, defaults: Mapping[str, str]) -> list[Vm]:
    """Read a fleet file; the VMs in its order.

    Args:
        path: the file.
        defaults: text for each shared key that neither the VM nor the top of the file has:
            ``memory``, ``arch`` and ``min_gain``; ``storage`` and ``machine`` may be missing, and a
            VM without a machine gets a built-in one that has its storage.

    Raises:
        NearfarError: the file cannot be read, or a key or value is wrong.
    """
    file = Path(path)
    content = read_toml(file, "a fleet file", "docs/advise.md")
    _known(file, "", content, _TOP)
    top: dict[str, str] = {key: _text(file, key, content[key]) for key in _SHARED if key in content}
    machines = content.get("vm")
    if not isinstance(machines, dict) or not machines:
        raise NearfarError(f"{file}: no virtual machines; add a section such as [vm.web]")
    found = []
    for name, given in machines.items():
        where = f"[vm.{name[:70]}] "
        if not _NAME.fullmatch(name):
            raise NearfarError(
                f"{file}: {where}is no name for a VM; use letters, digits, `.`, `_` and `-`, "
                "64 at most"
            )
        if not isinstance(given, dict):
            raise NearfarError(f"{file}: vm.{name} is not a section; write [vm.{name}]")
        _known(file, where, given, _EACH)
        own: dict[str, str] = {key: _text(file, where + key, value) for key, value in given.items()}
        found.append(_vm(file, where, name, {**defaults, **top, **own}))
    return found


def _vm(file: Path, where: str, name: str, answer: Mapping[str, str]) -> Vm:
    if "trace" not in answer:
        raise NearfarError(f"{file}: {where}trace: is missing; name the trace folder of the VM")
    trace = file.parent / answer["trace"]
    machine = answer.get("machine") or machines.usual()
    if machine.endswith(".toml") and (file.parent / machine).is_file():
        machine = str(file.parent / machine)
    storage = answer.get("storage") or _only_storage(f"{file}: {where}", machine)
    return Vm(
        name=name,
        trace=trace,
        workload=answer.get("workload", trace.name.removesuffix(".trace")),
        memory=answer["memory"],
        machine=machine,
        storage=storage,
        arch=answer["arch"],
        min_gain=share(answer["min_gain"], f"{file}: {where}min_gain"),
        scenario=answer.get("scenario", ""),
    )


def _only_storage(where: str, machine: str) -> str:
    """The storage of a machine that has one.

    Raises:
        NearfarError: naming them, where it has several or none.
    """
    found = list(machines.load(machine).storages)
    if len(found) == 1:
        return found[0]
    has = f"has {', '.join(found)}" if found else "has none"
    raise NearfarError(f"{where}storage: is missing, and machine {machine} {has}; name one")


def _known(file: Path, where: str, given: Mapping[str, Any], keys: Sequence[str]) -> None:
    for key in given:
        if key not in keys:
            near = difflib.get_close_matches(key, keys, 1, 0.0)
            raise NearfarError(
                f"{file}: {where}{key[:40]}: unknown key; did you mean `{near[0]}`? "
                f"(keys: {', '.join(keys)})"
            )


def _text(file: Path, key: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise NearfarError(
            f'{file}: {key}: is not text; write its unit and quote it, as in "60%" or "512MiB"'
        )
    return value.strip()
