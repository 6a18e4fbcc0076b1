"""Filtered views of a trace: the cache filter against a plain simulation, and in commands."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from capturing import columns
from conftest import DATA, Run
from nearfar import machine
from nearfar.declared import names
from nearfar.errors import NearfarError
from nearfar.filter import view
from nearfar.info import info
from nearfar.paging import paging

GNUGO = DATA / "captures" / "gnugo.trace"


class Level:
    """An LRU cache level: for each set, an ordered dictionary line -> dirty, oldest first."""

    def __init__(self, described: dict[str, Any]) -> None:
        text = described["size"]["value"]
        size = int(text[:-3]) << {"KiB": 10, "MiB": 20}[text[-3:]]
        self.ways = described["ways"]["value"]
        self.sets = [OrderedDict[int, bool]() for _ in range(size // 64 // self.ways)]

    def use(self, line: int, dirty: bool) -> tuple[bool, int | None]:
        """Use a line; returns whether it hits, and the dirty line that is evicted."""
        lines = self.sets[line % len(self.sets)]
        hit = line in lines
        lines[line] = lines.pop(line, False) or dirty
        if len(lines) > self.ways:
            old, was_dirty = lines.popitem(last=False)
            return hit, old if was_dirty else None
        return hit, None

    def write_back(self, line: int) -> None:
        """Take a dirty line that the level above evicts."""
        lines = self.sets[line % len(self.sets)]
        if line in lines:
            lines[line] = True
        else:
            self.use(line, True)


def plain(trace: Path, name: str) -> list[tuple[int, str]]:
    """Lines and kinds that miss the caches of a machine, as docs/formats.md defines."""
    cache = machine.load(name).to_dict()["cache"]
    l1i, l1d, l2 = (Level(cache[key]) for key in ("l1i", "l1d", "l2"))
    missed = []
    for addr, kind, size, _, _ in columns(trace):
        for line in range(addr // 64, (addr + size - 1) // 64 + 1):
            hit, down = (l1i if kind == "fetch" else l1d).use(line, kind.endswith("store"))
            if hit:
                continue
            hit, _ = l2.use(line, False)
            if not hit:
                missed.append((line * 64, kind))
            if down is not None:
                l2.write_back(down)
    return missed


@pytest.mark.parametrize("name", ["desktop-nvm", "optane-ssd", "cxl"])
def test_the_cache_filter_equals_a_plain_simulation(name: str) -> None:
    expected = plain(GNUGO, name)
    with view(GNUGO, "cache", machine.load(name)) as seen:
        found = columns(seen.path)
        after = json.loads((seen.path / "trace.json").read_text())
    assert [(addr, kind) for addr, kind, *_ in found] == expected
    assert all(row[2] == 64 for row in found)
    before = json.loads((GNUGO / "trace.json").read_text())
    assert after["instructions"] == before["instructions"]
    assert not seen.path.exists()


def test_write_backs_are_additional_stores() -> None:
    usual = machine.load("desktop-nvm")
    with view(GNUGO, "cache", usual) as seen:
        misses = columns(seen.path)
    with view(GNUGO, "cache-write-backs", usual) as seen:
        found = columns(seen.path)
        assert "write back" in seen.sentence
    # The misses are a subsequence.
    rest = iter(found)
    assert all(any(row[:2] == other[:2] for other in rest) for row in misses)
    assert len(found) > len(misses)


def test_commands_take_the_filter_and_name_it(nearfar: Run, tmp_path: Path) -> None:
    whole, missed = info(GNUGO), info(GNUGO, filter="cache")
    assert missed["footprint_bytes"] == whole["footprint_bytes"]
    assert missed["records"] < whole["records"] / 10
    assert missed["trace"] == str(GNUGO) and "of nvme" in missed["view"]
    out = tmp_path / "missed.csv"
    done = nearfar("export", GNUGO, "--format", "csv", "-o", out, "--filter", "cache")
    assert done.returncode == 0 and len(out.read_text().splitlines()) == missed["records"] + 1
    options = ["--page-sizes", "4K,8K", "--memory", "50%", "--filter", "cache"]
    page = tmp_path / "page.html"
    done = nearfar("paging", GNUGO, *options, "--html", page)
    assert done.returncode == 0 and "references that miss the CPU caches" in done.stdout
    assert "references that miss the CPU caches" in page.read_text()
    run = json.loads(nearfar("paging", GNUGO, *options, "--format", "json").stdout)["run"]
    assert run["references"] == missed["records"]
    assert run["options"]["filter"] == "cache" and "--filter cache" in run["command"]
    assert "/nearfar-" not in json.dumps(run)


def test_a_filtered_study_is_deterministic() -> None:
    once = paging(GNUGO, page_sizes="4K", filter="cache").to_json()
    assert once == paging(GNUGO, page_sizes="4K", filter="cache").to_json()


@pytest.mark.parametrize(
    ("filter_", "text", "wanted"),
    [
        ("cach", "", f"no filter 'cach'; choose one of {', '.join(dict(names.FILTER))}"),
        ("cache", "", "has no [cache.l1d]"),
        ("cache", "l1d 64B, l2 32B", "key cache.l2.line: is 32 bytes where the line of l1d has 64"),
        ("cache", "l1d 48B", "key cache.l1d.line: is 48 bytes, not a power of two"),
    ],
)
def test_bad_filters_are_an_error_of_one_line(filter_: str, text: str, wanted: str) -> None:
    lines = ['description = "x"']
    for one in text.split(", ") if text else []:
        name, line = one.split()
        lines.append(f"[cache.{name}]")
        for key, value in (("size", "48KiB"), ("line", line), ("hit_time", "1ns")):
            lines.append(f'{key} = {{ value = "{value}", source = "test" }}')
    one = machine.parse("mine.toml", "\n".join(lines))
    with pytest.raises(NearfarError, match="^[^\n]*$") as caught, view(GNUGO, filter_, one):
        pass
    assert wanted in str(caught.value) and caught.value.exit_code == 2


def test_a_damaged_trace_is_named_not_its_view(tmp_path: Path) -> None:
    with pytest.raises(NearfarError) as caught:
        info(tmp_path / "none.trace", filter="cache")
    assert str(tmp_path / "none.trace") in str(caught.value)
