"""The studies: what a sweep may run, and how a folder of results is read again.

One more study is one entry of :data:`STUDIES`. Its parameters are those of its function: names,
defaults and annotations are the schema of a sweep's file, so nothing is declared twice.

>>> find("paging").parameters()["replacement"].default
'clock'
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nearfar.errors import NearfarError
from nearfar.result import FolderResult
from nearfar.schema import Rows, options_of


@dataclass(frozen=True)
class Parameter:
    """A parameter of a study's function.

    Attributes:
        name: its name.
        annotation: its type, resolved.
        default: what it is unless given; ``inspect.Parameter.empty`` where it must be given.
    """

    name: str
    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is inspect.Parameter.empty


@dataclass(frozen=True)
class Study:
    """One study.

    Attributes:
        name: as a sweep's file and messages name it.
        function: ``module:function`` that runs it.
        result: ``module:class`` of its result.
        traces: parameters that may name trace folders.
        machines: parameters that name machines.
        in_columns: parameters that its rows have as columns already.
        threads: the parameter that says how many threads the engine may use, where there is one.
        records_per_second: records of a trace that one core takes a second with usual options, to
            say how long a sweep may take before a cell is finished (measured, docs/validation.md);
            None where time does not follow the trace.
    """

    name: str
    function: str
    result: str
    traces: tuple[str, ...]
    machines: tuple[str, ...] = ("machine",)
    in_columns: tuple[str, ...] = ()
    threads: str | None = "threads"
    records_per_second: float | None = None
    splits: bool = False

    def run(self, parameters: Mapping[str, Any]) -> FolderResult:
        """Run it with these parameters."""
        found: FolderResult = _import(self.function)(**parameters)
        return found

    def pieces(self, parameters: Mapping[str, Any]) -> dict[int, float]:
        """What it can be split into with these parameters, in order, and how much work each is.

        Nothing where it cannot be split.

        Raises:
            NearfarError: bad input.
        """
        found: dict[int, float] = self._in_parts("pieces")(**parameters) if self.splits else {}
        return found

    def part(self, only: Sequence[int], parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Run some of its pieces alone: plain values for :meth:`joined`."""
        found: dict[str, Any] = self._in_parts("part")(only, **parameters)
        return found

    def joined(
        self,
        parts: Sequence[tuple[Sequence[int], Mapping[str, Any]]],
        seconds: float,
        parameters: Mapping[str, Any],
    ) -> FolderResult:
        """The result that :meth:`run` gives, of parts that have all pieces between them."""
        found: FolderResult = self._in_parts("joined")(parts, seconds, **parameters)
        return found

    def _in_parts(self, name: str) -> Callable[..., Any]:
        found: Callable[..., Any] = _import(f"{self.function.partition(':')[0]}:{name}")
        return found

    def parameters(self) -> dict[str, Parameter]:
        """What a sweep may set, by name, in the order of the function."""
        return _parameters(self.function, self.threads)

    @property
    def columns(self) -> Rows:
        """What the columns of its table mean."""
        kind: type[FolderResult] = _import(self.result)
        declared = kind.columns
        return declared if isinstance(declared, Rows) else declared[self.question]

    @property
    def question(self) -> str:
        """Which of several questions of one study it asks; empty where there is but one."""
        return self.name.partition("-")[2]

    def restore(self, run: Any, tables: Mapping[str, Any]) -> FolderResult:
        """The result that a folder holds."""
        kind: type[FolderResult] = _import(self.result)
        return kind.restore(run, tables)


_NUMA: Final = "nearfar.numa:NumaResult"

#: Every study, by name.
STUDIES: Final = {
    study.name: study
    for study in (
        Study(
            "paging",
            "nearfar.paging:paging",
            "nearfar.paging:PagingResult",
            traces=("trace",),
            in_columns=("page_sizes", "memory", "storage", "machine"),
            records_per_second=5e6,
            splits=True,
        ),
        Study(
            "advise",
            "nearfar.advise:advise",
            "nearfar.advise:AdviseResult",
            traces=("traces",),
            in_columns=("memory", "machine", "storage", "arch", "min_gain"),
            records_per_second=5e6,
        ),
        Study(
            "ssd",
            "nearfar.ssd:ssd",
            "nearfar.ssd:SsdResult",
            traces=("trace",),
            in_columns=("dram", "epf"),
            records_per_second=1e6,
        ),
        Study(
            "tiering",
            "nearfar.tiering:tiering",
            "nearfar.tiering:TieringResult",
            traces=("workload",),
            in_columns=("workload", "policy", "mix", "seeds", "fast"),
            splits=True,
        ),
        Study(
            "numa-alloc",
            "nearfar.numa:alloc",
            _NUMA,
            traces=(),
            in_columns=("size", "mode"),
            threads=None,
        ),
        Study("numa-run", "nearfar.numa:run", _NUMA, ("load",), in_columns=("mode",), threads=None),
        Study(
            "numa-pair",
            "nearfar.numa:pair",
            _NUMA,
            traces=("first", "second"),
            in_columns=("overlap",),
            threads=None,
        ),
        Study("numa-plan", "nearfar.numa.plan:plan", _NUMA, traces=(), threads=None),
        Study(
            "run",
            "nearfar.live:run",
            "nearfar.live:Outcome",
            traces=(),
            machines=(),
            in_columns=(
                "command",
                "fast",
                "alone",
                "knobs",
                "far",
                "policy",
                "far_size",
                "far_latency",
                "epf",
            ),
            threads=None,
        ),
    )
}


def find(name: object) -> Study:
    """The study of this name.

    Raises:
        NearfarError: there is none; the message names the nearest.
    """
    found = STUDIES.get(name) if isinstance(name, str) else None
    if found is None:
        near = difflib.get_close_matches(str(name), STUDIES, 1, 0.0)
        raise NearfarError(
            f"study: no study {str(name)[:40]!r}; did you mean `{near[0]}`? "
            f"(there are: {', '.join(STUDIES)})"
        )
    return found


def of_run(run: Mapping[str, Any]) -> Study:
    """The study that ``run.json`` is of. Raises as :func:`find`."""
    inner = run["run"] if isinstance(run.get("run"), Mapping) else run
    question = inner.get("question")
    return find(f"{inner.get('study')}-{question}" if question else inner.get("study"))


def _import(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def _parameters(place: str, threads: str | None) -> dict[str, Parameter]:
    function: Callable[..., Any] = _import(place)
    hints = typing.get_type_hints(function)
    hints |= {option.name: option.annotation for option in options_of(function)}
    found: dict[str, Parameter] = {}
    for name, one in inspect.signature(function).parameters.items():
        if one.kind is not one.POSITIONAL_ONLY and name not in ("progress", "max_memory", threads):
            found[name] = Parameter(name, hints[name], one.default)
    return found


def fits(annotation: Any, value: Any) -> bool:
    """Whether a value read from TOML is one of an annotated type."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return True
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation in (str, bool):
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
    return any(fits(one, value) for one in arguments)


def describe(annotation: Any) -> str:
    """The type of a parameter in words, for messages."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    words = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
    if annotation in words:
        return words[annotation]
    if annotation is Path:
        return "a path"
    if origin is tuple:
        return f"a list of {len(arguments)}: " + ", ".join(describe(one) for one in arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a table of {describe(arguments[1])}"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"a list of {describe(arguments[0])}"
    texts = [describe(one) for one in arguments if one is not type(None) and _writable(one)]
    return " or ".join(dict.fromkeys(texts))


def _writable(annotation: Any) -> bool:
    """Whether a value of the type can be written in TOML at all."""
    if isinstance(annotation, type):
        return annotation in (str, bool, int, float, Path)
    if typing.get_origin(annotation) is type:
        return False
    return any(_writable(one) for one in typing.get_args(annotation))
