"""libCacheSim over page references: `peer.py FILE POLICY:FRAMES ...` prints JSON, a run each.

Its fastest way from Python: the page references as a mapped oracleGeneral file, the loop in C
(`process_trace`). The cache is made before the clock starts.
"""

from __future__ import annotations

import json
import sys
import time

import libcachesim

POLICIES = {
    # The accessed bit is set when a page is loaded, as hardware does and nearfar by default.
    "clock": lambda frames, power: libcachesim.Clock(frames, hashpower=power, init_freq=1),
    "lru": lambda frames, power: libcachesim.LRU(frames, hashpower=power),
}


def main(path: str, *runs: str) -> None:
    """Run each configuration over the file."""
    found = []
    for text in runs:
        policy, frames = text.split(":")
        # A table as large as the cache needs: its default of 2^24 slots is slower here.
        cache = POLICIES[policy](int(frames), max(8, int(frames).bit_length() + 1))
        settings = libcachesim.ReaderInitParam(ignore_obj_size=True)
        reader = libcachesim.TraceReader(path, libcachesim.TraceType.ORACLE_GENERAL_TRACE, settings)
        requests = reader.get_num_of_req()
        began = time.perf_counter()
        miss_ratio, _ = cache.process_trace(reader)
        seconds = time.perf_counter() - began
        misses = round(miss_ratio * requests)
        found.append({"run": text, "requests": requests, "misses": misses, "seconds": seconds})
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
