"""A wheel, installed into an environment of its own and used from another folder (``make wheel``)::

python tests/wheel.py target/wheels/nearfar-*.whl
"""

from __future__ import annotations

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
#: What a wheel must bring beside Python files.
PARTS = ("nearfar/_engine.abi3.so", "nearfar/_plugin/libnearfar_qemu_plugin.so", "nearfar/py.typed")


def check(wheel: Path, scratch: Path) -> None:
    """Install and use it; any failure ends the program."""
    names = zipfile.ZipFile(wheel).namelist()
    for part in PARTS:
        if part not in names:
            raise SystemExit(f"{wheel.name}: {part} is not in it")
    if "-abi3-" not in wheel.name:
        raise SystemExit(f"{wheel.name}: is for one version of Python only")
    venv.create(scratch / "env", with_pip=True)
    python = scratch / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
    elsewhere = scratch / "elsewhere"
    elsewhere.mkdir()
    # Nothing of the sources may help.
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


def main() -> int:
    """Check the newest of the wheels that are named."""
    if not sys.argv[1:]:
        raise SystemExit(__doc__)
    wheel = max((Path(name).resolve() for name in sys.argv[1:]), key=lambda p: p.stat().st_mtime)
    with tempfile.TemporaryDirectory(prefix="nearfar-wheel-") as scratch:
        check(wheel, Path(scratch))
    return 0


if __name__ == "__main__":
    sys.exit(main())
