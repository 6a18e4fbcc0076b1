//! The study as a whole: checked options and machines in, JSON out.

use std::path::Path;

use nearfar_hardware::machine::{FaultTimes, remedy};
use nearfar_hardware::processor::Processor;
use nearfar_hardware::{AccessTimes, Machine, Storage};
use nearfar_schema::Options as _;
use nearfar_trace::{Error, Reader, Result};
use serde_json::Value;

use super::{Asked, Counted, Options, PageCache, Prices, View, rows};
use crate::lifetimes;

/// The properties of a machine that the study uses.
struct Host {
    name: String,
    times: AccessTimes,
    storages: Vec<Storage>,
    processor: Option<Processor>,
    faults: Option<Result<FaultTimes>>,
}

/// The storages of a machine to study: all, or the named ones. With several machines (`alone` is false), each
/// may lack some of the names.
fn storages(machine: &Machine, asked: &Asked, alone: bool) -> Result<Vec<Storage>> {
    let found = match &asked.storage {
        Some(names) => {
            let own = names.0.iter().filter(|name| alone || machine.storage.contains_key(*name));
            own.map(|name| machine.storage(name)).collect::<Result<_>>()?
        }
        None => machine.storages()?,
    };
    if let (true, Some(names)) = (found.is_empty(), &asked.storage) {
        let what = format!("machine {} has no {}", machine.name, names.0.join(" or "));
        let fix = "of several machines each has its own; leave it out, or give one --machine";
        return Err(Error::input("--storage", what, fix));
    }
    if found.is_empty() {
        let place = format!("machine {}", machine.name);
        let fix = remedy(&machine.name, "add [storage.NAME]", |one| !one.storage.is_empty());
        return Err(Error::input(place, "has no storage to page to", fix));
    }
    Ok(found)
}

/// A study of one trace on several machines, with checked options.
pub struct Study {
    asked: Asked,
    options: Options,
    hosts: Vec<Host>,
}

impl Study {
    /// Check the options and the machines.
    ///
    /// # Errors
    /// Input errors: options that contradict each other, or a machine that lacks a property.
    pub fn new(mut asked: Asked, machines: &[&Machine]) -> Result<Self> {
        // Times of different views are not comparable, so all machines have the same one.
        let has_machine_view = |machine: &&Machine| asked.view_on(machine) == View::Machine;
        let view = if machines.iter().all(has_machine_view) { View::Machine } else { View::Paper };
        asked.view = Some(view);
        let mut checked = Vec::new();
        for machine in machines {
            let times = machine.access_times()?;
            checked.push((times, storages(machine, &asked, machines.len() == 1)?));
        }
        let options = Options::try_from(&asked)?;
        let mut hosts = Vec::new();
        for (machine, (times, storages)) in machines.iter().zip(checked) {
            let nested = asked.nested.map(|size| size.0);
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
        Ok(Self { asked, options, hosts })
    }

    /// The options as read.
    pub fn asked(&self) -> &Asked {
        &self.asked
    }

    /// The checked options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Study only these page sizes.
    #[must_use]
    pub fn only(mut self, page_sizes: &[u64]) -> Self {
        self.options = self.options.only(page_sizes);
        self
    }

    /// The times of faults on each machine, if pages are freed.
    fn faults(&mut self, lives: bool) -> Result<Vec<Option<FaultTimes>>> {
        let faults = |host: &mut Host| host.faults.take().filter(|_| lives).transpose();
        self.hosts.iter_mut().map(faults).collect()
    }

    /// Simulate a trace.
    ///
    /// # Errors
    /// The trace cannot be read; a machine without fault times; the error of `on_progress`.
    pub fn count(
        &mut self,
        trace: &Path,
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<(Counted, Vec<Option<FaultTimes>>)> {
        let reader = Reader::open(trace)?;
        let lives = self.options.lifetimes && lifetimes::known(&reader)?;
        // Before hours of simulation.
        let faults = self.faults(lives)?;
        let processors = self.hosts.iter().map(|host| host.processor.as_ref());
        Ok((Counted::new(&reader, &self.options, processors, on_progress)?, faults))
    }

    /// The result of parts that together have every page size once.
    ///
    /// # Errors
    /// Parts of different studies; a machine without fault times.
    pub fn join(&mut self, parts: Vec<Counted>) -> Result<Value> {
        let counted = Counted::join(parts)?;
        let faults = self.faults(counted.simulated.lifetimes)?;
        self.result(&counted, faults)
    }

    /// The result as `{"rows", "records", "footprint_bytes", "lifetimes", "peak_resident_bytes", "left_out",
    /// "too_few_frames", "options"}`.
    ///
    /// # Errors
    /// Those of [`rows`].
    pub fn result(&self, counted: &Counted, faults: Vec<Option<FaultTimes>>) -> Result<Value> {
        let Self { asked, options, hosts } = self;
        let simulated = &counted.simulated;
        let mut all_rows = Vec::new();
        for ((host, faults), times) in hosts.iter().zip(faults).zip(&counted.times) {
            all_rows.extend(rows(
                simulated,
                Prices {
                    name: &host.name,
                    times: host.times,
                    faults,
                    storages: &host.storages,
                    write_back: asked.write_back,
                    warm: asked.page_cache == PageCache::Warm,
                    machine: times.as_deref(),
                },
            )?);
        }
        let left_out = simulated.left_out.iter();
        let left_out: Vec<_> = left_out.map(|size| (size.page_bytes, size.least)).collect();
        Ok(serde_json::json!({
            "rows": all_rows,
            "records": simulated.records,
            "footprint_bytes": simulated.footprint_bytes,
            "lifetimes": simulated.lifetimes,
            "peak_resident_bytes":
                (simulated.lifetimes && options.has_fractions()).then_some(simulated.whole_bytes),
            "left_out": left_out,
            "too_few_frames": simulated.too_few_frames,
            "options": asked.plain(),
        }))
    }
}
