//! Distinct 4 KiB pages, with the kinds of the references that touched them.

use std::collections::BTreeMap;

use crate::hash::PageMap;
use crate::record::KindSet;

/// log2 of the page size of footprints.
pub const PAGE_SHIFT: u32 = 12;
const CHUNK: u64 = 64;

/// The kinds that touched each 4 KiB page: one byte per page, in chunks of 64 pages. A dense
/// footprint of 10^8 pages takes about 130 MB.
#[derive(Debug, Default)]
pub struct Footprint {
    chunks: PageMap<Box<[u8; CHUNK as usize]>>,
}

impl Footprint {
    /// Add `page` (an address >> 12), touched by `kinds` (one bit each).
    pub fn touch(&mut self, page: u64, kinds: u8) {
        let chunk =
            self.chunks.entry(page / CHUNK).or_insert_with(|| Box::new([0; CHUNK as usize]));
        chunk[(page % CHUNK) as usize] |= kinds;
    }

    /// Number of pages by exact set of kinds, with the labels of `trace.json`.
    pub fn by_kinds(&self) -> BTreeMap<String, u64> {
        let mut counts = [0u64; 256];
        for chunk in self.chunks.values() {
            for &kinds in chunk.iter() {
                counts[usize::from(kinds)] += 1;
            }
        }
        (1..=KindSet::ALL.0)
            .filter(|&kinds| counts[usize::from(kinds)] > 0)
            .map(|kinds| (KindSet(kinds).label(), counts[usize::from(kinds)]))
            .collect()
    }
}
