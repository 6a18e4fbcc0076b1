//! Tests of the simulator: policy actions against the reference implementation, invariants, known results.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use nearfar_hardware::Machine;
use nearfar_hardware::machine::NodeKind;
use nearfar_hardware::node::{Direction, KernelCosts, LINE, NodeModel, View};
use nearfar_kernel::tiering::testing::{
    COSTS, PAGES, ReferenceMemory, SLEEP_TIME, Step, all_settings, drive, huge_steps, settings,
    steps,
};
use nearfar_kernel::tiering::{
    Action, HUGE, Made, Memory, NodeId, POLICIES, Page, Settings, Tenant, Time, make,
};
use proptest::prelude::*;

use super::counters::{Hardware, Program};
use super::engine::{Access, Block, Engine};
use super::run::{PolicySource, Row, run};
use super::workload::{Mix, Prepared, Shape, generated};
use super::world::World;
use super::*;
use nearfar_schema::units::MemorySize as Size;

/// Hardware with the reference implementation's costs: unlimited bandwidth, no TLB.
fn plain_hardware(nodes: usize) -> Hardware {
    let ps = |time: Time| time.ps() as f64;
    let way = Direction {
        latency_ps: ps(COSTS.access),
        byte_ps: ps(COSTS.copy) / 4096.0,
        busy_ps: 0.0,
        random_busy_ps: 0.0,
    };
    let local = View { read: way, write: way, sequential_ps: way.latency_ps, mixed: None };
    let node = |name| NodeModel {
        name: format!("{name}"),
        kind: NodeKind::Dram,
        bytes: 0,
        reserved: 0,
        access_unit: LINE,
        modules: 1,
        local,
        remote: None,
        loaded: None,
    };
    Hardware {
        nodes: (0..nodes).map(node).collect(),
        costs: KernelCosts {
            hint_fault: ps(COSTS.hint_fault),
            write_protect_fault: ps(COSTS.write_fault),
            context_switch: ps(COSTS.wake),
            exception: 0.0,
            shootdown: 0.0,
            page_migration: ps(COSTS.migrate),
            page_scan: ps(COSTS.entry),
            page_walk: 0.0,
            sample: 0.0,
        },
        first_touch: 0.0,
        tlb_entries: 0,
        programs: vec![Program {
            first: 0,
            share: 0.0,
            threads: 1,
            access_bytes: 64,
            parallel: 1,
            overlap: 1.0,
            work: 0.0,
        }],
    }
}

mod contract;
mod copies;
mod lives;
mod placement;
mod tenants;
mod threads;

/// Run `steps` in the reference and in the simulator: their actions and times must be equal.
fn same_actions(name: &str, settings: &Settings, nodes: &[usize], steps: &[Step], huge: bool) {
    let pages = if huge { 4 * HUGE } else { PAGES };
    let mut reference = ReferenceMemory::new(COSTS, nodes, pages, huge);
    let mut policy = reference.start(name, settings).unwrap();
    let frames: Vec<u64> = nodes.iter().map(|n| *n as u64).collect();
    let mut world = World::new(plain_hardware(nodes.len()), &frames, pages);
    world.log = Some(Vec::new());
    let mut engine = Engine::new(world, |mem| make(name, settings, mem), huge).unwrap();
    // Consecutive accesses are one call of the engine; that must make no difference.
    for part in
        steps.chunk_by(|one, next| access(*one, pages).is_some() && access(*next, pages).is_some())
    {
        drive(&mut reference, &mut *policy, part);
        match part {
            [Step::Sleep] => engine.sleep(SLEEP_TIME),
            [Step::Release(page)] => engine.release(Page::new(page % pages)),
            _ => {
                let accesses: Vec<_> =
                    part.iter().filter_map(|step| access(*step, pages)).collect();
                engine.run(&accesses).unwrap();
            }
        }
        engine.world.check().unwrap();
        let log = engine.world.log.as_deref().unwrap_or_default();
        let differs = reference.actions.iter().zip(log).position(|(a, b)| a != b);
        if let Some(at) = differs {
            panic!("{name}: action {at}: {:?}, simulated {:?}", reference.actions[at], log[at]);
        }
        assert_eq!(reference.actions.len(), log.len(), "{name}");
        assert_eq!(reference.clock(), engine.world.reached(), "{name}");
        same_state(&reference, &engine.world);
    }
    remaps_match_log(&engine.world);
}

/// The access of a step, if it is one, in a memory of `pages`.
fn access(step: Step, pages: u32) -> Option<Access> {
    match step {
        Step::Read(page) => Some(Access::new(page % pages, false)),
        Step::Write(page) => Some(Access::new(page % pages, true)),
        Step::Zeros => Some(Access::new(Access::ZEROS.number(), false)),
        Step::Release(_) | Step::Sleep => None,
    }
}

/// All queries of [`Memory`] have the same results in both.
fn same_state(one: &dyn Memory, other: &dyn Memory) {
    for node in NodeId::all(one.nodes()) {
        let state = |m: &dyn Memory| {
            let tenant = (m.used(Tenant::ONLY, node), m.limit(Tenant::ONLY, node));
            (m.capacity(node), m.free(node), m.loaded_latency(node), tenant)
        };
        assert_eq!(state(one), state(other), "{node:?}");
    }
    for page in (0..one.page_limit()).map(Page::new) {
        let state = |m: &dyn Memory| (m.mapped(page), m.next_mapped(page), m.tenant_of(page));
        assert_eq!(state(one), state(other), "{page:?}");
        if one.mapped(page) {
            let state = |m: &dyn Memory| {
                (
                    (m.span(page), m.node_of(page), m.shadow_of(page)),
                    (m.accessed(page), m.dirty(page), m.hint_armed(page), m.write_protected(page)),
                )
            };
            assert_eq!(state(one), state(other), "{page:?}");
        }
    }
}

/// Only without huge pages, because counters count each as 512 pages.
fn remaps_match_log(world: &World) {
    let log = world.log.as_deref().unwrap_or_default();
    let count = world.counters_of(0);
    let remapped = log.iter().filter(|(_, action)| matches!(action, Action::Remapped(_))).count();
    let base_pages = world.huge.is_empty();
    assert!(!base_pages || count.demotions_remapped == remapped as u64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn actions_match_the_reference(steps in steps(), three: bool) {
        let nodes: &[usize] = if three { &[8, 12, 24] } else { &[10, 26] };
        for (name, _) in POLICIES {
            for settings in all_settings(name).unwrap() {
                same_actions(name, &settings, nodes, &steps, false);
            }
        }
    }

    #[test]
    fn actions_on_huge_pages_match_the_reference(steps in huge_steps()) {
        for (name, _) in POLICIES {
            let settings = settings(name).unwrap();
            same_actions(name, &settings, &[2 * HUGE as usize, 5 * HUGE as usize], &steps, true);
        }
    }

    /// On a machine with a TLB, traffic and interrupts.
    #[test]
    fn frames_are_conserved(steps in steps(), which in 0..POLICIES.len(), huge: bool) {
        let name = POLICIES[which].0;
        let settings = settings(name).unwrap();
        let options = options(1.0);
        let (mut hardware, _) = options.hardware(std::slice::from_ref(&*SMALL)).unwrap();
        (hardware.tlb_entries, hardware.programs[0].threads) = (8, 2);
        let unit = if huge { u64::from(HUGE) } else { 1 };
        let pages = 24 * unit as u32;
        let world = World::new(hardware, &[10 * unit, 26 * unit], pages);
        let mut engine = Engine::new(world, |mem| make(name, &settings, mem), huge).unwrap();
        for page in (0..pages).step_by(unit as usize) {
            engine.allocate(Page::new(page)).unwrap();
        }
        let fast = |world: &World| {
            let on = |page: &u32| {
                let head = world.mapping_of(Page::new(*page));
                world.mapped(head) && world.node_of(head) == NodeId::FAST
            };
            (0..pages).filter(on).count() as i64
        };
        let began = fast(&engine.world);
        for part in steps.chunks(31) {
            let part: Vec<_> = part
                .iter()
                .filter_map(|step| match *step {
                    Step::Zeros => access(*step, pages),
                    step => access(step, PAGES).map(|access| {
                        let page = access.page().number();
                        Access::new((page * unit as u32 + page % 3) % pages, access.write())
                    }),
                })
                .collect();
            engine.run(&part).unwrap();
            prop_assert_eq!(engine.world.check(), Ok(()));
            let count = engine.world.counters_of(0);
            let change = count.promotions as i64 - count.demotions as i64;
            prop_assert_eq!(fast(&engine.world) - began, change);
        }
    }
}

/// A workload whose operations access whole pages.
static SMALL: LazyLock<Arc<Prepared>> =
    LazyLock::new(|| Arc::new(generated("nomad-small", &shape(Mix::Read, 1.0 / 4096.0)).unwrap()));

fn options(scale: f64) -> Options {
    options_on("cxl-a", scale)
}

fn options_on(machine: &str, scale: f64) -> Options {
    let machine = Machine::load(machine, Path::new("")).unwrap();
    Options { scale, ..Options::new(&machine, 1.0).unwrap() }
}

fn without_policy(world: World, huge: bool) -> Engine {
    Engine::new(world, |mem| make("none", &Settings::default(), mem), huge).unwrap()
}

fn shape(mix: Mix, scale: f64) -> Shape {
    Shape {
        scrambled: true,
        hottest_first: false,
        mix,
        rounds: 2,
        scale,
        huge: false,
        rss_gib: None,
        wss_gib: None,
    }
}

fn source(name: &'static str, scale: f64) -> PolicySource<'static> {
    let settings = Settings { scale, ..Settings::default() };
    let foresees = nearfar_kernel::tiering::find(name).unwrap().foresees;
    let make: super::run::Make<'static> = Box::new(move |mem| make(name, &settings, mem));
    PolicySource { label: name.to_owned(), foresees, make }
}

fn rows(names: &[&'static str], workload: &Arc<Prepared>, options: &Options) -> Vec<Row> {
    let sources: Vec<_> = names.iter().map(|name| source(name, options.scale)).collect();
    run(options, std::slice::from_ref(workload), &sources, &[1], &mut |_| Ok(())).unwrap().rows
}

#[test]
fn no_policy_beats_the_oracle_and_none_moves_no_page() {
    let scale = 1.0 / 256.0;
    let workload = Arc::new(generated("nomad-medium", &shape(Mix::Read, scale)).unwrap());
    let names: Vec<_> = POLICIES.iter().map(|(name, _)| *name).collect();
    let rows = rows(&names, &workload, &options(scale));
    let of = |name: &str, phase: &str| {
        rows.iter().find(|row| row.policy == name && row.phase == phase).unwrap().clone()
    };
    for (name, _) in POLICIES {
        for phase in ["warm-up", "round-1", "round-2"] {
            let (row, bound) = (of(name, phase), of("oracle", phase));
            let (has, most) = (row.fast_hit_ratio, bound.fast_hit_ratio);
            assert!(has <= most, "{name} {phase}: {has} > {most}");
            assert_eq!(row.accesses, workload.phases[0].accesses);
        }
    }
    let still = of("none", "round-2");
    assert_eq!((still.promotions, still.demotions, still.hint_faults), (0, 0, 0));
    // The fast node has 2.5 of 13.5 GiB, whose popular pages are scattered.
    assert!((0.15..0.35).contains(&still.fast_hit_ratio), "{}", still.fast_hit_ratio);
    assert!(of("nomad", "round-2").fast_hit_ratio > still.fast_hit_ratio);
    let read = of("nomad", "round-1");
    assert_eq!(read.shadow_faults, 0, "reads free no shadow");
}

/// NOMAD's benchmark warms up pages that its rounds do not use, if there are any.
#[test]
fn the_warm_up_has_its_own_pages() {
    for (name, apart) in [("nomad-medium", true), ("nomad-large", false)] {
        let workload = Arc::new(generated(name, &shape(Mix::Read, 1.0 / 1024.0)).unwrap());
        let pages = |phase| {
            let (mut source, mut all) = (workload.source(phase, 1, 0).unwrap(), BTreeSet::new());
            let mut block = Block::default();
            source.fill(&mut block, workload.phases[phase].accesses as usize).unwrap();
            all.extend(block.accesses.iter().map(|access| access.page().number()));
            all
        };
        let (warm, round) = (pages(0), pages(1));
        assert_eq!(warm.is_disjoint(&round), apart, "{name}");
        assert_eq!(warm.first().unwrap() < round.first().unwrap(), apart, "{name}");
        assert!(warm.len() > 1000 && round.len() > 1000);
        assert_eq!(round, pages(2), "every round has the same accesses");
    }
}

#[test]
fn latency_and_bandwidth_are_those_of_the_machine_file() {
    let scale = 1.0 / 512.0;
    let workload = Arc::new(generated("nomad-small", &shape(Mix::Read, scale)).unwrap());
    let mut all_fast = options(scale);
    all_fast.fast = vec![Size::Fraction(1.0)];
    all_fast.costs.page_walk = 0.0;
    let row = rows(&["none"], &workload, &all_fast).pop().unwrap();
    assert_eq!(row.fast_hit_ratio, 1.0);
    // 150 ns for the first line, the other 4032 bytes at 12 GB/s.
    assert!(
        (row.mean_latency_ns - (150.0 + 4032.0 / 12.0)).abs() < 0.01,
        "{}",
        row.mean_latency_ns
    );
    let expected = 4096.0 / row.mean_latency_ns * 1e9 / f64::from(1 << 20);
    assert!((row.bandwidth_mb_s - expected).abs() < 0.1);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let scale = 1.0 / 512.0;
    let workload = Arc::new(generated("nomad-large", &shape(Mix::Mixed, scale)).unwrap());
    let run_with = |threads| {
        let mut options = options(scale);
        options.threads = threads;
        let sources = [source("nomad", scale), source("ssp", scale)];
        run(&options, std::slice::from_ref(&workload), &sources, &[1, 2, 3], &mut |_| Ok(()))
            .unwrap()
    };
    let (one, four) = (run_with(1), run_with(4));
    assert_eq!(one, four);
    // Policies, seeds, phases.
    assert_eq!(one.rows.len(), 2 * 3 * 3);
    let labels: BTreeSet<_> = one.series.iter().map(|point| (&point.policy, point.seed)).collect();
    assert_eq!(labels.len(), 6);
    assert!(one.series.iter().all(|point| (0.0..=1.0).contains(&point.fast_hit_ratio)));
}

#[test]
fn invalid_inputs_are_errors_that_name_a_remedy() {
    let scale = 1.0 / 512.0;
    let say = |result: nearfar_trace::Result<_>| match result {
        Ok(()) => String::new(),
        Err(error) => error.to_string(),
    };
    let workload = Arc::new(generated("nomad-medium", &shape(Mix::Read, scale)).unwrap());
    let mut small = options(scale);
    small.slow = Some(Size::Bytes(1 << 30));
    let none = || [source("none", scale)];
    let said =
        say(run(&small, std::slice::from_ref(&workload), &none(), &[1], &mut |_| Ok(()))
            .map(|_| ()));
    assert!(said.contains("frames") && said.contains("--slow"), "{said}");
    let said = say(generated("nomad-tiny", &shape(Mix::Read, 1.0)).map(|_| ()));
    assert!(said.contains("nomad-medium"), "{said}");
    let said = say(generated("nomad-small", &shape(Mix::Read, 1e-9)).map(|_| ()));
    assert!(said.contains("--scale"), "{said}");
    let stop = |_| Err(nearfar_trace::Error::input("here", "enough", ""));
    let stopped =
        run(&options(scale), std::slice::from_ref(&workload), &none(), &[1], &mut { stop });
    assert!(say(stopped.map(|_| ())).contains("enough"));
    assert!(Options::new(&Machine::load("nvme", Path::new("")).unwrap(), 1.0).is_err());
}

#[test]
fn a_page_that_faults_for_ever_is_an_error() {
    #[derive(Debug)]
    struct FaultsForever;
    impl nearfar_kernel::tiering::Policy for FaultsForever {
        fn allocated(&mut self, mem: &mut dyn Memory, page: Page) {
            mem.arm_hint(page).unwrap();
        }
        fn released(&mut self, _: &mut dyn Memory, _: Page, _: u32) {}
        fn hint_fault(&mut self, _: &mut dyn Memory, _: Page, _: bool) {}
    }
    let world = World::new(plain_hardware(2), &[4, 4], 4);
    let faults_forever = |_: &mut dyn Memory| Ok::<Made, _>((Box::new(FaultsForever), Vec::new()));
    let mut engine = Engine::new(world, faults_forever, false).unwrap();
    let said = engine.run(&[Access::new(1, false)]).unwrap_err().to_string();
    assert!(said.contains("fault for ever"), "{said}");
}
