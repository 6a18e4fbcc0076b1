"""Fuzz every reader for a time (``make fuzz``): Rust's by cargo-fuzz, Python's by tests/hostile.py.

Inputs that reach new code are kept in ``fuzz/target/corpus``, inputs that break a reader in
``fuzz/artifacts/TARGET``. The committed corpus is only read: add inputs that are worth keeping by
hand, together with the fix.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

FUZZ = Path(__file__).resolve().parent
TRIPLE = "x86_64-unknown-linux-gnu"
#: A reader that needs more memory is broken, whatever size a small file claims to have.
MEMORY_LIMITS = ["-rss_limit_mb=4096", "-malloc_limit_mb=4096"]
#: Maximum seconds for one input, on a machine under load.
TIMEOUT = 30
#: Share of the time for the readers in Python.
PYTHON_SHARE = 0.15


def compiler() -> tuple[list[str], dict[str, str]]:
    """Cargo with the unstable flags that cargo-fuzz needs: nightly, or stable that allows them."""
    rustup = shutil.which("rustup")
    toolchains = subprocess.run([rustup, "toolchain", "list"], capture_output=True, text=True,
                                check=False).stdout if rustup else ""  # fmt: skip
    if "nightly" in toolchains:
        return ["cargo", "+nightly"], dict(os.environ)
    return ["cargo"], {**os.environ, "RUSTC_BOOTSTRAP": "1"}


def rust(targets: list[str], seconds: float) -> int:
    """Build the targets and run each for its share of the time; returns how many failed."""
    cargo, environment = compiler()
    # cargo-fuzz takes no --locked, so check the lock file first.
    command = [*cargo, "metadata", "--locked", "--format-version", "1"]
    locked = subprocess.run(
        command, cwd=FUZZ, env=environment, stdout=subprocess.DEVNULL, check=False
    )
    if locked.returncode != 0:
        return len(targets)
    build = subprocess.run([*cargo, "fuzz", "build", "--target", TRIPLE], cwd=FUZZ.parent,
                           env=environment, check=False)  # fmt: skip
    if build.returncode != 0:
        print("fuzz: the targets cannot be built", file=sys.stderr)
        return len(targets)
    failed = 0
    weights = {target: _readers(target) for target in targets}
    for target in targets:
        part = seconds * weights[target] / sum(weights.values())
        own = FUZZ / "target" / "corpus" / target
        artifacts = FUZZ / "artifacts" / target
        for folder in (own, artifacts):
            folder.mkdir(parents=True, exist_ok=True)
        command = [str(FUZZ / "target" / TRIPLE / "release" / target), str(own)]
        command += [str(FUZZ / "corpus" / target), f"-artifact_prefix={artifacts}/"]
        command += [f"-max_total_time={max(1, int(part))}", f"-timeout={TIMEOUT}"]
        command += [*MEMORY_LIMITS, "-print_final_stats=1"]
        run = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        runs = re.search(r"number_of_executed_units: (\d+)", run.stderr)
        outcome = f"{int(runs[1]):,} inputs" if runs else "no count of inputs"
        if run.returncode != 0:
            failed += 1
            print(run.stderr[-3000:], file=sys.stderr)
            outcome += f"; BROKEN, exit code {run.returncode}: see {artifacts}"
        print(f"{target}: {outcome}", flush=True)
    return failed


def _readers(target: str) -> int:
    """The number of readers that a target tries: the folders of its corpus, or one."""
    return max(1, sum(one.is_dir() for one in (FUZZ / "corpus" / target).iterdir()))


def main() -> int:
    """Run everything; exit code 1 if a reader broke."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="total time without building")
    parser.add_argument("targets", nargs="*", help="Rust targets alone [all, and Python's]")
    arguments = parser.parse_args()
    bins = tomllib.loads((FUZZ / "Cargo.toml").read_text(encoding="utf-8"))["bin"]
    known = [entry["name"] for entry in bins]
    if unknown := set(arguments.targets) - set(known):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    share = 0.0 if arguments.targets else PYTHON_SHARE
    if shutil.which("cargo-fuzz") is None:
        print("fuzz: no cargo-fuzz, so only the readers in Python; `cargo install cargo-fuzz`",
              file=sys.stderr)  # fmt: skip
        failed, share = 0, 1.0
    else:
        failed = rust(arguments.targets or known, arguments.seconds * (1 - share))
    if share:
        script = FUZZ.parent / "tests" / "hostile.py"
        command = [sys.executable, str(script), "--seconds", str(arguments.seconds * share)]
        failed += subprocess.run(command, check=False).returncode
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
