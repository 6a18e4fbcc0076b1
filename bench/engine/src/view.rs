//! `view`: times `--view machine`, the paging study without it, and the view's slower reference simulation.

use std::collections::BTreeMap;
use std::path::Path;

use nearfar_hardware::Machine;
use nearfar_schema::Options as _;
use nearfar_study::paging::machine::{Time, reference, times};
use nearfar_study::paging::{Options, Request, simulate};
use nearfar_trace::{Error, Result};
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::measure::Rounds;

pub const OPTIONS: &[&str] = &["--rounds", "--machine", "--page-sizes", "--reference"];

/// Run study and view; `--reference 1` also runs the reference simulation of each page size.
pub fn run(arguments: &Arguments) -> Result<Value> {
    let mut given = BTreeMap::new();
    given.insert("view".to_owned(), "machine".into());
    if let Some(sizes) = arguments.list::<u64>("--page-sizes")? {
        let sizes: Vec<String> = sizes.iter().map(u64::to_string).collect();
        given.insert("page_sizes".to_owned(), sizes.join(",").as_str().into());
    }
    let options = Options::try_from(&Request::read(&given).map_err(Error::refused)?)?;
    let name: String = arguments.option("--machine")?.unwrap_or_default();
    // A built-in machine, so no folder to search.
    let processor = Machine::load(&name, Path::new(""))?.processor(None)?;
    let reader = arguments.open()?;
    let (mut study, mut view, mut slow) = (Rounds::default(), Rounds::default(), Rounds::default());
    let mut cells = Vec::new();
    for _ in 0..arguments.rounds()? {
        let lives = study.time(|| simulate(&reader, &options, &mut |_| Ok(())))?.lifetimes;
        // `&[]`: no storage to read files from.
        let fast =
            view.time(|| times(&reader, &options, (&processor, &[]), lives, &mut |_| Ok(())))?;
        cells = fast.iter().map(|time| json!({"fast": plain(time)})).collect();
        if arguments.option("--reference")?.unwrap_or(0) == 1 {
            let slowly = slow.time(|| {
                let size = |time: &Time| {
                    reference::time(&reader, &options, (&processor, &[]), lives, time.page_bytes)
                };
                fast.iter().map(size).collect::<Result<Vec<Time>>>()
            })?;
            for (cell, time) in cells.iter_mut().zip(&slowly) {
                cell["reference"] = plain(time);
            }
        }
    }
    let mut answer = json!({"records": reader.info().records, "cells": cells});
    answer["study"] = study.json();
    answer["view"] = view.json();
    answer["reference"] = slow.json();
    Ok(answer)
}

fn plain(time: &Time) -> Value {
    json!({
        "page_bytes": time.page_bytes,
        "cpu_ns": time.cpu_ns,
        "tlb_ns": time.tlb_ns,
        "walk_ns": time.walk_ns,
        "cache_ns": time.cache_ns,
        "dram_ns": time.dram_ns,
        "fault_ns": time.fault_ns,
        "walks": time.walks,
        "resident_bytes": time.resident_bytes,
    })
}
