//! `umd`: UMD, the DRAM-interface SSD of paper 002, with a file in place of its flash.
//!
//! A stored page goes to the device's small DRAM, and to flash when it is the least recently used. A
//! simulated flash translation layer chooses the physical pages; the file has their content at the same
//! offsets. The file is in the page cache and fast, so the tier waits for the simulated time
//! ([`nearfar_hardware::umd`]) of each **service**, a load of a page into the device's DRAM. The host sends
//! no TRIM, so freed pages are programmed and garbage-collected too, as in the paper.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use nearfar_hardware::Machine;
use nearfar_hardware::flash::{Geometry, Op, Overwrite, Precondition};
use nearfar_hardware::umd::{Content, Umd};
use nearfar_trace::{Error, Result};
use rustc_hash::FxHashMap;

use super::slots::Slots;
use super::{Arrival, Far, Fault, Fetch, TierEntry};
use crate::linux::monotonic;
use crate::{PAGE, Slot};

pub static TIER: TierEntry = TierEntry {
    what: "a simulated DRAM-interface SSD; its flash is a temporary file",
    argument: "MACHINE",
    is_mapped: false,
    own_time: Some("whose machine file determines the latency"),
    check: |machine, pages| {
        OnFlash::open(machine, pages)?;
        let is_path = machine.contains('/') || machine.ends_with(".toml");
        if is_path { super::absolute_path(machine) } else { Ok(machine.to_owned()) }
    },
    make: |machine, pages| Ok(Box::new(OnFlash::open(machine, pages)?)),
};

/// Size of the device's DRAM in bytes.
const DRAM: u64 = 1 << 20;
/// Maximum number of services in flight, and the number at which stores should wait.
const SERVICES: usize = 128;
const STORING: usize = 16;
/// The default precondition of the `ssd` study.
const PRECONDITION: Precondition =
    Precondition { sequential: 0.6, random: 0.5, overwrite: Overwrite::Drawn, seed: 1 };

/// A device that is created at the first store: few of a run's processes need one.
struct OnFlash {
    machine: Machine,
    /// The file of the flash, until the device has it.
    file: Option<File>,
    slots: Slots,
    stored_pages: u64,
    device: Option<Device>,
}

/// A logical page of the device; its number is that of the slot.
type Logical = u32;

struct Device {
    umd: Umd,
    file: File,
    /// Whether each physical page holds a stored page. The file has no content of the others.
    is_stored: Vec<bool>,
    /// The device's DRAM, and the frame of each page in it.
    dram: Vec<u8>,
    frames: FxHashMap<Logical, u32>,
    free: Vec<u32>,
    /// Services in flight by job number, and the job number of each page being loaded.
    services: FxHashMap<u32, Service>,
    pending: FxHashMap<Logical, u32>,
    /// Requested pages that wait until fewer services are in flight, with the times of the requests.
    queue: VecDeque<(Logical, u64)>,
    arrivals: Vec<Arrival>,
    /// Content of a page that garbage collection moves.
    moved: Vec<u8>,
    now: u64,
    /// When the next event of the device is due.
    due: u64,
}

struct Service {
    page: Logical,
    began: u64,
    predicted_ns: u64,
    /// Whether the page was requested by `fetch`.
    requested: bool,
}

impl OnFlash {
    /// Fails if the machine does not exist or has no flash of this size and page size.
    fn open(machine: &str, pages: u32) -> Result<Self> {
        let machine = Machine::load(machine, Path::new(""))?;
        let geometry = Geometry::new(&machine)?;
        if geometry.page_bytes != PAGE as u64 {
            let what =
                format!("the flash of {} has pages of {} bytes", machine.name, geometry.page_bytes);
            return Err(Error::input(
                "--far umd",
                what,
                format!("use a machine whose flash has pages of {PAGE} bytes"),
            ));
        }
        if pages > geometry.user_pages {
            let user = geometry.user_bytes();
            let what = format!("the device of {} holds {user} bytes", machine.name);
            return Err(Error::input("--far umd", what, format!("give --far-size {user} or less")));
        }
        Umd::new(&machine, DRAM)?;
        let folder = std::env::temp_dir();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_TMPFILE | libc::O_CLOEXEC)
            .open(&folder)
            .map_err(|error| Error::io(&folder, "making a file in", &error))?;
        Ok(Self {
            machine,
            file: Some(file),
            slots: Slots::new(pages),
            stored_pages: 0,
            device: None,
        })
    }

    fn device(&mut self) -> std::result::Result<&mut Device, Fault> {
        let device = match (self.device.take(), self.file.take()) {
            (Some(device), _) => device,
            (None, Some(file)) => Device::new(&self.machine, file)
                .map_err(|error| Fault::Broken(error.to_string()))?,
            (None, None) => return Err(Fault::Broken("the device could not be made".into())),
        };
        Ok(self.device.insert(device))
    }
}

fn offset_of(page: u32) -> u64 {
    u64::from(page) * PAGE as u64
}

fn broken(doing: &str, error: &std::io::Error) -> Fault {
    Fault::Broken(format!("{doing} the file of the flash: {error}"))
}

impl Device {
    fn new(machine: &Machine, file: File) -> Result<Self> {
        let mut umd = Umd::new(machine, DRAM)?;
        umd.precondition(&PRECONDITION);
        let frames = umd.frames();
        Ok(Self {
            is_stored: vec![false; umd.ftl().geometry().total_pages() as usize],
            dram: vec![0; frames as usize * PAGE],
            frames: FxHashMap::default(),
            free: (0..frames).rev().collect(),
            services: FxHashMap::default(),
            pending: FxHashMap::default(),
            queue: VecDeque::new(),
            arrivals: Vec::new(),
            moved: vec![0; PAGE],
            now: 0,
            due: u64::MAX,
            umd,
            file,
        })
    }

    fn frame(&mut self, page: Logical) -> &mut [u8] {
        let frame = self.frames[&page] as usize;
        &mut self.dram[frame * PAGE..][..PAGE]
    }

    /// Whether the host can use the page in the device's DRAM now.
    fn is_here(&self, page: Logical) -> bool {
        self.umd.resident(page) && !self.pending.contains_key(&page)
    }

    /// Advance the time to `now`: finish services and start queued ones.
    fn advance(&mut self, now: u64) -> std::result::Result<(), Fault> {
        self.now = self.now.max(now);
        while self.umd.array().next_event().is_some_and(|next| next <= self.now) {
            self.umd.array().step();
        }
        while let Some((ended, number)) = self.umd.array().finished() {
            let Some(service) = self.services.remove(&number) else { continue };
            self.pending.remove(&service.page);
            self.umd.arrived(service.page);
            if service.requested {
                self.arrivals.push(Arrival {
                    slot: Slot::new(service.page),
                    predicted_ns: service.predicted_ns,
                    took_ns: ended - service.began,
                });
            }
        }
        while self.services.len() < SERVICES
            && let Some((page, began)) = self.queue.pop_front()
        {
            self.request(page, began)?;
        }
        self.due = self.umd.array().next_event().unwrap_or(u64::MAX);
        Ok(())
    }

    /// Start a service for a page that was requested at `began`.
    fn request(&mut self, page: Logical, began: u64) -> std::result::Result<(), Fault> {
        if let Some(number) = self.pending.get(&page) {
            if let Some(service) = self.services.get_mut(number) {
                service.requested = true;
            }
        } else if self.umd.resident(page) || !self.begin(page, false, Some(began))? {
            self.arrivals.push(Arrival { slot: Slot::new(page), predicted_ns: 0, took_ns: 0 });
        }
        Ok(())
    }

    /// Load a page into the device's DRAM, from flash unless it is `new`. `requested`: when `fetch` requested
    /// it, if it did. Returns whether the load takes time.
    fn begin(
        &mut self,
        page: Logical,
        new: bool,
        requested: Option<u64>,
    ) -> std::result::Result<bool, Fault> {
        let content = if new { Content::New } else { Content::Stored };
        let loading = self.umd.load(self.now, page, content);
        let frame = match loading.evicted {
            Some(evicted) => self.frames.remove(&evicted),
            None => self.free.pop(),
        };
        let frame = frame.ok_or_else(|| Fault::Broken("the device has lost a frame".into()))?;
        self.frames.insert(page, frame);
        self.carry_out(frame)?;
        if let Some(begun) = loading.service {
            let service = Service {
                page,
                began: requested.unwrap_or(self.now),
                predicted_ns: begun.predicted_ns,
                requested: requested.is_some(),
            };
            self.services.insert(begun.job, service);
            self.pending.insert(page, begun.job);
        }
        self.due = self.umd.array().next_event().unwrap_or(u64::MAX);
        Ok(loading.service.is_some())
    }

    /// Apply the flash commands of the last load to the file. The evicted page is in `frame`, and the loaded
    /// page replaces it.
    fn carry_out(&mut self, frame: u32) -> std::result::Result<(), Fault> {
        let frame = &mut self.dram[frame as usize * PAGE..][..PAGE];
        let mut moved_is_stored = false;
        for command in self.umd.commands() {
            let page = command.page as usize;
            match (command.op, command.collection) {
                (Op::Read, false) if self.is_stored[page] => self
                    .file
                    .read_exact_at(frame, offset_of(command.page))
                    .map_err(|error| broken("reading", &error))?,
                // Only the precondition has written the page, so it has no content.
                (Op::Read, false) => frame.fill(0),
                (Op::Read, true) => {
                    moved_is_stored = self.is_stored[page];
                    if moved_is_stored {
                        self.file
                            .read_exact_at(&mut self.moved, offset_of(command.page))
                            .map_err(|error| broken("reading", &error))?;
                    }
                }
                (Op::Program, collection) => {
                    let content = if collection { &self.moved[..] } else { &*frame };
                    self.is_stored[page] = moved_is_stored || !collection;
                    if self.is_stored[page] {
                        self.file
                            .write_all_at(content, offset_of(command.page))
                            .map_err(|error| broken("writing", &error))?;
                    }
                }
                (Op::Erase, _) => {}
            }
        }
        Ok(())
    }

    /// Wait for the next event.
    fn wait(&mut self) -> std::result::Result<(), Fault> {
        let now = monotonic();
        if now < self.due && self.due < u64::MAX {
            std::thread::sleep(Duration::from_nanos(self.due - now));
        }
        self.advance(monotonic())
    }
}

impl Far for OnFlash {
    fn store(&mut self, page: &[u8]) -> std::result::Result<Slot, Fault> {
        let slot = self.slots.take()?;
        let device = self.device()?;
        let number = slot.number();
        device.advance(monotonic())?;
        while device.pending.contains_key(&number) || device.services.len() >= SERVICES {
            device.wait()?;
        }
        if device.umd.resident(number) {
            device.umd.touch(number, true);
        } else {
            device.begin(number, true, None)?;
        }
        device.frame(number).copy_from_slice(page);
        self.stored_pages += 1;
        Ok(slot)
    }

    fn load(&mut self, slot: Slot, page: &mut [u8]) -> std::result::Result<(), Fault> {
        let number = slot.number();
        let device = self.device()?;
        device.advance(monotonic())?;
        while !device.is_here(number) {
            if !device.umd.resident(number) && device.services.len() < SERVICES {
                device.begin(number, false, None)?;
            } else {
                device.wait()?;
            }
        }
        device.umd.touch(number, false);
        page.copy_from_slice(device.frame(number));
        Ok(())
    }

    fn free(&mut self, slot: Slot) {
        self.stored_pages -= 1;
        self.slots.free(slot);
    }

    fn fetch(&mut self, slot: Slot, now_ns: u64) -> std::result::Result<Fetch, Fault> {
        let page = slot.number();
        let device = self.device()?;
        device.advance(now_ns)?;
        if device.is_here(page) {
            return Ok(Fetch::Ready);
        }
        let queued = device.queue.iter().any(|(other, _)| *other == page);
        if !device.pending.contains_key(&page) && device.services.len() >= SERVICES {
            if !queued {
                device.queue.push_back((page, now_ns));
            }
            // A lower bound: its service starts when one of those in flight has ended.
            let Device { services, umd, .. } = device;
            let left = services.keys().map(|number| umd.array().left_ns(*number)).min();
            let predicted_ns = left.unwrap_or(0);
            return Ok(Fetch::Pending { predicted_ns });
        }
        device.request(page, now_ns)?;
        let number = device.pending.get(&page).copied();
        let predicted_ns = number.map_or(0, |number| device.umd.array().left_ns(number));
        Ok(Fetch::Pending { predicted_ns })
    }

    fn arrived(&mut self, now_ns: u64, into: &mut Vec<Arrival>) -> std::result::Result<(), Fault> {
        if let Some(device) = &mut self.device {
            device.advance(now_ns)?;
            into.append(&mut device.arrivals);
        }
        Ok(())
    }

    fn due(&self) -> u64 {
        match &self.device {
            None => u64::MAX,
            // A page has arrived during a store.
            Some(device) if !device.arrivals.is_empty() => 0,
            Some(device) => device.due,
        }
    }

    fn busy_until(&self) -> u64 {
        match &self.device {
            Some(device) if device.services.len() >= STORING => device.due,
            _ => 0,
        }
    }

    fn bytes(&self) -> u64 {
        self.stored_pages * PAGE as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{MAX_PAGES, comes_back, work};
    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]

        /// Pages that do not fit the device's DRAM come back from flash, and not before the predicted time.
        #[test]
        fn stored_pages_come_back_from_flash(work in work()) {
            let far = (TIER.make)("umd", MAX_PAGES).unwrap();
            comes_back(far, &work, |Arrival { slot, predicted_ns, took_ns }| {
                assert!(took_ns >= predicted_ns, "{slot:?}: {took_ns} ns, predicted {predicted_ns}");
            });
        }
    }

    #[test]
    fn a_file_that_fails_while_pages_are_queued_is_reported_with_the_arrivals() {
        let pages = 4 * SERVICES as u32;
        let mut far = OnFlash::open("umd", pages).unwrap();
        let slots: Vec<Slot> = (0..pages).map(|_| far.store(&[1; PAGE]).unwrap()).collect();
        let stored: Vec<Slot> = slots
            .into_iter()
            .filter(|slot| !far.device().unwrap().is_here(slot.number()))
            .collect();
        for slot in &stored[..SERVICES + 1] {
            far.fetch(*slot, monotonic()).unwrap();
        }
        let device = far.device().unwrap();
        assert!(!device.queue.is_empty());
        device.file = File::open("/dev/null").unwrap();
        let later = monotonic() + 1_000_000_000;
        assert!(matches!(far.arrived(later, &mut Vec::new()), Err(Fault::Broken(_))));
    }
}
