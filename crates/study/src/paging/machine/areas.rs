//! Time and memory by area: a mapping of the address space, such as the heap.

use crate::slot;

#[derive(Clone, Copy, Debug, Default)]
pub struct AreaCosts {
    /// Waiting time of threads in picoseconds, as if no two waits overlapped.
    pub wait_ps: u64,
    /// Time of faults, in picoseconds.
    pub fault_ps: u64,
    /// Part of `fault_ps` for faults that raised the peak of private memory or mapped an existing page.
    pub start_ps: u64,
    /// Mapped private memory since the last [`Areas::advance`], and its part in larger pages; both in
    /// small pages.
    mapped: [u64; 2],
    /// Integrals of `mapped` over time: small pages times nanoseconds.
    pub page_ns: [f64; 2],
}

/// Costs by area number.
#[derive(Debug, Default)]
pub struct Areas(Vec<AreaCosts>);

impl Areas {
    pub fn of(&mut self, area: u32) -> &mut AreaCosts {
        slot(&mut self.0, area)
    }

    /// Advance the time by `ns` with the memory of the last call. `mapped` is the memory from now on.
    pub fn advance(&mut self, ns: f64, mapped: &[[u64; 2]]) {
        // Grow the table to the areas of `mapped`.
        self.of((mapped.len() as u32).max(1) - 1);
        for (area, &mapped) in self.0.iter_mut().zip(mapped) {
            for (sum, pages) in area.page_ns.iter_mut().zip(area.mapped) {
                *sum += pages as f64 * ns;
            }
            area.mapped = mapped;
        }
    }

    pub fn all(&self) -> &[AreaCosts] {
        &self.0
    }
}
