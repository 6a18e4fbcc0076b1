//! The declarations of options, rows and registries as JSON text, for `make declared`.

use nearfar_schema::command;
use nearfar_study::declared;
use pyo3::prelude::*;

#[pyfunction]
pub(crate) fn schema() -> String {
    let commands = declared::COMMANDS
        .iter()
        .chain([&nearfar_capture::COMMAND, &nearfar_live::options::COMMAND]);
    command::to_json(commands).to_string()
}
