//! Tests of the `numa` study against papers, closed forms and counts by hand.

use std::path::Path;

use nearfar_hardware::{Machine, Topology};
use nearfar_kernel::placement::{Allocator, MODES, Policy, mode};

use nearfar_trace::{Kind, Reader, Record};

use crate::paging::tests::store;

use super::{
    AllocOptions, AllocRow, Guest, Load, PairOptions, RunRow, Stream, alloc, clear_page, pair, run,
};

fn topology(name: &str) -> Topology {
    Machine::load(name, Path::new("")).unwrap().topology().unwrap()
}

fn options(allocator: Allocator) -> AllocOptions {
    let policy = Policy::default();
    AllocOptions { allocator, policy, from: 0, threads: 1, dirty_cache: true, all_modules: false }
}

/// An allocation as in paper 004.
fn paper(mode_name: &str, gib: u64) -> AllocRow {
    let mode = mode(mode_name).unwrap();
    alloc(&topology("optane-4node"), mode, gib << 30, &options(Allocator::Vmalloc)).unwrap().row
}

#[test]
fn the_slowest_part_determines_the_time_of_a_page() {
    let topology = topology("optane-4node");
    let with = |mode_name: &str, index: usize, share, change: &dyn Fn(&mut AllocOptions)| {
        let memories = mode(mode_name).unwrap().memories(&topology).unwrap();
        let mut options = options(Allocator::Vmalloc);
        change(&mut options);
        clear_page(&topology, &memories[index], share, &options).unwrap()
    };
    let of = |mode_name: &str, index: usize, dirty_cache| {
        with(mode_name, index, 1.0, &|o| o.dirty_cache = dirty_cache)
    };
    let near = |found: f64, stated: f64| assert!((found - stated).abs() < 1e-6, "{found} {stated}");
    // By hand: 219 ns of kernel and 64 lines of 101 ns, ten at a time.
    near(of("alius", 0, true).ns(), 219.0 + 6.4 * 101.0);
    near(of("alius", 2, true).ns(), 219.0 + 6.4 * 135.0);
    // One module at 2.3 GB/s; 1 GB/s from the other socket.
    near(of("alius", 4, true).ns(), 4096.0 / 2.3);
    near(of("alius", 6, true).ns(), 4096.0);
    // A dirty miss: three accesses to DRAM, a load and a store to the persistent module.
    let five = 3.0 * 4096.0 / 15.0 + 4096.0 / 7.6 + 4096.0 / 2.3;
    near(of("memory-mode", 0, true).ns(), five);
    assert_eq!(of("memory-mode", 0, true).bound_by(), "medium");
    // Clean lines are not written back, so the core is slower than the medium.
    near(of("memory-mode", 0, false).ns(), 219.0 + 6.4 * (101.0 + 169.0));
    assert_eq!(of("memory-mode", 2, true).bound_by(), "link");
    // Three modules of one node, or six of two interleaved nodes: one core is slower than the modules,
    // 20 cores are faster.
    let all = |mode_name: &str, index, share, threads| {
        with(mode_name, index, share, &move |o| (o.all_modules, o.threads) = (true, threads))
    };
    let cores = |share, threads| all("alius", 4, share, threads);
    near(cores(1.0, 1).ns(), 219.0 + 6.4 * 169.0);
    near(cores(1.0, 20).ns(), 4096.0 / 6.9);
    near(cores(0.5, 20).ns(), 4096.0 / 13.8);
    near(all("memory-mode", 0, 1.0, 1).ns(), 219.0 + 6.4 * (101.0 + 169.0));
    near(all("memory-mode", 0, 1.0, 20).ns(), five / 3.0);
}

#[test]
fn interleaving_over_more_modules_clears_faster() {
    // A third of the paper's bandwidth: one module per node, so that the medium can be the slowest.
    let mut topology = topology("optane-4node");
    for node in &mut topology.nodes {
        for way in [&mut node.local.write.busy_ps, &mut node.local.read.busy_ps] {
            *way *= 3.0;
        }
    }
    let page_ns = |nodes: &[usize], all_modules, threads| {
        let mut options = options(Allocator::User);
        options.policy.nodes = nodes.to_vec();
        (options.all_modules, options.threads) = (all_modules, threads);
        let size = 64 << 30;
        let found = alloc(&topology, mode("interleave").unwrap(), size, &options).unwrap();
        let on_pmem = |n: &&super::Landed| n.bytes > 0 && n.node >= 4;
        let landed = found.landed.iter().find(on_pmem).unwrap();
        (landed.page_ns.round(), landed.bound_by)
    };
    assert_eq!(page_ns(&[4], true, 1), (1781.0, "medium"));
    assert_eq!(page_ns(&[4, 5], true, 1), (1301.0, "core"));
    assert_eq!(page_ns(&[4, 5], true, 8), (890.0, "medium"));
    // Half of the pages are in DRAM; the module drains while the core clears these.
    assert_eq!(page_ns(&[0, 4], true, 1), (1301.0, "core"));
    // Without `all_modules`, one core gains nothing from a second module; several cores do.
    assert_eq!(page_ns(&[4, 5], false, 1), page_ns(&[4], false, 1));
    assert_eq!(page_ns(&[4], false, 8).0, (4096.0f64 / 2.3).round());
    assert_eq!(page_ns(&[4, 5], false, 8).0, (4096.0f64 / 4.6).round());
}

#[test]
fn durations_match_table_2_of_paper_004() {
    // Seconds by GiB, each within 10 %, the mean error below 5 %.
    let mut errors = Vec::new();
    for (mode_name, cells) in [
        ("memory-mode", [64.74, 581.29, 847.93, 1805.33].as_slice()),
        ("alius", &[19.12, 258.19, 383.88, 911.55, 2005.21]),
    ] {
        for (gib, published) in [80, 700, 1000, 2000, 3000].into_iter().zip(cells) {
            let error = paper(mode_name, gib).seconds.unwrap() / published - 1.0;
            assert!(error.abs() < 0.10, "{mode_name} {gib}: {error}");
            errors.push(error.abs());
        }
    }
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    assert!(errors.len() == 9 && mean < 0.05, "{mean}");
    let row = paper("memory-mode", 3000);
    assert!(!row.possible && row.seconds.is_none());
    assert!(row.why_not.unwrap().starts_with("needs 3000.0 GiB and 11.7 GiB of tables"));
}

#[test]
fn every_page_is_accounted_for() {
    for name in ["optane-4node", "cxl-2socket", "laptop"] {
        let topology = topology(name);
        for mode in MODES {
            for allocator in [Allocator::User, Allocator::Vmalloc] {
                let Ok(memories) = mode.memories(&topology) else { continue };
                let before: u64 = memories.iter().map(|m| m.free * 4096).sum();
                for gib in [1u64, 50, 400, 4000] {
                    let found = alloc(&topology, *mode, gib << 30, &options(allocator)).unwrap();
                    let row = found.row;
                    let sum =
                        |of: fn(&super::Landed) -> u64| found.landed.iter().map(of).sum::<u64>();
                    let (data, tables) = (sum(|l| l.bytes), sum(|l| l.tables_bytes));
                    assert_eq!(before, data + tables + sum(|l| l.free_bytes));
                    let places = row.local_dram_bytes
                        + row.remote_dram_bytes
                        + row.local_far_bytes
                        + row.remote_far_bytes;
                    assert_eq!(places, data);
                    assert_eq!(row.possible, row.why_not.is_none());
                    assert_eq!(row.possible, row.seconds.is_some());
                    assert!(row.possible || row.note.is_none());
                    if row.possible {
                        assert_eq!(data, gib << 30);
                    }
                }
            }
        }
    }
}

#[test]
fn threads_speed_up_and_remote_modules_slow_down_an_allocation() {
    let topology = topology("optane-4node");
    let mut many = options(Allocator::User);
    let time = |options: &AllocOptions| {
        let row = alloc(&topology, mode("kmem-dax").unwrap(), 100 << 30, options).unwrap().row;
        assert_eq!(row.local_far_bytes, 100 << 30);
        row.seconds.unwrap()
    };
    many.policy.nodes = vec![4];
    for all_modules in [true, false] {
        (many.all_modules, many.threads) = (all_modules, 1);
        let one = time(&many);
        many.threads = 3;
        assert!(time(&many) < one / 2.0);
    }
    // The time per GiB rises from local to remote DRAM, local modules and remote modules.
    let at = |gib| paper("alius", gib).seconds.unwrap();
    let slope = |gib| at(gib + 1) - at(gib);
    assert!(slope(40) < slope(250) && slope(250) < slope(1000) && slope(1000) < slope(2500));
}

#[test]
fn vmalloc_notes_the_nodes_that_only_a_program_can_use() {
    let topology = topology("optane-4node");
    let note = |mode_name: &str, allocator, nodes: &[usize], gib: u64| {
        let mut options = options(allocator);
        options.policy.nodes = nodes.to_vec();
        alloc(&topology, mode(mode_name).unwrap(), gib << 30, &options).unwrap().row.note
    };
    let weighted = |allocator, nodes: &[usize]| note("weighted-interleave", allocator, nodes, 80);
    let said = weighted(Allocator::Vmalloc, &[0, 4]).unwrap();
    assert!(said.starts_with("none of it is on pmem4: vmalloc"), "{said}");
    assert!(weighted(Allocator::User, &[0, 4]).is_none());
    assert!(weighted(Allocator::Vmalloc, &[0, 1]).is_none());
    // A program also uses DRAM first.
    assert!(note("kmem-dax", Allocator::Vmalloc, &[], 80).is_none());
}

#[test]
fn invalid_options_are_refused() {
    let topology = topology("optane-4node");
    let interleave = mode("interleave").unwrap();
    let refused = |change: &dyn Fn(&mut AllocOptions)| {
        let mut options = options(Allocator::User);
        change(&mut options);
        alloc(&topology, interleave, 1 << 30, &options).unwrap_err().to_string()
    };
    assert!(refused(&|o| o.from = 4).starts_with("--from: node 4 has no cores; choose from 0, 1"));
    assert!(refused(&|o| o.from = 99).starts_with("--from"));
    assert!(refused(&|o| o.policy.nodes = vec![9]).starts_with("--nodes: no node 9"));
    assert!(refused(&|o| o.policy.nodes = vec![4, 0, 4]).contains("node 4 is named twice"));
    assert!(refused(&|o| o.policy.weights = vec![1]).starts_with("--weights: 1 weights for 8"));
    let error = alloc(&self::topology("cxl-a"), interleave, 1 << 30, &options(Allocator::User));
    assert!(error.unwrap_err().to_string().contains("page_allocation"));
}

fn stream(mode_name: &str, stream: Stream, change: &dyn Fn(&mut AllocOptions)) -> RunRow {
    let mut options = options(Allocator::User);
    change(&mut options);
    let topology = topology("optane-4node");
    let mode = mode(mode_name).unwrap();
    run(&topology, mode, &Load::Stream(stream), &options, None, &mut |_| Ok(())).unwrap().row
}

#[test]
fn enough_threads_reach_the_bandwidths_of_paper_004() {
    // Table 1: GB/s of a module for loads or stores alone.
    for (node, figures) in [(4, [7.6, 2.4, 2.3, 0.5]), (0, [15.0; 4])] {
        for (figure, (writes, random)) in
            figures.into_iter().zip([(0.0, false), (0.0, true), (1.0, false), (1.0, true)])
        {
            let row = stream("kmem-dax", Stream { bytes: 1 << 30, random, writes }, &|o| {
                o.policy.nodes = vec![node];
                o.threads = 24;
            });
            let module = row.gb_per_second.unwrap() / 3.0;
            assert!((module / figure - 1.0).abs() < 1e-9, "{node} {writes} {random}: {module}");
            assert_eq!(row.store_share, writes);
        }
    }
}

#[test]
fn interleaving_helps_many_threads_and_not_one() {
    let load = Stream { bytes: 10 << 30, random: false, writes: 0.0 };
    let speed = |mode_name, threads| {
        let both = |o: &mut AllocOptions| {
            o.threads = threads;
            o.policy.nodes = vec![0, 4];
        };
        stream(mode_name, load, &both).gb_per_second.unwrap()
    };
    // One thread has the mean latency of its pages (weights 2 to 1), many have the sum of bandwidths.
    assert!(speed("weighted-interleave", 1) < speed("kmem-dax", 1));
    let sum = speed("weighted-interleave", 64);
    assert!((sum / (45.0 + 22.8) - 1.0).abs() < 0.02, "{sum}");
    let loaded = Stream { writes: 0.3, bytes: 4000 << 30, ..load };
    assert!(!stream("alius", loaded, &|_| ()).possible);
}

fn traced(accesses: &[(u64, bool)]) -> (tempfile::TempDir, Reader) {
    let folder = tempfile::tempdir().unwrap();
    let record = |(line, write): &(u64, bool)| {
        let kind = if *write { Kind::Store } else { Kind::Load };
        Record { addr: line * 64, kind, size: 8, thread: 0, instr: 1 }
    };
    let reader = store(&accesses.iter().map(record).collect::<Vec<_>>(), folder.path());
    (folder, reader)
}

#[test]
fn a_trace_is_counted_access_by_access() {
    // Memory mode with 64 KiB of DRAM per node: a cache of sixteen pages.
    let mut small = topology("optane-4node");
    for (node, cpus) in small.nodes.iter_mut().zip(&small.cpus) {
        (node.reserved, node.bytes) = (0, if *cpus > 0 { 64 << 10 } else { 256 << 10 });
    }
    // Touch 32 pages, then access line 0 of pages 0 and 16, which collide, and line 1 of page 0.
    let mut accesses: Vec<(u64, bool)> = (0..32).map(|page| (page * 64, false)).collect();
    for _ in 0..20 {
        accesses.extend([(0, true), (16 * 64, false), (1, false)]);
    }
    let (_folder, reader) = traced(&accesses);
    let mode = mode("memory-mode").unwrap();
    let load = Load::Trace(&reader, None);
    let found = run(&small, mode, &load, &options(Allocator::User), None, &mut |_| Ok(()));
    let row = found.unwrap().row;
    assert_eq!(row.accesses, 92.0);
    assert_eq!(row.footprint_bytes, 32 * 4096);
    // Clearing leaves a page in the cache at its first touch. Then lines 0 of pages 0 and 16 always
    // miss; line 1 misses once, as clearing page 16 evicted it.
    let hits = 92.0 - 40.0 - 1.0;
    assert!((row.cache_hit_rate.unwrap() - hits / 92.0).abs() < 1e-12, "{row:?}");
    assert!((row.store_share - 20.0 / 92.0).abs() < 1e-12);
    assert_eq!(row.local_far_share, 1.0);
}

#[test]
fn interleaving_goes_by_page_number() {
    // Every fourth page, from high to low: four nodes take turns by page number, so all are on node 0.
    let accesses: Vec<(u64, bool)> = (0..40).rev().map(|page| (page * 4 * 64, false)).collect();
    let (_folder, reader) = traced(&accesses);
    let shares = |mode_name: &str, nodes: &[usize], weights: &[u64]| {
        let mut options = options(Allocator::User);
        options.policy = Policy { nodes: nodes.to_vec(), weights: weights.to_vec() };
        let load = Load::Trace(&reader, None);
        let mode = mode(mode_name).unwrap();
        let row = run(&topology("optane-4node"), mode, &load, &options, None, &mut |_| Ok(()));
        let row = row.unwrap().row;
        [row.local_dram_share, row.remote_dram_share, row.local_far_share, row.remote_far_share]
    };
    assert_eq!(shares("interleave", &[0, 1, 2, 3], &[]), [1.0, 0.0, 0.0, 0.0]);
    // Node 0 has turns 0, 1 and 2, node 4 has turn 3: pages 0, 4, 8, ... all have turn 0.
    assert_eq!(shares("weighted-interleave", &[0, 4], &[3, 1]), [1.0, 0.0, 0.0, 0.0]);
    // The order of nodes does not matter.
    assert_eq!(shares("weighted-interleave", &[4, 0], &[1, 3]), [1.0, 0.0, 0.0, 0.0]);
    // Node 0 has four of five turns; multiples of four fall on each turn equally often.
    assert_eq!(shares("weighted-interleave", &[0, 4], &[4, 1]), [0.8, 0.0, 0.2, 0.0]);
}

#[test]
fn hit_rates_of_a_pair_fall_with_its_overlap() {
    let topology = topology("optane-4node");
    let memories = mode("memory-mode").unwrap().memories(&topology).unwrap();
    let play = |guests: [&Guest<'_>; 2], overlaps: &[f64], cache_bytes| {
        let options = PairOptions { overlaps: overlaps.to_vec(), cache_bytes, seed: 1 };
        pair(&topology, 0, &memories[0], guests, &options, &mut |_| Ok(()))
    };
    let half = Guest::Uniform(48 << 30);
    let rows = play([&half, &half], &[0.0, 0.5, 1.0], None).unwrap();
    let near = |found: f64, stated: f64| assert!((found - stated).abs() < 0.02, "{found} {stated}");
    // A contiguous guest of half the cache has no conflict alone; in a pair, only the overlap conflicts.
    // Shuffled, the `ways` pages that share a place in the cache are in use with equal probability.
    let ways = memories[0].free as f64 * 4096.0 / (96u64 << 30) as f64;
    let shuffled = |load: f64| (1.0 - (1.0 - load / ways).powf(ways)) / load;
    for (row, together) in rows.iter().zip([1.0, 0.75, 0.5, shuffled(1.0)]) {
        near(row.together_hit_rate_a, together);
        near(row.together_hit_rate_b, together);
        near(row.alone_hit_rate_a, if row.shuffled { shuffled(0.5) } else { 1.0 });
    }
    near(rows[2].slowdown_a, (101.0 + 0.5 * 305.0) / 101.0);
    assert_eq!(rows[1].overlap, Some(0.5));
    assert!(rows[3].shuffled && rows[3].slowdown_a < rows[2].slowdown_a);
    // Too large to lie side by side: the overlap exceeds the request.
    let large = Guest::Uniform(72 << 30);
    let rows = play([&large, &large], &[0.0], None).unwrap();
    near(rows[0].overlap.unwrap(), 2.0 / 3.0);
    let (_folder, reader) = traced(&[(0, false), (64, true)]);
    let tiny = Guest::Trace(&reader);
    let rows = play([&tiny, &tiny], &[1.0], Some(8192)).unwrap();
    assert_eq!((rows[0].together_hit_rate_a, rows[0].together_hit_rate_b), (0.0, 0.0));
}
