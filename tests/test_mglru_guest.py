"""The bench ``mglru-guest``, which counts faults of a guest's kernel: parser, rows, record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cases import mglru_guest
from measure import BenchError

ROOT = Path(__file__).parent.parent

#: Output of ``limited.sh``. `free`: program, exit code, pages, kernel bytes. `run`: program,
#: percent of its pages, frames, 1 if the shell polls beside it, exit code, OOM kills, major
#: faults, file bytes.
PRINTED = """lists 0x0007
kernel 6.12.1
free one 0 100 8192
run one 50 50 1 0 0 900 0
run one 50 50 0 0 0 3000 0
run one 50 50 1 0 0 1100 4096
run one 50 50 0 137 1 7 0
run one 90 90 1 0 0 10 0
run one 90 90 0 137 1 0 0
done
"""


def test_cells_are_read() -> None:
    half, most = mglru_guest.parse(PRINTED)
    assert (half["program"], half["part"], half["frames"]) == ("one", 0.5, 50)
    assert (half["kernel"], half["killed"], half["file_bytes"]) == ([900, 1100], 1, 4096)
    assert half["alone"] == [3000]
    assert (half["anonymous_pages"], half["kernel_bytes"]) == (100, 8192)
    assert (half["lists"], half["linux"]) == ("0x0007", "6.12.1")
    assert (most["frames"], most["kernel"], most["killed"]) == (90, [10], 1)
    half["predicted"] = dict.fromkeys(("mglru", "linux", "clock", "lru"), 1200)
    most["predicted"] = dict.fromkeys(("mglru", "linux", "clock", "lru"), 30)
    # Ten faults are too few to judge.
    assert [mglru_guest.signed_error(cell, "kernel", "mglru") for cell in (half, most)] == [
        pytest.approx(20),
        None,
    ]
    rows = {row.name: row for row in mglru_guest.rows([half, most])}
    assert rows["one, 50%, 50 frames"].value == 1000 and rows["one, 90%, 90 frames"].value == 10
    assert [rows[f"cells within {near} %, `mglru`"].value for near in (10, 25)] == [0, 100]
    assert rows["distance of that from 0, `mglru`"].holds is False
    assert rows["runs killed for lack of memory"].value == 2
    lines = mglru_guest.table([half, most])
    assert lines[2].startswith("| one | 50% | 50 | 3,000 | 1,000 (900 to 1,100) | 1,200 (+20 %) |")
    assert lines[3].startswith("| one | 90% | 90 | not counted | 10 | 30 |")


def test_truncated_output_and_failed_programs_are_refused() -> None:
    with pytest.raises(BenchError, match="ended early: .* / run one 90"):
        mglru_guest.parse(PRINTED.removesuffix("done\n"))
    with pytest.raises(BenchError, match="one: ended with 127 in the guest"):
        mglru_guest.parse(PRINTED.replace("free one 0", "free one 127"))


def test_every_cell_is_recorded() -> None:
    path = ROOT / "bench" / "results" / "mglru-guest.json"
    result: dict[str, Any] = json.loads(path.read_text())
    programs = {cell["program"] for cell in result["cells"]}
    assert len(result["cells"]) == len(mglru_guest.PARTS) * len(programs)
    assert all(cell["lists"] == "0x0007" for cell in result["cells"])
