//! The time to clear a page at its first touch, from device parameters alone.
//!
//! Three parts work in parallel, and the slowest one determines the time:
//!
//! * the **core**: the kernel's work on the page, then a load for ownership of each of the 64 lines, as
//!   many in flight as the core has fill buffers. The latency is that of random loads, because stores
//!   are not prefetched, or that of sequential loads if the medium's access unit spans several lines,
//!   because the module then serves the other lines of the unit from its buffer;
//! * the **medium**: the lines drain at the sequential store bandwidth of the one module that holds
//!   the page, because modules are interleaved by whole pages (4 KiB, Yang et al., FAST'20). With
//!   `all_modules` they drain at the bandwidth of all modules that consecutive pages are interleaved
//!   over: those of the node, and of the nodes that it is interleaved with. In memory mode, each line
//!   needs the accesses of [`Outcome::traffic`], one after the other on the DRAM and the persistent
//!   modules;
//! * the **link** to another socket: the line is loaded for ownership and stored, so the bandwidth is
//!   that of mixed loads and stores.
//!
//! `threads` divides the core's time. Without `all_modules` it also divides the medium's time, but at most
//! by the number of interleaved modules. The cores share the link.

use nearfar_hardware::Topology;
use nearfar_hardware::machine::remedy;
use nearfar_hardware::memory_side_cache::Outcome;
use nearfar_hardware::node::{LINE, NodeModel, PAGE, Pattern, View};
use nearfar_kernel::placement::Memory;
use nearfar_trace::{Error, Result};

use super::alloc::AllocOptions;

/// Time of each part per page, divided by the cores or modules in parallel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PageTime {
    pub core_ns: f64,
    pub medium_ns: f64,
    /// 0 on the same socket.
    pub link_ns: f64,
}

impl PageTime {
    pub fn ns(&self) -> f64 {
        self.core_ns.max(self.medium_ns).max(self.link_ns)
    }

    pub fn bound_by(&self) -> &'static str {
        let slowest = self.ns();
        if self.link_ns == slowest {
            "link"
        } else if self.medium_ns == slowest {
            "medium"
        } else {
            "core"
        }
    }
}

/// The time in which the cores of `options` clear a page of `memory`. The memory holds `share` (0 to 1)
/// of the pages: less than 1 if they are interleaved with other memories.
///
/// # Errors
/// An input error when the machine file lacks `cost.page_allocation`.
pub fn clear_page(
    topology: &Topology,
    memory: &Memory,
    share: f64,
    options: &AllocOptions,
) -> Result<PageTime> {
    let AllocOptions { from, threads, all_modules, .. } = *options;
    let kernel_ns = topology.page_allocation_ns.ok_or_else(|| {
        Error::input(
            format!("machine {}", topology.machine),
            "has no [cost] page_allocation",
            remedy(&topology.machine, "add it", |machine| {
                machine.cost.as_ref().is_some_and(|cost| cost.page_allocation.is_some())
            }),
        )
    })?;
    let node = &topology.nodes[memory.backing];
    let view = topology.view(from, memory.backing);
    let far = ownership_ns(node, view);
    let lines = (PAGE / LINE) as f64;
    let medium = |node: &NodeModel, write| {
        let all = node.local.bandwidth(Pattern { write, random: false });
        if all_modules { all / share } else { all / node.modules as f64 }
    };
    let (latency, medium_ns) = match memory.cache {
        None => (far, PAGE as f64 / medium(node, true)),
        Some(cache) => {
            let front = &topology.nodes[cache];
            let outcome = if options.dirty_cache { Outcome::DirtyMiss } else { Outcome::CleanMiss };
            let write = true;
            let traffic = outcome.traffic(write);
            let bytes = |count: u64| (count * PAGE) as f64;
            let drained = bytes(traffic.dram_reads) / medium(front, false)
                + bytes(traffic.dram_writes) / medium(front, true)
                + bytes(traffic.far_reads) / medium(node, false)
                + bytes(traffic.far_writes) / medium(node, true);
            (ownership_ns(front, topology.view(from, cache)) + far, drained)
        }
    };
    let remote = !topology.same_socket(from, memory.backing);
    let modules = node.modules as f64 / share;
    let parallel = if all_modules { 1.0 } else { modules.min(threads as f64) };
    let link_ns = if remote { PAGE as f64 / remote_bandwidth(topology, view) } else { 0.0 };
    Ok(PageTime {
        core_ns: (kernel_ns + lines * latency / topology.fill_buffers as f64) / threads as f64,
        medium_ns: medium_ns / parallel,
        link_ns,
    })
}

/// The latency of a load for ownership.
fn ownership_ns(node: &NodeModel, view: &View) -> f64 {
    let random = node.access_unit <= LINE;
    view.load_ns(random)
}

/// Bandwidth of mixed loads and stores over the link, in GB/s.
fn remote_bandwidth(topology: &Topology, view: &View) -> f64 {
    let written = view.bandwidth(Pattern { write: true, random: false });
    view.mixed.unwrap_or(written).min(topology.link.unwrap_or(f64::INFINITY))
}
