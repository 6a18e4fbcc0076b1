//! Tests of several programs (tenants) on one machine.

use super::super::engine::{Engine, Queue};
use super::super::rows::{Case, Fast};
use super::super::run::{run_alone, set_up};
use super::super::tenants::run_tenants;
use super::copies::{COPY_PAGES as TENANT_PAGES, accesses_and_ends, block, programs};
use super::*;

/// A machine with two tenants and these shares of fast memory.
fn two_tenants(shares: [f64; 2]) -> Hardware {
    let mut hardware = plain_hardware(2);
    let program = hardware.programs[0].clone();
    hardware.programs = (0..2)
        .zip(shares)
        .map(|(index, share)| Program { first: index * TENANT_PAGES, share, ..program.clone() })
        .collect();
    hardware
}

proptest! {
    /// Without a policy, and with unlimited bandwidth, each tenant has the clock, counters and frames that
    /// it has alone.
    #[test]
    fn tenants_do_not_affect_each_other(both in prop::array::uniform2(programs())) {
        let alone = both.each_ref().map(|program| {
            let world = World::new(plain_hardware(2), &[64, 8], TENANT_PAGES);
            let mut engine = without_policy(world, false);
            engine.run_block(&block(&accesses_and_ends(program, 0))).unwrap();
            (engine.world.reached(), *engine.world.counters_of(0), engine.world.used_frames(0))
        });
        let world = World::new(two_tenants([0.0; 2]), &[64, 8], 2 * TENANT_PAGES);
        let mut engine = without_policy(world, false);
        let mut refilled = [false; 2];
        let mut queues = [Queue::default(), Queue::default()];
        while (0..2).any(|tenant| engine.world.ended(tenant).is_none()) {
            engine.run_threads(&mut queues, u64::MAX, &mut |thread, out| {
                out.clear();
                if !std::mem::replace(&mut refilled[thread], true) {
                    *out = block(&accesses_and_ends(&both[thread], 0));
                    out.shift(thread as u32 * TENANT_PAGES);
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

    /// Each access counts for the tenant that made it.
    #[test]
    fn policies_keep_the_invariants_with_several_tenants(
        both in prop::array::uniform2(
            prop::collection::vec((0..TENANT_PAGES, any::<bool>()), 1..300)),
        policy in 0..POLICIES.len(), share: bool,
    ) {
        let name = POLICIES[policy].0;
        let settings = settings(name).unwrap();
        let hardware = two_tenants(if share { [0.25, 0.75] } else { [0.0; 2] });
        let world = World::new(hardware, &[6, 24], 2 * TENANT_PAGES);
        let mut engine = Engine::new(world, |mem| make(name, &settings, mem), false).unwrap();
        let threads = [0, 1].map(|tenant: u32| {
            let first = tenant * TENANT_PAGES;
            let access = |(page, write): &(u32, bool)| Access::new(first + page, *write);
            both[tenant as usize].iter().map(access).collect::<Vec<_>>()
        });
        threads::run_all(&mut engine, &threads);
        for (tenant, accesses) in threads.iter().enumerate() {
            let count = engine.world.counters_of(tenant).accesses;
            prop_assert_eq!(count.iter().flatten().sum::<u64>(), accesses.len() as u64);
        }
    }
}

/// With one program of one phase, `run_tenants` returns the same as `run_alone`.
#[test]
fn one_tenant_has_the_results_of_a_program_alone() {
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

/// With shares of 3:1, two programs that are larger than fast memory end with about these shares of it.
#[test]
fn tenants_end_with_their_shares() {
    const SCALE: f64 = 1.0 / 128.0;
    let programs = ["pointer-chase", "nomad-large"]
        .map(|name| Arc::new(generated(name, &shape(Mix::Write, SCALE)).unwrap()));
    let names = ["autonuma", "tpp", "damon", "nomad", "ssp"];
    let sources = names.map(|name| source(name, SCALE));
    let fast_shares = |shares: Vec<f64>| {
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
    let without_shares = fast_shares(Vec::new());
    let with_shares = fast_shares(vec![3.0, 1.0]);
    for ((name, [first, second]), without) in names.iter().zip(with_shares).zip(without_shares) {
        assert!(
            (first - 0.75).abs() < 0.1 && (second - 0.25).abs() < 0.1,
            "{name}: {first} {second}"
        );
        assert!(without[1] > 0.4, "{name}: {without:?}");
    }
}

/// `antagonist` ends after `gups`, at the bandwidth that it has alone.
#[test]
fn an_ended_tenant_uses_no_bandwidth() {
    const SCALE: f64 = 1.0 / 2048.0;
    let (fast, slow) = (vec![Size::Bytes(32 << 30)], Some(Size::Bytes(64 << 30)));
    let options = Options { fast, slow, ..options_on("ddr4-2socket", SCALE) };
    let last_round_mb_s = |names: &[&str]| {
        let shape = Shape { rounds: 2, ..shape(Mix::Mixed, SCALE) };
        let programs: Vec<_> =
            names.iter().map(|name| Arc::new(generated(name, &shape).unwrap())).collect();
        let rows =
            run(&options, &programs, &[source("none", SCALE)], &[1], &mut |_| Ok(())).unwrap().rows;
        rows.iter().rfind(|row| row.workload == "antagonist").unwrap().bandwidth_mb_s
    };
    let (alone, beside) =
        (last_round_mb_s(&["antagonist"]), last_round_mb_s(&["antagonist", "gups"]));
    assert!((beside / alone - 1.0).abs() < 0.01, "{beside} beside one that ended, {alone} alone");
}
