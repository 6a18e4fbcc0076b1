//! `umd`: the device of UMD (paper 002), with a file in the place of its flash.
//!
//! A page that is stored goes to the device's small DRAM, and from there to flash when it is the least
//! recently used. Where in flash is decided by nearfar's own translation layer, which collects too: the
//! file holds what the flash would hold, at the same place. How long a service takes is what the device of
//! the `ssd` study says ([`nearfar_hardware::umd`]): the file is in the system's page cache and quicker,
//! and the tier keeps to the device's time. The host does not tell the device what
//! it has freed, so that is programmed and collected like everything else, as in the paper.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use nearfar_hardware::Machine;
use nearfar_hardware::flash::{Geometry, Op, Overwrite, Precondition};
use nearfar_hardware::umd::Umd;
use nearfar_trace::{Error, Result};
use rustc_hash::FxHashMap;

use super::slots::Slots;
use super::{Arrival, Far, Fault, Fetch, Named};
use crate::linux::monotonic;
use crate::{PAGE, Slot};

/// The registry's entry.
pub static TIER: Named = Named {
    what: "a simulated DRAM-interface SSD; its flash is a temporary file",
    argument: "MACHINE",
    is_mapped: false,
    own_time: Some("whose machine says how long pages take"),
    check: |machine, pages| {
        OnFlash::open(machine, pages)?;
        let is_path = machine.contains('/') || machine.ends_with(".toml");
        if is_path { super::whole_path(machine) } else { Ok(machine.to_owned()) }
    },
    make: |machine, pages| Ok(Box::new(OnFlash::open(machine, pages)?)),
};

/// Bytes of the device's DRAM: fast memory is what the host uses, this is between it and the flash.
const DRAM: u64 = 1 << 20;
/// Most services at a time, and most that nobody waits for: what is stored is programmed later.
const SERVICES: usize = 128;
const STORING: usize = 16;
/// A device that has been in use, as the `ssd` study has it by default.
const USED: Precondition =
    Precondition { sequential: 0.6, random: 0.5, overwrite: Overwrite::Drawn, seed: 1 };

/// A device that is made when something is stored for the first time: few of a run's processes need one.
struct OnFlash {
    machine: Machine,
    /// The flash, until the device has it.
    file: Option<File>,
    slots: Slots,
    held: u64,
    device: Option<Device>,
}

/// A logical page of the device: that of the same number as a slot.
type Logical = u32;

struct Device {
    umd: Umd,
    file: File,
    /// Whether a physical page holds one of ours; the others hold what the device was filled with.
    ours: Vec<bool>,
    /// The device's DRAM: where each page of it is.
    dram: Vec<u8>,
    frames: FxHashMap<Logical, u32>,
    free: Vec<u32>,
    /// Services under way, by number, and the pages that they are for.
    services: FxHashMap<u32, Service>,
    coming: FxHashMap<Logical, u32>,
    /// Pages asked for that wait until fewer services are under way.
    queue: VecDeque<(Logical, u64)>,
    arrivals: Vec<Arrival>,
    moved: Vec<u8>,
    now: u64,
    /// When something happens next.
    due: u64,
}

struct Service {
    page: Logical,
    began: u64,
    predicted_ns: u64,
    /// Somebody waits for it.
    asked: bool,
}

impl OnFlash {
    /// # Errors
    /// Input errors: no such machine, one without flash, flash that is too small or of other pages.
    fn open(machine: &str, pages: u32) -> Result<Self> {
        let machine = Machine::load(machine, Path::new(""))?;
        let geometry = Geometry::new(&machine)?;
        if geometry.page_bytes != PAGE as u64 {
            let what = format!("the flash of {} has pages of {}", machine.name, geometry.page_bytes);
            return Err(Error::input("--far umd", what, format!("use one with pages of {PAGE}")));
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
        Ok(Self { machine, file: Some(file), slots: Slots::new(pages), held: 0, device: None })
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

fn at(place: u32) -> u64 {
    u64::from(place) * PAGE as u64
}

fn broken(doing: &str, error: &std::io::Error) -> Fault {
    Fault::Broken(format!("{doing} the file of the flash: {error}"))
}

impl Device {
    fn new(machine: &Machine, file: File) -> Result<Self> {
        let mut umd = Umd::new(machine, DRAM)?;
        umd.precondition(&USED);
        let frames = umd.frames();
        Ok(Self {
            ours: vec![false; umd.ftl().geometry().total_pages() as usize],
            dram: vec![0; frames as usize * PAGE],
            frames: FxHashMap::default(),
            free: (0..frames).rev().collect(),
            services: FxHashMap::default(),
            coming: FxHashMap::default(),
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
        self.umd.resident(page) && !self.coming.contains_key(&page)
    }

    /// Time goes on: services end, and others begin.
    fn advance(&mut self, now: u64) -> std::result::Result<(), Fault> {
        self.now = self.now.max(now);
        while self.umd.array().next_event().is_some_and(|next| next <= self.now) {
            self.umd.array().step();
        }
        while let Some((ended, number)) = self.umd.array().finished() {
            let Some(service) = self.services.remove(&number) else { continue };
            self.coming.remove(&service.page);
            self.umd.arrived(service.page);
            if service.asked {
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
            self.ask(page, began)?;
        }
        self.due = self.umd.array().next_event().unwrap_or(u64::MAX);
        Ok(())
    }

    /// Begin a service for a page that somebody has asked for at `began`.
    fn ask(&mut self, page: Logical, began: u64) -> std::result::Result<(), Fault> {
        if let Some(number) = self.coming.get(&page) {
            if let Some(service) = self.services.get_mut(number) {
                service.asked = true;
            }
        } else if self.umd.resident(page) || !self.begin(page, false, Some(began))? {
            self.arrivals.push(Arrival { slot: Slot::new(page), predicted_ns: 0, took_ns: 0 });
        }
        Ok(())
    }

    /// Bring a page to the device's DRAM, `new` or with what the flash has of it; whether that takes time.
    fn begin(
        &mut self,
        page: Logical,
        new: bool,
        asked: Option<u64>,
    ) -> std::result::Result<bool, Fault> {
        let loading = self.umd.load(self.now, page, new);
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
                began: asked.unwrap_or(self.now),
                predicted_ns: begun.predicted_ns,
                asked: asked.is_some(),
            };
            self.services.insert(begun.job, service);
            self.coming.insert(page, begun.job);
        }
        self.due = self.umd.array().next_event().unwrap_or(u64::MAX);
        Ok(loading.service.is_some())
    }

    /// Do to the file what the commands of the last load do to the flash. What leaves the DRAM is in
    /// `frame`, and what comes goes there.
    fn carry_out(&mut self, frame: u32) -> std::result::Result<(), Fault> {
        let frame = &mut self.dram[frame as usize * PAGE..][..PAGE];
        let mut moves = false;
        for command in self.umd.commands() {
            let place = command.page as usize;
            match (command.op, command.collection) {
                (Op::Read, false) if self.ours[place] => self
                    .file
                    .read_exact_at(frame, at(command.page))
                    .map_err(|error| broken("reading", &error))?,
                // Freed, and asked for all the same.
                (Op::Read, false) => frame.fill(0),
                (Op::Read, true) => {
                    moves = self.ours[place];
                    if moves {
                        self.file
                            .read_exact_at(&mut self.moved, at(command.page))
                            .map_err(|error| broken("reading", &error))?;
                    }
                }
                (Op::Program, collection) => {
                    let content = if collection { &self.moved[..] } else { &*frame };
                    self.ours[place] = moves || !collection;
                    if self.ours[place] {
                        self.file
                            .write_all_at(content, at(command.page))
                            .map_err(|error| broken("writing", &error))?;
                    }
                }
                (Op::Erase, _) => {}
            }
        }
        Ok(())
    }

    /// Wait until something has happened.
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
        while device.coming.contains_key(&number) || device.services.len() >= SERVICES {
            device.wait()?;
        }
        if device.umd.resident(number) {
            device.umd.touch(number, true);
        } else {
            device.begin(number, true, None)?;
        }
        device.frame(number).copy_from_slice(page);
        self.held += 1;
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
        self.held -= 1;
        self.slots.free(slot);
    }

    fn fetch(&mut self, slot: Slot, now_ns: u64) -> std::result::Result<Fetch, Fault> {
        let page = slot.number();
        let device = self.device()?;
        device.advance(now_ns)?;
        if device.is_here(page) {
            return Ok(Fetch::Here);
        }
        let queued = device.queue.iter().any(|(other, _)| *other == page);
        if !device.coming.contains_key(&page) && device.services.len() >= SERVICES {
            if !queued {
                device.queue.push_back((page, now_ns));
            }
            // At least until one of those before it is over.
            let Device { services, umd, .. } = device;
            let left = services.keys().map(|number| umd.array().left_ns(*number)).min();
            let predicted_ns = left.unwrap_or(0);
            return Ok(Fetch::Coming { predicted_ns });
        }
        device.ask(page, now_ns)?;
        let number = device.coming.get(&page).copied();
        let predicted_ns = number.map_or(0, |number| device.umd.array().left_ns(number));
        Ok(Fetch::Coming { predicted_ns })
    }

    fn arrived(&mut self, now_ns: u64, into: &mut Vec<Arrival>) {
        if let Some(device) = &mut self.device {
            // What goes wrong with the file is said by the request that comes next.
            let _ = device.advance(now_ns);
            into.append(&mut device.arrivals);
        }
    }

    fn due(&self) -> u64 {
        match &self.device {
            None => u64::MAX,
            // Something has come while another page was stored.
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
        self.held * PAGE as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{WORK, comes_back, work};
    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]

        /// More pages than the device's DRAM has room for come back from flash as well, and not before
        /// the device says.
        #[test]
        fn what_goes_to_flash_comes_back(work in work()) {
            let far = (TIER.make)("umd", WORK.1).unwrap();
            comes_back(far, &work, |Arrival { slot, predicted_ns, took_ns }| {
                assert!(took_ns >= predicted_ns, "{slot:?}: {took_ns} ns, predicted {predicted_ns}");
            });
        }
    }
}
