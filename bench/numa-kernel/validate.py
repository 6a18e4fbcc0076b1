"""Compare the placement of the real kernel with the model of ``nearfar numa``, and what ``nearfar
run`` does with far nodes (``make validate``).

Exit code 1 if kernel and model differ by more than the tolerance, 3 if this machine cannot
compare them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import agree
import alius
import live
import persistent
import placement

from nearfar.errors import NearfarError

ROOT = Path(__file__).parent.parent.parent
#: Records that the tests compare with the model, without QEMU.
RECORDS = ROOT / "tests" / "data" / "numa"
#: Machines, and whether their nodes without cores are added to the running system.
MACHINES = (("optane-4node", False), ("optane-4node", True), ("cxl-2socket", False))


def compared(
    options: argparse.Namespace,
) -> Iterator[tuple[str, dict[str, Any], list[agree.Agreement]]]:
    """The name of each chosen record, the record, and its comparisons with the model."""
    chosen = [(machine, options.added) for machine in options.machine or ()]
    everything = not (chosen or options.persistent or options.alius or options.live)
    for machine, added in chosen or (MACHINES if everything else ()):
        record = placement.record(machine, options.kernel, added=added)
        yield f"kernel-{machine}{'-added' if added else ''}", record, agree.agreements(record)
    firmware = ""
    for variant in persistent.VARIANTS if everything or options.persistent else ():
        record = persistent.record(variant, firmware)
        # The guest's own SLIT, from the first record; only the variant "slit" needs it.
        firmware = firmware or record["tables"]["SLIT"]
        found = agree.agreements(record) + persistent.agreements(record)
        yield f"persistent-{variant.name}", record, found
    # aliusM (paper 004): a patch of the kernel.
    if everything or options.alius:
        kernel = alius.built()
        for name in alius.VARIANTS:
            record = alius.record(name, kernel)
            yield f"patched-{name}", record, alius.agreements(record)
    for architecture in live.ARCHITECTURES if everything or options.live else ():
        record = live.record(architecture)
        yield f"live-{architecture}", record, live.agreements(record)


def main(arguments: list[str] | None = None) -> int:
    """Make the records, compare them with the model and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", action="append", help="one with nodes without cores")
    parser.add_argument("--added", action="store_true", help="of --machine: added while it runs")
    parser.add_argument("--persistent", action="store_true", help="persistent memory alone")
    parser.add_argument("--alius", action="store_true", help="the patched kernel alone")
    parser.add_argument("--live", action="store_true", help="the runtime on memory nodes alone")
    parser.add_argument("--kernel", help="a package with a kernel instead of Debian's 6.12")
    parser.add_argument("--record", action="store_true", help=f"keep the result in {RECORDS}")
    options = parser.parse_args(arguments)
    wrong = count = 0
    try:
        for name, record, found in compared(options):
            count += len(found)
            wrong += sum(not one.holds for one in found)
            print("\n".join(agree.table(record, found)), flush=True)
            if options.record:
                RECORDS.mkdir(parents=True, exist_ok=True)
                text = json.dumps(record, separators=(",", ":"))
                (RECORDS / f"{name}.json").write_text(f"{text}\n")
    except NearfarError as error:
        print(f"nearfar: validate: {error}", file=sys.stderr)
        return 3
    print(f"{count - wrong} of {count} agree to {agree.TOLERANCE:.0%} of the allocation")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
