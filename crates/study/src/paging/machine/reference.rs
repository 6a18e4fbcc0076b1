//! The same, slowly: one page size, every reference looked up one after the other, and the lines of walks
//! go through the caches with all others. What the fast way gives up is the difference.

use std::collections::HashMap;

use nearfar_hardware::processor::{Found, Hierarchy, Line, Processor};
use nearfar_trace::{Batch, Columns, Kind, KindSet, Reader, Result, last_byte};

use super::super::options::Options;
use super::touches::{Ask, Surroundings, Touch};
use super::waits::{Lines, PageSize};
use super::{LARGE, SMALL, Time};
use crate::lifetimes::{Blocks, Events, Next};

struct Coupled<'a>(&'a mut Hierarchy);

impl Lines for Coupled<'_> {
    fn found(&mut self, line: Line, _: u64) -> Found {
        self.0.walk(line)
    }
}

/// The time of one page size.
///
/// # Errors
/// The trace cannot be read.
pub fn time(
    reader: &Reader,
    options: &Options,
    processor: &Processor,
    lives: bool,
    page_bytes: u64,
) -> Result<Time> {
    let mut events = if lives { Events::new(reader)? } else { Events::none() };
    let mut blocks = Blocks::new(SMALL, LARGE, options.spaces(reader));
    let mut surroundings = Surroundings::default();
    let mut hierarchy = Hierarchy::new(&processor.caches);
    let mut size = PageSize::new(page_bytes.trailing_zeros(), processor);
    let mut instructions: HashMap<u32, u64> = HashMap::new();
    let (mut batches, mut batch) = (reader.batches(Columns::ALL), Batch::default());
    while batches.next_into(&mut batch)? {
        for next in events.among(batch.len()) {
            let range = match next {
                Next::Event(event) => {
                    blocks.apply(&event);
                    surroundings.of(&mut blocks).for_each(|change| size.change(&change));
                    continue;
                }
                Next::Records(range) => range,
            };
            blocks.spaces().tell_apart(&mut batch, range.clone());
            for at in range {
                let (addr, thread) = (batch.addr[at], batch.thread[at]);
                let so_far = instructions.entry(thread).or_default();
                *so_far += u64::from(batch.instr[at]);
                let kind = batch.kind[at];
                if options.kinds.0 >> kind & 1 == 0 {
                    continue;
                }
                let (write, fetch) =
                    (KindSet::WRITES.0 >> kind & 1 == 1, kind == Kind::Fetch as u8);
                let shift = hierarchy.line_shift();
                for line in addr >> shift..=last_byte(addr, batch.size[at]) >> shift {
                    let found = hierarchy.access(line, fetch);
                    let number = line >> (SMALL - shift);
                    let block = blocks.reference(number, write);
                    surroundings.of(&mut blocks).for_each(|change| size.change(&change));
                    let touch = Touch {
                        number,
                        instructions: *so_far,
                        now: hierarchy.now(),
                        block,
                        thread,
                        found,
                        fetch,
                        write,
                        ask: Ask::Once,
                    };
                    size.touch(&touch, &mut Coupled(&mut hierarchy));
                }
            }
        }
    }
    Ok(size.time((instructions.values().sum(), surroundings.maps())))
}
