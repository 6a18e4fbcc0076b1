"""Table 2 of aliusM (004): published times, beside which pages and statements put ours."""

from __future__ import annotations

from typing import Final

#: Seconds to allocate and clear, by mode and size in GiB.
TABLE_2: Final = {
    ("memory-mode", 80): 64.74,
    ("memory-mode", 700): 581.29,
    ("memory-mode", 1000): 847.93,
    ("memory-mode", 2000): 1805.33,
    ("alius", 80): 19.12,
    ("alius", 700): 258.19,
    ("alius", 1000): 383.88,
    ("alius", 2000): 911.55,
    ("alius", 3000): 2005.21,
}
