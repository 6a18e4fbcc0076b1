"""The demonstration: capture real programs, study their page sizes, write the pages.

Run by ``make demo``. Captures the workloads ``gunzip`` and ``game`` (else ``kghostview``), those
that are installed; without QEMU it goes on with small captures of ``tests/data/captures``.
Everything lands in ``out/demo``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from nearfar import workload
from nearfar.errors import NearfarError
from nearfar.output import write_whole

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "out" / "demo"
BUNDLED = ROOT / "tests" / "data" / "captures"
#: What the programs may swap to, on the machine that is taken where none is named.
STORAGES = "zram,nvme"

#: Workloads in order of preference within each group.
GROUPS = [["gunzip"], ["game", "kghostview"]]


def traces() -> list[Path]:
    """Capture what can be captured; the bundled captures where nothing can."""
    from nearfar.capture import probe

    if not all(
        found.available for found in probe() if "x86_64" in found.name or "plugin" in found.name
    ):
        print("QEMU is not here: going on with small captures that come with nearfar.")
        return [BUNDLED / "gzip.trace", BUNDLED / "gnugo.trace"]
    found = []
    for group in GROUPS:
        here = [one for one in map(workload.load, group) if not one.missing()]
        if not here:
            packages = workload.load(group[0]).packages
            print(f"{group[0]}: not installed, left out; apt-get install {' '.join(packages)}")
            continue
        print(f"$ nearfar workload capture {here[0].name} -o {OUT.relative_to(ROOT)}", flush=True)
        found.append(workload.capture(here[0], OUT, force=True).trace)
    return found


def main() -> int:
    """Run everything; say where the pages are."""
    from nearfar.info import info
    from nearfar.paging import paging
    from nearfar.report import tables

    OUT.mkdir(parents=True, exist_ok=True)
    pages = []
    for trace in traces():
        print(f"\n$ nearfar paging {trace.name} --storage {STORAGES}", flush=True)
        result = paging(trace, storage=STORAGES)
        found = info(trace)
        tables.show(tables.paging(result.to_dict()))
        for kind, page in (
            ("paging", result.html(found["heatmap"])),
            ("info", found.html()),
        ):
            path = OUT / f"{trace.stem}-{kind}.html"
            write_whole(path, page, force=True)
            pages.append(path)
    print("\nOpen in a browser:")
    for path in pages:
        print(f"  {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NearfarError as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
