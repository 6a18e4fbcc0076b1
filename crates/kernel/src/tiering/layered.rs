//! Policies layered over a base policy: an external policy, such as one in Python, defines some
//! hooks, and a built-in policy handles the others.

use nearfar_trace::{Error, Result};

use super::nomad::{Nomad, ShadowRule};
use super::none::Never;
use super::{
    Made, Memory, Next, NodeId, Page, Policy, Settings, Tenant, Thread, Time, check, make,
};

macro_rules! hooks {
    ($($constant:ident $name:literal,)*) => {
        impl Hooks {
            /// Names of the hooks: the methods of [`Policy`] and of [`ShadowRule`].
            pub const NAMES: &[&str] = &[$($name),*];
            $(#[doc = concat!("`", $name, "`.")] pub const $constant: Hooks = Hooks(1 << Bit::$constant as u32);)*
        }

        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Bit { $($constant),* }
    };
}

/// A set of hooks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hooks(u16);

hooks! {
    PLACE "place",
    ALLOCATED "allocated",
    RELEASED "released",
    HINT_FAULT "hint_fault",
    WRITE_FAULT "write_fault",
    SAMPLE "sample",
    PRESSURE "pressure",
    WORK "work",
    FORESEE "foresee",
    KEEP_SHADOW "keep_shadow",
    PROMOTED "promoted",
    WRITTEN "written",
    DEMOTING "demoting",
}

impl Hooks {
    /// The hooks of [`ShadowRule`], which NOMAD calls about shadows (old frames of promoted pages).
    pub const RULE: Hooks =
        Hooks(Self::KEEP_SHADOW.0 | Self::PROMOTED.0 | Self::WRITTEN.0 | Self::DEMOTING.0);
    /// The hooks of [`Policy`]: all before `keep_shadow`.
    pub const POLICY: Hooks = Hooks(Self::KEEP_SHADOW.0 - 1);

    /// The hooks for whose names `defined` returns true.
    pub fn named(mut defined: impl FnMut(&'static str) -> bool) -> Self {
        let bits = Self::NAMES.iter().enumerate().filter(|(_, name)| defined(name));
        Self(bits.map(|(bit, _)| 1 << bit).sum())
    }

    /// Whether any of `others` is in the set.
    pub const fn any(self, others: Hooks) -> bool {
        self.0 & others.0 != 0
    }

    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let named = Self::NAMES.iter().enumerate();
        named.filter(move |(bit, _)| self.0 & 1 << bit != 0).map(|(_, name)| *name)
    }

    pub const fn bits(self) -> u16 {
        self.0
    }

    pub const fn of_bits(bits: u16) -> Self {
        Self(bits)
    }
}

/// Properties that a layered policy declares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// The built-in policy for the other hooks; `None` for the defaults of [`Policy`].
    pub base: Option<String>,
    /// The hooks that it defines.
    pub hooks: Hooks,
    /// On the base `nomad`: [`ShadowRule::watch_unshadowed`].
    pub watch_unshadowed: bool,
}

impl Declared {
    /// Check the base, its hooks and the settings.
    ///
    /// # Errors
    /// If the base does not exist, or does not accept the hooks or settings.
    pub fn check(&self, settings: &Settings) -> Result<()> {
        let rules = Hooks(self.hooks.0 & Hooks::RULE.0);
        if rules != Hooks::default() && self.base.as_deref() != Some("nomad") {
            let names: Vec<_> = rules.names().collect();
            return Err(Error::input(
                "policy",
                format!("{} is only called on the base `nomad`", names.join(", ")),
                "set base = \"nomad\" in the class",
            ));
        }
        self.base.as_ref().map_or(Ok(()), |base| check(base, settings).map(|_| ()))
    }
}

/// A started layered policy.
pub struct Started {
    /// Called for the declared hooks only.
    pub hooks: Box<dyn Policy>,
    /// Its threads in order of creation, for which `work` is called.
    pub threads: Vec<Thread>,
    /// First run of each thread that does not start idle.
    pub wakes: Vec<(Thread, Time)>,
}

/// Create a layered policy: first its base, which uses `rule` for shadows if any hook of the rule is
/// declared, then its hooks and threads with `start`.
///
/// # Errors
/// Those of [`Declared::check`], of the base and of `start`.
pub fn layered<R: ShadowRule + 'static>(
    declared: &Declared,
    settings: &Settings,
    mem: &mut dyn Memory,
    rule: R,
    start: impl FnOnce(&mut dyn Memory) -> Result<Started>,
) -> Result<Made> {
    declared.check(settings)?;
    let (base, mut wakes): Made = match &declared.base {
        Some(_) if declared.hooks.any(Hooks::RULE) => Nomad::make(settings, mem, rule)?,
        Some(name) => make(name, settings, mem)?,
        None => (Box::new(Never), Vec::new()),
    };
    let Started { hooks, threads, wakes: more } = start(mem)?;
    wakes.extend(more);
    let threads = threads.into_iter().map(Thread::index).collect();
    Ok((Box::new(Layered { base, hooks, defined: declared.hooks, threads }), wakes))
}

struct Layered {
    base: Box<dyn Policy>,
    hooks: Box<dyn Policy>,
    defined: Hooks,
    /// Threads that are not the base's.
    threads: Vec<usize>,
}

impl Layered {
    fn handler(&mut self, hook: Hooks) -> &mut dyn Policy {
        if self.defined.any(hook) { &mut *self.hooks } else { &mut *self.base }
    }
}

impl Policy for Layered {
    fn place(&mut self, mem: &dyn Memory, page: Page, frames: u32) -> NodeId {
        self.handler(Hooks::PLACE).place(mem, page, frames)
    }
    fn allocated(&mut self, mem: &mut dyn Memory, page: Page) {
        self.handler(Hooks::ALLOCATED).allocated(mem, page);
    }
    fn released(&mut self, mem: &mut dyn Memory, page: Page, span: u32) {
        // The base has its own tables of pages, so it is always notified.
        self.base.released(mem, page, span);
        if self.defined.any(Hooks::RELEASED) {
            self.hooks.released(mem, page, span);
        }
    }
    fn hint_fault(&mut self, mem: &mut dyn Memory, page: Page, write: bool) {
        self.handler(Hooks::HINT_FAULT).hint_fault(mem, page, write);
    }
    fn write_fault(&mut self, mem: &mut dyn Memory, page: Page) {
        self.handler(Hooks::WRITE_FAULT).write_fault(mem, page);
    }
    fn sample(&mut self, mem: &mut dyn Memory, page: Page, at: Page, write: bool) {
        self.handler(Hooks::SAMPLE).sample(mem, page, at, write);
    }
    fn pressure(&mut self, mem: &mut dyn Memory, node: NodeId, tenant: Tenant) {
        self.handler(Hooks::PRESSURE).pressure(mem, node, tenant);
    }
    fn work(&mut self, mem: &mut dyn Memory, thread: Thread) -> Next {
        if !self.threads.contains(&thread.index()) {
            return self.base.work(mem, thread);
        }
        if self.defined.any(Hooks::WORK) { self.hooks.work(mem, thread) } else { Next::Idle }
    }
    fn foresee(&mut self, mem: &mut dyn Memory, counts: &[u32]) {
        self.handler(Hooks::FORESEE).foresee(mem, counts);
    }
}

#[cfg(test)]
mod tests {
    use super::super::nomad::Always;
    use super::super::testing::{COSTS, ReferenceMemory, drive, run, settings, thrashing};
    use super::super::{Action, Context, POLICIES, find};
    use super::*;

    #[test]
    fn a_set_contains_the_named_hooks() {
        let set = Hooks::named(|name| name == "work" || name == "written");
        assert_eq!(set.names().collect::<Vec<_>>(), ["work", "written"]);
        assert!(set.any(Hooks::WORK) && set.any(Hooks::RULE) && !set.any(Hooks::PLACE));
        assert_eq!(Hooks::of_bits(set.bits()), set);
        let both = Hooks::POLICY.names().chain(Hooks::RULE.names());
        assert_eq!(both.collect::<Vec<_>>(), Hooks::NAMES);
    }

    fn over(
        base: Option<&str>,
        settings: &Settings,
        hooks: Hooks,
        start: impl FnOnce(&mut dyn Memory) -> Result<Started>,
    ) -> Vec<(Time, Action)> {
        let mut memory = ReferenceMemory::new(COSTS, &[10, 26], 24, /* huge: */ false);
        let declared = Declared { base: base.map(str::to_owned), hooks, ..Declared::default() };
        let mut policy =
            memory.start_made(|mem| layered(&declared, settings, mem, Always, start)).unwrap();
        drive(&mut memory, &mut *policy, &thrashing(3));
        memory.actions
    }

    /// Without hooks, a layered policy acts as its base; with all hooks, as the policy of the hooks.
    #[test]
    fn a_base_or_hooks_alone_act_as_the_policy_itself() {
        let nothing = |_: &mut dyn Memory| {
            Ok(Started { hooks: Box::new(Never), threads: vec![], wakes: vec![] })
        };
        for (name, _) in POLICIES.iter().filter(|(name, _)| !find(name).unwrap().foresees) {
            let settings = settings(name).unwrap();
            let alone = run(name, &settings, &[10, 26], &thrashing(3), /* huge: */ false).actions;
            assert_eq!(over(Some(name), &settings, Hooks::default(), nothing), alone, "{name}");
            let whole = |mem: &mut dyn Memory| {
                let (hooks, wakes) = make(name, &settings, mem)?;
                // The threads before this one are those of the hooks' policy.
                let count = mem.spawn("none", Context::Kernel).index();
                let threads = (0..count).map(|index| Thread::new(index as u8, "")).collect();
                Ok(Started { hooks, threads, wakes })
            };
            assert_eq!(over(None, &settings, Hooks::POLICY, whole), alone, "{name}");
        }
    }

    #[test]
    fn shadow_rules_require_nomad() {
        let declared =
            Declared { base: Some("tpp".into()), hooks: Hooks::WRITTEN, ..Declared::default() };
        let error = declared.check(&Settings::default()).unwrap_err().to_string();
        assert!(error.contains("written is only called on the base `nomad`"), "{error}");
        assert!(
            Declared { base: Some("nomad".into()), ..declared }.check(&Settings::default()).is_ok()
        );
    }
}
