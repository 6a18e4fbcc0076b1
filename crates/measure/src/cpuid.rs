//! Caches and TLBs from `cpuid` (Intel SDM volume 2A, CPUID; AMD APM volume 3, appendix E).

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Serialize;

/// The registers EAX, EBX, ECX and EDX of leaves and subleaves.
pub type Leaves = BTreeMap<(u32, u32), [u32; 4]>;

/// A processor as `cpuid` describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Processor {
    /// `AuthenticAMD`, `GenuineIntel` or another.
    pub vendor: String,
    /// Family, including the extended family.
    pub family: u32,
    /// Model, including the extended model.
    pub model: u32,
    /// Whether a hypervisor reports itself.
    pub hypervisor: bool,
    /// Data, unified and instruction caches.
    pub caches: Vec<Cache>,
    /// First-level data TLB.
    pub first: Option<Tlb>,
    /// First-level instruction TLB.
    pub instruction: Option<Tlb>,
    /// Second-level data TLB.
    pub second: Option<Tlb>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// 1, 2 or 3.
    pub level: u32,
    /// Whether it holds only instructions.
    pub instruction: bool,
    /// Capacity in bytes.
    pub size: u64,
    /// Ways of a set; `None` if fully associative.
    pub ways: Option<u32>,
    /// Bytes of a line.
    pub line: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Tlb {
    /// For small pages; also for large pages if `large` is `None`.
    pub small: Entries,
    /// For 2 MiB pages only.
    pub large: Option<Entries>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Entries {
    pub entries: u32,
    /// Ways of a set; `None` if fully associative.
    pub ways: Option<u32>,
}

/// Read the leaves that [`decode`] needs from this processor. Empty without `cpuid`.
pub fn read() -> Leaves {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::__cpuid_count;
        let mut leaves = Leaves::new();
        let mut get = |leaf, sub| {
            let registers = __cpuid_count(leaf, sub);
            leaves
                .insert((leaf, sub), [registers.eax, registers.ebx, registers.ecx, registers.edx]);
            registers
        };
        let (basic, extended) = (get(0, 0).eax, get(0x8000_0000, 0).eax);
        let known = |leaf: u32| leaf <= if leaf < 1 << 31 { basic } else { extended };
        for leaf in [1, 2, 0x8000_0005, 0x8000_0006].into_iter().filter(|leaf| known(*leaf)) {
            get(leaf, 0);
        }
        for leaf in [4, 0x8000_001d].into_iter().filter(|leaf| known(*leaf)) {
            // A cache of type 0 ends the list; no processor has 16 caches.
            let _ = (0..16).any(|sub| get(leaf, sub).eax & 31 == 0);
        }
        if basic >= 0x18 {
            // No processor describes 64 TLBs.
            let last = get(0x18, 0).eax.min(63);
            (1..=last).for_each(|sub| {
                get(0x18, sub);
            });
        }
        leaves
    }
    #[cfg(not(target_arch = "x86_64"))]
    Leaves::new()
}

/// Decode the leaves; `None` if there are none.
pub fn decode(leaves: &Leaves) -> Option<Processor> {
    let [_, b, c, d] = *leaves.get(&(0, 0))?;
    let letters = [b, d, c].map(u32::to_le_bytes).concat();
    let vendor = String::from_utf8_lossy(&letters).trim_end_matches('\0').to_owned();
    let [signature, _, features, _] = leaves.get(&(1, 0)).copied().unwrap_or_default();
    let (family, model) = (signature >> 8 & 15, signature >> 4 & 15);
    let extended = family == 15 || family == 6;
    let mut processor = Processor {
        vendor,
        family: family + if family == 15 { signature >> 20 & 255 } else { 0 },
        model: model | if extended { (signature >> 16 & 15) << 4 } else { 0 },
        hypervisor: features >> 31 == 1,
        ..Processor::default()
    };
    let amd = matches!(processor.vendor.as_str(), "AuthenticAMD" | "HygonGenuine");
    processor.caches = caches(leaves, if amd { 0x8000_001d } else { 4 });
    if amd {
        from_amd(leaves, &mut processor);
    } else if leaves.contains_key(&(0x18, 1)) {
        from_parameters(leaves, &mut processor);
    } else {
        from_descriptors(leaves, &mut processor);
    }
    Some(processor)
}

/// Caches, from leaf 4 or 0x8000001d, which have the same format.
fn caches(leaves: &Leaves, leaf: u32) -> Vec<Cache> {
    let subleaves = leaves.range((leaf, 0)..=(leaf, u32::MAX));
    let caches = subleaves.filter(|(_, [a, ..])| a & 31 != 0).map(|(_, [a, b, c, _])| {
        let (line, partitions, ways) = ((b & 0xfff) + 1, (b >> 12 & 0x3ff) + 1, (b >> 22) + 1);
        let sets = u64::from(*c) + 1;
        Cache {
            level: a >> 5 & 7,
            instruction: a & 31 == 2,
            size: sets.saturating_mul(u64::from(ways) * u64::from(partitions) * u64::from(line)),
            ways: (a >> 9 & 1 == 0).then_some(ways),
            line,
        }
    });
    caches.collect()
}

/// TLBs from leaves 0x80000005 (8 bits of entries, 8 of ways) and 0x80000006 (12 bits of entries, and a
/// 4-bit code of the ways).
fn from_amd(leaves: &Leaves, processor: &mut Processor) {
    // Since Zen all sizes share the entries that both registers count.
    let shared = processor.family >= 0x17;
    let tlb = |small, large: Option<Entries>| tlb(small, large.filter(|_| !shared));
    let first = |large: u32, small: u32, shift: u32| {
        let entries = |register: u32| {
            let (entries, ways) = (register >> shift & 255, register >> (shift + 8) & 255);
            entries_of(entries, (ways != 255).then_some(ways))
        };
        tlb(entries(small), entries(large))
    };
    if let Some([large, small, ..]) = leaves.get(&(0x8000_0005, 0)) {
        processor.instruction = first(*large, *small, 0);
        processor.first = first(*large, *small, 16);
    }
    let second = |register: u32| {
        let ways = match register >> 28 {
            ways @ 1..=4 => Some(ways),
            5 => Some(6),
            6 => Some(8),
            8 => Some(16),
            10 => Some(32),
            11 => Some(48),
            12 => Some(64),
            13 => Some(96),
            14 => Some(128),
            15 => None,
            _ => return None,
        };
        entries_of(register >> 16 & 0xfff, ways)
    };
    if let Some([large, small, ..]) = leaves.get(&(0x8000_0006, 0)) {
        processor.second = tlb(second(*small), second(*large));
    }
}

/// TLBs from leaf 0x18, each subleaf of which describes one.
fn from_parameters(leaves: &Leaves, processor: &mut Processor) {
    let (mut data, mut instruction, mut second) = ([None; 2], [None; 2], None);
    for (_, [_, b, c, d]) in leaves.range((0x18, 1)..=(0x18, u32::MAX)) {
        let (ways, full) = (b >> 16, d >> 8 & 1 == 1);
        let entries = entries_of(ways.saturating_mul(*c), (!full).then_some(ways));
        // Bit 0: 4 KiB, bit 1: 2 MiB.
        let supports = [b & 1 == 1, b >> 1 & 1 == 1];
        // 1 data, 2 instructions, 3 both, 4 only loads (5, only stores, is ignored).
        let first = match (d & 31, d >> 5 & 7) {
            (1 | 3 | 4, 1) => &mut data,
            (2, 1) => &mut instruction,
            (1 | 3 | 4, 2) => {
                // A TLB may be two halves for large pages of different sizes; small pages use both.
                second = if supports[0] { merge(second, entries) } else { second };
                continue;
            }
            _ => continue,
        };
        for (slot, supported) in first.iter_mut().zip(supports) {
            *slot = slot.or(entries.filter(|_| supported));
        }
    }
    processor.first = tlb(data[0], data[1]);
    processor.instruction = tlb(instruction[0], instruction[1]);
    processor.second = tlb(second, None);
}

/// Merge two TLBs into one; the ways add up if the numbers of sets are equal. If the sum of the ways does not
/// divide the entries, the first TLB is returned.
fn merge(first: Option<Entries>, second: Option<Entries>) -> Option<Entries> {
    let (Some(first), Some(second)) = (first, second) else { return first.or(second) };
    let ways = first.ways.zip(second.ways).map(|(first, second)| first + second);
    entries_of(first.entries + second.entries, ways).or(Some(first))
}

/// The TLB of a descriptor of leaf 2.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Data,
    Instruction,
    Second,
}

/// Descriptors of leaf 2: number, TLB, entries for 4 KiB, for 2 MiB, ways (0: fully associative).
const DESCRIPTORS: &[(u8, Kind, u32, u32, u32)] = &[
    (0x03, Kind::Data, 64, 0, 4),
    (0x5a, Kind::Data, 0, 32, 4),
    (0x63, Kind::Data, 0, 32, 4),
    (0xa0, Kind::Data, 32, 0, 0),
    (0xb3, Kind::Data, 128, 0, 4),
    (0xba, Kind::Data, 64, 0, 4),
    (0xc4, Kind::Data, 0, 32, 4),
    (0x55, Kind::Instruction, 0, 7, 0),
    (0x61, Kind::Instruction, 48, 0, 0),
    (0x76, Kind::Instruction, 0, 8, 0),
    (0xb0, Kind::Instruction, 128, 0, 4),
    (0xb2, Kind::Instruction, 64, 0, 4),
    (0xb5, Kind::Instruction, 64, 0, 8),
    (0xb6, Kind::Instruction, 128, 0, 8),
    (0xca, Kind::Second, 512, 0, 4),
    (0xc1, Kind::Second, 1024, 0, 8),
    (0xc3, Kind::Second, 1536, 0, 6),
];

/// TLBs from leaf 2: a descriptor for each, in all bytes of the registers but the lowest of EAX.
fn from_descriptors(leaves: &Leaves, processor: &mut Processor) {
    let Some(registers) = leaves.get(&(2, 0)) else { return };
    // A register with its highest bit set contains no descriptors.
    let bytes = registers.iter().map(|r| if r >> 31 == 0 { r.to_le_bytes() } else { [0; 4] });
    let bytes: Vec<u8> = bytes.flatten().skip(1).collect();
    let (mut data, mut instruction, mut second) = ([None; 2], [None; 2], [None; 2]);
    for (number, kind, small, large, ways) in DESCRIPTORS {
        if !bytes.contains(number) {
            continue;
        }
        let level = match kind {
            Kind::Data => &mut data,
            Kind::Instruction => &mut instruction,
            Kind::Second => &mut second,
        };
        for (slot, entries) in level.iter_mut().zip([small, large]) {
            *slot = slot.or(entries_of(*entries, (*ways > 0).then_some(*ways)));
        }
    }
    processor.first = tlb(data[0], data[1]);
    processor.instruction = tlb(instruction[0], instruction[1]);
    processor.second = tlb(second[0], second[1]);
}

/// `None` if there are no entries, or if the ways do not divide them.
fn entries_of(entries: u32, ways: Option<u32>) -> Option<Entries> {
    let fits = ways.is_none_or(|ways| ways > 0 && entries.is_multiple_of(ways));
    (entries > 0 && fits).then_some(Entries { entries, ways })
}

fn tlb(small: Option<Entries>, large: Option<Entries>) -> Option<Tlb> {
    small.map(|small| Tlb { small, large })
}
