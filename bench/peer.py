"""Times libCacheSim: `peer.py FILE POLICY:FRAMES ...` prints a JSON list with an object per run.

Uses its fastest way from Python: page references as a mapped oracleGeneral file, and the loop in C
(`process_trace`). The time excludes the creation of the cache.
"""

from __future__ import annotations

import json
import sys
import time

import libcachesim

POLICIES = {
    # init_freq=1 sets the accessed bit when a page is loaded, as hardware and nearfar do.
    "clock": lambda frames, power: libcachesim.Clock(frames, hashpower=power, init_freq=1),
    "lru": lambda frames, power: libcachesim.LRU(frames, hashpower=power),
}


def main(path: str, *runs: str) -> None:
    """Run each configuration over the file."""
    found = []
    for text in runs:
        policy, frames = text.split(":")
        # The hash table fits the cache: libCacheSim's default of 2^24 slots is slower here.
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
