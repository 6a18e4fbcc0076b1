"""Dependencies: builds use the lock files, and locked versions are within the stated bounds."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: Packages with a major version every quarter, or versions numbered by the year.
UNBOUNDED = {"pyarrow", "distributed", "furo"}


def test_every_call_of_cargo_is_locked() -> None:
    builds = re.compile(r"\b(?:cargo (?:build|clippy|test|run|install|deny|metadata|tree|bench)"
                        r"|maturin (?:build|develop))\b")  # fmt: skip
    files = [
        "Makefile",
        ".ci/run",
        *(str(f.relative_to(ROOT)) for f in ROOT.glob("workloads/*.sh")),
    ]
    found = 0
    for name in files:
        text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
        for line in text.splitlines():
            for call in builds.finditer(line):
                found += 1
                assert "--locked" in line[call.start() :], f"{name}: {line.strip()}"
    assert found >= 7


def test_a_wheel_is_compiled_with_flags_that_the_compiler_knows(tmp_path: Path) -> None:
    """Only the CFLAGS of `make wheel` are tested, as a wheel takes minutes."""
    made = subprocess.run(
        ["make", "--dry-run", "--print-data-base", "wheel"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    (flags,) = re.findall(r"^wheel: CFLAGS := (.+)$", made, re.MULTILINE)
    command = ["cc", *flags.split(), "-x", "c", "-c", "-", "-o", tmp_path / "empty.o"]
    done = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"-ffile-prefix-map={ROOT}=" in flags


def locked(name: str) -> dict[str, str]:
    """Versions in a lock file; checks that each package has a hash, and no index is named."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    assert "://" not in text and "--index" not in text and "--find-links" not in text
    versions = {}
    for entry in text.replace("\\\n", " ").splitlines():
        if entry.strip() and not entry.startswith("#"):
            package, version = re.match(
                r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ ;]+)", entry
            ).groups()  # type: ignore[union-attr]
            assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry[:60]
            versions[package.lower().replace("_", "-")] = version
    return versions


@pytest.mark.parametrize("extra", ["dev", "docs"])
def test_locked_versions_meet_pyproject(extra: str) -> None:
    """After a change of pyproject.toml, run `make lock`."""
    versions = locked(extra)
    for line in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]]:
        wanted = Requirement(line)
        assert Version(versions[wanted.name.lower()]) in wanted.specifier, line


def test_major_versions_have_bounds() -> None:
    extras = PROJECT["optional-dependencies"].values()
    for line in [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]:
        wanted = Requirement(line)
        bounded = any(one.operator in ("<", "==") for one in wanted.specifier)
        assert bounded or wanted.name in UNBOUNDED, line
