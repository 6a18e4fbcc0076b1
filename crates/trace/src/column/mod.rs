//! Column chunks: how a row group of a part is laid out in Parquet, and read back fast.
//!
//! Records are written in groups of [`ROW_GROUP`]; the last may be shorter, and so may one whose
//! dictionary of addresses is full near the end. A row group has one data page a
//! column, so that zstd sees all of it. Indices into dictionaries are packed at 8 or 16 bits, wider
//! than need be: whole bytes let zstd find the repeats of loops, and are read at memory speed.
//! Measurements behind these choices: `docs/trace.md`.
//!
//! | column | layout |
//! |---|---|
//! | `addr` | sorted dictionary, 16-bit indices; byte-stream split when there are many more than 65,536 addresses |
//! | `kind` | dictionary of the five names, 8-bit indices |
//! | `size`, `thread`, `instr` | dictionary (0, 1, 2, ...; a number of 256 or more in the place of one that does not occur), 8- or 16-bit indices, one run when constant; plain past 65,536 values |

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

/// Most records that are encoded together: a row group.
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

/// The Parquet schema of a part.
pub fn schema() -> (TypePtr, SchemaDescPtr) {
    static CELL: OnceLock<(TypePtr, SchemaDescPtr)> = OnceLock::new();
    CELL.get_or_init(|| {
        // A constant string: it parses or every test fails.
        let schema = Arc::new(parse_message_type(SCHEMA).expect("the schema of a part"));
        (schema.clone(), Arc::new(SchemaDescriptor::new(schema)))
    })
    .clone()
}

#[cfg(test)]
mod tests;
