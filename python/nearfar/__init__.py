"""nearfar: which pages belong in near or far memory, and how large they should be.

Most commands are functions of the same name in modules of the same name, imported on first use:
``nearfar.paging(...)`` is ``nearfar.paging.paging(...)``.
"""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from nearfar.errors import NearfarError

if TYPE_CHECKING:
    from nearfar._engine import __version__
    from nearfar.advise import advise as advise
    from nearfar.apply import apply as apply
    from nearfar.capture import capture as capture
    from nearfar.devices import devices as devices
    from nearfar.diff import diff as diff
    from nearfar.explain import explain as explain
    from nearfar.generate import generate as generate
    from nearfar.info import info as info
    from nearfar.paging import paging as paging
    from nearfar.report import report as report
    from nearfar.reproduce import reproduce as reproduce
    from nearfar.size import size as size
    from nearfar.ssd import ssd as ssd
    from nearfar.sweep import sweep as sweep
    from nearfar.thp import thp as thp
    from nearfar.tiering import tiering as tiering
    from nearfar.trace import Trace, open

__all__ = ["NearfarError", "Trace", "__version__", "open"]

# Rayon starts as many threads as this variable says: limit them to four per processor.
if os.environ.get("RAYON_NUM_THREADS", "").isdecimal():
    _limit = 4 * (os.cpu_count() or 1)
    os.environ["RAYON_NUM_THREADS"] = str(min(int(os.environ["RAYON_NUM_THREADS"]), _limit))

#: Modules of the public API.
_API = (
    "advise", "apply", "capture", "devices", "diff", "doctor", "errors", "explain", "exporter",
    "fit", "generate", "importer", "info", "live", "live_watch", "machine", "numa", "paging",
    "report", "reproduce", "result", "run_folder", "size", "ssd", "sweep", "thp", "tiering",
    "trace", "units", "workload",
)  # fmt: skip

#: Module of each re-exported name; imported on first use, to keep help and completion fast.
_REEXPORTED = {"Trace": "trace", "__version__": "_engine", "open": "trace"}


class _CallableModule(ModuleType):
    """A module that is callable as its function of the same name."""

    def __call__(self, *arguments: object, **named: object) -> object:
        return _function(self)(*arguments, **named)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(_function(self))


class _Package(ModuleType):
    """The package; makes imported modules that have a function of their name callable."""

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ModuleType) and inspect.isfunction(getattr(value, name, None)):
            value.__class__ = _CallableModule
        super().__setattr__(name, value)


def _function(module: ModuleType) -> Callable[..., object]:
    function: Callable[..., object] = getattr(module, module.__name__.rpartition(".")[2])
    return function


def __getattr__(name: str) -> object:
    if name in _REEXPORTED:
        reexported: object = getattr(importlib.import_module(f"nearfar.{_REEXPORTED[name]}"), name)
        return reexported
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    if not name.startswith("_") and name in modules:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'nearfar' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_API})


sys.modules[__name__].__class__ = _Package
