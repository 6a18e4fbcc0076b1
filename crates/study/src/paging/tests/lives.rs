//! Reference implementation of lifetimes, and tests of studies against it ([`check`]).

mod check;
mod memories;
mod steps;

use std::collections::{BTreeMap, HashMap};

pub use memories::{PlainClock, PlainLru, PlainMemory, tlb_misses};
use nearfar_trace::{RegionEvent, RegionKind, Source, Writer, WriterOptions};
pub use steps::steps;

use super::*;

#[derive(Clone, Debug)]
pub enum Step {
    Event(RegionEvent),
    Record(Record),
}

#[derive(Clone, Copy, Debug)]
struct Map {
    /// Device and inode, or the number of the event for shared memory without a file.
    object: Option<(u64, u64)>,
    /// Address of offset 0 of the object.
    start: u64,
    private: bool,
    writable: bool,
    executable: bool,
    /// Frames outlive the pages that map them.
    stays: bool,
}

#[derive(Debug)]
pub struct PlainFrame {
    /// Object and offset in it.
    object: Option<((u64, u64), u64)>,
    stays: bool,
    pub of_file: bool,
    pub executable: bool,
    /// Number of its first page.
    pub place: u64,
    /// Number of pages that map it.
    pages: usize,
    discarded: bool,
}

#[derive(Debug)]
struct PlainPage {
    space: usize,
    number: u64,
    frame: Option<usize>,
    shared: bool,
}

/// An event at one page size, which a TLB and memories replay.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Log {
    Access {
        page: u64,
        frame: Option<usize>,
        write: bool,
    },
    Shootdown(u64),
    Free(usize),
    Discard(usize),
    /// A discarded frame is in use again.
    Keep(usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Touched {
    /// The next write is reported to its page.
    watched: bool,
    /// Freed with `MADV_FREE`.
    lazy: bool,
    of_object: bool,
    page: usize,
}

/// Address spaces as tables of every 4 KiB page, and pages as tables of every block.
#[derive(Default)]
pub struct World {
    page: u64,
    block: u64,
    processes: Vec<u32>,
    space_of: HashMap<u32, usize>,
    maps: Vec<BTreeMap<u64, Map>>,
    heaps: Vec<Option<(u64, u64)>>,
    kernel: Vec<(u64, u64, Map)>,
    blocks: BTreeMap<(usize, u64), Touched>,
    pages: Vec<PlainPage>,
    /// Existing pages, by space and number.
    numbers: BTreeMap<(usize, u64), usize>,
    frames: Vec<PlainFrame>,
    pub(crate) log: Vec<Log>,
    events: u64,
    /// Number of freed frames.
    freed: u64,
    pub peak: u64,
}

/// Start of the page caches of files.
const KERNEL: u64 = 1 << 63;

impl World {
    /// An empty world; pages of `page` bytes, blocks of `block` bytes.
    pub fn new(page: u64, block: u64, processes: &[u32]) -> Self {
        let mut world = Self { page, block, processes: processes.to_vec(), ..Self::default() };
        world.space(processes[0]);
        world
    }

    pub fn resident(&self) -> u64 {
        self.frames.len() as u64 - self.freed
    }

    fn space(&mut self, process: u32) -> usize {
        if let Some(&space) = self.space_of.get(&process) {
            return space;
        }
        // The lowest unused space, because its number selects the sets of TLBs.
        let used = |space: &usize| self.space_of.values().any(|used| used == space);
        let space = (0..).find(|space| !used(space)).unwrap();
        if space == self.maps.len() {
            self.maps.push(BTreeMap::new());
            self.heaps.push(None);
        }
        self.space_of.insert(process, space);
        space
    }

    fn number(&self, space: usize, addr: u64, size: u64) -> u64 {
        (if addr < KERNEL { addr | (space as u64) << 48 } else { addr }) / size
    }

    /// The page number that the engines use.
    fn engine_number(&self, page: usize) -> u64 {
        let PlainPage { space, number, .. } = self.pages[page];
        self.number(space, number * self.page, self.page)
    }

    fn shoot_down(&mut self, page: usize) {
        self.log.push(Log::Shootdown(self.engine_number(page)));
    }

    fn in_page(&self, page: usize) -> impl Iterator<Item = &Touched> {
        self.blocks.values().filter(move |block| block.page == page)
    }

    fn new_page(&mut self, space: usize, number: u64) -> usize {
        self.pages.push(PlainPage { space, number, frame: None, shared: false });
        self.numbers.insert((space, number), self.pages.len() - 1);
        self.pages.len() - 1
    }

    fn leave(&mut self, process: u32) {
        let Some(space) = self.space_of.remove(&process) else { return };
        if self.space_of.values().all(|used| *used != space) {
            self.maps[space].clear();
            self.heaps[space] = None;
            self.end(space, 0, KERNEL, false);
        }
    }

    /// End the blocks of these addresses. `removed`: even frames that stay are freed.
    fn end(&mut self, space: usize, from: u64, to: u64, removed: bool) {
        for block in self.touched(space, from, to) {
            let page = self.blocks.remove(&(space, block)).unwrap().page;
            self.shoot_down(page);
            if self.in_page(page).next().is_none() {
                self.numbers.retain(|_, of| *of != page);
                let frame = self.pages[page].frame.take();
                self.drop_frame(frame, removed);
            } else {
                self.update_discarded(page);
            }
        }
    }

    fn touched(&self, space: usize, from: u64, to: u64) -> Vec<u64> {
        let blocks = self.blocks.keys().filter(|(of, _)| *of == space).map(|(_, block)| *block);
        blocks.filter(|block| (from..to).contains(&(block * self.block))).collect()
    }

    fn drop_frame(&mut self, frame: Option<usize>, removed: bool) {
        let Some(frame) = frame else { return };
        let known = &mut self.frames[frame];
        known.pages -= 1;
        if known.pages == 0 && (removed || !known.stays) {
            known.object = None;
            self.freed += 1;
            self.log.push(Log::Free(frame));
        }
    }

    /// Update whether the frame of a page is discarded.
    fn update_discarded(&mut self, page: usize) {
        let Some(frame) = self.pages[page].frame else { return };
        let all = self.in_page(page).all(|block| block.lazy);
        let known = &mut self.frames[frame];
        let own = known.object.is_none() && known.pages == 1;
        let discarded = all && (known.discarded || own);
        if discarded != known.discarded {
            known.discarded = discarded;
            self.log.push(if discarded { Log::Discard(frame) } else { Log::Keep(frame) });
        }
    }

    fn new_frame(&mut self, page: usize, map: Option<Map>) {
        let place = self.engine_number(page);
        let frame = match map.and_then(|map| Some((map, map.object?))) {
            None => self.push_frame(place, None, false, false),
            Some((map, object)) => {
                let offset = (self.pages[page].number * self.page).wrapping_sub(map.start);
                let same = |frame: &PlainFrame| frame.object == Some((object, offset));
                match self.frames.iter().position(same) {
                    Some(frame) => frame,
                    None => {
                        let object = Some((object, offset));
                        self.push_frame(place, object, map.stays, map.executable)
                    }
                }
            }
        };
        self.frames[frame].pages += 1;
        self.pages[page].frame = Some(frame);
        self.pages[page].shared = map.is_some_and(|map| !map.private);
    }

    fn push_frame(
        &mut self,
        place: u64,
        object: Option<((u64, u64), u64)>,
        stays: bool,
        executable: bool,
    ) -> usize {
        let of_file = stays;
        self.frames.push(PlainFrame {
            object,
            stays,
            of_file,
            executable: of_file && executable,
            place,
            pages: 0,
            discarded: false,
        });
        self.peak = self.peak.max(self.resident());
        self.frames.len() - 1
    }

    fn write(&mut self, page: usize) {
        let frame = self.pages[page].frame;
        if let Some(frame) = frame
            && (self.pages[page].shared
                || self.frames[frame].object.is_none() && self.frames[frame].pages == 1)
        {
            return;
        }
        self.shoot_down(page);
        self.drop_frame(frame, false);
        self.new_frame(page, None);
    }

    fn reference(&mut self, space: usize, block: u64, write: bool) {
        let space = if block * self.block < KERNEL { space } else { 0 };
        match self.blocks.get(&(space, block)).copied() {
            None => self.birth(space, block, write),
            Some(Touched { watched, page, .. }) if write && watched => {
                let now = Touched { watched: false, lazy: false, of_object: false, page };
                self.blocks.insert((space, block), now);
                self.write(page);
                self.update_discarded(page);
            }
            Some(_) => {}
        }
        let page = self.blocks[&(space, block)].page;
        let frame = self.pages[page].frame;
        self.log.push(Log::Access { page: self.engine_number(page), frame, write });
    }

    fn birth(&mut self, space: usize, block: u64, write: bool) {
        let addr = block * self.block;
        let kernel = |range: &&(u64, u64, Map)| (range.0..range.1).contains(&addr);
        let map = match addr >= KERNEL {
            true => self.kernel.iter().rev().find(kernel).map(|range| range.2),
            false => self.maps[space].get(&(addr / 4096)).copied(),
        };
        let refused = |map: Map| map.private && map.object.is_some() && !map.writable;
        let write = write && !map.is_some_and(refused);
        let own = |map: Map| map.private && write;
        let zeros = map.is_some_and(|map| map.object.is_none() && !write);
        let own_memory = |map: Map| map.private && (map.object.is_none() || map.writable);
        let watched = !write && map.is_none_or(own_memory);
        let of_object = map.is_some_and(|map| map.object.is_some() && !own(map));
        let known = self.numbers.get(&(space, addr / self.page)).copied();
        let page = known.unwrap_or_else(|| self.new_page(space, addr / self.page));
        let now = Touched { watched, lazy: false, of_object, page };
        self.blocks.insert((space, block), now);
        let fresh = known.is_none();
        if !fresh && write && map.is_none_or(|map| map.private) {
            self.write(page);
        } else if self.pages[page].frame.is_none() && !zeros {
            if !fresh {
                self.shoot_down(page);
            }
            self.new_frame(page, map.filter(|map| !own(*map)));
        }
        if !fresh {
            self.update_discarded(page);
        }
    }

    pub fn record(&mut self, record: &Record) {
        let space = self.space(self.processes[record.thread as usize]);
        let last = record.addr.saturating_add(u64::from(record.size) - 1);
        let blocks = record.addr / self.block..=last / self.block;
        for block in blocks.clone() {
            self.reference(space, block, record.kind.writes());
        }
    }

    fn map_of(&mut self, e: &RegionEvent) -> Map {
        let private = e.event != RegionKind::File && !e.prot.ends_with('s');
        let writable = e.prot.contains('w');
        let start = e.addr.wrapping_sub(e.offset);
        let object = match e.inode {
            0 if private => None,
            0 => Some((u64::MAX, self.events)),
            inode => Some((e.device, inode)),
        };
        let executable = e.event != RegionKind::File && e.prot.contains('x');
        Map { object, start, private, writable, executable, stays: e.inode != 0 }
    }

    pub fn event(&mut self, e: &RegionEvent) {
        self.events += 1;
        let process = self.processes[e.thread as usize];
        let (from, to) = (e.addr, e.addr + e.length);
        match e.event {
            RegionKind::File => {
                let map = self.map_of(e);
                self.kernel.push((from, to, map));
            }
            RegionKind::Map => {
                let space = self.space(process);
                let map = self.map_of(e);
                self.end(space, from, to, false);
                self.maps[space].extend((from / 4096..to / 4096).map(|page| (page, map)));
            }
            RegionKind::Unmap => {
                let space = self.space(process);
                self.end(space, from, to, false);
                self.maps[space].retain(|page, _| !(from..to).contains(&(page * 4096)));
            }
            RegionKind::DontNeed | RegionKind::Remove => {
                let space = self.space(process);
                self.end(space, from, to, e.event == RegionKind::Remove);
            }
            RegionKind::Free => {
                let space = self.space(process);
                let blocks = self.touched(space, from, to);
                let blocks = blocks.into_iter().filter(|block| {
                    let state = self.blocks[&(space, *block)];
                    !state.of_object && !state.lazy
                });
                for block in blocks.collect::<Vec<_>>() {
                    let page = self.blocks[&(space, block)].page;
                    let now = Touched { watched: true, lazy: true, of_object: false, page };
                    self.blocks.insert((space, block), now);
                    self.update_discarded(page);
                    self.shoot_down(page);
                }
            }
            RegionKind::Brk => {
                let space = self.space(process);
                let (start, end) = (from.div_ceil(4096), to.div_ceil(4096));
                let (_, before) = self.heaps[space].unwrap_or((start, start));
                self.heaps[space] = Some((start, end));
                for page in end..before {
                    self.maps[space].remove(&page);
                }
                for page in end.min(before)..end.max(before) {
                    self.end(space, page * 4096, (page + 1) * 4096, false);
                }
                let (object, start) = (None, 0);
                let (private, writable, executable, stays) = (true, true, false, false);
                let map = Map { object, start, private, writable, executable, stays };
                self.maps[space].extend((before..end).map(|page| (page, map)));
            }
            RegionKind::Move => self.shift(process, from, to, e.to),
            RegionKind::Fork => {
                let (parent, child) = (self.space(process), e.to as u32);
                if child == process {
                    return;
                }
                self.leave(child);
                let child = self.space(child);
                if child != parent {
                    self.maps[child] = self.maps[parent].clone();
                    self.heaps[child] = self.heaps[parent];
                    self.fork(parent, child);
                }
            }
            RegionKind::Vfork => {
                let (parent, child) = (self.space(process), e.to as u32);
                if child != process {
                    self.leave(child);
                    self.space_of.insert(child, parent);
                }
            }
            RegionKind::Exec => {
                self.leave(process);
                self.space(process);
            }
            RegionKind::Exit => self.leave(process),
            _ => {}
        }
    }

    fn fork(&mut self, parent: usize, child: usize) {
        let blocks = self.touched(parent, 0, KERNEL);
        let own: Vec<u64> =
            blocks.into_iter().filter(|b| !self.blocks[&(parent, *b)].of_object).collect();
        for block in own {
            let Touched { page, lazy, .. } = self.blocks[&(parent, block)];
            let now = Touched { watched: true, lazy, of_object: false, page };
            self.blocks.insert((parent, block), now);
            self.shoot_down(page);
            let number = block * self.block / self.page;
            let copy = match self.numbers.get(&(child, number)) {
                Some(&copy) => copy,
                None => {
                    let copy = self.new_page(child, number);
                    let PlainPage { frame, shared, .. } = self.pages[page];
                    (self.pages[copy].frame, self.pages[copy].shared) = (frame, shared);
                    frame.into_iter().for_each(|frame| self.frames[frame].pages += 1);
                    copy
                }
            };
            self.blocks.insert((child, block), Touched { page: copy, ..now });
        }
    }

    fn shift(&mut self, process: u32, from: u64, to: u64, dest: u64) {
        let space = self.space(process);
        let (length, by) = (to - from, dest.wrapping_sub(from));
        if dest < to && dest + length > from {
            return;
        }
        self.end(space, dest, dest + length, false);
        let moved = self.touched(space, from, to);
        let taken: Vec<Touched> =
            moved.iter().map(|block| self.blocks.remove(&(space, *block)).unwrap()).collect();
        let mut pages: Vec<usize> = Vec::new();
        let mut first_block = HashMap::new();
        for (block, state) in moved.iter().zip(&taken) {
            let block = (block * self.block).wrapping_add(by) / self.block;
            if !pages.contains(&state.page) {
                pages.push(state.page);
                first_block.insert(state.page, block);
            }
        }
        pages.iter().for_each(|&page| self.shoot_down(page));
        for page in pages {
            let number = first_block[&page] * self.block / self.page;
            let free = !self.numbers.contains_key(&(space, number));
            if by.is_multiple_of(self.page) && self.in_page(page).next().is_none() && free {
                self.numbers.retain(|_, of| *of != page);
                self.numbers.insert((space, number), page);
                self.pages[page].number = number;
            }
        }
        for (block, state) in moved.iter().zip(taken) {
            let block = (block * self.block).wrapping_add(by) / self.block;
            self.blocks.insert((space, block), state);
        }
        let maps: Vec<(u64, Map)> = (from / 4096..to / 4096)
            .filter_map(|page| Some((page, self.maps[space].remove(&page)?)))
            .collect();
        for page in dest / 4096..(dest + length) / 4096 {
            self.maps[space].remove(&page);
        }
        for (page, mut map) in maps {
            map.start = map.start.wrapping_add(by);
            self.maps[space].insert((page * 4096).wrapping_add(by) / 4096, map);
        }
    }
}

fn accesses(log: &[Log]) -> u64 {
    log.iter().filter(|step| matches!(step, Log::Access { .. })).count() as u64
}

/// A trace of these steps. `processes`: the process of each thread.
pub fn trace(steps: &[Step], processes: &[u32], folder: &std::path::Path) -> nearfar_trace::Reader {
    let path = folder.join("t.trace");
    let mut writer = Writer::create(&path, Source::default(), WriterOptions::default()).unwrap();
    for (thread, process) in processes.iter().enumerate() {
        writer.thread_process(thread as u32, *process);
    }
    let mut batch = Batch::default();
    let mut at = 0;
    for step in steps {
        match step {
            Step::Event(event) => writer.region(RegionEvent { at, ..event.clone() }).unwrap(),
            Step::Record(record) => {
                batch.push(*record);
                at += 1;
            }
        }
    }
    writer.push_batch(&batch).unwrap();
    writer.finish(None).unwrap();
    nearfar_trace::Reader::open(&path).unwrap()
}

/// Process of each thread of [`steps`].
pub const PROCESSES: [u32; 4] = [1, 1, 2, 3];
