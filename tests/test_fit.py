"""Fits of TLB miss rate and page fault rate, against known curves and SciPy."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import curve_fit

from conftest import Run, refused
from nearfar import machine
from nearfar.advise.measured import decide
from nearfar.declared import fit as declared
from nearfar.errors import NearfarError
from nearfar.fit import fit_csv, fit_rows
from nearfar.models import MODELS, Fit, fit

SIZES = [1 << power for power in range(9, 22)]
KIB = np.array(SIZES) / 1024


def power(p: np.ndarray, a: float, b: float) -> np.ndarray:
    return a * p**b


def two_exponentials(p: np.ndarray, a: float, b: float, c: float, d: float) -> np.ndarray:
    return a * np.exp(b * p) + c * np.exp(d * p)


def rss(one: Fit) -> float:
    return float(np.sum((np.array(one.measured) - one.predict(one.page_bytes)) ** 2))


@settings(max_examples=20, deadline=None)
@given(a=st.floats(1e-6, 0.9), b=st.floats(-3, -0.05))
def test_power_law_is_recovered(a: float, b: float) -> None:
    one = fit("tlb", SIZES, power(KIB, a, b))
    assert one.coefficients == pytest.approx({"a": a, "b": b}, rel=1e-6)
    assert one.verdict == "good"


@settings(max_examples=20, deadline=None)
@given(
    a=st.floats(1e-5, 0.1),
    b=st.floats(-2.0, -0.1),
    share=st.floats(0.02, 2),
    d=st.floats(-0.01, 0.002),
)
def test_two_exponentials_are_recovered(a: float, b: float, share: float, d: float) -> None:
    rates = two_exponentials(KIB, a, b, a * share, d)
    one = fit("fault", SIZES, rates)
    assert one.coefficients == pytest.approx({"a": a, "b": b, "c": a * share, "d": d}, rel=1e-4)
    assert one.verdict == "good" and one.r2 == pytest.approx(1)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), noise=st.floats(0.001, 0.05))
def test_the_fit_of_noisy_rates_is_the_least_squares_optimum(seed: int, noise: float) -> None:
    true = (0.01, -0.3, 0.002, 0.0006)
    clean = two_exponentials(KIB, *true)
    rates = clean + noise * clean * np.random.default_rng(seed).standard_normal(len(SIZES))
    one = fit("fault", SIZES, np.maximum(rates, 0))
    # The optimum is at least as good as the truth, and as what SciPy finds from the truth.
    from_truth, _ = curve_fit(two_exponentials, KIB, np.maximum(rates, 0), p0=true, maxfev=20_000)
    best = float(np.sum((np.maximum(rates, 0) - two_exponentials(KIB, *from_truth)) ** 2))
    assert rss(one) <= best * (1 + 1e-9)
    assert one.predict(SIZES) == pytest.approx(clean, rel=1, abs=5 * noise * clean.max())


def test_coefficients_and_intervals_agree_with_scipy() -> None:
    generator = np.random.default_rng(3)
    for true in [
        (0.01, -0.3, 0.002, 0.0006),
        (0.02, -1.2, 0.005, -0.05),
        (5e-4, -0.02, 1e-5, 2e-3),
    ]:
        rates = two_exponentials(KIB, *true) * (1 + 0.01 * generator.standard_normal(len(SIZES)))
        one = fit("fault", SIZES, rates)
        scipys, covariance = curve_fit(
            two_exponentials, KIB, rates, p0=true, xtol=1e-14, ftol=1e-14, gtol=1e-14, maxfev=20_000
        )
        assert list(one.coefficients.values()) == pytest.approx(list(scipys), rel=1e-4)
        assert one.intervals is not None
        deviation = np.sqrt(np.diag(covariance))
        for (low, high), sigma in zip(one.intervals.values(), deviation, strict=True):
            # Student's t at 97.5 % with 9 degrees of freedom.
            assert (high - low) / 2 == pytest.approx(2.2621571628 * sigma, rel=1e-2)
    rates = power(KIB, 0.05, -0.7) * (1 + 0.05 * generator.standard_normal(len(SIZES)))
    one = fit("tlb", SIZES, rates)
    scipys, _ = curve_fit(power, KIB, rates, p0=(0.05, -0.7))
    assert list(one.coefficients.values()) == pytest.approx(list(scipys), rel=1e-6)


def test_relative_weighting_agrees_with_scipys_sigma() -> None:
    rates = two_exponentials(KIB, 0.01, -0.3, 2e-5, 0.0006) * (
        1 + 0.05 * np.sin(np.arange(len(SIZES)))
    )
    one = fit("fault", SIZES, rates, weighting="relative")
    scipys, _ = curve_fit(
        two_exponentials, KIB, rates, p0=(0.01, -0.3, 2e-5, 0.0006), sigma=rates, maxfev=20_000
    )
    assert list(one.coefficients.values()) == pytest.approx(list(scipys), rel=1e-3)
    plain = fit("fault", SIZES, rates)

    def worst(which: Fit) -> float:
        return float(np.max(np.abs(which.predict(SIZES) / rates - 1)))

    assert worst(one) < worst(plain)


def test_95_percent_intervals_hold_the_truth_in_about_95_percent_of_fits() -> None:
    generator = np.random.default_rng(11)
    clean = power(KIB, 0.05, -0.7)
    hits = 0
    for _ in range(100):
        one = fit("tlb", SIZES, clean + 5e-4 * np.abs(clean).max() * generator.standard_normal(13))
        assert one.intervals is not None
        low, high = one.intervals["b"]
        hits += low <= -0.7 <= high
    # 95 % of 100 is 95; four standard deviations are 9.
    assert 86 <= hits <= 100


@given(order=st.permutations(range(len(SIZES))))
@settings(max_examples=8, deadline=None)
def test_the_order_of_points_does_not_matter(order: list[int]) -> None:
    rates = two_exponentials(KIB, 0.01, -0.3, 0.002, 0.0006) * (1 + 0.1 * np.cos(np.arange(13)))
    mixed = fit("fault", [SIZES[i] for i in order], [float(rates[i]) for i in order])
    assert mixed == fit("fault", SIZES, rates)


def test_prediction_far_outside_the_data_is_a_number() -> None:
    one = fit("fault", SIZES[:4], [0, 0, 0, 1])
    assert np.isfinite(one.predict([*SIZES, 1 << 50])).all()
    assert (one.predict([*SIZES, 1 << 50]) >= 0).all()


def test_no_predicted_rate_is_above_one() -> None:
    rising = fit("fault", [4096, 8192, 16384], [0.1, 0.3, 0.9])
    assert rising.predict([1 << 20]) == [1.0]
    assert fit("tlb", [4096, 8192], [0.9, 0.5]).predict([512]) == [1.0]


def test_measured_rates_give_the_page_size_of_least_time(tmp_path: Path, nearfar: Run) -> None:
    """Times at measured sizes follow equations 1 to 3 of paper 001."""
    rates = {4096: (0.021, 0.00031), 16384: (0.009, 0.00005), 65536: (0.004, 0.0002)}
    fits = fit_rows(
        {"page_bytes": size, "tlb_miss_rate": misses, "fault_rate": faults}
        for size, (misses, faults) in rates.items()
    )
    made = decide(fits, "desktop-nvm", ["nvm-10x", "nvm-100x"])
    desktop = machine.load("desktop-nvm")
    times = desktop.access_times()
    for row in made.rows:
        if row["measured"]:
            misses, faults = rates[row["page_bytes"]]
            (io,) = desktop.io_ns(row["storage"], [row["page_bytes"]])
            by_hand = times.tlb_ns + (1 + misses) * times.dram_ns + faults * io
            assert row["time_ns"] == pytest.approx(by_hand)
            assert row["error"] == 0
        else:
            assert row["error"] > 0
    by_storage = {row["storage"]: row["page_bytes"] for row in made.rows if row["chosen"]}
    assert by_storage == {"nvm-10x": 16384, "nvm-100x": 16384}
    assert {row["page_bytes"] for row in made.rows} == {4096 << power for power in range(5)}
    with pytest.raises(NearfarError, match="needs both tlb_miss_rate and fault_rate"):
        decide(fit_rows([{"page_bytes": 4096, "fault_rate": 0.1}]), "desktop-nvm")
    path = tmp_path / "rates.csv"
    lines = [f"{size},{misses},{faults}" for size, (misses, faults) in rates.items()]
    path.write_text("\n".join(["page_bytes,tlb_miss_rate,fault_rate", *lines]))
    words = ["fit", "--csv", path, "--machine", "desktop-nvm", "--format", "json"]
    done = nearfar(*words, "--storage", "nvm-10x")
    rows = [row for row in made.rows if row["storage"] == "nvm-10x"]
    assert json.loads(done.stdout)["decision"] == rows


def test_the_seed_does_not_matter() -> None:
    generator = np.random.default_rng(5)
    for _ in range(5):
        rates = np.abs(
            0.001 / KIB + 2e-5 * np.sqrt(KIB) * (1 + 0.2 * generator.standard_normal(13))
        )
        fits = [fit("fault", SIZES, rates, seed=seed) for seed in range(5)]
        for other in fits[1:]:
            assert other.coefficients == pytest.approx(fits[0].coefficients, rel=1e-5)
            assert other.loo_rmse == pytest.approx(fits[0].loo_rmse, rel=1e-4)


def test_leave_one_out_errors_equal_those_of_separate_fits() -> None:
    rates = two_exponentials(KIB, 0.01, -0.3, 0.002, 0.0006) * (1 + 0.05 * np.cos(np.arange(13)))
    for quantity, values in (("fault", rates), ("tlb", power(KIB, 0.1, -0.5) * rates / rates[0])):
        one = fit(quantity, SIZES, values)
        errors = []
        for i in range(len(SIZES)):
            rest = fit(quantity, SIZES[:i] + SIZES[i + 1 :], np.delete(values, i))
            # Not predict(), which clips.
            a, b, *more = rest.coefficients.values()
            p = KIB[i]
            guess = power(p, a, b) if quantity == "tlb" else two_exponentials(p, a, b, *more)
            errors.append(guess - values[i])
        assert one.loo_rmse == pytest.approx(float(np.sqrt(np.mean(np.square(errors)))), rel=1e-4)
        relative = float(np.mean(np.abs(errors) / values))
        assert one.loo_mean_relative == pytest.approx(relative, rel=1e-4)


def test_quality_figures_follow_their_definitions() -> None:
    rates = power(KIB, 0.05, -0.7) * (1 + 0.1 * np.cos(np.arange(13)))
    one = fit("tlb", SIZES, rates)
    explained = 1 - rss(one) / float(np.sum((rates - rates.mean()) ** 2))
    assert one.r2 == pytest.approx(explained)
    assert one.adjusted_r2 == pytest.approx(1 - (1 - explained) * 12 / 11)
    assert one.rmse == pytest.approx(math.sqrt(rss(one) / 13))
    assert one.aic == pytest.approx(13 * math.log(rss(one) / 13) + 4)


def test_a_bad_fit_is_called_bad() -> None:
    zigzag = [0.5 + 0.4 * (-1) ** i for i in range(13)]
    for quantity in ("tlb", "fault"):
        one = fit(quantity, SIZES, zigzag)
        assert one.verdict == "bad" and "R2" in one.reason
    noise = np.random.default_rng(0).random(13)
    assert fit("fault", SIZES, noise).verdict == "bad"
    # A step, which a power law misses by far.
    bend = np.where(KIB < 64, 1e-3, 0.5)
    assert fit("tlb", SIZES, bend).verdict == "bad"


def test_a_fit_of_too_few_points_is_bad_and_has_no_intervals() -> None:
    one = fit("tlb", [4096], [0.1])
    assert one.verdict == "bad" and one.coefficients == {} and one.intervals is None
    with pytest.raises(NearfarError, match="cannot predict"):
        one.predict(8192)
    two_points = fit("tlb", [4096, 16384], [0.1, 0.05])
    # Two coefficients fit two points exactly, so the fit cannot be judged.
    assert two_points.predict([4096, 16384]) == pytest.approx([0.1, 0.05])
    assert two_points.verdict == "bad" and two_points.intervals is None
    assert two_points.loo_rmse is None and two_points.coefficients["b"] == pytest.approx(-0.5)
    three = fit("fault", SIZES[:3], [0.01, 0.005, 0.002])
    assert three.model == "exponential-1" and "only 3 page sizes" in three.reason
    forced = fit("fault", SIZES[:3], [0.01, 0.005, 0.002], model="exponential-2")
    assert forced.coefficients == {} and forced.verdict == "bad"
    four = fit("fault", SIZES[3:7], two_exponentials(KIB[3:7], 0.01, -0.1, 0.002, 0.001))
    assert four.predict(SIZES[3:7]) == pytest.approx(four.measured, rel=1e-6)
    assert four.verdict == "bad" and four.intervals is None and "5 or more" in four.reason
    # The same size four times is one size.
    assert fit("fault", [4096] * 5, [0.1, 0.2, 0.1, 0.2, 0.1]).coefficients == {}


@pytest.mark.parametrize("quantity", ["tlb", "fault"])
@pytest.mark.parametrize("value", [0.0, 0.25])
def test_constant_rates_give_a_constant_fit(quantity: str, value: float) -> None:
    one = fit(quantity, SIZES, [value] * 13)
    assert one.predict([100, 4096, 1 << 30]).tolist() == [value] * 3
    assert one.verdict == "good" and one.r2 is None and one.intervals is None
    json.dumps(one.to_dict(), allow_nan=False)


@given(
    rates=st.lists(st.floats(0, 1), min_size=1, max_size=13),
    quantity=st.sampled_from(["tlb", "fault"]),
    weighting=st.sampled_from(["absolute", "relative"]),
)
@settings(max_examples=20, deadline=None)
def test_any_rates_give_coefficients_or_a_bad_verdict(
    rates: list[float], quantity: str, weighting: str
) -> None:
    one = fit(quantity, SIZES[: len(rates)], rates, weighting=weighting)
    json.dumps(one.to_dict(), allow_nan=False)
    if one.coefficients:
        assert np.isfinite(one.predict(SIZES[: len(rates)])).all()
        assert (one.predict(SIZES) >= 0).all()
    else:
        assert one.verdict == "bad"


@pytest.mark.parametrize(
    ("sizes", "rates", "said"),
    [
        ([], [], "no points"),
        ([4096], [0.1, 0.2], "1 page sizes but 2 rates"),
        ([4096, 8192], [0.1, math.nan], "rate nan at page size 8192"),
        ([4096, 8192], [0.1, -0.1], "rate -0.1"),
        ([4096, 8192], [0.1, math.inf], "rate inf"),
        ([4096, 0], [0.1, 0.1], "page size 0"),
        ([4096, -4096], [0.1, 0.1], "page size -4096"),
    ],
)
def test_bad_points_are_refused(sizes: list[int], rates: list[float], said: str) -> None:
    with pytest.raises(NearfarError, match=said):
        fit("tlb", sizes, rates)


def study_rows() -> list[dict[str, object]]:
    return [
        {
            "page_bytes": size,
            "memory_bytes": memory,
            "memory_fraction": memory / 1000,
            "tlb_miss_rate": 0.05 * p**-0.7,
            "fault_rate": (1000 / memory) * (0.01 * math.exp(-0.3 * p) + 1e-4),
            "storage": storage,
        }
        for storage in ("hdd", "nvm-10x")
        for memory in range(1000, 0, -100)
        for size, p in zip(SIZES, KIB.tolist(), strict=True)
    ]


def test_a_study_gives_one_tlb_fit_and_a_fault_fit_per_memory_size() -> None:
    fits = fit_rows(study_rows())
    assert [one.quantity for one in fits] == ["tlb"] + ["fault"] * 10
    assert [one.memory_bytes for one in fits[1:]] == list(range(100, 1001, 100))
    # Both storages and all memory sizes repeat the same TLB rates: 13 points, not 260.
    assert all(len(one.measured) == 13 for one in fits)
    for one in fits[1:]:
        assert one.memory_bytes is not None
        assert one.coefficients["a"] == pytest.approx(1000 / one.memory_bytes * 0.01, rel=1e-4)
        assert one.verdict == "good"
    assert fits == fit_rows(reversed(study_rows()))
    assert [one.quantity for one in fit_rows(study_rows(), "tlb")] == ["tlb"]
    with pytest.raises(NearfarError, match="fault_rate"):
        fit_rows([{"page_bytes": 4096, "tlb_miss_rate": 0.1}], "fault")


CSV = """page_bytes, memory_fraction, tlb_miss_rate, fault_rate
4K,0.5,0.021,0.00031
16K,0.5,0.009,0.00018

65536,0.5,0.004,
"""


def test_command_prints_what_the_library_finds(tmp_path: Path, nearfar: Run) -> None:
    path = tmp_path / "measured.csv"
    path.write_text(CSV)
    tlb, fault = fit_csv(path)
    assert len(tlb.measured) == 3 and len(fault.measured) == 2
    done = nearfar("fit", "--csv", str(path), "--predict", "1K,2MiB", "--format", "json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)["fits"]
    assert printed[0]["coefficients"] == tlb.coefficients
    assert [row["page_bytes"] for row in printed[0]["predictions"]] == [1024, 2 << 20]
    assert printed[0]["predictions"][1]["rate"] == tlb.predict(2 << 20)[0]
    assert fit_csv(path, predict="1K,2MiB").to_dict()["fits"] == printed
    assert fit_csv(path).table.schema == declared.ROWS.arrow()
    table = nearfar("fit", "--csv", str(path), "--quantity", "fault")
    assert table.returncode == 0 and "bad" in table.stdout and "TLB" not in table.stdout
    lines = nearfar("fit", "--csv", str(path), "--format", "csv").stdout.splitlines()
    assert lines[0].startswith('"quantity",') and len(lines) == 1 + 3 + 2


@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_model_can_be_chosen_for_every_rate(model: str, tmp_path: Path, nearfar: Run) -> None:
    path = tmp_path / "measured.csv"
    rates = dict(zip(SIZES[:6], (0.09, 0.05, 0.03, 0.02, 0.025, 0.04), strict=True))
    lines = [f"{size},{rate},{rate / 7}" for size, rate in rates.items()]
    path.write_text("\n".join(["page_bytes,tlb_miss_rate,fault_rate", *lines]))
    words = ["--csv", str(path), "--model", model]
    done = nearfar("fit", *words, "--format", "json")
    for found in json.loads(done.stdout)["fits"]:
        scale = 1 if found["quantity"] == "tlb" else 7
        scaled = [float(str(rate / scale)) for rate in rates.values()]
        direct = fit(found["quantity"], list(rates), scaled, model=model)
        assert (found["model"], found["aic"]) == (model, pytest.approx(direct.aic))
    assert [row["model"] for row in fit_csv(path, model=model).rows] == [model] * 2 * len(rates)
    assert f"AIC {direct.aic:.4g}" in nearfar("fit", *words).stdout


def test_an_unknown_choice_is_refused_with_the_known_ones(tmp_path: Path, nearfar: Run) -> None:
    path = tmp_path / "measured.csv"
    path.write_text(CSV)
    for words, said in (
        (["--quantity", "tbl"], "unknown quantity `tbl`; one of tlb, fault"),
        (["--weighting", "log"], "unknown weighting `log`; one of absolute, relative"),
    ):
        refused(nearfar("fit", "--csv", str(path), *words), said)
    with pytest.raises(NearfarError, match="--weigh: there is no such option; .*--weighting"):
        fit_csv(path, weigh="relative")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "`page_bytes` is missing"),
        ("page_bytes\n4K\n", "`tlb_miss_rate` or `fault_rate` is missing"),
        ("page_bytes,tlb_mis_rate\n4K,0.1\n", "did you mean `tlb_miss_rate`?"),
        ("page_bytes,tlb_miss_rate,tlb_miss_rate\n4K,0.1,0.1\n", "appears twice"),
        ("tlb_miss_rate\n0.1\n", "`page_bytes` is missing"),
        ("page_bytes,tlb_miss_rate\n", "no points"),
        ("page_bytes,tlb_miss_rate\n4K,\n", "no values of tlb_miss_rate"),
        ("page_bytes,tlb_miss_rate\n4K,2.1\n", "line 2 column tlb_miss_rate: `2.1`"),
        ("page_bytes,tlb_miss_rate\n4K,nan\n", "`nan` is not a fraction"),
        ("page_bytes,tlb_miss_rate\n4K,-0.1\n", "`-0.1` is not a fraction"),
        ("page_bytes,tlb_miss_rate\n\n4Q,0.1\n", "line 3 column page_bytes: '4Q' is not a size"),
        ("page_bytes,tlb_miss_rate\n0,0.1\n", "'0' is not a size"),
        ("page_bytes,tlb_miss_rate\n4K,0.1,7\n", "line 2: 3 values for 2 columns"),
        ('page_bytes,tlb_miss_rate\n"4K,0.1\n', "not CSV"),
    ],
)
def test_a_bad_table_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(NearfarError) as caught:
        fit_csv(path)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_bad_options_are_an_error_of_one_line(tmp_path: Path, nearfar: Run) -> None:
    path = tmp_path / "measured.csv"
    path.write_text(CSV)
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"page_bytes\xff")
    for arguments, said in (
        (("--csv", str(tmp_path / "absent.csv")), "absent.csv"),
        (("--csv", str(tmp_path)), str(tmp_path)),
        (("--csv", str(binary)), "byte 10"),
        (("--csv", str(path), "--predict", "1K,x"), "--predict: 'x' is not a size"),
        (("--csv", str(path), "--quantity", "tbl"), "tbl"),
        ((), "--csv"),
    ):
        refused(nearfar("fit", *arguments), said)
