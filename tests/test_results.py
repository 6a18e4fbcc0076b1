"""Results in Python: tables, charts, notebooks, folders; argument forms."""

from __future__ import annotations

import base64
import importlib
import json
import pkgutil
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nearfar
from conftest import DATA
from nearfar.errors import NearfarError
from nearfar.report import plots
from nearfar.result import LINES, FolderResult, Result

GNUGO = DATA / "captures" / "gnugo.trace"


def _paging() -> Any:
    from nearfar.paging import paging

    return paging(GNUGO, memory="50%", machine="optane-ssd")


def _advise() -> Any:
    from nearfar.advise import advise

    return advise(GNUGO, machine=["optane-ssd"], storage=["optane-ssd"])


def _tiering() -> Any:
    from nearfar.tiering import tiering

    return tiering(policy="nomad,ssp", scale="1/256", rounds=1, points=4)


def _ssd() -> Any:
    from nearfar.ssd import ssd

    return ssd(GNUGO, dram=["1M", "2M"], epf=["none", "all"])


def _numa(command: str) -> Callable[[], Any]:
    def run() -> Any:
        from nearfar import numa
        from nearfar.numa.plan import plan

        return {
            "alloc": lambda: numa.alloc(["80G", "700G"]),
            "run": lambda: numa.run("40G"),
            "pair": lambda: numa.pair("4G", "4G", overlap=[0.0, 1.0], cache="8G"),
            "plan": lambda: plan("500G", threads=24),
        }[command]()

    return run


def _info() -> Any:
    from nearfar.info import info

    return info(GNUGO, reuse=False)


def _fit() -> Any:
    from nearfar.fit import fit_rows

    return fit_rows(
        {"page_bytes": size, "tlb_miss_rate": 40 * size**-0.9}
        for size in (512, 1024, 4096, 16384, 65536)
    )


def _reproduce() -> Any:
    from nearfar.reproduce import reproduce

    return reproduce("numa")


#: Removed when the tests end.
_SCRATCH = tempfile.TemporaryDirectory(prefix="nearfar-test-")


def _folder() -> Path:
    return Path(tempfile.mkdtemp(dir=_SCRATCH.name))


def _run_folder() -> Path:
    return Path(_paging().write(_folder() / "run"))


def _explain() -> Any:
    from nearfar.explain import explain

    return explain(_run_folder(), page="64K")


def _watch() -> Any:
    from watch_fixture import watched

    return watched()


def _thp() -> Any:
    from nearfar.thp import thp

    return thp(GNUGO, machine="nvme", policy="never,always", points=5)


def _diff() -> Any:
    from nearfar.diff import diff
    from nearfar.paging import paging

    run = _run_folder()
    paging(GNUGO, memory="50%", machine="optane-ssd", tlb="32").write(run.parent / "other")
    return diff(run, run.parent / "other", metric="tlb_misses")


def _sweep() -> Any:
    from sweeping import sweep_here

    file = {
        "study": "paging",
        "grid": {"tlb": ["64", "64+1536x12"], "replacement": ["clock", "lru"]},
        "options": {
            "trace": str(GNUGO), "memory": "50%", "machine": "optane-ssd", "page_sizes": "4K,64K"
        },
    }  # fmt: skip
    return sweep_here(file, _folder() / "grid.sweep")


#: Functions that make a small result, by kind.
MADE: dict[str, Callable[[], Any]] = {
    "paging": _paging,
    "advise": _advise,
    "tiering": _tiering,
    "ssd": _ssd,
    "numa alloc": _numa("alloc"),
    "numa run": _numa("run"),
    "numa pair": _numa("pair"),
    "numa plan": _numa("plan"),
    "info": _info,
    "fit": _fit,
    "reproduce": _reproduce,
    "explain": _explain,
    "diff": _diff,
    "sweep": _sweep,
    "watch": _watch,
    "thp": _thp,
}
KINDS = pytest.mark.parametrize("kind", MADE)


@pytest.fixture(scope="module")
def made() -> Callable[[str], Any]:
    kept: dict[str, Any] = {}

    def get(kind: str) -> Any:
        if kind not in kept:
            kept[kind] = MADE[kind]()
        return kept[kind]

    return get


def test_every_module_of_charts_has_a_result_here() -> None:
    drawn = {module.name for module in pkgutil.iter_modules(plots.__path__)}
    assert {kind.split()[0] for kind in MADE} >= drawn


@KINDS
def test_arrow_polars_and_json_agree(kind: str, made: Callable[[str], Any]) -> None:
    result = made(kind)
    assert isinstance(result, Result)
    table = result.table
    assert table.num_rows > 0
    frame = result.to_polars()
    assert frame.columns == table.column_names and frame.height == table.num_rows
    parsed = json.loads(result.to_json())
    assert parsed == json.loads(json.dumps(result.to_dict()))
    if "rows" in parsed:
        assert len(parsed["rows"]) == table.num_rows


@KINDS
def test_a_notebook_shows_rows_and_chart_without_scripts(
    kind: str, made: Callable[[str], Any]
) -> None:
    result = made(kind)
    shown = result._repr_html_()
    assert "<table>" in shown and "<script" not in shown
    assert f"{result.table.num_rows:,} rows" in shown
    (picture,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', shown)
    assert b'class="mark-group role-title"' in base64.b64decode(picture)


@KINDS
def test_a_result_prints_as_its_answer(kind: str, made: Callable[[str], Any]) -> None:
    result = made(kind)
    lines = repr(result).splitlines()
    assert 3 < len(lines) <= LINES and max(map(len, lines)) <= 80, lines
    name, rows = type(result).__name__, result.table.num_rows
    assert lines[-1].startswith(f"{name}, {rows:,} rows, ") and repr(result) == str(result)
    assert "run=" not in repr(result) and "{'" not in repr(result)


def test_the_first_line_is_the_answer(made: Callable[[str], Any]) -> None:
    assert repr(made("paging")).startswith("Page size: at 50 % memory on optane-pmem ")
    assert "round-1, one seed" in repr(made("tiering")).splitlines()[0]
    assert repr(made("ssd")).startswith("At 1 MiB ")
    first = made("paging")._repr_html_().splitlines()[0]
    assert first.startswith("<p><b>Page size: at 50 % memory ")


def test_columns_that_are_left_out_are_named(made: Callable[[str], Any]) -> None:
    from nearfar.report import tables

    table = made("paging").table
    narrow = tables.text(tables.first_rows(table), 80, elsewhere="more")
    said = " ".join(narrow.splitlines()).partition("columns left out at this width: ")[2]
    left = said.removesuffix("; more").split(", ")
    head = narrow.splitlines()[1].split()
    assert left and set(head) | set(left) == set(table.column_names) and not set(head) & set(left)
    assert "left out" not in tables.text(tables.first_rows(table), 1000, elsewhere="more")


def test_html_in_names_and_cells_is_escaped() -> None:
    import pyarrow

    class Bad(Result):
        @property
        def table(self) -> Any:
            return pyarrow.table({"<b>": ["<script>alert(1)</script>", None]})

    assert "<script" not in Bad()._repr_html_() and "<b>" not in Bad()._repr_html_()


@KINDS
def test_plot_draws_marks(kind: str, made: Callable[[str], Any]) -> None:
    """Rendered by the version of Vega-Lite that notebooks use."""
    import altair
    import vl_convert

    chart = made(kind).plot()
    assert isinstance(chart, altair.TopLevelMixin)
    spec = chart.to_dict()
    version = ".".join(altair.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    svg = vl_convert.vegalite_to_svg(spec, vl_version=version)
    marks = re.findall(r'<path[^>]* aria-roledescription="(?:bar|point|line mark)"', svg)
    assert marks, "nothing is drawn"
    assert svg.count('class="mark-text role-axis-title"') >= 1
    assert 'class="mark-group role-title"' in svg
    assert "NaN" not in svg and "undefined" not in svg and "null" not in svg


def test_the_chart_is_of_the_result_s_numbers(made: Callable[[str], Any]) -> None:
    result = made("paging")
    storage = result.rows[0]["storage"]
    rows = [row for row in result.rows if row["storage"] == storage]
    drawn = result.plot().to_dict()["datasets"]["bars"]
    assert len(drawn) == 2 * len(rows)
    for part in ("translation", "data"):
        got = sorted(bar["value"] for bar in drawn if bar["part"] == part)
        assert got == sorted(row[f"{part}_ns"] for row in rows)
    bars = made("ssd").plot().to_dict()["datasets"]["bars"]
    assert [bar["value"] for bar in bars] == [row["seconds"] * 1e9 for row in made("ssd").rows]


def test_results_without_a_chart_or_rows_raise_errors() -> None:
    from nearfar.apply import ApplyResult

    dry = ApplyResult(plan=None, command=["true"], done=False)  # type: ignore[arg-type]
    with pytest.raises(NearfarError, match="ApplyResult has no chart"):
        dry.plot()
    from nearfar.fit import Fits

    with pytest.raises(NearfarError, match="no rows"):
        Fits().plot()


@KINDS
def test_a_result_is_written_to_a_folder(
    kind: str, made: Callable[[str], Any], tmp_path: Path
) -> None:
    result = made(kind)
    if not isinstance(result, FolderResult):
        pytest.skip(f"{kind} gives no folder")
    import pyarrow.parquet

    folder = result.write(tmp_path / "out")
    assert pyarrow.parquet.read_table(folder / "result.parquet").equals(result.table)
    written = json.loads((folder / "run.json").read_text())
    assert written.get("run", written)["version"] == nearfar.__version__
    with pytest.raises(NearfarError, match="exists already"):
        result.write(folder)


# --- one value or several


def test_arguments_take_a_value_a_list_or_text_with_commas() -> None:
    trace = nearfar.open(GNUGO)
    options: dict[str, Any] = {"machine": "nvme", "page_sizes": "4K,64K", "memory": "50%,100%"}
    written = nearfar.paging(str(GNUGO), **options).rows
    assert nearfar.paging(trace, **{**options, "page_sizes": [4096, "64K"]}).rows == written
    assert nearfar.paging(GNUGO, **{**options, "memory": ["50%", "100%"]}).rows == written
    assert nearfar.paging(GNUGO, **{**options, "storage": "nvme"}).rows == written
    one = nearfar.advise(str(GNUGO), machine="nvme", memory="50%,100%").rows
    for traces in ([str(GNUGO)], (GNUGO,), trace, [trace]):
        found = nearfar.advise(traces, machine=["nvme"], memory=["50%", "100%"])
        assert found.rows == one
    several = nearfar.advise([GNUGO, DATA / "captures" / "gzip.trace"], machine="nvme,cxl")
    assert len({(row["vm"], row["machine"]) for row in several.rows}) == 4
    assert nearfar.info(trace)["records"] == len(trace)
    moved = nearfar.tiering(trace, policy=["none", "nomad"])
    assert moved.rows == nearfar.tiering(str(GNUGO), policy="none,nomad").rows
    numa = importlib.import_module("nearfar.numa")
    assert numa.run(trace, mode="local").rows == numa.run(GNUGO, mode=["local"]).rows
    assert (
        nearfar.ssd(trace, dram="2M", epf="none").rows
        == nearfar.ssd(GNUGO, dram=["2M"], epf=["none"]).rows
    )
    assert nearfar.paging(trace, **options).run["trace"] == str(GNUGO)
