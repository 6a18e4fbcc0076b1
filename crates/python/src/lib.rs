//! `nearfar._engine`: the Python module of the engine. Every function only converts its arguments, releases
//! the GIL and calls a crate. Results are JSON text or plain values.
//!
//! One file per area, each with a `register` function in the list below.

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

// Row groups are decoded and encoded through buffers of megabytes. The system's allocator would return them
// to the kernel and allocate them again each time: a fifth of a capture's processor time.
#[global_allocator]
static ALLOCATOR: memory::Allocator = memory::Allocator(mimalloc::MiMalloc);

/// A nearfar error as `nearfar.errors.NearfarError`, which carries its exit code; a run that was
/// cancelled as `KeyboardInterrupt`.
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
fn _engine(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    // First: it checks the environment for all functions.
    machine::register(module)?;
    measure::register(module)?;
    paging::register(module)?;
    paper::register(module)?;
    schema::register(module)?;
    ssd::register(module)?;
    symbols::register(module)?;
    numa::register(module)?;
    import::register(module)?;
    info::register(module)?;
    export::register(module)?;
    filter::register(module)?;
    generate::register(module)?;
    output::register(module)?;
    capture::register(module)?;
    live::register(module)?;
    thp::register(module)?;
    tiering::register(module)?;
    units::register(module)?;
    workload::register(module)?;
    Ok(())
}
