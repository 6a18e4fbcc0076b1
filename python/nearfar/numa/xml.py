"""What the sources in XML share: a strict beginning, and whole numbers."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from nearfar.errors import NearfarError


def root(path: Path, text: str, tool: str) -> ET.Element:
    """The outermost element of what ``tool`` printed.

    Raises:
        NearfarError: it is not XML, or defines entities.
    """
    if "<!ENTITY" in text:
        raise NearfarError(f"{path}: defines entities, which {tool} never does; save it again")
    try:
        return ET.fromstring(text)
    except ET.ParseError as error:
        raise NearfarError(f"{path}: not XML ({error}); save it again") from None


def number(text: str | None, path: Path) -> int:
    """A whole number of at most 18 digits.

    Raises:
        NearfarError: it is none.
    """
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise NearfarError(f"{path}: {str(text)[:40]!r} where a number belongs; save it again")
    return int(text)
