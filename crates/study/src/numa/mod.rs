//! The `numa` study (paper 004): memory of several kinds and places as system memory. How long
//! allocating and clearing takes and where pages land ([`alloc`]).

mod alloc;
mod clear;
#[cfg(test)]
mod tests;

pub use alloc::{AllocOptions, AllocRow, Landed, alloc};
pub use clear::{PageTime, clear_page};
