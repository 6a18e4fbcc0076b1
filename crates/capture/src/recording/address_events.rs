//! Turns the plugin's events of address spaces into region events.

use nearfar_trace::{RegionEvent, RegionKind, Result};

use super::{ForkedChild, LostProgram, Recording};
use crate::address_space::{AddressSpace, Mapping};
use crate::expand::Position;
use crate::layout::{Event, SHARED, lost, what};

const HEAP: &str = "[heap]";

/// Why a program whose `execve` was followed sent no data.
const NEVER_BEGAN: &str = "QEMU could not load the program or the plugin";

impl Recording<'_> {
    /// Apply an event of the plugin. `fixed`: its words before the name, in the order of [`Event`].
    pub(super) fn event(
        &mut self,
        fixed: &[u64],
        name: String,
        position: &mut Position,
    ) -> Result<()> {
        let thread = position.thread;
        // In some events, a word means something else than its name says: see `what`.
        let word = |index: Event| fixed[index as usize];
        let (addr, length) = (word(Event::Addr), word(Event::Length));
        let kind = word(Event::What);
        if !ranges_are_valid(kind, fixed) {
            self.stop_forged();
            return Ok(());
        }
        let process = self.process_of[thread as usize];
        let range = |event| RegionEvent { thread, event, addr, length, ..<_>::default() };
        match kind {
            what::MAP | what::BRK => {
                let prot = protection(word(Event::Prot)).into();
                let file = (word(Event::Device), word(Event::Inode));
                let mapping = Mapping::new(addr, word(Event::Offset), prot, name.into(), file);
                let space = self.space(process);
                if kind == what::BRK {
                    // Unmap only what is still heap: `mmap` can have replaced part of it.
                    if let Some((start, end, _)) = space.at(addr).filter(|m| *m.2.name == *HEAP) {
                        space.unmap(start, end - start);
                    }
                }
                space.map(addr, length, mapping.clone());
                if mapping.file != (0, 0) && self.name_bytes_left > 0 {
                    self.files_mapped.insert(mapping.name.clone(), mapping.file);
                }
                let event = if kind == what::BRK { RegionKind::Brk } else { RegionKind::Map };
                self.region(with_mapping(range(event), &mapping))?;
            }
            what::UNMAP => {
                self.space(process).unmap(addr, length);
                self.region(range(RegionKind::Unmap))?;
            }
            what::DETACH => {
                let Some((start, end, _)) = self.space(process).at(addr) else { return Ok(()) };
                self.space(process).unmap(start, end - start);
                let range =
                    RegionEvent { addr: start, length: end - start, ..range(RegionKind::Unmap) };
                self.region(range)?;
            }
            what::DONTNEED => self.region(range(RegionKind::DontNeed))?,
            what::FREE => self.region(range(RegionKind::Free))?,
            what::REMOVE => self.region(range(RegionKind::Remove))?,
            what::POPULATE => self.populate(process, addr, length, position)?,
            what::LOCK => {
                for (addr, length) in self.accessible(process, addr, length) {
                    self.region(RegionEvent { addr, length, ..range(RegionKind::Lock) })?;
                }
                // Not 0: `MLOCK_ONFAULT`.
                if word(Event::Offset) == 0 {
                    self.populate(process, addr, length, position)?;
                }
            }
            what::UNLOCK => self.region(range(RegionKind::Unlock))?,
            what::HUGE => self.region(range(RegionKind::Huge))?,
            what::NO_HUGE => self.region(range(RegionKind::NoHuge))?,
            what::COLLAPSE => self.region(range(RegionKind::Collapse))?,
            what::THP_DISABLE => {
                let event = RegionEvent { addr: 0, to: addr, ..range(RegionKind::ThpDisable) };
                self.region(event)?;
            }
            what::REMAP => {
                let (flags, to) = (word(Event::Prot), word(Event::Device));
                self.remap(thread, [addr, length, word(Event::Offset)], to, flags)?;
            }
            what::FORKED => {
                let process = self.new_process();
                self.forked.push(ForkedChild { order: addr, pid: length as u32, process });
            }
            what::IDLE if self.out.has_begun() => {
                let idle = RegionEvent { thread, offset: length, to: addr, ..<_>::default() };
                self.region(RegionEvent { event: RegionKind::Idle, ..idle })?;
            }
            what::IDLE => {}
            what::TASK => {
                let time = word(Event::Offset);
                self.switch_task((addr, length), name, time, position)?;
            }
            what::EXIT => self.ending.push(thread),
            what::WAITED => self.waited.push(addr as u32),
            what::UNSEEN => self.unseen = Some(name),
            what::EXEC | what::EXEC_LOST => {
                let why = if kind == what::EXEC { NEVER_BEGAN } else { reason(addr) };
                let at = self.out.writer.records();
                self.exec.insert(thread, LostProgram { name, why, at });
            }
            what::EXEC_FAILED => {
                self.exec.remove(&thread);
            }
            what::FORK_LOST => self.lost_forks += 1,
            _ => self.stop_forged(),
        }
        Ok(())
    }

    pub(super) fn space(&mut self, process: u32) -> &mut AddressSpace {
        self.spaces.entry(process).or_default()
    }

    /// `mremap` from `addr` and length `old` to address `to` and length `new`.
    fn remap(
        &mut self,
        thread: u32,
        [addr, old, new]: [u64; 3],
        to: u64,
        flags: u64,
    ) -> Result<()> {
        const DONTUNMAP: u64 = 4;
        let space = self.space(self.process_of[thread as usize]);
        let range = |event, addr, length, mapping: Option<&Mapping>| {
            let range = RegionEvent { thread, event, addr, length, ..<_>::default() };
            match mapping {
                Some(mapping) => with_mapping(range, mapping),
                None => range,
            }
        };
        let source = space.at(addr).map(|(_, _, mapping)| mapping);
        let common = old.min(new);
        let mut events = Vec::new();
        if new < old {
            space.unmap(addr + new, old - new);
            events.push(range(RegionKind::Unmap, addr + new, old - new, None));
        }
        if to != addr && common > 0 {
            let before = space.mappings(addr, common);
            space.shift(addr, common, to);
            let moved = range(RegionKind::Move, addr, common, source.as_ref());
            events.push(RegionEvent { to, ..moved });
            if flags & DONTUNMAP != 0 {
                for (start, length, mapping) in before {
                    events.push(range(RegionKind::Map, start, length, Some(&mapping)));
                    space.map(start, length, mapping);
                }
            }
        }
        if new > old {
            // With an old length of 0, `mremap` maps a shared mapping a second time.
            let mapping = source.map(|mapping| mapping.moved(to.wrapping_sub(addr)));
            events.push(range(RegionKind::Map, to + old, new - old, mapping.as_ref()));
            if let Some(mapping) = mapping {
                space.map(to + old, new - old, mapping);
            }
        }
        events.into_iter().try_for_each(|event| self.region(event))
    }
}

/// The text of a reason of [`lost`].
fn reason(code: u64) -> &'static str {
    match code {
        lost::UNREADABLE => "its file cannot be read",
        lost::ARGUMENTS => "its arguments cannot be read",
        lost::INACCESSIBLE => "it cannot open QEMU and the plugin after a change of user or root",
        lost::START => "QEMU could not be started in its place",
        _ => "not a program for this QEMU",
    }
}

/// Whether no range of an event of this kind exceeds the address space.
fn ranges_are_valid(kind: u64, fixed: &[u64]) -> bool {
    let word = |index: Event| fixed[index as usize];
    let fits = |addr: u64, bytes: u64| addr.checked_add(bytes).is_some();
    let (addr, length) = (word(Event::Addr), word(Event::Length));
    match kind {
        what::MAP
        | what::BRK
        | what::UNMAP
        | what::DONTNEED
        | what::FREE
        | what::REMOVE
        | what::POPULATE
        | what::LOCK
        | what::UNLOCK
        | what::HUGE
        | what::NO_HUGE
        | what::COLLAPSE => fits(addr, length),
        what::REMAP => {
            let (new, to) = (word(Event::Offset), word(Event::Device));
            fits(addr, length.max(new)) && fits(to, length.max(new))
        }
        _ => true,
    }
}

/// `event` with the fields of `mapping`, which is at the event's address.
fn with_mapping(event: RegionEvent, mapping: &Mapping) -> RegionEvent {
    let (offset, (device, inode)) = (mapping.offset(event.addr), mapping.file);
    let (prot, name) = (mapping.prot.to_string(), mapping.name.to_string());
    RegionEvent { offset, prot, name, device, inode, ..event }
}

/// Protection as in `/proc/PID/maps`, such as `rw-p`.
fn protection(prot: u64) -> String {
    let rights = [(1, 'r'), (2, 'w'), (4, 'x')].iter();
    let rights = rights.map(|(bit, letter)| if prot & bit != 0 { *letter } else { '-' });
    rights.chain([if prot & SHARED != 0 { 's' } else { 'p' }]).collect()
}
