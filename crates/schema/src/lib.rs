//! Declarations of options, columns and registries, and the grammar of sizes, times and rates. This
//! crate depends on no other crate of nearfar.
//!
//! A study declares its options with [`options!`] and its rows with [`columns!`], next to its code.
//! The command line, the Python signatures and types, the tables of the docs, the Arrow schema, the
//! checks and the record in `run.json` are derived from these declarations. `make declared` writes
//! `python/nearfar/declared.json` and `declared.pyi`.

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

/// For the macros.
#[doc(hidden)]
pub use serde;
#[doc(hidden)]
pub use serde_json;
