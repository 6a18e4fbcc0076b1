//! Policies in another process: those in Python run in the launcher, which has the interpreter.
//!
//! In the program, [`make`] returns a policy that sends its hooks over a [`Socket`] to the launcher, where
//! [`serve`] calls the policy. The policy's requests come back over the same socket and are carried out
//! before the hook returns. The manager waits meanwhile, as for a built-in policy, so both ends see the same
//! order of events. Only the hooks that the policy declares are sent. The policy's base, a built-in policy,
//! runs in the program.
//!
//! In the program, this module allocates only from the global allocator, which uses the manager's own memory.

mod messages;
mod program_end;
mod serve;
mod socket;
#[cfg(test)]
mod tests;
mod wire;

pub use program_end::{Program, make};
pub use serve::{PolicySource, WaitHook, serve};
pub use socket::Socket;

/// Provides a policy for each process of a run.
pub trait Provider: Send + Sync {
    /// Serve the policy of this process until the socket is closed. Called in a new thread.
    fn serve(&self, socket: Socket, pid: u32);
    /// Why a policy has failed, if one has. The run is then killed.
    fn failed(&self) -> Option<String>;
}
