//! Parsers of sizes and times, for `nearfar/sizes.py`. Errors begin with `place`, the source of the
//! text, such as an option.

use nearfar_kernel::thp::Policy;
use nearfar_schema::units::{self, MemorySize};
use nearfar_trace::Error;
use pyo3::prelude::*;

use crate::raise;

#[pyfunction]
pub(crate) fn parse_bytes(text: &str, place: &str) -> PyResult<u64> {
    at(place, units::parse_bytes(text))
}

#[pyfunction]
pub(crate) fn parse_nanoseconds(text: &str, place: &str) -> PyResult<u64> {
    at(place, units::parse_nanoseconds(text))
}

/// A list of page sizes, in bytes.
#[pyfunction]
pub(crate) fn parse_page_sizes(text: &str, place: &str) -> PyResult<Vec<u64>> {
    at(place, units::parse_page_sizes(text))
}

/// A list of memory sizes: each a fraction, or bytes.
#[pyfunction]
pub(crate) fn parse_memory(text: &str, place: &str) -> PyResult<Vec<(Option<f64>, Option<u64>)>> {
    let sizes = at(place, units::parse_memory(text))?.into_iter().map(|size| match size {
        MemorySize::Fraction(fraction) => (Some(fraction), None),
        MemorySize::Bytes(bytes) => (None, Some(bytes)),
    });
    Ok(sizes.collect())
}

/// The page sizes of a huge page policy, in bytes, each with the content of its file `enabled`.
#[pyfunction]
pub(crate) fn parse_policy(text: &str, place: &str) -> PyResult<Vec<(u64, &'static str)>> {
    Ok(at(place, Policy::parse(text))?.words().collect())
}

fn at<T>(place: &str, parsed: Result<T, String>) -> PyResult<T> {
    parsed.map_err(|what| raise(Error::input(place, what, "")))
}
