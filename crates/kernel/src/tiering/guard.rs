//! A guard around any policy: it stops migration while pages only bounce between the nodes.
//!
//! It follows the idea of "Adaptive Migration Decision for Multi-Tenant Memory Systems" (arXiv
//! 2505.09164): a page demoted after its promotion was promoted in vain. If such demotions stay a
//! large share of all promotions, promotions and hint faults stop. A thread then checks accessed bits
//! every few seconds, and migration restarts when the set of accessed pages has changed.
//! The paper gives no source code; periods and shares, except `guard_restart`, are assumptions.

use super::knobs::{Knobs, Settings};
use super::{
    Capability, Commit, Context, DropReason, Limit, Made, Memory, Next, NodeId, Page, Policy,
    PolicyEntry, Refused, Tenant, Thread, Time,
};
use crate::knobs;

knobs! {
    /// The guard's constants.
    GuardKnobs {
        guard: bool = "false", "stop migration while pages bounce between the nodes",
            "arXiv 2505.09164; no policy here has it by itself";
        guard_period: Time = "1s" (in tests "100us"), "time between checks of how many pages bounced",
            "assumption";
        guard_share: f64 = "0.5" (in tests "0.2"), "share of promotions demoted again above which, in three consecutive checks, migration stops",
            "assumption";
        guard_restart: Time = "5s" (in tests "200us"), "time between checks of accessed bits while migration is stopped",
            "arXiv 2505.09164, krestartd";
    }
}

/// Consecutive checks with many bounces after which migration stops.
const CHECKS_TO_STOP: u32 = 3;
/// With fewer promotions since the last check, no number of bounces counts as many.
const MIN_PROMOTIONS: u64 = 8;
/// Pages whose accessed bits are compared.
const SAMPLED_PAGES: u32 = 1024;
/// Migration starts again if the accessed bits of more than one in this many sampled pages change.
const RESTART_DIVISOR: usize = 4;

#[derive(Debug)]
struct State {
    knobs: GuardKnobs,
    thread: Thread,
    /// By page: promoted, and not demoted since.
    promoted: Vec<bool>,
    promotions: u64,
    bounces: u64,
    /// Consecutive checks with many bounces.
    bad_checks: u32,
    stopped: bool,
    /// Accessed bits of sampled pages at the last check; `None` before the first.
    accessed: Option<Vec<(Page, bool)>>,
}

impl State {
    fn moved(&mut self, page: Page, from: NodeId, to: NodeId) {
        let promoted = &mut self.promoted[page.index()];
        if to < from {
            self.promotions += 1;
            *promoted = true;
        } else if std::mem::take(promoted) {
            self.bounces += 1;
        }
    }

    /// Check bounces or, while stopped, accessed bits. Returns the time of the next check.
    fn check(&mut self, mem: &mut dyn Memory) -> Time {
        if self.stopped {
            let sampled = self.take_accessed(mem);
            if let Some(before) = self.accessed.replace(sampled) {
                let after = self.accessed.iter().flatten();
                let changed = before.iter().zip(after).filter(|(one, other)| one != other).count();
                self.stopped = changed * RESTART_DIVISOR <= before.len();
            }
        } else {
            let many = self.bounces as f64 > self.knobs.guard_share * self.promotions as f64;
            let is_bad = many && self.promotions >= MIN_PROMOTIONS;
            self.bad_checks = if is_bad { self.bad_checks + 1 } else { 0 };
            (self.promotions, self.bounces) = (0, 0);
            self.stopped = self.bad_checks == CHECKS_TO_STOP;
            if self.stopped {
                (self.bad_checks, self.accessed) = (0, None);
            }
        }
        let period = if self.stopped { self.knobs.guard_restart } else { self.knobs.guard_period };
        mem.now().plus(period)
    }

    /// Read and clear the accessed bits of sampled pages.
    fn take_accessed(&self, mem: &mut dyn Memory) -> Vec<(Page, bool)> {
        let step = (mem.page_limit() / SAMPLED_PAGES).max(1);
        let mut sampled = Vec::new();
        let mut next = mem.next_mapped(Page::new(0));
        while let Some(page) = next {
            sampled.push((page, mem.clear_accessed(page)));
            next = mem.next_mapped(page.skip(step.max(mem.span(page))));
        }
        sampled
    }
}

struct Guarded {
    base: Box<dyn Policy>,
    state: State,
}

/// Create a policy, with a guard if its settings say so.
///
/// # Errors
/// Those of the policy.
pub fn make(
    policy: &PolicyEntry,
    settings: &Settings,
    mem: &mut dyn Memory,
) -> nearfar_trace::Result<Made> {
    let (base, mut wakes) = (policy.make)(settings, mem)?;
    let knobs = GuardKnobs::read(settings)?;
    if !knobs.guard {
        return Ok((base, wakes));
    }
    let thread = mem.spawn("krestartd", Context::Kernel);
    wakes.push((thread, mem.now().plus(knobs.guard_period)));
    let promoted = vec![false; mem.page_limit() as usize];
    let state = State {
        knobs,
        thread,
        promoted,
        promotions: 0,
        bounces: 0,
        bad_checks: 0,
        stopped: false,
        accessed: None,
    };
    Ok((Box::new(Guarded { base, state }), wakes))
}

/// The memory as the guarded policy sees it. While migration is stopped, a promotion fails as if the node
/// were full, and arming a hint fault as if the page were pinned.
struct GuardedMemory<'a> {
    mem: &'a mut dyn Memory,
    state: &'a mut State,
}

impl GuardedMemory<'_> {
    fn is_refused(&self, page: Page, to: NodeId) -> bool {
        self.state.stopped && to < self.mem.node_of(page)
    }
}

/// Define methods that forward to the memory.
macro_rules! forward {
    ($(fn $name:ident(&self $(, $arg:ident: $type:ty)*) $(-> $out:ty)?;)*) => {
        $(fn $name(&self $(, $arg: $type)*) $(-> $out)? { self.mem.$name($($arg),*) })*
    };
    ($(fn $name:ident(&mut self $(, $arg:ident: $type:ty)*) $(-> $out:ty)?;)*) => {
        $(fn $name(&mut self $(, $arg: $type)*) $(-> $out)? { self.mem.$name($($arg),*) })*
    };
}

impl Memory for GuardedMemory<'_> {
    forward! {
        fn now(&self) -> Time;
        fn page_limit(&self) -> u32;
        fn next_mapped(&self, from: Page) -> Option<Page>;
        fn nodes(&self) -> u8;
        fn capacity(&self, node: NodeId) -> u64;
        fn free(&self, node: NodeId) -> u64;
        fn loaded_latency(&self, node: NodeId) -> Option<Time>;
        fn has(&self, capability: Capability) -> bool;
        fn tenants(&self) -> u16;
        fn tenant_of(&self, page: Page) -> Tenant;
        fn used(&self, tenant: Tenant, node: NodeId) -> u64;
        fn limit(&self, tenant: Tenant, node: NodeId) -> Limit;
        fn mapped(&self, page: Page) -> bool;
        fn node_of(&self, page: Page) -> NodeId;
        fn span(&self, page: Page) -> u32;
        fn prefetch(&self, page: Page);
        fn accessed(&self, page: Page) -> bool;
        fn dirty(&self, page: Page) -> bool;
        fn hint_armed(&self, page: Page) -> bool;
        fn write_protected(&self, page: Page) -> bool;
        fn shadow_of(&self, page: Page) -> Option<NodeId>;
    }
    forward! {
        fn clear_accessed(&mut self, page: Page) -> bool;
        fn disarm_hint(&mut self, page: Page);
        fn write_protect(&mut self, page: Page) -> Result<(), Refused>;
        fn unprotect(&mut self, page: Page) -> Result<(), Refused>;
        fn drop_shadow(&mut self, page: Page, why: DropReason) -> Result<(), Refused>;
        fn split(&mut self, page: Page) -> Result<(), Refused>;
        fn spawn(&mut self, name: &'static str, context: Context) -> Thread;
        fn wake(&mut self, thread: Thread);
        fn sample_every(&mut self, loads: u64, stores: u64);
    }

    fn arm_hint(&mut self, page: Page) -> Result<(), Refused> {
        if self.state.stopped { Err(Refused::Pinned) } else { self.mem.arm_hint(page) }
    }

    fn move_page(&mut self, page: Page, to: NodeId) -> Result<(), Refused> {
        if self.is_refused(page, to) {
            return Err(Refused::NoFrame);
        }
        let from = self.mem.node_of(page);
        self.mem.move_page(page, to)?;
        self.state.moved(page, from, to);
        Ok(())
    }

    fn begin_copy(&mut self, page: Page, to: NodeId, wake: Thread) -> Result<(), Refused> {
        if self.is_refused(page, to) {
            return Err(Refused::NoFrame);
        }
        self.mem.begin_copy(page, to, wake)
    }

    fn commit_copy(&mut self, page: Page, keep_shadow: bool) -> Result<Commit, Refused> {
        let from = self.mem.node_of(page);
        let result = self.mem.commit_copy(page, keep_shadow);
        if result == Ok(Commit::Done) {
            self.state.moved(page, from, self.mem.node_of(page));
        }
        result
    }

    fn remap_to_shadow(&mut self, page: Page) -> Result<(), Refused> {
        let from = self.mem.node_of(page);
        self.mem.remap_to_shadow(page)?;
        self.state.moved(page, from, self.mem.node_of(page));
        Ok(())
    }
}

impl Policy for Guarded {
    fn place(&mut self, mem: &dyn Memory, page: Page, frames: u32) -> NodeId {
        self.base.place(mem, page, frames)
    }

    fn allocated(&mut self, mem: &mut dyn Memory, page: Page) {
        self.base.allocated(&mut GuardedMemory { mem, state: &mut self.state }, page);
    }

    fn released(&mut self, mem: &mut dyn Memory, page: Page, span: u32) {
        self.state.promoted[page.index()] = false;
        self.base.released(&mut GuardedMemory { mem, state: &mut self.state }, page, span);
    }

    fn hint_fault(&mut self, mem: &mut dyn Memory, page: Page, write: bool) {
        if self.state.stopped {
            // The policy's hook might leave the page armed.
            return mem.disarm_hint(page);
        }
        self.base.hint_fault(&mut GuardedMemory { mem, state: &mut self.state }, page, write);
    }

    fn write_fault(&mut self, mem: &mut dyn Memory, page: Page) {
        self.base.write_fault(&mut GuardedMemory { mem, state: &mut self.state }, page);
    }

    fn sample(&mut self, mem: &mut dyn Memory, page: Page, at: Page, write: bool) {
        self.base.sample(&mut GuardedMemory { mem, state: &mut self.state }, page, at, write);
    }

    fn pressure(&mut self, mem: &mut dyn Memory, node: NodeId, tenant: Tenant) {
        self.base.pressure(&mut GuardedMemory { mem, state: &mut self.state }, node, tenant);
    }

    fn work(&mut self, mem: &mut dyn Memory, thread: Thread) -> Next {
        if thread == self.state.thread {
            return Next::At(self.state.check(mem));
        }
        self.base.work(&mut GuardedMemory { mem, state: &mut self.state }, thread)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{PAGES, Step, is_promotion, run, settings};
    use super::super::{Action, Time};

    fn promotions(guard: bool, steps: &[Step]) -> Vec<Time> {
        let mut settings = settings("tpp").unwrap();
        settings.values.insert("guard".into(), guard.to_string());
        let memory = run("tpp", &settings, &[10, 26], steps, /* huge: */ false);
        let promoted = |(time, action): (Time, Action)| is_promotion(&action).then_some(time);
        memory.actions.into_iter().filter_map(promoted).collect()
    }

    /// References to 16 pages, of which 10 fit the fast node.
    fn bouncing(steps: u32) -> impl Iterator<Item = Step> {
        (0..steps).map(|i| Step::Read(8 + i * 7 % 16))
    }

    #[test]
    fn migration_stops_while_pages_bounce() {
        let steps: Vec<_> = (0..PAGES).map(Step::Read).chain(bouncing(20_000)).collect();
        let (free, guarded) = (promotions(false, &steps), promotions(true, &steps));
        assert!(guarded.len() * 4 < free.len(), "{} of {}", guarded.len(), free.len());
    }

    /// After the bouncing, only six of the pages are referenced; they fit the fast node.
    #[test]
    fn migration_restarts_when_accesses_change() {
        let hot = (0..20_000u32).map(|i| Step::Read(i % 6 + 18));
        let steps: Vec<_> = (0..PAGES).map(Step::Read).chain(bouncing(20_000)).chain(hot).collect();
        let all = promotions(true, &steps);
        let before = promotions(true, &steps[..steps.len() - 20_000]).len();
        assert!(all.len() > before, "{} of {}", all.len(), before);
    }
}
