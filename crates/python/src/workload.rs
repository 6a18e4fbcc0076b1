//! The built-in workload files, for `nearfar/workload.py`.

use pyo3::prelude::*;

/// Names and texts of the built-in workloads, sorted by name.
#[pyfunction]
pub(crate) fn workload_builtin() -> Vec<(&'static str, &'static str)> {
    const LIST: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/workloads.rs"));
    LIST.to_vec()
}
