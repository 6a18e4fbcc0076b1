//! `study`: the default paging study, with mere decoding in turn with it when asked.

use nearfar_study::paging::{ClockInsert, MemorySize, Options, simulate};
use nearfar_trace::{Columns, KindSet, Result};
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::decode::decode;
use crate::measure::Rounds;

pub const OPTIONS: &[&str] = &["--rounds", "--threads", "--sample", "--page-sizes", "--decode"];

/// `--threads 0` is one per core; `--decode 1` also times decoding. Answers every cell.
pub fn run(arguments: &Arguments) -> Result<Value> {
    let page_sizes = arguments.list("--page-sizes")?;
    let mut options = Options::new(
        page_sizes.unwrap_or_else(|| (9..=21).map(|shift| 1 << shift).collect()),
        (1..=10).map(|tenth| MemorySize::Fraction(f64::from(tenth) / 10.0)).collect(),
        "64",
        "clock",
        ClockInsert::Set,
        KindSet::ALL,
    )?
    .sampled(arguments.option("--sample")?)?;
    options.threads = arguments.option("--threads")?.unwrap_or(0);
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
                    "faults_error": cell.faults_error,
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
