//! The mappings of a process, tracked from its events, because `mremap` and `shmdt` do not describe
//! the mapping that they affect.

use std::rc::Rc;

use nearfar_trace::ranges::Ranges;

/// What is mapped in a range.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// Of a file: the offset that address 0 would have in it, modulo 2^64. Otherwise the offset of all bytes.
    base: u64,
    /// Protection, such as `rw-p`.
    pub prot: Rc<str>,
    pub name: Rc<str>,
    /// Device and inode of the file, both 0 if there is none.
    pub file: (u64, u64),
}

impl Mapping {
    /// A mapping at `addr`, which has this offset in the file.
    pub fn new(addr: u64, offset: u64, prot: Rc<str>, name: Rc<str>, file: (u64, u64)) -> Self {
        let base = if file == (0, 0) { offset } else { offset.wrapping_sub(addr) };
        Self { base, prot, name, file }
    }

    /// The offset in the file of the byte at `addr`.
    pub fn offset(&self, addr: u64) -> u64 {
        if self.file == (0, 0) { self.base } else { self.base.wrapping_add(addr) }
    }

    /// The mapping after a move by `by` bytes (modulo 2^64).
    pub fn moved(self, by: u64) -> Self {
        // What is now at address 0 was at `-by`.
        Self { base: self.offset(by.wrapping_neg()), ..self }
    }
}

/// The mapped ranges of bytes.
#[derive(Clone, Debug, Default)]
pub struct AddressSpace(Ranges<Mapping>);

impl AddressSpace {
    pub fn len(&self) -> usize {
        self.0.count()
    }

    /// Start and end of the mapping at `addr`, and the mapping.
    pub fn at(&self, addr: u64) -> Option<(u64, u64, Mapping)> {
        let (start, last, mapping) = self.0.at_or_after(addr)?;
        (start <= addr).then_some((start, last + 1, mapping))
    }

    /// Map a range, replacing earlier mappings.
    pub fn map(&mut self, addr: u64, length: u64, mapping: Mapping) {
        if let Some(last) = last(addr, length) {
            self.0.map(addr, last, mapping);
        }
    }

    pub fn unmap(&mut self, addr: u64, length: u64) {
        if let Some(last) = last(addr, length) {
            self.0.unmap(addr, last);
        }
    }

    /// The mapped parts of a range: start, length and mapping.
    pub fn mappings(&self, addr: u64, length: u64) -> Vec<(u64, u64, Mapping)> {
        let Some(last) = last(addr, length) else { return Vec::new() };
        let parts = self.0.within(addr, last);
        parts.map(|(start, last, mapping)| (start, last - start + 1, mapping)).collect()
    }

    /// Move a range to `to`, replacing earlier mappings.
    pub fn shift(&mut self, addr: u64, length: u64, to: u64) {
        let by = to.wrapping_sub(addr);
        if let Some(last) = last(addr, length) {
            self.0.shift(addr, last, by, |mapping| mapping.moved(by));
        }
    }
}

/// The last byte of a range, at most 2^64 - 2. `None` if the range is empty.
fn last(addr: u64, length: u64) -> Option<u64> {
    (length > 0).then(|| addr.saturating_add(length) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_keep_their_offsets_in_the_file() {
        let (file, none) = ((8, 9), (0, 0));
        let new = |addr, offset, file| Mapping::new(addr, offset, "rw-p".into(), "".into(), file);
        let mut space = AddressSpace::default();
        space.map(0x5000, 0x4000, new(0x5000, 0x1000, file));
        space.map(0x9000, 0x2000, new(0x9000, 0x70, none));
        space.map(0xb000, 0, new(0xb000, 0, file));
        space.unmap(0x6000, 0x1000);
        space.unmap(0xa000, 0);
        space.shift(0x8000, 0x2000, 0x1000);
        let parts = |space: &AddressSpace, addr, length| -> Vec<_> {
            let parts = space.mappings(addr, length).into_iter();
            parts.map(|(start, length, part)| (start, length, part.offset(start))).collect()
        };
        let all = [
            (0x1000, 0x1000, 0x4000),
            (0x2000, 0x1000, 0x70),
            (0x5000, 0x1000, 0x1000),
            (0x7000, 0x1000, 0x3000),
            (0xa000, 0x1000, 0x70),
        ];
        assert_eq!((parts(&space, 0, u64::MAX), space.len()), (all.to_vec(), 5));
        assert_eq!(parts(&space, 0x1800, 0x1000), [(0x1800, 0x800, 0x4800), (0x2000, 0x800, 0x70)]);
        assert_eq!(parts(&space, 0x1800, 0), []);
        let at = |addr| space.at(addr).map(|(start, end, _)| (start, end));
        assert_eq!((at(0x1fff), at(0x3000)), (Some((0x1000, 0x2000)), None));
        // The ends of the address space.
        space.unmap(0, u64::MAX);
        space.map(u64::MAX - 2, 9, new(u64::MAX - 2, 5, file));
        assert_eq!(parts(&space, u64::MAX - 1, 1), [(u64::MAX - 1, 1, 6)]);
        space.shift(u64::MAX - 2, 2, 0);
        assert_eq!(parts(&space, 0, u64::MAX), [(0, 2, 5)]);
    }
}
