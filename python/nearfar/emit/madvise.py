"""A wrapper that requests huge pages for malloc, with advice for each mapping in comments.

Sets: ``glibc.malloc.hugetlb=1`` for the program that it starts, if the heap gains: glibc 2.35 and
later then calls ``madvise`` for all of malloc's memory. The comments list the page size of each
mapping, the size to allow on the host, and C code for mappings that the program creates itself.

Cannot: give two mappings different sizes: the kernel uses the largest allowed size that fits for
every mapping that requests huge pages, so the comment names the size that saves most in total.
Cannot request huge pages for stacks or for the data of libraries.

Do not use: with another malloc (jemalloc: ``MALLOC_CONF=thp:always``), or if the host's
``transparent_hugepage/enabled`` is not ``madvise``: glibc then requests no huge pages. For another
input than the trace's, first check the memory that larger pages add.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypedDict

from nearfar import units
from nearfar.declared import explain
from nearfar.emit._page import KIB, THP
from nearfar.emit._shell import script
from nearfar.sizes import short


class RegionsRow(TypedDict):
    """Columns of ``nearfar advise`` with the option ``regions`` that the emitter reads."""

    vm: str
    regions: Sequence[explain.SizesRow]


SUMMARY = "a list of page sizes by mapping, and a wrapper that requests them"
SUFFIX = ".sh"
NEEDS = ("vm", "regions")

_HEAP = "[heap]"
#: Name prefixes of regions other than anonymous mappings: heap, stacks, files, the page cache.
_NOT_MMAP = ("[", "/", "page cache")


def emit(row: RegionsRow) -> str:
    """A shell script that runs its arguments as a command and requests huge pages for malloc."""
    regions = row["regions"]
    base = min(region["page_bytes"] for region in regions)
    gaining = [region for region in regions if region["advised"] and region["page_bytes"] > base]
    comments = [f"nearfar advise: {row['vm']}: pages by region. Runs a program: sh FILE PROGRAM..."]
    if not gaining:
        comments += [
            "No region gains from larger pages. To disable them for the program, in C:",
            "  prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);",
        ]
        return script(comments, ['exec "$@"'])
    comments += ["", f"{'pages':>6} {'gain':>6} {'adds':>9}  region"]
    for region in gaining:
        gain, added = units.percent(region["saved_share"]), units.size(region["added_bytes"])
        comments.append(f"{short(region['page_bytes']):>6} {gain:>6} {added:>9}  {_name(region)}")
    not_gaining = sum(region["advised"] for region in regions) - len(gaining)
    if not_gaining:
        others = "1 other region" if not_gaining == 1 else f"{not_gaining} other regions"
        comments.append(f"{short(base):>6} {'':>6} {'':>9}  {others}")
    mapped = [region for region in gaining if not region["name"].startswith(_NOT_MMAP)]
    heap = [region for region in gaining if region["name"] == _HEAP]
    comments += ["", *_host_comments(regions, [*heap, *mapped])]
    if mapped:
        comments.append("In C, after the program has mapped memory other than malloc's:")
        comments += [
            f"  madvise(start, length, MADV_HUGEPAGE);  /* {_name(region)} */" for region in mapped
        ]
    comments += [
        "If the host is set to `always`, limit larger pages to these mappings (Linux 6.18):",
        "  prctl(PR_SET_THP_DISABLE, 1, PR_THP_DISABLE_EXCEPT_ADVISED, 0, 0);",
    ]
    body = ['exec "$@"']
    if heap:
        body.insert(0, 'GLIBC_TUNABLES="${GLIBC_TUNABLES:+$GLIBC_TUNABLES:}glibc.malloc.hugetlb=1"')
        body.insert(1, "export GLIBC_TUNABLES")
    return script(comments, body)


def _host_comments(
    regions: Sequence[explain.SizesRow], requesting: Sequence[explain.SizesRow]
) -> list[str]:
    """The page size to allow on the host for the ``requesting`` regions, its gain, added memory."""
    if not requesting:
        return ["None of these regions can request larger pages; they need `always` on the host."]
    names = {region["name"] for region in requesting}
    by_size: dict[int, list[explain.SizesRow]] = {region["page_bytes"]: [] for region in requesting}
    for region in regions:
        if region["name"] in names and region["page_bytes"] in by_size:
            by_size[region["page_bytes"]].append(region)

    def saved(size: int) -> float:
        return sum(region["saved_ns"] for region in by_size[size])

    best = max(by_size, key=lambda size: (saved(size), -size))
    gain = units.percent(sum(region["saved_share"] for region in by_size[best]))
    added = units.size(sum(region["added_bytes"] for region in by_size[best]))
    comments = [
        f"With {short(best)} for every region that can use madvise: gain {gain}, "
        f"adds {added}. As root:",
        f"  echo madvise > {THP}/hugepages-{best // KIB}kB/enabled",
    ]
    if len(by_size) > 1:
        comments.append("The kernel uses the largest allowed size: allow no larger one.")
    return comments


def _name(region: explain.SizesRow) -> str:
    """A region's name that cannot end a comment of sh or C: other characters become ``?``."""
    return re.sub(r"[^ -~]|\*/", "?", region["name"])
