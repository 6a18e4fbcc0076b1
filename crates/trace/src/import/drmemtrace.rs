//! drmemtrace: binary traces of DynamoRIO, a file or a folder of one file for each thread.
//!
//! A record is its type and size (2 bytes each) and an address or value (8 bytes), little-endian, as
//! in `clients/drcachesim/common/trace_entry.h`. An instruction is a fetch and counts one
//! instruction; further iterations of a string instruction are neither fetched nor counted.
//! A reference whose size DynamoRIO does not know (`xsave`: 0) touches one byte. References between
//! the markers of a system call's or context switch's trace, or of code in the upper half of the
//! address space, are the kernel's: instructions and loads become `kernel-load`, stores
//! `kernel-store`. Prefetches, flushes, encodings and other markers are skipped.

use rustc_hash::FxHashMap;

use super::threads::Threads;
use super::{Bad, Framing, Head, Importer, Options, Parser};
use crate::record::{Kind, Record};

/// Bytes in a record of the trace of a 64-bit program.
pub(super) const RECORD: usize = 12;

// Types of records.
const READ: u16 = 0;
const WRITE: u16 = 1;
const BUNDLE: u16 = 17;
pub(super) const THREAD: u16 = 22;
const EXIT: u16 = 23;
pub(super) const PROCESS: u16 = 24;
const HEADER: u16 = 25;
pub(super) const MARKER: u16 = 28;
const NO_FETCH: u16 = 29;
const MAYBE_FETCH: u16 = 30;
/// The first type that version 7 does not define.
const UNKNOWN: u16 = 50;
/// Maximum version in a valid header, with room for versions later than the known one, 7.
const MAX_VERSION: u64 = 99;

// Subtypes of a marker, in its size field.
pub(super) const TIMESTAMP: u16 = 2;
const SYSCALL_BEGIN: u16 = 27;
const SYSCALL_END: u16 = 28;
const SWITCH_BEGIN: u16 = 34;
const SWITCH_END: u16 = 35;

pub struct Drmemtrace;

/// Type, size and value of a record.
pub(super) fn record(bytes: &[u8]) -> (u16, u16, u64) {
    let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let value = bytes[4..].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
    (half(0), half(2), value)
}

/// The kind of a kernel reference; fetches become loads.
fn kernel_kind(kind: Kind) -> Kind {
    if kind == Kind::Store { Kind::KernelStore } else { Kind::KernelLoad }
}

fn is_header(kind: u16, value: u64) -> bool {
    kind == HEADER && (1..=MAX_VERSION).contains(&value)
}

impl Importer for Drmemtrace {
    fn name(&self) -> &'static str {
        "drmemtrace"
    }
    fn summary(&self) -> &'static str {
        "binary trace of DynamoRIO's drmemtrace, a file or a folder of trace files"
    }
    fn holds(&self) -> &'static str {
        "fetches, loads and stores with sizes and threads, kernel references as separate kinds, 1 instruction per fetch"
    }
    fn framing(&self) -> Framing {
        Framing::Fixed(RECORD)
    }
    fn takes_folders(&self) -> bool {
        true
    }
    fn parser(&self, _: &Options) -> Box<dyn Parser> {
        Box::new(Entries::default())
    }
    fn recognizes(&self, head: &Head<'_>) -> bool {
        let mut records = head.records(RECORD).map(record);
        records.next().is_some_and(|(kind, _, value)| is_header(kind, value))
            && records.next().is_some_and(|(kind, ..)| matches!(kind, THREAD | HEADER | MARKER))
    }
}

/// The state of a thread.
#[derive(Clone, Copy, Default)]
struct State {
    process: u32,
    /// Bits: in the kernel's trace of a system call (1), of a context switch (2).
    kernel: u8,
    /// Address of its last instruction.
    at: u64,
    /// Address after its last instruction.
    next: u64,
}

#[derive(Default)]
struct Entries {
    begun: bool,
    threads: Threads,
    /// The current thread, and its state.
    thread: Option<u64>,
    state: State,
    /// States of the other threads.
    others: FxHashMap<u64, State>,
}

impl Entries {
    /// Add a reference of the current thread.
    fn add(&mut self, kind: Kind, addr: u64, size: u16, out: &mut Vec<Record>) -> Result<(), Bad> {
        let name = self.thread.ok_or(Bad::from("a reference before the first thread"))?;
        let thread = self.threads.index(name, self.state.process)?;
        let is_kernel = self.state.kernel != 0 || self.state.at >> 63 != 0;
        let instr = u32::from(kind == Kind::Fetch);
        let kind = if is_kernel { kernel_kind(kind) } else { kind };
        out.push(Record { addr, kind, size: size.max(1), thread, instr });
        Ok(())
    }

    /// Handle an executed instruction; add a fetch if `fetched`.
    fn execute(
        &mut self,
        addr: u64,
        size: u16,
        fetched: bool,
        out: &mut Vec<Record>,
    ) -> Result<(), Bad> {
        (self.state.at, self.state.next) = (addr, addr.wrapping_add(size.into()));
        // An instruction without a size only gives the address for the references that follow.
        if fetched && size > 0 { self.add(Kind::Fetch, addr, size, out) } else { Ok(()) }
    }

    fn switch_to(&mut self, thread: u64) {
        if let Some(before) = self.thread.replace(thread)
            && before != thread
        {
            self.others.insert(before, self.state);
            self.state = self.others.remove(&thread).unwrap_or_default();
        }
    }
}

impl Parser for Entries {
    fn parse(&mut self, bytes: &[u8], out: &mut Vec<Record>) -> Result<(), Bad> {
        let (kind, size, value) = record(bytes);
        if !self.begun && !is_header(kind, value) {
            return Err("not the header of the trace of a 64-bit program".into());
        }
        self.begun = true;
        match kind {
            READ => self.add(Kind::Load, value, size, out),
            WRITE => self.add(Kind::Store, value, size, out),
            // Instructions by kind of branch; 31 is `sysenter`.
            10..=16 | 31 | 48 | 49 => self.execute(value, size, true, out),
            NO_FETCH => self.execute(value, size, false, out),
            // The first or a further iteration of a string instruction.
            MAYBE_FETCH => self.execute(value, size, value != self.state.at, out),
            BUNDLE => {
                let lengths = value.to_le_bytes();
                let lengths = lengths.get(..size.into());
                for &length in lengths.ok_or(Bad::from("a bundle of more than 8 instructions"))? {
                    self.execute(self.state.next, length.into(), true, out)?;
                }
                Ok(())
            }
            THREAD | EXIT => {
                self.switch_to(value);
                Ok(())
            }
            PROCESS => {
                self.state.process = value as u32;
                Ok(())
            }
            MARKER => {
                match size {
                    SYSCALL_BEGIN => self.state.kernel |= 1,
                    SYSCALL_END => self.state.kernel &= !1,
                    SWITCH_BEGIN => self.state.kernel |= 2,
                    SWITCH_END => self.state.kernel &= !2,
                    _ => {}
                }
                Ok(())
            }
            UNKNOWN.. => Err(format!("a record of the unknown type {kind}").into()),
            _ => Ok(()),
        }
    }

    fn processes(&self) -> Vec<u32> {
        self.threads.processes().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::tests::{error, full, gzip, reference, zip};
    use super::super::{Input, Options, by_name, read};
    use super::*;

    const INSTRUCTION: u16 = 10;
    const FOOTER: u16 = 26;
    const ENCODING: u16 = 47;

    fn entries(entries: &[(u16, u16, u64)]) -> Vec<u8> {
        let entry = |&(kind, size, value): &(u16, u16, u64)| {
            let halves = [kind.to_le_bytes(), size.to_le_bytes()].concat();
            [halves, value.to_le_bytes().to_vec()].concat()
        };
        entries.iter().flat_map(entry).collect()
    }

    fn records(text: &[(u16, u16, u64)]) -> (Vec<Record>, Vec<u32>) {
        let (records, summary) = full("drmemtrace", &entries(text), &Options::default()).unwrap();
        (records, summary.processes)
    }

    const BEGIN: [(u16, u16, u64); 3] = [(HEADER, 0, 7), (THREAD, 4, 42), (PROCESS, 4, 40)];

    #[test]
    fn entries_become_references() {
        let (found, processes) = records(
            &[
                &BEGIN[..],
                &[
                    (MARKER, 12, 7),
                    (ENCODING, 3, 0x48_8b5c),
                    (INSTRUCTION, 3, 0x40_4a7e),
                    (READ, 8, 0x7fdf_64e2_adc8),
                    // xsave, whose size is not known.
                    (49, 4, 0x40_4a81),
                    (WRITE, 0, 0x7fdf_64e2_b000),
                    // A string instruction and its further iteration.
                    (INSTRUCTION, 2, 0x40_4a85),
                    (NO_FETCH, 2, 0x40_4a85),
                    (MAYBE_FETCH, 2, 0x40_4a85),
                    (MAYBE_FETCH, 5, 0x40_4a87),
                    (BUNDLE, 2, 0x0102),
                    // A prefetch, a flush, an address without a fetch.
                    (5, 1, 0x10),
                    (18, 64, 0x20),
                    (INSTRUCTION, 0, 0x40_5000),
                    (READ, 4, 0x30),
                    (EXIT, 4, 42),
                    (FOOTER, 0, 0),
                ],
            ]
            .concat(),
        );
        let expected = [
            reference(Kind::Fetch, 0x40_4a7e, 3, 1),
            reference(Kind::Load, 0x7fdf_64e2_adc8, 8, 0),
            reference(Kind::Fetch, 0x40_4a81, 4, 1),
            reference(Kind::Store, 0x7fdf_64e2_b000, 1, 0),
            reference(Kind::Fetch, 0x40_4a85, 2, 1),
            reference(Kind::Fetch, 0x40_4a87, 5, 1),
            reference(Kind::Fetch, 0x40_4a8c, 2, 1),
            reference(Kind::Fetch, 0x40_4a8e, 1, 1),
            reference(Kind::Load, 0x30, 4, 0),
        ];
        assert_eq!(found, expected);
        assert_eq!(processes, [40]);
    }

    #[test]
    fn references_of_the_kernel_get_its_kinds() {
        let access = [(INSTRUCTION, 2, 0x1000), (READ, 4, 0x2000), (WRITE, 4, 0x3000)];
        let kernel = [Kind::KernelLoad, Kind::KernelLoad, Kind::KernelStore];
        let program = [Kind::Fetch, Kind::Load, Kind::Store];
        for (begin, end) in [(SYSCALL_BEGIN, SYSCALL_END), (SWITCH_BEGIN, SWITCH_END)] {
            let (found, processes) = records(
                &[
                    &BEGIN[..],
                    &[(MARKER, begin, 1)],
                    &access,
                    // Another thread is not in the kernel.
                    &[(THREAD, 4, 43), (PROCESS, 4, 40)],
                    &access,
                    &[(THREAD, 4, 42)],
                    &access,
                    // A signal handler belongs to the program.
                    &[(MARKER, end, 1), (MARKER, 0, 0x1000)],
                    &access,
                ]
                .concat(),
            );
            let kinds: Vec<_> = found.iter().map(|record| record.kind).collect();
            assert_eq!(kinds, [kernel, program, kernel, program].concat());
            assert_eq!(found.iter().map(|record| record.instr).sum::<u32>(), 4);
            assert_eq!(processes, [40, 40]);
        }
        let high =
            [(INSTRUCTION, 2, 0xffff_ffff_8100_0000), (READ, 4, 0x2000), (INSTRUCTION, 2, 0x1000)];
        let (found, _) = records(&[&BEGIN[..], &high].concat());
        let kinds: Vec<_> = found.iter().map(|record| record.kind).collect();
        assert_eq!(kinds, [Kind::KernelLoad, Kind::KernelLoad, Kind::Fetch]);
    }

    #[test]
    fn bad_entries_are_reported() {
        for (text, what) in [
            (
                &[(INSTRUCTION, 4, 0x1000)][..],
                "record 1, byte 0: bad drmemtrace record: not the header",
            ),
            (&[(HEADER, 0, 7), (READ, 4, 0x1000)], "before the first thread"),
            (&[BEGIN[0], BEGIN[1], (UNKNOWN, 0, 0)], "record 3, byte 24: bad drmemtrace record: a"),
            (&[BEGIN[0], BEGIN[1], (BUNDLE, 9, 0)], "a bundle of more than 8"),
            (&[BEGIN[0], BEGIN[1], (READ, 4, u64::MAX)], "past the end of the address space"),
        ] {
            let error = error("drmemtrace", &entries(text));
            assert!(error.contains(what), "{error}");
        }
        let cut = &entries(&[BEGIN[0], BEGIN[1], (READ, 4, 1)])[..30];
        assert!(error("drmemtrace", cut).contains("record 3, byte 24"));
    }

    /// The file of a thread that executes at `at`, `at` + 1, ..., once after each of `times`.
    fn thread(name: u64, at: u64, times: &[u64]) -> Vec<u8> {
        let mut text = vec![(HEADER, 0, 7), (THREAD, 4, name), (PROCESS, 4, 40)];
        for (index, &time) in times.iter().enumerate() {
            text.extend([(MARKER, TIMESTAMP, time), (INSTRUCTION, 4, at + index as u64)]);
        }
        text.push((FOOTER, 0, 0));
        entries(&text)
    }

    fn addresses(folder: &Path) -> Result<Vec<(u64, u32)>, String> {
        let mut input = Input::open(folder).map_err(|e| e.to_string())?;
        let mut found = Vec::new();
        let sink = &mut |record: Record| {
            found.push((record.addr, record.thread));
            Ok(())
        };
        let importer = by_name("drmemtrace").map_err(|e| e.to_string())?;
        read(importer, &mut input, &Options::default(), sink).map_err(|e| e.to_string())?;
        Ok(found)
    }

    #[test]
    fn the_files_of_a_folder_are_joined_by_their_timestamps() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("trace");
        std::fs::create_dir(&inner).unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(inner.join(name), bytes).unwrap();
        write("a.1.trace.gz", &gzip(&thread(1, 0x100, &[10, 40])));
        let second = thread(2, 0x200, &[20, 30, 60]);
        let halves = second.split_at(40);
        write("a.2.trace.zip", &zip(&[halves.0, halves.1], false));
        write("a.3.trace", &thread(3, 0x300, &[15, 50]));
        write("cpu_schedule.bin.zip", b"not a trace");
        write("funclist.log", b"neither");
        let expected =
            [(0x100, 0), (0x300, 1), (0x200, 2), (0x201, 2), (0x101, 0), (0x301, 1), (0x202, 2)];
        for from in [folder.path(), &inner] {
            assert_eq!(addresses(from).unwrap(), expected);
        }
        write("a.4.trace", &thread(4, 0x400, &[70])[..30]);
        let cut = addresses(folder.path()).unwrap_err();
        assert!(cut.contains("a.4.trace: cut short"), "{cut}");
        write("a.4.trace", &gzip(&thread(4, 0x400, &[70]))[..40]);
        let damaged = addresses(folder.path()).unwrap_err();
        assert!(damaged.contains("a.4.trace: damaged or cut-off gzip stream"), "{damaged}");
        let none = addresses(folder.path().parent().unwrap()).unwrap_err();
        assert!(none.contains("is a folder without trace files of drmemtrace"), "{none}");
    }
}
