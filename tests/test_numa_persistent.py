"""Persistent memory as system memory: placement by Debian's kernel, against the model."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import agree
import persistent
import pytest

from nearfar import numa

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data" / "numa"
RECORDS = {
    variant.name: json.loads((DATA / f"persistent-{variant.name}.json").read_text())
    for variant in persistent.VARIANTS
}


@pytest.mark.parametrize("name", RECORDS)
def test_the_model_agrees_with_the_kernel(name: str) -> None:
    record = RECORDS[name]
    found = agree.agreements(record) + persistent.agreements(record)
    assert not [one for one in found if not one.holds]
    assert len(found) >= len(record["distances"]) + len(record["vmalloc"])
    for one in record["vmalloc"]:
        assert one["landed"] is None or sum(one["landed"]) == one["pages"]


def test_the_kernel_itself_uses_far_memory_only_if_it_is_not_movable() -> None:
    far = {
        name: {zone for node, zone, _ in record["zones"] if node >= 4}
        for name, record in RECORDS.items()
    }
    assert far == {"movable": {"Movable"}, "kernel": {"Normal"}, "slit": {"Normal"}}
    more_than_dram = {name: record["vmalloc"][2] for name, record in RECORDS.items()}
    assert {name: one["landed"] is not None for name, one in more_than_dram.items()} == {
        "movable": False,
        "kernel": True,
        "slit": True,
    }
    # Programs also use movable memory.
    for case in RECORDS["movable"]["cases"]:
        assert sum(case["path"][-1][1 + 4 :]) > 0.5 * case["pages"]


def test_changed_distances_put_all_dram_first() -> None:
    """By the firmware's distances, near persistent memory precedes far DRAM."""
    landed = {name: RECORDS[name]["vmalloc"][1]["landed"] for name in ("kernel", "slit")}
    assert landed["kernel"][4] and not any(landed["kernel"][2:4])
    assert sum(landed["slit"][:4]) == 100_000 and sum(landed["slit"][2:4])
    orders = {name: RECORDS[name]["fallback"][0] for name in RECORDS}
    assert orders["kernel"] == orders["movable"] == [0, 1, 4, 5, 2, 3, 6, 7]
    assert orders["slit"] == [0, 1, 2, 3, 4, 5, 6, 7]


def test_unlike_alius_the_kernel_does_not_interleave_far_nodes(tmp_path: Path) -> None:
    record = RECORDS["slit"]
    one = record["vmalloc"][2]
    machine = tmp_path / "guest.toml"
    machine.write_text(agree.described(record, one["free"]))
    row = numa.alloc([one["pages"] * 4096], machine=str(machine), mode=["alius"], from_=0).rows[0]
    alius = [part["bytes"] // 4096 for part in sorted(row["landed"], key=lambda p: p["node"])]
    assert alius[4] == pytest.approx(alius[5], abs=1) and alius[4] > 20_000
    assert one["landed"][4] > 50_000 and not one["landed"][5]
    # If the calling process has an interleave policy, the kernel's own pages follow it.
    interleaved = record["vmalloc"][-1]
    assert interleaved["landed"] == [15_000 * (node in interleaved["nodes"]) for node in range(8)]


def test_records_that_contradict_the_model_are_noticed() -> None:
    moved = copy.deepcopy(RECORDS["slit"])
    landed = moved["vmalloc"][2]["landed"]
    landed[0], landed[6] = landed[6], landed[0]
    disagreeing = [one.item for one in persistent.agreements(moved) if not one.holds]
    assert disagreeing == ["180,000 pages by kind, beside alius", "180,000 pages of the kernel"]
    given = copy.deepcopy(RECORDS["movable"])
    given["vmalloc"][2]["landed"] = [180_000, *[0] * 7]
    assert sum(not one.holds for one in persistent.agreements(given)) == 1


def test_the_generated_slit_is_the_one_that_the_kernel_used() -> None:
    firmware = bytes.fromhex(RECORDS["movable"]["tables"]["SLIT"])
    made = persistent.made_slit(numa.topology(persistent.MACHINE), firmware)
    assert made.hex() == RECORDS["slit"]["tables"]["SLIT"]
    assert sum(made) % 256 == 0 and len(made) == len(firmware)
    size = firmware[36]
    table = [list(made[44 + a * size : 44 + (a + 1) * size]) for a in range(size)]
    assert table == RECORDS["slit"]["distances"]
    revisions = [int.from_bytes(each[24:28], "little") for each in (firmware, made)]
    assert revisions[1] == revisions[0] + 1


def test_console_output_that_ends_early_is_refused() -> None:
    text = "@@vmalloc 10 \n@@vfree 5 6\n@@vlanded N1=10\n@@zone 0 Normal 9\n"
    found: dict[str, Any] = persistent.own(text, [(10, ())])
    assert found["vmalloc"] == [{"pages": 10, "nodes": [], "free": [5, 6], "landed": [0, 10]}]
    assert found["zones"] == [[0, "Normal", 9]]
    with pytest.raises(persistent.NearfarError, match="1 of 2"):
        persistent.own(text, [(10, ()), (20, ())])
    killed = persistent.own(text.replace("@@vlanded N1=10", "@@vlanded"), [(10, ())])
    assert killed["vmalloc"][0]["landed"] is None
