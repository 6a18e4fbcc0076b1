//! Handles of machine descriptions, for `nearfar/machine.py`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use nearfar_hardware::machine::{MachineFile, builtin, schema};
use nearfar_trace::Error;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::raise;

/// Names and texts of the built-in machines.
#[pyfunction]
pub(crate) fn machine_builtin() -> Vec<(&'static str, &'static str)> {
    builtin().to_vec()
}

#[pyfunction]
pub(crate) fn machine_schema() -> String {
    schema()
}

/// Times of one memory reference, nanoseconds: T_TLB and T_DRAM of papers 000 (page-size advice) and 001
/// (TLB and fault models).
#[pyclass(frozen, eq, module = "nearfar._engine")]
#[derive(PartialEq)]
pub(crate) struct AccessTimes(nearfar_hardware::AccessTimes);

#[pymethods]
impl AccessTimes {
    /// A look-up in the first-level TLB.
    #[getter]
    fn tlb_ns(&self) -> f64 {
        self.0.tlb_ns
    }

    /// A load from local DRAM.
    #[getter]
    fn dram_ns(&self) -> f64 {
        self.0.dram_ns
    }

    /// Additional time of a second-level TLB hit; None if the machine has no second level.
    #[getter]
    fn stlb_ns(&self) -> Option<f64> {
        self.0.stlb_ns
    }

    /// Translation time (T_A), for each pair of page walks and second-level TLB hits per reference.
    fn translation_ns(&self, walk_rates: Vec<f64>, second_hit_rates: Vec<f64>) -> Vec<f64> {
        let rates = walk_rates.into_iter().zip(second_hit_rates);
        rates.map(|(walks, hits)| self.0.translation_ns(walks, hits)).collect()
    }

    /// Time of data access (T_D), for each pair of page faults per reference and time to read a page.
    fn data_ns(&self, fault_rates: Vec<f64>, io_ns: Vec<f64>) -> Vec<f64> {
        let rates = fault_rates.into_iter().zip(io_ns);
        rates.map(|(faults, ns)| self.0.data_ns(faults, ns)).collect()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let times = (self.0.tlb_ns, self.0.dram_ns, self.0.stlb_ns).into_pyobject(py)?;
        let form = "AccessTimes(tlb_ns={!r}, dram_ns={!r}, stlb_ns={!r})".into_pyobject(py)?;
        form.call_method1("format", times)?.extract()
    }
}

/// Times of the kernel for a page fault.
#[pyclass(frozen, get_all, eq, module = "nearfar._engine")]
#[derive(PartialEq)]
pub(crate) struct FaultTimes {
    /// A fault without clearing the page or waiting for a device, in nanoseconds.
    fault_ns: f64,
    /// Clearing one byte, in nanoseconds.
    zero_ns: f64,
}

#[pymethods]
impl FaultTimes {
    fn __repr__(&self) -> String {
        format!("FaultTimes(fault_ns={}, zero_ns={})", self.fault_ns, self.zero_ns)
    }
}

/// A handle of a checked machine description.
#[pyclass(frozen, eq, module = "nearfar._engine")]
#[derive(Clone, PartialEq)]
pub(crate) struct Machine(Arc<MachineFile>);

impl Machine {
    pub(crate) fn hardware(&self) -> &nearfar_hardware::Machine {
        &self.0.machine
    }
}

#[pymethods]
impl Machine {
    /// Load by path or name; a name is looked up in the folder `search`, then among the built-in machines.
    #[classmethod]
    fn load(_: &Bound<'_, PyType>, path_or_name: &str, search: PathBuf) -> PyResult<Self> {
        wrap(MachineFile::load(path_or_name, &search))
    }

    /// Parse the text of a file; `place` is its path or name.
    #[classmethod]
    fn parse(_: &Bound<'_, PyType>, place: &str, text: &str) -> PyResult<Self> {
        wrap(MachineFile::parse(place, text))
    }

    /// Parse the JSON of `to_json`.
    #[classmethod]
    fn from_json(_: &Bound<'_, PyType>, name: &str, json: &str) -> PyResult<Self> {
        wrap(MachineFile::from_json(name, json))
    }

    /// A copy with other values at some keys.
    fn with_values(&self, values: Vec<(String, String)>) -> PyResult<Self> {
        wrap(self.0.with(&values))
    }

    /// A copy with a storage of another machine.
    fn with_storage_of(&self, other: &Self, name: &str) -> PyResult<Self> {
        wrap(self.0.with_storage_of(&other.0, name))
    }

    /// The file name without extension.
    #[getter]
    fn name(&self) -> &str {
        &self.hardware().name
    }

    #[getter]
    fn description(&self) -> &str {
        &self.hardware().description
    }

    /// Kind of each storage device, by name.
    #[getter]
    fn storages(&self) -> PyResult<BTreeMap<String, &'static str>> {
        let storages = self.hardware().storages().map_err(raise)?;
        Ok(storages.into_iter().map(|storage| (storage.name, storage.kind)).collect())
    }

    /// Keys and values that override the file's.
    #[getter]
    fn set_values(&self) -> Vec<(String, String)> {
        self.0.set.clone()
    }

    /// Command-line arguments that select this machine.
    #[getter]
    fn flags(&self) -> Vec<String> {
        let set = self.0.set.iter();
        let set = set.flat_map(|(key, value)| ["--set".to_owned(), format!("{key}={value}")]);
        ["--machine".to_owned(), self.0.place.clone()].into_iter().chain(set).collect()
    }

    /// The text of its file, with the overridden values and with comments.
    fn to_toml(&self) -> &str {
        &self.0.text
    }

    /// The description as JSON text that follows the schema.
    fn to_json(&self) -> PyResult<String> {
        serde_json::to_string(self.hardware())
            .map_err(|e| raise(Error::input(self.name(), e.to_string(), "")))
    }

    /// The description as plain values: each number is `{"value", "source"}`.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("json")?.call_method1("loads", (self.to_json()?,))
    }

    /// Fails if the machine has no TLB or no DRAM.
    fn access_times(&self) -> PyResult<AccessTimes> {
        self.hardware().access_times().map(AccessTimes).map_err(raise)
    }

    /// What the file lacks for processor times, as an error text; None if it lacks nothing.
    fn processor_lacks(&self) -> Option<String> {
        // `None`: do not override the file's page size of a virtual machine's host.
        self.hardware().processor(None).err().map(|why| why.to_string())
    }

    /// Fails if the machine has no fault times.
    fn fault_times(&self) -> PyResult<FaultTimes> {
        let times = self.hardware().fault_times().map_err(raise)?;
        Ok(FaultTimes { fault_ns: times.fault_ns, zero_ns: times.zero_ns })
    }

    /// Nanoseconds to read a page of each size, in bytes, from a storage.
    fn io_ns(&self, storage: &str, page_bytes: Vec<u64>) -> PyResult<Vec<f64>> {
        let storage = self.hardware().storage(storage).map_err(raise)?;
        Ok(page_bytes.into_iter().map(|bytes| storage.io_ns(bytes)).collect())
    }

    /// As `io_ns`, from the disk that holds files: the storage itself, unless that is compressed memory.
    fn file_ns(&self, storage: &str, page_bytes: Vec<u64>) -> PyResult<Vec<f64>> {
        let storage = self.hardware().storage(storage).map_err(raise)?;
        Ok(page_bytes.into_iter().map(|bytes| storage.files().io_ns(bytes)).collect())
    }

    /// Nanoseconds to write a page of each size, in bytes, to a storage.
    fn write_ns(&self, storage: &str, page_bytes: Vec<u64>) -> PyResult<Vec<f64>> {
        let storage = self.hardware().storage(storage).map_err(raise)?;
        Ok(page_bytes.into_iter().map(|bytes| storage.write_ns(bytes)).collect())
    }

    fn __repr__(&self) -> String {
        format!("<Machine {}>", self.name())
    }

    fn __hash__(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        (&self.0.place, &self.0.text).hash(&mut hasher);
        hasher.finish()
    }

    /// For pickle.
    #[allow(clippy::type_complexity)]
    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, (&str, &str, Vec<(String, String)>))> {
        let restore = py.import("nearfar._engine")?.getattr("machine_restore")?;
        Ok((restore, (&self.0.place, &self.0.text, self.set_values())))
    }
}

fn wrap(file: nearfar_trace::Result<MachineFile>) -> PyResult<Machine> {
    file.map(|file| Machine(Arc::new(file))).map_err(raise)
}

/// Restore a pickled machine without its file: `text` already contains the values of `set`.
#[pyfunction]
pub(crate) fn machine_restore(
    place: &str,
    text: &str,
    set: Vec<(String, String)>,
) -> PyResult<Machine> {
    wrap(MachineFile::parse(place, text).map(|file| MachineFile { set, ..file }))
}
