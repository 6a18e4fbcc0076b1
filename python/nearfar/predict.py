"""What a run of a real program in two tiers of memory will come to, from a trace of it.

>>> import nearfar.predict
>>> nearfar.predict.predict("app.trace", fast="64M", policy="ssp")      # doctest: +SKIP
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Unpack

from nearfar import _engine
from nearfar.declared import run as declared
from nearfar.errors import NearfarError
from nearfar.live import Outcome, asked
from nearfar.schema import takes
from nearfar.tiering import trace_of

#: Counters that the comparison shows, and what they are called there.
SHOWN = {
    "faults": "faults",
    "first_touches": "first touches",
    "hint_faults": "hint faults",
    "accessed_faults": "faults to see use",
    "window_faults": "let through",
    "promotions": "promotions",
    "shadow_copies": "of these, kept a shadow",
    "demotions_copied": "demotions by a copy",
    "demotions_remapped": "demotions to a shadow",
    "shadow_faults": "shadow faults",
    "watch_faults": "faults of watched pages",
    "shadows_reclaimed": "shadows reclaimed",
    "aborts": "aborts",
}


@dataclass(frozen=True)
class Prediction:
    """What a run is predicted to come to.

    Attributes:
        load: the trace, or the name of a generated workload.
        options: what was asked for.
        counters: what happens, by name, as in :class:`nearfar.live.Outcome`.
        seconds: from start to end.
        budget_bytes: fast memory.
        references: the program's, to memory that is managed.
        fast_bytes: most fast memory in use.
        far_pages_bytes: most memory in the far tier, shadows included, before compression.
        window_bytes: most far memory that is let through without a promotion.
        costs: nanoseconds of the runtime's requests, measured before.
    """

    load: str
    options: dict[str, Any]
    counters: dict[str, int]
    seconds: float
    budget_bytes: int
    references: int
    fast_bytes: int
    far_pages_bytes: int
    window_bytes: int
    costs: dict[str, int]

    def to_json(self) -> str:
        """Everything as JSON text."""
        return json.dumps(asdict(self), indent=2)

    def beside(self, lived: Outcome | None = None) -> str:
        """A table of what is predicted and, with an outcome, of what came."""
        rows = [("", "predicted", "lived")]
        rows += [
            (what, f"{self.counters[name]:,}", f"{lived.counters[name]:,}" if lived else "")
            for name, what in SHOWN.items()
            if self.counters[name] or (lived and lived.counters[name])
        ]
        rows.append(("seconds", f"{self.seconds:.2f}", f"{lived.seconds:.2f}" if lived else ""))
        width = max(len(what) for what, _, _ in rows)
        shown = rows if lived else [(what, number, "") for what, number, _ in rows]
        return "\n".join(
            f"{what:{width}}  {one:>12}  {two:>12}".rstrip() for what, one, two in shown
        )


@takes(declared.OPTIONS)
def predict(
    load: str | Path,
    *,
    fast: str | int,
    workload: Mapping[str, Any] | None = None,
    alone: float | None = None,
    resident: int | None = None,
    shared_processor: bool | None = None,
    costs: Mapping[str, int] | None = None,
    knobs: Mapping[str, str | float | bool] | None = None,
    **options: Unpack[declared.Options],
) -> Prediction:
    """Predict what ``nearfar run`` with these options will come to.

    The runtime's own manager and policy are told the program's references; what the kernel would do
    is counted, and takes what it takes on this machine, which is measured first (less than a
    second). Of a trace whose events say what is mapped, only private memory counts, as in a run.

    Args:
        load: a trace folder, or the name of a generated workload of ``nearfar tiering``.
        workload: options of a generated workload: ``{{"scale": "1/27", "mix": "write"}}``.
        alone: seconds that the program takes by itself. Without it a reference takes a nanosecond.
        resident: bytes of the program's peak resident set, which ``fast`` may be a share of.
            Without it that of the trace or the workload.
        shared_processor: the program and its manager have one processor. By default, whether this
            process may use one only.
        costs: those of an earlier prediction; nothing is measured then.
        {options}
        knobs: the policy's, by name, as it writes them.

    A policy is a name, or a class or object that follows :class:`nearfar.tiering.Policy`.

    Raises:
        NearfarError: the trace cannot be read; the policy cannot live; userfaultfd cannot be had
            (exit code 3).
    """
    trace = trace_of(str(load))
    if alone is not None and not alone > 0:
        raise NearfarError(f"alone: {alone} is not above 0 seconds")
    if shared_processor is None:
        shared_processor = len(os.sched_getaffinity(0)) == 1
    values, policy, given = asked({"fast": fast, **options}, knobs)
    text = _engine.live_predict(
        options=values,
        knobs=given,
        load={**(workload or {}), **({} if trace else {"workload": str(load)})},
        trace=trace,
        alone=alone,
        shared_processor=shared_processor,
        costs=None if costs is None else json.dumps(dict(costs)),
        progress=None,
        policy=policy,
        resident=resident,
    )
    if policy is not None:
        values["policy"] = policy[0]
    found = json.loads(text)
    fast_bytes, far, window = (4096 * pages for pages in found["peak"])
    return Prediction(
        load=str(load),
        options=values,
        counters=found["counters"],
        seconds=found["seconds"],
        budget_bytes=found["budget_bytes"],
        references=found["references"],
        fast_bytes=fast_bytes,
        far_pages_bytes=far,
        window_bytes=window,
        costs=found["costs"],
    )
