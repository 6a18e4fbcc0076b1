//! A test suite of the contract of [`Memory`] for every world: the reference implementation, the
//! simulator, the runtime under a real program.
//!
//! The suite's policy takes random actions in every hook and in a thread. It checks the outcome of each
//! action, and the state of all pages and nodes before and after, against the contract. The world
//! checks that no write is lost.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::super::{
    Capability, Commit, Context, DropReason, Made, Memory, Next, NodeId, Page, Policy, Refused,
    Request, Tenant, Thread, Time,
};
use super::{PAGES, Step, steps};

/// A world that runs a policy, as the suite drives it.
pub trait Subject {
    /// The memory, between steps.
    fn memory(&self) -> &dyn Memory;
    /// Whether other programs may use frames of a node that its budget counts as free.
    fn shares_nodes(&self) -> bool {
        false
    }
    /// Run the next step of the program.
    ///
    /// # Panics
    /// A read does not return the last write, or an invariant of the world is violated.
    fn step(&mut self, step: Step);
}

/// Creates the policy; may be called on another thread.
pub type Make = Box<dyn FnOnce(&mut dyn Memory) -> nearfar_trace::Result<Made> + Send>;

#[derive(Clone, Copy, Debug)]
enum Act {
    /// [`Memory::arm_hint`].
    Arm(Page),
    /// [`Memory::disarm_hint`].
    Disarm(Page),
    /// [`Memory::clear_accessed`].
    Clear(Page),
    /// [`Memory::write_protect`].
    Protect(Page),
    /// [`Memory::unprotect`].
    Unprotect(Page),
    /// [`Memory::move_page`].
    Move(Page, NodeId),
    /// [`Memory::begin_copy`].
    Begin(Page, NodeId),
    /// [`Memory::commit_copy`].
    Commit(Page, bool),
    /// [`Memory::remap_to_shadow`].
    Remap(Page),
    /// [`Memory::drop_shadow`].
    Drop(Page),
    /// [`Memory::split`] of a page that is no huge page.
    Split(Page),
}

/// Actions of the policy, in the order in which its hooks take them.
fn acts() -> impl Strategy<Value = Vec<Act>> {
    let page = || (0..PAGES).prop_map(Page::new);
    let node = || (0..3u8).prop_map(NodeId::new);
    let act = prop_oneof![
        3 => page().prop_map(Act::Arm),
        1 => page().prop_map(Act::Disarm),
        1 => page().prop_map(Act::Clear),
        1 => page().prop_map(Act::Protect),
        1 => page().prop_map(Act::Unprotect),
        2 => (page(), node()).prop_map(|(page, to)| Act::Move(page, to)),
        4 => (page(), node()).prop_map(|(page, to)| Act::Begin(page, to)),
        2 => (page(), any::<bool>()).prop_map(|(page, keep)| Act::Commit(page, keep)),
        3 => page().prop_map(Act::Remap),
        2 => page().prop_map(Act::Drop),
        1 => page().prop_map(Act::Split),
    ];
    prop::collection::vec(act, 1..200)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hook {
    Allocated(Page),
    Released(Page),
    HintFault(Page),
    WriteFault(Page),
    Pressure,
    Work,
}

/// Maximum actions in one step of the program: actions can cause further hooks endlessly.
const ACTIONS: usize = 8;

/// State of [`Prober`], shared with the suite.
#[derive(Default)]
struct Probe {
    acts: Vec<Act>,
    next: usize,
    /// Actions that are left in this step.
    left: usize,
    /// Copies in progress: from which node to which.
    copies: BTreeMap<Page, (NodeId, NodeId)>,
    /// Hooks called since the step began.
    called: Vec<Hook>,
    now: Time,
    shares_nodes: bool,
    /// Whether the policy's thread runs periodically; otherwise only when woken.
    is_periodic: bool,
    /// Kinds of action that were carried out.
    done: BTreeSet<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PageState {
    mapped: bool,
    node: NodeId,
    accessed: bool,
    dirty: bool,
    armed: bool,
    protected: bool,
    shadow: Option<NodeId>,
}

impl PageState {
    const UNMAPPED: Self = Self {
        mapped: false,
        node: NodeId::FAST,
        accessed: false,
        dirty: false,
        armed: false,
        protected: false,
        shadow: None,
    };

    fn at(mem: &dyn Memory, page: Page) -> Self {
        Self {
            mapped: mem.mapped(page),
            node: mem.node_of(page),
            accessed: mem.accessed(page),
            dirty: mem.dirty(page),
            armed: mem.hint_armed(page),
            protected: mem.write_protected(page),
            shadow: mem.shadow_of(page),
        }
    }
}

/// The visible state of all pages, and the used frames of each node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct View {
    pages: Vec<PageState>,
    used: Vec<u64>,
}

impl View {
    /// The view of `mem`, whose invariants are checked.
    fn of(mem: &dyn Memory, copies: &BTreeMap<Page, (NodeId, NodeId)>) -> Self {
        let all = || (0..mem.page_limit().min(PAGES)).map(Page::new);
        let pages: Vec<PageState> = all().map(|page| PageState::at(mem, page)).collect();
        let mut used = vec![0; mem.nodes().into()];
        let mut from = Page::new(0);
        for (page, state) in all().zip(&pages).filter(|(_, state)| state.mapped) {
            assert_eq!(mem.next_mapped(from), Some(page), "from {from:?}");
            assert_eq!((mem.span(page), mem.tenant_of(page)), (1, Tenant::ONLY), "{page:?}");
            used[state.node.index()] += 1;
            if let Some(shadow) = state.shadow {
                assert!(
                    shadow > state.node && state.protected && !state.dirty,
                    "{page:?}: {state:?}"
                );
                used[shadow.index()] += 1;
            }
            from = page.skip(1);
        }
        assert_eq!(mem.next_mapped(from), None, "from {from:?}");
        for (page, state) in all().zip(&pages).filter(|(_, state)| !state.mapped) {
            assert_eq!(
                (*state, mem.span(page)),
                (PageState::UNMAPPED, 1),
                "{page:?} is not mapped"
            );
        }
        for (page, (from, to)) in copies {
            assert_eq!(pages[page.index()].node, *from, "{page:?} has moved while it is copied");
            used[to.index()] += 1;
        }
        for (node, used) in NodeId::all(mem.nodes()).zip(&used) {
            // In the runtime, first touches do not wait for room: they may exceed a node's budget.
            let free = mem.capacity(node).saturating_sub(*used);
            let tenant = mem.used(Tenant::ONLY, node);
            assert_eq!((mem.free(node), tenant), (free, *used), "free and used, {node:?}");
            assert!(mem.limit(Tenant::ONLY, node).max <= mem.capacity(node), "{node:?}");
        }
        assert_eq!(mem.tenants(), 1);
        Self { pages, used }
    }

    /// The first page with a shadow, from `page` on; `page` itself if there is none.
    fn shadowed_from(&self, page: Page) -> Page {
        let mut from = self.pages.iter().skip(page.index());
        from.position(|state| state.shadow.is_some()).map_or(page, |past| page.skip(past as u32))
    }

    /// Change the state to that after `page` was moved to the node `to`.
    fn moved(&mut self, mem: &dyn Memory, page: Page, to: NodeId) {
        let state = &mut self.pages[page.index()];
        self.used[state.node.index()] -= 1;
        self.used[to.index()] += 1;
        if let Some(shadow) = state.shadow {
            self.used[shadow.index()] -= 1;
        }
        *state = PageState {
            mapped: true,
            node: to,
            // Clean on a faster node: see [`Memory::move_page`].
            dirty: state.dirty && to > state.node,
            armed: to != NodeId::FAST && !mem.has(Capability::FarIsMapped),
            ..PageState::UNMAPPED
        };
    }
}

impl Probe {
    /// Take the next `count` actions, or as many as are left in this step.
    fn act(&mut self, mem: &mut dyn Memory, thread: Thread, count: usize) {
        for _ in 0..count.min(self.left) {
            let act = self.acts[self.next % self.acts.len()];
            self.next += 1;
            self.left -= 1;
            self.check(mem, thread, act);
        }
    }

    /// Take an action, and check the outcome against the contract.
    fn check(&mut self, mem: &mut dyn Memory, thread: Thread, act: Act) {
        let before = View::of(mem, &self.copies);
        let (now, free) = (mem.now(), NodeId::all(mem.nodes()).map(|node| mem.free(node)));
        let free: Vec<u64> = free.collect();
        let act = match act {
            // Few random pages have a shadow.
            Act::Drop(page) => Act::Drop(before.shadowed_from(page)),
            Act::Remap(page) => Act::Remap(before.shadowed_from(page)),
            act => act,
        };
        let page = act.page();
        let state = before.pages[page.index()];
        let copy = self.copies.get(&page).copied();
        let mut expected = before.clone();
        let cannot_go = |to: NodeId| state.node == to || to.index() >= free.len();
        // The outcome, and whether the contract forbids the action.
        let (outcome, forbidden) = match act {
            Act::Arm(_) => {
                expected.pages[page.index()].armed = true;
                (self.request(mem, Request::ArmHint(page)), !state.mapped)
            }
            Act::Disarm(_) => {
                mem.disarm_hint(page);
                if state.mapped {
                    let state = &mut expected.pages[page.index()];
                    (state.armed, state.accessed) = (false, true);
                }
                (Ok(()), false)
            }
            Act::Clear(_) => {
                expected.pages[page.index()].accessed = false;
                assert_eq!(mem.clear_accessed(page), state.accessed, "{act:?}");
                (Ok(()), false)
            }
            Act::Protect(_) => {
                expected.pages[page.index()].protected = true;
                (self.request(mem, Request::WriteProtect(page)), !state.mapped)
            }
            Act::Unprotect(_) => {
                expected.pages[page.index()].protected = false;
                (mem.unprotect(page), !state.mapped || state.shadow.is_some())
            }
            Act::Move(_, to) => {
                let forbidden = !state.mapped || cannot_go(to);
                if !forbidden {
                    expected.moved(mem, page, to);
                }
                (self.request(mem, Request::Move(page, to)), forbidden)
            }
            Act::Begin(_, to) => {
                let outcome = mem.begin_copy(page, to, thread);
                let forbidden = !state.mapped || cannot_go(to) || state.shadow.is_some();
                if outcome.is_ok() && !forbidden {
                    expected.pages[page.index()].dirty = false;
                    expected.used[to.index()] += 1;
                    self.copies.insert(page, (state.node, to));
                }
                (outcome, forbidden)
            }
            Act::Commit(_, keep) => {
                let outcome = mem.commit_copy(page, keep);
                if let (Ok(commit), Some((from, to))) = (outcome, copy) {
                    self.copies.remove(&page);
                    expected.used[to.index()] -= 1;
                    if commit == Commit::Done {
                        expected.moved(mem, page, to);
                        let state = &mut expected.pages[page.index()];
                        state.dirty = false;
                        if keep {
                            (state.protected, state.shadow) = (true, Some(from));
                            expected.used[from.index()] += 1;
                        }
                        self.done.insert("commit");
                    }
                }
                (outcome.map(|_| ()), copy.is_none_or(|(from, to)| keep && to > from))
            }
            Act::Remap(_) => {
                if let Some(to) = state.shadow {
                    expected.moved(mem, page, to);
                    expected.pages[page.index()].dirty = false;
                }
                (self.request(mem, Request::RemapToShadow(page)), state.shadow.is_none())
            }
            Act::Drop(_) => {
                expected.pages[page.index()].shadow = None;
                if let Some(node) = state.shadow {
                    expected.used[node.index()] -= 1;
                }
                let drop = Request::DropShadow(page, DropReason::Reclaimed);
                (self.request(mem, drop), state.shadow.is_none())
            }
            Act::Split(_) => (mem.split(page), true),
        };
        assert_eq!(mem.now(), now, "{act:?}: time goes on within a hook");
        if let Err(refused) = outcome {
            let allowed = match (refused, act) {
                (Refused::State, _) => forbidden,
                (Refused::NoFrame, Act::Move(_, to) | Act::Begin(_, to)) => {
                    self.shares_nodes || free.get(to.index()).is_none_or(|free| *free == 0)
                }
                (Refused::Busy, Act::Commit(..)) => copy.is_some(),
                (Refused::Busy, Act::Move(..) | Act::Begin(..) | Act::Remap(_) | Act::Split(_)) => {
                    copy.is_some()
                }
                (Refused::Pinned, Act::Drop(_)) => false,
                (Refused::Pinned, _) => true,
                (Refused::NoFrame | Refused::Busy, _) => false,
            };
            assert!(allowed, "{act:?} is refused with {refused:?}: {state:?}, free {free:?}");
            expected = before;
        } else {
            assert!(!forbidden, "{act:?} is carried out: {state:?}");
            let moves = matches!(act, Act::Move(..) | Act::Begin(..) | Act::Remap(_));
            assert!(!moves || copy.is_none(), "{act:?}: it is being copied");
            self.done.insert(act.name());
        }
        let after = View::of(mem, &self.copies);
        assert_eq!(after, expected, "after {act:?}, {outcome:?}");
    }

    /// Call the method or, every other time, [`Memory::batch`].
    fn request(&self, mem: &mut dyn Memory, request: Request) -> Result<(), Refused> {
        if self.next.is_multiple_of(2) {
            // The batch must replace these.
            let mut outcomes = vec![Ok(()); 3];
            mem.batch(&[request], &mut outcomes);
            assert_eq!(outcomes.len(), 1, "{request:?}");
            return outcomes[0];
        }
        request.run(mem)
    }
}

impl Act {
    fn page(self) -> Page {
        match self {
            Act::Arm(page)
            | Act::Disarm(page)
            | Act::Clear(page)
            | Act::Protect(page)
            | Act::Unprotect(page)
            | Act::Move(page, _)
            | Act::Begin(page, _)
            | Act::Commit(page, _)
            | Act::Remap(page)
            | Act::Drop(page)
            | Act::Split(page) => page,
        }
    }

    /// The kind of action; a copy that ends is a "commit" only if its page moves.
    fn name(self) -> &'static str {
        match self {
            Act::Arm(_) => "arm",
            Act::Disarm(_) => "disarm",
            Act::Clear(_) => "clear",
            Act::Protect(_) => "protect",
            Act::Unprotect(_) => "unprotect",
            Act::Move(..) => "move",
            Act::Begin(..) => "begin",
            Act::Commit(..) => "end",
            Act::Remap(_) => "remap",
            Act::Drop(_) => "drop",
            Act::Split(_) => "split",
        }
    }
}

struct Prober {
    probe: Arc<Mutex<Probe>>,
    thread: Thread,
}

impl Prober {
    fn hook(&self, mem: &dyn Memory, called: Hook) -> MutexGuard<'_, Probe> {
        let mut probe = locked(&self.probe);
        assert!(mem.now() >= probe.now, "time goes back");
        probe.now = mem.now();
        probe.called.push(called);
        probe
    }
}

fn locked(probe: &Mutex<Probe>) -> MutexGuard<'_, Probe> {
    probe.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Policy for Prober {
    fn allocated(&mut self, mem: &mut dyn Memory, page: Page) {
        assert!(mem.mapped(page), "{page:?} is allocated and not mapped");
        self.hook(mem, Hook::Allocated(page)).act(mem, self.thread, 1);
    }

    fn released(&mut self, mem: &mut dyn Memory, page: Page, span: u32) {
        assert!(!mem.mapped(page) && span == 1, "{page:?} is released and mapped");
        let mut probe = self.hook(mem, Hook::Released(page));
        probe.copies.remove(&page);
        probe.act(mem, self.thread, 1);
    }

    fn hint_fault(&mut self, mem: &mut dyn Memory, page: Page, _: bool) {
        assert!(mem.mapped(page) && mem.hint_armed(page), "a hint fault at {page:?}");
        let mut probe = self.hook(mem, Hook::HintFault(page));
        probe.act(mem, self.thread, 2);
        if mem.hint_armed(page) {
            probe.check(mem, self.thread, Act::Disarm(page));
        }
    }

    fn write_fault(&mut self, mem: &mut dyn Memory, page: Page) {
        assert!(mem.mapped(page) && mem.write_protected(page), "a write fault at {page:?}");
        let mut probe = self.hook(mem, Hook::WriteFault(page));
        probe.act(mem, self.thread, 2);
        if mem.shadow_of(page).is_some() {
            probe.check(mem, self.thread, Act::Drop(page));
        }
        probe.check(mem, self.thread, Act::Unprotect(page));
    }

    fn sample(&mut self, mem: &mut dyn Memory, _: Page, _: Page, _: bool) {
        panic!("nobody asked for samples at {:?}", mem.now());
    }

    fn pressure(&mut self, mem: &mut dyn Memory, node: NodeId, _: Tenant) {
        assert_eq!(mem.free(node), 0, "{node:?} is not full");
        self.hook(mem, Hook::Pressure).act(mem, self.thread, 2);
    }

    fn work(&mut self, mem: &mut dyn Memory, thread: Thread) -> Next {
        assert_eq!(thread, self.thread);
        let mut probe = self.hook(mem, Hook::Work);
        let copied: Vec<Page> = probe.copies.keys().copied().collect();
        for page in copied {
            let promoted = probe.copies.get(&page).is_some_and(|(from, to)| to < from);
            probe.check(mem, thread, Act::Commit(page, promoted && page.number() % 8 != 0));
        }
        probe.act(mem, thread, 2);
        if probe.is_periodic { Next::At(mem.now().plus(STEP)) } else { Next::Idle }
    }
}

/// Time between steps of the policy's thread.
const STEP: Time = Time::from_ps(7_000_000);

/// The suite: random programs in worlds that `start` makes from a policy and a seed for the world's
/// other properties. Every kind of action must be carried out in some world.
///
/// # Panics
/// A world violates the contract. The message has the smallest program that shows this.
pub fn suite<S: Subject>(cases: u32, start: impl Fn(Make, u64) -> S) {
    let done = RefCell::new(BTreeSet::new());
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) };
    let found =
        TestRunner::new(config).run(&(acts(), steps(), any::<u64>()), |(acts, steps, seed)| {
            done.borrow_mut().extend(conforms(&acts, &steps, |make| start(make, seed)));
            Ok(())
        });
    if let Err(error) = found {
        panic!("{error}");
    }
    let expected = [
        "arm",
        "begin",
        "clear",
        "commit",
        "disarm",
        "drop",
        "end",
        "move",
        "protect",
        "remap",
        "unprotect",
    ];
    assert!(done.borrow().iter().eq(&expected), "carried out: {:?}", done.borrow());
}

/// Run `steps` in the world that `start` makes with a policy that takes the actions `acts`. Returns the
/// kinds of action that were carried out (`commit`: a copy that moved its page).
fn conforms<S: Subject>(
    acts: &[Act],
    steps: &[Step],
    start: impl FnOnce(Make) -> S,
) -> BTreeSet<&'static str> {
    let probe = Arc::new(Mutex::new(Probe {
        acts: acts.to_vec(),
        left: ACTIONS,
        is_periodic: true,
        ..Probe::default()
    }));
    let of_policy = Arc::clone(&probe);
    let mut world = start(Box::new(move |mem| {
        let thread = mem.spawn("prober", Context::Kernel);
        assert_eq!((thread.name(), thread.index()), ("prober", 0));
        Ok((Box::new(Prober { probe: of_policy, thread }), vec![(thread, Time::default())]))
    }));
    locked(&probe).shares_nodes = world.shares_nodes();
    let view = |world: &S| View::of(world.memory(), &locked(&probe).copies);
    for step in steps {
        let before = view(&world);
        {
            let mut probe = locked(&probe);
            probe.called.clear();
            probe.left = ACTIONS;
        }
        world.step(*step);
        let after = view(&world);
        let first = locked(&probe).called.first().copied();
        let of = |page: u32| (Page::new(page % PAGES), before.pages[(page % PAGES) as usize]);
        // The policy's thread may have run first.
        let is_called = |called| first == Some(called) || first == Some(Hook::Work);
        match *step {
            Step::Read(page) | Step::Write(page) => {
                let ((page, state), write) = (of(page), matches!(step, Step::Write(_)));
                let called = if !state.mapped {
                    // Other hooks, which make room, may come first.
                    locked(&probe).called.contains(&Hook::Allocated(page))
                } else if state.armed {
                    is_called(Hook::HintFault(page))
                } else {
                    !(write && state.protected) || is_called(Hook::WriteFault(page))
                };
                assert!(called, "{step:?} of {state:?}: {first:?} is called");
                assert!(after.pages[page.index()].mapped, "{step:?}");
            }
            Step::Release(page) => {
                let (page, state) = of(page);
                let is_released = locked(&probe).called.contains(&Hook::Released(page));
                assert_eq!(is_released, state.mapped, "{step:?}");
                assert!(!after.pages[page.index()].mapped, "{step:?}");
            }
            Step::Zeros | Step::Sleep => {}
        }
    }
    // Completed copies wake the thread.
    for _ in 0..16 {
        {
            let mut probe = locked(&probe);
            (probe.is_periodic, probe.left) = (false, 0);
        }
        world.step(Step::Sleep);
    }
    let probe = locked(&probe);
    assert!(probe.copies.is_empty(), "nobody is woken for {:?}", probe.copies);
    probe.done.clone()
}
