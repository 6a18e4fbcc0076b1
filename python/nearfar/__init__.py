"""nearfar: which pages belong near, which far, and how big should they be?"""

from __future__ import annotations

from nearfar._engine import __version__
from nearfar.errors import NearfarError

__all__ = ["NearfarError", "__version__"]
