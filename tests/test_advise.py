"""``nearfar advise --view paper``: the page size model, its evaluation, fleets, and the page."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import browser
from conftest import DATA, Run, refused
from nearfar import advise as study
from nearfar import machine as machines
from nearfar.advise import advise
from nearfar.advise.architectures import neighbours, settable
from nearfar.advise.fleet import read, share
from nearfar.advise.prediction import (
    PAPER_TOLERANCE,
    Costs,
    Point,
    choose_sizes,
    left_out_error,
    points_of,
    predict,
)
from nearfar.advise.regret import evaluate
from nearfar.errors import NearfarError
from nearfar.paging import paging

GNUGO = DATA / "captures" / "gnugo.trace"
GZIP = DATA / "captures" / "gzip.trace"
SET = {"dram.local.read_latency": "60ns"}
SIZES = [512 << k for k in range(13)]
FIRST_KEYS = [
    "vm", "workload", "memory_fraction", "storage", "advised_page_bytes", "settable_page_bytes",
    "predicted_ns", "simulated_ns", "baseline_4k_ns", "gain", "regret", "best_page_bytes",
]  # fmt: skip


@pytest.fixture(scope="session")
def captured() -> dict[str, list[dict[str, Any]]]:
    """Rows of the paging study of both captures on one machine."""
    return {
        trace.stem: paging(trace, machine="optane-ssd", memory="10%,50%,100%").rows
        for trace in (GNUGO, GZIP)
    }


def rows_at(rows: list[dict[str, Any]], fraction: float, storage: str) -> list[dict[str, Any]]:
    return [r for r in rows if r["memory_fraction"] == fraction and r["storage"] == storage]


def costs(machine: str, storage: str, sizes: list[int] = SIZES) -> Costs:
    return Costs.of(machines.load(machine), storage, sizes)


# --- the model


@pytest.mark.parametrize("tlb", ["64", "16+512x4"])
def test_costs_equal_those_of_the_engine(tlb: str) -> None:
    rows = paging(GZIP, machine="optane-ssd", memory="30%", tlb=tlb).rows
    for storage in ("optane-ssd", "optane-pmem"):
        own = rows_at(rows, 0.3, storage)
        translation, data = costs("optane-ssd", storage).exact(points_of(own))
        assert translation == pytest.approx([r["translation_ns"] for r in own], rel=1e-12)
        assert data == pytest.approx([r["data_ns"] for r in own], rel=1e-12)


points = st.lists(
    st.tuples(
        st.sampled_from(SIZES),
        st.floats(0, 1),
        st.floats(0, 1),
        st.floats(1e-7, 0.1),
    ),
    min_size=1,
    max_size=13,
    unique_by=lambda p: p[0],
)


@settings(max_examples=50, deadline=None)
@given(points, st.integers(4096, 2**33), st.sampled_from(["64", "64x4", "64+1536x12"]))
def test_predictions_are_finite_and_exact_at_known_sizes(
    drawn: list[tuple[int, float, float, float]], memory: int, tlb: str
) -> None:
    known = [Point(size, m, 0.0, max(f, g), g) for size, m, f, g in sorted(drawn)]
    price = costs("nvme", "nvme")
    answer = predict(known, SIZES, price, memory, tlb, "bridge")
    translation, data = price.exact(known)
    for point, exact in zip(known, translation + data, strict=True):
        assert answer.at(point.page_bytes) == pytest.approx(exact, rel=1e-6)
    assert (
        np.isfinite(answer.total).all()
        and (answer.total >= price.times.tlb_ns + price.times.dram_ns).all()
    )
    assert (answer.low <= answer.total).all()
    assert answer.best(SIZES) in SIZES
    error = left_out_error(known, known[0].page_bytes, price, memory, tlb)
    assert (error is None) == (len(known) < 4)


def test_the_papers_formulas_are_used_where_they_fit() -> None:
    price = costs("desktop-nvm", "nvm-10x")
    kib = np.array(SIZES) / 1024
    misses = 0.02 * kib**-0.7
    faults = 0.002 * np.exp(-0.3 * kib) + 0.0005 * np.exp(0.0005 * kib)
    known = [Point(s, m, 0.0, f, 1e-6) for s, m, f in zip(SIZES, misses, faults, strict=True)]
    answer = predict(known, SIZES, price, 1 << 26)
    assert answer.model == "papers", answer.reason
    truth = sum(price.exact(known))
    assert np.abs(answer.total / truth - 1).max() <= PAPER_TOLERANCE
    # Thrashing at the largest size: a jump that no exponential fits.
    jump = [*known[:-1], replace(known[-1], faults=0.6)]
    other = predict(jump, SIZES, price, 1 << 26)
    assert (other.model, other.at(2 << 20)) == ("bridge", pytest.approx(sum(price.exact(jump))[-1]))
    assert "miss the known time" in other.reason
    assert predict(jump, SIZES, price, 1 << 26, model="papers").model == "papers"
    few = predict(known[:5], SIZES, price, 1 << 26)
    assert few.model == "bridge" and "5 sizes known" in few.reason


def test_where_frames_equal_tlb_entries_the_fault_rate_is_the_tlb_miss_rate() -> None:
    """At 64 KiB, between the two known sizes, memory has 64 frames and the TLB 64 entries."""
    known = [Point(4096, 0.04, 0.0, 1e-4, 1e-5), Point(1 << 20, 0.02, 0.0, 0.2, 1e-6)]
    price = costs("nvme", "nvme")
    answer = predict(known, SIZES, price, 64 * 65536, "64")
    rate = (answer.data[SIZES.index(65536)] - price.times.dram_ns) / price.io_ns[65536]
    assert rate == pytest.approx(0.04 * 0.5 ** (4 / 8), rel=1e-6)


def test_sizes_are_chosen_without_the_rates_of_other_sizes(captured: dict[str, Any]) -> None:
    for fraction in (0.1, 0.5, 1.0):
        for storage in ("optane-ssd", "optane-pmem"):
            rows = rows_at(captured["gnugo"], fraction, storage)
            known = {p.page_bytes: p for p in points_of(rows)}
            memory = rows[0]["memory_bytes"]
            price = costs("optane-ssd", storage)
            order = choose_sizes(known, 4, SIZES, price, memory)
            assert len(set(order)) == 4 and order[0] == 4096
            absurd = {
                size: p if size in order else Point(size, 0.9, 0.0, 0.9, 0.9)
                for size, p in known.items()
            }
            assert choose_sizes(absurd, 4, SIZES, price, memory) == order
            # Sizes are chosen one after another.
            assert choose_sizes(known, 3, SIZES, price, memory) == order[:3]


def test_advice_from_four_sizes_does_not_depend_on_other_sizes(
    captured: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer() -> dict[str, Any]:
        result = advise([GNUGO], memory="50%", machine=["optane-ssd"], storage=["optane-ssd"],
                        sizes="512,4K,64K,2M")  # fmt: skip
        return result.rows[0]

    honest = answer()
    real = study.paging

    def spoiled(*words: Any, **options: Any) -> Any:
        found = real(*words, **options)
        for entry in found.rows:
            if entry["page_bytes"] not in (512, 4096, 65536, 2 << 20):
                entry.update(tlb_miss_rate=0.9, fault_rate=1e-9, pages=1)
        return found

    monkeypatch.setattr(study, "paging", spoiled)
    other = answer()
    kept = ("advised_page_bytes", "settable_page_bytes", "predicted_ns", "gain", "confidence")
    assert {k: honest[k] for k in kept} == {k: other[k] for k in kept}
    assert honest["regret"] != other["regret"], "regret does depend on them"


# --- the advice


def test_times_of_a_row_are_those_of_the_paging_study(captured: dict[str, Any]) -> None:
    result = advise([GNUGO, GZIP], memory="10%,50%,100%", machine=["optane-ssd"], min_gain=0.0)
    assert len(result.rows) == 12
    for row in result.rows:
        assert list(row)[: len(FIRST_KEYS)] == FIRST_KEYS
        own = rows_at(captured[row["workload"]], row["memory_fraction"], row["storage"])
        times = {r["page_bytes"]: r["total_ns"] for r in own}
        best = min(times.values())
        assert times[row["best_page_bytes"]] == pytest.approx(best)
        assert row["best_ns"] == pytest.approx(best)
        assert row["simulated_ns"] == pytest.approx(times[row["advised_page_bytes"]])
        assert row["baseline_4k_ns"] == pytest.approx(times[4096])
        assert row["regret"] == pytest.approx(times[row["advised_page_bytes"]] / best - 1)
        assert row["simulated_gain"] == pytest.approx(1 - row["simulated_ns"] / times[4096])
        assert row["gain"] == pytest.approx(
            1 - row["predicted_ns"] / row["baseline_4k_predicted_ns"]
        )
        # A size is not simulated if memory holds fewer than 8 of its pages.
        assert [p["page_bytes"] for p in row["curve"]] == [size for size in SIZES if size in times]
        assert row["why"] and row["confidence"] in ("good", "fair", "poor")


def test_another_size_than_4k_is_advised_only_for_the_minimum_gain() -> None:
    for gain in (0.0, 0.05, 0.5, 0.99):
        rows = advise([GNUGO, GZIP], memory="30%,60%", machine=["optane-ssd", "desktop-hdd"],
                      min_gain=gain, sizes="4").rows  # fmt: skip
        for row in rows:
            assert row["advised_page_bytes"] == 4096 or row["gain"] >= gain
            if row["settable_page_bytes"] != 4096:
                saved = 1 - row["settable_predicted_ns"] / row["baseline_4k_predicted_ns"]
                assert saved >= gain
        if gain == 0.99:
            assert {row["advised_page_bytes"] for row in rows} == {4096}
            assert any(row["model_page_bytes"] != 4096 for row in rows)
            assert all("Stay at 4 KiB" in r["why"] for r in rows if r["model_page_bytes"] != 4096)


def test_4k_can_always_be_advised_and_no_size_beyond_the_known_ones() -> None:
    (row,) = advise(GNUGO, storage=["nvm-1x"], page_sizes=[64, 128]).rows
    assert row["advised_page_bytes"] == 4096 and row["regret"] >= 0
    (row,) = advise(GNUGO, storage=["nvme"], sizes="1G").rows
    assert row["model_page_bytes"] == 4096, "one known size of 1 GiB says nothing of others"
    (row,) = advise(GNUGO, storage=["hdd"], sizes="4K,8K").rows
    assert row["model_page_bytes"] in (4096, 8192)


def test_the_advised_size_is_mapped_to_sizes_that_a_kernel_can_set() -> None:
    assert [s.page_bytes for s in neighbours("x86-64", 512)] == [4096]
    assert [s.page_bytes for s in neighbours("x86-64", 8192)] == [4096, 16384]
    assert [(s.page_bytes, s.mechanism) for s in neighbours("x86-64", 65536)] == [(65536, "mthp")]
    assert neighbours("aarch64", 65536)[0].mechanism == "granule"
    assert neighbours("x86-64", 2 << 30)[0].page_bytes == 1 << 30
    for arch in ("x86-64", "aarch64"):
        assert min(s.page_bytes for s in settable(arch)) == 4096, "nothing below 4 KiB is offered"
    with pytest.raises(NearfarError, match="did you mean x86-64"):
        settable("x86_64")
    (row,) = advise([GNUGO], memory="10%", storage=["nvm-100x"], page_sizes="512,1K").rows
    assert row["advised_page_bytes"] == 512 and row["settable_page_bytes"] == 4096
    assert "no x86-64 or arm64 kernel offers less than 4 KiB" in row["why"]
    assert row["settable_price"] > 0 and row["mechanism"] == "base"


def test_regret_is_scored_by_leaving_each_size_out() -> None:
    """A model that is given every size is scored by its prediction of each from the others."""
    options: Any = {"memory": "30%", "machine": "desktop-hdd"}
    (row,) = advise([GNUGO], **options).rows
    assert row["largest_error"] == pytest.approx(0), "the bridge passes through what it is shown"
    blind, simulated = {}, [point["page_bytes"] for point in row["curve"]]
    assert len(simulated) > 6
    for size in simulated:
        others = ",".join(str(one) for one in simulated if one != size)
        (other,) = advise([GNUGO], sizes=others, **options).rows
        (blind[size],) = (p["predicted_ns"] for p in other["curve"] if p["page_bytes"] == size)
    taken = min(simulated, key=lambda size: blind[size])
    times = {point["page_bytes"]: point["simulated_ns"] for point in row["curve"]}
    assert row["model_regret"] == pytest.approx(times[taken] / min(times.values()) - 1)
    assert row["judged_page_bytes"] == taken
    assert row["model_regret"] > 0, "or else this shows nothing"


@pytest.mark.parametrize("sizes", ["all", "4"])
def test_evaluation_summarises_the_regrets_of_the_captures(sizes: str) -> None:
    memory = "10%,50%,100%"
    rows = advise([GNUGO, GZIP], memory=memory, machine=machines.names(), sizes=sizes).rows
    found = evaluate(rows, sizes)
    storages = sum(len(machines.load(name).storages) for name in machines.names())
    assert len(rows) == 2 * 3 * storages and found["summary"][0]["rows"] == len(rows)
    # With one size left out, interpolation between its neighbours misses a disk's best page.
    assert found["summary"][0]["holds"] is (sizes == "4"), found["summary"][0]
    regrets = sorted(row["model_regret"] for row in rows)
    assert found["summary"][0]["worst"] == regrets[-1] >= 0
    assert found["summary"][0]["exceed"] == len(found["exceeding"])
    # The minimum gain adds at most its share to the regret.
    for row in rows:
        if sizes == "4" and row["advised_page_bytes"] != row["model_page_bytes"]:
            limit = (1 + row["largest_error"]) / (1 - row["min_gain"])
            assert row["regret"] <= limit * (1 + row["model_regret"]) - 1 + 1e-9


def test_evaluation_equals_figures_by_hand() -> None:
    def row(storage: str, regret: float) -> dict[str, Any]:
        return {"machine": "m", "storage": storage, "model_regret": regret, "regret": regret / 2,
                "model": "bridge", "vm": "v", "workload": "w", "memory_fraction": 0.5,
                "model_page_bytes": 8192, "judged_page_bytes": 4096,
                "best_page_bytes": 8192}  # fmt: skip

    found = evaluate([row("a", 0.0), row("a", 0.2), row("b", 0.04)], "all")
    total, first, second = found["summary"]
    assert (total["median"], total["worst"], total["exceed"]) == (0.04, 0.2, 1)
    assert (first["group"], first["median"], first["holds"]) == ("m/a", pytest.approx(0.1), False)
    assert (second["group"], second["p95"], second["holds"]) == ("m/b", 0.04, False)
    assert evaluate([row("b", 0.04)], "4")["summary"][0]["holds"] is True
    worst = found["exceeding"][0]
    assert (worst["model_regret"], worst["model_page_bytes"]) == (0.2, 4096)


def test_storages_are_compared_on_the_usual_machine(tmp_path: Path) -> None:
    rows = advise(GNUGO, memory="60%", storage=["optane-ssd", "hdd"]).rows
    assert [(row["machine"], row["storage"]) for row in rows] == [
        ("nvme", "optane-ssd"),
        ("nvme", "hdd"),
    ]
    path = tmp_path / "fleet.toml"
    path.write_text("[vm.a]\ntrace='x'\n[vm.b]\ntrace='x'\nstorage='hdd'\n")
    defaults = {"memory": "50%", "arch": "x86-64", "min_gain": "5%"}
    found = read(path, defaults)
    assert [(vm.machine, vm.storage) for vm in found] == [("nvme", "nvme"), ("nvme", "hdd")]
    with pytest.raises(NearfarError, match="did you mean optane-ssd"):
        advise([GNUGO], storage=["optane-sdd"])


def test_advice_does_not_depend_on_the_number_of_threads() -> None:
    options: dict[str, Any] = {"memory": "20%,80%", "machine": ["nvme"], "sizes": "4"}
    assert (
        advise([GZIP], **options, threads=1).to_json()
        == advise([GZIP], **options, threads=2).to_json()
    )


# --- fleets


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    for trace in (GNUGO, GZIP):
        shutil.copytree(trace, tmp_path / trace.name)
    path = tmp_path / "fleet.toml"
    path.write_text(
        'machine = "optane-ssd"\nstorage = "optane-ssd"\n'
        '[vm.web]\ntrace = "gnugo.trace"\nmemory = "60%"\nscenario = "1"\n'
        '[vm.small]\ntrace = "gnugo.trace"\nmemory = "10%"\nmachine = "desktop-nvm"\n'
        'storage = "nvm-100x"\narch = "aarch64"\n'
        '[vm.archive]\ntrace = "gzip.trace"\nworkload = "backup"\nmemory = "512KiB"\n'
        'machine = "desktop-hdd"\nstorage = "hdd"\nmin_gain = "90%"\n'
    )
    return path


def test_a_fleet_has_a_row_of_each_vm(fleet: Path) -> None:
    result = advise(fleet)
    assert [row["vm"] for row in result.rows] == ["web", "small", "archive"]
    web, small, archive = result.rows
    (alone,) = advise([GNUGO], memory="60%", machine=["optane-ssd"], storage=["optane-ssd"]).rows
    same = ("advised_page_bytes", "predicted_ns", "regret", "curve")
    assert {k: web[k] for k in same} == {k: alone[k] for k in same}
    assert (web["scenario"], small["arch"], archive["workload"]) == ("1", "aarch64", "backup")
    assert (archive["memory_bytes"], archive["memory_fraction"]) == (512 * 1024, None)
    assert archive["advised_page_bytes"] == 4096 and archive["min_gain"] == 0.9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[vm.a]\ntrce = 'x'\n", "[vm.a] trce: unknown key; did you mean `trace`?"),
        ("storag = 'x'\n", "storag: unknown key; did you mean `storage`?"),
        ("[vm.a]\nmemory = 60\n", "[vm.a] memory: is not text; quote it"),
        ("[vm.a]\nmemory = '60%'\n", "[vm.a] trace: is missing"),
        (
            "[vm.a]\ntrace = 'x'\nmachine = 'desktop-nvm'\n",
            "[vm.a] storage: is missing, and machine desktop-nvm has nvm-100x, nvm-10x, nvm-1x",
        ),
        ("storage = 'hdd'\n", "no virtual machines"),
        ("vm = 3\n", "no virtual machines"),
        ("[vm]\na = 3\n", "vm.a is not a section"),
        ("[vm.'a b']\ntrace = 'x'\n", "is not a name for a VM"),
        ("[vm.a]\ntrace='x'\nstorage='y'\nmin_gain='5'\n", "[vm.a] min_gain: '5' is not a share"),
        ("[vm.a\n", "not TOML"),
    ],
)
def test_a_bad_fleet_is_an_error_of_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    defaults = {"memory": "50%", "machine": "nvme", "arch": "x86-64", "min_gain": "5%"}
    with pytest.raises(NearfarError) as caught:
        read(path, defaults)
    assert message in str(caught.value) and str(caught.value).count("\n") == 0
    assert str(path) in str(caught.value) and caught.value.exit_code == 2


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused_as_a_fleet(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "fleet.toml"
    path.write_bytes(data)
    with pytest.raises(NearfarError):
        read(path, {"memory": "50%", "machine": "nvme", "arch": "x86-64", "min_gain": "5%"})


def test_a_share_is_a_percentage_below_100_or_a_fraction() -> None:
    assert share("5%", "x") == share(0.05, "x") == 0.05 and share(" 0 % ", "x") == 0.0
    for bad in ("5", "100%", "-1%", "", "five%"):
        with pytest.raises(NearfarError, match="--min-gain"):
            share(bad, "--min-gain")


# --- the command


def test_output_formats_agree(nearfar: Run, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    words = ["advise", GNUGO, "--memory", "60%", "--machine", "optane-ssd"]
    rows = json.loads(nearfar(*words, "--format", "json").stdout)["rows"]
    assert list(rows[0])[: len(FIRST_KEYS)] == FIRST_KEYS
    answer = list(csv.DictReader(io.StringIO(nearfar(*words, "--format", "csv").stdout)))
    assert [float(r["predicted_ns"]) for r in answer] == [r["predicted_ns"] for r in rows]
    out = tmp_path / "out"
    assert nearfar(*words, "-o", out, "--emit", "sysfs").returncode == 0
    table = pq.read_table(out / "result.parquet")
    nested = {"curve", "fitted_page_bytes", "regions"}
    assert table.column_names == [k for k in rows[0] if k not in nested]
    assert table.to_pylist() == [{k: v for k, v in r.items() if k not in nested} for r in rows]
    assert json.loads((out / "run.json").read_text())["study"] == "advise"
    assert {p.name for p in out.glob("*.sh")} == {
        "gnugo-60-optane-ssd.sh",
        "gnugo-60-optane-pmem.sh",
    }
    shown = nearfar(*words).stdout
    assert "64 KiB" in shown and "Confidence" in shown


def test_several_rows_are_emitted_to_a_folder(nearfar: Run, fleet: Path, tmp_path: Path) -> None:
    one = nearfar("advise", GNUGO, "--memory", "60%", "--machine", "optane-ssd", "--storage",
                  "optane-ssd", "--emit", "kernel-cmdline")  # fmt: skip
    assert one.stdout == "thp_anon=64K:always\n"
    refused(nearfar("advise", fleet, "--emit", "libvirt"), "give -o FOLDER")
    done = nearfar("advise", fleet, "--emit", "sysfs", "-o", tmp_path / "made")
    assert done.returncode == 0, done.stderr
    assert {p.stem for p in (tmp_path / "made").glob("*.sh")} == {"web", "small", "archive"}
    pools = nearfar("advise", fleet, "--emit", "hugetlb", "-o", tmp_path / "pools")
    assert pools.returncode == 2 and "no VM has pages of 2M or 1G" in pools.stderr


def test_advice_that_cannot_be_emitted_is_an_error(nearfar: Run, tmp_path: Path) -> None:
    words = ["advise", GNUGO, "--memory", "60%", "--machine", "optane-ssd", "--arch", "aarch64"]
    done = nearfar(*words, "--storage", "optane-ssd", "--emit", "sysfs")
    refused(done, "CONFIG_ARM64_64K_PAGES")
    done = nearfar(*words, "--emit", "sysfs", "-o", tmp_path / "made")
    assert done.returncode == 1 and "nearfar: note: " in done.stderr
    assert [p.name for p in (tmp_path / "made").glob("*.sh")] == ["gnugo-60-optane-pmem.sh"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sizes", "5000"], "--sizes: '5000' has a size that is not a power of two"),
        (["--sizes", "0"], "--sizes:"),
        (["--model", "best"], "--model: 'best' is not a model"),
        (["--arch", "sparc"], "--arch: no architecture 'sparc'"),
        (["--storage", "floppy"], "floppy"),
        (["--min-gain", "5"], "--min-gain: '5' is not a share"),
        (["--emit", "xen"], "has no emitter 'xen'"),
        (["--format", "xml"], "'--format': 'xml' is not one of"),
        (["--page-sizes", "3"], "--page-sizes"),
        (["--memory", "none"], "--memory"),
        (["fleet.toml"], "give one fleet file and nothing else"),
    ],
)
def test_bad_options_are_an_error_of_one_line(nearfar: Run, words: list[str], message: str) -> None:
    refused(nearfar("advise", GNUGO, *words), message)


def test_evaluation_exits_with_1_when_a_goal_is_missed(nearfar: Run) -> None:
    words = ["advise", GNUGO, "--evaluate", "--memory", "30%,100%", "--machine", "desktop-hdd"]
    done = nearfar(*words, "--model", "papers", "--format", "json")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and not found["summary"][0]["holds"] and found["exceeding"]
    assert nearfar(*words).returncode == 1
    done = nearfar(*words[:-1], "desktop-nvm")
    assert done.returncode == 0 and "holds" in done.stdout


@pytest.mark.parametrize(
    "options",
    [
        {"machine": "optane-ssd,desktop-hdd", "storage": "optane-ssd,hdd", "min_gain": 0.07},
        {"storage": ["nvm-100x"], "page_sizes": "512,1K", "arch": "aarch64", "tlb": "16+512x4"},
        {"machine": machines.load("optane-ssd", set=SET), "sizes": 4},
    ],
    ids=["machines", "storage", "set"],
)
def test_the_command_of_a_run_gives_its_rows_again(nearfar: Run, options: Any) -> None:
    first = advise([GNUGO, GZIP], memory="30%,1M", **options)
    again = nearfar(*shlex.split(first.run["command"])[1:], "--format", "json")
    assert json.loads(again.stdout)["rows"] == first.rows, again.stderr


def test_the_command_of_a_fleet_gives_its_rows_again(nearfar: Run, fleet: Path) -> None:
    first = advise(fleet, min_gain="1%", machine="nvme", filter="cache")
    again = nearfar(*shlex.split(first.run["command"])[1:], "--format", "json")
    assert (
        json.loads(again.stdout)["rows"]
        == first.rows
        == advise(fleet, min_gain=0.01, filter="cache").rows
    )


def test_machines_may_be_text_names_or_machine_objects() -> None:
    results = [
        advise(GNUGO, machine=given, page_sizes="4K,64K").rows
        for given in ("nvme", ["nvme"], machines.load("nvme"), [machines.load("nvme")])
    ]
    assert results[0] and all(rows == results[0] for rows in results)
    every = {row["machine"] for row in advise(GNUGO, machine="all", page_sizes="4K").rows}
    assert every == set(machines.paging_to_storage())


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(NearfarError, match="--write-back: there is no such option; .*--tlb"):
        advise(GNUGO, write_back=True)  # type: ignore[call-arg]


# --- the page


def page_of(tmp_path: Path, fleet: Path) -> tuple[Path, list[dict[str, Any]]]:
    result = advise(fleet, sizes="4")
    result.rows[1]["vm"] = "</script><img src=x onerror=alert(1)>"
    path = tmp_path / "fleet.html"
    path.write_text(result.html(), encoding="utf-8")
    assert result.html() == path.read_text(encoding="utf-8"), "the same bytes"
    return path, result.rows


def test_a_chosen_row_shows_its_curve_and_reason(tmp_path: Path, fleet: Path) -> None:
    path, rows = page_of(tmp_path, fleet)
    assert path.stat().st_size < 3_000_000
    with browser.opened(path) as (page, problems):
        picks = page.locator("button.pick")
        assert picks.count() == len(rows)

        def check(index: int) -> None:
            browser.settled(page)
            row = rows[index]
            answer = page.inner_text("#why-text").replace("\u00a0", " ").replace("\u00b5", "u")
            assert row["why"] in answer and row["vm"] in answer and row["limit"] in answer
            assert page.locator('button.pick[aria-pressed="true"]').inner_text() == row["vm"]
            points = page.locator("#curve-chart .mark-symbol path")
            assert points.count() == len(row["curve"])
            shapes = {points.nth(i).get_attribute("d") for i in range(points.count())}
            assert len(shapes) == 2, "sizes shown to the model and others differ by shape"
            words = page.locator("#curve-chart .mark-text text").all_text_contents()
            assert any("advised" in word for word in words), words
            page.evaluate("document.querySelector('#curve details').open = true")
            assert page.locator("#curve-table tbody tr").count() == len(row["curve"])

        check(0)
        picks.nth(2).click()
        check(2)
        picks.nth(1).focus()
        page.keyboard.press("Enter")
        check(1)
        with page.expect_download() as saved:
            page.click("#save-json")
        assert json.loads(Path(saved.value.path()).read_text())["rows"] == rows
        assert page.locator("img").count() == 0
    assert problems == []


def test_the_page_has_a_limit_of_rows(fleet: Path) -> None:
    from nearfar.report.html.advise import AdvisePage

    result = advise(fleet)
    limit = AdvisePage.limit
    full = replace(result, rows=(result.rows * limit)[:limit])
    assert len(AdvisePage(full).html().encode()) < 3_000_000
    with pytest.raises(NearfarError, match="at most"):
        AdvisePage(replace(full, rows=[*full.rows, result.rows[0]])).html()


def test_no_meaning_is_by_colour_alone(fleet: Path) -> None:
    """Each verdict has a word and a sign, each advised size a number."""
    text = advise(fleet).html()
    assert text.count('class="verdict ') == 3 and text.count('class="size"') == 3
    assert os.linesep and "\u2713 good" in text


def test_references_are_filtered_by_the_caches_of_each_vms_machine() -> None:
    trace = DATA / "captures" / "sqlite.trace"
    whole, filtered = (
        advise(trace, machine=["desktop-hdd", "desktop-nvm"], filter=name).to_dict()
        for name in ("none", "cache")
    )
    assert whole["run"]["view"].startswith("every reference")
    assert {"desktop-hdd", "desktop-nvm"} <= set(filtered["run"]["view"].replace(":", " ").split())
    by_hand = advise(trace, machine=["desktop-hdd"], filter="cache").rows
    assert by_hand[0]["simulated_ns"] == filtered["rows"][0]["simulated_ns"]
    assert by_hand[0]["simulated_ns"] > whole["rows"][0]["simulated_ns"]


def test_the_base_page_of_a_guest_depends_on_its_storage() -> None:
    trace = DATA / "captures" / "pdf.trace"
    pages = {
        storage: advise(
            trace, memory="60%", view="paper", arch="aarch64", machine=host, storage=storage
        ).rows[0]["settable_page_bytes"]
        for host, storage in (("zram", "zram"), ("desktop-hdd", "hdd"))
    }
    assert pages == {"zram": 4096, "hdd": 16384}
