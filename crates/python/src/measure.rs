//! Measurements of this machine, for `nearfar/measure/`.

use nearfar_measure::{Access, Layout, Pages, cpuid};
use nearfar_trace::{Error, Result};
use pyo3::prelude::*;

use crate::raise;

/// The processor according to `cpuid`, as JSON; None without `cpuid`.
#[pyfunction]
pub(crate) fn measure_processor() -> Option<String> {
    let processor = cpuid::decode(&cpuid::read())?;
    // Plain data cannot fail to serialize.
    Some(serde_json::to_string(&processor).unwrap_or_default())
}

fn pages(name: &str) -> Result<Pages> {
    match name {
        "small" => Ok(Pages::Small),
        "huge" => Ok(Pages::Huge),
        "unasked" => Ok(Pages::Unasked),
        _ => Err(Error::input("pages", name.to_owned(), "give small, huge or unasked")),
    }
}

fn access(name: &str) -> Result<Access> {
    match name {
        "read" => Ok(Access::Read),
        "write" => Ok(Access::Write),
        _ => Err(Error::input("access", name.to_owned(), "give read or write")),
    }
}

/// Work between two faults that displaces cached data and code, as a program does.
#[pyclass(module = "nearfar._engine")]
pub(crate) struct ProgramWork(nearfar_measure::Work);

#[pymethods]
impl ProgramWork {
    #[new]
    fn new() -> PyResult<Self> {
        nearfar_measure::Work::new().map(Self).map_err(raise)
    }
}

/// Anonymous memory on the memory node `node`, or where the kernel chooses. Untouched at first, unmapped with
/// the object.
#[pyclass(module = "nearfar._engine")]
pub(crate) struct MappedMemory(nearfar_measure::Mapping);

#[pymethods]
impl MappedMemory {
    #[new]
    fn new(bytes: usize, pages: &str, node: Option<usize>) -> PyResult<Self> {
        self::pages(pages)
            .and_then(|pages| nearfar_measure::Mapping::new(bytes, pages, node))
            .map(Self)
            .map_err(raise)
    }

    /// Write one byte in every `step`, with a part of `work` after each write. Returns processor time in
    /// nanoseconds, and minor faults. With `work`, the time is the excess over that with resident pages.
    #[pyo3(signature = (step, work=None))]
    fn write(&mut self, py: Python<'_>, step: usize, work: Option<&mut ProgramWork>) -> (f64, u64) {
        let work = work.map(|work| &mut work.0);
        let touched = py.detach(|| self.0.write(step, work));
        (touched.ns, touched.faults)
    }

    /// Read one byte in every `step`; otherwise as [`write`](Self::write).
    #[pyo3(signature = (step, work=None))]
    fn read(&self, py: Python<'_>, step: usize, work: Option<&mut ProgramWork>) -> (f64, u64) {
        let work = work.map(|work| &mut work.0);
        let touched = py.detach(|| self.0.read(step, work));
        (touched.ns, touched.faults)
    }

    /// Fill it with words, every other one random, so that it compresses to about half.
    fn fill(&mut self, py: Python<'_>) {
        py.detach(|| self.0.fill());
    }

    /// Let the kernel write it to swap. Returns nanoseconds.
    fn page_out(&mut self, py: Python<'_>) -> PyResult<f64> {
        py.detach(|| self.0.page_out()).map_err(raise)
    }

    /// Read one byte in every `step`, in random order. Returns nanoseconds, and the number of major faults.
    fn read_at_random(&self, py: Python<'_>, step: usize) -> (f64, u64) {
        let touched = py.detach(|| self.0.read_at_random(step));
        (touched.ns, touched.faults)
    }
}

/// Chains of dependent loads through memory; arguments as in [`Layout`].
#[pyclass(module = "nearfar._engine")]
pub(crate) struct Chase(nearfar_measure::Chase);

#[pymethods]
impl Chase {
    #[new]
    #[pyo3(signature = (bytes, *, stride, window, chains, pages, node))]
    fn new(
        py: Python<'_>,
        bytes: usize,
        stride: usize,
        window: usize,
        chains: usize,
        pages: &str,
        node: Option<usize>,
    ) -> PyResult<Self> {
        let pages = self::pages(pages).map_err(raise)?;
        let layout = Layout { stride, window, chains };
        py.detach(|| {
            nearfar_measure::Chase::new(nearfar_measure::Mapping::new(bytes, pages, node)?, layout)
        })
        .map(Self)
        .map_err(raise)
    }

    /// Loads of one pass through all chains.
    #[getter]
    fn loads(&self) -> usize {
        self.0.loads()
    }

    /// Nanoseconds per load, for `batches` batches of about `loads` each.
    fn times(&mut self, py: Python<'_>, loads: usize, batches: usize) -> Vec<f64> {
        py.detach(|| self.0.times(loads, batches))
    }
}

/// Nanoseconds per processor cycle, for each of `batches`.
#[pyfunction]
pub(crate) fn measure_cycles(py: Python<'_>, rounds: usize, batches: usize) -> Vec<f64> {
    py.detach(|| nearfar_measure::cycle_times(rounds, batches))
}

/// Bytes per second of all `cpus` together, for each of `rounds`. Each processor accesses
/// separate memory of `bytes`.
#[pyfunction]
#[pyo3(signature = (access, cpus, *, bytes, node, rounds))]
pub(crate) fn measure_bandwidth(
    py: Python<'_>,
    access: &str,
    cpus: Vec<usize>,
    bytes: usize,
    node: Option<usize>,
    rounds: usize,
) -> PyResult<Vec<f64>> {
    let access = self::access(access).map_err(raise)?;
    py.detach(|| nearfar_measure::bandwidth(access, &cpus, bytes, node, rounds)).map_err(raise)
}

/// Nanoseconds of a switch between two threads on `cpu`, for each of `batches` of `rounds` round trips.
#[pyfunction]
pub(crate) fn measure_switches(
    py: Python<'_>,
    cpu: usize,
    rounds: usize,
    batches: usize,
) -> PyResult<Vec<f64>> {
    py.detach(|| nearfar_measure::switch_times(cpu, rounds, batches)).map_err(raise)
}

/// Nanoseconds of each of `count` requests of `bytes`, at random offsets below `span` bytes of an open file.
#[pyfunction]
#[pyo3(signature = (file, access, *, bytes, span, count))]
pub(crate) fn measure_requests(
    py: Python<'_>,
    file: i32,
    access: &str,
    bytes: usize,
    span: u64,
    count: usize,
) -> PyResult<Vec<f64>> {
    let access = self::access(access).map_err(raise)?;
    py.detach(|| nearfar_measure::request_times(file, access, bytes, span, count)).map_err(raise)
}
