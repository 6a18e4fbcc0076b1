//! The Parquet layout of a row group, and its fast decoder.
//!
//! Records are written in groups of [`ROW_GROUP`]. The last group may be shorter, and so may a group
//! whose address dictionary becomes full in the group's last eighth. A row group has one data page per
//! column, so that zstd sees the whole column. Dictionary indices have 8 or 16 bits, even if fewer
//! would do: with whole bytes, zstd finds the repetitions of loops, and decoding runs at memory speed.
//! Measurements behind these choices: `docs/trace.md`.
//!
//! | column | layout |
//! |---|---|
//! | `addr` | sorted dictionary, 16-bit indices; byte-stream split if its 65,536 entries do not suffice |
//! | `kind` | dictionary of the names, 8-bit indices |
//! | `size`, `thread`, `instr` | dictionary, 8- or 16-bit indices, one run if constant; plain beyond 65,536 distinct values |
//!
//! An 8-bit index of `size` or `instr` is the number itself, except in a constant column, where it is 0.
//! A number of 256 or more has the index of a smaller number that does not occur.

mod checked;
mod decode;
mod encode;
mod foreign;
mod group;
mod intern;
mod page;

pub(crate) use checked::CheckedPages;
pub use decode::{GroupReader, Part, open_part};
pub use encode::{EncodedGroup, Encoder};
pub(crate) use foreign::{Foreign, guard, system_error};
pub use group::Group;

use std::sync::{Arc, OnceLock};

use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{SchemaDescPtr, SchemaDescriptor, TypePtr};

/// Maximum records of a row group.
pub const ROW_GROUP: usize = 1 << 20;

/// Positions of the columns in the schema.
pub(crate) const ADDR: usize = 0;
pub(crate) const KIND: usize = 1;
pub(crate) const SIZE: usize = 2;
pub(crate) const THREAD: usize = 3;
pub(crate) const INSTR: usize = 4;

/// Names of the columns, in order.
pub(crate) const NAMES: [&str; 5] = ["addr", "kind", "size", "thread", "instr"];

const SCHEMA: &str = "message references {
    required int64 addr (INTEGER(64,false));
    required binary kind (STRING);
    required int32 size (INTEGER(16,false));
    required int32 thread (INTEGER(32,false));
    required int32 instr (INTEGER(32,false));
}";

/// The Parquet schema of a part (a file of records in a trace).
pub fn schema() -> (TypePtr, SchemaDescPtr) {
    static CELL: OnceLock<(TypePtr, SchemaDescPtr)> = OnceLock::new();
    CELL.get_or_init(|| {
        // A constant string; every test checks that it parses.
        let schema = Arc::new(parse_message_type(SCHEMA).expect("the schema of a part"));
        (schema.clone(), Arc::new(SchemaDescriptor::new(schema)))
    })
    .clone()
}

#[cfg(test)]
mod tests;
