"""Sphinx's configuration: the repository's pages, and those that ``reference.py`` generates.

``make site`` builds them. The source folder is the repository, so that relative links work.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

import declared  # noqa: E402
import reference  # noqa: E402

from nearfar import __version__  # noqa: E402

project = "nearfar"
author = "the nearfar authors"
copyright = "the nearfar authors; Apache-2.0 or MIT"  # noqa: A001
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md",
                    "docs/*.md", "build/reference/**.md"]  # fmt: skip
exclude_patterns = [".*", "target", "crates", "capture", "fuzz", "tests", "out", "build/docs",
                    "build/man", "bench", "examples", "machines", "papers", "python",
                    "workloads"]  # fmt: skip
html_theme = "furo"
html_title = f"nearfar {__version__}"
html_show_sphinx = False
html_last_updated_fmt = None
# Headings get the same anchors as on GitHub, which the pages link to.
myst_heading_anchors = 4
myst_links_external_new_tab = False
highlight_language = "none"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# Types of other projects are not linked, as the site is built without a network.
nitpicky = False

#: The pages of each section, in the order of the table of contents.
CONTENTS = {
    "Start": ["docs/start", "docs/tours", "docs/shell"],
    "Studies": ["docs/size", "docs/watch", "docs/paging", "docs/advise", "docs/thp", "docs/devices",
                "docs/tiering", "docs/run", "docs/numa", "docs/ssd", "docs/sweep",
                "docs/reproduce", "docs/validation", "build/reference/validation"],
    "Traces": ["docs/capture", "docs/workload", "docs/formats", "docs/generate", "docs/info",
               "docs/trace"],
    "More": ["docs/machine", "docs/fit", "docs/apply", "docs/report", "docs/guest", "docs/doctor"],
    "Change it": ["docs/extend", "docs/robustness", "docs/conform", "CONTRIBUTING", "ARCHITECTURE",
                  "SECURITY"],
    "Reference": ["build/reference/commands", "build/reference/machine-file",
                  "build/reference/python"],
}  # fmt: skip


def contents(_: Any, name: str, source: list[str]) -> None:
    """Add the site's table of contents to the first page, and that of modules to the Python page.

    Only the side bar shows them. The files lack them, as they are also read without Sphinx.
    """
    if name == root_doc:
        known = {entry for entries in CONTENTS.values() for entry in entries}
        rest = sorted(f"docs/{page.stem}" for page in HERE.glob("*.md"))
        more = [page for page in rest if page not in known]
        for caption, entries in CONTENTS.items():
            listed = entries + (more if caption == "More" else [])
            source[0] += toctree(["/" + entry for entry in listed], caption)
    elif name == "build/reference/python":
        source[0] += toctree([f"api/{module}" for module in reference.modules()], "")


def tables(_: Any, name: str, source: list[str]) -> None:
    """Replace markers such as ``<!-- declared: columns run -->`` by tables."""
    if "<!-- declared: " in source[0]:
        source[0] = declared.with_tables(source[0], declared.schema())


def toctree(entries: list[str], caption: str) -> str:
    """A table of contents that only the side bar shows."""
    options = ":hidden:\n" + (f":caption: {caption}\n" if caption else "")
    return "\n```{toctree}\n" + options + "\n" + "\n".join(entries) + "\n```\n"


def first_page(app: Any, failed: Exception | None) -> None:
    """Redirect the address of the folder to the first page."""
    if failed is None and app.builder.name == "html":
        text = '<!doctype html><meta http-equiv="refresh" content="0; url=README.html">\n'
        (Path(app.outdir) / "index.html").write_text(text, encoding="utf-8")


def setup(app: Any) -> None:
    """Write the generated pages, and register the functions above with Sphinx."""
    reference.write(ROOT / "build" / "reference")
    app.connect("source-read", contents)
    app.connect("source-read", tables)
    app.connect("build-finished", first_page)
