"""The papers that nearfar reproduces, by the systems they describe."""

from __future__ import annotations

from typing import Final

#: The system or subject of each paper, by its number in ``papers/``.
SYSTEMS: Final = {
    "000": "page-size advice",
    "001": "TLB and fault models",
    "002": "UMD",  # DRAM-interface SSD
    "003": "SSP",  # selective shadow paging
    "004": "aliusM",
}


#: The study that reproduces each paper.
STUDIES: Final = {
    "000": "paging",
    "001": "paging",
    "002": "ssd",
    "003": "tiering",
    "004": "numa",
}


def label(paper: str) -> str:
    """The name of a paper in texts: ``UMD (002)``. Other names are returned unchanged.

    >>> label("002"), label("NOMAD")
    ('UMD (002)', 'NOMAD')
    """
    return f"{SYSTEMS[paper]} ({paper})" if paper in SYSTEMS else paper
