//! The DRAM-interface SSD (UMD) and its services, which load pages into its DRAM.

use nearfar_hardware::flash::Late;
use nearfar_hardware::umd::{Content, Loading, Umd};

use super::histogram::Histogram;
use crate::slot;

#[derive(Clone, Copy, Default)]
struct Service {
    page: u32,
    submitted: u64,
    predicted: u64,
}

/// The device during a run. Pages are numbers on the device; times are nanoseconds.
pub struct Device {
    pub umd: Umd,
    /// By job number.
    services: Vec<Service>,
    /// Services in progress: page and job; at most one per thread.
    arriving: Vec<(u32, u32)>,
    /// Predicted service times.
    pub predicted: Histogram,
    /// Actual service times.
    pub actual: Histogram,
    /// Actual less predicted times.
    pub error: Histogram,
    /// Largest `error`.
    pub error_max: u64,
    /// Sum of `error`, by cause.
    pub late: Late,
    /// Services that took longer than predicted.
    pub late_services: u64,
    /// Services that read the page from flash.
    pub from_flash: u64,
}

impl Device {
    pub fn new(umd: Umd) -> Self {
        Self {
            umd,
            services: Vec::new(),
            arriving: Vec::new(),
            predicted: Histogram::default(),
            actual: Histogram::default(),
            error: Histogram::default(),
            error_max: 0,
            late: Late::default(),
            late_services: 0,
            from_flash: 0,
        }
    }

    /// Load `page`, which is not in the DRAM; see [`Umd::load`].
    pub fn load(&mut self, now: u64, page: u32, content: Content) -> Loading {
        let loading = self.umd.load(now, page, content);
        if let Some(service) = loading.service {
            let predicted = service.predicted_ns;
            *slot(&mut self.services, service.job) = Service { page, submitted: now, predicted };
            self.arriving.push((page, service.job));
            self.predicted.add(predicted);
            self.from_flash += u64::from(service.from_flash);
        }
        loading
    }

    /// Let the device work until `now`. `arrived` is called with each page whose service ends and the
    /// time of its end.
    pub fn advance(&mut self, now: u64, mut arrived: impl FnMut(u32, u64)) {
        while self.umd.array().next_event().is_some_and(|time| time <= now) {
            self.umd.array().step();
            while let Some((end, job)) = self.umd.array().finished() {
                let service = self.services[job as usize];
                self.umd.arrived(service.page);
                self.arriving.retain(|(_, other)| *other != job);
                let took = end - service.submitted;
                let late = self.umd.array().late(job);
                assert_eq!(
                    took,
                    service.predicted + late.ns(),
                    "a service took its steps and waits"
                );
                self.actual.add(took);
                self.error.add(late.ns());
                self.error_max = self.error_max.max(late.ns());
                self.late_services += u64::from(late.ns() > 0);
                self.late.die += late.die;
                self.late.channel += late.channel;
                self.late.erase += late.erase;
                arrived(service.page, end);
            }
        }
    }

    pub fn is_arriving(&self, page: u32) -> bool {
        self.job_of(page).is_some()
    }

    /// The device's remaining work for `page`; `None` if `page` is not arriving.
    pub fn left_ns(&mut self, page: u32) -> Option<u64> {
        self.job_of(page).map(|job| self.umd.array().left_ns(job))
    }

    fn job_of(&self, page: u32) -> Option<u32> {
        self.arriving.iter().find(|(arriving, _)| *arriving == page).map(|(_, job)| *job)
    }
}
