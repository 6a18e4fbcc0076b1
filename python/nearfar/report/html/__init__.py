"""Self-contained HTML pages: one file that works offline and sends no requests.

A page is a class, one file per study, named by the study's result (``Result.page``). Equal results
make equal bytes. Charts are Vega-Lite specifications made with Altair, which JavaScript in the page
draws, or plain SVG.
"""
