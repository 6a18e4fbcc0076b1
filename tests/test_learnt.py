"""The summary in docs/reproduce.md: its recorded rows equal a new run's and follow tolerances."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import learnt
import pytest

from nearfar import reproduce
from nearfar.papers import SYSTEMS
from nearfar.reproduce import statements, tiering, within_tolerance

ROOT = Path(__file__).resolve().parents[1]


def test_every_study_is_recorded() -> None:
    assert set(learnt.recorded()) == set(reproduce.names())


@pytest.mark.parametrize(
    "study",
    [
        "numa",
        *(
            pytest.param(name, marks=pytest.mark.long("all rows of a paper"))
            for name in ("paging", "ssd")
        ),
    ],
)
def test_recorded_rows_equal_those_of_a_new_run(study: str) -> None:
    assert learnt.recorded()[study] == learnt.kept(reproduce.rows(study)), (
        f"docs/learnt.py {study}, then docs/declared.py"
    )


@pytest.mark.parametrize(
    ("file", "study", "papers"),
    [
        (learnt.FOUND, "paging", ("001", "000")),
        (learnt.IN_VMS, "paging", ("001", "000")),
        (learnt.IN_VMS, "ssd", ("002",)),
    ],
)
def test_recorded_rows_of_whole_captures_match_the_statements(
    file: Path, study: str, papers: tuple[str, ...]
) -> None:
    """Whole captures are not in the repository; only statements and tolerances are compared."""
    rows = learnt.recorded(file)[study]
    stated = [one for paper in papers for one in statements(paper)]
    assert len(rows) == len(stated)
    for row, one in zip(rows, stated, strict=True):
        assert row["item"] == f"{one.place}: {one.says}"
        assert (row["published"], row["unit"], row["tolerance"], row["input"]) == (
            one.published,
            one.unit,
            one.tolerance,
            one.input,
        )
        within = within_tolerance(one.published, row["ours"], one.tolerance)
        assert row["holds"] is (None if one.input else within), row["item"]


@pytest.mark.long("a study of all rows of a paper")
def test_tiering_has_a_recorded_row_for_each_statement() -> None:
    """At a small scale, as the recorded one takes minutes; so values differ and are left out."""
    options = {"scale": "1/512", "threads": 0, "progress": None}
    made = [*tiering._paper_003(options), *tiering._Policies(options).paper_003()]
    recorded: list[dict[str, Any]] = [
        row for row in learnt.recorded()["tiering"] if row["paper"] == "003"
    ]
    keys = ("item", "published", "unit", "tolerance", "input")
    assert [[row[key] for key in keys] for row in recorded] == [
        [row[key] for key in keys]
        for row in made  # type: ignore[literal-required]
    ]


def test_the_page_says_what_virtual_machines_change() -> None:
    """Its counts equal the rows', and it lists the rows whose verdicts differ in VMs."""
    page = (ROOT / "docs/reproduce.md").read_text(encoding="utf-8")
    rows = {file: learnt.recorded(file)["paging"] for file in (learnt.FOUND, learnt.IN_VMS)}
    hold = {file: sum(row["holds"] is True for row in own) for file, own in rows.items()}
    judged = sum(row["holds"] is not None for row in rows[learnt.FOUND])
    assert f"{hold[learnt.IN_VMS]} of {judged} statements hold" in page
    assert f"against {hold[learnt.FOUND]}:" in page
    text = learnt.in_vms("paging")
    for row, own in zip(*rows.values(), strict=True):
        assert (row["item"] in text) == (row["holds"] != own["holds"]), row["item"]


def test_every_claim_is_a_row() -> None:
    recorded = [row for study in learnt.recorded().values() for row in study]
    for paper in SYSTEMS:
        items = {row["item"] for row in recorded if row["paper"] == paper}
        content = tomllib.loads((ROOT / f"papers/{paper}/claims.toml").read_text(encoding="utf-8"))
        assert content["today"]
        assert {one["item"] for one in content["claim"]} <= items, paper


def test_the_page_names_every_row() -> None:
    """Its counts by paper equal a new count of the rows."""
    text = learnt.summary()
    rows = [row for study in learnt.recorded().values() for row in study]
    for paper, system in SYSTEMS.items():
        own = [row for row in rows if row["paper"] == paper]
        counts = [sum(row["holds"] is wanted for row in own) for wanted in (True, False, None)]
        assert f"| {system} ({paper}) | {' | '.join(map(str, counts))} |" in text
        for row in own:
            assert row["item"].partition(": ")[2].replace("|", "/") in text
