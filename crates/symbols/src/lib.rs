//! Symbols: functions and source lines of addresses, from ELF files and perf maps.
//!
//! `object`, `gimli` and `addr2line` read ELF and DWARF. A file may be hostile: parts that cannot be
//! parsed yield no names and no error.

mod elf;
mod perf;

pub use elf::{build_id, symbols_at};
pub use perf::PerfMap;

use serde::Serialize;

/// The symbol of a code address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Symbol {
    /// The function, demangled. With inlining, the outermost one.
    pub function: Option<String>,
    /// Start address of the function in the file, if it has no name.
    pub start: Option<u64>,
    /// Source file. With inlining, that of the innermost function.
    pub file: Option<String>,
    /// Line, from 1.
    pub line: Option<u32>,
}
