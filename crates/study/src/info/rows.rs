//! The rows of `nearfar info`.

nearfar_schema::columns! {
    /// Pages touched up to the end of an interval of time.
    #[derive(Copy, Eq)]
    pub struct WorkingSet {
        /// Number of records from the start of the trace to the end of the interval.
        record: u64 as "at record",
        /// Bytes of the distinct 4 KiB pages touched by the last `working_set_records` records.
        bytes: u64 ["bytes"] as "bytes touched",
        /// Bytes of the distinct 4 KiB pages touched since the start.
        footprint_bytes: u64 ["bytes"],
        /// Resident bytes (4 KiB frames) at the end of the interval; null if the trace does not record freed
        /// memory.
        resident_bytes: Option<u64> ["bytes"] as "bytes resident",
    }
    keys [record]
    metrics [bytes less, footprint_bytes less]
    seed []
}

nearfar_schema::columns! {
    /// One named part of the address space.
    #[derive(Default, Eq)]
    pub struct Region {
        /// File, `[heap]`, `[stack]`, `(anonymous) 0x...`, `page cache: FILE`, `(unnamed)`, or an address
        /// range.
        name: String as "region",
        /// First byte of the lowest page whose last touch was under this name; null for a sum of regions.
        addr_low: Option<u64>,
        /// Byte after the highest page whose last touch was under this name; may be 2^64; null for
        /// a sum of regions.
        addr_high: Option<u128>,
        /// Distinct 4 KiB pages touched under this name.
        pages: u64 ["pages"],
        /// Records whose first byte is in the region.
        records: u64,
        /// Loads of the program among `records`.
        loads: u64,
        /// Stores of the program.
        stores: u64,
        /// Instruction fetches of the program.
        fetches: u64,
        /// Loads of the kernel for the program; in a virtual machine, all loads of the kernel.
        kernel_loads: u64,
        /// Stores of the kernel for the program; in a virtual machine, all stores of the kernel.
        kernel_stores: u64,
        /// Fetches of a virtual machine's kernel.
        kernel_fetches: u64,
    }
    keys [name]
    metrics [records less, pages less]
    seed []
}

nearfar_schema::columns! {
    /// Page touches with a reuse distance d, 2^k <= d < 2^(k+1), for k = `distance_log2`.
    #[derive(Copy, Eq)]
    pub struct ReuseBin {
        /// log2 of the reuse distance, in distinct pages, rounded down; null for first touches.
        distance_log2: Option<u32> as "distance",
        /// Page touches with this reuse distance.
        count: u64 as "references",
    }
    keys [distance_log2]
    metrics [count less]
    seed []
}
