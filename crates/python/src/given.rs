//! Converts options from Python to [`Given`], which `nearfar_schema` parses.

use std::collections::BTreeMap;

use nearfar_schema::{Given, Options};
use nearfar_trace::Error;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::raise;

/// Read the options of a command.
///
/// # Errors
/// `NearfarError`: an unknown option, or a value that is refused.
pub(crate) fn read<O: Options>(options: &Bound<'_, PyDict>) -> PyResult<O> {
    let mut given = BTreeMap::new();
    for (name, value) in options {
        given.insert(name.extract::<String>()?, to_given(&value)?);
    }
    O::read(&given).map_err(|wrong| raise(Error::refused(wrong)))
}

fn to_given(value: &Bound<'_, PyAny>) -> PyResult<Given> {
    if value.is_none() {
        return Ok(Given::Nothing);
    }
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(Given::Flag(flag.is_true()));
    }
    if value.is_instance_of::<PyInt>() {
        // A number beyond i128 becomes text, which options of whole numbers and sizes refuse. Python
        // itself refuses to print one of over 4300 digits.
        let text = || value.str().map_or("a number of many digits".into(), |text| text.to_string());
        return Ok(value.extract().map_or_else(|_| Given::Text(text()), Given::Whole));
    }
    if value.is_instance_of::<PyFloat>() {
        return Ok(Given::Real(value.extract()?));
    }
    if value.is_instance_of::<PyString>() {
        return Ok(Given::Text(value.extract()?));
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let items = value.try_iter()?.map(|item| to_given(&item?));
        return Ok(Given::List(items.collect::<PyResult<_>>()?));
    }
    if let Ok(path) = value.extract::<std::path::PathBuf>() {
        return Ok(Given::Text(path.to_string_lossy().into_owned()));
    }
    if let Ok(items) = value.try_iter() {
        return Ok(Given::List(items.map(|item| to_given(&item?)).collect::<PyResult<_>>()?));
    }
    // NumPy has its own number types.
    match value.extract::<f64>() {
        Ok(number) => Ok(Given::Real(number)),
        Err(_) => Ok(Given::Text(value.str()?.to_string())),
    }
}
