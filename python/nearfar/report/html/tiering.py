"""The page of the tiering study: bars, curves over the run, box plots over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, get_args

from nearfar import tiering_answers as answers
from nearfar import units
from nearfar.declared import tiering as declared
from nearfar.memory_curve import allowed_slowdown
from nearfar.report import palette
from nearfar.report.html import charts, page
from nearfar.report.html import memory as memory_chart
from nearfar.tiering import TieringResult, fast_memories, of_shown_memory, shown_memory

if TYPE_CHECKING:
    import altair as alt

#: Columns of the series with a chart over the run.
_Curve = Literal["bandwidth_mb_s", "fast_hit_ratio", "shadow_copies", "shadow_bytes", "fast_bytes"]
#: Charts over the run: column, title, title of the axis (``mb_s`` stands for MiB/s), and kind of
#: number.
_CURVES: Final[dict[str, tuple[_Curve, str, str, str]]] = {
    "bandwidth": ("bandwidth_mb_s", "Bandwidth", "MiB/s", "count"),
    "hits": ("fast_hit_ratio", "Accesses to fast memory", "share of accesses", "share"),
    "shadows": ("shadow_copies", "Shadow copies made", "pages since the start", "count"),
    "held": ("shadow_bytes", "Memory held by shadows", "bytes", "size"),
    "fast": ("fast_bytes", "Fast memory in use", "bytes", "size"),
}
#: Counts with a box plot over seeds, summed over the run.
_Box = Literal[
    "shadow_faults", "shadow_reclaims", "demotions_remapped", "shadow_copies", "promotions"
]
_BOXES: Final[dict[_Box, str]] = {
    "shadow_faults": "Shadow faults",
    "shadow_reclaims": "Shadows reclaimed",
    "demotions_remapped": "Demotions by remapping",
    "shadow_copies": "Shadow copies",
    "promotions": "Promotions",
}
_GLOSSARY = (
    ("promotion", "A page moves to the fast node."),
    ("demotion", "A page moves to a slower node: copied, or remapped to its shadow."),
    ("shadow", "A promoted page's old frame, kept so that it can be demoted without a copy."),
    ("shadow fault", "The first write to a page with a shadow: the shadow is freed."),
    ("reclaimed", "A shadow freed because its frame was needed."),
    ("hint fault", "A fault that the kernel causes to see whether a slow page is used."),
    ("oracle", "Knows how often each page will be used: a bound, not a policy."),
)

#: Caption of the chart of time against fast memory.
_ENOUGH = "1 is the lowest time of any policy with all the program's memory fast."


def curve_chart(result: TieringResult, names: Sequence[str]) -> charts.Drawn:
    """The chart of time against fast memory, a curve for each policy."""
    curves = answers.policy_curves(result)
    drawn = {curve.name for curve in curves}
    colour = _colour(names, legend=True, among=[name for name in names if name in drawn])
    return memory_chart.drawn(
        curves, allowed_slowdown(result.run, declared.OPTIONS), memory_chart.POLICIES, colour
    )


class TieringPage(page.Page[TieringResult]):
    """The tiering study."""

    kicker = "nearfar: tiering"
    glossary = _GLOSSARY

    def __init__(self, result: TieringResult) -> None:
        """Write the headings."""
        super().__init__(result, result.run)
        workload = units.clean(result.run["workload"])
        self.title = f"{workload} - nearfar tiering"
        self.heading = f"Which policy for <code>{page.text(workload)}</code>?"
        self.headline, *self.more = answers.answers(result)

    def _sections(self) -> list[str]:
        result = self.result
        rows = of_shown_memory(result, result.rows)
        # With several tenants, the phase or the policy also names the tenant.
        means = answers.by_tenant(answers.means(rows), "phase")
        names = list(dict.fromkeys(row["policy"] for row in rows))
        seeds = list(dict.fromkeys(row["seed"] for row in rows))
        series = answers.by_tenant(of_shown_memory(result, result.series), "policy")
        lines = list(dict.fromkeys(point["policy"] for point in series))
        memory = shown_memory(result)
        several = len(fast_memories(result)) > 1
        with_memory = f" With {memory.full_label} of fast memory." if several and memory else ""
        curves = answers.policy_curves(result)
        if curves:
            self.charts["enough"] = curve_chart(result, names)
        return [
            *([memory_chart.section(curves, "How much fast memory", _ENOUGH)] if curves else []),
            self._chart_section(
                "bars",
                "Bandwidth by phase",
                bandwidth(means, names),
                "Bandwidth by phase and policy",
                f"Means over seeds.{with_memory}",
            ),
            *(self._curve(name, series, lines, seeds[0]) for name in _CURVES),
            self._boxes(rows, names, seeds),
            _numbers(means),
        ]

    def _curve(
        self,
        identifier: str,
        series: Sequence[declared.SeriesRow],
        names: list[str],
        seed: int,
    ) -> str:
        """The section of a chart over the run, a line for each policy."""
        import altair as alt

        key, title, axis, kind = _CURVES[identifier]
        chosen = [point for point in series if point["seed"] == seed]
        largest = max((point[key] for point in chosen), default=0)
        data = alt.Chart(alt.NamedData("points"))
        chart = data.mark_line(strokeWidth=2).encode(
            x=alt.X(
                "progress:Q",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(title="progress of the run", format="%", tickCount=6),
            ),
            y=alt.Y("value:Q", axis=_axis(kind, axis, largest)),
            color=_colour(names, legend=True),
            strokeDash=alt.StrokeDash("policy:N", scale=alt.Scale(domain=names)),
            tooltip=charts.tooltips(policy="policy", phase="phase", label=title.lower()),
        )

        def label(value: float) -> str:
            if kind == "size":
                return page.typeset(units.size(value))
            return units.percent(value) if kind == "share" else units.count(round(value))

        points: list[charts.Datum] = [
            {
                "policy": point["policy"],
                "phase": point["phase"],
                "progress": point["progress"],
                "value": point[key],
                "label": label(point[key]),
            }
            for point in chosen
        ]
        last = {point["policy"]: label(point[key]) for point in chosen}
        ends = ", ".join(f"{name} {value}" for name, value in last.items())
        return self._chart_section(
            identifier,
            title,
            {"spec": charts.finish(chart, 260), "points": points},
            f"{title} over the run",
            f"At the end: {ends}. Seed {seed}.",
        )

    def _boxes(self, rows: Sequence[declared.Row], names: list[str], seeds: list[int]) -> str:
        """The section of counts of a whole run: a box plot over seeds, or a bar of one seed."""
        import altair as alt

        body, never = "", []
        single = len(seeds) == 1
        over = f"minimum, quartiles, maximum over {len(seeds)} seeds"
        # The charts are narrow; a letter takes about 6 pixels.
        turned = sum(6 * len(name) + 12 for name in names) > 240
        for key, title in _BOXES.items():
            totals: list[charts.Datum] = [
                {
                    "policy": name,
                    "value": sum(
                        row[key] for row in rows if row["policy"] == name and row["seed"] == seed
                    ),
                }
                for name in names
                for seed in seeds
            ]
            if not any(total["value"] for total in totals):
                never.append(title.lower())
                continue
            boxes = alt.Chart(alt.NamedData("boxes"))
            marked = boxes.mark_bar() if single else boxes.mark_boxplot(extent="min-max", size=18)
            axis = alt.Axis(title=None, labelAngle=-40 if turned else 0)
            chart = marked.encode(
                x=alt.X("policy:N", sort=names, axis=axis),
                y=alt.Y("value:Q", axis=_axis("count", "pages in a run")),
                color=_colour(names, legend=False),
            )
            identifier = "box-" + key.replace("_", "-")
            self.charts[identifier] = {"spec": charts.finish(chart, 220), "boxes": totals}
            caption = f"{title} of a whole run: {f'seed {seeds[0]}' if single else over}."
            body += page.chart(identifier, title, caption)
        body = f'<div class="several">{body}</div>'
        body += f"<p>Did not occur: {', '.join(never)}.</p>" if never else ""
        return page.section("boxes", "In a whole run" if single else "Over seeds", body, wide=True)


def _axis(kind: str, title: str, largest: float = 0) -> alt.Axis:
    import altair as alt

    if kind == "size":
        return charts.size_axis(title, largest)
    if kind == "count":
        return alt.Axis(title=title, tickCount=6, labelExpr=charts.COUNT_LABEL, tickMinStep=1)
    return alt.Axis(title=title, tickCount=6)


def _colour(names: Sequence[str], legend: bool, among: Sequence[str] | None = None) -> alt.Color:
    """Colours of policies, the same in every chart; a legend lists ``among``, by default all."""
    import altair as alt

    colours = [palette.OKABE_ITO[c] for c in ("blue", "orange", "green", "vermillion", "purple")]
    colours += [palette.OKABE_ITO["sky"], palette.GREY]
    shown = list(names if among is None else among)
    # Three columns fit on a phone.
    key = alt.Legend(title=None, orient="top", columns=3, labelLimit=140, values=shown)
    return alt.Color(
        "policy:N",
        scale=alt.Scale(domain=list(names), range=palette.cycled(colours, len(names))),
        legend=key if legend else None,
    )


def bandwidth(rows: Sequence[declared.Row], names: list[str]) -> charts.Drawn:
    """The chart of bandwidth by phase and policy."""
    import altair as alt

    phases = list(dict.fromkeys(row["phase"] for row in rows))
    data = alt.Chart(alt.NamedData("bars"))
    chart = data.mark_bar().encode(
        x=alt.X("phase:N", sort=phases, axis=alt.Axis(title=None, labelAngle=0)),
        xOffset=alt.XOffset("policy:N", sort=names),
        y=alt.Y("value:Q", axis=_axis("count", declared.ROWS.head("bandwidth_mb_s"))),
        color=_colour(names, legend=True),
        tooltip=charts.tooltips(policy="policy", phase="phase", label="bandwidth"),
    )
    return {
        "spec": charts.finish(chart, 300),
        "bars": [
            {
                "policy": row["policy"],
                "phase": row["phase"],
                "value": row["bandwidth_mb_s"],
                "label": f"{units.count(round(row['bandwidth_mb_s']))} MiB/s",
            }
            for row in rows
        ],
    }


#: Columns of the table of numbers.
_Number = Literal[
    "bandwidth_mb_s",
    "mean_latency_ns",
    "fast_hit_ratio",
    "promotions",
    "demotions",
    "demotions_remapped",
    "shadow_copies",
    "shadow_faults",
    "shadow_reclaims",
    "aborts",
    "hint_faults",
]
_NUMBERS: Final[tuple[_Number, ...]] = get_args(_Number)


def _numbers(rows: Sequence[declared.Row]) -> str:
    body = [
        [
            page.text(f"{row['policy']}, {row['phase']}"),
            *(
                page.text(
                    f"{row[key]:.3f}" if key == "fast_hit_ratio" else units.count(round(row[key]))
                )
                for key in _NUMBERS
            ),
        ]
        for row in rows
    ]
    headers = [", ".join(declared.ROWS.heads("policy", "phase")), *declared.ROWS.heads(*_NUMBERS)]
    terms = (
        (declared.ROWS.head(key), page.text(declared.ROWS.column(key).what)) for key in _NUMBERS
    )
    table = page.table(headers, body, "Means over seeds, by phase")
    return page.section("numbers", "The numbers", table + page.definitions(terms), wide=True)
