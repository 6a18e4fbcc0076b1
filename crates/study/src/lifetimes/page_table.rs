//! Pages and frames at one page size, from the changes of blocks (see [`super`] for these terms).

use nearfar_trace::hash::PageMap;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Backing, Change};

/// No frame: the shared zero page, or a page that is not simulated.
pub const NO_FRAME: u32 = u32::MAX;
/// The page of an unused block id.
const NO_PAGE: u32 = u32::MAX;

/// A change that TLBs and memories must apply before the next reference. Pages and frames share one
/// id space; ids are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A translation is removed.
    Shootdown { page: u32, number: u64 },
    /// A new frame. The next reference to it is its first, and is to the page with this number.
    Begin { frame: u32, number: u64, of_file: bool, executable: bool },
    /// A frame is freed.
    Free(u32),
    /// The content of a frame is discarded (`MADV_FREE`).
    Discard(u32),
    /// A discarded frame is in use again: the next reference writes it, or is the first to one of its blocks.
    UndoDiscard(u32),
}

#[derive(Clone, Copy, Default)]
struct Page {
    /// See [`PageTable::number`].
    number: u64,
    /// Number of touched blocks; 0 for unused ids.
    live: u32,
    /// Number of discarded blocks.
    lazy: u32,
    frame: u32,
    /// The frame belongs to a shared mapping: after a write, the page keeps it.
    shared: bool,
}

#[derive(Clone, Copy, Default)]
struct Frame {
    /// Number of pages with this frame.
    pages: u32,
    used: bool,
    /// Object (file or shared memory) and byte offset in it; `None` for private memory.
    object: Option<(u32, u64)>,
    /// The frame survives its last page.
    stays: bool,
    discarded: bool,
    simulated: bool,
}

/// Selects the simulated frames by the number of their first page.
pub type FrameFilter = dyn Fn(u64) -> bool + Send;

#[derive(Default)]
pub struct PageTable {
    shift: u32,
    block_shift: u32,
    page_of: Vec<u32>,
    ids: PageMap<u32>,
    pages: Vec<Page>,
    frames: Vec<Frame>,
    unused_ids: Vec<u32>,
    /// Frames by object and byte offset.
    objects: FxHashMap<(u32, u64), u32>,
    /// Discarded blocks.
    lazy: FxHashSet<u32>,
    /// Number of pages whose frame has another id or is not simulated.
    aliases: u64,
    filter: Option<Box<FrameFilter>>,
    /// Frames of files are simulated.
    files: bool,
    actions: Vec<Action>,
    /// Current number of simulated frames.
    used: u64,
    /// Simulated frames so far: of memory without a file.
    pub filled: u64,
    /// Simulated frames of files so far.
    pub read: u64,
}

impl PageTable {
    /// An empty table of pages of 2^`shift` bytes and blocks of 2^`block_shift` bytes. `filter`
    /// selects the simulated frames; `None` for all.
    pub fn new(shift: u32, block_shift: u32, filter: Option<Box<FrameFilter>>) -> Self {
        Self { shift, block_shift, filter, files: true, ..Self::default() }
    }

    /// Set whether frames of files are simulated.
    pub fn with_files(self, files: bool) -> Self {
        Self { files, ..self }
    }

    /// Upper bound (exclusive) of ids so far.
    pub fn ids(&self) -> usize {
        self.pages.len()
    }

    #[inline]
    pub fn page(&self, block: u32) -> u32 {
        self.page_of[block as usize]
    }

    /// The number of a page: its [`place`](super::place) >> page shift.
    pub fn number(&self, page: u32) -> u64 {
        self.pages[page as usize].number
    }

    pub fn used(&self) -> u64 {
        self.used
    }

    /// Whether the frame of each page has the page's id.
    #[inline]
    pub fn plain(&self) -> bool {
        self.aliases == 0
    }

    /// The frame of a page; [`NO_FRAME`] if there is none or it is not simulated.
    #[inline]
    pub fn frame(&self, page: u32) -> u32 {
        let frame = self.pages[page as usize].frame;
        match self.frames.get(frame as usize) {
            Some(known) if known.simulated => frame,
            _ => NO_FRAME,
        }
    }

    /// Take the actions since the last call, in order.
    pub fn actions(&mut self) -> std::vec::Drain<'_, Action> {
        self.actions.drain(..)
    }

    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Born { block, number, backing, written } => {
                self.born(*block, *number, *backing, *written);
            }
            Change::Written(block) => {
                let page = self.page_of[*block as usize];
                self.change_page(page, |table| table.write(page));
                self.undo_discard(*block);
            }
            Change::Ended { blocks, removed, .. } => {
                for &block in blocks {
                    self.end(block, *removed);
                }
            }
            Change::Discarded(blocks) => {
                for &block in blocks {
                    let page = self.page_of[block as usize];
                    self.lazy.insert(block);
                    self.pages[page as usize].lazy += 1;
                    self.update_discarded(page);
                    self.shoot_down(page);
                }
            }
            Change::Forked(blocks) => {
                for &(block, copy, number) in blocks {
                    self.fork(block, copy, number);
                }
            }
            Change::Moved { blocks, by, .. } => self.move_blocks(blocks, *by),
            Change::Area { .. } | Change::Collapse { .. } => {}
        }
    }

    fn new_id(&mut self) -> u32 {
        self.unused_ids.pop().unwrap_or_else(|| {
            self.pages.push(Page::default());
            self.frames.push(Frame::default());
            self.pages.len() as u32 - 1
        })
    }

    /// A new page without a frame.
    fn new_page(&mut self, number: u64) -> u32 {
        let page = self.new_id();
        self.pages[page as usize] = Page { number, frame: NO_FRAME, ..Page::default() };
        self.ids.insert(number, page);
        page
    }

    fn release_id(&mut self, id: u32) {
        if self.pages[id as usize].live == 0 && !self.frames[id as usize].used {
            self.unused_ids.push(id);
        }
    }

    fn place_block(&mut self, block: u32, page: u32) {
        let index = block as usize;
        if self.page_of.len() <= index {
            self.page_of.resize(index + 1, NO_PAGE);
        }
        self.page_of[index] = page;
        self.pages[page as usize].live += 1;
    }

    /// Give a frame to a page that has none.
    fn set_frame(&mut self, page: u32, frame: u32) {
        self.pages[page as usize].frame = frame;
        if frame != NO_FRAME {
            self.frames[frame as usize].pages += 1;
        }
    }

    fn is_alias(&self, page: u32) -> bool {
        self.frame(page) != page
    }

    /// Change a page, and update the number of aliases.
    fn change_page(&mut self, page: u32, change: impl FnOnce(&mut Self)) {
        let before = self.pages[page as usize].live > 0 && self.is_alias(page);
        change(self);
        let after = self.pages[page as usize].live > 0 && self.is_alias(page);
        self.aliases = self.aliases + u64::from(after) - u64::from(before);
    }

    fn born(&mut self, block: u32, number: u64, backing: Backing, written: bool) {
        let number = number >> (self.shift - self.block_shift);
        match self.ids.get(&number) {
            Some(&page) => self.change_page(page, |table| {
                table.place_block(block, page);
                if written && !matches!(backing, Backing::Object { private: false, .. }) {
                    table.write(page);
                } else if table.pages[page as usize].frame == NO_FRAME && backing != Backing::Zeros
                {
                    table.shoot_down(page);
                    table.begin(page, backing, written);
                }
                table.update_discarded(page);
            }),
            None => {
                let page = self.new_page(number);
                self.change_page(page, |table| {
                    table.place_block(block, page);
                    if written || backing != Backing::Zeros {
                        table.begin(page, backing, written);
                    }
                });
            }
        }
    }

    /// Give a page its first frame.
    fn begin(&mut self, page: u32, backing: Backing, written: bool) {
        let Backing::Object { object, start, private, writable, stays, of_file, executable } =
            backing
        else {
            return self.own_frame(page);
        };
        if private && written {
            return self.own_frame(page);
        }
        self.pages[page as usize].shared = !private;
        let number = self.pages[page as usize].number;
        let addr = super::address(number << self.shift);
        let key = (object, addr.wrapping_sub(start));
        if let Some(&frame) = self.objects.get(&key) {
            return self.set_frame(page, frame);
        }
        // Reserve the page's id for the private frame that the first write makes.
        let used = self.frames[page as usize].used;
        let frame = if (private && writable) || used { self.new_id() } else { page };
        self.objects.insert(key, frame);
        let new = Frame { object: Some(key), stays, ..Frame::default() };
        self.new_frame(frame, number, new, of_file, executable);
        self.set_frame(page, frame);
    }

    /// Give a page a new frame of private memory.
    fn own_frame(&mut self, page: u32) {
        let frame = if self.frames[page as usize].used { self.new_id() } else { page };
        let number = self.pages[page as usize].number;
        let (of_file, executable) = (false, false);
        self.new_frame(frame, number, Frame::default(), of_file, executable);
        self.set_frame(page, frame);
    }

    fn new_frame(&mut self, frame: u32, number: u64, new: Frame, of_file: bool, executable: bool) {
        let selected = self.filter.as_ref().is_none_or(|filter| filter(number));
        let simulated = selected && (self.files || !of_file);
        self.frames[frame as usize] = Frame { used: true, simulated, ..new };
        if simulated {
            self.used += 1;
            *if of_file { &mut self.read } else { &mut self.filled } += 1;
            self.actions.push(Action::Begin { frame, number, of_file, executable });
        }
    }

    /// Remove the frame of a page. With its last page the frame is freed, unless it `stays` and its
    /// content is not `removed`.
    fn leave_frame(&mut self, page: u32, removed: bool) {
        let frame = std::mem::replace(&mut self.pages[page as usize].frame, NO_FRAME);
        let Some(known) = self.frames.get_mut(frame as usize) else { return };
        known.pages -= 1;
        if known.pages == 0 && (!known.stays || removed) {
            known.used = false;
            if known.simulated {
                self.used -= 1;
                self.actions.push(Action::Free(frame));
            }
            if let Some(key) = known.object.take() {
                self.objects.remove(&key);
            }
            if frame != page {
                self.release_id(frame);
            }
        }
    }

    /// Apply a write: give the page its own frame, unless it has one or its mapping is shared.
    fn write(&mut self, page: u32) {
        let Page { frame, shared, .. } = self.pages[page as usize];
        let keeps_frame = match self.frames.get(frame as usize) {
            None => false,
            Some(frame) => shared || frame.object.is_none() && frame.pages == 1,
        };
        if !keeps_frame {
            self.shoot_down(page);
            self.leave_frame(page, false);
            self.own_frame(page);
        }
    }

    fn shoot_down(&mut self, page: u32) {
        let number = self.pages[page as usize].number;
        let last = Action::Shootdown { page, number };
        if self.actions.last() != Some(&last) {
            self.actions.push(last);
        }
    }

    fn end(&mut self, block: u32, removed: bool) {
        let page = std::mem::replace(&mut self.page_of[block as usize], NO_PAGE);
        self.change_page(page, |table| {
            table.shoot_down(page);
            let lazy = !table.lazy.is_empty() && table.lazy.remove(&block);
            let known = &mut table.pages[page as usize];
            known.live -= 1;
            known.lazy -= u32::from(lazy);
            let Page { number, live, .. } = *known;
            if live > 0 {
                return table.update_discarded(page);
            }
            table.forget_number(number, page);
            table.leave_frame(page, removed);
            table.release_id(page);
        });
    }

    fn undo_discard(&mut self, block: u32) {
        let page = self.page_of[block as usize];
        if !self.lazy.is_empty() && self.lazy.remove(&block) {
            self.pages[page as usize].lazy -= 1;
        }
        self.update_discarded(page);
    }

    /// Update whether a page's frame is discarded. A frame of only one page becomes discarded when all
    /// touched blocks of the page are. It stays so, even after a fork, until a block of any of its pages
    /// is not discarded.
    fn update_discarded(&mut self, page: u32) {
        let Page { frame, live, lazy, .. } = self.pages[page as usize];
        let Some(known) = self.frames.get_mut(frame as usize) else { return };
        let exclusive = known.object.is_none() && known.pages == 1;
        let discarded = live == lazy && (known.discarded || exclusive);
        if std::mem::replace(&mut known.discarded, discarded) != discarded && known.simulated {
            self.actions.push(if discarded {
                Action::Discard(frame)
            } else {
                Action::UndoDiscard(frame)
            });
        }
    }

    fn fork(&mut self, block: u32, copy: u32, number: u64) {
        let parent = self.page_of[block as usize];
        let number = number >> (self.shift - self.block_shift);
        self.shoot_down(parent);
        let page = match self.ids.get(&number) {
            Some(&page) => {
                self.place_block(copy, page);
                page
            }
            None => {
                let page = self.new_page(number);
                self.change_page(page, |table| {
                    table.place_block(copy, page);
                    let Page { frame, shared, .. } = table.pages[parent as usize];
                    table.set_frame(page, frame);
                    table.pages[page as usize].shared = shared;
                });
                page
            }
        };
        if self.lazy.contains(&block) {
            self.lazy.insert(copy);
            self.pages[page as usize].lazy += 1;
        }
    }

    /// Move blocks by `by` bytes. A page gets a new number if all its touched blocks move, they keep
    /// their offsets in the page, and no page has that number. Other pages keep theirs.
    fn move_blocks(&mut self, blocks: &[(u32, u64)], by: u64) {
        let mut moved: FxHashMap<u32, (u32, u64)> = FxHashMap::default();
        let mut order = Vec::new();
        for &(block, number) in blocks {
            let page = self.page_of[block as usize];
            let (count, _) = moved.entry(page).or_insert_with(|| {
                order.push(page);
                (0, number >> (self.shift - self.block_shift))
            });
            *count += 1;
        }
        let keeps_offsets = by.is_multiple_of(1 << self.shift);
        for &page in &order {
            self.shoot_down(page);
        }
        for page in order {
            let (count, number) = moved[&page];
            let Page { number: before, live, .. } = self.pages[page as usize];
            if keeps_offsets && count == live && !self.ids.contains_key(&number) {
                self.forget_number(before, page);
                self.ids.insert(number, page);
                self.pages[page as usize].number = number;
            }
        }
    }

    /// Remove `page` from `ids`: blocks born at its number get a new page.
    fn forget_number(&mut self, number: u64, page: u32) {
        if self.ids.get(&number) == Some(&page) {
            self.ids.remove(&number);
        }
    }
}
