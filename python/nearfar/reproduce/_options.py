"""What ``reproduce`` takes.

``make declared`` writes it as types and data, :mod:`nearfar.declared.reproduce`.
"""

from __future__ import annotations

from typing import Final

from nearfar.schema import Option

OPTIONS: Final = (
    Option("full", "bool", "Capture or simulate at full size first; takes long.", default=False),
    Option(
        "traces",
        "str | Path | None",
        "A folder of captures; --full puts there what is missing.",
        shown="the small captures of the sources",
        metavar="FOLDER",
    ),
    Option("threads", "int", "Threads; 0 = one per core.", default=0, metavar="COUNT"),
)
