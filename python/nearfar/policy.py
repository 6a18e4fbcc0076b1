"""Tiering policies in Python, and the knobs of policies, for studies and live runs."""

from __future__ import annotations

import copy
import difflib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from nearfar import _engine
from nearfar.errors import NearfarError
from nearfar.schema import knob_text
from nearfar.strict import read_toml

#: Knobs as a caller gives them, by ``policy.knob``.
Knobs = Mapping[str, str | float | bool]

#: Methods of a policy that nearfar calls.
HOOKS: Final[Sequence[str]] = _engine.policy_hooks()


class Policy:
    """Base class of a policy in Python; docs/tiering.md describes the hooks.

    Hooks that the class does not define are those of ``base``. Every run creates a policy and calls
    its ``start``, which checks the capabilities of the memory, spawns the policy's threads and
    returns the times of their first runs.

    Attributes:
        base: the built-in policy to derive from; None: none.
        knobs: knobs of the base, as text by name.
        watch_unshadowed: with the base ``nomad``, whether a page promoted without a shadow is
            write-protected, so that its first write calls ``written``.
    """

    base: ClassVar[str | None] = None
    knobs: ClassVar[Mapping[str, str]] = {}
    watch_unshadowed: ClassVar[bool] = False

    def __init_subclass__(cls, **arguments: object) -> None:
        """Refuse a method whose name looks like a misspelt hook."""
        super().__init_subclass__(**arguments)
        for name, value in vars(cls).items():
            if not callable(value) or name in HOOKS or name.startswith("_"):
                continue
            if near := difflib.get_close_matches(name, HOOKS, 1, 0.8):
                raise TypeError(f"{cls.__name__}.{name}: no such hook; did you mean {near[0]}?")


def constructor_of(policy: object) -> tuple[str, Callable[[], object], dict[str, str]]:
    """The label, constructor and knobs of a class or object that implements :class:`Policy`.

    Every run and every process gets a new object.
    """
    kind = policy if isinstance(policy, type) else type(policy)
    label = str(getattr(policy, "name", kind.__name__.lower()))
    knobs = {str(k): str(v) for k, v in getattr(policy, "knobs", {}).items()}
    return label, kind if policy is kind else lambda: copy.deepcopy(policy), knobs


def from_file(word: str) -> type[Policy] | None:
    """The policy of a Python file, ``mine.py`` or ``mine.py:Class``; None for other names.

    Raises:
        NearfarError: the file cannot be read or run, or it has no such policy.
    """
    name, _, chosen = word.partition(":")
    if not name.endswith(".py"):
        return None
    path = Path(name)
    if not path.is_file():
        raise NearfarError(f"--policy: {name}: no such file")
    spec = importlib.util.spec_from_file_location(f"policy_{path.stem}", path)
    assert spec is not None and spec.loader is not None  # it ends in .py
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise NearfarError(f"--policy: {name}: {what}") from error
    policies = {
        kind.__name__: kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Policy) and kind.__module__ == spec.name
    }
    if chosen in policies:
        return policies[chosen]
    if len(policies) == 1 and not chosen:
        return next(iter(policies.values()))
    if not policies:
        raise NearfarError(f"--policy: {name}: has no class derived from nearfar.tiering.Policy")
    raise NearfarError(f"--policy: {name}: name one of {', '.join(policies)}, as {name}:CLASS")


def read_knobs(path: str | Path) -> dict[str, str]:
    """Read a TOML file of ``[policy]`` tables into values by ``policy.knob``.

    Raises:
        NearfarError: the file cannot be read or has another form.
    """
    tables = read_toml(Path(path), "a file of knobs", "docs/tiering.md")
    values: dict[str, str] = {}
    for policy, knobs in tables.items():
        if not isinstance(knobs, dict):
            raise NearfarError(f"{path} key {policy}: write it under a table such as [nomad]")
        for name, value in knobs.items():
            if isinstance(value, dict | list):
                raise NearfarError(f"{path} key {policy}.{name}: give one value")
            values[f"{policy}.{name}"] = knob_text(value)
    return values


def by_policy(values: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Knobs by policy and name, from knobs by ``policy.knob``."""
    knobs: dict[str, dict[str, str]] = {}
    for key, value in values.items():
        policy, dot, name = key.partition(".")
        if not (policy and dot and name):
            raise NearfarError(f"--knob {key!r}: write policy.knob=value, as in tpp.pagevec=15")
        knobs.setdefault(policy, {})[name] = value
    return knobs
