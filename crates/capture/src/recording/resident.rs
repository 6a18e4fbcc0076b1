//! Records pages that become resident without a reference of the program, or before recording
//! begins.
//!
//! The record of a page is an access of the kernel, which fills it: a `kernel-store` if the page is
//! private and writable, otherwise a `kernel-load`.

use std::fs::File;
use std::os::unix::fs::FileExt;

use nearfar_trace::{Kind, Record, Result};

use super::Recording;
use crate::expand::{Position, Sink};

const PAGE: u64 = 4096;
/// Entries of `/proc/PID/pagemap` to read at a time, 8 bytes each.
const ENTRIES: usize = 1 << 15;
/// Bits of an entry: the page is in memory, or in swap.
const RESIDENT: u64 = 1 << 63 | 1 << 62;
/// Maximum pages that one event can make resident: those of 1 TiB.
const MAX_PAGES: u64 = 1 << 28;

impl Recording<'_> {
    /// Record the mapped pages of a range, because the kernel made them resident.
    pub(super) fn populate(
        &mut self,
        process: u32,
        addr: u64,
        length: u64,
        position: &mut Position,
    ) -> Result<()> {
        let mut left = MAX_PAGES;
        for (start, bytes, mapping) in self.space(process).mappings(addr, length) {
            let Some(kind) = fill_kind(&mapping.prot) else { continue };
            for page in (start..start + bytes.min(left * PAGE)).step_by(PAGE as usize) {
                position.push_kernel(kind, page, PAGE as u16, &mut self.batch);
                if self.batch.len() == ENTRIES {
                    self.out.wide(&mut self.batch)?;
                }
            }
            left = left.saturating_sub(bytes / PAGE);
        }
        self.out.wide(&mut self.batch)
    }

    /// The mapped parts of a range that the program may access: address and bytes.
    pub(super) fn accessible(
        &mut self,
        process: u32,
        addr: u64,
        length: u64,
    ) -> impl Iterator<Item = (u64, u64)> + use<> {
        let mappings = self.space(process).mappings(addr, length).into_iter();
        mappings
            .filter(|(.., mapping)| fill_kind(&mapping.prot).is_some())
            .map(|part| (part.0, part.1))
    }

    /// Record the pages of `process` that are resident now, as its thread `thread`. QEMU runs it as
    /// process `pid`, with guest address 0 at `base`. Pages whose state cannot be read are omitted.
    pub fn already_resident(
        &mut self,
        process: u32,
        thread: u32,
        pid: u32,
        base: u64,
    ) -> Result<()> {
        let Ok(pagemap) = File::open(format!("/proc/{pid}/pagemap")) else { return Ok(()) };
        let mut entries = vec![0; ENTRIES * 8];
        for (start, bytes, mapping) in self.space(process).mappings(0, u64::MAX) {
            let Some(kind) = fill_kind(&mapping.prot) else { continue };
            let (mut page, end) = (start / PAGE, (start + bytes).div_ceil(PAGE));
            while page < end {
                let wanted = ENTRIES.min((end - page) as usize);
                let at = (page + base / PAGE).saturating_mul(8);
                let read = pagemap.read_at(&mut entries[..wanted * 8], at).unwrap_or(0) / 8;
                if read == 0 {
                    break;
                }
                for (number, entry) in (page..).zip(entries[..read * 8].chunks_exact(8)) {
                    let entry = u64::from_le_bytes(entry.try_into().unwrap_or_default());
                    if entry & RESIDENT != 0 {
                        let (addr, size) = (number * PAGE, PAGE as u16);
                        self.batch.push(Record { addr, kind, size, thread, instr: 0 });
                    }
                }
                self.out.write_uncounted(&mut self.batch)?;
                page += read as u64;
            }
        }
        Ok(())
    }
}

/// How the kernel fills a page of a mapping with this protection; `None` if it may not be accessed.
fn fill_kind(prot: &str) -> Option<Kind> {
    match prot.as_bytes() {
        [_, b'w', _, b'p', ..] => Some(Kind::KernelStore),
        [b'r', ..] | [_, b'w', ..] => Some(Kind::KernelLoad),
        _ => None,
    }
}
