"""Install a wheel into a new environment and use it from another folder (``make wheel``); or build
it again elsewhere and compare (``make same-wheel``)::

    python tests/wheel.py [--again] target/wheels/nearfar-*.whl
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Files that a wheel must contain beside Python files.
PLUGIN = "nearfar/_plugin/libnearfar_qemu_plugin.so"
LIVE = "nearfar/_live/libnearfar_preload.so"
PARTS = ("nearfar/_engine.abi3.so", PLUGIN, LIVE, "nearfar/py.typed")


def check(wheel: Path, scratch: Path) -> None:
    """Install and use the wheel; any failure exits."""
    names = zipfile.ZipFile(wheel).namelist()
    for part in PARTS:
        if part not in names:
            raise SystemExit(f"{wheel.name}: {part} is not in it")
    if "-abi3-" not in wheel.name:
        raise SystemExit(f"{wheel.name}: is for one version of Python only")
    if "-manylinux_" not in wheel.name:
        raise SystemExit(f"{wheel.name}: is for this machine's system only")
    venv.create(scratch / "env", with_pip=True)
    python = scratch / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
    elsewhere = scratch / "elsewhere"
    elsewhere.mkdir()
    # No variable may point to the sources.
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    clean |= {"PATH": f"{python.parent}:{clean['PATH']}", "LC_ALL": "C"}

    def nearfar(*words: str) -> str:
        done = subprocess.run([python.parent / "nearfar", *words], cwd=elsewhere, env=clean,
                              capture_output=True, text=True, check=False)  # fmt: skip
        if done.returncode != 0:
            raise SystemExit(f"nearfar {' '.join(words)}: {done.returncode}: {done.stderr}")
        return done.stdout

    print(nearfar("--version").strip())
    found = json.loads(nearfar("doctor", "--format", "json"))
    print(f"doctor: {json.dumps(found)[:200]} ...")
    trace = ROOT / "tests/data/captures/pdf.trace"
    rows = json.loads(nearfar("paging", str(trace), "--page-sizes", "4K,8K", "--format", "json"))
    print(f"paging: {len(rows['rows'])} rows")
    if shutil.which("qemu-x86_64"):
        nearfar("capture", "-o", "true.trace", "--", "/bin/true")
        info = json.loads((elsewhere / "true.trace" / "trace.json").read_text(encoding="utf-8"))
        if not info["complete"] or info["records"] == 0:
            raise SystemExit(f"capture: {info}")
        print(f"capture: {info['records']} records")
        json.loads(nearfar("paging", "true.trace", "--format", "json"))
    else:
        print("capture: not tried, there is no qemu-x86_64")
    nearfar("reproduce", "numa", "--format", "json")
    print(f"{wheel.name}: installs and runs")


def again(wheel: Path, scratch: Path) -> None:
    """Build the wheel from a copy of the sources elsewhere; its files must be the same."""
    copy = scratch / "other"
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, files.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    flags = {
        name: os.environ[name].replace(str(ROOT), str(copy)) for name in ("RUSTFLAGS", "CFLAGS")
    }
    environment = {**os.environ, **flags}

    def run(*words: str) -> None:
        subprocess.run(words, cwd=copy, env=environment, check=True)

    run("make", "--silent", f"python/{PLUGIN}")
    maturin = str(Path(sys.executable).with_name("maturin"))
    run(maturin, "build", "--release", "--locked", "--quiet", "--out", "out")
    (other,) = (copy / "out").iterdir()
    digests = [hashlib.sha256(one.read_bytes()).hexdigest() for one in (wheel, other)]
    if digests[0] != digests[1]:
        first, second = (
            {name: opened.read(name) for name in opened.namelist()}
            for opened in map(zipfile.ZipFile, (wheel, other))
        )
        differ = sorted(n for n in first | second if first.get(n) != second.get(n))
        raise SystemExit(f"{wheel.name}: another build differs in {differ}")
    print(f"{wheel.name}: two builds, sha256 {digests[0]}")


def main() -> int:
    """Check the newest of the wheels that are named."""
    todo, names = (again, sys.argv[2:]) if "--again" in sys.argv else (check, sys.argv[1:])
    if not names:
        raise SystemExit(__doc__)
    wheel = max((Path(name).resolve() for name in names), key=lambda p: p.stat().st_mtime)
    with tempfile.TemporaryDirectory(prefix="nearfar-wheel-") as scratch:
        todo(wheel, Path(scratch))
    return 0


if __name__ == "__main__":
    sys.exit(main())
