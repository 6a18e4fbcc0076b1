"""The demonstration: captures a server and a graph program, and answers three questions of each.

Run by ``make demo``. The programs are ``examples/redis-benchmark.toml`` and ``examples/graph.c``.
If neither can be captured here, bundled captures take their place. All output goes to ``out/demo``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from nearfar import workload
from nearfar.errors import NearfarError
from nearfar.output import write_whole

ROOT = Path(__file__).resolve().parent.parent
#: Paths are relative to ROOT, so that outputs contain no folder of this machine.
EXAMPLES = Path("examples")
OUT = Path("out/demo")
BUNDLED = Path("tests/data/captures")
#: Swap devices, of the default machine.
STORAGES = "zram,nvme"


def traces() -> list[Path]:
    """Capture the programs; without any capture, return the bundled ones."""
    from nearfar.capture import probe

    wanted = [one for one in probe() if "x86_64" in one.name or "plugin" in one.name]
    found = [_server(), _graph()] if all(one.available for one in wanted) else []
    made = [trace for trace in found if trace is not None]
    if not made:
        print("Nothing can be captured here: going on with small captures that come with nearfar.")
        return [BUNDLED / "redis.trace", BUNDLED / "graph.trace"]
    return made


def _server() -> Path | None:
    """Redis under the load of ``redis-benchmark``."""
    file = EXAMPLES / "redis-benchmark.toml"
    load = workload.load(str(file))
    if load.missing():
        print(f"Redis is not installed, left out; apt-get install {' '.join(load.packages)}")
        return None
    _say("workload", "capture", file, "-o", OUT)
    return OUT / workload.capture(load, OUT, force=True).trace.name


def _graph() -> Path | None:
    """Breadth-first search and PageRank, in C."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        print("There is no C compiler, graph.c is left out; apt-get install gcc libc6-dev")
        return None
    program, trace = OUT / "graph", OUT / "graph.trace"
    source = EXAMPLES / "graph.c"
    print(f"\n$ cc -O2 -g -o {program} {source}", flush=True)
    subprocess.run([compiler, "-O2", "-g", "-o", program, source], check=True)
    _say("capture", "-o", trace, "--", program)
    nearfar = [sys.executable, "-P", "-m", "nearfar", "capture", "--force"]
    subprocess.run([*nearfar, "-o", trace, "--", program], check=True)
    return trace


def _say(*words: str | Path) -> None:
    """Print the command line of the next step."""
    print(f"\n$ nearfar {' '.join(map(str, words))}", flush=True)


def main() -> int:
    """Run everything, and print the answers and the pages last."""
    from nearfar.info import info
    from nearfar.paging import paging
    from nearfar.paging_answers import answers

    os.chdir(ROOT)
    OUT.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    for trace in traces():
        study = OUT / f"{trace.stem}.run"
        _say("paging", trace, "--storage", STORAGES, "-o", study)
        result = paging(trace, storage=STORAGES)
        result.write(study, force=True)
        found = info(trace)
        lines += ["", trace.stem, *(f"  {line}" for line in answers(result))]
        for kind, page in (("paging", result.html(found["heatmap"])), ("info", found.html())):
            path = OUT / f"{trace.stem}-{kind}.html"
            write_whole(path, page, force=True)
            lines.append(f"  Page: {path}")
    print("\n".join(lines))
    print("\nOpen the pages in a browser. Where the page faults come from, by function and line:")
    print(f"  nearfar explain {study} --by-function")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NearfarError as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except subprocess.CalledProcessError as error:
        # The command itself has printed the error.
        sys.exit(error.returncode)
