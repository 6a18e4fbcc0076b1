# Types of what nearfar.declared holds. Made by `make declared`; not to be edited.

from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias, TypedDict

from nearfar.schema import MachineLike, Option, PolicyLike, Rows

_Names: TypeAlias = tuple[tuple[str, str], ...]

def module_name(command: str) -> str: ...
def table_names(table: str) -> tuple[str, str]: ...

class names:
    REPLACEMENT: _Names
    MACHINE: _Names
    KIND: _Names
    FILTER: _Names
    EPF: _Names
    ATOMIC: _Names
    MODE: _Names
    WORKLOAD: _Names
    POLICY: _Names
    GENERATOR: _Names
    IMPORT_FORMAT: _Names
    EXPORT_FORMAT: _Names
    FAR: _Names

class paging:
    class Options(TypedDict, total=False):
        page_sizes: str | int | Sequence[str | int]
        memory: str | int | Sequence[str | int]
        tlb: str | int
        replacement: str
        swappiness: int
        statistics_every: int
        machine: MachineLike | Sequence[MachineLike] | None
        storage: str | Sequence[str] | None
        kinds: str | Sequence[str] | None
        filter: str
        lifetimes: str
        page_cache: str
        write_back: bool
        view: str | None
        nested: str | int | None
        slowdown: str | float
        whole: bool
        threads: int
        max_memory: str | int

    OPTIONS: Final[tuple[Option, ...]]
    class Row(TypedDict):
        page_bytes: int
        memory_bytes: int
        memory_fraction: float | None
        frames: int
        references: int
        tlb_misses: int
        tlb_miss_rate: float
        tlb_second_hits: int
        faults: int
        fault_rate: float
        fault_rate_error: float | None
        pages: int
        dirty_evictions: int
        storage: str
        translation_ns: float
        data_ns: float
        total_ns: float
        zero_fills: int
        file_reads: int
        swap_ins: int
        file_rereads: int
        swap_outs: int
        write_backs: int
        cpu_ns: float | None
        tlb_ns: float | None
        walk_ns: float | None
        cache_ns: float | None
        dram_ns: float | None
        fault_ns: float | None
        io_ns: float | None
        resident_bytes: int | None
        read_first_share: float | None
        machine: str
        fault_rate_low: float | None
        fault_rate_high: float | None
        tlb_miss_rate_low: float | None
        tlb_miss_rate_high: float | None
        total_ns_low: float | None
        total_ns_high: float | None
        start_ns: float | None

    ROWS: Final[Rows]

class thp:
    class Options(TypedDict, total=False):
        policy: str | Sequence[str]
        machine: MachineLike | None
        nested: str | int | None
        linux: str
        free_huge: str | int | None
        memory: str | int | None
        storage: str | None
        scan_sleep: str | int
        pages_to_scan: int
        max_ptes_none: int
        max_ptes_shared: int
        max_ptes_swap: int
        by_area: bool
        points: int
        threads: int

    OPTIONS: Final[tuple[Option, ...]]
    class AreasRow(TypedDict):
        policy: str
        area: str
        wait_ns: float
        fault_ns: float
        start_ns: float
        mean_bytes: float
        large_bytes: float
        saved_ns: float
        saved_share: float
        added_bytes: float
        advice: str

    AREAS_ROWS: Final[Rows]
    class Row(TypedDict):
        policy: str
        references: int
        total_ns: float
        cpu_ns: float
        tlb_ns: float
        walk_ns: float
        cache_ns: float
        dram_ns: float
        fault_ns: float
        start_ns: float
        io_ns: float
        peak_bytes: int
        mean_bytes: float
        held_bytes: int
        huge_share: float
        walks: int
        faults: int
        huge_faults: int
        fallbacks: int
        compactions: int
        merges: int
        splits: int
        stalls: int
        longest_ns: float
        memory_bytes: int | None
        shrunk: int
        swap_ins: int
        swap_outs: int

    ROWS: Final[Rows]
    class PointsRow(TypedDict):
        policy: str
        point: int
        ns: float
        mapped_bytes: int
        huge_bytes: int

    POINTS_ROWS: Final[Rows]

class ssd:
    class Options(TypedDict, total=False):
        machine: MachineLike
        dram: str | Sequence[str | int]
        epf: str | Sequence[str]
        disk: str | None
        precondition: str | Sequence[float]
        overwrite: str
        sleep_granularity: str | int | None
        atomic: str
        first_touch: str
        file_data: str
        l2p: str
        bus: str
        window: int
        seed: int
        threads: int

    OPTIONS: Final[tuple[Option, ...]]
    class Row(TypedDict):
        epf: str
        dram_bytes: int
        seconds: float
        references: int
        instructions: int
        accesses: int
        tlb_misses: int
        embedded_faults: int
        embedded_fault_rate: float
        joined_faults: int
        passed_to_kernel: int
        passed_share: float
        slept: int
        overruns: int
        page_faults: int
        disk_reads: int
        cpu_busy: float
        cpu_stall: float
        cpu_switch: float
        cpu_idle: float
        services: int
        predicted_us_mean: float
        actual_us_mean: float
        prediction_error_us_mean: float
        prediction_error_us_max: float
        flash_reads: int
        flash_programs: int
        gc_collections: int
        gc_moved: int
        write_amplification: float
        evictions: int
        dirty_evictions: int
        erases_least: int
        erases_most: int
        die_busy: float
        cpu_walk: float
        from_flash: int
        faults_while_filling: int
        late_services: int
        late_die: float
        late_channel: float
        late_erase: float

    ROWS: Final[Rows]

class numa_alloc:
    class Options(TypedDict, total=False):
        machine: MachineLike
        mode: str | Sequence[str] | None
        allocator: str
        nodes: str | Sequence[int] | None
        weights: str | Sequence[int] | None
        from_: int | None
        threads: int
        clean_cache: bool
        all_modules: bool

    OPTIONS: Final[tuple[Option, ...]]
    class Row(TypedDict):
        mode: str
        size_bytes: int
        possible: bool
        why_not: str | None
        note: str | None
        seconds: float | None
        gb_per_second: float | None
        capacity_bytes: int
        local_dram_bytes: int
        remote_dram_bytes: int
        local_far_bytes: int
        remote_far_bytes: int
        extents: int

    ROWS: Final[Rows]
    class LandedRow(TypedDict):
        node: int
        label: str
        kind: str
        local: bool
        bytes: int
        tables_bytes: int
        free_bytes: int
        page_ns: float
        bound_by: str

    LANDED_ROWS: Final[Rows]

class numa_run:
    class Options(TypedDict, total=False):
        machine: MachineLike
        mode: str | Sequence[str] | None
        pattern: str
        writes: str | float
        nodes: str | Sequence[int] | None
        weights: str | Sequence[int] | None
        from_: int | None
        threads: int
        shuffle: bool
        seed: int

    OPTIONS: Final[tuple[Option, ...]]
    class Row(TypedDict):
        mode: str
        footprint_bytes: int
        possible: bool
        accesses: float
        store_share: float
        local_dram_share: float
        remote_dram_share: float
        local_far_share: float
        remote_far_share: float
        cache_hit_rate: float | None
        latency_ns: float | None
        gb_per_second: float | None
        bound_by: str | None

    ROWS: Final[Rows]
    class NodesRow(TypedDict):
        node: int
        label: str
        read_bytes: float
        written_bytes: float
        busy: float

    NODES_ROWS: Final[Rows]

class numa_pair:
    class Options(TypedDict, total=False):
        machine: MachineLike
        overlap: str | Sequence[str | float]
        cache: str | int | None
        from_: int | None
        seed: int

    OPTIONS: Final[tuple[Option, ...]]
    class Row(TypedDict):
        shuffled: bool
        overlap: float | None
        alone_hit_rate_a: float
        alone_hit_rate_b: float
        together_hit_rate_a: float
        together_hit_rate_b: float
        alone_ns_a: float
        alone_ns_b: float
        together_ns_a: float
        together_ns_b: float
        slowdown_a: float
        slowdown_b: float

    ROWS: Final[Rows]

class numa_plan:
    class Options(TypedDict, total=False):
        working_set: str | int | None
        bandwidth: float
        machine: MachineLike
        pattern: str
        writes: str | float
        from_: int | None
        threads: int

    OPTIONS: Final[tuple[Option, ...]]
    Row = TypedDict(
        "Row",
        {
            "vm": str,
            "mode": str,
            "from": int,
            "nodes": list[int],
            "weights": list[int],
            "dram_nodes": list[int],
            "far_nodes": list[int],
            "possible": bool,
            "why_not": str | None,
            "capacity_bytes": int,
            "clear_seconds": float | None,
            "latency_ns": float | None,
            "gb_per_second": float | None,
            "bound_by": str | None,
            "chosen": bool,
            "enough": bool,
            "latency_gain": float | None,
            "bandwidth_gain": float | None,
        },
    )
    ROWS: Final[Rows]

class tiering:
    class Options(TypedDict, total=False):
        workload: str | Path | Sequence[str | Path]
        share: str | None
        policy: PolicyLike | Sequence[PolicyLike]
        machine: MachineLike
        mix: str
        pattern: str
        placement: str
        rounds: int | None
        scale: str | float
        seeds: int | Sequence[int]
        seed: int
        fast: str | int | Sequence[str | int] | None
        slow: str | int | None
        rss: str | int | None
        wss: str | int | None
        huge: bool
        cost_scale: float
        filter: str
        lifetimes: str
        copies: int
        slowdown: str | float
        points: int
        threads: int

    OPTIONS: Final[tuple[Option, ...]]
    class Row(TypedDict):
        policy: str
        workload: str
        mix: str
        seed: int
        phase: str
        accesses: int
        seconds: float
        bandwidth_mb_s: float
        mean_latency_ns: float
        fast_hit_ratio: float
        fast_allocated: int
        fast_freed: int
        promotions: int
        demotions: int
        demotions_remapped: int
        demotions_copied: int
        shadow_copies: int
        shadow_faults: int
        shadow_reclaims: int
        aborts: int
        hint_faults: int
        write_faults: int
        bytes_migrated: int
        shadow_bytes_peak: int
        fast_pages: int
        fast_node_bytes: int
        fast_fraction: float | None

    ROWS: Final[Rows]
    class SeriesRow(TypedDict):
        policy: str
        workload: str
        mix: str
        seed: int
        phase: str
        progress: float
        seconds: float
        bandwidth_mb_s: float
        fast_hit_ratio: float
        shadow_copies: int
        promotions: int
        demotions: int
        fast_bytes: int
        slow_bytes: int
        shadow_bytes: int
        shadow_faults: int
        shadow_reclaims: int
        demotions_remapped: int
        fast_node_bytes: int
        fast_fraction: float | None

    SERIES_ROWS: Final[Rows]

class generate:
    class Options(TypedDict, total=False):
        page_bytes: str | int
        seed: int
        write_ratio: float
        threads: int
        alpha: float | None
        stride: str | int | None
        mix: str | None
        phase: int | None

    OPTIONS: Final[tuple[Option, ...]]

class import_:
    class Options(TypedDict, total=False):
        format: str | None
        skip_bad: int
        max_refs: int | None
        object_bytes: str | int | None

    OPTIONS: Final[tuple[Option, ...]]

class export:
    class Options(TypedDict, total=False):
        kinds: str | Sequence[str] | None
        max_refs: int | None
        page_bytes: str | int | None
        filter: str
        machine: MachineLike

    OPTIONS: Final[tuple[Option, ...]]

class info:
    class Options(TypedDict, total=False):
        reuse: bool
        verify: bool
        filter: str
        machine: MachineLike

    OPTIONS: Final[tuple[Option, ...]]
    class Row(TypedDict):
        section: str
        item: str
        quantity: str
        value: str

    ROWS: Final[Rows]
    class WorkingSetRow(TypedDict):
        record: int
        bytes: int
        footprint_bytes: int
        resident_bytes: int | None

    WORKING_SET_ROWS: Final[Rows]
    class RegionsRow(TypedDict):
        name: str
        addr_low: int | None
        addr_high: int | None
        pages: int
        records: int
        loads: int
        stores: int
        fetches: int
        kernel_loads: int
        kernel_stores: int
        kernel_fetches: int

    REGIONS_ROWS: Final[Rows]
    class HotRow(TypedDict):
        name: str
        addr_low: int
        addr_high: int
        pages: int
        records: int
        share: float
        function: str | None
        function_share: float | None

    HOT_ROWS: Final[Rows]
    class ReuseRow(TypedDict):
        distance_log2: int | None
        count: int

    REUSE_ROWS: Final[Rows]

class explain:
    class Options(TypedDict, total=False):
        page: str | int | None
        memory: str | int | None
        storage: str | None
        symbols: str | Sequence[str] | None
        by_region: bool

    OPTIONS: Final[tuple[Option, ...]]
    class Row(TypedDict):
        name: str
        addr_low: int
        addr_high: int
        references: int
        tlb_misses: int
        tlb_second_hits: int
        faults: int
        first_touches: int
        zero_fills: int
        file_reads: int
        swap_ins: int
        file_rereads: int
        mapped: int
        ns: float
        share: float

    ROWS: Final[Rows]
    class TermsRow(TypedDict):
        term: str
        part: str
        formula: str | None
        rate: float | None
        each_ns: float | None
        ns: float
        share: float
        kernel_share: float | None
        usual_ns: float | None
        saved_ns: float | None
        gain: float | None

    TERMS_ROWS: Final[Rows]
    class SitesRow(TypedDict):
        name: str
        addr: int | None
        references: int
        tlb_misses: int
        tlb_second_hits: int
        faults: int
        first_touches: int
        zero_fills: int
        file_reads: int
        swap_ins: int
        file_rereads: int
        mapped: int
        ns: float
        share: float

    SITES_ROWS: Final[Rows]
    class FunctionsRow(TypedDict):
        program: str
        library: str
        function: str
        file: str | None
        line: int | None
        references: int
        tlb_misses: int
        tlb_second_hits: int
        faults: int
        first_touches: int
        zero_fills: int
        file_reads: int
        swap_ins: int
        file_rereads: int
        mapped: int
        ns: float
        share: float

    FUNCTIONS_ROWS: Final[Rows]
    class SizesRow(TypedDict):
        name: str
        page_bytes: int
        ns: float
        saved_ns: float
        saved_share: float
        resident_bytes: int
        added_bytes: int
        advised: bool

    SIZES_ROWS: Final[Rows]
    class TotalRow(TypedDict):
        references: int
        tlb_misses: int
        tlb_second_hits: int
        faults: int
        first_touches: int
        zero_fills: int
        file_reads: int
        swap_ins: int
        file_rereads: int
        mapped: int

    TOTAL_ROWS: Final[Rows]

class capture:
    class Options(TypedDict, total=False):
        fetch: bool
        resident: bool
        start_after: str | None
        start_on: str | None
        stop_after: str | int | None
        skip_refs: int
        max_refs: int | None
        arch: str
        follow_forks: bool
        sample: str | float | None
        sample_seed: int
        vm: str | None
        vm_image: str | None
        memory: str | int | None
        cpus: int | None
        kernel: str | None
        initrd: str | None
        append: str | None
        start: str | None
        by_task: bool
        boot_timeout: str | None
        packages: str | Sequence[str] | None
        put: str | Sequence[str] | None

    OPTIONS: Final[tuple[Option, ...]]

class run:
    class Options(TypedDict, total=False):
        far: str
        policy: PolicyLike
        far_size: str | int | None
        far_latency: str | int
        epf: str

    OPTIONS: Final[tuple[Option, ...]]
    class Row(TypedDict):
        command: str
        policy: str
        knobs: str
        far: str
        budget_bytes: int
        far_size_bytes: int
        far_latency_ns: int
        epf: str
        seconds: float
        user_seconds: float
        system_seconds: float
        manager_seconds: float
        exit_code: int
        why: str | None
        images: int
        fast_bytes: int
        far_pages_bytes: int
        window_bytes: int
        far_bytes: int
        alone_seconds: float | None
        alone_exit_code: int | None
        alone_bytes: int | None
        slowdown: float | None
        resident_bytes: int | None
        resident_processes: int | None
        unmanaged_bytes: int | None
        held_bytes: int | None
        faults: int
        first_touches: int
        hint_faults: int
        accessed_faults: int
        window_faults: int
        promotions: int
        shadow_copies: int
        aborts: int
        demotions_copied: int
        demotions_remapped: int
        shadow_faults: int
        watch_faults: int
        shadows_reclaimed: int
        released: int
        pinned: int
        forks: int
        over_budget: int
        far_loads: int
        far_stores: int
        fetches: int
        fetches_predicted_ns: int
        fetches_ns: int
        slept: int
        stalled: int

    ROWS: Final[Rows]
    class WatchRow(TypedDict):
        pid: int | None
        command: str
        fast_bytes: int
        fast_peak_bytes: int
        budget_bytes: int
        far_pages_bytes: int
        far_pages_peak_bytes: int
        far_bytes: int
        window_bytes: int
        faults: int
        promotions: int
        demotions: int
        hint_faults: int
        shadow_faults: int
        aborts: int
        window_faults: int
        manager_seconds: float
        faults_per_second: float | None
        promotions_per_second: float | None
        demotions_per_second: float | None
        manager_share: float | None

    WATCH_ROWS: Final[Rows]

class advise:
    class Options(TypedDict, total=False):
        memory: str | None
        machine: MachineLike | Sequence[MachineLike] | None
        storage: str | Sequence[str] | None
        arch: str
        min_gain: str | float
        sizes: str | int | Sequence[int]
        model: str
        page_sizes: str | int | Sequence[str | int]
        view: str | None
        nested: str | int | None
        page_cache: str
        slowdown: str | float | None
        whole: bool
        regions: bool
        set_memory: bool
        tlb: str | int
        replacement: str
        kinds: str | Sequence[str] | None
        filter: str
        threads: int
        max_memory: str | int

    OPTIONS: Final[tuple[Option, ...]]
    class Row(TypedDict):
        vm: str
        workload: str
        memory_fraction: float | None
        storage: str
        advised_page_bytes: int
        settable_page_bytes: int
        predicted_ns: float
        simulated_ns: float
        baseline_4k_ns: float
        gain: float
        regret: float
        best_page_bytes: int
        scenario: str
        trace: str
        machine: str
        arch: str
        memory_bytes: int
        min_gain: float
        model: str
        model_reason: str
        model_page_bytes: int
        model_regret: float | None
        baseline_4k_predicted_ns: float
        simulated_gain: float
        best_ns: float
        confidence: str | None
        left_out_error: float | None
        largest_error: float | None
        limit: str
        mechanism: str
        settable_predicted_ns: float
        settable_ns: float
        settable_price: float
        why: str
        model_gain: float
        gain_error: float | None
        bloat_bytes: int | None
        judged_page_bytes: int | None
        enough_bytes: int | None
        wanted_bytes: int | None
        thrashes_below_bytes: int | None
        guest_memory_bytes: int | None
        start_gain: float | None
        start_share: float | None

    ROWS: Final[Rows]
    class CurveRow(TypedDict):
        page_bytes: int
        predicted_ns: float
        simulated_ns: float
        translation_ns: float
        data_ns: float
        fitted: bool

    CURVE_ROWS: Final[Rows]

class apply:
    class Options(TypedDict, total=False):
        yes: bool
        compare: bool
        repeat: int
        trace: str | Path | None
        threads: int

    OPTIONS: Final[tuple[Option, ...]]
    class Row(TypedDict):
        run: int
        setting: str
        page_bytes: int
        exit_code: int
        seconds: float
        user_seconds: float
        system_seconds: float
        minor_faults: int
        major_faults: int
        peak_rss_bytes: int | None
        anon_huge_bytes: int | None
        huge_allocations: int | None
        huge_fallbacks: int | None

    ROWS: Final[Rows]
    class SummaryRow(TypedDict):
        quantity: str
        base: float | None
        page: float | None
        ratio: float | None

    SUMMARY_ROWS: Final[Rows]
    class PredictionRow(TypedDict):
        quantity: str
        base: float
        page: float
        ratio: float | None
        measured: str | None
        measured_base: float | None
        measured_page: float | None
        measured_ratio: float | None
        comparable: str
        why: str

    PREDICTION_ROWS: Final[Rows]

class devices:
    class Options(TypedDict, total=False):
        machine: MachineLike | None
        storage: str | Sequence[str]
        memory: str
        slowdown: str | float
        zram_ratio: str | float
        cost: str | None
        threads: int
        max_memory: str | int

    OPTIONS: Final[tuple[Option, ...]]
    class Row(TypedDict):
        storage: str
        access: str
        memory_bytes: int
        total_ns: float | None
        slowdown: float | None
        device_reads: int | None
        needed_bytes: int
        device_bytes: int
        cost: float | None

    ROWS: Final[Rows]

class diff:
    class Options(TypedDict, total=False):
        metric: str | Sequence[str] | None

    OPTIONS: Final[tuple[Option, ...]]
    class Row(TypedDict):
        metric: str
        pairs: int
        a: float
        b: float
        difference: float
        relative: float | None
        low: float | None
        high: float | None
        verdict: str

    ROWS: Final[Rows]

class fit:
    class Options(TypedDict, total=False):
        quantity: str | None
        predict: str | Sequence[int] | None
        weighting: str
        model: str | None

    OPTIONS: Final[tuple[Option, ...]]
    class Row(TypedDict):
        quantity: str
        memory_bytes: int | None
        memory_fraction: float | None
        page_bytes: int
        predicted: float
        measured: float | None
        verdict: str
        model: str

    ROWS: Final[Rows]
    class DecisionRow(TypedDict):
        memory_bytes: int | None
        memory_fraction: float | None
        storage: str
        page_bytes: int
        time_ns: float
        gain: float | None
        error: float | None
        measured: bool
        chosen: bool

    DECISION_ROWS: Final[Rows]

class reproduce:
    class Options(TypedDict, total=False):
        full: bool
        traces: str | Path | None
        vm: bool
        live: bool
        threads: int

    OPTIONS: Final[tuple[Option, ...]]
    class Row(TypedDict):
        paper: str
        item: str
        published: float | str
        ours: float | None
        unit: str
        tolerance: str
        holds: bool | None
        note: str
        input: str

    ROWS: Final[Rows]
    class SensitivityRow(TypedDict):
        setting: str
        why: str
        holds: int
        rows: int
        more: list[str]
        fewer: list[str]

    SENSITIVITY_ROWS: Final[Rows]

class size:
    class Options(TypedDict, total=False):
        machine: MachineLike | None
        swap: str | None
        slowdown: str | float
        ram: str | None
        whole: bool
        thp: bool
        zram_ratio: str | float
        arch: str
        nested: str | int | None
        threads: int
        max_memory: str | int

    OPTIONS: Final[tuple[Option, ...]]
    class Row(TypedDict):
        vm: str
        trace: str
        machine: str
        arch: str
        storage: str | None
        memory_bytes: int
        slowdown: float
        peak_bytes: int
        locked_bytes: int
        thrashes_below_bytes: int | None
        advised_page_bytes: int
        settable_page_bytes: int
        mechanism: str
        gain: float
        gain_error: float
        start_gain: float
        start_share: float
        bloat_bytes: int
        swapped_bytes: int
        zram_bytes: int | None
        high_bytes: int | None
        max_bytes: int | None
        no_limit: str | None
        sampled_pages: float | None
        page_why: str
        thp_why: str | None
        risk: str

    ROWS: Final[Rows]

class watch:
    class Options(TypedDict, total=False):
        for_: str | float
        budget: str | float
        method: str
        machine: MachineLike | None
        swap: str | None
        slowdown: str | float
        zram_ratio: str | float
        confirm: bool

    OPTIONS: Final[tuple[Option, ...]]
    class Row(TypedDict):
        vm: str
        method: str
        why_method: str
        machine: str
        storage: str | None
        memory_bytes: int
        low_bytes: int
        high_end_bytes: int
        slowdown: float
        faults: float
        anonymous_bytes: int
        file_bytes: int
        resident_bytes: int
        peak_bytes: int
        locked_bytes: int
        swapped_bytes: int
        zram_bytes: int | None
        high_bytes: int | None
        max_bytes: int | None
        no_limit: str | None
        tried_bytes: int | None
        tried_faults: float | None
        tried_slowdown: float | None
        tried_stopped: str | None
        seconds: float
        cost: float
        processes: int

    ROWS: Final[Rows]
    class WindowsRow(TypedDict):
        seconds: float
        anonymous_bytes: int
        file_bytes: int
        faults: float
        slowdown: float

    WINDOWS_ROWS: Final[Rows]

class sweep:
    class Options(TypedDict, total=False):
        workers: int
        threads: int
        dask: str | None

    OPTIONS: Final[tuple[Option, ...]]

class workload:
    class Options(TypedDict, total=False):
        small: bool
        vm: bool

    OPTIONS: Final[tuple[Option, ...]]
