//! A paging study on one or several machines: checks options, simulates, and computes rows.

use std::path::Path;

use nearfar_hardware::machine::{FaultTimes, remedy};
use nearfar_hardware::processor::Processor;
use nearfar_hardware::{AccessTimes, Machine, Storage};
use nearfar_schema::{Bytes, Options as _};
use nearfar_trace::{Error, Info, Reader, Result};
use serde_json::{Value, json};

use super::machine;
use super::options::{Options, PageCache, Request, View};
use super::sample::{self, LeftOut};
use super::simulate::simulate;
use super::table::{Prices, rows};
use crate::lifetimes;

/// One machine and its costs.
struct Host {
    name: String,
    times: AccessTimes,
    storages: Vec<Storage>,
    processor: Option<Processor>,
    /// `None` with `--lifetimes off`. An error counts only if the trace records mappings ([`lifetimes`]).
    faults: Option<Result<FaultTimes>>,
}

/// A study, with its options checked.
pub struct Study {
    /// The options as given, with the default of `--view` (how times are computed) resolved.
    pub request: Request,
    pub options: Options,
    hosts: Vec<Host>,
}

impl Study {
    /// Check a request for these machines and `trace`. The default view of a sample is [`View::Paper`],
    /// because [`View::Machine`] has only lower bounds of its times ([`machine::times`]).
    ///
    /// # Errors
    /// As [`Study::new`].
    pub fn of(machines: &[&Machine], mut request: Request, trace: &Path) -> Result<Self> {
        // `run` reports a trace that cannot be read.
        if Info::load(trace).is_ok_and(|info| info.source.sample.is_some()) {
            request.view.get_or_insert(View::Paper);
        }
        Self::new(machines, request)
    }

    /// Check a request.
    ///
    /// # Errors
    /// If an option is invalid, or a machine lacks what the study needs.
    pub fn new(machines: &[&Machine], mut request: Request) -> Result<Self> {
        // Times of different views are not comparable, so all machines have the same view.
        let has_machine_view = |machine: &&Machine| request.view_on(machine) == View::Machine;
        let view = match machines.iter().all(has_machine_view) {
            true => View::Machine,
            false => View::Paper,
        };
        request.view = Some(view);
        let costs = |machine: &&Machine| {
            Ok((machine.access_times()?, storages(machine, &request, machines.len() == 1)?))
        };
        let costs: Vec<_> = machines.iter().map(costs).collect::<Result<_>>()?;
        let options = Options::try_from(&request)?;
        let mut hosts = Vec::new();
        for (machine, (times, storages)) in machines.iter().zip(costs) {
            let nested = request.nested.map(|size| size.0);
            hosts.push(Host {
                name: machine.name.clone(),
                times,
                storages,
                processor: (view == View::Machine)
                    .then(|| machine.processor(nested))
                    .transpose()?,
                faults: options.lifetimes.then(|| machine.fault_times()),
            });
        }
        Ok(Self { request, options, hosts })
    }

    /// Fault times of each host, if the trace has lifetimes.
    fn fault_times(&self, lives: bool) -> Result<Vec<Option<FaultTimes>>> {
        let times = |host: &Host| host.faults.clone().filter(|_| lives).transpose();
        self.hosts.iter().map(times).collect()
    }

    /// Run the study on a trace. The counts are simulated once for all machines. Returns
    /// `{"rows", "records", "footprint_bytes", "lifetimes", "peak_resident_bytes", "left_out",
    /// "too_few_frames", "options"}`.
    ///
    /// # Errors
    /// If the trace cannot be read or a machine has no fault times; those of [`rows`] and of
    /// `on_progress`.
    pub fn run(
        &self,
        trace: &Path,
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Value> {
        let reader = Reader::open_sample(trace)?;
        check_nested(&reader, self.request.nested)?;
        let lives = self.options.lifetimes && lifetimes::known(&reader)?;
        // Report missing times before hours of simulation.
        let fault_times = self.fault_times(lives)?;
        let Self { request, options, hosts } = self;
        // Lower bounds of times cannot rank page sizes, so none above 4 KiB is simulated.
        let are_lower_bounds =
            reader.info().source.sample.is_some() && request.view == Some(View::Machine);
        let (page_sizes, larger): (Vec<u64>, Vec<u64>) =
            options.page_sizes.iter().partition(|&&size| !are_lower_bounds || size <= sample::PAGE);
        let options = &Options { page_sizes, ..options.clone() };
        let mut simulated = simulate(&reader, options, on_progress)?;
        simulated.left_out.extend(larger.into_iter().map(LeftOut::without));
        let simulated = &simulated;
        let mut page_sizes: Vec<u64> = simulated.cells.iter().map(|cell| cell.page_bytes).collect();
        page_sizes.dedup();
        let restricted = Options { page_sizes, ..options.clone() };
        let mut all_rows = Vec::new();
        for (host, faults) in hosts.iter().zip(fault_times) {
            let times = host
                .processor
                .as_ref()
                .filter(|_| !restricted.page_sizes.is_empty())
                .map(|processor| {
                    let host = (processor, &*host.storages);
                    machine::times(&reader, &restricted, host, simulated.lifetimes, on_progress)
                })
                .transpose()?;
            all_rows.extend(rows(
                simulated,
                Prices {
                    name: &host.name,
                    times: host.times,
                    faults,
                    storages: &host.storages,
                    write_back: request.write_back,
                    warm: request.page_cache != PageCache::Cold,
                    machine: times.as_deref(),
                },
            )?);
        }
        let left_out = simulated.left_out.iter();
        let left_out: Vec<_> = left_out.map(|size| (size.page_bytes, size.least_memory)).collect();
        Ok(json!({
            "rows": all_rows,
            "records": simulated.records,
            "footprint_bytes": simulated.footprint_bytes,
            "lifetimes": simulated.lifetimes,
            "peak_resident_bytes":
                (simulated.lifetimes && options.has_fractions()).then_some(simulated.whole_bytes),
            "left_out": left_out,
            "too_few_frames": simulated.too_few_frames,
            "options": request.plain(),
        }))
    }
}

/// The storages of a machine: all, or the requested ones. `single`: there is one machine, which may
/// borrow storages of built-in machines.
fn storages(machine: &Machine, request: &Request, single: bool) -> Result<Vec<Storage>> {
    let storages = match &request.storage {
        Some(names) => {
            let names = names.0.iter().filter(|name| single || machine.storage.contains_key(*name));
            names.map(|name| machine.storage(name)).collect::<Result<_>>()?
        }
        None => machine.storages()?,
    };
    if let (true, Some(names)) = (storages.is_empty(), &request.storage) {
        let what = format!("machine {} has no {}", machine.name, names.0.join(" or "));
        let fix = "several machines have only their own storage; leave out --storage, or give one --machine";
        return Err(Error::input("--storage", what, fix));
    }
    if storages.is_empty() {
        let place = format!("machine {}", machine.name);
        let fix = remedy(&machine.name, "add [storage.NAME]", |one| !one.storage.is_empty());
        return Err(Error::input(place, "has no storage device to swap to", fix));
    }
    Ok(storages)
}

/// Refuse `--nested` (the host's page size) for the trace of a virtual machine.
///
/// # Errors
/// If `nested` is given for such a trace: there, the study's page sizes are the host's.
pub fn check_nested(reader: &Reader, nested: Option<Bytes>) -> Result<()> {
    if nested.is_none() || reader.info().source.vm_memory_bytes == 0 {
        return Ok(());
    }
    let what = "the trace is of a virtual machine, so the page sizes of the study are the host's";
    Err(Error::input("--nested", what, "leave it out"))
}
