"""Views of full captures for the papers' page studies, small enough for the source repository.

Full captures of the nine programs are gigabytes; about 30 million of their references miss the
caches of the papers' desktop. A view keeps those of one program, without each reference to the same
512-byte block (the smallest page) as the one before it. Such a repeat cannot miss a TLB or memory
of any page size and changes no state, so counts of misses and faults are exact. ``references.json``
has the numbers of references with repeats. Kinds, threads and instructions are dropped, as these
studies do not use them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from nearfar import filter as filters
from nearfar import importer
from nearfar import machine as machines
from nearfar.trace import open as open_trace

_REFERENCES: Final = "references.json"


def references(folder: Path) -> dict[str, int]:
    """The number of references with repeats, by program, if a folder has views; else empty."""
    path = folder / _REFERENCES
    if not path.is_file():
        return {}
    counts: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))
    return counts


def write(
    traces: Path,
    to: Path,
    names: Sequence[str],
    machine: str,
    block: int,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write the views of full captures, ``traces/NAME.trace``, into the folder ``to``.

    Args:
        traces: the folder of the captures.
        to: the folder of the views, created if missing.
        names: names of the programs.
        machine: the machine with the caches.
        block: bytes of the smallest page of the study.
        progress: called regularly with the number of references read.

    Raises:
        NearfarError: a capture is missing or damaged, or a view exists already.
    """
    to.mkdir(parents=True, exist_ok=True)
    counts = references(to)
    caches = machines.load(machine)
    for name in names:
        with (
            filters.view(traces / f"{name}.trace", "cache", caches, progress) as missed,
            tempfile.TemporaryDirectory(prefix="nearfar-") as folder,
        ):
            blocks = open_trace(missed.path).table(["addr"])["addr"].to_numpy() // block
            changes = blocks[np.append(True, blocks[1:] != blocks[:-1])]
            csv = Path(folder) / f"{name}.csv"
            np.savetxt(csv, changes * block, fmt="%d", header="addr", comments="")
            path = importer.import_trace(csv, to / f"{name}.trace", format="csv") / "trace.json"
            info = json.loads(path.read_text(encoding="utf-8"))
            info["source"]["command"] = []  # It named the temporary file.
            info["source"]["detail"] = (
                f"{name}, whole: {missed.sentence}; one for each run to one block of {block} B"
            )
            path.write_text(json.dumps(info, indent=2), encoding="utf-8")
            counts[name] = len(blocks)
    text = json.dumps(counts, indent=1, sort_keys=True)
    (to / _REFERENCES).write_text(f"{text}\n", encoding="utf-8")
