"""The registry of studies, for sweeps and for reading folders of results.

A study is an entry of :data:`STUDIES`. Its parameters are those of its function: names, defaults
and annotations are the schema of a sweep's file.

>>> find("paging").parameters()["replacement"].default
'clock'
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import operator
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from nearfar.errors import NearfarError
from nearfar.result import FolderResult
from nearfar.schema import Rows, options_of
from nearfar.strict import Json

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class Study:
    """One study.

    Attributes:
        name: its name in a sweep's file and in messages. A study that answers several questions
            has an entry for each: ``STUDY-QUESTION``.
        module_name: the module, which is imported on first use. The function is named after the
            study, or after the question.
        result: the class of its result, in the module.
        traces: parameters that may name trace folders.
        machines: parameters that name machines.
        in_columns: parameters that are columns of its rows already.
        threads: the parameter that limits the threads of the engine, if there is one.
        records_per_second: records of a trace that one core processes per second with usual
            options, to estimate a sweep before its first cell is finished (measured,
            docs/validation.md); None if the time does not depend on the trace.
    """

    name: str
    module_name: str
    result: str
    traces: tuple[str, ...]
    machines: tuple[str, ...] = ("machine",)
    in_columns: tuple[str, ...] = ()
    threads: str | None = "threads"
    records_per_second: float | None = None

    @property
    def module(self) -> ModuleType:
        """The module of the study."""
        return importlib.import_module(self.module_name)

    @property
    def function(self) -> Callable[..., FolderResult]:
        """The function that runs it."""
        function: Callable[..., FolderResult] = getattr(self.module, self.name.rpartition("-")[2])
        return function

    def parameters(self) -> dict[str, inspect.Parameter]:
        """The parameters that a sweep may set, with resolved types, in the function's order."""
        hints: dict[str, object] = typing.get_type_hints(self.function)
        hints |= {option.name: option.annotation for option in options_of(self.function)}
        internal = ("progress", "max_memory", self.threads)
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
        return {
            name: parameter.replace(annotation=hints[name])
            for name, parameter in inspect.signature(self.function).parameters.items()
            if parameter.kind not in positional and name not in internal
        }

    @property
    def columns(self) -> Rows:
        """The columns of its table."""
        columns = self._result.columns
        return columns if isinstance(columns, Rows) else columns[self.question]

    @property
    def question(self) -> str:
        """The question, for a study that has several; else empty."""
        return self.name.partition("-")[2]

    def restore(self, run: Json, tables: Mapping[str, pyarrow.Table]) -> FolderResult:
        """Read a result from the ``run.json`` and the tables of its folder."""
        return self._result.restore(run, tables)

    @property
    def _result(self) -> type[FolderResult]:
        result: type[FolderResult] = operator.attrgetter(self.result)(self.module)
        return result


STUDIES: Final = {
    study.name: study
    for study in (
        Study(
            "paging", "nearfar.paging", "PagingResult", traces=("trace",),
            in_columns=("page_sizes", "memory", "storage", "machine"), records_per_second=5e6,
        ),
        Study(
            "advise", "nearfar.advise", "AdviseResult", traces=("traces",), records_per_second=5e6,
            in_columns=("memory", "machine", "storage", "arch", "min_gain"),
        ),
        Study(
            "size", "nearfar.size", "SizeResult", traces=("traces",),
            in_columns=("machine", "arch"), records_per_second=4e6,
        ),
        Study(
            "devices", "nearfar.devices", "DevicesResult", traces=("trace",),
            in_columns=("storage",), records_per_second=4e6,
        ),
        Study(
            "thp", "nearfar.thp", "ThpResult", traces=("trace",), in_columns=("policy",),
            records_per_second=4e6,
        ),
        Study(
            "ssd", "nearfar.ssd", "SsdResult", traces=("trace",), in_columns=("dram", "epf"),
            records_per_second=1e6,
        ),
        Study(
            "tiering", "nearfar.tiering", "TieringResult", traces=("workload",),
            in_columns=("workload", "policy", "mix", "seeds", "fast"),
        ),
        Study(
            "numa-alloc", "nearfar.numa", "NumaResult", traces=(), in_columns=("size", "mode"),
            threads=None,
        ),
        Study(
            "numa-run", "nearfar.numa", "NumaResult", traces=("load",), in_columns=("mode",),
            threads=None,
        ),
        Study(
            "numa-pair", "nearfar.numa", "NumaResult", traces=("first", "second"),
            in_columns=("overlap",), threads=None,
        ),
        Study("numa-plan", "nearfar.numa.plan", "numa.NumaResult", traces=(), threads=None),
        Study(
            "watch", "nearfar.watch", "WatchResult", traces=(), in_columns=("machine", "method"),
            threads=None,
        ),
        Study(
            "run", "nearfar.live", "Outcome", traces=(), machines=(), threads=None,
            in_columns=("command", "fast", "alone", "knobs", "far", "policy", "far_size",
                        "far_latency", "epf"),
        ),
    )
}  # fmt: skip


def find(name: object) -> Study:
    """The study of this name.

    Raises:
        NearfarError: the name is unknown; the message suggests the nearest.
    """
    study = STUDIES.get(name) if isinstance(name, str) else None
    if study is None:
        near = difflib.get_close_matches(str(name), STUDIES, n=1, cutoff=0.0)
        raise NearfarError(
            f"study: no study {str(name)[:40]!r}; did you mean `{near[0]}`? "
            f"(there are: {', '.join(STUDIES)})"
        )
    return study


def of_run(run: Json) -> Study:
    """The study of a ``run.json``. Raises as :func:`find`."""
    # The ``run.json`` of numa has the rows beside the record of the run.
    inner = run["run"] if isinstance(run.get("run"), Mapping) else run
    question = inner.get("question")
    return find(f"{inner.get('study')}-{question}" if question else inner.get("study"))


def fits(annotation: object, value: object) -> bool:
    """Whether a value of TOML has an annotated type."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return True
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation is str or annotation is bool:
        return isinstance(value, annotation)
    if annotation is Path:
        return isinstance(value, str)
    if origin is tuple:
        return (
            isinstance(value, list)
            and len(value) == len(arguments)
            and all(map(fits, arguments, value))
        )
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, dict) and all(fits(arguments[1], v) for v in value.values())
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return isinstance(value, list) and all(fits(arguments[0], v) for v in value)
    return any(fits(argument, value) for argument in arguments)


def describe(annotation: object) -> str:
    """The type of a parameter in words, for messages."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    words: dict[object, str] = {
        str: "text",
        bool: "true or false",
        int: "a whole number",
        float: "a number",
    }
    if annotation in words:
        return words[annotation]
    if annotation is Path:
        return "a path"
    if origin is tuple:
        return f"a list of {len(arguments)}: " + ", ".join(map(describe, arguments))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a table of {describe(arguments[1])}"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"a list of {describe(arguments[0])}"
    texts = [describe(kind) for kind in arguments if kind is not type(None) and _writable(kind)]
    return " or ".join(dict.fromkeys(texts))


def _writable(annotation: object) -> bool:
    """Whether TOML can express a value of the type."""
    if isinstance(annotation, type):
        return annotation in (str, bool, int, float, Path)
    if typing.get_origin(annotation) is type:
        return False
    return any(map(_writable, typing.get_args(annotation)))
