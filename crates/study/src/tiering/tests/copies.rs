//! Tests of copies of a traced program: their accesses are those of one list per copy, each rotated to
//! the copy's initial position and read in turns.

use std::collections::{BTreeMap, VecDeque};

use super::*;
use crate::tiering::copies::{Copies, Turn};
use crate::tiering::engine::End;

pub(super) const COPY_PAGES: u32 = 8;

/// An access, and the ends of pages or translations before it.
pub(super) type AccessAndEnds = (Vec<End>, Access);

/// An access: the page (`None`: the zero page), whether it writes, and the ends before it, each a page number
/// and whether the page is freed or only its translation ends.
pub(super) type ProgramStep = (Option<u32>, bool, Vec<(u32, bool)>);

pub(super) fn programs() -> impl Strategy<Value = Vec<ProgramStep>> {
    let end = (0..COPY_PAGES, any::<bool>());
    let step =
        (proptest::option::of(0..COPY_PAGES), any::<bool>(), prop::collection::vec(end, 0..3));
    prop::collection::vec(step, 1..40)
}

/// The accesses of a program whose first page is `first`.
pub(super) fn accesses_and_ends(program: &[ProgramStep], first: u32) -> Vec<AccessAndEnds> {
    let access = |page: Option<u32>, write| match page {
        Some(page) => Access::new(first + page, write),
        None => Access::new(Access::ZEROS.number(), write),
    };
    let end = |&(page, whole): &(u32, bool)| {
        let page = Page::new(first + page);
        if whole { End::Page(page) } else { End::Translation(page) }
    };
    program
        .iter()
        .map(|(page, write, ends)| (ends.iter().map(end).collect(), access(*page, *write)))
        .collect()
}

pub(super) fn block(accesses: &[AccessAndEnds]) -> Block {
    let mut block = Block::default();
    for (ends, access) in accesses {
        block.ends.extend(ends.iter().map(|end| (block.accesses.len(), *end)));
        block.accesses.push(*access);
    }
    block
}

/// All accesses and ends of copies, read in blocks of `count`.
fn all(copies: &Copies, count: usize) -> Vec<AccessAndEnds> {
    let (mut turn, mut all) = (Turn::default(), Vec::new());
    loop {
        let mut block = Block::default();
        copies.fill(&mut turn, &mut block, count);
        assert!(block.accesses.len() <= count);
        if block.accesses.is_empty() {
            assert!(block.ends.is_empty());
            return all;
        }
        let mut ends: BTreeMap<usize, Vec<End>> = BTreeMap::new();
        for (at, end) in block.ends {
            ends.entry(at).or_default().push(end);
        }
        all.extend(
            block
                .accesses
                .iter()
                .enumerate()
                .map(|(at, a)| (ends.remove(&at).unwrap_or_default(), *a)),
        );
        assert!(ends.is_empty());
    }
}

proptest! {
    #[test]
    fn copies_take_turns(
        program in programs(), count in 2u32..7, slice in 1usize..9, lives: bool,
        block_size in 1usize..50,
    ) {
        let length = program.len();
        let mut queues: Vec<VecDeque<AccessAndEnds>> = (0..count)
            .map(|copy| {
                let mut own = accesses_and_ends(&program, copy * COPY_PAGES);
                let begin = length * copy as usize / count as usize;
                // At the end of the trace, a copy frees its pages if they have lifetimes, and
                // continues from the start.
                if lives && begin > 0 {
                    own[0].0.insert(0, End::Pages(Page::new(copy * COPY_PAGES), COPY_PAGES));
                }
                own.rotate_left(begin);
                own.into()
            })
            .collect();
        let mut expected = Vec::new();
        while queues.iter().any(|queue| !queue.is_empty()) {
            for queue in &mut queues {
                let some = slice.min(queue.len());
                expected.extend(queue.drain(..some));
            }
        }
        let whole = block(&accesses_and_ends(&program, 0));
        let copies = Copies::new(whole, count, COPY_PAGES, lives).with_slice(slice as u64);
        prop_assert_eq!(all(&copies, block_size), expected);
    }
}

#[test]
fn a_copy_that_ends_frees_only_its_own_pages() {
    let world = World::new(plain_hardware(2), &[8, 8], 2 * COPY_PAGES);
    let mut engine = without_policy(world, false);
    let pages = [1, COPY_PAGES - 1, COPY_PAGES, COPY_PAGES + 3];
    let accesses = pages.map(|page| Access::new(page, true)).to_vec();
    engine.run(&accesses).unwrap();
    let ends = vec![(0, End::Pages(Page::new(0), COPY_PAGES))];
    engine.run_block(&Block { accesses: vec![Access::new(1, true)], ends }).unwrap();
    engine.world.check().unwrap();
    let left: Vec<u32> =
        (0..2 * COPY_PAGES).filter(|page| engine.world.mapped(Page::new(*page))).collect();
    assert_eq!(left, [1, COPY_PAGES, COPY_PAGES + 3]);
}

#[test]
fn accesses_pages_and_sizes_are_proportional_to_copies() {
    use crate::paging::tests::lives::{PROCESSES, Step as Life, trace};
    use crate::tiering::trace::{Numbering, TracePages};
    use nearfar_trace::{Kind, Record};

    let folder = tempfile::tempdir().unwrap();
    let record = |page: u64| {
        let addr = 0x40_0000 + page % 11 * 4096;
        Life::Record(Record { addr, kind: Kind::Store, size: 8, thread: 0, instr: 1 })
    };
    let steps: Vec<_> = (0..500).map(|at| record(at * at)).collect();
    let reader = trace(&steps, &PROCESSES, folder.path());
    let numbering = Numbering::default();
    let open = || TracePages::open(reader.path(), numbering, &mut |_| Ok(())).unwrap();
    let (single, five) = (open(), open().copied(5).unwrap());
    assert_eq!(five.accesses(), 5 * single.accesses());
    assert_eq!(five.pages(), 5 * single.pages());
    assert_eq!(five.resident(), 5 * single.resident());
    assert_eq!(five.footprint(), 5 * single.footprint());
    assert_eq!(five.threads(), single.threads());
    let refused = open().copied(1 << 30).unwrap_err().to_string();
    assert!(refused.contains("--copies"), "{refused}");
    let mut options = options(1.0);
    options.fast = vec![Size::Fraction(0.5), Size::Fraction(1.0)];
    let five = Arc::new(Prepared::trace("five".into(), five, 1));
    let found = rows(&["none"], &five, &options);
    let [half, whole] = found.as_slice() else { panic!("{}", found.len()) };
    assert_eq!((half.accesses, whole.accesses), (2500, 2500));
    assert_eq!((half.fast_fraction, whole.fast_fraction), (Some(0.5), Some(1.0)));
    assert_eq!(whole.fast_node_bytes, u64::from(five.resident) * 4096);
    assert!(half.fast_hit_ratio < 1.0 && whole.fast_hit_ratio == 1.0);
}
