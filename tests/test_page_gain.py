"""The bench ``page-gain``, which judges predicted gains of page sizes, and its record."""

from __future__ import annotations

import json
import random
import statistics
from typing import Any

import pytest
from cases import page_gain
from programs import PROGRAMS
from table import recorded

RECORD = recorded("page-gain")


def cell(spent: float, predicted: float, *, system: float = 0.0, noise: float = 0.0) -> Any:
    """4 KiB pages take 1 s, 64 KiB pages ``spent`` s, both with ``system`` s in the kernel."""
    zero = dict.fromkeys(page_gain.PARTS, 0.0)
    wobble = [noise * (turn % 2 * 2 - 1) for turn in range(9)]
    return {
        "program": "one",
        "page_bytes": 65536,
        "base": [[1.0 - system, system]] * 9,
        "spent": [[spent - system + more, system] for more in wobble],
        "predicted_base": {**zero, "cpu_ns": 1.0},
        "predicted": {**zero, "cpu_ns": predicted},
    }


def test_a_gain_is_right_by_sign_and_distance() -> None:
    """Near: within five percentage points or a third of the gain."""
    assert statistics.median(page_gain.gains(cell(0.4, 0.5))) == pytest.approx(0.6)
    assert page_gain.predicted_gain(cell(0.4, 0.5)) == pytest.approx(0.5)
    near = {(0.4, 0.5), (0.4, 0.59), (1.1, 1.14), (0.97, 1.01)}
    for spent, predicted in (*near, (0.4, 0.61), (1.1, 1.16), (0.97, 1.03)):
        found = cell(spent, predicted)
        assert page_gain.near(found) == ((spent, predicted) in near), (spent, predicted)
        assert page_gain.shown(found)
        assert page_gain.right_sign(found) == ((spent < 1) == (predicted < 1))
    assert not page_gain.shown(cell(0.99, 1.0, noise=0.02))
    rows = {row.name: row for row in page_gain.rows([cell(0.4, 0.5), cell(0.97, 1.01)])}
    assert rows["of them predicted with the right sign"].value == 50
    assert rows["of them predicted with the right sign"].holds is False
    assert rows["cells predicted near enough"].holds is True


def test_the_error_is_split_between_program_and_kernel() -> None:
    found = cell(0.7, 0.9, system=0.2)
    assert page_gain.apart(found) == pytest.approx({"program": -0.2, "kernel": 0.0})
    found["predicted"]["fault_ns"] = 0.05
    assert page_gain.apart(found) == pytest.approx({"program": -0.2, "kernel": -0.05})


def test_the_interval_holds_the_median() -> None:
    """In about 95 % of draws. The median of an exponential distribution is ln 2 = 0.6931."""
    assert page_gain.interval([3, 1, 2]) == (1, 3)
    assert page_gain.interval(range(1, 10)) == (2, 8)
    draw = random.Random(1)
    for count in (9, 21):
        held = 0
        for _ in range(4000):
            low, high = page_gain.interval([draw.expovariate(1) for _ in range(count)])
            held += low <= 0.6931 <= high
        assert 0.95 <= held / 4000 + 0.01 <= 0.995


def test_recorded_figures_come_from_the_cells() -> None:
    cells = RECORD["cells"]
    assert (
        json.loads(json.dumps([row.to_dict() for row in page_gain.rows(cells)])) == RECORD["rows"]
    )
    programs = list(dict.fromkeys(found["program"] for found in cells))
    assert programs == [program.name for program in PROGRAMS] and len(programs) >= 8
    sizes = {found["page_bytes"] for found in cells}
    assert len(cells) == len(programs) * len(sizes) and max(sizes) == 2 << 20
    assert not RECORD["options"]["quick"]
