"""``nearfar explain``: functions, lines and regions of a program whose misses are known."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import browser
from capturing import info, needs_cc, needs_qemu
from capturing import nearfar as capture
from conftest import Run
from nearfar.errors import NearfarError
from nearfar.explain import ExplainResult, explain
from nearfar.paging import paging

#: ``fill`` writes 12,000 pages, ``scatter`` reads them at random; ``made_here``, generated at run
#: time, reads the byte that its argument points to.
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
enum { PAGES = 12000 };
static char *table;
__attribute__((noinline)) long scatter(int times) {
  unsigned long at = 1; long sum = 0;
  for (int i = 0; i < times; i++) {
    at = at * 6364136223846793005UL + 1442695040888963407UL;
    sum += table[(at >> 33) % PAGES * 4096];
  }
  return sum;
}
__attribute__((noinline)) void fill(void) {
  for (int i = 0; i < PAGES; i++) table[i * 4096] = i;
}
int main(void) {
  table = mmap(0, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  fill();
  long sum = scatter(20000);
  unsigned char code[] = {0x0f, 0xb6, 0x07, 0xc3};
  unsigned char *jit = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memcpy(jit, code, sizeof code);
  char name[64];
  sprintf(name, "/tmp/perf-%d.map", getpid());
  FILE *map = fopen(name, "w");
  fprintf(map, "%lx 4 made_here\n", (unsigned long)jit);
  fclose(map);
  for (int i = 0; i < PAGES; i++) sum += ((int (*)(char *))jit)(table + i * 4096);

  return sum == 3;
}
"""
pytestmark = [needs_qemu, needs_cc]


def captured(folder: Path, program: Path, *options: str) -> Path:
    done = capture("-o", folder / "p.trace", *options, "--", program)
    assert done.returncode == 0, done.stderr
    for copy in (folder / "p.trace").glob("perf-*.map"):
        (Path("/tmp") / copy.name).unlink()
    return folder / "p.trace"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, build: Callable[..., Path]) -> Path:
    """PROGRAM in a separate folder, as tests replace it."""
    own = tmp_path_factory.mktemp("program") / "known"
    shutil.copy2(build(PROGRAM, "-g", "-Wl,--build-id"), own)
    return own


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory, program: Path) -> Path:
    return captured(tmp_path_factory.mktemp("trace"), program)


def made(trace: Path, folder: Path, **options: Any) -> Path:
    usual = {"page_sizes": "4K,2M", "memory": "100%", "machine": "zen4-vm", "view": "machine"}
    paging(trace, **{**usual, **options}).write(folder)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, trace: Path) -> Path:
    return made(trace, tmp_path_factory.mktemp("run") / "run")


def by_name(found: ExplainResult, count: str) -> dict[str, int]:
    known: dict[str, int] = {}
    for line in found.functions:
        known[line["function"]] = known.get(line["function"], 0) + line[count]  # type: ignore[literal-required]
    return known


def line_of(text: str) -> int:
    return PROGRAM[: PROGRAM.index(text)].count("\n") + 1


@pytest.mark.parametrize("options", [{}, {"view": "paper", "tlb": "64"}])
def test_functions_and_lines_have_their_misses(
    trace: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    found = explain(made(trace, tmp_path / "run", **options), page="4K")
    faults, misses = by_name(found, "faults"), by_name(found, "tlb_misses")
    assert 12_000 <= faults["fill"] <= 12_010
    assert misses["scatter"] > 10_000
    assert faults["scatter"] < 10
    (line,) = {
        (one["file"].rpartition("/")[2], one["line"])
        for one in found.functions
        if one["function"] == "fill" and one["faults"] > 100
    }
    assert line[1] == line_of("table[i * 4096] = i")
    for name in ("tlb_misses", "faults"):
        assert sum(one[name] for one in found.functions) == found.total[name]  # type: ignore[literal-required]
    assert sum(one["share"] for one in found.functions) == pytest.approx(1)
    assert {one["program"] for one in found.functions} == {"known"}
    assert not any("known" in note for note in found.notes)


def test_a_perf_map_names_what_was_compiled_at_run_time(trace: Path, run: Path) -> None:
    assert list(trace.glob("perf-*.map"))
    found = explain(run, page="4K")
    (one,) = [one for one in found.functions if one["function"] == "made_here"]
    assert (one["library"], one["file"]) == ("(compiled at run time)", None)
    assert one["tlb_misses"] > 100


def test_a_program_that_has_changed_gives_no_wrong_names(
    program: Path, run: Path, tmp_path: Path, build: Callable[..., Path]
) -> None:
    kept = tmp_path / "known"
    shutil.copy2(program, kept)
    other = build(PROGRAM.replace("void fill", "void other_name").replace("fill()", "other_name()"),
                  "-g", "-Wl,--build-id")  # fmt: skip
    try:
        shutil.copy2(other, program)
        found = explain(run, page="4K")
        named = by_name(found, "faults")
        assert not {"fill", "other_name", "scatter"} & set(named)
        (note,) = [note for note in found.notes if str(program) in note]
        assert "not the build id of the capture" in note
        # A copy of the original file still has the names.
        again = explain(run, page="4K", symbols=str(tmp_path))
        assert by_name(again, "faults")["fill"] >= 12_000
        program.unlink()
        (note,) = [note for note in explain(run, page="4K").notes if str(program) in note]
        assert "missing" in note
    finally:
        shutil.copy2(kept, program)


def test_a_stripped_program_takes_its_debug_file(program: Path, run: Path, tmp_path: Path) -> None:
    kept, debug = tmp_path / "known", tmp_path / "elsewhere" / "known.debug"
    debug.parent.mkdir()
    shutil.copy2(program, kept)
    try:
        subprocess.run(["objcopy", "--only-keep-debug", program, debug], check=True)
        subprocess.run(["strip", program], check=True)
        stripped = explain(run, page="4K")
        # Unwinding tables still say where functions begin, so that `fill` is one function.
        functions = by_name(stripped, "faults")
        (most,) = [name for name, faults in functions.items() if faults >= 12_000]
        assert most.startswith("0x")
        assert any("stripped" in note and str(program) in note for note in stripped.notes)
        for symbols in (str(debug), str(debug.parent)):
            named = explain(run, page="4K", symbols=symbols)
            assert by_name(named, "faults")["fill"] == functions[most]
    finally:
        shutil.copy2(kept, program)


def test_a_capture_without_fetches_says_so(program: Path, tmp_path: Path) -> None:
    trace = captured(tmp_path, program, "--no-fetch")
    found = explain(made(trace, tmp_path / "run"), page="4K")
    assert found.functions == []
    (note,) = found.notes
    assert note.startswith("this capture has no instruction fetches")
    assert "No instruction" not in found.html()
    assert "This capture has no instruction fetches" in found.html()


def test_build_ids_are_those_of_the_files(trace: Path, program: Path) -> None:
    ids = info(trace)["build_ids"]
    for file in (str(program), next(name for name in ids if "libc.so" in name)):
        text = subprocess.run(["readelf", "-n", file], capture_output=True, text=True, check=True)
        assert f"Build ID: {ids[file]}" in text.stdout
    assert any("ld-linux" in name for name in ids)


def test_a_missing_path_of_symbols_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(NearfarError, match="--symbols: .*none: no such file or folder"):
        explain(run, symbols=str(tmp_path / "none"))


# --- by region


def test_the_region_that_gains_is_the_one_that_misses(run: Path, trace: Path) -> None:
    found = explain(run, by_region=True)
    advised = [one for one in found.sizes if one["advised"] and one["page_bytes"] > 4096]
    assert len(advised) == 1
    (table,) = advised
    assert table["name"].startswith("(anonymous)")
    # All 12,000 pages are touched, so that 2 MiB pages add memory at both ends only.
    assert 12_000 * 4096 <= table["resident_bytes"] <= 12_000 * 4096 + (4 << 20)
    assert table["added_bytes"] >= 0
    assert table["saved_ns"] > 0
    for one in found.sizes:
        small = next(o for o in found.sizes if o["name"] == one["name"] and o["page_bytes"] == 4096)
        assert one["saved_ns"] == pytest.approx(small["ns"] - one["ns"])
        assert one["added_bytes"] == one["resident_bytes"] - small["resident_bytes"]
    # Regions save the time of all terms but caches and memory. The sums differ slightly, as terms
    # are per reference, and the number of references depends on the page size.
    whole = sum(one["saved_ns"] for one in found.sizes if one["page_bytes"] == 2 << 20)
    terms = {term["term"]: term["saved_ns"] for term in explain(run, page="2M").terms}
    assert whole == pytest.approx(
        sum(terms[name] for name in ("TLB", "walks", "faults", "I/O", "start")), rel=2e-3
    )


def test_by_region_takes_a_run_of_the_machine_view(trace: Path, tmp_path: Path) -> None:
    run = made(trace, tmp_path / "run", view="paper")
    with pytest.raises(NearfarError, match="--by-region takes a run of --view machine"):
        explain(run, by_region=True)
    run = made(trace, tmp_path / "large", page_sizes="2M")
    with pytest.raises(NearfarError, match="add 4K to its --page-sizes"):
        explain(run, by_region=True)


# --- terminal and page


def test_the_terminal_names_functions(run: Path, nearfar: Run) -> None:
    done = nearfar("explain", run, "--page", "4K", "--by-function", "--by-region")
    assert done.returncode == 0, done.stderr
    assert "scatter" in done.stdout
    assert f":{line_of('table[i * 4096] = i')}" in done.stdout
    assert "Regions that gain by larger pages" in done.stdout


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_has_an_icicle_to_zoom(run: Path, tmp_path: Path, scheme: str) -> None:
    file = tmp_path / "p.html"
    file.write_text(explain(run, page="4K", by_region=True).html(), encoding="utf-8")
    for width in (1280, 390):
        ready = ".icicle button"
        with browser.opened(file, width=width, scheme=scheme, ready=ready) as (page, problems):
            browser.settled(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.select_option("#measure", "tlb_misses")
            browser.settled(page)
            page.locator(".icicle .depth-3", has_text="scatter").first.click()
            browser.settled(page)
            chosen = page.locator(".icicle .depth-3", has_text="scatter").first
            holder = page.locator(".icicle").bounding_box()
            assert chosen.bounding_box()["width"] == pytest.approx(holder["width"], abs=2)
            assert "known > " in page.inner_text("#icicle-reading").replace(str(tmp_path), "")
            page.select_option("#measure", "faults")
            browser.settled(page)
            assert page.locator(".icicle .depth-3", has_text="fill").first.is_visible()
        assert problems == []
