//! Several programs on one machine.

use super::super::engine::{Engine, Queue};
use super::super::rows::{Case, Fast};
use super::super::run::{run_alone, set_up};
use super::super::tenants::run_tenants;
use super::copies::{block, one, programs};
use super::*;

/// Two programs, each with this number of page numbers.
const EACH: u32 = 8;

fn two(shares: [f64; 2]) -> Hardware {
    let mut hardware = flat(2);
    let program = hardware.programs[0].clone();
    hardware.programs = (0..2)
        .zip(shares)
        .map(|(index, share)| Program { first: index * EACH, share, ..program.clone() })
        .collect();
    hardware
}

proptest! {
    /// Without a policy and without bandwidth to share, a tenant takes as long as it would alone, and
    /// what it frees is its own.
    #[test]
    fn tenants_do_not_wait_for_each_other(both in prop::array::uniform2(programs())) {
        let alone = both.each_ref().map(|program| {
            let mut engine = without_policy(World::new(flat(2), &[64, 8], EACH), false);
            engine.run_block(&block(&one(program, 0))).unwrap();
            (engine.world.reached(), *engine.world.counters(), engine.world.used_frames(0))
        });
        let mut engine = without_policy(World::new(two([0.0; 2]), &[64, 8], 2 * EACH), false);
        let mut given = [false; 2];
        let mut queues = [Queue::default(), Queue::default()];
        while (0..2).any(|tenant| engine.world.ended(tenant).is_none()) {
            engine.run_threads(&mut queues, u64::MAX, &mut |thread, out| {
                out.clear();
                if !std::mem::replace(&mut given[thread], true) {
                    *out = block(&one(&both[thread], 0));
                    out.shift(thread as u32 * EACH);
                }
                Ok(())
            }).unwrap();
        }
        prop_assert_eq!(engine.world.check(), Ok(()));
        for (tenant, (clock, counters, used)) in alone.into_iter().enumerate() {
            prop_assert_eq!(engine.world.clock_of(tenant), clock);
            prop_assert_eq!(*engine.world.counters_of(tenant), counters);
            prop_assert_eq!(engine.world.used_frames(tenant), used);
        }
    }

    /// Every policy keeps to its contract, and the tenants' counters add up to the machine's.
    #[test]
    fn policies_run_with_tenants(
        both in prop::array::uniform2(prop::collection::vec((0..EACH, any::<bool>()), 1..300)),
        policy in 0..POLICIES.len(), share: bool,
    ) {
        let name = POLICIES[policy].0;
        let settings = settings(name).unwrap();
        let hardware = two(if share { [0.25, 0.75] } else { [0.0; 2] });
        let world = World::new(hardware, &[6, 24], 2 * EACH);
        let mut engine = Engine::new(world, |mem| make(name, &settings, mem), false).unwrap();
        let threads = [0, 1].map(|tenant: u32| {
            let access = |(page, write): &(u32, bool)| Access::new(tenant * EACH + page, *write);
            both[tenant as usize].iter().map(access).collect::<Vec<_>>()
        });
        threads::run_all(&mut engine, &threads);
        for (tenant, accesses) in threads.iter().enumerate() {
            let count = engine.world.counters_of(tenant).accesses;
            prop_assert_eq!(count.iter().flatten().sum::<u64>(), accesses.len() as u64);
        }
    }
}

/// A tenant that is alone is what a program is that is run alone, up to the end of its first phase, when
/// its threads do not wait for each other.
#[test]
fn one_tenant_is_the_program() {
    let scale = 1.0 / 2048.0;
    let programs = [Arc::new(
        generated("normal-rows", &Shape { rounds: 1, ..shape(Mix::Read, scale) }).unwrap(),
    )];
    let options = options_on("ddr4-2socket", scale);
    let frames = options.frames(programs[0].resident, Some(Size::Bytes(16 << 30))).unwrap();
    let fast = Fast { bytes: frames[0] * 4096, fraction: None, frames };
    for name in ["none", "autonuma", "nomad", "memtis", "oracle"] {
        let source = source(name, scale);
        let case = Case { options: &options, fast: &fast, source: &source, seed: 1 };
        let (mut engine, _) = set_up(&case, &programs).unwrap();
        let expected = run_alone(&case, &mut engine, &programs[0], &mut |_| Ok(())).unwrap();
        let (mut engine, firsts) = set_up(&case, &programs).unwrap();
        let found = run_tenants(&case, &mut engine, &programs, &firsts, &mut |_| Ok(())).unwrap();
        assert_eq!(found, expected, "{name}");
    }
}

/// Two programs that both use more memory than is fast end with about their shares of it.
#[test]
fn shares_are_kept() {
    const SCALE: f64 = 1.0 / 64.0;
    let programs = ["pointer-chase", "nomad-large"]
        .map(|name| Arc::new(generated(name, &shape(Mix::Write, SCALE)).unwrap()));
    let names = ["autonuma", "tpp", "damon", "nomad", "ssp"];
    let sources = names.map(|name| source(name, SCALE));
    let held = |shares: Vec<f64>| {
        let slow = Some(Size::Bytes(64 << 30));
        let options = Options { shares, slow, ..options(SCALE) };
        let rows = run(&options, &programs, &sources, &[1], &mut |_| Ok(())).unwrap().rows;
        names.map(|name| {
            ["pointer-chase", "nomad-large"].map(|workload| {
                let own = |row: &&Row| row.policy == name && row.workload == workload;
                let last = rows.iter().rfind(own).unwrap();
                (last.fast_pages * 4096) as f64 / last.fast_node_bytes as f64
            })
        })
    };
    let unfair = held(Vec::new());
    for ((name, [first, second]), without) in names.iter().zip(held(vec![3.0, 1.0])).zip(unfair) {
        assert!(
            (first - 0.75).abs() < 0.1 && (second - 0.25).abs() < 0.1,
            "{name}: {first} {second}"
        );
        assert!(without[1] > 0.4, "{name}: {without:?}");
    }
}

/// Threads of a program that has ended slow nobody.
#[test]
fn an_ended_tenant_leaves_its_bandwidth_to_others() {
    const SCALE: f64 = 1.0 / 2048.0;
    let (fast, slow) = (vec![Size::Bytes(32 << 30)], Some(Size::Bytes(64 << 30)));
    let options = Options { fast, slow, ..options_on("ddr4-2socket", SCALE) };
    let last = |names: &[&str]| {
        let shape = Shape { rounds: 2, ..shape(Mix::Mixed, SCALE) };
        let programs: Vec<_> =
            names.iter().map(|name| Arc::new(generated(name, &shape).unwrap())).collect();
        let rows =
            run(&options, &programs, &[source("none", SCALE)], &[1], &mut |_| Ok(())).unwrap().rows;
        rows.iter().rfind(|row| row.workload == "antagonist").unwrap().bandwidth_mb_s
    };
    let (alone, beside) = (last(&["antagonist"]), last(&["antagonist", "gups"]));
    assert!((beside / alone - 1.0).abs() < 0.01, "{beside} beside one that ended, {alone} alone");
}
