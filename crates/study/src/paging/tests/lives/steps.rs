//! Random test traces.

use super::*;

/// Starts of regions; two are so near each other that a large page can contain both.
const BASES: [u64; 3] = [0x40_0000, 0x7fff_0000_0000, 0x40_e000];

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let record =
        (0usize..3, 0u64..20 * 4096, 0u8..5, prop_oneof![9 => 1u16..9, 1 => 1u16..9000], 0u32..4);
    let range = (0usize..3, 0u64..18, 1u64..8);
    let event = (0u8..14, range, (0usize..3, 0u64..24), 0u32..4, 0u64..4, 0u8..6);
    let step = prop_oneof![
        12 => record.prop_map(|(base, offset, kind, size, thread)| {
            let kind = Kind::from_u8(kind).unwrap();
            let base = if kind as u8 > 2 && offset % 3 == 0 { KERNEL } else { BASES[base] };
            Step::Record(Record { addr: base + offset, kind, size, thread, instr: 1 })
        }),
        1 => event.prop_map(|(what, (base, first, pages), (to, place), thread, file, prot)| {
            let (addr, length) = (BASES[base] + first * 4096, pages * 4096);
            let event = match what {
                0..=4 => RegionKind::Map,
                5 => RegionKind::Unmap,
                6 => RegionKind::Brk,
                7 => RegionKind::Move,
                8 => RegionKind::DontNeed,
                9 => RegionKind::Free,
                10 => RegionKind::Remove,
                11 => [RegionKind::Fork, RegionKind::Vfork][usize::from(prot & 1)],
                12 => [RegionKind::Exec, RegionKind::Exit][usize::from(prot & 1)],
                _ => RegionKind::File,
            };
            let prot = ["rw-p", "rw-p", "r-xp", "rw-s", "r--s", "rw-p"][usize::from(prot)].into();
            let (addr, length) = match event {
                RegionKind::Brk => (BASES[0] + 8 * 4096 + 100, (first * 4096).saturating_sub(50)),
                RegionKind::File => (KERNEL + (first & 1) * 10 * 4096, 10 * 4096),
                _ => (addr, length),
            };
            let to = match event {
                RegionKind::Move => BASES[to] + place * 4096,
                _ => 1 + place % 3,
            };
            let device = u64::from(file > 1);
            let inode = match event {
                RegionKind::File => 1 + file % 2,
                _ => file.saturating_sub(1),
            };
            let offset = (place & 6) * 4096;
            Step::Event(RegionEvent {
                thread, event, addr, length, offset, prot, device, inode, to, ..RegionEvent::default()
            })
        }),
    ];
    // A trace without records is refused, and one without mappings has no lifetimes.
    let first = Record { addr: BASES[0], kind: Kind::Store, size: 8, thread: 0, instr: 1 };
    let map =
        RegionEvent { addr: 1 << 40, length: 4096, prot: "rw-p".into(), ..Default::default() };
    prop::collection::vec(step, 1..1200).prop_map(move |mut steps| {
        steps.splice(0..0, [Step::Event(map.clone()), Step::Record(first)]);
        steps
    })
}
