//! Far tier `node`: a memory node of this machine (CXL, persistent memory as system memory). Its pages stay
//! mapped, and the program references them in place.

use std::fs;

use nearfar_trace::{Error, Result};

use super::{Far, Fault, TierEntry};
use crate::{PAGE, Slot};

pub static TIER: TierEntry = TierEntry {
    what: "a memory node, whose pages the program accesses in place",
    argument: "N",
    is_mapped: true,
    own_time: Some("whose pages are accessed in place"),
    check: |argument, pages| Machine::read().check(argument, pages).map(|node| node.to_string()),
    make: |_, _| Ok(Box::new(Node)),
};

/// Stores no pages: they stay in the program's memory or in the parking area ([`Kernel`](crate::Kernel)).
pub(crate) struct Node;

impl Far for Node {
    fn store(&mut self, _: &[u8]) -> std::result::Result<Slot, Fault> {
        Err(Fault::Full)
    }
    fn load(&mut self, slot: Slot, _: &mut [u8]) -> std::result::Result<(), Fault> {
        Err(Fault::Broken(format!("a memory node stores no pages ({slot:?})")))
    }
    fn free(&mut self, _: Slot) {}
    fn bytes(&self) -> u64 {
        0
    }
}

/// The far tier's node, and the nodes of fast memory.
pub(crate) fn nodes(argument: &str) -> Result<(u32, Vec<u32>)> {
    let machine = Machine::read();
    // 0: the size was checked with the options.
    let far = machine.check(argument, 0)?;
    Ok((far, machine.nodes.into_iter().map(|(node, _)| node).filter(|node| *node != far).collect()))
}

#[derive(Debug)]
struct Machine {
    /// The nodes that this process may use, and their sizes in pages.
    nodes: Vec<(u32, u64)>,
    /// NUMA balancing is on: the kernel moves pages between the nodes.
    balances: bool,
}

impl Machine {
    fn read() -> Self {
        let folder = "/sys/devices/system/node";
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let status = text("/proc/self/status");
        let allowed = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
        let allowed = numbers(allowed.unwrap_or_default());
        let memory = numbers(&text(&format!("{folder}/has_memory")));
        let pages = |node: u32| {
            let bytes = total_kib(&text(&format!("{folder}/node{node}/meminfo"))) << 10;
            (node, bytes / PAGE as u64)
        };
        Self {
            nodes: memory.into_iter().filter(|node| allowed.contains(node)).map(pages).collect(),
            balances: !matches!(text("/proc/sys/kernel/numa_balancing").trim(), "" | "0"),
        }
    }

    /// The node, if it can be a far tier of `pages` pages.
    fn check(&self, argument: &str, pages: u32) -> Result<u32> {
        let refused = |what: String, fix: String| Err(Error::input("--far", what, fix));
        let Ok(node) = argument.parse::<u32>() else {
            let what = format!("`{argument}` is not the number of a memory node");
            return refused(
                what,
                "write node:1, or another that `numactl --hardware` lists".into(),
            );
        };
        let others: Vec<_> =
            self.nodes.iter().map(|(other, _)| *other).filter(|other| *other != node).collect();
        let Some((_, size)) = self.nodes.iter().find(|(other, _)| *other == node) else {
            let known = others.iter().map(|other| format!("node:{other}")).collect::<Vec<_>>();
            let what = format!("there is no memory node {node} that this process may use");
            return match known.len() {
                0 | 1 => refused(
                    what,
                    "this machine has only one memory node: choose another far tier".into(),
                ),
                _ => refused(what, format!("use one of {}", known.join(", "))),
            };
        };
        if others.is_empty() {
            let what = format!("memory node {node} is the only one, and so the fast memory");
            return refused(what, "choose another far tier".into());
        }
        if self.balances {
            let what = format!("the kernel would move pages to and from memory node {node} itself");
            return refused(what, "run `sysctl kernel.numa_balancing=0` first".into());
        }
        if u64::from(pages) > *size {
            let what = format!("is more than memory node {node} has");
            let fix = format!("give {}M or less", size * PAGE as u64 >> 20);
            return Err(Error::input("--far-size", what, fix));
        }
        Ok(node)
    }
}

/// The numbers of a list such as `0-2,5`.
fn numbers(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<u32>().ok()?..=last.trim().parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// `MemTotal` of a node's meminfo (`Node 1 MemTotal: 262144 kB`) in KiB; 0 if it is missing.
fn total_kib(meminfo: &str) -> u64 {
    let line = meminfo.lines().find(|line| line.contains("MemTotal:"));
    let words = line.and_then(|line| line.split_ascii_whitespace().rev().nth(1));
    words.and_then(|word| word.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_a_far_tier_or_a_line_says_why_not() {
        let machine = |nodes: &[u32], balances| Machine {
            nodes: nodes.iter().map(|node| (*node, 1 << 16)).collect(),
            balances,
        };
        let two = machine(&[0, 1], false);
        assert_eq!(two.check("1", 1 << 16).unwrap(), 1);
        assert_eq!(two.check("0", 0).unwrap(), 0);
        for (machine, argument, pages, says) in [
            (&two, "one", 0, "`one` is not the number of a memory node; write node:1"),
            (&two, "2", 0, "no memory node 2 that this process may use; use one of node:0, node:1"),
            (&two, "1", (1 << 16) + 1, "--far-size: is more than memory node 1 has; give 256M"),
            (
                &machine(&[0], false),
                "0",
                0,
                "node 0 is the only one, and so the fast memory; choose",
            ),
            (
                &machine(&[0], false),
                "1",
                0,
                "no memory node 1 that this process may use; this machine has only one",
            ),
            (&machine(&[0, 1], true), "1", 0, "sysctl kernel.numa_balancing=0"),
        ] {
            let text = machine.check(argument, pages).unwrap_err().to_string();
            assert!(text.contains(says) && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn node_lists_and_sizes_are_parsed() {
        assert_eq!(numbers("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(numbers("\t0"), [0]);
        assert_eq!(numbers(""), [0u32; 0]);
        let text = "Node 1 MemTotal:         262144 kB\nNode 1 MemFree:          200000 kB\n";
        assert_eq!(total_kib(text), 262_144);
        // A kernel without NUMA lists no node.
        let machine = Machine::read();
        assert!(machine.nodes.iter().all(|(_, pages)| *pages > 0), "{machine:?}");
    }
}
