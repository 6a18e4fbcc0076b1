"""Types of the engine (crates/python/src): every function that its files register.

Structured results are JSON text. ``progress`` is called with the number of references so far, some
times a second; what it raises ends the run and is raised. Errors are ``nearfar.NearfarError``.
"""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, final

__version__: str

# capture.rs

def capture_run(
    command: Sequence[str | PathLike[str]],
    output: str | PathLike[str],
    plugin: str | PathLike[str],
    force: bool,
    fetch: bool,
    skip_refs: int,
    max_refs: int | None,
    arch: str | None,
    follow_forks: bool,
    progress: Callable[[int], object],
) -> str: ...
def capture_probe(plugin: str | PathLike[str]) -> str: ...

# export.rs

def export_formats() -> list[tuple[str, str]]: ...
def export_trace(
    trace: str | PathLike[str],
    out: str | PathLike[str],
    *,
    format: str,
    force: bool,
    kinds: Sequence[str],
    max_refs: int | None,
    page_bytes: int | None,
    progress: Callable[[int], object] | None,
) -> int: ...

# filter.rs

def filter_cache(
    trace: str | PathLike[str],
    out: str | PathLike[str],
    machine: Machine,
    *,
    write_backs: bool,
    progress: Callable[[int], object] | None,
) -> str: ...

# folder.rs

def folder_replace(aside: str | PathLike[str], path: str | PathLike[str]) -> None: ...

# generate.rs

def generators() -> list[tuple[str, str]]: ...
def generate_trace(
    name: str,
    out: str | PathLike[str],
    *,
    refs: int,
    pages: int,
    page_bytes: int,
    seed: int,
    write_ratio: float,
    threads: int,
    alpha: float | None,
    stride: int | None,
    mix: str | None,
    phase: int | None,
    force: bool,
    progress: Callable[[int], object] | None,
) -> None: ...

# import.rs

def import_formats() -> list[tuple[str, str]]: ...
def import_trace(
    source: str | PathLike[str],
    out: str | PathLike[str],
    *,
    format: str | None,
    force: bool,
    skip_bad: int,
    max_refs: int | None,
    object_bytes: int | None,
    progress: Callable[[int], object] | None,
) -> None: ...

# info.rs

def trace_open(trace: str | PathLike[str]) -> str: ...
def info_summarize(
    trace: str | PathLike[str],
    *,
    reuse: bool,
    heat_map: bool,
    progress: Callable[[int], object] | None,
) -> tuple[str, str | None]: ...

# machine.rs

def machine_builtin() -> list[tuple[str, str]]: ...
def machine_schema() -> str: ...
def machine_restore(place: str, text: str, set: list[tuple[str, str]]) -> Machine: ...

@final
class AccessTimes:
    tlb_ns: float
    dram_ns: float
    stlb_ns: float | None

@final
class Machine:
    @classmethod
    def load(cls, path_or_name: str, search: str | PathLike[str]) -> Machine: ...
    @classmethod
    def parse(cls, place: str, text: str) -> Machine: ...
    @classmethod
    def from_json(cls, name: str, json: str) -> Machine: ...
    def with_values(self, values: Sequence[tuple[str, str]]) -> Machine: ...
    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def storages(self) -> dict[str, str]: ...
    @property
    def set_values(self) -> list[tuple[str, str]]: ...
    @property
    def flags(self) -> list[str]: ...
    def to_toml(self) -> str: ...
    def to_json(self) -> str: ...
    def to_dict(self) -> dict[str, Any]: ...
    def access_times(self) -> AccessTimes: ...
    def io_ns(self, storage: str, page_bytes: Sequence[int]) -> list[float]: ...
    def write_ns(self, storage: str, page_bytes: Sequence[int]) -> list[float]: ...

# paging.rs

def paging(
    trace: str | PathLike[str],
    machine: Machine,
    *,
    options: Mapping[str, Any],
    progress: Callable[[int], object] | None,
) -> str: ...
def paging_explain(
    trace: str | PathLike[str],
    *,
    options: Mapping[str, Any],
    progress: Callable[[int], object] | None,
) -> str: ...

# schema.rs

def schema() -> str: ...

# simd.rs

def simd_levels() -> list[tuple[str, bool]]: ...

# ssd.rs

def ssd_policies() -> list[tuple[str, str, str]]: ...
def ssd(
    trace: str | PathLike[str],
    machine: Machine,
    *,
    epf: Sequence[str],
    dram_bytes: Sequence[int],
    disk: str | None,
    sequential: float,
    random: float,
    overwrite: str,
    seed: int,
    sleep_granularity_ns: int | None,
    atomic: str,
    first_touch: str,
    background_bytes: int,
    background_written: float,
    window: int,
    threads: int,
    progress: Callable[[int], object] | None,
) -> str: ...

# paper.rs

def paper_builtin() -> list[tuple[str, str]]: ...

# tiering.rs

@final
class Thread:
    """A kernel thread of a Python policy, made by `Memory.spawn`."""

    @property
    def name(self) -> str: ...

@final
class Memory:
    """Memory as a Python policy sees it (docs/tiering.md); there only while a hook runs."""

    def now(self) -> int: ...
    def page_limit(self) -> int: ...
    def next_mapped(self, page: int) -> int | None: ...
    def nodes(self) -> int: ...
    def capacity(self, node: int) -> int: ...
    def free(self, node: int) -> int: ...
    def loaded_latency(self, node: int) -> float | None: ...
    def capabilities(self) -> list[str]: ...
    def tenants(self) -> int: ...
    def tenant_of(self, page: int) -> int: ...
    def used(self, tenant: int, node: int) -> int: ...
    def limit(self, tenant: int, node: int) -> tuple[int, int]: ...
    def mapped(self, page: int) -> bool: ...
    def node_of(self, page: int) -> int: ...
    def span(self, page: int) -> int: ...
    def accessed(self, page: int) -> bool: ...
    def dirty(self, page: int) -> bool: ...
    def hint_armed(self, page: int) -> bool: ...
    def write_protected(self, page: int) -> bool: ...
    def shadow_of(self, page: int) -> int | None: ...
    def clear_accessed(self, page: int) -> bool: ...
    def arm_hint(self, page: int) -> bool: ...
    def arm_hints(self, pages: Sequence[int]) -> list[bool]: ...
    def disarm_hint(self, page: int) -> None: ...
    def write_protect(self, page: int) -> bool: ...
    def unprotect(self, page: int) -> bool: ...
    def move_page(self, page: int, to: int) -> bool: ...
    def move_pages(self, pages: Sequence[int], to: int) -> list[bool]: ...
    def begin_copy(self, page: int, to: int, wake: Thread) -> bool: ...
    def commit_copy(self, page: int, keep_shadow: bool) -> bool | None: ...
    def remap_to_shadow(self, page: int) -> bool: ...
    def drop_shadow(self, page: int, written: bool) -> bool: ...
    def split(self, page: int) -> bool: ...
    def spawn(self, name: str) -> Thread: ...
    def wake(self, thread: Thread) -> None: ...
    def sample_every(self, loads: int, stores: int) -> None: ...

def tiering_policies() -> str: ...
def tiering_run(
    machine: Machine,
    *,
    policies: Sequence[tuple[str, str | None, Callable[[], object] | None, Mapping[str, str]]],
    workload: str,
    trace: str | PathLike[str] | None,
    policy_scale: float | None,
    options: Mapping[str, Any],
    progress: Callable[[int], object] | None,
) -> str: ...

# workload.rs

def workload_builtin() -> list[tuple[str, str]]: ...

# numa.rs

def numa_modes() -> list[tuple[str, str]]: ...
def numa_topology(machine: Machine) -> str: ...
def numa_alloc(
    machine: Machine,
    *,
    mode_name: str,
    size: int,
    vmalloc: bool,
    nodes: Sequence[int],
    weights: Sequence[int],
    origin: int | None,
    threads: int,
    dirty_cache: bool,
) -> str: ...
def numa_run(
    machine: Machine,
    *,
    mode_name: str,
    trace: str | PathLike[str] | None,
    bytes: int,
    random: bool,
    writes: float,
    nodes: Sequence[int],
    weights: Sequence[int],
    origin: int | None,
    threads: int,
    shuffle: int | None,
    progress: Callable[[int], object] | None,
) -> str: ...
def numa_pair(
    machine: Machine,
    *,
    traces: Sequence[str | PathLike[str] | None],
    bytes: Sequence[int],
    overlaps: Sequence[float],
    cache_bytes: int | None,
    origin: int | None,
    seed: int,
    progress: Callable[[int], object] | None,
) -> str: ...
def numa_weights(
    machine: Machine,
    *,
    nodes: Sequence[int],
    origin: int | None,
    writes: float,
) -> list[int]: ...

# units.rs

def parse_bytes(text: str, place: str) -> int: ...
def parse_nanoseconds(text: str, place: str) -> int: ...
def parse_shares(text: str, place: str, count: int) -> list[float]: ...
def parse_page_sizes(text: str, place: str) -> list[int]: ...
def parse_memory(text: str, place: str) -> list[tuple[float | None, int | None]]: ...
