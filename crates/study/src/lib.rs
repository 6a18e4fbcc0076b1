//! Studies: each applies models of hardware and of the kernel to a trace and returns a table.

pub mod declared;
pub mod filter;
pub mod info;
pub mod jobs;
pub mod lifetimes;
pub mod numa;
pub mod paging;
pub mod ssd;
pub mod thp;
pub mod tiering;

/// Default of `--slowdown`: accepted slowdown relative to unlimited (fast) memory.
pub const SLOWDOWN: &str = "5%";

/// The element at `index` of `table`, which grows by default values as needed.
#[inline]
fn slot<T: Default>(table: &mut Vec<T>, index: u32) -> &mut T {
    let index = index as usize;
    if table.len() <= index {
        table.resize_with(index + 1, T::default);
    }
    &mut table[index]
}
