//! For tests of policies and of implementations of [`Memory`]: its reference implementation, costs and
//! settings at which every mechanism takes effect within a few hundred references, and programs to run.

use proptest::prelude::*;

use super::{Action, Memory, NodeId, Page, Policy, Settings, Time, find};

pub mod conformance;
mod reference;

pub use reference::{Costs, ReferenceMemory};

/// Costs with which copies are slow enough for writes to happen during a copy.
pub const COSTS: Costs = Costs {
    access: Time::from_ps(500_000),
    hint_fault: Time::from_ps(800_000),
    write_fault: Time::from_ps(900_000),
    entry: Time::from_ps(20_000),
    copy: Time::from_ps(1_300_000),
    migrate: Time::from_ps(1_100_000),
    wake: Time::from_ps(1_000_000),
};
/// Duration of [`Step::Sleep`].
pub const SLEEP_TIME: Time = Time::from_ps(50_000_000);
/// Pages of the program that [`steps`] makes.
pub const PAGES: u32 = 24;

/// A step of a program. Page numbers are taken modulo the memory's page limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Load from a page.
    Read(u32),
    /// Store to a page.
    Write(u32),
    /// Release a page.
    Release(u32),
    /// Load from memory that was never written: the kernel's page of zeros.
    Zeros,
    /// Sleep for [`SLEEP_TIME`].
    Sleep,
}

/// Random programs: a hot set that moves, some writes, some released pages (one by one, many at a
/// time, or right after their use), some sleeps.
pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let releases = (0..PAGES, 1..=PAGES)
        .prop_map(|(first, n)| (first..first + n).map(Step::Release).collect::<Vec<_>>());
    let short_lived = (0..PAGES, 1..30u32).prop_map(|(first, n)| {
        let life =
            |page| [Step::Read(page), Step::Write(page), Step::Read(page), Step::Release(page)];
        (first..first + n).flat_map(life).collect()
    });
    let part = prop_oneof![6 => hot_set(), 1 => releases, 1 => short_lived];
    prop::collection::vec(part, 1..10).prop_map(|parts| parts.concat())
}

/// References to a hot set, and a few others.
fn hot_set() -> impl Strategy<Value = Vec<Step>> {
    (0..PAGES, 1..6u32, 1..120usize, 0..=10u32).prop_flat_map(|(at, hot, n, writes)| {
        let step = (0..10u32, 0..hot, 0..PAGES, 0..10u32, 0..100u32).prop_map(
            move |(far, near, any, write, rare)| {
                let page = if far == 0 { any } else { at + near };
                match rare {
                    0 => Step::Sleep,
                    1 => Step::Release(any),
                    2 => Step::Zeros,
                    _ if write < writes => Step::Write(page),
                    _ => Step::Read(page),
                }
            },
        );
        prop::collection::vec(step, n)
    })
}

/// Random programs that use a memory of four huge pages evenly.
pub fn huge_steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0..4 * super::HUGE, 0..50u32).prop_map(|(page, kind)| match kind {
        0 => Step::Release(page),
        1 => Step::Zeros,
        2..25 => Step::Write(page),
        _ => Step::Read(page),
    });
    prop::collection::vec(step, 1..250)
}

/// A program that thrashes: all pages once, so that the first ones fill the fast node; then pages 8 to 23
/// repeatedly. Of ten references, `writes` are stores.
pub fn thrashing(writes: u32) -> Vec<Step> {
    let hot = (0..6000u32).map(|i| (8 + i * 7 % 16, i * 13 % 10 < writes));
    let hot = hot.map(|(page, write)| if write { Step::Write(page) } else { Step::Read(page) });
    (0..PAGES).map(Step::Read).chain(hot).collect()
}

/// Settings with which every mechanism takes effect within a few hundred references.
///
/// # Errors
/// No such policy.
pub fn settings(policy: &str) -> nearfar_trace::Result<Settings> {
    let knobs = find(policy)?.all_knobs();
    let values = knobs.iter().filter_map(|knob| Some((knob.name.into(), knob.in_tests?.into())));
    Ok(Settings { values: values.collect(), scale: 1.0 })
}

/// [`settings`], and a variant of them for each choice of each knob.
///
/// # Errors
/// No such policy.
pub fn all_settings(policy: &str) -> nearfar_trace::Result<Vec<Settings>> {
    let mut all = vec![settings(policy)?];
    for knob in find(policy)?.all_knobs() {
        for choice in knob.choices {
            let mut settings = settings(policy)?;
            settings.values.insert(knob.name.into(), (*choice).into());
            all.push(settings);
        }
    }
    Ok(all)
}

/// Run `steps` under a policy in `memory`, and check all invariants after each.
///
/// # Panics
/// A read that does not return the last write, or an invariant that does not hold.
pub fn drive(memory: &mut ReferenceMemory, policy: &mut dyn Policy, steps: &[Step]) {
    let pages = memory.page_limit();
    for (index, step) in steps.iter().enumerate() {
        let done = match *step {
            Step::Read(page) => memory.access(policy, Page::new(page % pages), false),
            Step::Write(page) => memory.access(policy, Page::new(page % pages), true),
            Step::Release(page) => {
                memory.release(policy, Page::new(page % pages));
                Ok(())
            }
            Step::Zeros => {
                memory.read_zeros(policy);
                Ok(())
            }
            Step::Sleep => {
                memory.sleep(policy, SLEEP_TIME);
                Ok(())
            }
        };
        if let Err(what) = done.and_then(|()| memory.check()) {
            panic!("step {index}, {step:?}: {what}");
        }
    }
}

/// Run `steps` under the policy `name` in a new reference implementation.
///
/// # Panics
/// The settings are refused; or as [`drive`].
pub fn run(
    name: &str,
    settings: &Settings,
    nodes: &[usize],
    steps: &[Step],
    huge: bool,
) -> ReferenceMemory {
    let pages = if huge { 4 * super::HUGE } else { PAGES };
    let mut memory = ReferenceMemory::new(COSTS, nodes, pages, huge);
    let mut policy = memory.start(name, settings).unwrap_or_else(|error| panic!("{error}"));
    drive(&mut memory, &mut *policy, steps);
    memory
}

/// The actions of a policy while a program [thrashes](thrashing).
pub fn thrash(name: &str, writes: u32) -> Vec<Action> {
    let settings = settings(name).unwrap_or_else(|error| panic!("{error}"));
    let memory = run(name, &settings, &[10, 26], &thrashing(writes), /* huge: */ false);
    memory.actions.into_iter().map(|(_, action)| action).collect()
}

/// Whether the action moved a page to the fast node while the program waited.
pub fn is_promotion(action: &Action) -> bool {
    matches!(action, Action::Moved(_, NodeId::FAST))
}

/// Whether the action moved a page, by a copy, to a node other than the fast one.
pub fn is_demotion(action: &Action) -> bool {
    matches!(action, Action::Moved(_, to) if *to != NodeId::FAST)
}
