"""The chosen page size is the same in headline, chart, cells and JSON, and in every command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import DATA
from nearfar import units
from nearfar.advise import advise
from nearfar.page_choice import choose, start_sentence
from nearfar.paging import PagingResult, paging
from nearfar.paging_answers import answers
from nearfar.report.html.paging import model
from nearfar.size import size

CAPTURES = [DATA / "captures" / f"{name}.trace" for name in ("gnugo", "redis")]
#: Options of all commands, with the default of `advise` for `nested`.
GIVEN: dict[str, Any] = {"machine": "zen4-vm", "nested": "4K"}


@pytest.fixture(scope="module", params=[False, True], ids=["steady", "whole"])
def whole(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("trace", CAPTURES, ids=lambda trace: trace.stem)
def test_every_answer_has_the_same_page_size(trace: Path, whole: bool) -> None:
    result = paging(trace, memory="50%,100%", whole=whole, **GIVEN)
    (storage,) = {row["storage"] for row in result.rows}
    half, chosen = result.chosen
    assert result.best(memory_fraction=1.0)["page_bytes"] == chosen["page_bytes"]
    (advised,) = advise(trace, whole=whole, **GIVEN).rows
    (sized,) = size(trace, swap="none", whole=whole, **GIVEN).rows
    assert advised["advised_page_bytes"] == sized["advised_page_bytes"] == chosen["page_bytes"]
    assert advised["gain"] == pytest.approx(chosen["gain"])

    text = answers(result)[0]
    page = units.size(chosen["page_bytes"])
    assert text.startswith((f"Page size: {page} pages take", f"Page size: stay with {page}"))
    assert "Filling memory is" in text and "Filling memory is" in advised["why"]
    cells = model(result)["cells"]
    for memory, found in enumerate((half, chosen)):
        rows = cells[f"{memory},0"]["rows"]
        marked = [row["label"] for row in rows if row["best"]]
        assert [str(label).replace("\N{NO-BREAK SPACE}", " ") for label in marked] == [
            units.size(found["page_bytes"])
        ], storage
    assert json.loads(result.to_json())["chosen"] == result.chosen


def row(page: int, total: float, start: float, resident: int = 100) -> Any:
    return {
        "page_bytes": page,
        "total_ns": total,
        "start_ns": start,
        "resident_bytes": resident,
        "cpu_ns": 1.0,
    }


def test_filling_memory_counts_only_with_whole() -> None:
    rows = [row(4096, 10, 5), row(65536, 6, 1)]
    steady, whole = choose(rows), choose(rows, whole=True)
    assert (steady.page_bytes, steady.gain) == (4096, 0)
    assert (whole.page_bytes, whole.gain) == (65536, pytest.approx(0.4))
    assert start_sentence(rows, steady) == (
        "Filling memory is 50 % of the run; 64 KiB pages would take 80 % less time for it."
    )
    assert start_sentence(rows, whole) == (
        "Filling memory is 50 % of the run; 64 KiB pages take 80 % less time for it."
    )


def test_a_page_size_that_costs_too_much_memory_is_named_but_not_chosen() -> None:
    """2 MiB pages save 6.6 % of the time for four times the memory."""
    rows = [row(4096, 100, 0), row(2 << 20, 93.4, 0, 400)]
    found = choose(rows)
    assert found.page_bytes == 4096
    expected = "2 MiB pages would save 6.6 % of the time once memory is filled, but take 4 times"
    assert found.refusal is not None and found.refusal.startswith(expected)
    for one in rows:
        one |= {"machine": "m", "storage": "s", "memory_bytes": 1, "memory_fraction": None}
    (text, *_) = answers(PagingResult({"options": {}, "footprint_bytes": 1}, rows, []))  # type: ignore[typeddict-item]
    assert text == f"Page size: stay with 4 KiB; {found.refusal}."
