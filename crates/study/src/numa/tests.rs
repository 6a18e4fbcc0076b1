use std::path::Path;

use nearfar_hardware::{Machine, Topology};
use nearfar_kernel::placement::{Allocator, MODES, Policy, mode};

use super::{AllocOptions, AllocRow, alloc, clear_page};

fn topology(name: &str) -> Topology {
    Machine::load(name, Path::new("")).unwrap().topology().unwrap()
}

fn options(allocator: Allocator) -> AllocOptions {
    let policy = Policy::default();
    AllocOptions { allocator, policy, from: 0, threads: 1, dirty_cache: true }
}

fn paper(mode_name: &str, gib: u64) -> AllocRow {
    let mode = mode(mode_name).unwrap();
    let size = gib << 30;
    alloc(&topology("optane-4node"), mode, size, &options(Allocator::Vmalloc)).unwrap()
}

#[test]
fn a_page_costs_what_its_slowest_part_costs() {
    let topology = topology("optane-4node");
    let of = |mode_name: &str, index: usize, dirty| {
        let memories = mode(mode_name).unwrap().memories(&topology).unwrap();
        clear_page(&topology, 0, &memories[index], dirty, 1).unwrap()
    };
    let near = |found: f64, stated: f64| assert!((found - stated).abs() < 1e-6, "{found} {stated}");
    // By hand: 219 ns of kernel and 64 lines of 101 ns, ten at a time.
    near(of("alius", 0, true).ns(), 219.0 + 6.4 * 101.0);
    near(of("alius", 2, true).ns(), 219.0 + 6.4 * 135.0);
    // One module at 2.3 GB/s; 1 GB/s from the other socket.
    near(of("alius", 4, true).ns(), 4096.0 / 2.3);
    near(of("alius", 6, true).ns(), 4096.0);
    // Three accesses to DRAM, a load and a store behind it.
    let five = 3.0 * 4096.0 / 15.0 + 4096.0 / 7.6 + 4096.0 / 2.3;
    near(of("memory-mode", 0, true).ns(), five);
    assert_eq!(of("memory-mode", 0, true).bound_by(), "medium");
    // Clean lines are dropped: the core is slower than the medium then.
    near(of("memory-mode", 0, false).ns(), 219.0 + 6.4 * (101.0 + 169.0));
    assert_eq!(of("memory-mode", 2, true).bound_by(), "link");
}

#[test]
fn table_two_is_met() {
    // Paper 004, table 2; goal: each within 10 %, the mean within 5 %.
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
                    let row = alloc(&topology, *mode, gib << 30, &options(allocator)).unwrap();
                    let sum =
                        |of: fn(&super::Landed) -> u64| row.landed.iter().map(of).sum::<u64>();
                    let (data, tables) = (sum(|l| l.bytes), sum(|l| l.tables_bytes));
                    assert_eq!(before, data + tables + sum(|l| l.free_bytes));
                    let places = row.local_dram_bytes
                        + row.remote_dram_bytes
                        + row.local_far_bytes
                        + row.remote_far_bytes;
                    assert_eq!(places, data);
                    assert_eq!(row.possible, row.why_not.is_none());
                    assert_eq!(row.possible, row.seconds.is_some());
                    if row.possible {
                        assert_eq!(data, gib << 30);
                    }
                }
            }
        }
    }
}

#[test]
fn predictions_of_the_model() {
    // Several threads beat one module's 2.3 GB/s on the own socket.
    let topology = topology("optane-4node");
    let mut many = options(Allocator::User);
    let time = |options: &AllocOptions| {
        let row = alloc(&topology, mode("kmem-dax").unwrap(), 100 << 30, options).unwrap();
        assert_eq!(row.local_far_bytes, 100 << 30);
        row.seconds.unwrap()
    };
    many.policy.nodes = vec![4];
    let one = time(&many);
    many.threads = 3;
    assert!(time(&many) < one / 2.5);
    // Kinks: a GiB more costs most where the remote modules begin.
    let at = |gib| paper("alius", gib).seconds.unwrap();
    let slope = |gib| at(gib + 1) - at(gib);
    assert!(slope(40) < slope(250) && slope(250) < slope(1000) && slope(1000) < slope(2500));
}

#[test]
fn wrong_options_are_named() {
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
    assert!(refused(&|o| o.policy.weights = vec![1]).starts_with("--weights: 1 weights for 8"));
    assert!(refused(&|o| o.policy.weights = vec![0; 8]).contains("1 to 255"));
    assert!(refused(&|o| o.threads = 0).starts_with("--threads"));
    let error = alloc(&self::topology("cxl"), interleave, 1 << 30, &options(Allocator::User));
    assert!(error.unwrap_err().to_string().contains("page_allocation"));
}
