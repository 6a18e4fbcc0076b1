//! The RAM of a virtual machine: its regions, and the pages touched before recording began.

use nearfar_trace::{Kind, Record, RegionEvent, RegionKind, Result};

use super::Recording;

const PAGE: u64 = 4096;
/// Records to pass on at a time.
const BATCH: usize = 1 << 15;

impl Recording<'_> {
    /// Record a map event of the first thread for each range of RAM (start and bytes), and then for
    /// each named part of it (first byte, last byte and name).
    pub fn map_ram(&mut self, ranges: &[(u64, u64)], named: Vec<(u64, u64, String)>) -> Result<()> {
        let ram = ranges.iter().map(|&(addr, length)| (addr, length, "[ram]".to_owned()));
        let named = named.into_iter().map(|(first, last, name)| {
            (first, last - first + 1, format!("[{}]", name.to_lowercase()))
        });
        for (addr, length, name) in ram.chain(named) {
            let (event, prot) = (RegionKind::Map, "rwxp".to_owned());
            self.region(RegionEvent { event, addr, length, prot, name, ..<_>::default() })?;
        }
        Ok(())
    }

    /// Record the pages of these ranges (start and bytes) as stores of the kernel, on behalf of the
    /// first thread. They do not count towards the maximum number of records.
    pub fn touched_ram(&mut self, ranges: &[(u64, u64)]) -> Result<()> {
        let pages =
            ranges.iter().flat_map(|&(addr, length)| (addr..addr + length).step_by(PAGE as usize));
        for addr in pages {
            let (kind, size) = (Kind::KernelStore, PAGE as u16);
            self.batch.push(Record { addr, kind, size, thread: 0, instr: 0 });
            if self.batch.len() == BATCH {
                self.out.write_uncounted(&mut self.batch)?;
            }
        }
        self.out.write_uncounted(&mut self.batch)
    }
}
