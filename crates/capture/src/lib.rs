//! From a running program to a trace: the receiving side of the QEMU plugin.
//!
//! An unmodified program runs under `qemu-user` with the plugin of `capture/qemu-plugin`, which
//! writes 8-byte words into shared memory ([`layout`], [`shared`]); this crate expands them into
//! records ([`expand`], [`transfer`]) and hands those to [`nearfar_trace::Writer`] ([`run`]).

mod alive;
mod events;
pub mod exercise;
pub mod expand;
mod interrupt;
pub mod layout;
#[cfg(test)]
mod loopback;
mod moments;
pub mod probe;
pub mod program;
pub mod run;
pub mod schedule;
pub mod shared;
mod space;
mod streams;
pub mod transfer;

pub use interrupt::Request;
pub use probe::{Path as CapturePath, probe};
pub use run::{Asked, COMMAND, End, Options, Outcome, run};
