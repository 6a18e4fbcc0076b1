//! A policy that runs elsewhere than the memory: those in Python, in the launcher, which has the
//! interpreter.
//!
//! In the program [`make`] gives a policy whose hooks go over a [`Socket`] to the launcher, where
//! [`serve`] lets the policy answer them. Its requests come back over the same socket and are carried out
//! before the hook is over: the manager waits meanwhile, as it does for a policy of its own, so both ends
//! see the same order of everything. Only the hooks that the policy declares go there; its base, a
//! built-in policy, is made in the program.
//!
//! In the program nothing here takes memory but from the global allocator, which is the manager's own.

mod messages;
mod near;
mod serve;
mod socket;
#[cfg(test)]
mod tests;
mod wire;

pub use near::{Program, make};
pub use serve::{Around, Offer, serve};
pub use socket::Socket;

/// Who has a policy for each process of a run.
pub trait Provider: Send + Sync {
    /// Answer for the memory of this process until there is nobody at the other end of the socket; in a
    /// thread of its own.
    fn serve(&self, socket: Socket, pid: u32);
    /// Why the program must end: a policy has failed.
    fn failed(&self) -> Option<String>;
}
