//! `lru`: times LRU misses at every memory size at once, by the engine and by a plain Fenwick tree in
//! turn, over the same dense page numbers in memory. Fails if any stack distance differs.

use std::hint::black_box;

use nearfar_kernel::replacement::stack::StackDistance;
use nearfar_trace::{Batch, Columns, Error, Reader, Result, last_byte};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::fenwick::Fenwick;
use crate::measure::Rounds;

pub const OPTIONS: &[&str] = &["--rounds", "--page-bytes"];

/// Every reference is a load: stack distances do not depend on writes.
const WRITE: bool = false;

/// Page references of the trace as dense ids, in order of first reference, and the number of pages.
/// A record that crosses a page boundary references both pages.
fn dense(reader: &Reader, page_bytes: u64) -> Result<(Vec<u32>, usize)> {
    let shift = page_bytes.trailing_zeros();
    let mut ids = FxHashMap::<u64, u32>::default();
    let mut references = Vec::new();
    let (mut batches, mut batch) = (reader.batches(Columns::PAGING), Batch::default());
    while batches.next_into(&mut batch)? {
        for (&addr, &size) in batch.addr.iter().zip(&batch.size) {
            let last = last_byte(addr, size);
            for number in addr >> shift..=last >> shift {
                let next = ids.len() as u32;
                references.push(*ids.entry(number).or_insert(next));
            }
        }
    }
    Ok((references, ids.len()))
}

fn by_stack(references: &[u32]) -> StackDistance {
    /// Prefetch distance, references; a study prefetches too.
    const AHEAD: usize = 16;
    let mut stack = StackDistance::new();
    let ahead = references.iter().skip(AHEAD).chain(references.last().into_iter().cycle());
    for (&page, &soon) in references.iter().zip(ahead) {
        stack.prefetch(soon);
        black_box(stack.access(page, WRITE));
    }
    stack
}

fn by_fenwick(references: &[u32], pages: usize) -> Fenwick {
    let mut fenwick = Fenwick::new(references.len(), pages);
    for &page in references {
        black_box(fenwick.access(page));
    }
    fenwick
}

/// Compare both at every reference; an error at the first difference.
fn check(references: &[u32], pages: usize) -> Result<()> {
    let (mut stack, mut fenwick) = (StackDistance::new(), Fenwick::new(references.len(), pages));
    for (number, &page) in references.iter().enumerate() {
        let (ours, plain) = (stack.access(page, WRITE), fenwick.access(page));
        if ours != plain {
            return Err(Error::input(
                format!("reference {number}"),
                format!("stack distance {ours:?}, by the plain Fenwick tree {plain:?}"),
                "one of the two is wrong: please report it",
            ));
        }
    }
    Ok(())
}

pub fn run(arguments: &Arguments) -> Result<Value> {
    let page_bytes = arguments.option("--page-bytes")?.unwrap_or(4096u64);
    if !page_bytes.is_power_of_two() {
        let what = format!("{page_bytes} is not a power of two");
        return Err(Error::input("--page-bytes", what, "give for instance 4096"));
    }
    let reader = arguments.open()?;
    let (references, pages) = dense(&reader, page_bytes)?;
    check(&references, pages)?;
    let (mut stack, mut fenwick) = (Rounds::default(), Rounds::default());
    let mut curves = (Vec::new(), Vec::new());
    // Return a few points of both curves, for comparison with another implementation.
    let frames: Vec<usize> = (1..=10).map(|tenth| (pages * tenth / 10).max(1)).collect();
    for _ in 0..arguments.rounds()? {
        let ours = stack.time(|| Ok(by_stack(&references)))?;
        curves.0 = frames.iter().map(|&f| ours.faults(f as u64)).collect::<Vec<_>>();
        drop(ours);
        let plain = fenwick.time(|| Ok(by_fenwick(&references, pages)))?;
        curves.1 = frames.iter().map(|&f| plain.faults(f)).collect::<Vec<_>>();
    }
    Ok(json!({
        "page_bytes": page_bytes, "references": references.len(), "pages": pages,
        "ids_bytes": references.len() * 4, "frames": frames,
        "stack": stack.json(), "stack_faults": curves.0,
        "fenwick": fenwick.json(), "fenwick_faults": curves.1,
    }))
}
