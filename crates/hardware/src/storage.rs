//! Transfer times of a page from or to a storage device, by page size.
//!
//! Three formulas, with parameters from the machine file:
//!
//! * disk: seek + half a turn + p / bandwidth for p bytes.
//! * linear (flash and Optane SSDs, persistent memory, CXL memory): latency, measured at a stated
//!   transfer size, plus the bytes beyond this size / bandwidth.
//! * multiple of DRAM, in papers 000 (page-size advice) and 001 (TLB and fault models): k x t_DRAM
//!   for each access unit of the page.
//!
//! Page sizes are rounded up to multiples of the device's unit.

/// A storage device with every time resolved to nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Storage {
    /// Its name in the machine file.
    pub name: String,
    /// Its kind in the machine file: `hdd`, `nvme`, `nvm`, `pmem`, `cxl` or `zram`.
    pub kind: &'static str,
    pub(crate) read: Cost,
    pub(crate) write: Cost,
    pub(crate) files: Option<Box<Storage>>,
}

/// Nanoseconds to transfer p bytes: `fixed_ns` + `unit_ns` x ceil(p / `unit`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cost {
    pub fixed_ns: f64,
    pub unit: u64,
    pub unit_ns: f64,
}

impl Cost {
    fn ns(&self, bytes: u64) -> f64 {
        // A transfer of 0 bytes is still a request.
        let units = bytes.div_ceil(self.unit).max(1);
        self.fixed_ns + self.unit_ns * units as f64
    }
}

impl Storage {
    /// The storage that holds files: this one, or for compressed memory its disk.
    pub fn files(&self) -> &Self {
        self.files.as_deref().unwrap_or(self)
    }

    /// Nanoseconds to read a page of `page_bytes` from an idle device (t_IO of papers 000
    /// and 001).
    pub fn io_ns(&self, page_bytes: u64) -> f64 {
        self.read.ns(page_bytes)
    }

    /// Time (ns) at which a read of `bytes` completes, submitted at `at` to a device that is busy until
    /// `busy`. `follows`: the read starts where the previous one ended.
    ///
    /// A disk serves one read at a time, without a seek if it `follows`. Other devices overlap the
    /// latencies of reads, but not their transfers.
    pub fn read_done_ns(&self, at: f64, busy: f64, bytes: u64, follows: bool) -> f64 {
        let alone = self.io_ns(bytes);
        let transfer = self.io_ns(2 * bytes) - alone;
        match (self.kind == "hdd", follows) {
            (true, true) => at.max(busy) + transfer,
            (true, false) => at.max(busy) + alone,
            (false, _) => (at + alone).max(busy + transfer),
        }
    }

    /// Nanoseconds to write a page of `page_bytes` to an idle device.
    pub fn write_ns(&self, page_bytes: u64) -> f64 {
        self.write.ns(page_bytes)
    }
}
