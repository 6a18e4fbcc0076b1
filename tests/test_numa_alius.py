"""Our Linux patch that places pages as aliusM (paper 004): recorded runs against the model."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import alius
import pytest

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data" / "numa"
RECORDS: dict[str, dict[str, Any]] = {
    variant: json.loads((DATA / f"patched-{variant}.json").read_text())
    for variant in alius.VARIANTS
}
PMEM_NODES = range(4, 8)


@pytest.mark.parametrize("name", RECORDS)
def test_the_model_agrees_with_the_kernel(name: str) -> None:
    record = RECORDS[name]
    found = alius.agreements(record)
    assert not [one for one in found if not one.holds]
    assert len(found) == 4 + len(alius.SIZES) + 2 * len(record["cases"])
    for one in record["vmalloc"]:
        assert one["landed"] is None or sum(one["landed"]) == one["pages"]


def test_stock_and_patched_records_are_of_one_kernel_version() -> None:
    assert RECORDS["stock"]["kernel"] == RECORDS["alius"]["kernel"]


def test_most_of_memory_can_be_allocated_only_with_the_patch() -> None:
    stock, patched = (RECORDS[name]["vmalloc"][-1] for name in alius.VARIANTS)
    assert patched["pages"] > 0.8 * sum(patched["free"])
    assert patched["landed"] and stock["landed"] is None


def test_only_the_patch_puts_persistent_memory_in_zone_normal_at_boot() -> None:
    zones = {name: {tuple(zone[:2]) for zone in RECORDS[name]["zones"]} for name in RECORDS}
    pmem = {zone for zone in zones["alius"] if zone[0] in PMEM_NODES}
    assert pmem == {(node, "Normal") for node in PMEM_NODES}
    assert not [zone for zone in zones["stock"] if zone[0] in PMEM_NODES]


def test_modules_alternate_once_dram_is_full() -> None:
    for one in RECORDS["alius"]["vmalloc"]:
        landed, share = one["landed"], 0.01 * one["pages"]
        assert abs(landed[4] - landed[5]) <= share and abs(landed[6] - landed[7]) <= share
    # 100,000 pages fit DRAM, 180,000 also need near modules (4, 5), 450,000 far ones (6, 7).
    by_size = {one["pages"]: one["landed"] for one in RECORDS["alius"]["vmalloc"]}
    assert not sum(by_size[100_000][4:])
    assert by_size[180_000][4] > 5_000 and not sum(by_size[180_000][6:])
    assert by_size[450_000][6] > 40_000


def test_pages_of_programs_alternate_between_modules_too() -> None:
    first, last = RECORDS["alius"]["cases"]
    for case, modules in ((first, (4, 5)), (last, (6, 7))):
        landed = case["path"][-1][1:]
        assert sum(landed) == case["pages"] and landed[modules[0]] > 50_000
        assert abs(landed[modules[0]] - landed[modules[1]]) <= 0.01 * case["pages"]


def test_records_that_contradict_the_model_are_noticed() -> None:
    filled = copy.deepcopy(RECORDS["alius"])
    landed = filled["vmalloc"][2]["landed"]
    # Stock Linux fills one module first.
    landed[4], landed[5] = landed[4] + landed[5], 0
    wrong = [one.item for one in alius.agreements(filled) if not one.holds]
    assert wrong == ["180,000 pages of the kernel"]
    given = copy.deepcopy(RECORDS["stock"])
    given["vmalloc"][-1]["landed"] = [450_000, 0, 0, 0]
    assert sum(not one.holds for one in alius.agreements(given)) == 1


def test_the_patch_is_small_and_under_the_licence_of_linux() -> None:
    patch = (alius.PATCH / "alius.patch").read_text()
    assert "SPDX-License-Identifier: GPL-2.0-only" in (alius.PATCH / "LICENSE").read_text()
    assert (alius.PATCH / "COPYING").read_bytes() == (
        ROOT / "capture" / "qemu-plugin" / "COPYING"
    ).read_bytes()
    added = re.findall(r"^\+(?!\+\+)", patch, re.M)
    removed = re.findall(r"^-(?!--)", patch, re.M)
    assert len(added) < 150 and not removed
    for line in (alius.PATCH / "config").read_text().splitlines():
        assert re.fullmatch(r"#.*|CONFIG_[A-Z0-9_]+=[yn0-9]+", line), line
