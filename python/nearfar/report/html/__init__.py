"""Self-contained HTML pages: one file, offline, no request to any host.

:func:`paging_page`, :func:`info_page`, :func:`fleet_page` and :func:`numa_page` take the dicts that
the commands print as JSON, :func:`reproduce_page` a whole result, and return the page as text; the
same input gives the same bytes. Charts are Vega-Lite made with Altair, the JavaScript that draws
them part of the page, or plain SVG.
"""

from __future__ import annotations

from nearfar.report.html.fleet import fleet_page
from nearfar.report.html.info import info_page
from nearfar.report.html.numa import numa_page
from nearfar.report.html.paging import paging_page
from nearfar.report.html.reproduce import reproduce_page

__all__ = ["fleet_page", "info_page", "numa_page", "paging_page", "reproduce_page"]
