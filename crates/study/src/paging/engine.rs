//! The contract between a page size and what simulates memories at it: windows of pages in, counts
//! out.

use super::window::{Chunk, MAX_BLOCKS};

/// Memory sizes that one engine simulates: three bits each in a word.
pub const SIZES: usize = 10;

/// What a memory size came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Page faults.
    pub faults: u64,
    /// Evictions of pages written since they became resident.
    pub dirty_evictions: u64,
    /// Page faults on pages of files.
    pub file_faults: u64,
    /// Evictions of written pages of files.
    pub file_dirty_evictions: u64,
    /// Page faults on pages whose content had been discarded.
    pub void_faults: u64,
}

/// Sizes above which an engine works in another way. No count depends on them.
#[derive(Clone, Copy, Debug)]
pub struct Thresholds {
    /// Pages of a page size above which their table entries are prefetched.
    pub prefetch_pages: usize,
    /// Pages above which what a policy knows of a page is prefetched before its fault.
    pub prefetch_policy_pages: usize,
    /// Frames above which a policy that can takes the faults of a batch all at once: it seldom looks at a
    /// page of the batch itself.
    pub batch_frames: u64,
    /// Distinct blocks of a batch.
    pub batch_blocks: usize,
    /// Pages above which a whole window is one batch, as its pages are seldom looked at.
    pub window_batch_pages: usize,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            prefetch_pages: 1 << 14,
            prefetch_policy_pages: 1 << 12,
            batch_frames: 512,
            batch_blocks: 16,
            window_batch_pages: 1 << 16,
        }
    }
}

#[cfg(test)]
impl Thresholds {
    /// So small that random traces come above them.
    pub const SMALL: Self = Self {
        prefetch_pages: 8,
        prefetch_policy_pages: 20,
        batch_frames: 4,
        batch_blocks: 3,
        window_batch_pages: 30,
    };
}

/// Simulates some memory sizes at one page size. Pages are frames, that is what pages of address
/// spaces hold (see [`crate::lifetimes`]); where no page ends they are the same. Their ids are dense;
/// that of a page that was freed may come again, for another.
pub trait Engine: Send {
    /// A page of a window to come.
    fn expect(&self, _page: u32) {}
    /// Apply the references of one window.
    fn window(&mut self, view: &View<'_>);
    /// A page begins, at this number: the next reference to it is its first.
    fn begin(&mut self, _page: u32, _number: u64) {}
    /// A page that has just begun is one of a file, and whether it is code.
    fn begin_file(&mut self, page: u32, executable: bool);
    /// A page is freed, wherever it is.
    fn free(&mut self, page: u32);
    /// What a page holds is not wanted, until [`Engine::keep`]: it is clean, and a fault on it is not
    /// one on what was swapped out.
    fn discard(&mut self, page: u32);
    /// The next reference to a discarded page makes it one like others.
    fn keep(&mut self, page: u32);
    /// The outcome of each size, in the order given at construction.
    fn outcomes(&self) -> Vec<Outcome>;
}

/// Mark of a page that is not simulated (see `sample/`), in place of its id or local number.
pub const NO_PAGE: u32 = u32::MAX;
/// The same for a stand-in.
pub const NO_STAND_IN: u8 = u8::MAX;

/// A window at one page size.
pub struct View<'a> {
    /// The chunk it is in.
    pub chunk: &'a Chunk,
    /// First `j` of the window in the chunk.
    pub first: usize,
    /// Page of each local number.
    pub pages: &'a [u32],
    /// Local numbers standing for the distinct pages, in order of first reference.
    pub distinct: &'a [u8],
    /// All local numbers of the page that a member of `distinct` stands for.
    pub group: &'a [u64; MAX_BLOCKS],
    /// The member of `distinct` that stands for each local number's page.
    pub stand_in: &'a [u8; MAX_BLOCKS],
    /// Local number of a page, if `pages` agrees.
    pub local_of: &'a [u8],
    /// Local numbers written anywhere in the window.
    pub written: u64,
}

impl View<'_> {
    /// Page of a local number.
    #[inline]
    pub fn page(&self, local: u8) -> u32 {
        self.pages[usize::from(local)]
    }

    /// All local numbers of the page of `local`.
    #[inline]
    pub fn group_of_local(&self, local: u8) -> u64 {
        self.group[usize::from(self.stand_in[usize::from(local)])]
    }

    /// The window's references, a byte each.
    pub fn refs(&self) -> &[u8] {
        let end = self.first + self.pages.len();
        let from = self.chunk.segment[self.first] as usize;
        &self.chunk.refs[from..self.chunk.segment[end] as usize]
    }
}
