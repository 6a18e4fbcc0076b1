//! Checks of the model's rules on the real kernel, and of policies that manage memory of this process.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nearfar_kernel::tiering::Page;
use nearfar_kernel::tiering::testing::settings;

use super::*;
use crate::far::{TIERS, argument};
use crate::model::page_of;
use crate::tests::not_run;
use crate::world::FAR_NODE;
use crate::{Event, Manager, NewRegion, Sizes, Turn, World};

fn linux(places: u32) -> Option<Linux> {
    match Linux::open(places) {
        Ok(kernel) => Some(kernel),
        Err(error) => {
            let text = error.to_string();
            assert!(text.starts_with("userfaultfd: ") || text.starts_with("kernel: "), "{text}");
            not_run(&text);
            None
        }
    }
}

#[test]
fn a_kernel_with_another_page_size_is_refused() {
    assert!(check_page_size(4096).is_ok());
    let refused = check_page_size(65536).unwrap_err().to_string();
    assert!(refused.starts_with("kernel: its page size is 65536 bytes; use one "), "{refused}");
}

/// A mapping in the role of the program's memory, and a kernel. The kernel must be bound after the mapping,
/// so that it is dropped before: otherwise unmapping would wait until its message is read.
fn with_program(places: u32, pages: u64) -> Option<(Mapping, Linux, Range)> {
    let kernel = linux(places)?;
    let mapping = Mapping::new(pages).unwrap();
    let range = mapping.range();
    kernel.program.register(mapping.address(), pages * PAGE as u64, true).unwrap();
    Some((mapping, kernel, range))
}

fn read_at(at: Va) -> u64 {
    // SAFETY: an address in a mapping of the test that has a page or gets one.
    unsafe { std::ptr::read_volatile(at.address() as *const u64) }
}

fn write_at(at: Va, value: u64) {
    // SAFETY: as above.
    unsafe { std::ptr::write_volatile(at.address() as *mut u64, value) }
}

/// Read messages about changes of mappings. Another test may fork, which is a message, too.
fn read_changes(kernel: &mut Linux, into: &mut Vec<Event>) {
    kernel.events(into);
    into.retain(|event| !matches!(event, Event::Forked(_)));
}

#[test]
fn requests_answer_as_the_model_does() {
    let Some((_memory, mut kernel, range)) = with_program(4, 4) else { return };
    let [a, b] = [range.from, range.from.plus(1)];
    let [p, q] = [Frame::new(0), Frame::new(1)];
    // No page to park; then a page is placed, which works only once.
    assert_eq!(kernel.park(a, p), Err(Fail::Missing));
    assert_eq!(kernel.place(a, &page_of(7), false), Ok(()));
    assert_eq!(kernel.place(a, &page_of(8), false), Err(Fail::Exists));
    assert_eq!(read_at(a), 7);
    write_at(a, 9);
    // A parked page has its content, and can be restored.
    assert_eq!(kernel.park(a, p), Ok(()));
    assert_eq!(kernel.frame(p), page_of(9));
    assert_eq!(kernel.park(a, q), Err(Fail::Missing));
    kernel.frame_mut(p)[..8].copy_from_slice(&11u64.to_le_bytes());
    assert_eq!(kernel.restore(p, a), Ok(()));
    assert_eq!(read_at(a), 11);
    // A discarded frame leaves an empty place.
    assert_eq!(kernel.park(a, p), Ok(()));
    kernel.discard(p, 1);
    assert_eq!(kernel.place_zeros(a, 4), Ok(4));
    assert_eq!(kernel.place_zeros(b, 1), Err(Fail::Exists));
    assert_eq!(kernel.park(b, p), Ok(()));
    // A copy leaves the parked frame in place.
    assert_eq!(kernel.place_copy(b, p, true, NodeId::FAST), Ok(()));
    assert_eq!(kernel.frame(p), page_of(0));
    assert_eq!(read_at(b), 0);
    assert_eq!(kernel.protect(b, false), Ok(()));
    write_at(b, 5);
    assert_eq!(kernel.place(range.to.plus(1 << 20), &page_of(1), false), Err(Fail::Missing));
}

/// Linux 6.17 may report an error or a shorter move although pages have moved.
#[test]
fn a_move_that_reports_a_wrong_error_is_corrected() {
    let Some((_memory, mut kernel, range)) = with_program(4, 4) else { return };
    assert_eq!(kernel.place_zeros(range.from, 4), Ok(4));
    for number in 0..3 {
        assert_eq!(kernel.park(range.from.plus(number), Frame::new(number as u32)), Ok(()));
    }
    let (page, from) = (PAGE as u64, range.from.address());
    let to = kernel.parking.at(Frame::new(0)).addr() as u64;
    let mut moved = |done, number: u64, pages| {
        kernel.check_moved(done, to + number * page, from + number * page, pages)
    };
    assert_eq!(moved(Err(Fail::Exists), 0, 1), Ok(page));
    assert_eq!(moved(Ok(page), 0, 4), Ok(3 * page));
    assert_eq!(moved(Ok(4 * page), 0, 4), Ok(4 * page));
    // The page has not moved, or the error is another one.
    assert_eq!(moved(Err(Fail::Exists), 3, 1), Err(Fail::Exists));
    assert_eq!(moved(Err(Fail::Pinned), 0, 1), Err(Fail::Pinned));
}

/// A part with another protection is another mapping, and the kernel copies to one mapping at a time.
#[test]
fn zeros_are_placed_in_memory_that_is_partly_read_only() {
    let Some((_memory, mut kernel, range)) = with_program(1, 8) else { return };
    let part = range.from.plus(4).address() as *mut libc::c_void;
    // SAFETY: two pages of the test's mapping.
    assert_eq!(unsafe { libc::mprotect(part, 2 * PAGE, libc::PROT_READ) }, 0);
    let mut pages = (0..8).map(|page| range.from.plus(page));
    assert!(pages.all(|at| match kernel.place_zeros(at, 8) {
        Ok(placed) => placed > 0,
        Err(fail) => fail == Fail::Exists,
    }));
    assert_eq!(kernel.pagemap.present(range).len(), 8);
}

#[test]
fn a_mapping_of_one_page_is_found() {
    let Some(kernel) = linux(1) else { return };
    let memory = Mapping::new(1).unwrap();
    // The kernel is dropped first, and so must be bound last.
    let (memory, mut kernel) = (memory, kernel);
    write_at(memory.range().from, 1);
    kernel.excluded.add(Range::new(Va::new(0), Va::of(u64::MAX)));
    kernel.excluded.remove(memory.range());
    let mut found = Vec::new();
    kernel.discover(&Regions::default(), &mut found);
    let present = vec![memory.range().from];
    assert_eq!(found, [NewRegion { range: memory.range(), present }]);
}

#[test]
fn three_pages_in_four_tebibytes_are_found_by_one_request() {
    let Some(mut kernel) = linux(1) else { return };
    let memory = Mapping::new(1 << 30).unwrap();
    let range = memory.range();
    let touched = [0, (1 << 29) + 5, (1 << 30) - 1].map(|page| range.from.plus(page));
    touched.iter().for_each(|at| write_at(*at, 1));
    assert_eq!(kernel.pagemap.present(range), touched);
    assert_eq!(kernel.pagemap.requests, 1);
    // 1,300 runs take three requests.
    let many: Vec<_> = (0..1300).map(|page| range.from.plus((1 << 20) + 2 * page)).collect();
    many.iter().for_each(|at| write_at(*at, 1));
    assert_eq!(kernel.pagemap.present(Range::new(many[0], range.from.plus(1 << 21))), many);
    assert_eq!(kernel.pagemap.requests, 1 + 3);
}

/// A page counts as present if `/proc/self/pagemap` shows it in memory (bit 63) or on swap (bit 62).
#[test]
fn present_pages_are_those_of_the_page_map() {
    let Some(mut kernel) = linux(1) else { return };
    let memory = Mapping::new(3000).unwrap();
    let range = memory.range();
    let mut state = 7u64;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    for round in 0..40 {
        let at = range.from.plus(draw(2900));
        for page in 0..draw(100) {
            // A read maps the kernel's zero page.
            let at = at.plus(page);
            if draw(2) == 0 {
                write_at(at, 1);
            } else {
                read_at(at);
            }
        }
        let advice = if round % 3 == 0 { libc::MADV_PAGEOUT } else { libc::MADV_DONTNEED };
        let start = range.from.plus(draw(2900)).address() as *mut libc::c_void;
        // SAFETY: pages of the test's mapping. Without swap the first does nothing.
        unsafe { libc::madvise(start, 50 * PAGE, advice) };
        let part = Range::new(range.from.plus(draw(200)), range.from.plus(3000 - draw(200)));
        let mut entries = vec![0; 8 * part.pages() as usize];
        let file = File::open("/proc/self/pagemap").unwrap();
        file.read_exact_at(&mut entries, 8 * part.from.number()).unwrap();
        let there = |entry: &[u8; 8]| u64::from_le_bytes(*entry) >> 62 != 0;
        let expected: Vec<_> = part
            .each()
            .zip(entries.as_chunks::<8>().0)
            .filter_map(|(at, entry)| there(entry).then_some(at))
            .collect();
        assert_eq!(kernel.pagemap.present(part), expected, "round {round}");
    }
}

/// Even one that moves a page of a new mapping at the same address.
#[test]
fn while_a_message_is_unread_every_request_is_refused() {
    let Some((memory, mut kernel, range)) = with_program(4, 4) else { return };
    let frame = Frame::new(0);
    kernel.place(range.from, &page_of(1), false).unwrap();
    let (start, length) = (memory.address(), 2 * PAGE);
    let mapped = Arc::new(AtomicBool::new(false));
    let done = Arc::clone(&mapped);
    let other = std::thread::spawn(move || {
        // SAFETY: the first half of the test's mapping.
        unsafe {
            libc::munmap(start as *mut libc::c_void, length);
        }
        done.store(true, Ordering::SeqCst);
    });
    // The message exists once a valid request is refused.
    let last = range.from.plus(3);
    let mut placed = kernel.place(last, &page_of(2), false);
    while placed.is_ok() {
        kernel.park(last, frame).unwrap_or_else(|fail| assert_eq!(fail, Fail::Again));
        placed = match kernel.place(last, &page_of(2), false) {
            Err(Fail::Exists) => Ok(()),
            other => other,
        };
        if kernel.frame_is_there(frame) {
            kernel.discard(frame, 1);
        }
    }
    assert_eq!(placed, Err(Fail::Again));
    assert!(!mapped.load(Ordering::SeqCst));
    // SAFETY: the address is free: the other thread has unmapped it, and waits.
    let again = unsafe {
        libc::mmap(
            start as *mut libc::c_void,
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    assert_ne!(again, libc::MAP_FAILED);
    write_at(range.from, 42);
    assert_eq!(kernel.park(range.from, frame), Err(Fail::Again));
    assert_eq!(kernel.protect(last, true), Err(Fail::Again));
    assert_eq!(read_at(range.from), 42);
    let mut events = Vec::new();
    kernel.events(&mut events);
    assert_eq!(events, [Event::Unmapped(Range::new(range.from, range.from.plus(2)))]);
    other.join().unwrap();
    // After the message was read, a request moves the page of the new mapping.
    assert_eq!(kernel.park(range.from, frame), Ok(()));
    assert_eq!(kernel.frame(frame), page_of(42));
}

impl Linux {
    fn frame_is_there(&mut self, frame: Frame) -> bool {
        let at = Va::of(self.parking.at(frame).addr() as u64);
        !self.pagemap.present(Range::new(at, at.plus(1))).is_empty()
    }
}

/// Run `act` on managed memory of `pages` pages with `fast` pages of fast memory.
fn manage(policy: &str, far: &str, fast: u64, pages: u64, act: impl FnOnce(Range) + Send) {
    let folder = tempfile::tempdir().unwrap();
    let (name, tier) = TIERS.iter().find(|(name, _)| *name == far).unwrap();
    let (argument, mapped) = (argument(tier, folder.path()), tier.is_mapped);
    let sizes =
        Sizes { fast, far: 4 * pages, window: 4, spare: 8, pages: 1 << 20, far_is_mapped: mapped };
    let Some(mut kernel) = linux(sizes.parking()) else { return };
    if mapped && let Err(error) = kernel.use_node(&argument) {
        return not_run(&format!("{policy}, {name}: {error}"));
    }
    let memory = Mapping::new(pages).unwrap();
    let range = memory.range();
    // Other tests run in this process: manage only the test's mapping.
    kernel.excluded.add(Range::new(Va::new(0), Va::of(u64::MAX)));
    kernel.excluded.remove(range);
    let far = (tier.make)(&argument, 4 * pages as u32).unwrap();
    let world = World::new(kernel, far, sizes);
    let mut settings = settings(policy).unwrap();
    if policy == "autonuma" {
        // Faults take real time here.
        settings.values.insert("hot_threshold".into(), "1s".into());
    }
    let mut manager = Manager::new(world, policy, &settings, 4).unwrap();
    manager.discover();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            act(range);
            over.store(true, Ordering::SeqCst);
        });
        while !over.load(Ordering::SeqCst) {
            if let Turn::Until(_) = manager.turn().unwrap() {
                std::thread::yield_now();
            }
        }
    });
    manager.world.check().unwrap();
    if mapped {
        check_nodes(&manager.world);
    }
    let used = manager.world.budget.used;
    let seen = manager.world.counters;
    // A page that could not be moved to its node is fast.
    assert!(used[0] <= fast + seen.over_budget, "{used:?}");
    assert!(seen.demotions_copied > 0 && (mapped || seen.over_budget == 0), "{seen:?}");
}

/// Pages are on the memory nodes to which they are charged.
fn check_nodes(world: &World<Linux>) {
    let kernel = world.kernel();
    let nodes = kernel.nodes.as_ref().unwrap();
    let (mut next, mut pages) = (world.next_mapped_page(Page::new(0)), [0, 0]);
    while let Some(page) = next {
        let at = match world.pages.state(page).is_parked() {
            true => kernel.parking.at(world.pages.frame(page)),
            false => world.numbers.address_of(page).address() as *const u8,
        };
        let node = world.pages.state(page).node();
        assert_eq!(nodes.is_far(at), node != NodeId::FAST, "{page:?}");
        if let Some(shadow) = world.pages.slot(page) {
            assert!(nodes.is_far(kernel.parking.at(Frame::new(shadow.number()))), "{page:?}");
        }
        pages[node.index()] += 1;
        next = world.next_mapped_page(page.skip(1));
    }
    assert!(pages.iter().all(|pages| *pages > 0), "{pages:?}");
}

/// A frame is on the requested node, and stays there when it is moved.
#[test]
fn frames_are_on_the_node_that_is_asked_for() {
    let Some((_memory, mut kernel, range)) = with_program(4, 4) else { return };
    if let Err(error) = kernel.use_node("1") {
        return not_run(&error.to_string());
    }
    let far = |kernel: &Linux, at: u64| kernel.nodes.as_ref().unwrap().is_far(at as *const u8);
    let [a, b] = [range.from, range.from.plus(1)];
    let [p, q] = [Frame::new(0), Frame::new(1)];
    let place = |kernel: &Linux, frame| kernel.parking.at(frame).addr() as u64;
    assert_eq!(kernel.place(a, &page_of(7), false), Ok(()));
    assert!(!far(&kernel, a.address()));
    assert_eq!(kernel.park(a, p), Ok(()));
    assert_eq!(kernel.copy_to_far_node(p, q), Ok(()));
    assert!(!far(&kernel, place(&kernel, p)) && far(&kernel, place(&kernel, q)));
    assert_eq!((kernel.frame(p), kernel.frame(q)), (&page_of(7)[..], &page_of(7)[..]));
    // New frames in the program on either node, and one in the parking area, which keeps its node.
    assert_eq!(kernel.place_copy(b, q, true, NodeId::FAST), Ok(()));
    assert!(!far(&kernel, b.address()));
    assert_eq!(kernel.place_copy(range.from.plus(2), q, false, FAR_NODE), Ok(()));
    assert!(far(&kernel, range.from.plus(2).address()));
    assert_eq!(kernel.restore(q, a), Ok(()));
    assert!(far(&kernel, a.address()) && read_at(a) == 7);
    assert_eq!(kernel.place_zeros(range.from.plus(3), 1), Ok(1));
    assert!(!far(&kernel, range.from.plus(3).address()));
}

/// With every far tier.
#[test]
fn memory_under_a_policy_holds_what_was_written() {
    if linux(1).is_none() {
        return;
    }
    let pages = 256;
    for policy in ["autonuma", "tpp", "nomad", "ssp"] {
        for (far, _) in TIERS {
            manage(policy, far, 64, pages, |range| {
                let mut versions = vec![0; pages as usize];
                let mut state = 1u64;
                for step in 1..8_000u64 {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    // Half of the references are to an eighth of the pages, which moves.
                    let index = if state >> 63 == 0 {
                        (state >> 33) % pages
                    } else {
                        (step / 1000 * 32 + (state >> 33) % 32) % pages
                    };
                    let at = range.from.plus(index);
                    assert_eq!(read_at(at), versions[index as usize], "{policy}, {far}, {step}");
                    if state >> 40 & 3 == 0 {
                        write_at(at, step);
                        versions[index as usize] = step;
                    }
                    if step % 1000 == 0 {
                        // SAFETY: pages of the test's mapping.
                        unsafe {
                            libc::madvise(
                                at.address() as *mut libc::c_void,
                                PAGE,
                                libc::MADV_DONTNEED,
                            );
                        }
                        versions[index as usize] = 0;
                    }
                }
            });
        }
    }
}

/// `madvise` handles one mapping after the other. It removes unregistered pages without a message, once the
/// message about a mapping before them was read.
#[test]
fn a_message_of_removed_pages_covers_one_mapping() {
    let memory = Mapping::new(4).unwrap();
    let Some(mut kernel) = linux(1) else { return };
    let [before, first, last, after] = [0, 1, 2, 3].map(|page| memory.range().from.plus(page));
    let registered = Range::new(first, after);
    kernel.program.register(first.address(), 2 * PAGE as u64, true).unwrap();
    for at in [first, last] {
        kernel.place(at, &page_of(1), false).unwrap();
    }
    for at in [before, after] {
        write_at(at, 1);
    }
    let (start, length) = (memory.address(), 4 * PAGE);
    let other = std::thread::spawn(move || {
        // SAFETY: the test's mapping.
        unsafe { libc::madvise(start as *mut libc::c_void, length, libc::MADV_DONTNEED) }
    });
    while read_at(before) != 0 {
        std::thread::yield_now();
    }
    assert_eq!([first, last, after].map(read_at), [1, 1, 1]);
    let mut events = Vec::new();
    while !other.is_finished() {
        read_changes(&mut kernel, &mut events);
    }
    assert_eq!(events, [Event::Removed(registered)]);
    assert_eq!(other.join().unwrap(), 0);
    assert_eq!([before, after].map(read_at), [0, 0]);
    assert_eq!(kernel.pagemap.present(registered), []);
}

#[test]
fn a_move_sends_two_messages() {
    let target = Mapping::new(4).unwrap();
    let Some((memory, mut kernel, range)) = with_program(1, 4) else { return };
    let (from, to) = (memory.address(), target.address());
    assert!(kernel.is_quiet());
    let other = std::thread::spawn(move || {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both are mappings of the test.
        let moved = unsafe {
            libc::mremap(
                from as *mut libc::c_void,
                4 * PAGE,
                4 * PAGE,
                flags,
                to as *mut libc::c_void,
            )
        };
        assert_eq!(moved as u64, to);
    });
    let mut events = Vec::new();
    while events.len() < 2 {
        assert!(events.is_empty() || !kernel.is_quiet());
        read_changes(&mut kernel, &mut events);
    }
    assert_eq!(events, [Event::Remapped(range, Va::of(to)), Event::Unmapped(range)]);
    other.join().unwrap();
    assert!(kernel.is_quiet());
}
