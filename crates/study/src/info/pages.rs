//! Dense ids of 4 KiB pages.

use nearfar_trace::hash::PageMap;

/// Pages per entry of the map. Dense footprints take about 6 bytes per page, sparse footprints 80.
const CHUNK: u64 = 16;
const RECENT: usize = 1 << 12;
const NONE: u32 = u32::MAX;

/// Maximum number of pages; [`super::reuse`] reserves higher ids.
pub const MAX_PAGES: usize = u32::MAX as usize - 16;

/// Maps page numbers (address >> 12) to ids 0, 1, 2, ... in order of first use.
pub struct Pages {
    /// Direct-mapped cache of (page, id).
    recent: Vec<(u64, u32)>,
    chunks: PageMap<[u32; CHUNK as usize]>,
    count: u32,
}

impl Default for Pages {
    fn default() -> Self {
        Self { recent: vec![(u64::MAX, 0); RECENT], chunks: PageMap::default(), count: 0 }
    }
}

impl Pages {
    /// The id of `page`, and whether it is new. A new id equals the number of pages before it.
    #[inline]
    pub fn intern(&mut self, page: u64) -> (u32, bool) {
        let index = cache_index(page);
        let (known, id) = self.recent[index];
        if known == page {
            return (id, false);
        }
        let slot = &mut self.chunks.entry(page / CHUNK).or_insert([NONE; CHUNK as usize])
            [(page % CHUNK) as usize];
        let new = *slot == NONE;
        if new {
            *slot = self.count;
            self.count += 1;
        }
        self.recent[index] = (page, *slot);
        (*slot, new)
    }

    pub fn len(&self) -> usize {
        self.count as usize
    }
}

fn cache_index(page: u64) -> usize {
    (page ^ page >> 12) as usize % RECENT
}
