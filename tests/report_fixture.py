"""Synthetic results for the tests of reports: a paging study, a heat map and an info."""

from __future__ import annotations

import math
from typing import Any

from nearfar.info import Info
from nearfar.paging import PagingResult

PAGES = [2**k for k in range(9, 22)]
FRACTIONS = [k / 10 for k in range(1, 11)]
STORAGES = {
    "optane-ssd": lambda page: 10_000 + page / 2.4,
    "nvme": lambda page: 80_000 + page / 3.0,
    "desktop-hdd": lambda page: 8_000_000 + page / 0.15,
}
FOOTPRINT = 24 * 1024 * 1024
REFERENCES = 31_300_000


def tlb_rate(page: int) -> float:
    return min(1.0, 2.4 * page**-0.62)


def fault_curve(page: float, fraction: float) -> float:
    # Falls with the page size by spatial locality, rises when frames run out.
    base = 6e-4 * (1.05 - fraction) ** 1.5
    return base * math.exp(-page / 9000) + base * 0.12 * math.exp(page / 1.1e6) + 2e-6


def paging_result(
    storages: list[str] | None = None, fractions: bool = True, **run: Any
) -> PagingResult:
    rows: list[Any] = []
    for storage, (_, io) in zip(
        storages or list(STORAGES),
        list(STORAGES.items()) * 4,
        strict=False,
    ):
        for share in FRACTIONS:
            memory = int(FOOTPRINT * share)
            for index, page in enumerate(PAGES):
                wobble = 1 + 0.04 * math.sin(7 * index + 10 * share)
                fault = fault_curve(page, share) * wobble
                tlb = tlb_rate(page) * (1 + 0.05 * math.cos(3 * index))
                translation = 1 + tlb * 60
                data = (1 - fault) * 60 + fault * (60 + io(page))
                rows.append(
                    {
                        "page_bytes": page,
                        "memory_bytes": memory,
                        "memory_fraction": share if fractions else None,
                        "frames": max(1, memory // page),
                        "references": REFERENCES,
                        "tlb_misses": int(tlb * REFERENCES),
                        "tlb_miss_rate": tlb,
                        "faults": int(fault * REFERENCES),
                        "fault_rate": fault,
                        "dirty_evictions": int(fault * REFERENCES / 3),
                        "storage": storage,
                        "translation_ns": translation,
                        "data_ns": data,
                        "total_ns": translation + data,
                    }
                )
    made: Any = {
        "command": "nearfar paging gzip.trace --html out.html",
        "trace": "gzip.trace",
        "machine": "desktop",
        "options": {"tlb": "64", "replacement": "clock"},
        "references": REFERENCES,
        "footprint_bytes": FOOTPRINT,
        "version": "0.1.0",
        **run,
    }
    return PagingResult(made, rows, fits(rows))


def fits(rows: list[dict[str, Any]]) -> list[Any]:
    dense = [2 ** (9 + i / 6) for i in range(73)]
    tlb = {r["page_bytes"]: r["tlb_miss_rate"] for r in rows}
    made = [
        {
            "quantity": "tlb",
            "model": "power",
            "formula": "a p^b",
            "page_unit": "KiB",
            "memory_bytes": None,
            "memory_fraction": None,
            "coefficients": {
                "a": {"value": 2.41, "low": 2.2, "high": 2.62},
                "b": {"value": -0.62, "low": -0.64, "high": -0.6},
            },
            "r2": 0.998,
            "rmse": 0.0004,
            "loo_error": 0.0006,
            "verdict": "good",
            "reason": "R2 0.998 over 13 sizes",
            "points": [[p, v, tlb_rate(p)] for p, v in sorted(tlb.items())],
            "curve": [[p, 2.4 * p**-0.62] for p in dense],
        }
    ]
    for index, share in enumerate(FRACTIONS):
        faults = {
            r["page_bytes"]: r["fault_rate"]
            for r in rows
            if r["memory_bytes"] == int(FOOTPRINT * share)
        }
        if not faults:
            continue
        verdict = ("good", "good", "fair", "good", "bad")[index % 5]
        stretch = {"good": 1.0, "fair": 1.08, "bad": 1.6}[verdict]
        made.append(
            {
                "quantity": "fault",
                "model": "exponential-2",
                "formula": "a e^(bp) + c e^(dp)",
                "page_unit": "KiB",
                "memory_bytes": int(FOOTPRINT * share),
                "memory_fraction": share if rows[0]["memory_fraction"] is not None else None,
                "coefficients": {
                    "a": {"value": 6e-4 * (1.05 - share), "low": 5e-4, "high": 7e-4},
                    "b": {"value": -1 / 9000, "low": -1 / 8000, "high": -1 / 10000},
                    "c": {"value": 7e-5, "low": 6e-5, "high": 8e-5},
                    "d": {"value": 9e-7, "low": None, "high": None},
                },
                "r2": {"good": 0.995, "fair": 0.94, "bad": 0.41}[verdict],
                "rmse": 2e-6,
                "loo_error": 3e-6,
                "verdict": verdict,
                "reason": {
                    "good": "",
                    "fair": "R2 below 0.95",
                    "bad": "R2 below 0.9: do not use it to choose a page",
                }[verdict],
                "points": [
                    [p, v, fault_curve(p, share) * stretch] for p, v in sorted(faults.items())
                ],
                "curve": [[p, fault_curve(p, share) * stretch] for p in dense],
            }
        )
    return made


def heat_map(times: int = 120, addresses: int = 96) -> Any:
    names = ["gzip", "[heap]", "libc.so.6", "[stack]"]
    bins = []
    for row in range(addresses):
        name = names[row * len(names) // addresses]
        low = 0x5555_5540_0000 + row * 0x4_0000 + (0x2AAA_0000_0000 if name != "gzip" else 0)
        bins.append({"addr_low": low, "addr_high": low + 0x4_0000, "label": name})
    counts = [
        [
            max(
                0,
                int(4000 * math.sin(row / 7) * math.cos((time - row) / 11))
                if row % 5
                else (time * 37 + row * 11) % 900,
            )
            for time in range(times)
        ]
        for row in range(addresses)
    ]
    return {
        "time_bins": times,
        "address_bins": bins,
        "counts": counts,
        "records_per_bin": 260_000,
        # The second half takes three times as long.
        "seconds": [t / 20 + max(0, t - times // 2) / 10 for t in range(times + 1)],
    }


def info(heatmap: Any = None) -> Info:
    regions = [
        ("[heap]", 14_000_000, 9_000_000, 5_000_000, 0, 900),
        ("gzip", 12_000_000, 0, 0, 12_000_000, 18),
        ("libc.so.6", 4_000_000, 1_000_000, 200_000, 2_800_000, 120),
        ("[stack]", 1_300_000, 700_000, 600_000, 0, 6),
    ]
    made = {
        "trace": "gzip.trace",
        "records": REFERENCES,
        "instructions": 88_000_000,
        "threads": [
            {"index": 0, "process": 41, "records": 20_000_000, "instructions": 60_000_000},
            {"index": 1, "process": 41, "records": 11_300_000, "instructions": 28_000_000},
        ],
        "records_by_kind": {"load": 10_700_000, "store": 5_800_000, "fetch": 14_800_000},
        "footprint_bytes": FOOTPRINT,
        "complete": True,
        "regions": [
            dict(zip(("name", "records", "loads", "stores", "fetches", "pages"), r, strict=True))
            for r in regions
        ],
        "working_set_records": 1000,
        "working_set": [
            {
                "record": i * 260_000,
                "bytes": int(FOOTPRINT * (1 - math.exp(-i / 30))),
                "resident_bytes": None,
            }
            for i in range(1, 121)
        ],
        "reuse": [
            {"distance_log2": k, "count": int(2e7 * math.exp(-((k - 3) ** 2) / 18))}
            for k in range(14)
        ],
    }
    return Info(made if heatmap is None else {**made, "heatmap": heatmap})
