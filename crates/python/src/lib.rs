//! `nearfar._engine`: the Python module of the engine. Every function only converts its arguments, releases
//! the GIL and calls a crate. Results are JSON text or plain values.

mod capture;
mod export;
mod filter;
mod generate;
mod given;
mod import;
mod info;
mod live;
mod machine;
mod measure;
mod memory;
mod numa;
mod output;
mod paging;
mod paper;
mod policy;
mod progress;
mod schema;
mod ssd;
mod symbols;
mod thp;
mod tiering;
mod units;
mod workload;

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

// The system's allocator would return the megabyte buffers of each row group to the kernel and request them
// again, which takes a fifth of a capture's processor time.
#[global_allocator]
static ALLOCATOR: memory::Allocator = memory::Allocator(mimalloc::MiMalloc);

/// The Python exception of an error: `KeyboardInterrupt` for a cancelled run, else
/// `nearfar.errors.NearfarError` with its exit code.
pub(crate) fn raise(error: nearfar_trace::Error) -> PyErr {
    if error.kind() == nearfar_trace::ErrorKind::Cancelled {
        return PyKeyboardInterrupt::new_err(());
    }
    let raised = Python::attach(|py| {
        let class = py.import("nearfar.errors")?.getattr("NearfarError")?;
        Ok(PyErr::from_value(class.call1((error.to_string(), error.exit_code()))?))
    });
    raised.unwrap_or_else(|why: PyErr| why)
}

#[pymodule]
mod _engine {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::capture::{capture_probe, capture_run};
    #[pymodule_export]
    use crate::export::export_trace;
    #[pymodule_export]
    use crate::filter::filter_view;
    #[pymodule_export]
    use crate::generate::generate_trace;
    #[pymodule_export]
    use crate::import::import_trace;
    #[pymodule_export]
    use crate::info::{info_summarize, trace_open};
    #[pymodule_export]
    use crate::live::{LiveWatch, live_check, live_counters, live_probe, live_run, live_runs};
    #[pymodule_export]
    use crate::machine::{
        AccessTimes, FaultTimes, Machine, machine_builtin, machine_restore, machine_schema,
    };
    #[pymodule_export]
    use crate::measure::{
        Chase, MappedMemory, ProgramWork, measure_bandwidth, measure_cycles, measure_processor,
        measure_requests, measure_switches,
    };
    #[pymodule_export]
    use crate::numa::{numa_alloc, numa_pair, numa_plan, numa_run, numa_topology, numa_weights};
    #[pymodule_export]
    use crate::output::{Output, file_read, output_check};
    #[pymodule_export]
    use crate::paging::{explain_options, paging, paging_explain, paging_options};
    #[pymodule_export]
    use crate::paper::paper_builtin;
    #[pymodule_export]
    use crate::policy::{MemoryHandle, ThreadHandle, policy_hooks};
    #[pymodule_export]
    use crate::schema::schema;
    #[pymodule_export]
    use crate::ssd::ssd;
    #[pymodule_export]
    use crate::symbols::{elf_build_id, elf_names, perf_names};
    #[pymodule_export]
    use crate::thp::thp;
    #[pymodule_export]
    use crate::tiering::{tiering_policies, tiering_run};
    #[pymodule_export]
    use crate::units::{
        parse_bytes, parse_memory, parse_nanoseconds, parse_page_sizes, parse_policy,
    };
    #[pymodule_export]
    use crate::workload::workload_builtin;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
