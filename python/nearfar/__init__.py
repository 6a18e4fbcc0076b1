"""nearfar: which pages belong near, which far, and how big should they be?"""

from __future__ import annotations

from nearfar._engine import __version__
from nearfar.errors import NearfarError
from nearfar.trace import Trace, open

__all__ = ["NearfarError", "Trace", "__version__", "open"]
