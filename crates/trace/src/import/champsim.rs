//! ChampSim instruction traces: `champsim` (64 bytes) and `champsim-cloudsuite` (96 bytes).
//!
//! Little-endian structs, one per instruction: u64 ip; u8 is_branch, branch_taken; registers; then
//! u64 destination (store) and source (load) addresses, 0 if unused: 2 and 4 of them at offsets 16
//! and 32, or in CloudSuite 4 and 4 at 24 and 56, and two address-space ids at 88. There are no
//! sizes. An instruction becomes a fetch of one byte at ip, which counts one instruction, then its
//! loads and its stores, one byte each. CloudSuite's first address-space id becomes the process.

use super::threads::Threads;
use super::{Bad, Framing, Head, Importer, Options, Parser};
use crate::record::{Kind, Record};

/// A ChampSim format: the offsets of addresses in an instruction.
#[derive(Clone)]
pub struct ChampSim {
    name: &'static str,
    summary: &'static str,
    holds: &'static str,
    size: usize,
    stores: std::ops::Range<usize>,
    loads: std::ops::Range<usize>,
    /// Offset of the address-space id.
    space: Option<usize>,
}

pub static CHAMPSIM: ChampSim = ChampSim {
    name: "champsim",
    summary: "ChampSim, a 64-byte binary record per instruction",
    holds: "fetches, loads and stores, 1 instruction per fetch",
    size: 64,
    stores: 16..32,
    loads: 32..64,
    space: None,
};

pub static CLOUDSUITE: ChampSim = ChampSim {
    name: "champsim-cloudsuite",
    summary: "ChampSim for CloudSuite, a 96-byte binary record per instruction",
    holds: "fetches, loads and stores, a thread per address space, 1 instruction per fetch",
    size: 96,
    stores: 24..56,
    loads: 56..88,
    space: Some(88),
};

impl Importer for ChampSim {
    fn name(&self) -> &'static str {
        self.name
    }
    fn summary(&self) -> &'static str {
        self.summary
    }
    fn holds(&self) -> &'static str {
        self.holds
    }
    fn framing(&self) -> Framing {
        Framing::Fixed(self.size)
    }
    fn parser(&self, _: &Options) -> Box<dyn Parser> {
        Box::new(Instructions { format: self.clone(), threads: Threads::default() })
    }
    // The flags are 0 or 1, only branches are taken, and an instruction's address is not 0, and is
    // below 2^48 or in the upper half. Four such instructions in a row are no coincidence.
    fn recognizes(&self, head: &Head<'_>) -> bool {
        let mut count = 0;
        for record in head.records(self.size) {
            let ip = address(record);
            let plausible = ip != 0 && (ip >> 48 == 0 || ip >> 47 == 0x1_ffff);
            if !plausible || check_flags(record).is_err() {
                return false;
            }
            count += 1;
        }
        count >= 4
    }
}

fn address(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn check_flags(record: &[u8]) -> Result<(), Bad> {
    match record.get(8..10) {
        Some([0, 0] | [1, 0 | 1]) => Ok(()),
        Some([branch, taken]) => Err(format!(
            "is_branch {branch} and branch_taken {taken} is impossible (another format, or misaligned records?)"
        )
        .into()),
        _ => Err("not a whole instruction".into()),
    }
}

struct Instructions {
    format: ChampSim,
    threads: Threads,
}

impl Parser for Instructions {
    fn parse(&mut self, frame: &[u8], out: &mut Vec<Record>) -> Result<(), Bad> {
        check_flags(frame)?;
        let ChampSim { loads, stores, space, .. } = &self.format;
        let space = space.and_then(|at| frame.get(at)).copied().unwrap_or(0);
        let thread = self.threads.index(u64::from(space), u32::from(space))?;
        let mut put = |addr, kind, instr| out.push(Record { addr, kind, size: 1, thread, instr });
        put(address(frame), Kind::Fetch, 1);
        for (range, kind) in [(loads, Kind::Load), (stores, Kind::Store)] {
            let slots = frame.get(range.clone()).unwrap_or_default().chunks_exact(8);
            for addr in slots.map(address).filter(|&addr| addr != 0) {
                put(addr, kind, 0);
            }
        }
        Ok(())
    }

    fn processes(&self) -> Vec<u32> {
        self.threads.processes().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{error, full, reference, strict};
    use super::*;

    fn instruction(size: usize, ip: u64, flags: [u8; 2], words: &[(usize, u64)]) -> Vec<u8> {
        let mut bytes = vec![0; size];
        bytes[..8].copy_from_slice(&ip.to_le_bytes());
        bytes[8..10].copy_from_slice(&flags);
        for &(at, addr) in words {
            bytes[at..at + 8].copy_from_slice(&addr.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn an_instruction_is_a_fetch_then_loads_then_stores() {
        let bytes = [
            instruction(64, 0x40_1000, [1, 1], &[(16, 0x10), (24, 0x20), (32, 0x30), (56, 0x40)]),
            instruction(64, 0x40_1004, [0, 0], &[]),
        ]
        .concat();
        assert_eq!(
            strict("champsim", &bytes).unwrap(),
            [
                reference(Kind::Fetch, 0x40_1000, 1, 1),
                reference(Kind::Load, 0x30, 1, 0),
                reference(Kind::Load, 0x40, 1, 0),
                reference(Kind::Store, 0x10, 1, 0),
                reference(Kind::Store, 0x20, 1, 0),
                reference(Kind::Fetch, 0x40_1004, 1, 1),
            ]
        );
    }

    #[test]
    fn cloudsuite_has_other_offsets_and_processes() {
        let mut first = instruction(96, 0x40_1000, [0, 0], &[(24, 0x10), (80, 0x30)]);
        first[88] = 7;
        let second = instruction(96, 0x40_1000, [0, 0], &[]);
        let bytes = [first, second].concat();
        let (records, summary) = full("champsim-cloudsuite", &bytes, &Options::default()).unwrap();
        let seen: Vec<_> = records.iter().map(|r| (r.kind, r.addr, r.thread)).collect();
        assert_eq!(
            seen,
            [
                (Kind::Fetch, 0x40_1000, 0),
                (Kind::Load, 0x30, 0),
                (Kind::Store, 0x10, 0),
                (Kind::Fetch, 0x40_1000, 1),
            ]
        );
        assert_eq!(summary.processes, [7, 0]);
    }

    #[test]
    fn bad_instructions_are_reported() {
        let bad = error("champsim", &instruction(64, 1, [2, 0], &[]));
        assert!(bad.contains("record 1, byte 0") && bad.contains("is_branch 2"), "{bad}");
        assert!(error("champsim", &instruction(64, 1, [0, 1], &[])).contains("branch_taken 1"));
        let cut = error("champsim", &[0; 63]);
        assert!(cut.contains("cut short: 63 of its 64 bytes"), "{cut}");
    }
}
