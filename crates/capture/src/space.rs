//! What a process has mapped, by the events so far: `mremap` and `shmdt` do not say all themselves.

use std::collections::BTreeMap;
use std::rc::Rc;

/// What a range is a mapping of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Offset in the file of the range's first byte.
    pub offset: u64,
    /// Rights, as a region event has them.
    pub prot: Rc<str>,
    /// Name, as a region event has it.
    pub name: Rc<str>,
    /// The file: device and inode, both 0 where there is none.
    pub file: (u64, u64),
}

impl Mapping {
    /// The same mapping, `bytes` further on.
    pub fn after(&self, bytes: u64) -> Self {
        let offset =
            if self.file == (0, 0) { self.offset } else { self.offset.wrapping_add(bytes) };
        Self { offset, ..self.clone() }
    }
}

/// Ranges that do not overlap: end and mapping by start.
#[derive(Clone, Debug, Default)]
pub struct Space(BTreeMap<u64, (u64, Mapping)>);

impl Space {
    /// How many ranges there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The mapping of `addr`: start, end, and what.
    pub fn at(&self, addr: u64) -> Option<(u64, u64, &Mapping)> {
        let (&start, (end, mapping)) = self.0.range(..=addr).next_back()?;
        (addr < *end).then_some((start, *end, mapping))
    }

    /// Map a range in place of what is there.
    pub fn map(&mut self, addr: u64, length: u64, mapping: Mapping) {
        self.unmap(addr, length);
        if length > 0 {
            self.0.insert(addr, (addr.saturating_add(length), mapping));
        }
    }

    /// Unmap a range; answers the pieces that were mapped: start, length and what.
    pub fn unmap(&mut self, addr: u64, length: u64) -> Vec<(u64, u64, Mapping)> {
        let end = addr.saturating_add(length);
        let mut pieces = Vec::new();
        if addr == end {
            return pieces;
        }
        let first = self.at(addr).map_or(addr, |(start, ..)| start);
        let found: Vec<u64> = self.0.range(first..end).map(|(&start, _)| start).collect();
        for start in found {
            let Some((last, mapping)) = self.0.remove(&start) else { continue };
            let (from, until) = (start.max(addr), last.min(end));
            if start < from {
                self.0.insert(start, (from, mapping.clone()));
            }
            if until < last {
                self.0.insert(until, (last, mapping.after(until - start)));
            }
            pieces.push((from, until - from, mapping.after(from - start)));
        }
        pieces
    }

    /// The pieces of a range that are mapped, as [`Self::unmap`] answers them.
    pub fn pieces(&self, addr: u64, length: u64) -> Vec<(u64, u64, Mapping)> {
        let (mut pieces, end) = (Vec::new(), addr.saturating_add(length));
        let first = self.at(addr).map_or(addr, |(start, ..)| start);
        for (&start, (last, mapping)) in self.0.range(first..end.max(first)) {
            let (from, until) = (start.max(addr), end.min(*last));
            pieces.push((from, until - from, mapping.after(from - start)));
        }
        pieces
    }

    /// Move a range to `to`, in place of what is there.
    pub fn shift(&mut self, addr: u64, length: u64, to: u64) {
        let pieces = self.unmap(addr, length);
        self.unmap(to, length);
        for (start, length, mapping) in pieces {
            self.map(to.wrapping_add(start - addr), length, mapping);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mapping(number: u64) -> Mapping {
        let file = (number % 3, number % 3);
        Mapping { offset: number << 20, prot: "rw-p".into(), name: number.to_string().into(), file }
    }

    /// Byte by byte, what is mapped there and which offset it has.
    type Plain = Vec<Option<(Rc<str>, u64)>>;

    fn plain(space: &Space) -> Plain {
        let byte = |addr| {
            let (start, _, mapping) = space.at(addr)?;
            Some((mapping.name.clone(), mapping.after(addr - start).offset))
        };
        (0..64).map(byte).collect()
    }

    proptest! {
        #[test]
        fn a_space_is_what_each_byte_is(
            steps in prop::collection::vec((0..3, 0..32u64, 0..16u64, 0..32u64), 0..40),
        ) {
            let (mut space, mut bytes) = (Space::default(), vec![None; 64]);
            for (number, (what, addr, length, to)) in (1..).zip(steps) {
                let range = addr as usize..(addr + length) as usize;
                match what {
                    0 => {
                        let new = mapping(number);
                        for at in range {
                            let offset = new.after(at as u64 - addr).offset;
                            bytes[at] = Some((new.name.clone(), offset));
                        }
                        space.map(addr, length, new);
                    }
                    1 => {
                        let there = bytes[range.clone()].iter().flatten().count() as u64;
                        let pieces = space.unmap(addr, length);
                        prop_assert_eq!(pieces.iter().map(|piece| piece.1).sum::<u64>(), there);
                        bytes[range].fill(None);
                    }
                    _ => {
                        let moved = bytes[range.clone()].to_vec();
                        bytes[range].fill(None);
                        bytes[to as usize..(to + length) as usize].clone_from_slice(&moved);
                        space.shift(addr, length, to);
                    }
                }
                prop_assert_eq!(plain(&space), bytes.clone());
            }
        }
    }
}
