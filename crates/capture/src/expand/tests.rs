//! Compares the expander with a simulation that executes single instructions.

use proptest::prelude::*;

use super::*;
use crate::layout::{CONTROL, KERNEL_BLOCK, block_word, count_only_word, tag};

/// A table with the blocks `entries` (address, bytes, instructions) from index 1 on. Most of its
/// memory stays untouched.
fn table(entries: &[(u64, u64, u64)]) -> Box<[Block; BLOCKS]> {
    let size = std::alloc::Layout::new::<[Block; BLOCKS]>();
    // SAFETY: zeros are a valid table, and the layout is that of the box.
    let table = unsafe { Box::from_raw(std::alloc::alloc_zeroed(size).cast::<[Block; BLOCKS]>()) };
    for (index, (addr, bytes, count)) in entries.iter().enumerate() {
        table[index + 1].addr.store(*addr, Relaxed);
        table[index + 1].shape.store(count << 32 | bytes, Relaxed);
    }
    table
}

fn reference(addr: u64, index: u64, size_log2: u64, store: bool) -> u64 {
    addr | (index << INDEX_SHIFT) | (size_log2 << SIZE_SHIFT) | (u64::from(store) * STORE)
}

/// Collects all records in one batch.
#[derive(Default)]
struct Collector(Batch);

impl Sink for Collector {
    fn narrow(&mut self, records: NarrowBatch<'_>) -> Result<()> {
        self.0.addr.extend(records.addr);
        self.0.kind.extend(records.kind);
        self.0.size.extend(records.size.iter().map(|&size| u16::from(size)));
        self.0.instr.extend(records.instr.iter().map(|&instr| u32::from(instr)));
        self.0.thread.resize(self.0.addr.len(), records.thread);
        Ok(())
    }

    fn wide(&mut self, records: &mut Batch) -> Result<()> {
        records.iter().for_each(|record| self.0.push(record));
        records.clear();
        Ok(())
    }
}

#[test]
fn a_record_has_the_instructions_since_the_previous_record() {
    let blocks = table(&[(0xffff_ffff_ff60_0000, 17, 5), (0x2000, 4, 1)]);
    let words = [
        BLOCK | 1,
        reference(0x7fff_ffff_fff8, 1, 3, false),
        reference(0x10, 1, 0, true),
        reference(0x20, 4, 6, true),
        BLOCK | 2,
        BLOCK | 1,
    ];
    let mut position = Position::new(3);
    let mut out = Collector::default();
    let mut expander = Expander::new(true);
    assert_eq!(expander.expand(&words, &blocks, &mut position, &mut out).unwrap(), 6);
    expander.flush(&mut out).unwrap();
    let out = out.0;
    let found: Vec<_> = out.iter().map(|r| (r.addr, r.kind, r.size, r.thread, r.instr)).collect();
    let expected = [
        (0xffff_ffff_ff60_0000, Kind::Fetch, 17, 3, 0),
        (0x7fff_ffff_fff8, Kind::Load, 8, 3, 2),
        (0x10, Kind::Store, 1, 3, 0),
        (0x20, Kind::Store, 64, 3, 3),
        (0x2000, Kind::Fetch, 4, 3, 0),
        (0xffff_ffff_ff60_0000, Kind::Fetch, 17, 3, 1),
    ];
    assert_eq!(found, expected);
    assert_eq!(position.since_last_record(), 5);
}

#[test]
fn expansion_stops_at_a_control_word() {
    let blocks = table(&[(0x1000, 4, 1)]);
    let words = [BLOCK | 1, CONTROL | tag::PAD << 56, BLOCK | 1];
    let mut out = Collector::default();
    let (mut expander, mut position) = (Expander::new(true), Position::new(0));
    assert_eq!(expander.expand(&words, &blocks, &mut position, &mut out).unwrap(), 1);
    assert_eq!(expander.expand(&words[1..], &blocks, &mut position, &mut out).unwrap(), 0);
    expander.flush(&mut out).unwrap();
    assert_eq!(out.0.len(), 1);
}

#[test]
fn a_gap_beyond_32_bits_is_carried_over_to_the_next_record() {
    let blocks = table(&[(0x1000, 4, u64::from(u32::MAX)), (0x2000, 4, 10)]);
    let words = [BLOCK | 1, BLOCK | 1, BLOCK | 2]
        .into_iter()
        .chain([reference(0x10, 0, 0, false), reference(0x20, 0, 0, false)])
        .chain([reference(0x30, 0, 0, false), reference(0x40, 2, 0, false)])
        .collect::<Vec<_>>();
    let mut position = Position::new(0);
    let mut out = Collector::default();
    let mut expander = Expander::new(false);
    expander.expand(&words, &blocks, &mut position, &mut out).unwrap();
    expander.flush(&mut out).unwrap();
    assert_eq!(out.0.instr, [u32::MAX, u32::MAX, 1, 2]);
    assert_eq!(position.since_last_record(), 7);
}

/// Address, bytes and instructions of the block that `word` begins.
fn block_of(word: u64, entries: &[(u64, u64, u64)]) -> (u64, u64, u64) {
    match word >> 56 & 0x7f {
        0 if word & 0xffff_ffff == 0 => (0, 0, 0),
        0 => entries[(word & 0xffff_ffff) as usize - 1],
        count => (word & 0xffff_ffff_ffff, word >> 48 & 0xff, count),
    }
}

/// The reference implementation: executes single instructions.
fn reference_records(words: &[u64], entries: &[(u64, u64, u64)], fetch: bool) -> Vec<Record> {
    let (mut executed, mut recorded, mut start) = (0u64, 0u64, 0u64);
    let mut records = Vec::new();
    let mut current = 0;
    for word in words {
        let (addr, kind, size, at);
        if word >> 63 == 1 {
            executed += current;
            start = executed;
            let (block_addr, bytes, count) = block_of(*word, entries);
            current = count;
            let by_kernel = block_addr >> 48 == 1 << 15;
            kind = if by_kernel { Kind::KernelFetch } else { Kind::Fetch };
            (addr, size, at) = (block_addr ^ u64::from(by_kernel) << 63, bytes, start);
            if !fetch || bytes == 0 {
                continue;
            }
        } else {
            addr = word & 0xffff_ffff_ffff;
            kind = match (word >> 60 & 1, word >> 61 & 1) {
                (0, 0) => Kind::Load,
                (_, 0) => Kind::Store,
                (0, _) => Kind::KernelLoad,
                _ => Kind::KernelStore,
            };
            size = 1 << (word >> 57 & 7);
            at = start + (word >> 48 & 0x1ff) + 1;
        }
        let instr = at.saturating_sub(recorded) as u32;
        recorded = recorded.max(at);
        records.push(Record { addr, kind, size: size as u16, thread: 9, instr });
    }
    records
}

/// The records of `words`, expanded `step` words at a time.
fn expanded(
    words: &[u64],
    step: usize,
    blocks: &[Block; BLOCKS],
    position: &mut Position,
    mut expander: Expander,
) -> Vec<Record> {
    let mut out = Collector::default();
    for mut chunk in words.chunks(step) {
        while !chunk.is_empty() {
            let expanded = expander.expand(chunk, blocks, position, &mut out).unwrap();
            assert!(expanded > 0);
            chunk = &chunk[expanded..];
        }
    }
    expander.flush(&mut out).unwrap();
    assert_eq!(out.0.thread.len(), out.0.len());
    out.0.iter().collect()
}

/// Addresses of blocks, some of them of a kernel.
fn addresses() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), any::<u64>().prop_map(|addr| addr >> 16 | KERNEL_BLOCK)]
}

proptest! {
    /// First random words, then blocks whose references repeat a few bodies.
    #[test]
    fn agrees_with_the_reference(
        entries in prop::collection::vec(
            ((addresses(), any::<bool>()), 1u64..600, prop_oneof![0u64..=512, 1u64..130]), 1..20),
        raw in prop::collection::vec((any::<u64>(), 0u64..30, any::<bool>()), 0..300),
        bodies in prop::collection::vec(
            prop::collection::vec((0u64..12, 0u64..8, any::<bool>()), 0..30), 1..4),
        turns in prop::collection::vec((0usize..4, any::<u32>(), 0u8..20), 0..200),
        step in prop_oneof![1usize..300, (1usize..4).prop_map(|groups| groups * GROUP)],
        all_fit in any::<bool>(),
        count_only_every in 1u64..9,
    ) {
        // Blocks that fit a word, with references in order, are expanded in columns.
        let raw = if all_fit { Vec::new() } else { raw };
        let fitting =
            |addr: u64, bytes: u64, count: u64| (addr >> 16, bytes % 255 + 1, 119 - count % 60);
        let entries: Vec<(u64, u64, u64)> = entries
            .into_iter()
            .map(|((addr, fits), bytes, count)| {
                if all_fit || fits { fitting(addr, bytes, count) } else { (addr, bytes, count) }
            })
            .collect();
        let blocks = table(&entries);
        // Entry 0 is no block. Of the others, all (with `all_fit`) or two in three are encoded as
        // words, some of them count-only.
        let block = |index: u64| {
            let entry = index % (entries.len() as u64 + 1);
            let entry = if all_fit { entry.max(1) } else { entry };
            let block = entries.get((entry as usize).wrapping_sub(1));
            block.filter(|_| all_fit || !index.is_multiple_of(3))
                .and_then(|&(addr, bytes, count)| match entry.is_multiple_of(count_only_every) {
                    true if count_only_every < 5 => count_only_word(count),
                    _ => block_word(addr, bytes, count),
                })
                .unwrap_or(BLOCK | entry)
        };
        let mut words: Vec<u64> = raw
            .iter()
            .map(|&(bits, index, is_block)| if is_block { block(index) } else { bits >> 2 })
            .collect();
        for (body, addr, cut) in turns {
            let index = body % bodies.len();
            words.push(block(index as u64 + 1));
            let (mut at, body) = (0, &bodies[index]);
            for (more, size, store) in &body[usize::from(cut == 0).min(body.len())..] {
                at += if all_fit { more % 2 } else { *more };
                words.push(reference(u64::from(addr) + at, at, *size, *store));
            }
        }
        for fetch in [true, false] {
            let mut position = Position::new(9);
            let found = expanded(&words, step, &blocks, &mut position, Expander::new(fetch));
            prop_assert_eq!(found, reference_records(&words, &entries, fetch));
            let executed: u64 = words
                .iter()
                .filter(|&&word| word >> 63 == 1)
                .map(|&word| block_of(word, &entries).2)
                .sum();
            prop_assert_eq!(position.block_end, executed);
        }
    }
}

#[test]
fn more_words_than_are_expanded_at_once_agree_with_the_reference() {
    let entries = [(0x1000, 12, 4), (0x2000, 300, 200), (0x3000, 9, 3)];
    let blocks = table(&entries);
    for with_table in [true, false] {
        let words: Vec<u64> = (0..MAX_WORDS as u64 * 3)
            .map(|i| match i % 7 {
                0 if with_table && i.is_multiple_of(2) => BLOCK | (1 + i / 7 % 3),
                0 => block_word(0x1000 + i, i % 255 + 1, i % 119 + 1).unwrap(),
                n => reference(0x7000_0000 + i * 64, n, n % 4, n == 2),
            })
            .collect();
        for fetch in [true, false] {
            let (expander, mut position) = (Expander::new(fetch), Position::new(9));
            let found = expanded(&words, words.len(), &blocks, &mut position, expander);
            assert_eq!(found, reference_records(&words, &entries, fetch));
        }
    }
}
