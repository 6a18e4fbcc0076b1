"""The base of all HTML pages: parts, escaping, embedded data, styles, scripts.

Each study's page is a :class:`Page`. Strings from a trace or a file system are escaped: in HTML by
:func:`text`, in scripts by :func:`embed`. The page's content security policy also forbids every
connection, so that a missing escape cannot load anything.
"""

from __future__ import annotations

import contextlib
import functools
import html
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata, resources
from pathlib import Path
from typing import ClassVar, Generic, TypeVar, cast

from nearfar import units
from nearfar.errors import NearfarError
from nearfar.output import write_whole
from nearfar.report import cells as texts
from nearfar.report import palette
from nearfar.report.html.charts import Drawn
from nearfar.result import Result
from nearfar.schema import Column, Rows

#: The start of a negative exponent, where a browser would break the line.
_EXPONENT = re.compile(r"(?<=\d)e-(?=\d)")
#: A slash within a path.
_SLASH = re.compile(r"(?<=[^\s/])/(?=[^\s/])")

R = TypeVar("R", bound=Result)

#: The content security policy.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)


def text(value: object) -> str:
    """``value`` escaped for use between tags or in a quoted attribute."""
    return html.escape(units.clean(value), quote=True)


def typeset(sentence: str) -> str:
    """ASCII text with non-breaking spaces before units, and micro signs."""
    joined = units.joined(sentence, "\u00a0").replace("\u00a0us", "\u00a0\u00b5s")
    return _EXPONENT.sub("e-\u2060", joined)


def prose(sentence: object) -> str:
    """A sentence, or a value with its unit, typeset and escaped."""
    return text(typeset(str(sentence)))


def path(name: object) -> str:
    """A name that may be a path, as HTML that breaks lines after slashes."""
    return _SLASH.sub("/<wbr>", text(name))


def name(path: object) -> str:
    """The last part of a path, for headings, as HTML."""
    return text(str(path).rstrip("/").rpartition("/")[2])


def legend(pairs: Iterable[tuple[str, str]]) -> str:
    """A legend of CSS colours and plain names; a swatch and its name stay on one line."""
    items = "".join(
        f'<span><span class="swatch" style="background:{text(colour)}"></span> {text(name)}</span>'
        for colour, name in pairs
    )
    return f'<p class="key">{items}</p>'


def number(value: float | None) -> float | None:
    """``value``, or None for numbers that JSON lacks (infinite, not a number)."""
    return value if value is None or math.isfinite(value) else None


def embed(identifier: str, value: object) -> str:
    """``value`` as JSON in a script element ``data-IDENTIFIER`` of type ``application/json``.

    ``<``, ``>`` and ``&`` are written as JSON escapes, so that no text can end the element.
    """
    encoded = json.dumps(_finite(value), separators=(",", ":"), ensure_ascii=True)
    for sign in "<>&":
        encoded = encoded.replace(sign, f"\\u{ord(sign):04x}")
    return f'<script type="application/json" id="data-{text(identifier)}">{encoded}</script>'


def _finite(value: object) -> object:
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> str:
    """A data table, with row headers in its first column.

    Args:
        headers: column titles, plain text.
        rows: a sequence of cells, HTML, for each row.
        caption: plain text, also for screen readers.
    """
    head = "".join(f'<th scope="col">{text(h)}</th>' for h in headers)
    body = "".join(
        f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{c}</td>" for c in rest)
        for first, *rest in rows
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text(caption)}">'
        f"<table><caption>{text(caption)}</caption><thead><tr>{head}</thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def prose_table(headers: Sequence[str], rows: Iterable[Sequence[object]], caption: str) -> str:
    """A table whose cells are plain text, which is typeset."""
    return table(headers, (list(map(prose, row)) for row in rows), caption)


def cells(
    declared: Rows, names: Sequence[str], rows: Iterable[Mapping[str, object]]
) -> list[list[str]]:
    """HTML of the cells of these columns; names and counts are not typeset."""

    def shown(column: Column, value: object) -> str:
        has_unit = isinstance(value, float) or column.unit == "bytes"
        return (prose if has_unit else text)(texts.cell(column, value))

    return texts.cells(declared, names, rows, shown)


def details(summary: str, body: str) -> str:
    """A closed ``details`` element; ``body`` is HTML."""
    return f"<details><summary>{text(summary)}</summary>{body}</details>"


def section(identifier: str, title: str, body: str, wide: bool = False) -> str:
    """A section of the page; ``body`` is HTML."""
    css_class = ' class="wide"' if wide else ""
    return (
        f'<section id="{identifier}"{css_class} aria-labelledby="{identifier}-title">'
        f'<h2 id="{identifier}-title">{text(title)}</h2>{body}</section>'
    )


def chart(identifier: str, label: str, caption: str) -> str:
    """The container of a chart, with its ARIA label and a caption."""
    return (
        f'<figure><div class="chart" id="{identifier}-chart" role="img" '
        f'aria-label="{text(label)}" aria-describedby="{identifier}-caption"></div>'
        f'<figcaption id="{identifier}-caption">{prose(caption)}</figcaption></figure>'
    )


def bar(label: str, parts: Iterable[tuple[float, str]], meaning: str = "") -> str:
    """A bar with its label.

    Args:
        label: plain text.
        parts: the width of each part, as a share of the whole bar, and its colour (a name).
        meaning: plain text, shown when the pointer is on the label.
    """
    title = f' title="{text(meaning)}"' if meaning else ""
    spans = "".join(
        f'<span style="width:{100 * share:.3f}%;background:{palette.OKABE_ITO[colour]}"></span>'
        for share, colour in parts
    )
    # The class is named after the first page that used it.
    return (
        f'<div class="ssd-bar"><span{title}>{prose(label)}</span>'
        f'<div aria-hidden="true">{spans}</div></div>'
    )


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """A definition list; terms are plain text, descriptions HTML."""
    return "<dl>" + "".join(f"<dt>{text(t)}</dt><dd>{d}</dd>" for t, d in pairs) + "</dl>"


def run_facts(run: Mapping[str, object]) -> str:
    """How a result was made: every entry of ``run``, nested ones as ``option: value``."""
    pairs = []
    for key, value in run.items():
        name = str(key).removesuffix("_bytes").replace("_", " ")
        if key == "command":
            line = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            pairs.append((name, f'<code class="command">{text(line)}</code>'))
        elif str(key).endswith("_bytes") and isinstance(value, int):
            pairs.append((name, f"{prose(units.size(value))} ({units.count(value)} bytes)"))
        elif isinstance(value, Mapping):
            inner = "".join(f"<li>{text(k)}: {text(_plain(v))}</li>" for k, v in value.items())
            pairs.append((name, f"<ul>{inner}</ul>"))
        elif isinstance(value, int) and not isinstance(value, bool):
            pairs.append((name, text(units.count(value))))
        else:
            pairs.append((name, text(_plain(value))))
    return definitions(pairs)


def _plain(value: object) -> str:
    """A value in words instead of JSON."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(v)}" for key, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_plain(v) for v in value)
    return str(value)


class Page(Generic[R]):
    """A page of a result.

    The base class checks the limit of rows, orders the parts, and adds how the result was made,
    downloads and the glossary. A study's page sets the texts and attributes below, by class or in
    its ``__init__``, and defines ``_sections``; it may extend ``_lead``, ``_provenance`` and
    ``_data``.

    Args:
        result: the result.
        run: how it was made.
        rows: the number of its rows.

    Raises:
        NearfarError: there are more than ``limit`` rows.
    """

    #: Title of the window, plain text.
    title: str
    #: The small line above the heading, plain text.
    kicker: str
    #: The first heading, HTML.
    heading: str
    #: The finding, plain text.
    headline: str
    #: Further lines of the finding, plain text.
    more: Sequence[str] = ()
    #: The maximum number of rows, which keeps the page under 3 MB, and the plural of a row's name.
    limit: ClassVar[int | None] = None
    row_name: ClassVar[str] = "rows"
    #: Terms of the page and their meanings, plain text.
    glossary: ClassVar[Sequence[tuple[str, str]]] = ()
    #: Entries of ``run`` that are too long to show; the saved result has them.
    hidden: ClassVar[Sequence[str]] = ("machine_description",)
    #: Title of the section on how the result was made.
    provenance_title: ClassVar[str] = "How this was made"
    #: Whether the rows can be saved as CSV.
    csv: ClassVar[bool] = False
    #: Scripts of this folder, run in this order after the charting library.
    scripts: Sequence[str] = ("common.js", "info.js")

    def __init__(self, result: R, run: Mapping[str, object], rows: int = 0) -> None:
        """Check the number of rows."""
        self.result, self.run = result, run
        #: Specification and data of each chart by identifier; ``_sections`` fills it.
        self.charts: dict[str, Drawn] = {}
        self.check_rows(rows)

    @classmethod
    def check_rows(cls, rows: int) -> None:
        """Raise a :class:`NearfarError` if ``rows`` is above the limit of the page."""
        if cls.limit is not None and rows > cls.limit:
            raise NearfarError(
                f"--html: {rows} {cls.row_name} are more than one page holds; "
                f"give at most {cls.limit}"
            )

    def _sections(self) -> list[str]:
        """The study's own sections, HTML."""
        raise NotImplementedError

    def _chart_section(
        self,
        identifier: str,
        title: str,
        drawn: Drawn,
        label: str,
        caption: str,
        *,
        more: str = "",
        wide: bool = False,
    ) -> str:
        """The section of a chart, and ``more`` below it; adds the chart to ``self.charts``.

        Args:
            identifier, title, wide: as for :func:`section`.
            drawn: the chart.
            label, caption: as for :func:`chart`.
            more: HTML.
        """
        self.charts[identifier] = drawn
        return section(identifier, title, chart(identifier, label, caption) + more, wide)

    def _kicker(self) -> str:
        """The small line above the heading: the study and the machine."""
        names = self.run.get("machine") or self.run.get("machines")
        if not names:
            return self.kicker
        text = (
            names if isinstance(names, str) else ", ".join(map(str, cast("Iterable[str]", names)))
        )
        return f"{self.kicker}, machine {text}"

    def _lead(self) -> str:
        """The part between the heading and the sections, HTML."""
        finding, more = prose(self.headline), "<br>".join(map(prose, self.more))
        answers = f'<p class="answers">{more}</p>' if more else ""
        return f'<p class="finding" id="finding" aria-live="polite">{finding}</p>{answers}'

    def _provenance(self) -> str:
        """How the result was made, HTML."""
        return run_facts({key: value for key, value in self.run.items() if key not in self.hidden})

    def _data(self) -> dict[str, object]:
        """Data that is embedded as JSON, by identifier."""
        return {"result": self.result.to_dict(), "model": {"charts": self.charts}}

    def html(self) -> str:
        """The whole page, to be written as UTF-8."""
        parts = self._sections()
        made = details("Input, options and version", self._provenance())
        # Sections after the last wide one are in two columns; if their number is odd, the last is
        # wide.
        narrow = itertools.takewhile(lambda part: 'class="wide"' not in part[:80], reversed(parts))
        odd = (len(list(narrow)) + 1 + bool(self.glossary)) % 2 == 1
        wide = odd and not self.glossary
        parts.append(section("run", self.provenance_title, made + self._downloads(), wide=wide))
        if self.glossary:
            terms = definitions((term, text(meaning)) for term, meaning in self.glossary)
            parts.append(section("glossary", "Glossary", terms, wide=odd))
        script = "\n".join(map(_file, self.scripts))
        data = "\n".join(embed(name, value) for name, value in self._data().items())
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
            '<meta name="color-scheme" content="light dark">\n'
            f"<title>{text(self.title)}</title>\n<style>\n{_file('style.css')}</style>\n</head>\n"
            '<body>\n<a class="skip" href="#content">Skip to the content</a>\n'
            f'<header><p class="kicker">{text(self._kicker())}</p><h1>{self.heading}</h1>'
            f"{self._lead()}</header>\n"
            '<noscript><p class="note">The charts need JavaScript; every table below is complete '
            "without it.</p></noscript>\n"
            '<main id="content">' + "\n".join(parts) + f"</main>\n{data}\n"
            f"{embed('themes', _themes())}\n<script>{_library()}</script>\n"
            f'<script>(() => {{\n"use strict";\n{script}}})();</script>\n</body>\n</html>\n'
        )

    def _downloads(self) -> str:
        """Buttons that save the embedded result."""
        rows = '<button type="button" id="save-csv">Save rows as CSV</button>' if self.csv else ""
        return (
            '<p class="buttons"><button type="button" id="save-json">Save result as JSON</button>'
            f"{rows}</p>"
        )


def _themes() -> dict[str, object]:
    """Two colour schemes for charts; ``low`` to ``high`` is the usable part of ``heat``."""
    names = palette.OKABE_ITO
    marks = [palette.viridis(i / 63) for i in range(64)]
    return {
        "heat": marks,
        "light": {
            "ink": "#1d1f24",
            "muted": "#555b66",
            "line": "#dcdfe4",
            "surface": "#ffffff",
            "category": [names["blue"], names["orange"], names["green"], names["vermillion"]],
            "low": 0.0,
            "high": 0.82,
        },
        "dark": {
            "ink": "#eceef2",
            "muted": "#a9b0bc",
            "line": "#353a43",
            "surface": "#1b1e24",
            "category": [names["sky"], names["orange"], names["green"], names["vermillion"]],
            "low": 0.3,
            "high": 1.0,
        },
    }


def vega_version() -> str:
    """The version of Vega-Lite in Altair's specifications, such as ``5.20``."""
    import altair

    return ".".join(altair.SCHEMA_VERSION.lstrip("v").split(".")[:2])


@functools.cache
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, in the version of Altair's specifications.

    It takes 2 s to make, and is cached in ``~/.cache/nearfar`` (``XDG_CACHE_HOME``) if possible.
    """
    import vl_convert

    version = vega_version()
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    release = metadata.version("vl-convert-python")
    cached = base / "nearfar" / f"vega-{version}-{release}.js"
    try:
        source = cached.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        source = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)
        with contextlib.suppress(OSError, NearfarError):
            cached.parent.mkdir(parents=True, exist_ok=True)
            write_whole(cached, source, force=True)
    # A script element has no escapes; these two strings would end it or begin a comment.
    return str(source).replace("</script", "<\\/script").replace("<!--", "<\\!--")


@functools.cache
def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
