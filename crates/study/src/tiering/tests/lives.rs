//! Tests of page lifetimes: the accesses and ends of a trace are those of plain lists, and the simulator's
//! actions are those of the reference implementation.

use std::collections::HashMap;

use nearfar_trace::{Kind, Reader, Record, RegionEvent, RegionKind};

use super::*;
use crate::paging::tests::lives::{self, Log, PROCESSES, Step as Life, World as Table, trace};
use crate::tiering::engine::End;
use crate::tiering::trace::{Numbering, TracePages};

/// An access, or the end of a page or a translation ([`End`]).
#[derive(Clone, Copy, Debug, PartialEq)]
enum StreamStep<Frame> {
    /// An access (`None`: to the zero page), and whether it writes.
    Access(Option<Frame>, bool),
    Page(Frame),
    Translation(Frame),
}

/// Records and events of three processes, with at least one lifetime event.
fn steps() -> impl Strategy<Value = Vec<Life>> {
    lives::steps().prop_map(|mut steps| {
        let (addr, length) = (1 << 46, 4096);
        steps.insert(0, Life::Event(RegionEvent { addr, length, ..RegionEvent::default() }));
        steps
    })
}

fn open(reader: &Reader, huge: bool, filtered: bool) -> TracePages {
    let numbering = Numbering { huge, lives: true, filtered };
    TracePages::open(reader.path(), numbering, &mut |_| Ok(())).unwrap()
}

/// The accesses of a trace, read in blocks of about `count`.
fn blocks(pages: &TracePages, count: usize) -> Vec<Block> {
    let (mut replay, mut all) = (pages.replay().unwrap(), Vec::new());
    loop {
        let mut block = Block::default();
        pages.fill(&mut replay, &mut block, count).unwrap();
        if block.accesses.is_empty() {
            return all;
        }
        all.push(block);
    }
}

fn stream(pages: &TracePages, count: usize) -> Vec<StreamStep<u32>> {
    let mut all = Vec::new();
    for block in blocks(pages, count) {
        let mut ends = block.ends.iter().peekable();
        for (index, access) in block.accesses.iter().enumerate() {
            while let Some((_, end)) = ends.next_if(|(at, _)| *at <= index) {
                all.push(match end {
                    End::Page(page) => StreamStep::Page(page.number()),
                    End::Translation(page) => StreamStep::Translation(page.number()),
                    End::Pages(..) => panic!("of copies alone"),
                });
            }
            let page = (access.page() != Access::ZEROS).then_some(access.page().number());
            all.push(StreamStep::Access(page, access.write()));
        }
        assert!(ends.next().is_none());
    }
    all
}

/// The reference of [`stream`], with frames in place of page numbers. Also returns the peak number of frames.
fn plain_stream(steps: &[Life], page_bytes: u64) -> (Vec<StreamStep<usize>>, usize) {
    let mut table = Table::new(page_bytes, 4096, &PROCESSES);
    // Events after the last record change nothing.
    let last = steps.iter().rposition(|step| matches!(step, Life::Record(_))).unwrap();
    for step in &steps[..=last] {
        match step {
            Life::Event(event) => table.event(event),
            Life::Record(record) => table.record(record),
        }
    }
    let (mut all, mut translations) = (Vec::new(), HashMap::new());
    let (mut used, mut peak) = (BTreeSet::new(), 0);
    for step in &table.log {
        match *step {
            Log::Access { page, frame, write, .. } => {
                all.push(StreamStep::Access(frame, write));
                translations.insert(page, frame);
                used.extend(frame);
                peak = peak.max(used.len());
            }
            Log::Shootdown(page) => {
                if let Some(frame) = translations.remove(&page).flatten() {
                    all.push(StreamStep::Translation(frame));
                }
            }
            Log::Free(frame) => {
                all.pop_if(|last| *last == StreamStep::Translation(frame));
                all.push(StreamStep::Page(frame));
                used.remove(&frame);
            }
            Log::Discard(_) | Log::Keep(_) => {}
        }
    }
    (all, peak)
}

fn check(steps: &[Life], huge: bool, count: usize) {
    let folder = tempfile::tempdir().unwrap();
    let pages = open(&trace(steps, &PROCESSES, folder.path()), huge, false);
    let unit = if huge { HUGE } else { 1 };
    let (expected, peak) = plain_stream(steps, u64::from(unit) * 4096);
    let found = stream(&pages, count);
    assert_eq!(pages.resident() as usize, (peak * unit as usize).max(1));
    assert_eq!(found.len(), expected.len());
    // Each frame in use has one place, which no other frame has.
    let (mut place_of, mut frame_at) = (HashMap::new(), HashMap::new());
    for (found, expected) in found.into_iter().zip(expected) {
        let place = |page: u32| page / unit;
        match (found, expected) {
            (StreamStep::Access(page, write), StreamStep::Access(frame, writes)) => {
                assert_eq!((page.is_some(), write), (frame.is_some(), writes));
                if let (Some(page), Some(frame)) = (page, frame) {
                    assert!(page < pages.pages());
                    assert_eq!(*place_of.entry(frame).or_insert(place(page)), place(page));
                    assert_eq!(*frame_at.entry(place(page)).or_insert(frame), frame);
                }
            }
            (StreamStep::Page(page), StreamStep::Page(frame)) => {
                assert_eq!(place_of.remove(&frame), Some(place(page)));
                assert_eq!(frame_at.remove(&place(page)), Some(frame));
            }
            (StreamStep::Translation(page), StreamStep::Translation(frame)) => {
                assert_eq!(place_of.get(&frame), Some(&place(page)));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// [`same_actions`] of a trace, under every policy.
fn same_actions_on_trace(steps: &[Life], count: usize) {
    let folder = tempfile::tempdir().unwrap();
    let pages = open(&trace(steps, &PROCESSES, folder.path()), false, false);
    let program: Vec<Step> = stream(&pages, count)
        .into_iter()
        .filter_map(|step| match step {
            StreamStep::Access(None, _) => Some(Step::Zeros),
            StreamStep::Access(Some(page), true) => Some(Step::Write(page)),
            StreamStep::Access(Some(page), false) => Some(Step::Read(page)),
            StreamStep::Page(page) => Some(Step::Release(page)),
            StreamStep::Translation(_) => None,
        })
        .collect();
    let (nodes, limit) = ([10, pages.resident() as usize + 6], pages.pages().max(1));
    for (name, _) in POLICIES {
        let settings = settings(name).unwrap();
        let mut reference = ReferenceMemory::new(COSTS, &nodes, limit, false);
        let mut policy = reference.start(name, &settings).unwrap();
        drive(&mut reference, &mut *policy, &program);
        let mut world = World::new(plain_hardware(2), &nodes.map(|frames| frames as u64), limit);
        world.log = Some(Vec::new());
        let mut engine = Engine::new(world, |mem| make(name, &settings, mem), false).unwrap();
        for block in blocks(&pages, count) {
            engine.run_block(&block).unwrap();
            engine.world.check().unwrap();
        }
        assert_eq!(Some(&reference.actions), engine.world.log.as_ref(), "{name}");
        assert_eq!(reference.clock(), engine.world.reached(), "{name}");
        same_state(&reference, &engine.world);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn pages_are_freed_at_their_events(steps in steps(), huge: bool, count in 1usize..2000) {
        check(&steps, huge, count);
    }

    #[test]
    fn actions_on_traces_with_lifetimes_match_the_reference(steps in steps(), count in 1usize..2000) {
        same_actions_on_trace(&steps, count);
    }

    /// A filtered trace may lack the writes that make a page more than zeros.
    #[test]
    fn filtered_traces_have_no_zero_page(steps in steps(), huge: bool) {
        let folder = tempfile::tempdir().unwrap();
        let pages = open(&trace(&steps, &PROCESSES, folder.path()), huge, true);
        let zeros = |step: &StreamStep<u32>| matches!(step, StreamStep::Access(None, _));
        prop_assert!(!stream(&pages, 100).iter().any(zeros));
    }

    /// Slow memory of the peak size suffices for every policy, in both rounds.
    #[test]
    fn a_trace_fits_in_its_peak_size(steps in steps(), which in 0..POLICIES.len(), huge: bool) {
        let folder = tempfile::tempdir().unwrap();
        let pages = open(&trace(&steps, &PROCESSES, folder.path()), huge, false);
        let unit = if huge { u64::from(HUGE) * 4096 } else { 4096 };
        let mut options = options(1.0);
        options.huge = huge;
        let slow = u64::from(pages.resident()) * 4096;
        (options.fast, options.slow) = (vec![Size::Bytes(unit)], Some(Size::Bytes(slow)));
        let prepared = Arc::new(Prepared::trace("t".into(), pages, 2));
        let all = rows(&[POLICIES[which].0], &prepared, &options);
        prop_assert_eq!(all.len(), 2);
        prop_assert_eq!(all[0].accesses, all[1].accesses);
    }
}

/// Page numbers, ends and the peak of a short trace, worked out by hand.
#[test]
fn a_short_trace_has_the_expected_lifetimes() {
    const AT: u64 = 0x40_0000;
    let event = |event, page: u64, pages: u64| {
        let (addr, length, prot) = (AT + page * 4096, pages * 4096, "rw-p".into());
        let event = RegionEvent { event, addr, length, prot, ..RegionEvent::default() };
        Life::Event(event)
    };
    let record = |page: u64, kind, thread| {
        let addr = AT + page * 4096 + 8;
        Life::Record(Record { addr, kind, size: 8, thread, instr: 1 })
    };
    let fork = RegionEvent { event: RegionKind::Fork, to: 2, ..RegionEvent::default() };
    let exit = RegionEvent { event: RegionKind::Exit, thread: 2, ..RegionEvent::default() };
    let steps = [
        event(RegionKind::Map, 0, 8),
        record(5, Kind::Store, 0), // page 3
        record(1, Kind::Load, 0),  // zeros
        record(1, Kind::Store, 0), // page 0
        Life::Event(fork),
        record(1, Kind::Load, 2),  // page 0, shared
        record(1, Kind::Store, 0), // the parent's copy: page 1
        record(1, Kind::Store, 2), // page 0, now the child's alone
        event(RegionKind::Unmap, 5, 1),
        record(1, Kind::Load, 0),
        Life::Event(exit), // ends page 0, and page 3, which the child still had
        record(1, Kind::Load, 0),
        event(RegionKind::DontNeed, 1, 1),
        record(1, Kind::Store, 0), // page 0 again
        record(3, Kind::Store, 0), // page 2
    ];
    let folder = tempfile::tempdir().unwrap();
    let pages = open(&trace(&steps, &PROCESSES, folder.path()), false, false);
    assert_eq!((pages.pages(), pages.resident(), pages.footprint()), (4, 3, 4));
    let (load, store) =
        (|page| StreamStep::Access(Some(page), false), |page| StreamStep::Access(Some(page), true));
    let expected = [
        store(3),
        StreamStep::Access(None, false),
        store(0),
        StreamStep::Translation(0),
        StreamStep::Translation(3),
        load(0),
        store(1),
        store(0),
        load(1),
        StreamStep::Page(0),
        StreamStep::Page(3),
        load(1),
        StreamStep::Page(1),
        store(0),
        store(2),
    ];
    assert_eq!(stream(&pages, 3), expected);
}

/// The end of a huge page frees all of it, also after a split.
#[test]
fn huge_pages_end_whole() {
    let frames = [2 * u64::from(HUGE), 2 * u64::from(HUGE)];
    let world = World::new(plain_hardware(2), &frames, 2 * HUGE);
    let mut engine = without_policy(world, true);
    let accesses = vec![Access::new(HUGE + 3, true), Access::new(5, true)];
    engine.run(&accesses).unwrap();
    engine.world.split(Page::new(HUGE)).unwrap();
    let ends = [0, HUGE].map(|page| (1, End::Page(Page::new(page))));
    let block = Block { accesses, ends: ends.to_vec() };
    engine.run_block(&block).unwrap();
    engine.world.check().unwrap();
    assert_eq!(engine.world.used_frames(0), [u64::from(HUGE), 0]);
    assert_eq!(engine.world.span(Page::new(0)), HUGE);
    assert!(!engine.world.mapped(Page::new(HUGE + 3)));
    engine.end_pages(Page::new(0), Access::MAX_PAGES);
    assert_eq!(engine.world.used_frames(0), [0, 0]);
}

/// Two translations that end before one access miss the TLB afterwards, and share one shootdown.
#[test]
fn ended_translations_leave_the_tlb() {
    let mut hardware = plain_hardware(2);
    (hardware.tlb_entries, hardware.programs[0].threads) = (64, 2);
    (hardware.costs.page_walk, hardware.costs.shootdown) = (1000.0, 7000.0);
    let run = |ends: Vec<(usize, End)>| {
        let world = World::new(hardware.clone(), &[4, 4], 4);
        let mut engine = without_policy(world, false);
        let zeros = Access::new(Access::ZEROS.number(), false);
        let again = [Access::new(0, false), Access::new(1, false), zeros];
        engine.run_block(&Block { accesses: again.repeat(2), ends }).unwrap();
        (engine.world.counters_of(0).tlb_misses, engine.world.reached().ps())
    };
    let (plain, begun) = run(Vec::new());
    assert_eq!(plain, 3);
    let ends = [0, 1].map(|page| (3, End::Translation(Page::new(page))));
    assert_eq!(run(ends.to_vec()), (5, begun + 2 * 1000 + 7000));
}
