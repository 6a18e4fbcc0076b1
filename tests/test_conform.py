"""A quick part of ``make conform``: other projects' tests under ``nearfar run``."""

from __future__ import annotations

import pytest

import conform
import conform_build
from conftest import tool
from tiers import needs_userfaultfd

CASES, KNOWN = conform.load()
QUICK = [case for case in CASES if case.quick]


@needs_userfaultfd
@pytest.mark.parametrize("world", ["run tpp shm", "run ssp zstd"])
@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
@pytest.mark.long("other projects' tests")
def test_other_projects_tests_end_as_without_nearfar(case: conform.Case, world: str) -> None:
    if "{selftests}" in case.command and not conform_build.is_built():
        pytest.skip("Linux's tests are not built: `make conform` builds them")
    program = case.command.split()[0]
    tool(program, program) if "{" not in program else None
    *references, cell = conform.cells(case, [world], KNOWN)
    if cell.reason is None:
        assert cell.same, conform.details(cell, references[0])


@pytest.mark.parametrize("text", ["setting   1\b\b\b\b\b\b\b\b\b\b\bok", "\x1b[32mok\x1b[0m", "ok"])
def test_overwritten_progress_and_colours_are_not_compared(text: str) -> None:
    assert conform.compared(f"a\n{text}\nnot this\n", conform.VERDICT) == ["ok"]


def test_a_difference_that_is_unlisted_or_listed_in_vain_is_wrong() -> None:
    cell = conform.Cell("a", "run ssp shm", 1, [], same=False)
    known = conform.Known("a", "run *", "because")
    assert len(conform.wrong([cell], [])) == 1
    listed = conform.replace(cell, reason=known.reason)
    assert conform.wrong([listed], [known]) == []
    assert len(conform.wrong([conform.replace(listed, same=True)], [known])) == 1


def test_every_listed_difference_is_of_a_case_and_a_world() -> None:
    for one in KNOWN:
        cells = (
            conform.Cell(c.name, w, 0, []) for c in CASES for w in conform.REFERENCE if c.runs_in(w)
        )
        assert any(map(one.is_of, cells)), one
