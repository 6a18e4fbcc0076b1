//! Names of code: what an ELF file and a perf map say of addresses.
//!
//! ELF and DWARF are read by `object`, `gimli` and `addr2line`. A file may be of another program, or
//! damaged on purpose: what cannot be read has no names.

mod elf;
mod perf;

pub use elf::{build_id, named};
pub use perf::PerfMap;

use serde::Serialize;

/// What a piece of code is called.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Named {
    /// The function, demangled. With inlining the one that was compiled as one.
    pub function: Option<String>,
    /// Without a name, where the function begins: its address in the file.
    pub start: Option<u64>,
    /// Source file. With inlining that of the innermost function.
    pub file: Option<String>,
    /// Line of it, from 1.
    pub line: Option<u32>,
}
