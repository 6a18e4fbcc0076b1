//! The receiving side of a capture: runs a program under QEMU and writes its trace.
//!
//! An unmodified program runs under QEMU's user mode, or a virtual machine under its system
//! emulation ([`vm`]), with the plugin of `capture/qemu-plugin`, which writes 8-byte words into
//! shared memory ([`layout`], [`shared`]). This crate expands the words into records ([`expand`],
//! [`transfer`]) and passes the records to [`nearfar_trace::Writer`] ([`run`]).

mod address_space;
pub mod exercise;
pub mod expand;
mod fences;
mod interrupt;
pub mod layout;
mod liveness;
#[cfg(test)]
mod loopback;
mod output;
pub mod probe;
pub mod program;
mod recording;
pub mod request;
mod run;
pub mod sample;
pub mod schedule;
pub mod shared;
mod streams;
mod target;
pub mod transfer;
pub mod vm;

pub use interrupt::Action;
pub use probe::probe;
pub use request::{COMMAND, Request};
pub use run::{End, Options, Outcome, run};
