"""Licences and origins of everything that nearfar is built from and runs with.

Reads ``deny.toml`` and what is installed; no network. Of Rust, the packages of ``Cargo.lock`` (the
workspace and the QEMU plugin) by ``cargo metadata``; of Python, the closure of the requirements of
the installed package::

    python tests/licences.py
"""

from __future__ import annotations

import fnmatch
import functools
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
_OURS: Final = "Apache-2.0 OR MIT"
#: Workspaces: the licence of their own crates, and what else theirs may have. The plugin is part of
#: QEMU; libFuzzer is never part of what is given to anybody.
WORKSPACES: Final = {
    "Cargo.toml": (_OURS, ()),
    "capture/qemu-plugin/Cargo.toml": ("GPL-2.0-or-later", ("GPL-2.0-or-later",)),
    "fuzz/Cargo.toml": (_OURS, ("NCSA",)),
}
#: Words with which packages that have no licence expression name their licence.
_SPOKEN: Final = {
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "ISC License (ISCL)": "ISC",
    "Apache Software License": "Apache-2.0",
    "Python Software Foundation License": "PSF-2.0",
}


@dataclass(frozen=True)
class Package:
    """A dependency: its name and version, its licence as it states it, where it comes from."""

    name: str
    licence: str
    origin: str


def accepted(expression: str, allowed: frozenset[str]) -> bool:
    """Whether a licence expression (SPDX; ``/`` is an old OR) can be met by what is allowed."""
    text = expression.replace("/", " OR ")
    words = re.findall(r"[()]|[^\s()]+", text)
    place = 0

    def either() -> bool:
        nonlocal place
        holds = both()
        while words[place : place + 1] == ["OR"]:
            place += 1
            holds = both() or holds
        return holds

    def both() -> bool:
        nonlocal place
        holds = one()
        while words[place : place + 1] == ["AND"]:
            place += 1
            holds = one() and holds
        return holds

    def one() -> bool:
        nonlocal place
        if words[place : place + 1] == ["("]:
            place += 1
            holds = either()
            if words[place : place + 1] != [")"]:
                raise ValueError(f"{expression!r}: a bracket is not closed")
            place += 1
            return holds
        if place == len(words) or words[place] in ("AND", "OR", "WITH", ")"):
            raise ValueError(f"{expression!r}: not a licence expression")
        name = words[place]
        place += 1
        if words[place : place + 1] == ["WITH"]:
            name = " ".join([name, *words[place : place + 2]])
            place += 2
        return name in allowed

    holds = either()
    if place != len(words):
        raise ValueError(f"{expression!r}: not a licence expression")
    return holds


def rust(manifest: str) -> Iterator[Package]:
    """Packages of a workspace, itself included."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    command += ["--manifest-path", str(ROOT / manifest)]
    # A workspace that was never built here (the fuzz targets) has crates yet to be fetched.
    for words in ([*command, "--offline"], command):
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
    else:
        raise SystemExit(f"{manifest}: {done.stderr.strip()}")
    for found in json.loads(done.stdout)["packages"]:
        name = f"{found['name']} {found['version']}"
        yield Package(name, found["license"] or "", found["source"] or "here")


def python() -> Iterator[Package]:
    """What the installed nearfar needs to run, and what that needs."""
    from packaging.requirements import Requirement

    wanted, seen = ["nearfar"], set()
    while wanted:
        name = wanted.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in seen:
            continue
        seen.add(key)
        found = importlib.metadata.distribution(name)
        yield Package(f"{found.name} {found.version}", _licence(found.metadata), "installed")
        for line in found.requires or []:
            needed = Requirement(line)
            # Extras are the user's choice.
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                wanted.append(needed.name)


def _licence(metadata: Any) -> str:
    """The licence expression, or what stands for it in older metadata."""
    if stated := metadata.get("License-Expression"):
        return str(stated)
    spoken = [
        _SPOKEN.get(line.rpartition(" :: ")[2], line.rpartition(" :: ")[2])
        for line in metadata.get_all("Classifier") or []
        if line.startswith("License ::") and "::" in line[10:]
    ]
    text = str(metadata.get("License") or "").strip()
    return " OR ".join(spoken) or (text if "\n" not in text else "")


@functools.cache
def registry() -> str:
    """Where crates come from: the one registry that all locked crates share, or there is none."""
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text(encoding="utf-8"))["package"]
    sources = {package["source"] for package in locked if "source" in package}
    return sources.pop() if len(sources) == 1 else ""


def wrong(
    package: Package, rules: Mapping[str, Any], own: str, also: tuple[str, ...] = ()
) -> str | None:
    """What is wrong with a package by ``deny.toml``.

    ``own``: the licence of what is here; ``also``: licences that are allowed beside the usual.
    """
    if package.origin == "here":
        return None if package.licence == own else f"{package.licence!r} where all is {own}"
    if package.origin not in ("installed", registry()):
        return f"comes from {package.origin}"
    for banned in rules["bans"]["deny"]:
        if fnmatch.fnmatchcase(package.name, f"{banned['crate']} *"):
            return "is banned"
    allowed = frozenset([*rules["licenses"]["allow"], *also])
    if not package.licence:
        return "states no licence"
    try:
        if accepted(package.licence, allowed):
            return None
    except ValueError as error:
        return str(error)
    return f"has the licence {package.licence}"


def main() -> int:
    """Say what is wrong, and how many were looked at."""
    rules = tomllib.loads((ROOT / "deny.toml").read_text(encoding="utf-8"))
    failed = 0
    groups = [(manifest, rust(manifest), *may) for manifest, may in WORKSPACES.items()]
    for place, packages, own, also in [*groups, ("Python", python(), _OURS, ())]:
        count = 0
        for package in packages:
            count += 1
            if (why := wrong(package, rules, own, also)) is not None:
                failed += 1
                print(f"{place}: {package.name}: {why}")
        print(f"{place}: {count} packages")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
