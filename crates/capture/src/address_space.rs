//! The mappings of a process, tracked from its events, because `mremap` and `shmdt` do not describe
//! the mapping that they affect.

use std::collections::BTreeMap;
use std::rc::Rc;

/// What is mapped in a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Offset in the file of the range's first byte.
    pub offset: u64,
    /// Protection, such as `rw-p`.
    pub prot: Rc<str>,
    pub name: Rc<str>,
    /// Device and inode of the file, both 0 if there is none.
    pub file: (u64, u64),
}

impl Mapping {
    /// The part of a mapping that begins `bytes` after its start.
    pub fn after(&self, bytes: u64) -> Self {
        let offset =
            if self.file == (0, 0) { self.offset } else { self.offset.wrapping_add(bytes) };
        Self { offset, ..self.clone() }
    }
}

/// Ranges that do not overlap: end and mapping by start.
#[derive(Clone, Debug, Default)]
pub struct AddressSpace(BTreeMap<u64, (u64, Mapping)>);

impl AddressSpace {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Start and end of the mapping at `addr`, and the mapping.
    pub fn at(&self, addr: u64) -> Option<(u64, u64, &Mapping)> {
        let (&start, (end, mapping)) = self.0.range(..=addr).next_back()?;
        (addr < *end).then_some((start, *end, mapping))
    }

    /// Map a range, replacing earlier mappings.
    pub fn map(&mut self, addr: u64, length: u64, mapping: Mapping) {
        self.unmap(addr, length);
        if length > 0 {
            self.0.insert(addr, (addr.saturating_add(length), mapping));
        }
    }

    /// Unmap a range. Returns the parts that were mapped: start, length and mapping.
    pub fn unmap(&mut self, addr: u64, length: u64) -> Vec<(u64, u64, Mapping)> {
        let end = addr.saturating_add(length);
        let mut parts = Vec::new();
        if addr == end {
            return parts;
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
            parts.push((from, until - from, mapping.after(from - start)));
        }
        parts
    }

    /// The mapped parts of a range, as returned by [`Self::unmap`].
    pub fn mappings(&self, addr: u64, length: u64) -> Vec<(u64, u64, Mapping)> {
        let (mut parts, end) = (Vec::new(), addr.saturating_add(length));
        let first = self.at(addr).map_or(addr, |(start, ..)| start);
        for (&start, (last, mapping)) in self.0.range(first..end) {
            let (from, until) = (start.max(addr), end.min(*last));
            parts.push((from, until - from, mapping.after(from - start)));
        }
        parts
    }

    /// Move a range to `to`, replacing earlier mappings.
    pub fn shift(&mut self, addr: u64, length: u64, to: u64) {
        let parts = self.unmap(addr, length);
        self.unmap(to, length);
        for (start, length, mapping) in parts {
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

    /// For each byte, the name and offset of its mapping.
    type ByteMap = Vec<Option<(Rc<str>, u64)>>;

    fn byte_map(space: &AddressSpace) -> ByteMap {
        let byte = |addr| {
            let (start, _, mapping) = space.at(addr)?;
            Some((mapping.name.clone(), mapping.after(addr - start).offset))
        };
        (0..64).map(byte).collect()
    }

    proptest! {
        #[test]
        fn an_address_space_agrees_with_a_map_of_single_bytes(
            // Step (0: map, 1: unmap, 2: shift), address, length, target of a shift.
            steps in prop::collection::vec((0..3, 0..32u64, 0..16u64, 0..32u64), 0..40),
        ) {
            let (mut space, mut bytes) = (AddressSpace::default(), vec![None; 64]);
            for (number, (step, addr, length, to)) in (1..).zip(steps) {
                let range = addr as usize..(addr + length) as usize;
                match step {
                    0 => {
                        let new = mapping(number);
                        for at in range {
                            let offset = new.after(at as u64 - addr).offset;
                            bytes[at] = Some((new.name.clone(), offset));
                        }
                        space.map(addr, length, new);
                    }
                    1 => {
                        let mapped = bytes[range.clone()].iter().flatten().count() as u64;
                        let parts = space.unmap(addr, length);
                        prop_assert_eq!(parts.iter().map(|part| part.1).sum::<u64>(), mapped);
                        bytes[range].fill(None);
                    }
                    _ => {
                        let moved = bytes[range.clone()].to_vec();
                        bytes[range].fill(None);
                        bytes[to as usize..(to + length) as usize].clone_from_slice(&moved);
                        space.shift(addr, length, to);
                    }
                }
                prop_assert_eq!(byte_map(&space), bytes.clone());
            }
        }
    }
}
