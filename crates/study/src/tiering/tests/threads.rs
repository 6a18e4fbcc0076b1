//! Tests of programs with several simulated threads.

use super::super::engine::Queue;
use super::*;

/// Run each thread's accesses to their end.
pub(super) fn run_all(engine: &mut Engine, threads: &[Vec<Access>]) {
    let mut queues: Vec<Queue> = threads.iter().map(|_| Queue::default()).collect();
    let mut refilled = vec![false; threads.len()];
    let total = threads.iter().map(Vec::len).sum::<usize>() as u64;
    let mut done = 0;
    // `run_threads` returns when a tenant ends.
    while done < total {
        let more = engine.run_threads(&mut queues, u64::MAX, &mut |thread, block| {
            block.clear();
            if !std::mem::replace(&mut refilled[thread], true) {
                block.accesses.extend_from_slice(&threads[thread]);
            }
            Ok(())
        });
        done += more.unwrap();
    }
    assert_eq!(done, total);
    engine.world.join();
    engine.world.check().unwrap();
    let counts =
        (0..engine.world.tenants()).map(|tenant| engine.world.counters_of(tenant.into()).accesses);
    assert_eq!(counts.flatten().flatten().sum::<u64>(), total);
}

fn parallel(threads: usize) -> Hardware {
    let mut hardware = plain_hardware(2);
    hardware.programs[0].parallel = threads as u32;
    hardware
}

fn accesses(threads: &[Vec<(u32, bool)>]) -> Vec<Vec<Access>> {
    let access = |(page, write): &(u32, bool)| Access::new(*page, *write);
    threads.iter().map(|thread| thread.iter().map(access).collect()).collect()
}

proptest! {
    /// With unlimited bandwidth and without a policy, each thread takes as long as it would alone.
    #[test]
    fn threads_do_not_wait_for_each_other(
        threads in prop::collection::vec(prop::collection::vec((0..PAGES, any::<bool>()), 1..80), 2..6),
    ) {
        let accesses = accesses(&threads);
        let clock = |hardware: Hardware, work: &dyn Fn(&mut Engine)| {
            let world = World::new(hardware, &[8, 64], PAGES);
            let mut engine = without_policy(world, false);
            for page in 0..PAGES {
                engine.allocate(Page::new(page)).unwrap();
            }
            work(&mut engine);
            engine.world.reached()
        };
        let alone = accesses
            .iter()
            .map(|one| clock(plain_hardware(2), &|engine| engine.run(one).unwrap()));
        let slowest = alone.max().unwrap();
        prop_assert_eq!(clock(parallel(accesses.len()), &|engine| run_all(engine, &accesses)), slowest);
    }

    #[test]
    fn policies_keep_the_invariants_with_several_threads(
        threads in prop::collection::vec(prop::collection::vec((0..PAGES, any::<bool>()), 1..300), 2..5),
        policy in 0..POLICIES.len(),
    ) {
        let name = POLICIES[policy].0;
        let settings = settings(name).unwrap();
        let mut world = World::new(parallel(threads.len()), &[8, 64], PAGES);
        world.log = Some(Vec::new());
        let mut engine = Engine::new(world, |mem| make(name, &settings, mem), false).unwrap();
        let accesses = accesses(&threads);
        run_all(&mut engine, &accesses);
        remaps_match_log(&engine.world);
    }
}

/// `normal-rows` on two sockets without a policy: in far memory if `far`, with processor time `work` per row.
fn rows_read(far: bool, work: &str) -> Row {
    let text = include_str!("../../../../../workloads/generated/normal-rows.toml");
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    std::fs::write(file.path(), format!("work = \"{work}\"\n{text}")).unwrap();
    let shape = Shape { rounds: 1, ..shape(Mix::Read, 1.0 / 1024.0) };
    let workload = Arc::new(generated(file.path().to_str().unwrap(), &shape).unwrap());
    let mut options = options_on("ddr4-2socket", 1.0 / 1024.0);
    options.fast = vec![if far { Size::Bytes(1 << 24) } else { Size::Fraction(1.0) }];
    rows(&["none"], &workload, &options).pop().unwrap()
}

/// Sixteen threads reach the bandwidth that equals their demand at the latency under this load.
#[test]
fn bandwidth_of_threads_follows_loaded_latency() {
    let gb_s = |row: &Row| row.bandwidth_mb_s * f64::from(1 << 20) / 1e9;
    let machine = Machine::load("ddr4-2socket", Path::new("")).unwrap();
    let nodes = machine.nodes().unwrap();
    for (far, peak_gb_s) in [(true, 35.2), (false, 101.0)] {
        let node = &nodes[usize::from(far)];
        let way = node.local.read;
        // The 8 pages of a row share one latency.
        let page = way.latency_ps / 8.0 + 4032.0 * way.byte_ps;
        for (work, pause) in [("0ns", 0.0), ("2us", 2e6), ("100us", 1e8)] {
            let found = gb_s(&rows_read(far, work));
            // Demand falls as bandwidth, and with it latency, rises: bisect.
            let (mut low, mut high) = (0.0, peak_gb_s);
            for _ in 0..50 {
                let middle = (low + high) / 2.0;
                let row = 8.0 * page * node.stretch(1.0, middle / peak_gb_s) + pause;
                if 16.0 * 32768e3 / row > middle { low = middle } else { high = middle }
            }
            assert!((found / low - 1.0).abs() < 0.02, "{found} for {low} GB/s with {work}");
        }
    }
}

#[test]
fn a_fault_delays_only_its_thread() {
    let mut hardware = parallel(2);
    hardware.costs.hint_fault = 1e9;
    let world = World::new(hardware, &[64, 64], PAGES);
    let mut engine = without_policy(world, false);
    for page in 0..2 {
        engine.allocate(Page::new(page)).unwrap();
    }
    engine.world.arm_hint(Page::new(0)).unwrap();
    engine.world.take_cost();
    let threads = [vec![Access::new(0, false)], vec![Access::new(1, false); 100]];
    run_all(&mut engine, &threads);
    let access = COSTS.access.ps();
    assert_eq!(engine.world.reached().ps(), (1_000_000_000 + access).max(100 * access));
}
