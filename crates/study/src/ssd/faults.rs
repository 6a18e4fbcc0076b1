//! Handles TLB misses. The first touch of a page is an ordinary page fault. A reference that makes the
//! device load the page, or comes before the load is complete, is an *embedded page fault*: the core stalls
//! or the thread sleeps.

use nearfar_hardware::umd::{Content, Service, Umd};
use nearfar_kernel::epf::{Epf, Fault};
use nearfar_kernel::scheduler::wake_at;
use nearfar_trace::hash::PageMap;
use nearfar_trace::{Error, Result};

use super::cell::Cell;
use super::core::Miss;
use super::device::Device;
use super::disk::{Disk, is_of_file};
use super::options::{FileData, FirstTouch, Host, Replay};
use super::scheduler::Scheduler;
use super::timeline::State;

/// State of a page at the device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PageStatus {
    New,
    /// The kernel has handled the page fault; the device does not have the page yet.
    ToPlace,
    Placed,
}

/// Whether the thread has faulted on this page before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Retry {
    No,
    /// It slept, and woke before the page arrived.
    Early,
    /// It slept, and the page arrived and was evicted again.
    Lost,
}

/// A thread on a core that missed the TLB.
#[derive(Clone, Copy)]
struct MissSite {
    core: usize,
    thread: usize,
    miss: Miss,
}

/// Handles TLB misses. Owns the device and the disk, which supply the pages.
pub struct Faults<'a> {
    host: &'a Host,
    policy: Box<dyn Epf>,
    replay: Replay,
    /// Device page of each virtual page, numbered in order of first touch.
    pages: PageMap<u32>,
    status: Vec<PageStatus>,
    /// The device's DRAM had a free frame at the current miss.
    filling: bool,
    pub device: Device,
    pub disk: Disk,
}

impl<'a> Faults<'a> {
    pub fn new(host: &'a Host, policy: Box<dyn Epf>, replay: Replay, umd: Umd) -> Self {
        let page_bytes = umd.ftl().geometry().page_bytes;
        Self {
            host,
            policy,
            replay,
            pages: PageMap::default(),
            status: Vec::new(),
            filling: true,
            device: Device::new(umd),
            disk: Disk::new(host.disk.as_ref(), page_bytes),
        }
    }

    /// The device page of a virtual page; `None` before its first touch.
    pub fn number(&self, page: u64) -> Option<u32> {
        self.pages.get(&page).copied()
    }

    pub fn advance(&mut self, scheduler: &mut Scheduler<'_>, now: u64) {
        self.device.advance(now, |page, time| scheduler.arrived(page, time));
    }

    /// Handle `miss` of the thread on `core` after the page walk. The thread continues, or waits
    /// and misses again.
    ///
    /// # Errors
    /// If the trace touches more pages than the device has.
    pub fn handle(
        &mut self,
        scheduler: &mut Scheduler<'_>,
        counts: &mut Cell,
        core: usize,
        thread: u32,
        miss: Miss,
    ) -> Result<()> {
        let at = MissSite { core, thread: thread as usize, miss };
        self.filling = self.device.umd.has_room();
        let page = match self.number(miss.page) {
            Some(page) => page,
            None => self.first_touch(miss.page)?,
        };
        let status = self.status[page as usize];
        if status == PageStatus::New {
            self.status[page as usize] = PageStatus::ToPlace;
            counts.page_faults += 1;
            self.page_fault(scheduler, at);
            return Ok(());
        }
        let now = scheduler.cores[core].time;
        if status == PageStatus::Placed && self.device.umd.resident(page) {
            self.advance(scheduler, now);
            let Some(left) = self.device.left_ns(page) else {
                self.translate(scheduler, at, page);
                return Ok(());
            };
            if scheduler.stall_if_bus_held(core) {
                return Ok(());
            }
            // The page is still arriving: predict the remaining service time.
            let retry = if scheduler.threads[at.thread].slept_for == Some(page) {
                counts.overruns += 1;
                Retry::Early
            } else {
                counts.joined_faults += 1;
                Retry::No
            };
            self.embedded_fault(scheduler, counts, at, page, left, retry);
            return Ok(());
        }
        self.advance(scheduler, now);
        if scheduler.stall_if_bus_held(core) {
            return Ok(());
        }
        self.status[page as usize] = PageStatus::Placed;
        let first = status == PageStatus::ToPlace;
        let stored = self.replay.first_touch == FirstTouch::Stored
            && !self.disk.holds(miss.kind)
            && self.device.umd.ftl().place(page).is_some();
        let unseen = self.replay.file_data == FileData::Clean && is_of_file(miss.kind);
        let content = match (first, stored) {
            (true, false) if unseen => Content::Unseen,
            (true, false) => Content::New,
            _ => Content::Stored,
        };
        let loading = self.device.load(now, page, content);
        if let Some(evicted) = loading.evicted {
            scheduler.shoot_down(evicted);
        }
        match loading.service {
            None => self.translate(scheduler, at, page),
            Some(Service { predicted_ns, .. }) => {
                let lost = scheduler.threads[at.thread].slept_for == Some(page);
                let retry = if lost { Retry::Lost } else { Retry::No };
                self.embedded_fault(scheduler, counts, at, page, predicted_ns, retry);
            }
        }
        Ok(())
    }

    /// Give the page the next number on the device.
    fn first_touch(&mut self, page: u64) -> Result<u32> {
        let geometry = self.device.umd.ftl().geometry();
        let number = self.status.len() as u32;
        if number >= geometry.user_pages {
            return Err(Error::input(
                "--machine",
                format!(
                    "the trace touches more than the {} pages of {} bytes that the device has",
                    geometry.user_pages, geometry.page_bytes
                ),
                "give the device more blocks in the machine file's [flash]",
            ));
        }
        self.pages.insert(page, number);
        self.status.push(PageStatus::New);
        Ok(number)
    }

    /// An ordinary page fault. If the disk holds the page, the thread sleeps until it is read.
    fn page_fault(&mut self, scheduler: &mut Scheduler<'_>, at: MissSite) {
        let core = &mut scheduler.cores[at.core];
        core.time += self.host.page_fault_ns;
        core.busy += self.host.page_fault_ns;
        let now = core.time;
        let ready_at = self.disk.read(at.miss.page, at.miss.kind, now);
        if ready_at > now {
            scheduler.threads[at.thread].walked = false;
            scheduler.sleep(at.core, now, State::Disk, ready_at);
        }
    }

    /// An embedded page fault: pass it to the kernel, or stall the core.
    fn embedded_fault(
        &mut self,
        scheduler: &mut Scheduler<'_>,
        counts: &mut Cell,
        at: MissSite,
        page: u32,
        predicted_ns: u64,
        retry: Retry,
    ) {
        // Early retries count as `overruns` instead.
        let counted = u64::from(retry != Retry::Early);
        counts.embedded_faults += counted;
        counts.faults_while_filling += counted * u64::from(self.filling);
        if !self.policy.pass(&Fault { predicted_ns }) {
            return self.stall(scheduler, at.core, page);
        }
        counts.passed_to_kernel += counted;
        let core = &mut scheduler.cores[at.core];
        let raised = core.time;
        core.time += self.host.exception_ns;
        core.switch += self.host.exception_ns;
        // A thread that lost its page stays awake: otherwise two threads could evict each other's page
        // for ever.
        if self.replay.atomic.contains(at.miss.kind) || retry == Retry::Lost {
            return self.stall(scheduler, at.core, page);
        }
        counts.slept += 1;
        let wakes = wake_at(raised, predicted_ns, self.host.sleep_granularity_ns).max(core.time);
        let thread = &mut scheduler.threads[at.thread];
        (thread.slept_for, thread.walked) = (Some(page), false);
        scheduler.sleep(at.core, raised, State::Sleep, wakes);
    }

    /// The core waits for `page`, if it is still arriving.
    fn stall(&mut self, scheduler: &mut Scheduler<'_>, core: usize, page: u32) {
        self.advance(scheduler, scheduler.cores[core].time);
        if self.device.is_arriving(page) {
            scheduler.stall(core, page);
        }
    }

    /// The page is in memory: fill the TLB.
    fn translate(&mut self, scheduler: &mut Scheduler<'_>, at: MissSite, page: u32) {
        scheduler.cores[at.core].fill_tlb(at.miss.side, at.miss.page, page);
        let thread = &mut scheduler.threads[at.thread];
        (thread.walked, thread.slept_for) = (false, None);
        // The page must not be evicted before the reference, which is next.
        self.device.umd.touch(page, false);
    }
}
