"""Self-contained HTML pages: one file, offline, no request to any host.

:func:`paging_page`, :func:`info_page` and :func:`fleet_page` take the dicts that the commands print
as JSON and return the page as text; the same input gives the same bytes. Charts are Vega-Lite made
with Altair; the JavaScript that draws them is part of the page.
"""

from __future__ import annotations

from nearfar.report.html.fleet import fleet_page
from nearfar.report.html.info import info_page
from nearfar.report.html.paging import paging_page

__all__ = ["fleet_page", "info_page", "paging_page"]
