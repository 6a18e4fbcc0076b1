//! The trace as chunks of windows: runs of records with few distinct blocks (`window.rs`).

use nearfar_trace::column::GroupReader;
use nearfar_trace::reader::{Batches, Groups};
use nearfar_trace::{Batch, Columns, Reader, Result};
use rayon::ThreadPool;

use super::options::Options;
use super::window::{Chunk, MAX_BLOCKS, Windower};
use crate::lifetimes::{self, Blocks, Events, Next, Peak};

/// Records per chunk: enough to keep all cores busy, few enough to stay in the shared cache.
const CHUNK: u64 = 1 << 20;
/// Maximum bytes of windows in [`cached_chunks`], whatever `--max-memory` allows.
const MAX_CACHED: u64 = 1 << 29;
/// After 1/`TRIAL_PARTS` of the trace, the size of all windows is extrapolated.
const TRIAL_PARTS: u64 = 16;

pub struct Source {
    groups: Groups,
    group: Option<GroupReader>,
    windower: Windower,
    /// Events that map and free pages; empty without lifetimes.
    events: Events,
    batch: Batch,
    /// log2 of the block size.
    pub block_shift: u32,
}

impl Source {
    /// A stream of the whole trace, for `page_sizes` in ascending order. With `lives`, events free pages.
    pub fn new(
        reader: &Reader,
        options: &Options,
        page_sizes: &[u64],
        lives: bool,
    ) -> Result<Self> {
        let [smallest, largest] = [page_sizes.first(), page_sizes.last()]
            .map(|size| size.map_or(0, |s| s.trailing_zeros()));
        // With lifetimes, blocks have the same size for every selection of `page_sizes`.
        let finest = options.finest.trailing_zeros();
        let block_shift = if lives { finest.min(lifetimes::PAGE_SHIFT) } else { smallest };
        let first = options.tlb.first;
        // A fully associative TLB must hold all pages of a window (`FullLru`).
        let window_blocks = if first.ways.is_none_or(|ways| ways == first.entries) {
            first.entries as usize
        } else {
            MAX_BLOCKS
        };
        let mut windower = Windower::new(block_shift, window_blocks.min(MAX_BLOCKS), options.kinds);
        let (mut events, mut thread) = (Events::none(), false);
        if lives {
            let spaces = options.spaces(reader);
            thread = spaces.several();
            windower = windower.with_lives(Blocks::new(block_shift, largest, spaces));
            events = Events::new(reader)?;
        }
        let mut groups = reader.groups(Columns { thread, ..Columns::PAGING });
        let group = groups.next()?;
        Ok(Self { groups, group, windower, events, batch: Batch::default(), block_shift })
    }

    /// Fill the next chunk. Returns false at the end of the trace.
    pub fn fill(&mut self, chunk: &mut Chunk) -> Result<bool> {
        let Self { groups, group, windower, events, batch, .. } = self;
        windower.begin(chunk);
        let mut read = 0;
        while read < CHUNK {
            let Some(mut current) = group.take() else { break };
            // Decompress the next row group while cutting this one.
            let (next, cut): (_, Result<()>) = rayon::join(
                || groups.next(),
                || {
                    while current.next_into(Batches::MAX, batch)? {
                        add(windower, events, batch, chunk);
                        read += batch.len() as u64;
                    }
                    Ok(())
                },
            );
            cut?;
            *group = next?;
        }
        windower.end(chunk);
        Ok(read > 0)
    }
}

fn add(windower: &mut Windower, events: &mut Events, batch: &mut Batch, chunk: &mut Chunk) {
    for next in events.among(batch.len()) {
        match next {
            Next::Event(event) => windower.event(&event, chunk),
            Next::Records(range) => {
                if let Some(blocks) = windower.lives() {
                    blocks.spaces().place_records(batch, range.clone());
                }
                windower.add(batch, range, chunk);
            }
        }
    }
}

/// All chunks of `source`, and the peak resident set in bytes, for studies whose memory sizes are
/// known only at the end of the trace. `None` if the windows of all `records` would take more than a
/// quarter of `--max-memory`, or [`MAX_CACHED`].
pub fn cached_chunks(
    mut source: Source,
    options: &Options,
    records: u64,
    pool: &ThreadPool,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Option<(Vec<Chunk>, u64)>> {
    let limit = MAX_CACHED.min(options.max_memory / 4);
    let mut peak = Peak::new(source.block_shift, options.files);
    let (mut chunks, mut chunk) = (Vec::new(), Chunk::default());
    let (mut bytes, mut done) = (0, 0u64);
    while pool.install(|| source.fill(&mut chunk))? {
        chunk.changes.iter().for_each(|(_, change)| peak.apply(change));
        bytes += chunk.bytes();
        done += chunk.records;
        let estimate = u128::from(bytes) * u128::from(records) / u128::from(done.max(1));
        if bytes > limit || done >= records / TRIAL_PARTS && estimate > limit.into() {
            return Ok(None);
        }
        // A clone has no spare capacity.
        chunks.push(chunk.clone());
        on_progress(done)?;
    }
    Ok(Some((chunks, peak.bytes())))
}
