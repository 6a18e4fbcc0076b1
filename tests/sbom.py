"""What a wheel is built from, as a CycloneDX bill of materials.

Every crate in the engine and in the QEMU plugin, with version, licence and checksum. The same
sources give the same bytes::

    python tests/sbom.py build/nearfar.cyclonedx.json
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
#: Manifest and crate of what is in a wheel.
BUILT: Final = {
    "Cargo.toml": "nearfar-python",
    "capture/qemu-plugin/Cargo.toml": "nearfar-qemu-plugin",
}


def crates(manifest: str, crate: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Components by name and version: the crate and what it is linked with."""
    lock = (ROOT / manifest).with_name("Cargo.lock")
    locked = tomllib.loads(lock.read_text(encoding="utf-8"))["package"]
    sums = {(one["name"], one["version"]): one.get("checksum") for one in locked}
    words = ["cargo", "tree", "--locked", "--manifest-path", str(ROOT / manifest), "-p", crate]
    words += ["--edges", "normal", "--prefix", "none", "--no-dedupe", "--format", "{p}|{l}"]
    lines = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    found = {}
    for line in filter(None, lines):
        package, _, licence = line.partition("|")
        name, version = package.split()[:2]
        key = (name, version.removeprefix("v"))
        component = {
            "type": "library",
            "bom-ref": f"pkg:cargo/{key[0]}@{key[1]}",
            "name": key[0],
            "version": key[1],
            "purl": f"pkg:cargo/{key[0]}@{key[1]}",
            "licenses": [{"expression": licence.replace("/", " OR ")}],
        }
        if sums[key]:
            component["hashes"] = [{"alg": "SHA-256", "content": sums[key]}]
        found[key] = component
    return found


def bill() -> dict[str, Any]:
    """The whole of it."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for manifest, crate in BUILT.items():
        found |= crates(manifest, crate)
    version = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": "nearfar",
                "name": "nearfar",
                "version": version["workspace"]["package"]["version"],
                "purl": f"pkg:pypi/nearfar@{version['workspace']['package']['version']}",
            }
        },
        "components": [found[key] for key in sorted(found)],
    }


def main() -> int:
    """Write it."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    to = Path(sys.argv[1])
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(json.dumps(bill(), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
