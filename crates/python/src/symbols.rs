//! Python functions for `nearfar_symbols`.

use std::path::PathBuf;

use nearfar_symbols::{PerfMap, build_id, symbols_at};
use pyo3::prelude::*;

use crate::raise;

/// The build id of an ELF file, if it has one.
#[pyfunction]
pub(crate) fn elf_build_id(py: Python<'_>, file: PathBuf) -> PyResult<Option<String>> {
    py.detach(|| build_id(&file)).map_err(raise)
}

/// The symbols at offsets of an ELF file, as JSON text: `[{"function", "start", "file", "line"}, ...]`
/// ([`nearfar_symbols::Symbol`]). `debug`: a separate file with its debug information.
#[pyfunction]
#[pyo3(signature = (image, offsets, *, debug))]
pub(crate) fn elf_names(
    py: Python<'_>,
    image: PathBuf,
    offsets: Vec<u64>,
    debug: Option<PathBuf>,
) -> PyResult<String> {
    let names = py.detach(|| symbols_at(&image, debug.as_deref(), &offsets)).map_err(raise)?;
    Ok(serde_json::json!(names).to_string())
}

/// The functions at addresses, from a perf map (`/tmp/perf-PID.map`).
#[pyfunction]
pub(crate) fn perf_names(
    py: Python<'_>,
    file: PathBuf,
    addrs: Vec<u64>,
) -> PyResult<Vec<Option<String>>> {
    let find = || {
        let map = PerfMap::open(&file)?;
        Ok(addrs.iter().map(|&addr| map.find(addr).map(str::to_owned)).collect())
    };
    py.detach(find).map_err(raise)
}
