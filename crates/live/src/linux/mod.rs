//! [`Kernel`] on the real kernel, Linux 6.8 or later.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use nearfar_kernel::tiering::NodeId;
use nearfar_trace::{Error, Result};

pub(crate) use self::descriptors::owned;
pub use self::descriptors::{copy_of, process_of};
use self::mapping::Mapping;
pub use self::maps::MapsLine;
use self::nodes::Nodes;
pub use self::owner::Owner;
use self::pagemap::Pagemap;
pub use self::stand_in::{StandInThread, StandIns};
pub(crate) use self::system::monotonic;
pub use self::system::{block_all_signals, processor_time, wait};
use self::uffd::{Message, Uffd, feature};
use crate::{Fail, Frame, Kernel, PAGE, Range, Regions, Va};

mod descriptors;
mod mapping;
mod maps;
mod nodes;
mod owner;
mod pagemap;
mod requests;
mod stand_in;
mod system;
#[cfg(test)]
mod tests;
mod uffd;

/// Maximum number of messages of one read. Faults are read first, at most one per thread; a program usually
/// has fewer threads than this, so that other messages fit too.
const BATCH: usize = 64;
/// Size of the discard area in pages: maximum number of frames that are freed at once.
const DISCARD_PAGES: u64 = 64;
/// Minimum and maximum time for which the areas are unreachable, in `Linux::fail_references`.
const UNREACHABLE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(64));
const MAPS: &str = "/proc/self/maps";
/// `MADV_DONTNEED` for memory that may be locked (Linux 5.18).
pub const MADV_DONTNEED_LOCKED: i32 = 24;

/// The kernel, for this process.
#[derive(Debug)]
pub struct Linux {
    /// Registers the program's memory and the parking area: frames out of the program's reach ([`Kernel`]).
    program: Uffd,
    /// Registers the discard area: frames are moved there, and freed by `madvise`. Unlike `program`, it sends
    /// no messages about removals: `madvise` would wait until the message is read.
    discard_uffd: Uffd,
    discard_area: Mapping,
    /// Number of pages of the discard area that have frames: its first ones.
    discard_used: u64,
    /// The parking area. Its last page is the doorbell.
    parking: Mapping,
    doorbell_rang: bool,
    /// How long the parking area was unreachable last time.
    unreachable_for: Duration,
    /// When the manager last made progress.
    heartbeat: Option<&'static AtomicU64>,
    /// Source of `place_zeros`, which places at most this many bytes at once.
    zeros: Vec<u8>,
    messages: Vec<Message>,
    children: Vec<Option<Uffd>>,
    stand_ins: Option<StandIns>,
    /// Set if the far tier is a memory node.
    nodes: Option<Nodes>,
    /// Never managed: everything that was mapped before the program's `main`.
    excluded: Regions,
    maps: File,
    pagemap: Pagemap,
    maps_text: Vec<u8>,
}

impl Linux {
    /// Open userfaultfd with a parking area of this many places, one frame each. Everything that is mapped
    /// now stays unmanaged.
    ///
    /// # Errors
    /// What is missing, and how to get it.
    pub fn open(places: u32) -> Result<Self> {
        // SAFETY: returns a number.
        check_page_size(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })?;
        let system = |error: io::Error| Error::io(Path::new("userfaultfd"), "opening", &error);
        let features = feature::PAGEFAULT_FLAG_WP
            | feature::EVENT_FORK
            | feature::EVENT_REMAP
            | feature::EVENT_REMOVE
            | feature::EVENT_UNMAP
            | feature::THREAD_ID
            | feature::MOVE;
        let program = Uffd::open(features).map_err(|error| refused(&error))?;
        let discard_uffd = Uffd::open(feature::MOVE).map_err(|error| refused(&error))?;
        let parking = Mapping::new(u64::from(places) + 1).map_err(system)?;
        let discard_area = Mapping::new(DISCARD_PAGES).map_err(system)?;
        let length = |mapping: &Mapping| mapping.pages * PAGE as u64;
        // `false`: not for write protection.
        program.register(parking.address(), length(&parking), false).map_err(system)?;
        discard_uffd
            .register(discard_area.address(), length(&discard_area), false)
            .map_err(system)?;
        let open =
            |path| File::open(path).map_err(|error| Error::io(Path::new(path), "opening", &error));
        let mut kernel = Self {
            program,
            discard_uffd,
            discard_area,
            discard_used: 0,
            parking,
            doorbell_rang: false,
            unreachable_for: Duration::ZERO,
            heartbeat: None,
            zeros: vec![0; 64 * PAGE],
            messages: vec![Message::default(); BATCH],
            children: Vec::new(),
            stand_ins: None,
            nodes: None,
            excluded: Regions::default(),
            maps: open(MAPS)?,
            pagemap: Pagemap::new(open("/proc/self/pagemap")?),
            maps_text: Vec::with_capacity(1 << 20),
        };
        kernel.exclude_all()?;
        Ok(kernel)
    }

    /// Never manage what is mapped now.
    ///
    /// # Errors
    /// The list of mappings cannot be read.
    pub fn exclude_all(&mut self) -> Result<()> {
        self.read_maps().map_err(|error| Error::io(Path::new(MAPS), "reading", &error))?;
        for mapping in MapsLine::all(&self.maps_text) {
            self.excluded.add(range(mapping.start, mapping.end));
        }
        for area in [self.parking.range(), self.discard_area.range()] {
            self.excluded.add(area);
        }
        Ok(())
    }

    /// Keep the processors of waiting threads busy with these threads.
    pub fn use_stand_ins(&mut self, threads: StandIns) {
        self.stand_ins = Some(threads);
    }

    /// Use this memory node as the far tier. Frames come from the nodes that the calling thread prefers, so
    /// all requests must come from one thread.
    ///
    /// # Errors
    /// The node cannot be used.
    pub fn use_node(&mut self, argument: &str) -> Result<()> {
        let (far, fast) = crate::far::nodes(argument)?;
        self.nodes = Some(Nodes::new(far, &fast));
        Ok(())
    }

    fn prefer(&mut self, node: NodeId) {
        if let Some(nodes) = &mut self.nodes {
            nodes.prefer(node != NodeId::FAST);
        }
    }

    /// Readable when there is a message.
    pub fn descriptor(&self) -> RawFd {
        self.program.as_raw_fd()
    }

    /// Record the manager's progress here during long operations.
    pub fn set_heartbeat(&mut self, heartbeat: &'static AtomicU64) {
        self.heartbeat = Some(heartbeat);
    }

    /// Wait for a message, for one of `others` to be readable, or for this time. Returns whether `others[1]`
    /// is readable.
    pub fn wait(&mut self, others: [Option<RawFd>; 2], nanoseconds: u64) -> bool {
        let [first, second] = others;
        let discard = Some(self.discard_uffd.as_raw_fd());
        let ready = wait([Some(self.descriptor()), first, second, discard], nanoseconds);
        if ready[3] {
            self.check_discard_area();
        }
        ready[2]
    }

    /// The address of the doorbell. A thread that references it waits until the manager has looked for new
    /// memory.
    pub fn doorbell(&self) -> u64 {
        self.parking.last().address()
    }

    /// The number of present pages at these addresses.
    pub fn count_present(&mut self, addresses: std::ops::Range<u64>) -> u64 {
        self.pagemap.count(range(addresses.start, addresses.end))
    }

    /// Whether a thread waits at the doorbell.
    pub fn doorbell_rang(&self) -> bool {
        self.doorbell_rang
    }

    /// Wake the threads that wait at the doorbell.
    pub fn reset_doorbell(&mut self) {
        let at = self.parking.last();
        if self.place_zeros(at, 1) != Err(Fail::Again) {
            self.doorbell_rang = false;
            self.discard(Frame::new((self.parking.pages - 1) as u32), 1);
        }
    }

    fn check_discard_area(&mut self) {
        if self.discard_uffd.read(&mut self.messages) > 0 {
            self.fail_references();
        }
    }

    /// Handle a reference to an empty place of the parking or discard area: `mlockall` references all memory,
    /// and a debugger may read it. No page can be placed there. So both areas become unreachable for a
    /// moment, which makes the reference fail.
    fn fail_references(&mut self) {
        self.unreachable_for = (2 * self.unreachable_for).clamp(UNREACHABLE.0, UNREACHABLE.1);
        let areas = [(&self.program, &self.parking), (&self.discard_uffd, &self.discard_area)];
        for (uffd, mapping) in areas {
            mapping.set_reachable(false);
            uffd.wake(mapping.address(), mapping.pages * PAGE as u64);
        }
        std::thread::sleep(self.unreachable_for);
        for (_, mapping) in areas {
            // First unlock it: locked memory is filled as soon as it is writable.
            mapping.unlock();
            mapping.set_reachable(true);
        }
    }

    /// Read the list of mappings again. After an error, it is incomplete.
    fn read_maps(&mut self) -> io::Result<()> {
        self.maps_text.clear();
        self.maps.rewind()?;
        self.maps.read_to_end(&mut self.maps_text).map(drop)
    }

    /// The number of bytes that a move of `pages` pages, which returned `done`, has really moved. Linux 6.17
    /// and later retry at a page that was changing, but keep the first error if the retry succeeds
    /// (`move_pages` in mm/userfaultfd.c), and report `EEXIST` or a shorter move. A page that is no longer at
    /// its source has moved: nothing else removes a page during a request, as the caller must first read the
    /// message about the removal.
    fn check_moved(
        &mut self,
        done: std::result::Result<u64, Fail>,
        to: u64,
        from: u64,
        pages: u64,
    ) -> std::result::Result<u64, Fail> {
        match done {
            Ok(moved) if moved == pages * PAGE as u64 => return done,
            Ok(_) | Err(Fail::Exists) => {}
            Err(_) => return done,
        }
        let page = |start: u64, number: u64| Va::of(start).plus(number);
        let mut is_there = |at: Va| !self.pagemap.present(Range::new(at, at.plus(1))).is_empty();
        let moved = (0..pages)
            .take_while(|&number| !is_there(page(from, number)) && is_there(page(to, number)))
            .count();
        if moved == 0 { done } else { Ok(moved as u64 * PAGE as u64) }
    }
}

/// Kernels for aarch64 may have pages of 16 or 64 KiB, and cannot move smaller ones.
fn check_page_size(bytes: libc::c_long) -> Result<()> {
    if usize::try_from(bytes) == Ok(PAGE) {
        return Ok(());
    }
    let what = format!("its page size is {bytes} bytes");
    Err(Error::missing("kernel", what, format!("use one with a page size of {PAGE} bytes")))
}

/// Why userfaultfd is not available.
fn refused(error: &io::Error) -> Error {
    let (what, fix) = match error.raw_os_error() {
        Some(libc::EPERM) => {
            ("this user may not use it", "run as root, or with the capability CAP_SYS_PTRACE")
        }
        Some(libc::ENOSYS) => ("the kernel has none", "use a kernel with CONFIG_USERFAULTFD"),
        Some(libc::EINVAL) => ("the kernel cannot move pages", "use Linux 6.8 or later"),
        _ => return Error::io(Path::new("userfaultfd"), "opening", error),
    };
    Error::missing("userfaultfd", what, fix)
}

fn range(start: u64, end: u64) -> Range {
    Range::new(Va::of(start), Va::of(end))
}
