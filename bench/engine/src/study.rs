//! `study`: times the default paging study, and optionally decoding alone, in turn.

use std::collections::BTreeMap;

use nearfar_schema::Options as _;
use nearfar_study::paging::{Options, Request, simulate};
use nearfar_trace::{Columns, Error, Result};
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::decode::decode;
use crate::measure::Rounds;

pub const OPTIONS: &[&str] = &["--rounds", "--threads", "--decode", "--replacement"];

/// Run the study; `--threads 0` is one thread per core, `--decode 1` also times decoding alone.
pub fn run(arguments: &Arguments) -> Result<Value> {
    // Other options have the defaults of `nearfar paging`.
    let mut given = BTreeMap::new();
    // Off, because libCacheSim has no events that end the lifetime of pages.
    given.insert("lifetimes".to_owned(), "off".into());
    if let Some(policy) = arguments.option::<String>("--replacement")? {
        given.insert("replacement".to_owned(), policy.as_str().into());
    }
    if let Some(threads) = arguments.option::<u64>("--threads")? {
        given.insert("threads".to_owned(), threads.into());
    }
    let options = Options::try_from(&Request::read(&given).map_err(Error::refused)?)?;
    let reader = arguments.open()?;
    let with_decode = arguments.option("--decode")?.unwrap_or(0) == 1;

    let (mut all, mut paging, mut study) =
        (Rounds::default(), Rounds::default(), Rounds::default());
    let mut answer = json!({});
    for _ in 0..arguments.rounds()? {
        if with_decode {
            all.time(|| decode(&reader, Columns::ALL))?;
            paging.time(|| decode(&reader, Columns::PAGING))?;
        }
        let simulated = study.time(|| simulate(&reader, &options, &mut |_| Ok(())))?;
        let cells: Vec<_> = simulated
            .cells
            .iter()
            .map(|cell| {
                json!({
                    "page_bytes": cell.page_bytes,
                    "memory_fraction": cell.memory_fraction,
                    "frames": cell.frames,
                    "references": cell.references,
                    "tlb_misses": cell.tlb_misses,
                    "faults": cell.faults,
                    "pages": cell.pages,
                })
            })
            .collect();
        answer = json!({
            "records": simulated.records,
            "footprint_bytes": simulated.footprint_bytes,
            "cells": cells,
        });
    }
    answer["study"] = study.json();
    if with_decode {
        answer["all"] = all.json();
        answer["paging"] = paging.json();
    }
    Ok(answer)
}
