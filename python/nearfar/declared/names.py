"""Names to choose from. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from typing import Final

REPLACEMENT: Final = (
    ("clock", "second chance, one hand: page-size advice (000), TLB and fault models (001)"),
    ("lru", "exact least recently used"),
    (
        "linux",
        "Linux's active and inactive lists, of files and of anonymous pages, with refault activation",
    ),
    ("mglru", "Linux's multi-generational LRU (lru_gen), as in 6.12 on x86-64"),
)

MACHINE: Final = (
    (
        "cxl",
        "A server with DDR5 and CXL memory: platform D (AMD Genoa, ASIC-based CXL memory) of the NOMAD paper",
    ),
    ("cxl-2socket", "A two-socket DDR5 server with a CXL memory expander on each socket"),
    (
        "cxl-a",
        "Two nodes of 16 GiB: platform A (4th-generation Xeon, FPGA-based CXL memory) of the NOMAD paper",
    ),
    (
        "cxl-b",
        "Two nodes of 16 GiB: platform B (pre-production Xeon, FPGA-based CXL memory) of the NOMAD paper",
    ),
    (
        "cxl-d",
        "Two nodes of 16 GiB: platform D (AMD Genoa, ASIC-based CXL memory) of the NOMAD paper",
    ),
    (
        "desktop-hdd",
        "A desktop that pages to a 7200 rpm disk: the disk case of page-size advice (000) and TLB and fault models (001)",
    ),
    (
        "desktop-nvm",
        "A desktop that pages to non-volatile memory of 1, 10 or 100 times DRAM's access time: page-size advice (000) and TLB and fault models (001)",
    ),
    ("laptop", "A laptop with one socket and 16 GiB of dual-channel DDR4 memory"),
    ("nvme", "A desktop that pages to a consumer flash SSD behind NVMe (Samsung 980, 1 TB)"),
    (
        "optane-4node",
        "A two-socket Cascade Lake server in four clusters, each 96 GiB of DRAM and three 256 GB Optane modules",
    ),
    (
        "optane-ssd",
        "A Cascade Lake server that pages to an Optane SSD (P4800X) or to Optane persistent memory",
    ),
    (
        "pmem-c",
        "Two nodes of 16 GiB: platform C (Xeon with Optane persistent memory as the slow tier) of the NOMAD paper",
    ),
    ("umd", "One in-order core and a 2 GB DRAM-interface SSD: the machine of UMD (002)"),
    ("zen4-vm", "Measured on AMD EPYC, 2 cpus, 23.5 GiB, Linux 6.18.44-fc-v595, 2026-11-23"),
    (
        "zram",
        "A virtual machine on a Zen 4 server that pages to zram: half of the bytes of a page random",
    ),
)

KIND: Final = (
    ("load", "read by the program"),
    ("store", "written by the program"),
    ("fetch", "instructions fetched"),
    ("kernel-load", "read by the kernel for it"),
    ("kernel-store", "written by the kernel for it"),
)

FILTER: Final = (
    ("none", "every reference of the program, before any CPU cache"),
    ("cache", "those that miss the machine's caches"),
    ("cache-write-backs", "those, and the lines that the caches write back"),
)

EPF: Final = (
    ("none", "the core waits for the device"),
    ("all", "every embedded page fault goes to the kernel"),
    (
        "smart",
        "those predicted to take the stated time or longer go to the kernel, as in smart:50us",
    ),
)

ATOMIC: Final = (
    ("none", "nothing: every fault that is passed on sleeps"),
    ("kernel", "what the kernel reads and writes for the program: its copies"),
    ("load", "read by the program"),
    ("store", "written by the program"),
    ("fetch", "instructions fetched"),
    ("kernel-load", "read by the kernel for it"),
    ("kernel-store", "written by the kernel for it"),
)

MODE: Final = (
    ("memory-mode", "DRAM caches persistent memory, whose size is all there is"),
    ("kmem-dax", "far memory as nodes without cores, for programs only; --nodes binds to them"),
    ("alius", "DRAM near and far first, then far memory interleaved, own socket first (aliusM)"),
    ("local", "the core's own node, then in fallback order; persistent memory stays a device"),
    ("interleave", "the nodes in turn, a page each"),
    ("weighted-interleave", "the nodes in turn, pages in proportion to bandwidth or --weights"),
    ("preferred-many", "the nodes of --nodes, near before far, then all others"),
)

WORKLOAD: Final = (
    ("nomad-small", "NOMAD's micro-benchmark: 10 GiB of 20 used, 18 M copies of a page a round"),
    ("nomad-medium", "the same: 13.5 GiB of 27 used, 30 M copies a round"),
    ("nomad-large", "the same: all of 27 GiB used, 40 M copies a round"),
    ("pointer-chase", "13.5 GiB of 27: one load a page, all pages in one random cycle"),
)

POLICY: Final = (
    ("none", "pages stay where first touched"),
    ("autonuma", "NUMA balancing, memory tiering mode of Linux 6.3: hot by hint-fault latency"),
    ("tpp", "Transparent Page Placement: synchronous promotion on hint faults, kswapd demotes"),
    ("memtis", "Memtis: sampled access histogram, periodic migration, huge-page split"),
    ("nomad", "NOMAD: transactional promotion, a shadow kept for every promoted page"),
    ("ssp", "Selective Shadow Paging: NOMAD, a shadow only for pages that stayed clean last time"),
    ("oracle", "clairvoyant placement at the start of each phase, free of charge: a bound"),
)

GENERATOR: Final = (
    ("zipf", "page r in proportion to r^-alpha, hot pages side by side"),
    ("scrambled-zipf", "zipf with the hot pages scattered"),
    ("uniform", "every word equally often"),
    ("sequential", "word after word through all pages, round and round"),
    ("strided", "every --stride bytes through all pages, round and round"),
    ("pointer-chase", "one node a page, linked in one random cycle"),
    ("mix", "several generators by weight (--mix) or in phases (--phase)"),
)

IMPORT_FORMAT: Final = (
    (
        "lackey",
        "text of valgrind --tool=lackey --trace-mem=yes; holds fetches, loads and stores with sizes, 1 instruction a fetch",
    ),
    (
        "dinero",
        "Dinero IV text, classic `0 1fff` or extended `r 1fff 8`; holds fetches, loads and stores, sizes if extended, 1 instruction a fetch",
    ),
    (
        "champsim",
        "ChampSim, 64-byte binary instructions; holds fetches, loads and stores, 1 instruction a fetch",
    ),
    (
        "champsim-cloudsuite",
        "ChampSim for CloudSuite, 96-byte binary instructions; holds fetches, loads and stores, threads by address space, 1 instruction a fetch",
    ),
    (
        "oracle-general",
        "libCacheSim's oracleGeneral, 24-byte binary requests to objects; holds loads of whole objects",
    ),
    ("pinatrace", "text of Intel Pin's pinatrace, `ip: R address`; holds loads and stores"),
    (
        "drmemtrace-text",
        "text of DynamoRIO's drmemtrace view tool; holds fetches, loads and stores with sizes and threads, 1 instruction a fetch",
    ),
    (
        "perf-script",
        "text of perf script -F pid,tid,time,event,ip,addr (sampled); holds loads and stores with threads",
    ),
    (
        "csv",
        "CSV with named columns: addr and any of kind, size, thread or tid, instr; holds every kind of reference, and what else it has columns for",
    ),
)

EXPORT_FORMAT: Final = (
    (
        "oracle-general",
        "libCacheSim's oracleGeneral, a request a page touched; loses kinds, offsets, sizes, threads and instructions",
    ),
    (
        "dinero",
        "Dinero IV extended text, `r 1fff 8`; loses threads, instructions, and which references were the kernel's",
    ),
    ("csv", "CSV with columns addr, kind, size, thread, instr; loses nothing"),
)

FAR: Final = (
    ("zstd", "a pool in memory, compressed by zstd"),
    ("lz4", "a pool in memory, compressed by LZ4"),
    ("shm", "shared memory, not compressed"),
    ("file", "a file, read and written without the page cache, many pages at a time"),
    (
        "umd",
        "the DRAM-interface SSD of a machine, its flash a file in the folder for temporary files",
    ),
    ("node", "a memory node, whose pages the program refers to where they are"),
)
