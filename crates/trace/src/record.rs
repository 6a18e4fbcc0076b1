//! Records: one memory reference of one thread, and batches of them by column.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// The kind of a reference. The numbers are the on-disk values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Kind {
    /// The program read data.
    Load = 0,
    /// The program wrote data.
    Store = 1,
    /// The program fetched a run of consecutive instructions (`size` bytes of code).
    Fetch = 2,
    /// The kernel read memory for the program (page cache on `read`, user buffer on `write`); in a
    /// virtual machine, any load of the kernel.
    KernelLoad = 3,
    /// The kernel wrote memory for the program (user buffer on `read`, page cache on `write`); in a
    /// virtual machine, any store of the kernel.
    KernelStore = 4,
    /// The kernel of a virtual machine fetched a run of consecutive instructions.
    KernelFetch = 5,
}

impl Kind {
    /// All kinds, by on-disk number.
    pub const ALL: [Kind; 6] = [
        Kind::Load,
        Kind::Store,
        Kind::Fetch,
        Kind::KernelLoad,
        Kind::KernelStore,
        Kind::KernelFetch,
    ];

    /// The kind with this on-disk number.
    pub fn from_u8(value: u8) -> Option<Kind> {
        Self::ALL.get(usize::from(value)).copied()
    }

    /// The name used in `trace.json`, on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Load => "load",
            Kind::Store => "store",
            Kind::Fetch => "fetch",
            Kind::KernelLoad => "kernel-load",
            Kind::KernelStore => "kernel-store",
            Kind::KernelFetch => "kernel-fetch",
        }
    }

    pub fn from_name(name: &str) -> Option<Kind> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether the reference fetches instructions.
    pub fn fetches(self) -> bool {
        KindSet::FETCHES.contains(self)
    }

    /// Whether the reference writes memory, which makes the page dirty.
    pub fn writes(self) -> bool {
        KindSet::WRITES.contains(self)
    }

    /// This kind's bit in a [`KindSet`].
    pub fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The registry of kinds, for options.
pub struct Kinds;

impl nearfar_schema::Registry for Kinds {
    const NAME: &'static str = "kind";
    const KIND: &'static str = "kind";
    const METAVAR: &'static str = "KINDS";
    fn entries() -> Vec<nearfar_schema::Entry> {
        let what = |kind| match kind {
            Kind::Load => "read by the program",
            Kind::Store => "written by the program",
            Kind::Fetch => "instructions fetched",
            Kind::KernelLoad => "read by the kernel for the program",
            Kind::KernelStore => "written by the kernel for the program",
            Kind::KernelFetch => "instructions of a virtual machine's kernel",
        };
        let entry =
            |kind: Kind| nearfar_schema::Entry { name: kind.name(), what: what(kind).into() };
        Kind::ALL.map(entry).to_vec()
    }
}

/// A set of kinds, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindSet(pub u8);

impl KindSet {
    pub const ALL: KindSet = KindSet(0b11_1111);

    pub const WRITES: KindSet = KindSet(1 << Kind::Store as u8 | 1 << Kind::KernelStore as u8);

    pub const FETCHES: KindSet = KindSet(1 << Kind::Fetch as u8 | 1 << Kind::KernelFetch as u8);

    pub const KERNEL: KindSet = KindSet(
        1 << Kind::KernelLoad as u8 | 1 << Kind::KernelStore as u8 | 1 << Kind::KernelFetch as u8,
    );

    /// The chosen kinds.
    pub fn of(kinds: &[nearfar_schema::Choice<Kinds>]) -> KindSet {
        let named = kinds.iter().filter_map(|kind| Kind::from_name(kind.name));
        KindSet(named.fold(0, |set, kind| set | kind.bit()))
    }

    pub fn contains(self, kind: Kind) -> bool {
        self.has(kind as u8)
    }

    /// Whether the kind of this on-disk number is in the set.
    #[inline(always)]
    pub fn has(self, number: u8) -> bool {
        self.0 >> number & 1 == 1
    }

    /// Names of the members, joined by `+`.
    pub fn label(self) -> String {
        let names: Vec<_> =
            Kind::ALL.into_iter().filter(|kind| self.contains(*kind)).map(Kind::name).collect();
        names.join("+")
    }
}

/// Address of the last byte of a reference of `size` bytes at `addr`. A size of 0 counts as 1, and
/// the address saturates at the end of memory.
#[inline(always)]
pub fn last_byte(addr: u64, size: impl Into<u64>) -> u64 {
    addr.saturating_add(size.into().max(1) - 1)
}

/// One memory reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Virtual address of the first byte.
    pub addr: u64,
    pub kind: Kind,
    /// Bytes touched, 1..=65535; the reference touches every page it overlaps.
    pub size: u16,
    /// Index of the thread, 0 for the first (names in `trace.json`).
    pub thread: u32,
    /// Instructions this thread has executed since its previous record.
    pub instr: u32,
}

/// Many records, by column. All columns have the same length, and `kind` contains only valid
/// numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Virtual byte addresses.
    pub addr: Vec<u64>,
    /// On-disk numbers of [`Kind`].
    pub kind: Vec<u8>,
    /// Bytes touched.
    pub size: Vec<u16>,
    /// Thread indices.
    pub thread: Vec<u32>,
    /// Instructions since the thread's previous record.
    pub instr: Vec<u32>,
}

impl Batch {
    pub fn len(&self) -> usize {
        self.addr.len()
    }

    pub fn is_empty(&self) -> bool {
        self.addr.is_empty()
    }

    /// Remove all records, but keep the memory.
    pub fn clear(&mut self) {
        self.addr.clear();
        self.kind.clear();
        self.size.clear();
        self.thread.clear();
        self.instr.clear();
    }

    /// Keep only the records of `range`. Panics if it is out of bounds.
    pub fn keep(&mut self, range: Range<usize>) {
        fn keep<T>(column: &mut Vec<T>, range: &Range<usize>) {
            column.truncate(range.end);
            column.drain(..range.start);
        }
        keep(&mut self.addr, &range);
        keep(&mut self.kind, &range);
        keep(&mut self.size, &range);
        keep(&mut self.thread, &range);
        keep(&mut self.instr, &range);
    }

    pub fn push(&mut self, record: Record) {
        self.addr.push(record.addr);
        self.kind.push(record.kind as u8);
        self.size.push(record.size);
        self.thread.push(record.thread);
        self.instr.push(record.instr);
    }

    /// The record at `index`. Panics if it is out of bounds.
    pub fn get(&self, index: usize) -> Record {
        Record {
            addr: self.addr[index],
            kind: Kind::from_u8(self.kind[index]).unwrap_or(Kind::Load),
            size: self.size[index],
            thread: self.thread[index],
            instr: self.instr[index],
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Record> + '_ {
        (0..self.len()).map(|index| self.get(index))
    }
}

/// Records of one thread whose sizes and instruction counts fit a byte, as in most batches of a
/// capture. All columns have the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NarrowBatch<'a> {
    /// Virtual byte addresses.
    pub addr: &'a [u64],
    /// Valid on-disk numbers of [`Kind`].
    pub kind: &'a [u8],
    /// Bytes touched.
    pub size: &'a [u8],
    /// Instructions since the thread's previous record.
    pub instr: &'a [u8],
    /// Index of the thread of all records.
    pub thread: u32,
}

impl NarrowBatch<'_> {
    pub fn len(&self) -> usize {
        self.addr.len()
    }

    pub fn is_empty(&self) -> bool {
        self.addr.is_empty()
    }

    /// The records of `range`. Panics if it is out of bounds.
    #[must_use]
    pub fn part(mut self, range: Range<usize>) -> Self {
        self.addr = &self.addr[range.clone()];
        self.kind = &self.kind[range.clone()];
        self.size = &self.size[range.clone()];
        self.instr = &self.instr[range];
        self
    }
}
