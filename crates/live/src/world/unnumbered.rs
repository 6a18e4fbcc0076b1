//! Memory that moves: to another address (`mremap`), and to a child (`fork`).
//!
//! There may be no number left for a page at its new address. Nobody manages it then: it belongs into the
//! program's memory, where the kernel has moved it if it was there. If it was not, it is brought there as
//! soon as requests are carried out, or when it is touched; until then it is **unnumbered**.

use nearfar_kernel::tiering::{NodeId, Page, Refused};

use super::{SLOW_NODE, World, is};
use crate::children::Moves;
use crate::{Child, Event, Fail, Frame, Kernel, Range, Slot, Va};

/// Where a page is that is not in the program's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Parked(Frame),
    Stored(Slot),
}

/// What is known of a page between two addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moving {
    flags: u16,
    frame: u32,
    slot: u32,
}

/// Pages without a number that are brought in one turn.
const AT_ONCE: usize = 256;

impl<K: Kernel> World<K> {
    /// What is known of the page, which is to be at another address: its number is free to be released. A
    /// shadow is dropped.
    pub(crate) fn take_away(&mut self, from: Page) -> Moving {
        self.end_copy(from);
        if !self.has(from, is::SLOW) && self.free_slot(from) {
            self.used[SLOW_NODE.index()] -= 1;
        }
        if self.has(from, is::STUCK) {
            self.stuck_pages -= 1;
        }
        let gone = is::ARMED | is::PASSING | is::STUCK;
        let index = from.index();
        Moving {
            flags: std::mem::take(&mut self.flags[index]) & !gone,
            frame: self.frames[index],
            slot: std::mem::take(&mut self.slots[index]),
        }
    }

    /// The page is known by this number from now on.
    pub(crate) fn put(&mut self, to: Page, moving: Moving) {
        self.flags[to.index()] = moving.flags;
        self.frames[to.index()] = moving.frame;
        self.slots[to.index()] = moving.slot;
        if self.in_window(to) {
            self.window.push_back(to);
        }
    }

    /// There is no number for the page at its new address.
    pub(crate) fn put_unnumbered(&mut self, at: Va, moving: Moving) {
        let has = |bits| moving.flags & bits != 0;
        let node = if has(is::SLOW) { SLOW_NODE } else { NodeId::FAST };
        self.used[node.index()] -= 1;
        let is_there = has(is::PRESENT);
        self.windowed -= u64::from(!self.mapped && has(is::SLOW) && (is_there || has(is::PARKED)));
        let slot = moving.slot.checked_sub(1).map(Slot::new);
        if has(is::PARKED) {
            self.unnumbered.insert(at, Held::Parked(Frame::new(moving.frame)));
        } else if let Some(slot) = slot.filter(|_| !is_there) {
            self.unnumbered.insert(at, Held::Stored(slot));
        }
        if let Some(slot) = slot.filter(|_| is_there || has(is::PARKED)) {
            self.far.free(slot);
        }
    }

    /// Take the unnumbered pages in `range` out.
    fn unnumbered_in(&mut self, range: Range) -> Vec<(Va, Held)> {
        let found: Vec<_> =
            self.unnumbered.range(range.from..range.to).map(|(at, held)| (*at, *held)).collect();
        found.iter().for_each(|(at, _)| {
            self.unnumbered.remove(at);
        });
        found
    }

    /// The program's pages in `range` are at `to` from now on.
    pub(crate) fn move_unnumbered(&mut self, range: Range, to: Va) {
        let moved = self.unnumbered_in(range);
        let to = |at: Va| to.plus(at.number() - range.from.number());
        self.unnumbered.extend(moved.into_iter().map(|(at, held)| (to(at), held)));
    }

    /// The program's pages in `range` are gone.
    pub(crate) fn forget_unnumbered(&mut self, range: Range) {
        for (_, held) in self.unnumbered_in(range) {
            match held {
                Held::Parked(frame) => self.release_frame(frame),
                Held::Stored(slot) => self.far.free(slot),
            }
        }
    }

    /// Put an unnumbered page into the program's memory.
    pub(crate) fn bring_unnumbered(&mut self, at: Va) -> Result<(), Refused> {
        let Some(held) = self.unnumbered.get(&at).copied() else { return Err(Refused::State) };
        let mut copied = false;
        let mut placed = match held {
            Held::Parked(frame) => self.kernel.restore(frame, at),
            Held::Stored(_) => {
                self.read(held)?;
                self.kernel.place(at, &self.buffer, false)
            }
        };
        if let (Held::Parked(frame), Err(Fail::Pinned)) = (held, placed) {
            placed = self.kernel.place_copy(at, frame, false, NodeId::FAST);
            copied = true;
        }
        placed.map_err(|fail| self.refused(fail, "bringing what was moved", at))?;
        self.unnumbered.remove(&at);
        match held {
            Held::Parked(frame) if copied => self.release_frame(frame),
            Held::Parked(frame) => self.empty.push(frame),
            Held::Stored(slot) => {
                self.far.free(slot);
                self.counters.far_loads += 1;
            }
        }
        Ok(())
    }

    /// Put unnumbered pages into the program's memory; whether any was.
    pub(crate) fn bring_all_unnumbered(&mut self) -> bool {
        let waiting: Vec<_> = self.unnumbered.keys().copied().take(AT_ONCE).collect();
        waiting.into_iter().filter(|at| !self.again && self.bring_unnumbered(*at).is_ok()).count()
            > 0
    }

    /// Read what is not in the program's memory into the buffer.
    fn read(&mut self, held: Held) -> Result<(), Refused> {
        match held {
            Held::Parked(frame) => self.buffer.copy_from_slice(self.kernel.frame(frame)),
            Held::Stored(slot) => {
                if let Err(fault) = self.far.load(slot, &mut self.buffer) {
                    self.break_down(fault.to_string());
                    return Err(Refused::Pinned);
                }
            }
        }
        Ok(())
    }

    // --- children

    /// Give a child the pages that were not in the program's memory. Where nothing is mapped in the child
    /// a page may have been moved before, which was told later. Returns the pages that are mapped nowhere in
    /// the child, where nothing that was told says why.
    pub(crate) fn give_all(
        &mut self,
        child: Child,
        mut moves: Moves,
        told_later: &Moves,
        children: &mut Vec<(Child, Moves)>,
    ) -> Vec<Va> {
        let mut lacks = Vec::new();
        let mut next = self.mapped_from(Page::new(0));
        while let Some(page) = next {
            next = self.mapped_from(page.skip(1));
            let held = if self.has(page, is::PRESENT) {
                continue;
            } else if self.has(page, is::PARKED) {
                Held::Parked(self.frame(page))
            } else if let Some(slot) = self.slot(page) {
                Held::Stored(slot)
            } else {
                continue;
            };
            let at = self.numbers.place(page);
            if !self.give(child, (at, held), &mut moves, told_later, children) {
                lacks.push(at);
            }
        }
        let unnumbered: Vec<_> = self.unnumbered.iter().map(|(at, held)| (*at, *held)).collect();
        for page in unnumbered {
            if !self.give(child, page, &mut moves, told_later, children) {
                lacks.push(page.0);
            }
        }
        lacks
    }

    /// False if the page is mapped nowhere in the child, and nothing that was told says why.
    fn give(
        &mut self,
        child: Child,
        (at, held): (Va, Held),
        moves: &mut Moves,
        told_later: &Moves,
        children: &mut Vec<(Child, Moves)>,
    ) -> bool {
        self.kernel.beat();
        if self.read(held).is_err() {
            return true;
        }
        let (mut events, mut begin) = (Vec::new(), at);
        while let Some(at) = moves.place(begin) {
            match self.kernel.give(child, at, &self.buffer) {
                // Mapped anew by the child, or a child that has ended.
                Ok(()) | Err(Fail::Exists | Fail::Ended) => return true,
                Err(Fail::Missing) => match told_later.place(begin) {
                    Some(moved) if moved != begin => begin = moved,
                    place => return place.is_none(),
                },
                Err(Fail::Again) => {
                    self.kernel.child_events(child, &mut events);
                    for event in events.drain(..) {
                        match event {
                            Event::Forked(grandchild) => children.push((grandchild, moves.clone())),
                            event => moves.note(event),
                        }
                    }
                }
                Err(fail) => {
                    self.refused(fail, "giving to a child", at);
                    self.break_down("a child cannot be given its memory".into());
                    return true;
                }
            }
        }
        true
    }
}
