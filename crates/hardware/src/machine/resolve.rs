//! Converts a machine file's sections to the numbers that studies use, and checks keys against each other.

use std::collections::BTreeMap;

use nearfar_trace::{Error, Result};

use super::library::remedy;
use super::read::{clip, nearest};
use super::{
    Cache, Count, Disk, Flash, Linear, Machine, Node, NodeKind, Sourced, StorageDevice, TlbLevel,
    TopologySection,
};
use crate::cache::Geometry;
use crate::node::PAGE;
use crate::storage::{Cost, Storage};
use crate::units::{Bandwidth, Size, Time};

/// Times of one memory reference, nanoseconds: T_TLB and T_DRAM of papers 000 (page-size advice) and
/// 001 (TLB and fault models).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AccessTimes {
    /// A first-level TLB look-up.
    pub tlb_ns: f64,
    /// A load from local DRAM, also charged for a page-table walk.
    pub dram_ns: f64,
    /// Additional time of a second-level TLB hit, if the machine has a second level.
    pub stlb_ns: Option<f64>,
}

impl AccessTimes {
    /// T_A: time of address translation, from page walks per reference (e) and second-level TLB hits
    /// per reference. T_A = (1-e) t_TLB + e (t_TLB + t_DRAM), page-size advice (000).
    pub fn translation_ns(&self, walk_rate: f64, second_hit_rate: f64) -> f64 {
        let second_ns = second_hit_rate * self.stlb_ns.unwrap_or(0.0);
        self.tlb_ns + second_ns + walk_rate * self.dram_ns
    }

    /// T_D: time to load the data, from page faults per reference (d), each of which reads a page from
    /// storage. T_D = (1-d) t_DRAM + d (t_DRAM + t_IO), page-size advice (000).
    pub fn data_ns(&self, fault_rate: f64, io_ns: f64) -> f64 {
        self.dram_ns + fault_rate * io_ns
    }
}

/// The kernel's time for a page fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultTimes {
    /// Any fault, without clearing the page or waiting for a device, nanoseconds.
    pub fault_ns: f64,
    /// Clearing one byte, nanoseconds.
    pub zero_ns: f64,
}

/// A dotted key and what is wrong with it.
type Contradiction = (String, String);

impl Machine {
    /// T_TLB, T_DRAM and, if any, the second-level TLB's time.
    ///
    /// # Errors
    /// The machine has no `[tlb.first]` or no node of kind `dram`.
    pub fn access_times(&self) -> Result<AccessTimes> {
        let tlb = self.tlb.as_ref().ok_or_else(|| self.lacks("[tlb.first]"))?;
        Ok(AccessTimes {
            tlb_ns: tlb.first.hit_time.value.ns(),
            dram_ns: self.dram()?.local.read_latency.value.ns(),
            stlb_ns: tlb.second.as_ref().map(|level| level.hit_time.value.ns()),
        })
    }

    /// The kernel's time for a page fault.
    ///
    /// # Errors
    /// The machine has no `page_fault` or no `zeroing` in `[cost]`.
    pub fn fault_times(&self) -> Result<FaultTimes> {
        let cost = self.cost.as_ref();
        let fault = cost.and_then(|cost| cost.page_fault.as_ref());
        let zeroing = cost.and_then(|cost| cost.zeroing.as_ref());
        let missing = |key| {
            Error::input(
                format!("machine {}", self.name),
                format!(
                    "has no `{key}` in [cost], required for page faults of released and reused pages"
                ),
                remedy(&self.name, "add it", |machine| {
                    let cost = machine.cost.as_ref();
                    cost.is_some_and(|cost| cost.page_fault.is_some() && cost.zeroing.is_some())
                }) + "; or leave the kernel's part out with --lifetimes off",
            )
        };
        Ok(FaultTimes {
            fault_ns: fault.ok_or_else(|| missing("page_fault"))?.value.ns(),
            zero_ns: 1e9
                / zeroing.ok_or_else(|| missing("zeroing"))?.value.bytes_per_second() as f64,
        })
    }

    /// The storage device `name`.
    ///
    /// # Errors
    /// There is no such device, or the kind is `nvm` and the machine has no DRAM node.
    pub fn storage(&self, name: &str) -> Result<Storage> {
        let Some((name, device)) = self.storage.get_key_value(name) else {
            let names: Vec<&str> = self.storage.keys().map(String::as_str).collect();
            let fix = match nearest(name, &names) {
                Some(best) => {
                    format!("did you mean `{best}`? (it has: {})", names.join(", "))
                }
                None => {
                    let change = "add [storage.NAME]";
                    remedy(&self.name, change, |machine| !machine.storage.is_empty())
                }
            };
            let place = format!("machine {}", self.name);
            return Err(Error::input(place, format!("no storage named `{}`", clip(name)), fix));
        };
        self.resolved(name, device)
    }

    fn resolved(&self, name: &str, device: &StorageDevice) -> Result<Storage> {
        let mut files = None;
        let (kind, (read, write)) = match device {
            StorageDevice::Hdd(disk) => ("hdd", disk_costs(disk)),
            StorageDevice::Nvme(linear) => ("nvme", linear_costs(linear)),
            StorageDevice::Pmem(linear) => ("pmem", linear_costs(linear)),
            StorageDevice::Cxl(linear) => ("cxl", linear_costs(linear)),
            StorageDevice::Zram(memory) => {
                files = Some(Box::new(self.resolved(name, &memory.files)?));
                ("zram", linear_costs(&memory.pages))
            }
            StorageDevice::Nvm(multiple) => {
                let dram = self.dram()?.local.read_latency.value.ns();
                let unit = multiple.unit.value.bytes();
                let cost = |k: f64| Cost { fixed_ns: 0.0, unit, unit_ns: k * dram };
                let k = multiple.k.value.0;
                let write_k = multiple.write_k.as_ref().map_or(k, |k| k.value.0);
                ("nvm", (cost(k), cost(write_k)))
            }
        };
        Ok(Storage { name: name.to_owned(), kind, read, write, files })
    }

    /// All storage devices, by name.
    ///
    /// # Errors
    /// As [`Machine::storage`].
    pub fn storages(&self) -> Result<Vec<Storage>> {
        self.storage.keys().map(|name| self.storage(name)).collect()
    }

    /// The caches of a core: `l1d`, and optionally `l1i` (otherwise the data cache serves both) and
    /// `l2`.
    ///
    /// # Errors
    /// There is no `l1d`, or line sizes differ or are not a power of two.
    pub fn caches(&self) -> Result<Geometry> {
        let data = self.cache.get("l1d").ok_or_else(|| self.lacks("[cache.l1d]"))?;
        let line_bytes = data.line.value.bytes();
        let level = |name: &str, cache: &Cache| {
            let wrong = |what: String| {
                let place = format!("machine {} key cache.{name}.line", self.name);
                Err(Error::input(place, what, "write for example \"64B\" in every level"))
            };
            let line = cache.line.value.bytes();
            if line != line_bytes {
                return wrong(format!("is {line} bytes where the line of l1d has {line_bytes}"));
            }
            if !line.is_power_of_two() || !(8..=32768).contains(&line) {
                return wrong(format!("is {line} bytes, not a power of two from 8 to 32768"));
            }
            Ok(cache.level())
        };
        let named = |name: &str| self.cache.get(name).map(|cache| level(name, cache)).transpose();
        Ok(Geometry {
            data: level("l1d", data)?,
            instruction: named("l1i")?,
            second: named("l2")?,
            line_bytes,
        })
    }

    /// The DRAM node: the one named `dram`, otherwise the first of kind `dram` by name.
    pub(crate) fn dram(&self) -> Result<&Node> {
        let is_dram = |node: &&Node| node.kind == NodeKind::Dram;
        let named = self.node.get("dram").filter(is_dram);
        named
            .or_else(|| self.node.values().find(is_dram))
            .ok_or_else(|| self.lacks("[node.NAME] of kind \"dram\""))
    }

    pub(crate) fn lacks(&self, section: &str) -> Error {
        self.lacks_for(section, |_| false)
    }

    /// As [`Machine::lacks`], but suggests built-in machines for which `serve` is true.
    pub(crate) fn lacks_for(&self, section: &str, serve: impl Fn(&Machine) -> bool) -> Error {
        Error::input(
            format!("machine {}", self.name),
            format!("has no {section}"),
            remedy(&self.name, "add that", serve),
        )
    }

    /// Check names, contradictions between keys, and times that must not be zero.
    pub(super) fn check(&self) -> std::result::Result<(), Contradiction> {
        if self.description.trim().is_empty() {
            let what = "is empty; say in a sentence what the machine stands for";
            return Err(("description".into(), what.into()));
        }
        let names = self.cache.keys().map(|name| ("cache", name));
        let names = names.chain(self.node.keys().map(|name| ("node", name)));
        for (section, name) in names.chain(self.storage.keys().map(|name| ("storage", name))) {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            if name.is_empty() || name.len() > 40 || !name.chars().all(plain) {
                let what = "a name has up to 40 characters of a-z, 0-9 and -, such as `nvm-10x`";
                return Err((format!("{section}.{}", clip(name)), what.into()));
            }
        }
        for (name, cache) in &self.cache {
            let lines = cache.size.value.bytes() / cache.line.value.bytes();
            let ways = cache.ways.as_ref().map_or(1, |ways| ways.value.0);
            if lines == 0 || lines % ways != 0 {
                let what = format!("{lines} lines do not divide into sets of {ways} ways");
                return Err((format!("cache.{name}.size"), what));
            }
        }
        if let Some(tlb) = &self.tlb {
            check_tlb("tlb.first", &tlb.first)?;
            for (path, level) in
                [("tlb.instruction", &tlb.instruction), ("tlb.second", &tlb.second)]
            {
                level.as_ref().map_or(Ok(()), |level| check_tlb(path, level))?;
            }
        }
        for (name, node) in &self.node {
            let places = [("local", Some(&node.local)), ("remote", node.remote.as_ref())];
            for (place, timing) in places {
                if timing.is_some_and(|timing| timing.read_latency.value.ps() == 0) {
                    let path = format!("node.{name}.{place}.read_latency.value");
                    return Err((path, "must be above 0; write for example \"80ns\"".into()));
                }
            }
        }
        for (name, node) in &self.node {
            if node.reserved.as_ref().is_some_and(|r| r.value.bytes() >= node.size.value.bytes()) {
                let path = format!("node.{name}.reserved.value");
                return Err((path, "is not less than the node's size".into()));
            }
        }
        self.fault.keys().try_for_each(|name| check_fault(name))?;
        self.topology.as_ref().map_or(Ok(()), |t| check_topology(t, &self.node))?;
        for (name, device) in &self.storage {
            self.check_storage(&format!("storage.{name}"), device)?;
        }
        self.flash.as_ref().map_or(Ok(()), check_flash)
    }

    fn check_storage(
        &self,
        path: &str,
        device: &StorageDevice,
    ) -> std::result::Result<(), Contradiction> {
        match device {
            StorageDevice::Nvme(linear) => check_linear(&format!("{path}.nvme"), linear),
            StorageDevice::Pmem(linear) => check_linear(&format!("{path}.pmem"), linear),
            StorageDevice::Cxl(linear) => check_linear(&format!("{path}.cxl"), linear),
            StorageDevice::Zram(memory) => {
                let files = format!("{path}.zram.files");
                if matches!(*memory.files, StorageDevice::Zram(_)) {
                    return Err((
                        files,
                        "must be the device that holds files; give a kind other than zram".into(),
                    ));
                }
                check_linear(&format!("{path}.zram.pages"), &memory.pages)?;
                self.check_storage(&files, &memory.files)
            }
            StorageDevice::Nvm(_) if self.dram().is_err() => {
                let what = "is a multiple of DRAM's latency, but there is no [node.NAME] of kind \"dram\"; \
                            add one";
                Err((format!("{path}.nvm"), what.into()))
            }
            StorageDevice::Nvm(_) | StorageDevice::Hdd(_) => Ok(()),
        }
    }
}

fn check_topology(
    topology: &TopologySection,
    nodes: &BTreeMap<String, Node>,
) -> std::result::Result<(), Contradiction> {
    let count = topology.nodes.len();
    if count == 0 || count > 1024 {
        return Err(("topology.nodes".into(), "must name 1 to 1024 nodes".into()));
    }
    if let Some(unknown) = topology.nodes.iter().find(|name| !nodes.contains_key(*name)) {
        let what = format!("names `{}`, but there is no [node.{0}]", clip(unknown));
        return Err(("topology.nodes".into(), what));
    }
    for (key, list) in [("sockets", &topology.sockets), ("cpus", &topology.cpus)] {
        if list.value.0.len() != count {
            let what = format!("has {} items for {count} nodes", list.value.0.len());
            return Err((format!("topology.{key}.value"), what));
        }
    }
    if topology.cpus.value.0.iter().all(|cpus| *cpus == 0) {
        return Err(("topology.cpus.value".into(), "gives no node a core".into()));
    }
    let rows = &topology.distances.value.0;
    let square = rows.len() == count && rows.iter().all(|row| row.len() == count);
    let is_valid = |(index, row): (usize, &Vec<u64>)| {
        row.iter().enumerate().all(|(other, d)| if other == index { *d == 10 } else { *d > 10 })
    };
    if !square || !rows.iter().enumerate().all(is_valid) {
        let what = format!(
            "is not {count} rows of {count} distances, 10 for a node itself and more for others"
        );
        return Err(("topology.distances.value".into(), what));
    }
    Ok(())
}

fn check_tlb(path: &str, level: &TlbLevel) -> std::result::Result<(), Contradiction> {
    let divide = |entries: u64, ways: &Option<Sourced<Count>>, key: &str| match ways {
        Some(ways) if !entries.is_multiple_of(ways.value.0) => Err((
            format!("{path}.{key}.value"),
            format!("{entries} entries do not divide into sets of {} ways", ways.value.0),
        )),
        _ => Ok(()),
    };
    divide(level.entries.value.0, &level.ways, "ways")?;
    match &level.large_entries {
        Some(entries) => divide(entries.value.0, &level.large_ways, "large_ways"),
        None if level.large_ways.is_some() => {
            let what = "requires `large_entries`; add `large_entries`, or leave `large_ways` out";
            Err((format!("{path}.large_ways"), what.into()))
        }
        None => Ok(()),
    }
}

/// Check that `name` in `[fault.NAME]` is a page size.
fn check_fault(name: &str) -> std::result::Result<(), Contradiction> {
    match Size::parse(name) {
        Ok(size) if size.bytes().is_power_of_two() && size.bytes() >= PAGE => Ok(()),
        _ => {
            let what = "is not the size of a page; write for example [fault.4KiB]";
            Err((format!("fault.{}", clip(name)), what.into()))
        }
    }
}

fn check_linear(path: &str, linear: &Linear) -> std::result::Result<(), Contradiction> {
    // The latency of the smallest transfer, extrapolated from `measured_at`, must be positive.
    let unit = linear.unit.value.bytes();
    let (read, write) = linear_costs(linear);
    for (key, cost) in [("read_latency", read), ("write_latency", write)] {
        let unit_ns = cost.fixed_ns + cost.unit_ns;
        if unit_ns <= 0.0 {
            return Err((
                format!("{path}.{key}.value"),
                format!(
                    "with {} bytes at {key} and this bandwidth, a transfer of {unit} bytes would \
                     take {unit_ns} ns; raise the latency or the bandwidth",
                    linear.measured_at.value.bytes()
                ),
            ));
        }
    }
    Ok(())
}

fn check_flash(flash: &Flash) -> std::result::Result<(), Contradiction> {
    let start = flash.gc_start_free.value.0;
    if start >= 1.0 {
        let what = "must be a share of the blocks, below 1; write for example 0.05";
        return Err(("flash.gc_start_free.value".into(), what.into()));
    }
    if let Some(stop) = &flash.gc_stop_free
        && (stop.value.0 < start || stop.value.0 >= 1.0)
    {
        let what = "must be a share of the blocks, below 1 and not below gc_start_free; write for example 0.1";
        return Err(("flash.gc_stop_free.value".into(), what.into()));
    }
    Ok(())
}

fn disk_costs(disk: &Disk) -> (Cost, Cost) {
    let half_turn = disk.rotation.value.turn_ns() / 2.0;
    let byte = disk.bandwidth.value.ns_for(1);
    let write_seek = disk.write_seek.as_ref().unwrap_or(&disk.seek);
    let cost = |seek: f64| Cost { fixed_ns: seek + half_turn, unit: 1, unit_ns: byte };
    (cost(disk.seek.value.ns()), cost(write_seek.value.ns()))
}

/// The latency applies to `measured_at` bytes; the bandwidth determines the time of other sizes.
fn linear_costs(linear: &Linear) -> (Cost, Cost) {
    let unit = linear.unit.value.bytes();
    let measured = linear.measured_at.value.bytes().div_ceil(unit);
    let cost = |latency: &Time, bandwidth: &Bandwidth| {
        let unit_ns = bandwidth.ns_for(1) * unit as f64;
        Cost { fixed_ns: latency.ns() - unit_ns * measured as f64, unit, unit_ns }
    };
    (
        cost(&linear.read_latency.value, &linear.read_bandwidth.value),
        cost(&linear.write_latency.value, &linear.write_bandwidth.value),
    )
}
