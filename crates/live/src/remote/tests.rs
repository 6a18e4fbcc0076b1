//! A policy at the other end of a socket has the same results as a local one.

use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use nearfar_kernel::tiering::layered::{Declared, Hooks, Started, layered};
use nearfar_kernel::tiering::nomad::{Always, ShadowRule};
use nearfar_kernel::tiering::none::Never;
use nearfar_kernel::tiering::testing::conformance::{Subject, suite};
use nearfar_kernel::tiering::testing::{self, COSTS, PAGES, ReferenceMemory, Step, all_settings};
use nearfar_kernel::tiering::{
    Action, Capability, Context, DropReason, HUGE, Made, Memory, Next, NodeId, POLICIES, Page,
    Policy, Request, Settings, Tenant, Thread, Time, find,
};
use nearfar_trace::Result;
use proptest::prelude::*;

use super::socket::MAX_MESSAGE;
use super::*;
use crate::tests::{Endless, FullPolicy, make_remote, serve_in_thread};

type Actions = Vec<(Time, Action)>;

/// The reference memory, under a policy at the other end of a socket.
struct RemoteSubject {
    memory: ReferenceMemory,
    policy: Option<Box<dyn Policy>>,
    other_end: Option<JoinHandle<()>>,
}

impl Subject for RemoteSubject {
    fn memory(&self) -> &dyn Memory {
        &self.memory
    }
    fn step(&mut self, step: Step) {
        let policy = self.policy.as_mut().expect("it is there until the end");
        testing::drive(&mut self.memory, &mut **policy, &[step]);
    }
}

impl Drop for RemoteSubject {
    /// A panic at the other end fails the test.
    fn drop(&mut self) {
        drop(self.policy.take());
        let found = self.other_end.take().map(JoinHandle::join);
        if let Some(Err(wrong)) = found.filter(|_| !thread::panicking()) {
            std::panic::resume_unwind(wrong);
        }
    }
}

#[test]
fn a_remote_memory_keeps_to_the_contract() {
    suite(100, |made, seed| {
        let mut memory = reference(false).copying_for(Time::from_ps(seed % 20_000_000));
        if seed.is_multiple_of(3) {
            memory = memory.pinning(seed, Time::from_ps(20_000_000));
        }
        let (ours, other_end) = serve_in_thread(Box::new(FullPolicy::new(made)));
        let settings = Settings::default();
        let policy = memory.start_made(|mem| make(ours, &settings, mem, Endless)).unwrap();
        RemoteSubject { memory, policy: Some(policy), other_end: Some(other_end) }
    });
}

fn reference(huge: bool) -> ReferenceMemory {
    let pages = if huge { 4 * HUGE } else { PAGES };
    let nodes: &[usize] = if huge { &[600, 3000] } else { &[10, 26] };
    ReferenceMemory::new(COSTS, nodes, pages, huge)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    /// Every policy that does not know future references, with every choice of its knobs.
    #[test]
    fn a_remote_policy_decides_as_a_local_one(
        small in testing::steps(),
        large in testing::huge_steps(),
        huge: bool,
    ) {
        let steps = if huge { large } else { small };
        for (name, _) in POLICIES.iter().filter(|(name, _)| !find(name).unwrap().foresees) {
            for settings in all_settings(name).unwrap() {
                let mut memory = reference(huge);
                let mut policy = memory.start(name, &settings).unwrap();
                testing::drive(&mut memory, &mut *policy, &steps);
                let mut other = reference(huge);
                let mut policy = other.start_made(make_remote(name, &settings)).unwrap();
                testing::drive(&mut other, &mut *policy, &steps);
                prop_assert_eq!(&memory.actions, &other.actions, "{}", name);
                prop_assert_eq!(memory.clock(), other.clock(), "{}", name);
            }
        }
    }

    #[test]
    fn every_read_and_action_has_the_result_of_a_local_memory(
        steps in testing::steps(),
        large in testing::huge_steps(),
        huge: bool,
        seed: u64,
        lacks_dirty_bits: bool,
    ) {
        let steps = if huge { large } else { steps };
        let [direct, remote] = [false, true].map(|remote| {
            let mut memory = reference(huge);
            if lacks_dirty_bits {
                memory = memory.lacking(Capability::DirtyBits);
            }
            let answers = Arc::default();
            let source = RandomSource { seed, answers: Arc::clone(&answers), rule: Always };
            let mut policy = memory.start_made(|mem| local_or_remote(remote, source, mem)).unwrap();
            testing::drive(&mut memory, &mut *policy, &steps);
            let answers: &Mutex<Vec<String>> = &answers;
            let answers = std::mem::take(&mut *answers.lock().unwrap());
            (answers, memory.clock(), memory.actions)
        });
        let first = direct.0.iter().zip(&remote.0).find(|(one, other)| one != other);
        prop_assert_eq!(first, None);
        prop_assert_eq!(direct, remote);
    }
}

fn local_or_remote(
    remote: bool,
    mut source: impl PolicySource + Send + 'static,
    mem: &mut dyn Memory,
) -> Result<Made> {
    let settings = Settings::default();
    if remote {
        return make(serve_in_thread(Box::new(source)).0, &settings, mem, Endless);
    }
    layered(&source.declared(), &settings, mem, Always, |mem| source.start(mem))
}

/// A policy that reads and acts at random, and records the results.
struct RandomSource {
    seed: u64,
    answers: Arc<Mutex<Vec<String>>>,
    rule: Always,
}

struct RandomPolicy {
    state: u64,
    answers: Arc<Mutex<Vec<String>>>,
    threads: [Thread; 2],
}

impl PolicySource for RandomSource {
    fn declared(&self) -> Declared {
        let hooks =
            Hooks::named(|name| name != "foresee" && !Hooks::RULE.names().any(|r| r == name));
        Declared { base: None, hooks, watch_unshadowed: false }
    }
    fn start(&mut self, mem: &mut dyn Memory) -> Result<Started> {
        let threads = [mem.spawn("one", Context::Kernel), mem.spawn("two", Context::Program)];
        mem.sample_every(3, 2);
        let now = mem.now();
        let answers = Arc::clone(&self.answers);
        answers.lock().unwrap().push(format!("{threads:?} {now:?}"));
        Ok(Started {
            hooks: Box::new(RandomPolicy { state: self.seed, answers, threads }),
            threads: threads.to_vec(),
            wakes: vec![(threads[0], now.plus(Time::from_ps(5_000_000)))],
        })
    }
    fn rule(&mut self) -> &mut dyn ShadowRule {
        &mut self.rule
    }
}

impl RandomPolicy {
    fn draw(&mut self, below: u32) -> u32 {
        // SplitMix64.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % u64::from(below)) as u32
    }

    /// A random page: `about`, a mapped page, or any.
    fn page(&mut self, mem: &dyn Memory, about: Page) -> Page {
        let any = Page::new(self.draw(mem.page_limit() + 2));
        match self.draw(3) {
            0 => about,
            1 => mem.next_mapped(any).unwrap_or(any),
            _ => any,
        }
    }

    fn look(&mut self, mem: &dyn Memory, about: Page) {
        let page = self.page(mem, about);
        let node = NodeId::new(self.draw(mem.nodes().into()) as u8);
        let answer = match self.draw(14) {
            0 => format!("{:?} {} {}", mem.now(), mem.page_limit(), mem.nodes()),
            1 => format!("{:?}", mem.next_mapped(page)),
            2 => format!("{} {}", mem.capacity(node), mem.free(node)),
            3 => format!("{:?}", mem.loaded_latency(node)),
            4 => format!("{:?}", Capability::ALL.map(|(_, capability)| mem.has(capability))),
            5 => format!("{} {:?}", mem.tenants(), mem.tenant_of(page)),
            6 => format!("{} {:?}", mem.used(Tenant::ONLY, node), mem.limit(Tenant::ONLY, node)),
            7 => format!("{} {:?}", mem.mapped(page), mem.node_of(page)),
            8 => format!("{} {}", mem.span(page), mem.accessed(page)),
            9 => format!("{} {}", mem.dirty(page), mem.hint_armed(page)),
            10 => format!("{} {:?}", mem.write_protected(page), mem.shadow_of(page)),
            _ => {
                let pages: Vec<_> =
                    std::iter::successors(Some(page), |page| mem.next_mapped(page.skip(1)))
                        .take(300)
                        .map(|page| (page, mem.node_of(page), mem.accessed(page)))
                        .collect();
                format!("{pages:?}")
            }
        };
        self.answers.lock().unwrap().push(format!("{page:?} {answer}"));
    }

    fn act(&mut self, mem: &mut dyn Memory, about: Page) {
        let page = self.page(mem, about);
        let node = NodeId::new(self.draw(mem.nodes().into()) as u8);
        let (thread, yes) = (self.threads[self.draw(2) as usize], self.draw(2) == 0);
        let why = if yes { DropReason::Written } else { DropReason::Reclaimed };
        let answer = match self.draw(15) {
            0 => format!("{}", mem.clear_accessed(page)),
            1 => format!("{:?}", mem.arm_hint(page)),
            2 => {
                mem.disarm_hint(page);
                String::new()
            }
            3 => format!("{:?}", mem.write_protect(page)),
            4 => format!("{:?}", mem.unprotect(page)),
            5 => format!("{:?}", mem.move_page(page, node)),
            6 => format!("{:?}", mem.begin_copy(page, node, thread)),
            7..=9 => format!("{:?}", mem.commit_copy(page, yes)),
            10 => format!("{:?}", mem.remap_to_shadow(page)),
            11 => format!("{:?}", mem.drop_shadow(page, why)),
            12 => format!("{:?}", mem.split(page)),
            13 => {
                mem.wake(thread);
                String::new()
            }
            _ => {
                let requests: Vec<_> = (0..self.draw(9))
                    .map(|kind| match kind {
                        0 => Request::WriteProtect(self.page(mem, about)),
                        1 => Request::RemapToShadow(self.page(mem, about)),
                        2 => Request::DropShadow(self.page(mem, about), why),
                        3..=5 => Request::Move(self.page(mem, about), node),
                        _ => Request::ArmHint(self.page(mem, about)),
                    })
                    .collect();
                let mut outcomes = vec![Ok(())];
                mem.batch(&requests, &mut outcomes);
                format!("{requests:?} {outcomes:?}")
            }
        };
        self.answers.lock().unwrap().push(format!("{page:?} {answer}"));
    }

    fn hook(&mut self, mem: &mut dyn Memory, about: Page, what: &str) {
        self.answers.lock().unwrap().push(format!("{what} {about:?} {:?}", mem.now()));
        for _ in 0..self.draw(8) {
            if self.draw(2) == 0 { self.look(mem, about) } else { self.act(mem, about) }
        }
    }
}

impl Policy for RandomPolicy {
    fn place(&mut self, mem: &dyn Memory, page: Page, frames: u32) -> NodeId {
        for _ in 0..self.draw(3) {
            self.look(mem, page);
        }
        let answer = Never.place(mem, page, frames);
        self.answers.lock().unwrap().push(format!("place {page:?} {frames} {answer:?}"));
        answer
    }
    fn allocated(&mut self, mem: &mut dyn Memory, page: Page) {
        self.hook(mem, page, "allocated");
    }
    fn released(&mut self, mem: &mut dyn Memory, page: Page, span: u32) {
        self.hook(mem, page, &format!("released {span}"));
    }
    fn hint_fault(&mut self, mem: &mut dyn Memory, page: Page, write: bool) {
        self.hook(mem, page, &format!("hint fault {write}"));
        mem.disarm_hint(page);
    }
    fn write_fault(&mut self, mem: &mut dyn Memory, page: Page) {
        self.hook(mem, page, "write fault");
        Never.write_fault(mem, page);
    }
    fn sample(&mut self, mem: &mut dyn Memory, page: Page, at: Page, write: bool) {
        self.hook(mem, page, &format!("sample {at:?} {write}"));
    }
    fn pressure(&mut self, mem: &mut dyn Memory, node: NodeId, tenant: Tenant) {
        self.hook(mem, Page::new(0), &format!("pressure {node:?} {tenant:?}"));
    }
    fn work(&mut self, mem: &mut dyn Memory, thread: Thread) -> Next {
        self.hook(mem, Page::new(1), &format!("work {thread:?}"));
        match self.draw(3) {
            0 => Next::Idle,
            1 => Next::At(mem.now().plus(Time::from_ps(3_000_000))),
            _ => Next::At(mem.now().plus(Time::from_ps(90_000_000))),
        }
    }
}

#[test]
fn a_remote_shadow_rule_decides_as_a_local_one() {
    let [direct, remote]: [(Actions, Vec<String>); 2] = [false, true].map(|remote| {
        let mut memory = reference(false);
        let settings = testing::settings("nomad").unwrap();
        let calls = Arc::new(Mutex::new(Vec::new()));
        let rule = Evens(Arc::clone(&calls));
        let declared =
            Declared { base: Some("nomad".into()), hooks: Hooks::RULE, watch_unshadowed: true };
        let nothing = |_: &mut dyn Memory| {
            Ok(Started { hooks: Box::new(Never), threads: vec![], wakes: vec![] })
        };
        let mut policy = memory
            .start_made(|mem| {
                if remote {
                    let source = RuleSource { declared, rule };
                    return make(serve_in_thread(Box::new(source)).0, &settings, mem, Endless);
                }
                layered(&declared, &settings, mem, rule, nothing)
            })
            .unwrap();
        testing::drive(&mut memory, &mut *policy, &testing::thrashing(3));
        let calls = calls.lock().unwrap().clone();
        (memory.actions, calls)
    });
    for what in ["keep", "promoted", "written", "demoting"] {
        assert!(direct.1.iter().any(|calls| calls.starts_with(what)), "{what}");
    }
    assert_eq!(direct, remote);
}

struct RuleSource {
    declared: Declared,
    rule: Evens,
}

impl PolicySource for RuleSource {
    fn declared(&self) -> Declared {
        self.declared.clone()
    }
    fn start(&mut self, _: &mut dyn Memory) -> Result<Started> {
        Ok(Started { hooks: Box::new(Never), threads: vec![], wakes: vec![] })
    }
    fn rule(&mut self) -> &mut dyn ShadowRule {
        &mut self.rule
    }
}

/// Pages with even numbers keep a shadow. Records all calls.
struct Evens(Arc<Mutex<Vec<String>>>);

impl ShadowRule for Evens {
    fn keep_shadow(&mut self, page: Page) -> bool {
        self.0.lock().unwrap().push(format!("keep {page:?}"));
        page.number().is_multiple_of(2)
    }
    fn promoted(&mut self, page: Page) {
        self.0.lock().unwrap().push(format!("promoted {page:?}"));
    }
    fn watch_unshadowed(&self) -> bool {
        true
    }
    fn written(&mut self, page: Page) {
        self.0.lock().unwrap().push(format!("written {page:?}"));
    }
    fn demoting(&mut self, page: Page, dirty: bool) {
        self.0.lock().unwrap().push(format!("demoting {page:?} {dirty}"));
    }
}

#[test]
fn a_missing_capability_is_reported_by_the_program() {
    let mut memory = reference(false).lacking(Capability::Samples);
    let settings = testing::settings("memtis").unwrap();
    let error = memory.start_made(make_remote("memtis", &settings)).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("samples"), "{error}");
}

/// Processes that outlive the run continue without a policy.
#[test]
fn a_policy_without_its_connection_does_nothing() {
    let mut memory = reference(false);
    let settings = testing::settings("tpp").unwrap();
    let (ours, theirs) = Socket::pair().unwrap();
    let kept = ours.try_clone().unwrap();
    let source = FullPolicy::named("tpp", &settings);
    let server = thread::spawn(move || {
        let gone = Arc::default();
        serve(theirs, &mut { source }, &gone, Box::new(|wait| wait()));
        gone.load(std::sync::atomic::Ordering::Acquire)
    });
    let mut policy = memory.start_made(|mem| make(ours, &settings, mem, Endless)).unwrap();
    let steps = testing::thrashing(3);
    let (before, after) = steps.split_at(steps.len() / 2);
    testing::drive(&mut memory, &mut *policy, before);
    assert!(memory.actions.iter().any(|(_, action)| testing::is_promotion(action)));
    kept.shut_down();
    let so_far = memory.actions.len();
    testing::drive(&mut memory, &mut *policy, after);
    assert_eq!(memory.actions.len(), so_far);
    assert!(server.join().unwrap(), "the other end knows");
}

/// A program: its number of waits in progress, and whether it has ended.
struct Waits(Arc<Mutex<i32>>, bool);

impl Program for Waits {
    fn set_waits(&mut self, on: bool) {
        *self.0.lock().unwrap() += if on { 1 } else { -1 };
    }
    fn has_ended(&mut self) -> bool {
        self.1
    }
}

#[test]
fn a_hook_ends_with_its_program() {
    let mut memory = reference(false);
    let (ours, theirs) = Socket::pair().unwrap();
    let launcher = thread::spawn(move || {
        let mut message = vec![0; MAX_MESSAGE];
        assert!(theirs.receive(&mut message).is_some(), "a call, which is not answered");
        assert!(theirs.receive(&mut message).is_none(), "nobody waits any more");
    });
    let waiting = Arc::new(Mutex::new(0));
    let program = Waits(Arc::clone(&waiting), true);
    let settings = Settings::default();
    assert!(memory.start_made(|mem| make(ours, &settings, mem, program)).is_err());
    launcher.join().unwrap();
    assert_eq!(*waiting.lock().unwrap(), 0);
}

/// A policy that fails sends no reply: the caller waits until the program is killed.
#[test]
fn a_failed_policy_is_not_called_again() {
    /// Fails in the third call of its hook.
    struct Fails(Arc<Mutex<u32>>, Always);
    impl PolicySource for Fails {
        fn declared(&self) -> Declared {
            Declared { hooks: Hooks::ALLOCATED, ..Default::default() }
        }
        fn start(&mut self, _: &mut dyn Memory) -> Result<Started> {
            struct Counts(Arc<Mutex<u32>>);
            impl Policy for Counts {
                fn allocated(&mut self, _: &mut dyn Memory, _: Page) {
                    *self.0.lock().unwrap() += 1;
                }
                fn released(&mut self, _: &mut dyn Memory, _: Page, _: u32) {
                    panic!("was not declared");
                }
            }
            Ok(Started {
                hooks: Box::new(Counts(Arc::clone(&self.0))),
                threads: vec![],
                wakes: vec![],
            })
        }
        fn rule(&mut self) -> &mut dyn ShadowRule {
            &mut self.1
        }
        fn failed(&self) -> bool {
            *self.0.lock().unwrap() == 3
        }
    }
    let (ours, theirs) = Socket::pair().unwrap();
    let (waiting, kept) = (Arc::new(Mutex::new(0)), theirs.try_clone().unwrap());
    let waits = Waits(Arc::clone(&waiting), false);
    let program = thread::spawn(move || {
        let mut memory = reference(false);
        let settings = Settings::default();
        let mut policy = memory.start_made(|mem| make(ours, &settings, mem, waits)).unwrap();
        let steps: Vec<_> =
            (0..5).flat_map(|page| [Step::Read(page), Step::Release(page)]).collect();
        testing::drive(&mut memory, &mut *policy, &steps);
    });
    let (calls, gone) = (Arc::new(Mutex::new(0)), Arc::default());
    serve(theirs, &mut Fails(Arc::clone(&calls), Always), &gone, Box::new(|wait| wait()));
    assert_eq!(*calls.lock().unwrap(), 3);
    assert!(!gone.load(std::sync::atomic::Ordering::Acquire), "the program waits");
    kept.shut_down();
    program.join().unwrap();
    assert_eq!(*waiting.lock().unwrap(), 0);
    assert_eq!(*calls.lock().unwrap(), 3);
}
