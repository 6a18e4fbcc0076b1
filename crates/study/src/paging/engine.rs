//! The interface to simulate several memory sizes at one page size: windows of pages in, counts out.

use super::window::{Chunk, MAX_BLOCKS};

/// Maximum number of memory sizes per engine: the 32-bit state of a page has three bits for each.
pub const SIZES: usize = 10;

/// Counts of one memory size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub faults: u64,
    /// Evictions of dirty pages.
    pub dirty_evictions: u64,
    /// Page faults on pages of files.
    pub file_faults: u64,
    /// Evictions of dirty pages of files.
    pub file_dirty_evictions: u64,
    /// Page faults on pages whose content was discarded.
    pub void_faults: u64,
}

/// Simulates several memory sizes at one page size. Its pages are the frames of [`crate::lifetimes`];
/// without lifetimes, each page is its own frame. Ids are dense and reused.
pub trait Engine: Send {
    /// Prefetch the state of `page`, which a later window contains.
    fn prefetch(&self, _page: u32) {}
    /// Apply the references of one window.
    fn window(&mut self, view: &View<'_>);
    /// The next reference to `page`, whose page number is `number`, is its first.
    fn begin(&mut self, _page: u32, _number: u64) {}
    /// A page that has just begun belongs to a file, and may be executable.
    fn begin_file(&mut self, page: u32, executable: bool);
    fn free(&mut self, page: u32);
    /// The content of a page was discarded, until [`Engine::undo_discard`]: the page is clean, and
    /// a fault on it is not a swap-in.
    fn discard(&mut self, page: u32);
    /// The next reference makes a discarded page an ordinary one.
    fn undo_discard(&mut self, page: u32);
    /// The outcome of each size, in the order given at construction.
    fn outcomes(&self) -> Vec<Outcome>;
}

/// Id of pages that are not simulated (see `sample/`).
pub const NO_PAGE: u32 = u32::MAX;
/// Representative of pages that are not simulated.
pub const NO_REPRESENTATIVE: u8 = u8::MAX;

/// A window at one page size. Its blocks have local numbers, in order of first reference.
pub struct View<'a> {
    pub chunk: &'a Chunk,
    /// Index of the window's first block in the chunk.
    pub first: usize,
    /// Page of each local number.
    pub pages: &'a [u32],
    /// A representative local number of each distinct page, in order of first reference.
    pub distinct: &'a [u8],
    /// By representative: bit mask of all local numbers of its page.
    pub group: &'a [u64; MAX_BLOCKS],
    /// By local number: the representative of its page.
    pub representative: &'a [u8; MAX_BLOCKS],
    /// By page: its local number, valid only if `pages` has the page there.
    pub local_of: &'a [u8],
    /// Bit mask of local numbers that the window writes.
    pub written: u64,
}

impl View<'_> {
    #[inline]
    pub fn page(&self, local: u8) -> u32 {
        self.pages[usize::from(local)]
    }

    /// Bit mask of all local numbers of the page of `local`.
    #[inline]
    pub fn group_of_local(&self, local: u8) -> u64 {
        self.group[usize::from(self.representative[usize::from(local)])]
    }

    /// The window's references, as in [`Chunk::refs`].
    pub fn refs(&self) -> &[u8] {
        let end = self.first + self.pages.len();
        let from = self.chunk.segment[self.first] as usize;
        &self.chunk.refs[from..self.chunk.segment[end] as usize]
    }
}
