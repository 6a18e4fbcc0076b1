"""``nearfar tiering`` with several programs on one machine: rows by tenant, shares, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from conftest import DATA, Run
from nearfar.errors import NearfarError
from nearfar.tiering import tenants, tiering
from nearfar.tiering_answers import answers

TRACES = [DATA / "captures" / f"{name}.trace" for name in ("gunzip", "gzip")]
TWO: dict[str, Any] = {"policy": "none,tpp,oracle", "scale": "1/256", "rounds": 2, "slow": "64G"}


def test_rows_are_by_tenant() -> None:
    result = tiering("pointer-chase", "nomad-small", "nomad-small", share="2:1:1", **TWO)
    names = ["pointer-chase", "nomad-small", "nomad-small (2)"]
    assert tenants(result.rows) == names
    assert [line.split(":")[0] for line in answers(result)] == names
    for policy in ("none", "tpp", "oracle"):
        rows = [row for row in result.rows if row["policy"] == policy]
        ends = [[row for row in rows if row["workload"] == name][-1] for name in names]
        assert [row["phase"] for row in rows] == ["warm-up", "round-1", "round-2"] * 3
        for name, end in zip(names, ends, strict=True):
            own = [row for row in rows if row["workload"] == name]
            entered = sum(row["fast_allocated"] + row["promotions"] for row in own)
            left = sum(row["fast_freed"] + row["demotions"] for row in own)
            assert end["fast_pages"] == entered - left
    assert "pointer-chase,nomad-small,nomad-small" in result.run["command"]
    assert "--share 2:1:1" in result.run["command"]


def test_a_tenant_is_slower_beside_another() -> None:
    """They share bandwidth and fast memory."""

    def seconds(*loads: str) -> float:
        rows = tiering(*loads, **TWO | {"policy": "none"}).rows
        return sum(row["seconds"] for row in rows if row["workload"] == "pointer-chase")

    assert seconds("nomad-large", "pointer-chase") > 1.05 * seconds("pointer-chase")


def test_two_traces_run_together(nearfar: Run, tmp_path: Path) -> None:
    options = ["--policy", "none,nomad", "--fast", "50%", "--share", "2:1", "--points", 5]
    out = [tmp_path / "out", tmp_path / "out.html"]
    done = nearfar("tiering", *TRACES, *options, "-o", out[0], "--html", out[1])
    assert done.returncode == 0, done.stderr
    assert f"trace, {TRACES[1]}" in done.stdout.replace("\n", "")
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert [one["trace"] for one in run["traces"]] == [str(trace) for trace in TRACES]
    rows = pyarrow.parquet.read_table(tmp_path / "out" / "result.parquet").to_pylist()
    accesses = {row["workload"]: row["accesses"] for row in rows}
    for trace in TRACES:
        [alone] = tiering(trace, policy="none", fast="50%").rows
        assert accesses[str(trace)] == alone["accesses"]
    assert alone["fast_node_bytes"] < rows[0]["fast_node_bytes"]


@pytest.mark.parametrize(
    ("loads", "share", "says"),
    [
        (["nomad-small"], "2:1", "2 shares for 1 programs"),
        (["nomad-small", "nomad-large"], "2", "1 shares for 2 programs"),
        (["nomad-small", "nomad-large"], "2:0", "'2:0' are not shares"),
        (["nomad-small", TRACES[0]], None, "do not run together"),
    ],
)
def test_wrong_shares_are_refused(loads: list[Any], share: str | None, says: str) -> None:
    with pytest.raises(NearfarError, match=says):
        tiering(*loads, share=share, policy="none", scale="1/256")
