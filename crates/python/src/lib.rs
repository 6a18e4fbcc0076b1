//! `nearfar._engine`: the engine as seen from Python. Thin: every function converts its arguments,
//! releases the GIL and calls a crate; results cross as JSON text or plain values.
//!
//! One file an area, each with a `register` function named in the list below.

mod capture;
mod export;
mod generate;
mod import;
mod info;
mod machine;
mod paging;
mod pulse;

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(_engine, EngineError, PyException, "args: (message, exit_code)");

/// A nearfar error as the Python exception that carries its exit code.
#[allow(dead_code)]
pub(crate) fn raise(error: nearfar_trace::Error) -> PyErr {
    EngineError::new_err((error.to_string(), error.exit_code()))
}

#[pymodule]
fn _engine(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("EngineError", module.py().get_type::<EngineError>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    machine::register(module)?;
    paging::register(module)?;
    import::register(module)?;
    info::register(module)?;
    export::register(module)?;
    generate::register(module)?;
    capture::register(module)?;
    Ok(())
}
