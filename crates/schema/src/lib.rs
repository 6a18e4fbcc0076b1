//! What is declared once: options, the columns of rows, registries of named things, and the grammar
//! of sizes, times and rates. A leaf: it depends on no other crate of nearfar.
//!
//! A study declares its options with [`options!`] and its rows with [`columns!`], beside its code.
//! From these declarations come the command line, the Python signature and its types, the docs'
//! tables, the Arrow schema, the checks, and the record in `run.json`: `make declared` writes the
//! ones that are files (`python/nearfar/declared.json` and `declared.pyi`).

pub mod choice;
pub mod column;
pub mod command;
pub mod given;
pub mod option;
pub mod sizes;
pub mod units;
pub mod value;

pub use choice::{Choice, Entry, Registry};
pub use column::{Column, Rows};
pub use command::Command;
pub use given::Given;
pub use option::{Default, Options, Spec, none, required};
pub use sizes::{Bytes, Memory, Nanoseconds, OneMemory, PageSizes, Share, Shares};
pub use value::{Argument, Count, List, Runtime, Value, Wrong};

/// What the macros use.
#[doc(hidden)]
pub use serde;
#[doc(hidden)]
pub use serde_json;
