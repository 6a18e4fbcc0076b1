//! The mappings of each process, from the events of a trace.

use std::collections::HashMap;
use std::ops::Range;

use nearfar_kernel::thp::Advice;
use nearfar_trace::ranges::Ranges;
use nearfar_trace::{Batch, RegionEvent, RegionKind, ThreadInfo};
use rustc_hash::FxHashMap;

use super::{PAGE_SHIFT, SPACE_SHIFT, place};

/// First 4 KiB page of the kernel's half of the address space, where traces have the page caches of
/// files, shared by all processes.
const KERNEL: u64 = 1 << (63 - PAGE_SHIFT);
/// Pages of an address space; all user addresses are below.
const PAGES: u64 = 1 << (SPACE_SHIFT - PAGE_SHIFT);
/// Maximum number of concurrent address spaces: as many as fit in a [`place`], which combines an address
/// space and an address in one number.
const MAX_SPACES: u32 = 1 << (63 - SPACE_SHIFT);

/// The initial content of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Not mapped by any event; in filtered traces also private memory. Reads do not map a page of zeros.
    Unknown,
    /// Private memory of zeros.
    Zeros,
    /// A file or shared memory.
    Object {
        object: u32,
        /// Address of the object's first byte (modulo 2^64).
        start: u64,
        /// Whether a write makes a copy.
        private: bool,
        writable: bool,
        /// Whether its pages stay in memory when unmapped, as file pages do.
        stays: bool,
        /// Whether its pages are read from a file.
        of_file: bool,
        executable: bool,
    },
}

impl Backing {
    /// This backing, mapped `by` bytes further (modulo 2^64).
    fn moved(mut self, by: u64) -> Self {
        if let Backing::Object { start, .. } = &mut self {
            *start = start.wrapping_add(by);
        }
        self
    }
}

/// The effect of an event on touched pages of 4 KiB. Ranges are inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The lifetimes of the pages end. The range stays mapped if `kept`.
    End { space: u32, first: u64, last: u64, kept: bool },
    /// The lifetimes of the pages end, and the content of their object is removed.
    Remove { space: u32, first: u64, last: u64 },
    /// The kernel may drop the pages, unsaved, until they are written (`MADV_FREE`).
    Free { space: u32, first: u64, last: u64 },
    /// The pages move by `by` pages (modulo 2^64).
    Move { space: u32, first: u64, last: u64, by: u64 },
    /// The child shares all pages of the parent.
    Fork { parent: u32, child: u32 },
    /// The pages are now private memory with this advice; `None`: not private memory.
    Area { space: u32, first: u64, last: u64, advice: Option<Advice> },
    /// The kernel makes each aligned 2 MiB of these pages a huge page (`MADV_COLLAPSE`).
    Collapse { space: u32, first: u64, last: u64 },
}

#[derive(Clone, Default)]
struct Space {
    mapped: Ranges<Backing>,
    /// Pages without an entry have [`Advice::None`].
    advice: Ranges<Advice>,
    /// `to` of the last [`RegionKind::ThpDisable`]: huge pages are disabled nowhere (0), everywhere
    /// (1), or except where advised (2).
    thp_disable: u64,
    /// The heap: its first page and the page after its last.
    heap: Option<(u64, u64)>,
    /// Number of processes in this address space: more than one after `vfork`.
    users: u32,
}

impl Space {
    /// The part of `first..=last` around `page` with the same advice.
    fn same_advice(&self, page: u64, first: u64, last: u64) -> (u64, u64) {
        let own_advice = self.advice.find(page);
        let (mut from, mut to) = (first, last);
        for (start, end, advice) in self.advice.within(first, last) {
            if own_advice.is_some() && start <= page && page <= end {
                (from, to) = (from.max(start), to.min(end));
            } else if Some(advice) != own_advice {
                if end < page {
                    from = from.max(end + 1);
                } else {
                    to = to.min(start - 1);
                }
            }
        }
        (from, to)
    }

    /// The private memory in `first..=last`, with its advice.
    fn areas(&self, first: u64, last: u64) -> Vec<(u64, u64, Advice)> {
        let mut areas = Vec::new();
        for (from, to, backing) in self.mapped.within(first, last) {
            if matches!(backing, Backing::Object { .. }) {
                continue;
            }
            let mut next = from;
            for (start, end, advice) in self.advice.within(from, to) {
                if next < start {
                    areas.push((next, start - 1, self.effective(Advice::None)));
                }
                areas.push((start, end, self.effective(advice)));
                next = end + 1;
            }
            if next <= to {
                areas.push((next, to, self.effective(Advice::None)));
            }
        }
        areas
    }

    /// The effect of an area's advice in this process (`vma_thp_disabled`, `include/linux/huge_mm.h`).
    fn effective(&self, advice: Advice) -> Advice {
        match (self.thp_disable, advice) {
            (0, _) | (2, Advice::Huge) => advice,
            _ => Advice::NoHuge,
        }
    }
}

/// The address spaces of all processes.
#[derive(Default)]
pub struct Spaces {
    process_of: FxHashMap<u32, u32>,
    /// The trace has one process.
    single: bool,
    space_of: FxHashMap<u32, u32>,
    spaces: Vec<Space>,
    /// Page caches of files.
    files: Ranges<Backing>,
    objects: u32,
    /// Objects by device and inode.
    known: HashMap<(u64, u64), u32>,
    filtered: bool,
}

impl Spaces {
    pub fn new(threads: &[ThreadInfo]) -> Self {
        let mut spaces = Self {
            process_of: threads.iter().map(|thread| (thread.index, thread.process)).collect(),
            single: threads.windows(2).all(|two| two[0].process == two[1].process),
            ..Self::default()
        };
        spaces.of_process(threads.first().map_or(0, |thread| thread.process));
        spaces
    }

    /// Set whether the trace lacks the stores that hit CPU caches. Private memory then has a frame
    /// from its first reference, because any page could have been written.
    pub fn filtered(self, filtered: bool) -> Self {
        Self { filtered, ..self }
    }

    /// Whether there can be more than one address space.
    pub fn several(&self) -> bool {
        !self.single
    }

    /// Replace the addresses of the records of `batch` in `range` by their [`place`]s.
    pub fn place_records(&mut self, batch: &mut Batch, range: Range<usize>) {
        if self.single {
            return;
        }
        let (mut running, mut space) = (u32::MAX, 0);
        let records = batch.addr[range.clone()].iter_mut().zip(&batch.thread[range]);
        for (addr, &thread) in records {
            if thread != running {
                (running, space) = (thread, self.of_thread(thread));
            }
            *addr = place(space, *addr);
        }
    }

    /// The current address space of a thread.
    pub fn of_thread(&mut self, thread: u32) -> u32 {
        if self.single {
            return 0;
        }
        self.of_process(self.process_of.get(&thread).copied().unwrap_or(0))
    }

    fn of_process(&mut self, process: u32) -> u32 {
        match self.space_of.get(&process) {
            Some(&space) => space,
            None => self.open(process),
        }
    }

    fn open(&mut self, process: u32) -> u32 {
        let unused = self.spaces.iter().position(|space| space.users == 0);
        let space = unused.unwrap_or_else(|| {
            // Processes beyond the maximum share the last address space.
            if self.spaces.len() < MAX_SPACES as usize {
                self.spaces.push(Space::default());
            }
            self.spaces.len() - 1
        });
        self.spaces[space].users += 1;
        self.space_of.insert(process, space as u32);
        space as u32
    }

    /// Remove a process from its address space; the mappings end with the last process.
    fn close(&mut self, process: u32, effects: &mut Vec<Effect>) {
        let Some(space) = self.space_of.remove(&process) else { return };
        let old = &mut self.spaces[space as usize];
        old.users -= 1;
        if old.users == 0 {
            *old = Space::default();
            effects.push(Effect::End { space, first: 0, last: PAGES - 1, kept: false });
            effects.push(Effect::Area { space, first: 0, last: PAGES - 1, advice: None });
        }
    }

    /// The backing of the page of an address.
    pub fn backing(&self, space: u32, addr: u64) -> Backing {
        let page = addr >> PAGE_SHIFT;
        let backing = match page >= KERNEL {
            true => self.files.find(page),
            false => self.spaces.get(space as usize).and_then(|space| space.mapped.find(page)),
        };
        backing.unwrap_or(Backing::Unknown)
    }

    /// First and last page of the contiguous private memory with the same advice around a private
    /// page (a [`place`] >> [`PAGE_SHIFT`]), within its aligned 2^`order` pages. Around an unmapped page,
    /// unmapped pages count as private memory.
    pub fn private_around(&self, number: u64, order: u32) -> (u64, u64) {
        let start = number >> order << order;
        let end = start + (1 << order) - 1;
        let (space, page) = (
            number >> (SPACE_SHIFT - PAGE_SHIFT),
            super::address(number << PAGE_SHIFT) >> PAGE_SHIFT,
        );
        let Some(space) = self.spaces.get(space as usize).filter(|_| page < KERNEL) else {
            return (start, end);
        };
        let base = number - page;
        let (start, end) = space.same_advice(page, start - base, end - base);
        let (start, end) = (base + start, base + end);
        let mut run: Option<(u64, u64)> = None;
        // For an unmapped page: the gap between objects.
        let mut gap = (start - base, end - base);
        for (from, to, backing) in space.mapped.within(start - base, end - base) {
            if matches!(backing, Backing::Object { .. }) {
                match from > page {
                    true => gap.1 = gap.1.min(from - 1),
                    false => gap.0 = gap.0.max(to + 1),
                }
                continue;
            }
            run = match run {
                Some((first, last)) if last + 1 == from => Some((first, to)),
                Some((_, last)) if last >= page => break,
                _ => Some((from, to)),
            };
        }
        let around = run.filter(|(first, last)| (*first..=*last).contains(&page));
        let (first, last) = around.unwrap_or(gap);
        (base + first, base + last)
    }

    fn zeros(&self) -> Backing {
        if self.filtered { Backing::Unknown } else { Backing::Zeros }
    }

    fn new_object(&mut self) -> u32 {
        self.objects += 1;
        self.objects - 1
    }

    fn backing_of(&mut self, event: &RegionEvent) -> Backing {
        let private = event.event != RegionKind::File && !event.prot.ends_with('s');
        let writable = event.prot.contains('w');
        let start = event.addr.wrapping_sub(event.offset);
        let file = (event.device, event.inode);
        let object = match file {
            (_, 0) if event.event == RegionKind::File => return Backing::Unknown,
            (_, 0) if private => return self.zeros(),
            (_, 0) => self.new_object(),
            file => match self.known.get(&file) {
                Some(&object) => object,
                None => {
                    let object = self.new_object();
                    self.known.insert(file, object);
                    object
                }
            },
        };
        let has_inode = file.1 != 0;
        // Files of tmpfs are in memory, not read from storage.
        let in_tmpfs = ["/dev/shm/", "/memfd:"].iter().any(|start| event.name.starts_with(start));
        Backing::Object {
            object,
            start,
            private,
            writable,
            stays: has_inode,
            of_file: has_inode && !in_tmpfs,
            executable: event.event != RegionKind::File && event.prot.contains('x'),
        }
    }

    /// Apply an event. Appends its effects on pages to `effects`.
    pub fn apply(&mut self, event: &RegionEvent, effects: &mut Vec<Effect>) {
        let process = self.process_of.get(&event.thread).copied().unwrap_or(0);
        match event.event {
            RegionKind::Map
            | RegionKind::Unmap
            | RegionKind::DontNeed
            | RegionKind::Remove
            | RegionKind::Free
            | RegionKind::Move
            | RegionKind::Huge
            | RegionKind::NoHuge
            | RegionKind::Collapse => self.in_range(event, process, effects),
            RegionKind::Brk => self.heap(event, process, effects),
            RegionKind::File => {
                let Some(more) = event.length.checked_sub(1) else { return };
                let backing = self.backing_of(event);
                let last = event.addr.saturating_add(more) >> PAGE_SHIFT;
                self.files.map(event.addr >> PAGE_SHIFT, last, backing);
            }
            RegionKind::Fork | RegionKind::Vfork => {
                let (parent, child) = (self.of_process(process), event.to as u32);
                if child == process {
                    return;
                }
                self.close(child, effects);
                if event.event == RegionKind::Vfork {
                    self.spaces[parent as usize].users += 1;
                    self.space_of.insert(child, parent);
                    return;
                }
                let child = self.open(child);
                // Equal only if both share the last address space.
                if child != parent {
                    let copied = self.spaces[parent as usize].clone();
                    let space = &mut self.spaces[child as usize];
                    *space = Space { users: space.users, ..copied };
                    effects.push(Effect::Fork { parent, child });
                    self.push_areas(child, (0, PAGES - 1), effects);
                }
            }
            RegionKind::Exec => {
                let before = self.of_process(process);
                let thp_disable = self.spaces[before as usize].thp_disable;
                self.close(process, effects);
                let space = self.open(process);
                // Preserved across `execve`.
                self.spaces[space as usize].thp_disable = thp_disable;
            }
            RegionKind::ThpDisable => {
                let space = self.of_process(process);
                self.spaces[space as usize].thp_disable = event.to;
                self.push_areas(space, (0, PAGES - 1), effects);
            }
            RegionKind::Exit => self.close(process, effects),
            RegionKind::Lock
            | RegionKind::Unlock
            | RegionKind::Idle
            | RegionKind::ThreadStart
            | RegionKind::ThreadExit => {}
        }
    }

    /// Apply an event to a range of one address space. Ranges beyond user addresses are ignored.
    fn in_range(&mut self, event: &RegionEvent, process: u32, effects: &mut Vec<Effect>) {
        let end = event.length.checked_sub(1).and_then(|more| event.addr.checked_add(more));
        let Some(last) = end.map(|end| end >> PAGE_SHIFT).filter(|last| *last < PAGES) else {
            return;
        };
        let first = event.addr >> PAGE_SHIFT;
        let space = self.of_process(process);
        let end = |kept| Effect::End { space, first, last, kept };
        match event.event {
            RegionKind::Map | RegionKind::Unmap => {
                let backing = (event.event == RegionKind::Map).then(|| self.backing_of(event));
                effects.push(end(false));
                let target = &mut self.spaces[space as usize];
                match backing {
                    Some(backing) => target.mapped.map(first, last, backing),
                    None => target.mapped.unmap(first, last),
                }
                target.advice.unmap(first, last);
                self.push_areas(space, (first, last), effects);
            }
            RegionKind::Huge | RegionKind::NoHuge => {
                let huge = event.event == RegionKind::Huge;
                let advice = if huge { Advice::Huge } else { Advice::NoHuge };
                self.spaces[space as usize].advice.map(first, last, advice);
                self.push_areas(space, (first, last), effects);
            }
            RegionKind::Collapse => effects.push(Effect::Collapse { space, first, last }),
            RegionKind::DontNeed => effects.push(end(true)),
            RegionKind::Remove => effects.push(Effect::Remove { space, first, last }),
            RegionKind::Free => effects.push(Effect::Free { space, first, last }),
            RegionKind::Move => {
                let by = (event.to >> PAGE_SHIFT).wrapping_sub(first);
                let (to, end) = (first.wrapping_add(by), last.wrapping_add(by));
                // The kernel refuses to move a range to one that it overlaps.
                if to > end || end >= PAGES || (to <= last && end >= first) {
                    return;
                }
                effects.push(Effect::End { space, first: to, last: end, kept: false });
                effects.push(Effect::Move { space, first, last, by });
                let target = &mut self.spaces[space as usize];
                let moved = |backing: Backing| backing.moved(by.wrapping_mul(1 << PAGE_SHIFT));
                target.mapped.shift(first, last, by, moved);
                target.advice.shift(first, last, by, |advice| advice);
                self.push_areas(space, (first, last), effects);
                self.push_areas(space, (to, end), effects);
            }
            _ => {}
        }
    }

    /// Set the range of the heap. Its start is rounded up: a partial page may hold other data.
    fn heap(&mut self, event: &RegionEvent, process: u32, effects: &mut Vec<Effect>) {
        let Some(end) = event.addr.checked_add(event.length) else { return };
        let (start, end) = (event.addr.div_ceil(1 << PAGE_SHIFT), end.div_ceil(1 << PAGE_SHIFT));
        if end > PAGES {
            return;
        }
        let (space, zeros) = (self.of_process(process), self.zeros());
        let target = &mut self.spaces[space as usize];
        let (_, before) = target.heap.unwrap_or((start, start));
        target.heap = Some((start, end));
        let (first, last) = if end > before {
            target.mapped.map(before, end - 1, zeros);
            (before, end - 1)
        } else if end < before {
            target.mapped.unmap(end, before - 1);
            (end, before - 1)
        } else {
            return;
        };
        target.advice.unmap(first, last);
        effects.push(Effect::End { space, first, last, kept: false });
        self.push_areas(space, (first, last), effects);
    }

    /// Append the private areas of a range.
    fn push_areas(&self, space: u32, (first, last): (u64, u64), effects: &mut Vec<Effect>) {
        effects.push(Effect::Area { space, first, last, advice: None });
        for (first, last, advice) in self.spaces[space as usize].areas(first, last) {
            effects.push(Effect::Area { space, first, last, advice: Some(advice) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_can_switch_huge_pages_off() {
        use Advice::{Huge, NoHuge, None};
        let mut space = Space::default();
        space.mapped.map(0, 9, Backing::Zeros);
        space.advice.map(0, 4, Huge);
        for (disable, expected) in [(0, [Huge, None]), (1, [NoHuge; 2]), (2, [Huge, NoHuge])] {
            space.thp_disable = disable;
            let advice: Vec<_> = space.areas(0, 9).into_iter().map(|area| area.2).collect();
            assert_eq!(advice, expected, "{disable}");
        }
    }
}
