"""Which mappings want larger pages, and a wrapper that asks for them for what malloc gives.

Sets: ``glibc.malloc.hugetlb=1`` for the program that it runs, where the heap wants larger pages:
glibc 2.35 and later then calls ``madvise`` for all of malloc's memory. Its comments have the map of
mappings and pages, what the host must allow, and lines of C for mappings that the program makes
itself.

Cannot: give two mappings different sizes: of those that the host allows, the kernel gives all that
ask the largest that fits; it names the one that saves most. Ask for stacks, or for data of
libraries.

Do not use: the wrapper for programs with another malloc (jemalloc: ``MALLOC_CONF=thp:always``), or
where the host's ``transparent_hugepage/enabled`` is not ``madvise``: glibc then asks for nothing.
Its map for another input than that of the trace, without looking at what larger pages add.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from nearfar import units
from nearfar.emit import Row
from nearfar.emit._page import KIB, THP, short
from nearfar.emit._shell import script

SUMMARY = "a map of mappings and pages, and a wrapper"
SUFFIX = ".sh"
NEEDS = ("vm", "regions")

_HEAP = "[heap]"
#: Beginnings of names of what no program asks for: stacks, files, the kernel's cache of files.
_OTHERS = ("[", "/", "page cache")


def emit(row: Row) -> str:
    """A script that runs its arguments."""
    regions: Sequence[Row] = row["regions"]
    usual = min(one["page_bytes"] for one in regions)
    wanting = [one for one in regions if one["advised"] and one["page_bytes"] > usual]
    says = [f"nearfar advise: {row['vm']}: pages by region; runs a program: sh FILE PROGRAM..."]
    if not wanting:
        says += [
            "No region gains by larger pages. Where the host gives them to all, in C:",
            "  prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);",
        ]
        return script(says, ['exec "$@"'])
    says += ["", f"{'pages':>6} {'gain':>6} {'adds':>9}  region"]
    for one in wanting:
        gain, adds = units.percent(one["saved_share"]), _size(one["added_bytes"])
        says.append(f"{short(one['page_bytes']):>6} {gain:>6} {adds:>9}  {_name(one)}")
    rest = sum(one["advised"] for one in regions) - len(wanting)
    if rest:
        says.append(f"{short(usual):>6} {'':>6} {'':>9}  {rest} others")
    own = [one for one in wanting if not one["name"].startswith(_OTHERS)]
    heap = [one for one in wanting if one["name"] == _HEAP]
    says += ["", *_allowed(regions, [*heap, *own])]
    if own:
        says.append("In C, after the program has mapped what malloc does not give:")
        says += [f"  madvise(start, length, MADV_HUGEPAGE);  /* {_name(one)} */" for one in own]
    says += [
        "Where the host gives larger pages to all, keep the others small (Linux 6.18):",
        "  prctl(PR_SET_THP_DISABLE, 1, PR_THP_DISABLE_EXCEPT_ADVISED, 0, 0);",
    ]
    body = ['exec "$@"']
    if heap:
        body.insert(0, 'GLIBC_TUNABLES="${GLIBC_TUNABLES:+$GLIBC_TUNABLES:}glibc.malloc.hugetlb=1"')
        body.insert(1, "export GLIBC_TUNABLES")
    return script(says, body)


def _allowed(regions: Sequence[Row], wanting: Sequence[Row]) -> list[str]:
    """The page size that the host should allow for what can ask, and what that comes to."""
    if not wanting:
        return ["None of these can ask: only `always` on the host gives them larger pages."]
    names = {one["name"] for one in wanting}

    def of(size: int, key: str) -> Any:
        given = [one for one in regions if one["name"] in names and one["page_bytes"] == size]
        return sum(one[key] for one in given)

    sizes = sorted({one["page_bytes"] for one in wanting})
    best = max(sizes, key=lambda size: (of(size, "saved_ns"), -size))
    gain, adds = units.percent(of(best, "saved_share")), _size(of(best, "added_bytes"))
    said = [
        f"With {short(best)} for all that can ask: gain {gain}, adds {adds}. On the host, as root:"
    ]
    said.append(f"  echo madvise > {THP}/hugepages-{best // KIB}kB/enabled")
    if len(sizes) > 1:
        said.append("The kernel gives each the largest size that is allowed: allow no larger one.")
    return said


def _size(count: int) -> str:
    return f"-{units.size(-count)}" if count < 0 else units.size(count)


def _name(region: Row) -> str:
    """A region's name in a comment of sh and of C."""
    return re.sub(r"[^ -~]|\*/", "?", str(region["name"]))
