"""`nearfar run --far node:1` on a kernel with two memory nodes: recorded runs, one in a guest."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import live
import pytest

from conftest import fetched, tool
from nearfar.errors import NearfarError

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data" / "numa"
#: Rust tests of the runtime that need a kernel with two nodes.
ON_NODES = (
    "frames_are_on_the_node_that_is_asked_for",
    "memory_under_a_policy_holds_what_was_written",
)


def recorded(architecture: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / f"live-{architecture}.json").read_text())
    return found


@pytest.mark.parametrize("architecture", live.ARCHITECTURES)
def test_recorded_runs_on_memory_nodes_agree(architecture: str) -> None:
    record = recorded(architecture)
    assert not [one for one in live.agreements(record) if not one.holds]
    passed = record["tests"]["passed"]
    assert {f"linux::tests::{name}" for name in ON_NODES} <= {*passed}
    for name, case in record.get("cases", {}).items():
        check(name, case)


def check(name: str, case: dict[str, Any]) -> None:
    """Check invariants of a run under any policy. Memory is counted in pages of 4 KiB."""
    policy, _, full = name.partition(", ")
    if policy == "alone":
        assert case["nodes"][0] > 0 and case["nodes"][1] == 0
        return
    seen = case["counters"]
    assert case["exit_code"] == 0 and case["why"] is None
    # Slow pages are mapped, so that references to them do not fault.
    assert seen["window_faults"] == 0
    # Every promoted page is copied, and every demoted one that has no shadow copy.
    assert seen["far_loads"] == seen["promotions"]
    assert seen["far_stores"] >= seen["demotions_copied"]
    if full:
        # Node 1 has LEFT MiB free; other pages stay on node 0, over budget.
        assert max(case["left"]) <= live.LEFT + 2 and case["nodes"][1] <= case["left"][0] * 256
        assert seen["over_budget"] > 0 and sum(case["used"]) >= 12 * 256
        return
    assert (seen["promotions"] > 0) == (policy != "none")
    assert (seen["shadow_copies"] > 0) == (policy in ("nomad", "ssp"))
    # The program has 12 MiB, of which 4 MiB are fast.
    assert case["used"][0] <= 1024 and case["nodes"][1] >= (12 - 4) * 256


def test_promoting_policies_make_hot_pages_fast() -> None:
    """Of 2 MiB read repeatedly, at most 1 MiB ends on the slow node, by the kernel's maps."""
    found = recorded("x86_64")["hot"]
    assert [*found] == [f"{policy}, hot" for policy in ("none", *live.PROMOTING)]
    for name, case in found.items():
        assert sum(case["hot"]) == live.HOT * 256
        assert (case["hot"][1] <= 256) == (name != "none, hot")


@pytest.mark.parametrize("architecture", live.ARCHITECTURES)
def test_every_policy_is_recorded(architecture: str) -> None:
    full = [f"{policy}, node 1 full" for policy in live.WHEN_FULL]
    assert [*recorded(architecture)["cases"]] == ["alone", *live.POLICIES, *full]


def test_wrong_records_are_noticed() -> None:
    record = recorded("x86_64")
    other = copy.deepcopy(record)
    other["cases"]["ssp"]["sum"] = "0"
    other["cases"]["tpp"]["nodes"][1] = 100
    other["tests"]["not_run"] = [["linux::tests::x", "no userfaultfd"]]
    disagreeing = [one.item for one in live.agreements(other) if not one.holds]
    expected = [
        "tests that were not run",
        "tpp: pages on node 1",
        "ssp: what is read",
    ]
    assert disagreeing == expected
    with pytest.raises(NearfarError, match="a wrong byte: page 7, word 1: 3, written 4"):
        live.parse("@@case ssp\n@@wrong page 7, word 1: 3, written 4\n")


@pytest.mark.long("a guest under TCG")
def test_a_program_runs_on_two_nodes() -> None:
    """The program checks the data it reads; the guest's kernel gives the nodes of its pages."""
    tool("cargo", "cargo")
    fetched("x86_64")
    found = live.programs("x86_64", ("ssp",), (), 20_000)
    assert [*found["cases"]] == ["alone", "ssp"]
    for policy, case in found["cases"].items():
        check(policy, case)
    # `agreements` needs results of the Rust tests, which this run leaves out.
    found |= {"tests": {"not_run": [], "passed": ["these"]}}
    assert not [one for one in live.agreements(found) if not one.holds]
