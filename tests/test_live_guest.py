"""`nearfar run --far node:1` on a kernel with two memory nodes: recorded, and in a guest."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import fetched, tool
from nearfar.errors import NearfarError

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "bench" / "numa-kernel"))

import live  # noqa: E402

DATA = ROOT / "tests" / "data" / "numa"
#: Tests of the runtime that only a kernel with two nodes runs.
ON_NODES = (
    "frames_are_on_the_node_that_is_asked_for",
    "memory_under_a_policy_holds_what_was_written",
)


def recorded(architecture: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / f"live-{architecture}.json").read_text())
    return found


@pytest.mark.parametrize("architecture", live.ARCHITECTURES)
def test_the_runtime_worked_on_memory_nodes(architecture: str) -> None:
    record = recorded(architecture)
    apart = [one for one in live.agreements(record) if not one.holds]
    assert not apart
    passed = record["tests"]["passed"]
    assert {f"linux::tests::{name}" for name in ON_NODES} <= {*passed}
    for name, case in record.get("cases", {}).items():
        check(name, case)


def check(name: str, case: dict[str, Any]) -> None:
    """What must hold of a program on two nodes, whatever its policy decides."""
    policy, _, full = name.partition(", ")
    if policy == "alone":
        assert case["nodes"][0] > 0 and case["nodes"][1] == 0
        return
    seen = case["counters"]
    assert case["exit_code"] == 0 and case["why"] is None
    # References to slow pages go through: nothing is let in one by one.
    assert seen["window_faults"] == 0
    # Every page that comes is copied; every one that goes, unless its shadow is there.
    assert seen["far_loads"] == seen["promotions"]
    assert seen["far_stores"] >= seen["demotions_copied"]
    if full:
        # What finds no room there stays, and is counted.
        assert max(case["left"]) <= live.LEFT + 2 and case["nodes"][1] <= case["left"][0] * 256
        assert seen["over_budget"] > 0 and sum(case["used"]) >= 12 * 256
        return
    assert (seen["promotions"] > 0) == (policy != "none")
    assert (seen["shadow_copies"] > 0) == (policy in ("nomad", "ssp"))
    # 4 MiB are fast, the rest of 12 lies on the other node.
    assert case["used"][0] <= 1024 and case["nodes"][1] >= (12 - 4) * 256


def test_hot_pages_end_fast() -> None:
    """2 MiB of 12 are read over and over: where the kernel says that they are, within 1 MiB."""
    found = recorded("x86_64")["hot"]
    assert [*found] == [f"{policy}, hot" for policy in ("none", *live.PROMOTING)]
    for name, case in found.items():
        assert sum(case["hot"]) == live.HOT * 256
        assert (case["hot"][1] <= 256) == (name != "none, hot")


@pytest.mark.parametrize("architecture", live.ARCHITECTURES)
def test_every_policy_is_recorded(architecture: str) -> None:
    full = [f"{policy}, node 1 full" for policy in live.WHEN_FULL]
    assert [*recorded(architecture)["cases"]] == ["alone", *live.POLICIES, *full]


def test_what_goes_wrong_is_noticed() -> None:
    record = recorded("x86_64")
    other = copy.deepcopy(record)
    other["cases"]["ssp"]["sum"] = "0"
    other["cases"]["tpp"]["nodes"][1] = 100
    other["tests"]["not_run"] = [["linux::tests::x", "no userfaultfd"]]
    apart = [one.item for one in live.agreements(other) if not one.holds]
    expected = [
        "tests that were not run",
        "tpp: pages on node 1",
        "ssp: what is read",
    ]
    assert apart == expected
    with pytest.raises(NearfarError, match="a wrong byte: page 7, word 1: 3, written 4"):
        live.parse("@@case ssp\n@@wrong page 7, word 1: 3, written 4\n")


@pytest.mark.long("a guest under TCG")
def test_a_program_lives_on_two_nodes() -> None:
    """A program that checks what it reads, and where a real kernel says that its pages are."""
    tool("cargo", "cargo")
    fetched("x86_64")
    found = live.programs("x86_64", ("ssp",), (), 20_000)
    assert [*found["cases"]] == ["alone", "ssp"]
    for policy, case in found["cases"].items():
        check(policy, case)
    found |= {"tests": {"not_run": [], "passed": ["these"]}}
    apart = [one for one in live.agreements(found) if not one.holds]
    assert not apart
