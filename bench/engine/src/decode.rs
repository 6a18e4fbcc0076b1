//! `decode`: times decoding alone, of all columns and of the three that the paging study reads, in
//! turn, on one thread.

use std::hint::black_box;

use nearfar_trace::{Batch, Columns, Reader, Result};
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::measure::Rounds;

pub const OPTIONS: &[&str] = &["--rounds"];

/// Decode the whole trace; returns the number of records.
pub fn decode(reader: &Reader, columns: Columns) -> Result<u64> {
    let mut batches = reader.batches(columns);
    let mut batch = Batch::default();
    let mut records = 0;
    while batches.next_into(&mut batch)? {
        records += black_box(&batch).len() as u64;
    }
    Ok(records)
}

pub fn run(arguments: &Arguments) -> Result<Value> {
    let reader = arguments.open()?;
    let (mut all, mut paging) = (Rounds::default(), Rounds::default());
    let mut records = 0;
    for _ in 0..arguments.rounds()? {
        records = all.time(|| decode(&reader, Columns::ALL))?;
        paging.time(|| decode(&reader, Columns::PAGING))?;
    }
    let bytes: u64 = reader.info().parts.iter().map(|part| part.bytes).sum();
    Ok(json!({
        "records": records, "bytes": bytes, "all": all.json(), "paging": paging.json(),
    }))
}
