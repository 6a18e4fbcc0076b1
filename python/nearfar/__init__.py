"""nearfar: which pages belong near, which far, and how big should they be?

Every verb of the command line is a function of the same name, in a module of the same name:
``nearfar.paging(...)`` is ``nearfar.paging.paging(...)``, imported when it is first used.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nearfar.errors import NearfarError

if TYPE_CHECKING:
    from nearfar._engine import __version__
    from nearfar.advise import advise as advise
    from nearfar.apply import apply as apply
    from nearfar.capture import capture as capture
    from nearfar.diff import diff as diff
    from nearfar.explain import explain as explain
    from nearfar.generate import generate as generate
    from nearfar.info import info as info
    from nearfar.paging import paging as paging
    from nearfar.report import report as report
    from nearfar.reproduce import reproduce as reproduce
    from nearfar.ssd import ssd as ssd
    from nearfar.sweep import sweep as sweep
    from nearfar.tiering import tiering as tiering
    from nearfar.trace import Trace, open

__all__ = ["NearfarError", "Trace", "__version__", "open"]

#: Modules of the API: what a script may use. The others are parts of these.
_API = (
    *("advise", "apply", "capture", "diff", "doctor", "errors", "explain", "exporter", "fit"),
    *("generate", "importer", "info", "live", "live_watch", "machine", "numa", "paging", "report"),
    *("reproduce", "result", "run_folder", "ssd", "sweep", "tiering", "trace", "units", "workload"),
)

#: Names of other modules that stand here, loaded when they are first used: help and completion need
#: neither the engine nor traces.
_ELSEWHERE = {"Trace": "trace", "__version__": "_engine", "open": "trace"}


class _Verb(ModuleType):
    """A module that is called as the function that it is named after."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return _function(self)(*arguments, **named)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(_function(self))


class _Package(ModuleType):
    """Makes verbs of modules that hold a function of their own name, as they are imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and inspect.isfunction(getattr(value, name, None)):
            value.__class__ = _Verb
        super().__setattr__(name, value)


def _function(module: ModuleType) -> Any:
    return getattr(module, module.__name__.rpartition(".")[2])


def __getattr__(name: str) -> Any:
    if name in _ELSEWHERE:
        return getattr(importlib.import_module(f"{__name__}.{_ELSEWHERE[name]}"), name)
    if not name.startswith("_") and name in _modules():
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'nearfar' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_API})


def _modules() -> list[str]:
    return [found.name for found in pkgutil.iter_modules(__path__)]


sys.modules[__name__].__class__ = _Package
