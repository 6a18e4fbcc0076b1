//! Runs in a guest: allocates memory under NUMA policies and prints the nodes of the pages.
//!
//! `/cases` has a line for each case: `name|processor|policy|nodes|weights|pages`, nodes and weights
//! separated by commas. Output lines that begin with `@@` are parsed by `placement.py`.

use std::ffi::{c_int, c_long, c_void};
use std::fs;
use std::path::Path;

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn mmap(
        at: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        fd: c_int,
        from: i64,
    ) -> *mut u8;
    fn madvise(at: *mut u8, len: usize, advice: c_int) -> c_int;
    fn sched_setaffinity(pid: c_int, len: usize, mask: *const u64) -> c_int;
    fn fork() -> c_int;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn _exit(code: c_int) -> !;
    fn klogctl(kind: c_int, buffer: *mut u8, len: c_int) -> c_int;
}

const SET_MEMPOLICY: c_long = 238;
const MOVE_PAGES: c_long = 279;
const DONTNEED: c_int = 4;
const PRIVATE_ANONYMOUS: c_int = 0x22;
const READ_WRITE: c_int = 3;
const READ_ALL: c_int = 3;

const PAGE: usize = 4096;
/// Pages that a page of the lowest page-table level maps.
const TABLE: usize = 512;
/// Pages between two reports of pages by node: 16 MiB.
const STEP: usize = 4096;
/// First pages of an allocation whose nodes are printed one by one.
const FIRST: usize = 64;
const NODES: usize = 64;
const WEIGHTS: &str = "/sys/kernel/mm/mempolicy/weighted_interleave";

fn main() {
    // Minimal reserves, so that nodes can be filled.
    for (name, value) in [
        ("min_free_kbytes", "512"),
        ("watermark_scale_factor", "1"),
        ("watermark_boost_factor", "0"),
        ("percpu_pagelist_high_fraction", "100000"),
        ("lowmem_reserve_ratio", "2000 2000 2000 2000 2000"),
    ] {
        let _ = fs::write(format!("/proc/sys/vm/{name}"), value);
    }
    println!("@@kernel {}", read("/proc/sys/kernel/osrelease").trim());
    println!("@@weighted {}", Path::new(WEIGHTS).exists());
    for node in nodes() {
        let distances = read(&format!("/sys/devices/system/node/node{node}/distance"));
        println!("@@distance {node} {}", distances.trim());
    }
    for line in log().lines() {
        if let Some(order) = line.split("Fallback order for Node ").nth(1) {
            println!("@@fallback {order}");
        }
    }
    for table in ["SRAT", "SLIT", "HMAT"] {
        let bytes = fs::read(format!("/sys/firmware/acpi/tables/{table}")).unwrap_or_default();
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        println!("@@table {table} {digits}");
    }
    for line in read("/cases").lines() {
        // SAFETY: this process has one thread.
        match unsafe { fork() } {
            0 => {
                case(line);
                // SAFETY: nothing of the child is needed any more.
                unsafe { _exit(0) }
            }
            child => {
                let mut status = 0;
                // SAFETY: `status` outlives the call.
                unsafe { waitpid(child, &mut status, 0) };
                println!("@@done {status}");
            }
        }
    }
}

fn case(line: &str) {
    let words: Vec<&str> = line.split('|').collect();
    let [name, processor, policy, nodes, weights, pages] = words[..] else {
        return println!("@@refused {line}");
    };
    let list = |text: &str| -> Vec<usize> { text.split(',').flat_map(str::parse).collect() };
    let (nodes, weights) = (list(nodes), list(weights));
    let (Ok(pages), Ok(policy)) = (pages.parse::<usize>(), policy.parse::<c_int>()) else {
        return println!("@@refused {line}");
    };
    for (node, weight) in nodes.iter().zip(&weights) {
        let _ = fs::write(format!("{WEIGHTS}/node{node}"), weight.to_string());
    }
    let on: u64 = 1 << processor.parse::<u32>().unwrap_or(0);
    println!("@@case {name}");
    println!("@@free {}", join(&free()));
    // SAFETY: the mask outlives the call; the mapping is new; all touched pages lie in the mapping.
    unsafe {
        sched_setaffinity(0, 8, &on);
        let none = std::ptr::null_mut();
        let start = mmap(none, pages * PAGE, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0);
        if start as isize == -1 {
            return println!("@@refused {line}");
        }
        // Allocate page tables first: an interleaving policy would interleave them, too.
        for page in (0..pages).step_by(TABLE) {
            start.add(page * PAGE).write_volatile(1);
        }
        madvise(start, pages * PAGE, DONTNEED);
        let mask: u64 = nodes.iter().map(|node| 1u64 << node).sum();
        let pointer = if mask == 0 { std::ptr::null() } else { &raw const mask };
        if syscall(SET_MEMPOLICY, policy, pointer, NODES) != 0 {
            return println!("@@refused {line}");
        }
        for page in 0..pages {
            start.add(page * PAGE).write_volatile(1);
        }
        syscall(SET_MEMPOLICY, 0, std::ptr::null::<u64>(), 0);
        print_nodes(start, pages);
    }
    for mapping in read("/proc/self/numa_maps").lines() {
        let counts: Vec<&str> = mapping.split(' ').filter(|word| word.starts_with('N')).collect();
        let total: usize =
            counts.iter().flat_map(|c| c.split('=').nth(1)?.parse::<usize>().ok()).sum();
        if total >= pages {
            println!("@@maps {}", counts.join(" "));
        }
    }
    println!("@@left {}", join(&free()));
}

/// Print the number of the first page, the nodes of the first pages, and pages by node after every
/// step.
fn print_nodes(start: *mut u8, pages: usize) {
    println!("@@start {}", start as usize / PAGE);
    let mut landed = [0usize; NODES];
    for from in (0..pages).step_by(STEP) {
        let count = STEP.min(pages - from);
        let at: Vec<usize> =
            (from..from + count).map(|page| start as usize + page * PAGE).collect();
        let mut found = vec![-1 as c_int; count];
        let none = std::ptr::null::<c_int>();
        // SAFETY: both arrays have `count` items.
        unsafe { syscall(MOVE_PAGES, 0, count, at.as_ptr(), none, found.as_mut_ptr(), 0) };
        if from == 0 {
            println!("@@first {}", join(&found[..FIRST.min(count)]));
        }
        for node in found {
            // A page without a node (negative status) counts for the last node, which is not printed.
            landed[usize::try_from(node).unwrap_or(NODES - 1)] += 1;
        }
        println!(
            "@@path {} {}",
            from + count,
            join(&nodes().iter().map(|n| landed[*n]).collect::<Vec<_>>())
        );
    }
}

/// Numbers of the online nodes.
fn nodes() -> Vec<usize> {
    let there = |node: &usize| Path::new(&format!("/sys/devices/system/node/node{node}")).exists();
    (0..NODES).filter(there).collect()
}

/// Free pages of every node, including per-CPU lists.
fn free() -> Vec<usize> {
    // Reading this file folds per-CPU counters into the totals.
    read("/proc/sys/vm/stat_refresh");
    let (mut free, mut node) = (vec![0; NODES], 0);
    for line in read("/proc/zoneinfo").lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["Node", number, "zone", _] => {
                node = number.trim_end_matches(',').parse().unwrap_or(0);
            }
            ["pages", "free", count] | ["count:", count] => {
                free[node] += count.parse().unwrap_or(0);
            }
            _ => (),
        }
    }
    nodes().into_iter().map(|node| free[node]).collect()
}

fn log() -> String {
    let mut buffer = vec![0u8; 1 << 20];
    // SAFETY: the buffer has the length that is passed.
    let len = unsafe { klogctl(READ_ALL, buffer.as_mut_ptr(), buffer.len() as c_int) };
    buffer.truncate(usize::try_from(len).unwrap_or(0));
    String::from_utf8_lossy(&buffer).into_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn join<T: ToString>(values: &[T]) -> String {
    values.iter().map(T::to_string).collect::<Vec<_>>().join(" ")
}
