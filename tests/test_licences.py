"""Licences of dependencies: the expressions, and that a wrong package is seen."""

from __future__ import annotations

import tomllib

import pytest

import licences

ALLOWED = frozenset({"MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0"})


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT", True),
        ("MIT/GPL-2.0", True),
        ("(MIT OR GPL-3.0-only) AND Unicode-3.0", True),
        ("(MIT OR GPL-3.0-only) AND OpenSSL", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("Apache-2.0 WITH Classpath-exception-2.0", False),
        ("GPL-3.0-only OR MIT AND OpenSSL", False),
    ],
)
def test_expressions(expression: str, holds: bool) -> None:
    assert licences.accepted(expression, ALLOWED) is holds


@pytest.mark.parametrize("text", ["", "MIT OR", "(MIT", "MIT MIT", "OR", "MIT)"])
def test_no_expression(text: str) -> None:
    with pytest.raises(ValueError, match="not a licence expression|bracket"):
        licences.accepted(text, ALLOWED)


def test_what_is_wrong_is_seen() -> None:
    rules = tomllib.loads((licences.ROOT / "deny.toml").read_text(encoding="utf-8"))
    here = licences.registry()
    assert here.startswith("registry+")
    own = "Apache-2.0 OR MIT"
    cases = {
        ("a 1", "MIT", here, None),
        ("a 1", "MIT", "git+https://example.org/a", "comes from"),
        ("a 1", "GPL-3.0-only", here, "has the licence"),
        ("a 1", "", "installed", "states no licence"),
        ("tokio 1", "MIT", here, "is banned"),
        ("nearfar 1", own, "here", None),
        ("nearfar 1", "MIT", "here", "where all is"),
    }
    for name, licence, origin, says in cases:
        answer = licences.wrong(licences.Package(name, licence, origin), rules, own)
        assert (answer is None) if says is None else says in str(answer)


def test_everything_that_is_used_may_be() -> None:
    assert licences.main() == 0
