"""Self-contained HTML pages: one file, offline, no request to any host.

A page is a class, one file per study, named by the study's result (``Result.page``). It takes what
the command prints as JSON; the same input gives the same bytes. Charts are Vega-Lite made with
Altair, the JavaScript that draws them part of the page, or plain SVG.
"""
