"""DAMON records: every format of damo gives the same heat map, with bounds of the working set."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from conftest import refused
from nearfar import damo, importer
from nearfar.errors import NearfarError
from nearfar.heat import bounds, heat

CORPUS = Path(__file__).resolve().parents[1] / "fuzz" / "corpus" / "damo"
MS = 10**6


@pytest.mark.parametrize("form", ["json", "packed", "report", "perf"])
def test_every_form_of_a_record_is_read(form: str, tmp_path: Path) -> None:
    """64 KiB, accessed in 20, 10 and 0 of 20 samples, beside 448 KiB without accesses."""
    out = importer.import_trace(CORPUS / form, tmp_path / "a.heat")
    found = damo.load(out)
    assert found.sample_ns == (5 * MS if form in ("json", "packed") else None)
    for place, (one, hits) in enumerate(zip(found.snapshots, (20, 10, 0), strict=True)):
        start = (1000 + 100 * place) * MS
        regions = ((0x10000, 0x20000, hits), (0x20000, 0x90000, 0))
        assert one == damo.Snapshot(7, start, start + 100 * MS, regions)
    seen = heat(out)
    assert (seen.samples, seen.sample_assumed) == (20, found.sample_ns is None)
    assert seen.working_set == {
        "mean": 43691, "p25": 0, "p50": 65536, "p75": 65536, "p95": 65536, "most": 65536
    }  # fmt: skip
    assert [row["seen_bytes"] for row in seen.rows] == [65536, 65536, 0]
    assert [row["likely_bytes"] for row in seen.rows] == [65536, 32768, 0]
    for row in seen.rows:
        assert 0 <= row["low_bytes"] <= row["likely_bytes"] <= row["high_bytes"] <= 512 << 10
    hot, cold = (
        [piece for piece in seen.pieces if (int(piece["addr"] or 0) < 0x20000) == low]
        for low in (True, False)
    )
    assert sum(int(piece["bytes"] or 0) for piece in hot) == 65536
    assert all(piece["share"] == pytest.approx(0.5) for piece in hot)
    assert all(piece["last_ns"] == 200 * MS for piece in hot)
    assert all(piece["share"] == 0 and piece["last_ns"] is None for piece in cold)


@pytest.mark.parametrize("age", ["", r" (age: \4)"])
def test_reports_of_older_versions_of_damo_are_read(age: str, tmp_path: Path) -> None:
    """The format until April 2022, at first without ages (damo's commits 4ba3cc0, cf232f2)."""
    now = (CORPUS / "report").read_text()
    old = re.sub(r"(\w+-\w+) (\(.*\)) +(\d+) +(\d+)$", r"\1\2:\t\3" + age, now, flags=re.M)
    assert old != now
    (tmp_path / "old").write_text(re.sub("^#.*\n", "", old, flags=re.M))
    assert damo.read(tmp_path / "old") == damo.read(CORPUS / "report")


def test_bounds_hold_the_true_share_with_95_percent_probability() -> None:
    """Summed over the binomial distribution of 20 samples; about 95 %."""
    from math import comb

    for share in (0.05, 0.2, 0.5, 0.9):
        weight = [comb(20, hits) * share**hits * (1 - share) ** (20 - hits) for hits in range(21)]
        within = [low <= share <= high for low, high in (bounds(hits, 20) for hits in range(21))]
        assert 0.9 < sum(w for w, held in zip(weight, within, strict=True) if held) <= 1
    assert bounds(0, 20)[0] == 0 and bounds(20, 20)[1] == pytest.approx(1)


def test_a_record_is_imported_and_shown_by_the_command_line(
    nearfar: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    data, out = tmp_path / "damon.data", tmp_path / "damon.heat"
    data.write_bytes((CORPUS / "packed").read_bytes())
    assert importer.formats()["damo"]
    done = nearfar("import", data, "-o", out)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    said = f"{out}: import damo, 3 snapshots without references; `nearfar info {out}` shows them"
    assert done.stdout == said + "\n"
    done = nearfar("info", out)
    assert done.returncode == 0 and "half of the time at most 64 KiB" in done.stdout, done.stderr
    done = nearfar("info", out, "--format", "json")
    assert json.loads(done.stdout)["working_set"]["most"] == 65536
    for words, says in (
        (("paging", out), "not the references that this command needs"),
        (("info", out, "--no-reuse"), f"--reuse: {out} has no references"),
        (("import", data, "--max-refs", "3"), "--max-refs: damo records no references"),
        (("import", data, "-o", tmp_path / "x.trace"), "give -o a name that ends in .heat"),
        (("import", data, "-o", out), "exists already"),
        (("info", tmp_path / "none.heat"), "No such file"),
        (("paging", tmp_path / "none.heat"), "no such trace"),
        (("import", "-", "--format", "damo"), "is read from a file"),
    ):
        refused(nearfar(*words), says)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not a damo record"),
        (b"PERFILE2...", "is perf.data itself"),
        ((CORPUS / "cut").read_bytes(), "cut off"),
        (b"x\x9cnothing", "damaged"),
        (b"[{", "damaged"),
        (b'[{"target_id": 1, "snapshots": [{}]}]', "an entry that damo never writes"),
        ((CORPUS / "json").read_bytes().replace(b'"131,072"', b'"1"'), "impossible values"),
        (b"base_time_absolute: 1 s\nwhat\n", "line 2: not a line of `damo report raw`"),
    ],
    ids=range(8),
)
def test_a_bad_record_is_an_error(content: bytes, says: str, tmp_path: Path) -> None:
    bad = tmp_path / "damon.data"
    bad.write_bytes(content)
    with pytest.raises(NearfarError, match=says):
        importer.import_trace(bad, tmp_path / "out.heat", format="damo")
    assert not (tmp_path / "out.heat").exists()
