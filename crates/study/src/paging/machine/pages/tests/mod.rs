//! Tests of huge-page policies against a reference implementation ([`plain`]).

mod limited;
mod plain;

use nearfar_hardware::processor::Found;
use nearfar_kernel::thp::khugepaged;
use nearfar_trace::{RegionEvent, RegionKind, ThreadInfo};
use proptest::prelude::*;

use super::super::surroundings::Surroundings;
use super::super::touches::{TlbOp, Touch};
use super::*;
use crate::lifetimes::{Blocks, Spaces};
use plain::Plain;

/// Start of the test memory: five ranges of 2 MiB.
const BASE: u64 = 0x4000_0000;
const RULES: khugepaged::Rules =
    khugepaged::Rules { sleep_ns: 2e9, pages: 1500, max_none: 400, max_shared: 100, max_swap: 64 };
/// [`Settings::max_none`].
const MAX_NONE: u64 = 505;

#[derive(Clone, Debug)]
enum Step {
    /// A reference: process, page number relative to [`BASE`], and whether it writes.
    Touch(u32, u64, bool),
    Event(RegionEvent),
    /// A second passes.
    Second,
}

fn event(event: RegionKind, process: u32, first: u64, pages: u64) -> RegionEvent {
    RegionEvent {
        event,
        thread: process,
        addr: BASE + (first << SMALL),
        length: pages << SMALL,
        prot: "rw-p".into(),
        ..RegionEvent::default()
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // In units of 16 pages; most ranges begin at a multiple of 2 MiB.
    let place = prop_oneof![2 => (0u64..5).prop_map(|range| range * 512), 1 => (0u64..160).prop_map(|at| at * 16)];
    let pages =
        prop_oneof![Just(512u64), Just(1024), (1u64..40).prop_map(|some| some * 16), Just(3)];
    let range = (place.clone(), pages, place);
    let touch = (0u32..2, 0u64..2560, any::<bool>());
    let near = (0u32..2, 0u64..5, 0u64..20, any::<bool>());
    prop::collection::vec(
        prop_oneof![
            6 => touch.prop_map(|(process, page, write)| Step::Touch(process, page, write)),
            6 => near.prop_map(|(process, range, page, write)| {
                Step::Touch(process, 512 * range + page, write)
            }),
            1 => Just(Step::Second),
            5 => (0u8..17, 0u32..2, range).prop_map(|(what, process, (first, pages, to))| {
                use RegionKind::*;
                let kind = match what {
                    0..=4 => Map,
                    5 => Unmap,
                    6 | 7 => DontNeed,
                    8 => Free,
                    9 => Move,
                    10 | 11 => Fork,
                    12 => Exit,
                    13 => Huge,
                    14 => NoHuge,
                    15 => Collapse,
                    _ => Brk,
                };
                let mut made = event(kind, process, first, pages);
                match kind {
                    Move => made.to = BASE + (to << SMALL),
                    Fork => (made.thread, made.to) = (0, 1),
                    Exit => made.thread = 1,
                    Map if to % 7 == 1 => (made.prot, made.inode) = ("rw-p".into(), 1),
                    Brk => made.addr = BASE,
                    _ => {}
                }
                Step::Event(made)
            }),
        ],
        1..300,
    )
}

fn check(
    steps: &[Step],
    policy: Policy,
    free: u64,
    limit: Option<u64>,
) -> Result<(), TestCaseError> {
    let settings = Settings {
        policy: policy.clone(),
        khugepaged: Some(RULES),
        free,
        limit,
        max_none: MAX_NONE,
    };
    let threads = [0, 1].map(|index| ThreadInfo { index, process: index, ..ThreadInfo::default() });
    let mut blocks = Blocks::new(SMALL, SMALL + HUGE, Spaces::new(&threads));
    blocks.watch_areas();
    let (mut around, mut pages) = (Surroundings::default(), Pages::new(&settings));
    let mut plain = Plain::new(free, limit);
    for step in steps {
        let mut referenced = None;
        match step {
            Step::Touch(process, page, write) => {
                let space = blocks.spaces().of_thread(*process);
                let place = crate::lifetimes::place(space, BASE + (page << SMALL));
                referenced = Some((place >> SMALL, blocks.reference(place >> SMALL, *write)));
            }
            Step::Event(event) => blocks.apply(event),
            Step::Second => {
                plain.time += 1e9;
                pages.tick(plain.time);
                plain.tick(&policy);
            }
        }
        for change in around.of(&mut blocks) {
            pages.apply(&change);
            plain.apply(&policy, &change);
        }
        if let Some((page, block)) = referenced {
            pages.reference(&touch(page, block, TlbOp::Once));
            plain.reference(page);
        }
        prop_assert_eq!(pages.faults, plain.faults, "{:?}", step);
        prop_assert_eq!(pages.events, plain.events, "{:?}", step);
        prop_assert_eq!(pages.resident(), plain.held(), "{:?}", step);
        prop_assert_eq!(pages.mapped()[0], plain.mapped(), "{:?}", step);
        prop_assert_eq!(pages.free, plain.free, "{:?}", step);
        for (&page, touched) in &plain.touched {
            prop_assert_eq!(pages.order(touched.block), plain.order(page), "{:?} {:x}", step, page);
        }
    }
    Ok(())
}

fn touch(number: u64, block: u32, tlb: TlbOp) -> Touch {
    Touch {
        number,
        instructions: 0,
        now: 0,
        block,
        line: 0,
        thread: 0,
        found: Found::First,
        fetch: false,
        write: false,
        tlb,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn pages_equal_the_reference_implementation(
        steps in steps(),
        policy in prop::sample::select(vec![
            "never", "always", "madvise", "defer", "64K=always+2M=madvise", "16K=always+256K=always",
        ]),
        free in 0u64..6,
        limit in prop::option::of(prop::sample::select(vec![8u64, 60, 530, 600, 1100, 1700])),
        splits_zero: bool,
    ) {
        let mut policy = Policy::parse(policy).unwrap();
        policy.splits_zero = splits_zero;
        check(&steps, policy, free, limit)?;
    }
}

#[test]
fn the_last_pages_of_a_thread_count_as_referenced() {
    let policy = Policy::parse("never").unwrap();
    let settings = Settings { policy, khugepaged: None, free: 0, limit: Some(3), max_none: 511 };
    let mut pages = Pages::new(&settings);
    let born = |number: u64| {
        let change =
            Change::Born { block: number as u32, number, backing: Backing::Unknown, written: true };
        (change, (0, 0))
    };
    for page in 0..3 {
        pages.apply(&born(page));
        let tlb = if page == 0 { TlbOp::Enter } else { TlbOp::Once };
        pages.reference(&touch(page, page as u32, tlb));
    }
    // The first reclaim clears all accessed bits and evicts the oldest page, page 0.
    pages.apply(&born(3));
    assert_eq!((pages.resident(), pages.events.swap_outs), (3, 1));
    assert!(pages.reference(&touch(0, 0, TlbOp::None)));
    for page in 4..40 {
        pages.apply(&born(page));
    }
    // Page 0 is still one of the last pages, so every reclaim keeps it.
    assert!(!pages.reference(&touch(0, 0, TlbOp::Leave)));
    assert!(!pages.reference(&touch(0, 0, TlbOp::Once)));
}
