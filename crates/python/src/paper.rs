//! Statements of the papers, for `nearfar/reproduce`.

use pyo3::prelude::*;

/// Names (`001/statements`) and texts of `papers/*/*.toml`, sorted by name.
#[pyfunction]
pub(crate) fn paper_builtin() -> Vec<(&'static str, &'static str)> {
    const LIST: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/papers.rs"));
    LIST.to_vec()
}
