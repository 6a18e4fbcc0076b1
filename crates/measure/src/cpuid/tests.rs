//! Tests with recorded registers: an EPYC in a virtual machine recorded by this project, the others from the
//! tests of the crate raw-cpuid (commit c0f0293).

use super::*;

type Recorded = &'static [((u32, u32), [u32; 4])];

/// EPYC 9004 (Zen 4) under KVM.
const GENOA: Recorded = &[
    ((0, 0), [0x1c, 0x6874_7541, 0x444d_4163, 0x6974_6e65]),
    ((1, 0), [0x00a1_0f11, 0x0002_0800, 0xfffa_3203, 0x178b_fbff]),
    ((0x8000_0005, 0), [0xff48_ff40, 0xff48_ff40, 0x2008_0140, 0x2008_0140]),
    ((0x8000_0006, 0), [0x5c00_2200, 0x6c00_4200, 0x0400_6140, 0x0a00_9140]),
    ((0x8000_001d, 0), [0x0000_0121, 0x01c0_003f, 0x0000_003f, 0]),
    ((0x8000_001d, 1), [0x0000_0122, 0x01c0_003f, 0x0000_003f, 0]),
    ((0x8000_001d, 2), [0x0000_0143, 0x01c0_003f, 0x0000_07ff, 2]),
    ((0x8000_001d, 3), [0x0000_4163, 0x03c0_003f, 0x0000_7fff, 1]),
    ((0x8000_001d, 4), [0, 0, 0, 0]),
];

/// Ryzen 5 3600X (Zen 2).
const MATISSE: Recorded = &[
    ((0, 0), [0x10, 0x6874_7541, 0x444d_4163, 0x6974_6e65]),
    ((1, 0), [0x0087_0f10, 0x000c_0800, 0x7ed8_320b, 0x178b_fbff]),
    ((0x8000_0005, 0), [0xff40_ff40, 0xff40_ff40, 0x2008_0140, 0x2008_0140]),
    ((0x8000_0006, 0), [0x4800_6400, 0x6800_6400, 0x0200_6140, 0x0100_9140]),
    ((0x8000_001d, 0), [0x0000_4121, 0x01c0_003f, 0x0000_003f, 0]),
    ((0x8000_001d, 1), [0x0000_4122, 0x01c0_003f, 0x0000_003f, 0]),
    ((0x8000_001d, 2), [0x0000_4143, 0x01c0_003f, 0x0000_03ff, 2]),
    ((0x8000_001d, 3), [0x0001_4163, 0x03c0_003f, 0x0000_3fff, 1]),
];

/// Xeon Gold 6252 (Cascade Lake): descriptors in leaf 2.
const CASCADE_LAKE: Recorded = &[
    ((0, 0), [0x16, 0x756e_6547, 0x6c65_746e, 0x4965_6e69]),
    ((1, 0), [0x0005_0657, 0xc740_0800, 0x7ffe_fbff, 0xbfeb_fbff]),
    ((2, 0), [0x7603_6301, 0x00f0_b5ff, 0, 0x00c3_0000]),
    ((4, 0), [0x7c00_4121, 0x01c0_003f, 0x0000_003f, 0]),
    ((4, 1), [0x7c00_4122, 0x01c0_003f, 0x0000_003f, 0]),
    ((4, 2), [0x7c00_4143, 0x03c0_003f, 0x0000_03ff, 0]),
    ((4, 3), [0x7c0f_c163, 0x0280_003f, 0x0000_cfff, 5]),
];

/// Core i7-12700K (Alder Lake): parameters in leaf 0x18.
const ALDER_LAKE: Recorded = &[
    ((0, 0), [0x20, 0x756e_6547, 0x6c65_746e, 0x4965_6e69]),
    ((1, 0), [0x0009_0672, 0x0080_0800, 0x7ffa_fbff, 0xbfeb_fbff]),
    ((2, 0), [0x00fe_ff01, 0x0000_00f0, 0, 0]),
    ((4, 0), [0xfc00_4121, 0x02c0_003f, 0x0000_003f, 0]),
    ((4, 1), [0xfc00_4122, 0x01c0_003f, 0x0000_003f, 0]),
    ((4, 2), [0xfc01_c143, 0x0240_003f, 0x0000_07ff, 0]),
    ((4, 3), [0xfc1f_c163, 0x0240_003f, 0x0000_9fff, 4]),
    ((0x18, 0), [8, 0, 0, 0]),
    ((0x18, 1), [0, 0x0008_0001, 0x20, 0x4022]),
    ((0x18, 2), [0, 0x0008_0006, 0x04, 0x4022]),
    ((0x18, 3), [0, 0x0010_000f, 0x01, 0x4125]),
    ((0x18, 4), [0, 0x0004_0001, 0x10, 0x4024]),
    ((0x18, 5), [0, 0x0004_0006, 0x08, 0x4024]),
    ((0x18, 6), [0, 0x0008_0008, 0x01, 0x4124]),
    ((0x18, 7), [0, 0x0008_0007, 0x80, 0x4043]),
    ((0x18, 8), [0, 0x0008_0009, 0x80, 0x4043]),
];

/// Entries and ways (0: fully associative) of small pages, then of large ones.
type Expected = Option<((u32, u32), Option<(u32, u32)>)>;

fn shown(tlb: Option<Tlb>) -> Expected {
    let one = |entries: Entries| (entries.entries, entries.ways.unwrap_or(0));
    tlb.map(|tlb| (one(tlb.small), tlb.large.map(one)))
}

fn decoded(recorded: Recorded) -> Processor {
    decode(&recorded.iter().copied().collect()).unwrap()
}

#[test]
fn recorded_processors_are_decoded() {
    const KIB: u64 = 1 << 10;
    // Family and model; data, instruction and second-level TLB; level, bytes and ways of each cache.
    type Row = (Recorded, (u32, u32), [Expected; 3], &'static [(u32, u64, u32)]);
    let rows: [Row; 4] = [
        (
            GENOA,
            (0x19, 0x11),
            [Some(((72, 0), None)), Some(((64, 0), None)), Some(((3072, 8), None))],
            &[(1, 32 * KIB, 8), (1, 32 * KIB, 8), (2, 1024 * KIB, 8), (3, 32768 * KIB, 16)],
        ),
        (
            MATISSE,
            (0x17, 0x71),
            [Some(((64, 0), None)), Some(((64, 0), None)), Some(((2048, 8), None))],
            &[(1, 32 * KIB, 8), (1, 32 * KIB, 8), (2, 512 * KIB, 8), (3, 16384 * KIB, 16)],
        ),
        (
            CASCADE_LAKE,
            (6, 0x55),
            [
                Some(((64, 4), Some((32, 4)))),
                Some(((64, 8), Some((8, 0)))),
                Some(((1536, 6), None)),
            ],
            &[(1, 32 * KIB, 8), (1, 32 * KIB, 8), (2, 1024 * KIB, 16), (3, 36608 * KIB, 11)],
        ),
        (
            ALDER_LAKE,
            (6, 0x97),
            [
                Some(((64, 4), Some((32, 4)))),
                Some(((256, 8), Some((32, 8)))),
                Some(((2048, 16), None)),
            ],
            &[(1, 48 * KIB, 12), (1, 32 * KIB, 8), (2, 1280 * KIB, 10), (3, 25600 * KIB, 10)],
        ),
    ];
    for (recorded, model, tlbs, caches) in rows {
        let found = decoded(recorded);
        assert_eq!((found.family, found.model), model);
        assert_eq!([found.first, found.instruction, found.second].map(shown), tlbs, "{found:?}");
        let seen: Vec<_> =
            found.caches.iter().map(|c| (c.level, c.size, c.ways.unwrap_or(0))).collect();
        assert_eq!(seen, caches);
        assert_eq!(found.caches.iter().filter(|cache| cache.instruction).count(), 1);
        assert!(found.caches.iter().all(|cache| cache.line == 64));
    }
    assert!(decoded(GENOA).hypervisor && !decoded(MATISSE).hypervisor);
    assert_eq!(decoded(GENOA).vendor, "AuthenticAMD");
}

/// A hypervisor may omit leaves, or fill them with zeros.
#[test]
fn missing_leaves_have_no_values() {
    assert_eq!(decode(&Leaves::new()), None);
    for recorded in [GENOA, CASCADE_LAKE, ALDER_LAKE] {
        let hidden: Leaves = recorded
            .iter()
            .map(|(leaf, registers)| (*leaf, if leaf.0 > 1 { [0; 4] } else { *registers }))
            .collect();
        let found = decode(&hidden).unwrap();
        assert!(found.caches.is_empty());
        assert_eq!([found.first, found.instruction, found.second], [None; 3]);
    }
}

#[test]
fn registers_of_no_real_processor_do_not_panic() {
    for fill in [u32::MAX, 0x8000_0001, 0x7fff_ffff, 0x1234_5678, 0xff01_ff01] {
        for recorded in [GENOA, CASCADE_LAKE, ALDER_LAKE] {
            let odd = recorded
                .iter()
                .map(|(leaf, was)| (*leaf, if leaf.0 == 0 { *was } else { [fill; 4] }))
                .collect();
            let found = decode(&odd).unwrap();
            for tlb in [found.first, found.instruction, found.second].into_iter().flatten() {
                assert!(tlb.small.ways.is_none_or(|ways| tlb.small.entries.is_multiple_of(ways)));
            }
        }
    }
}

#[test]
fn this_processor_is_read() {
    let found = decode(&read());
    assert_eq!(found.is_some(), cfg!(target_arch = "x86_64"));
    assert!(found.is_none_or(|found| !found.vendor.is_empty() && found.family > 0));
}
