//! The end of the socket in the manager, the process that manages a program's memory: a policy whose hooks
//! run in the launcher, `nearfar run`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nearfar_kernel::tiering::layered::{Hooks, Started, layered};
use nearfar_kernel::tiering::nomad::{Always, ShadowRule};
use nearfar_kernel::tiering::none::Never;
use nearfar_kernel::tiering::{Made, Memory, Next, NodeId, Page, Policy, Settings, Tenant, Thread};
use nearfar_trace::{Error, Result};

use super::Socket;
use super::messages::hook;
use super::messages::request::{Access, ProgramSide, carry_out};
use super::messages::{Call, Constants, DONE, Preamble, thread_of};
use super::socket::MAX_MESSAGE;
use super::wire::{Reader, Wire};

/// While a hook runs, the time between two checks whether the program has ended.
const PROGRAM_CHECK: Duration = Duration::from_millis(100);

/// The program whose memory the policy manages.
pub trait Program: Send {
    /// The manager starts or stops waiting for the launcher.
    fn set_waits(&mut self, waits: bool);
    /// Whether no process uses the memory any more. A running hook is then abandoned.
    fn has_ended(&mut self) -> bool;
}

/// The connection to the launcher.
struct Connection {
    socket: Socket,
    out: Vec<u8>,
    into: Vec<u8>,
    threads: Vec<Thread>,
    program: Box<dyn Program>,
    /// The connection is closed, or the program has ended, so hooks are not called any more.
    gone: bool,
}

impl Connection {
    /// Call a hook and carry out its requests until it returns. `None` if the connection is closed.
    fn call<C: Call>(&mut self, access: Access<'_>, call: &C) -> Option<C::Reply> {
        if self.gone {
            return None;
        }
        let reply = self.exchange(access, call);
        self.gone = reply.is_none();
        if self.gone {
            // This ends the hook in the launcher.
            self.socket.shut_down();
        }
        reply
    }

    fn exchange<C: Call>(&mut self, access: Access<'_>, call: &C) -> Option<C::Reply> {
        let mut program_side = ProgramSide { access, threads: &mut self.threads };
        let preamble =
            program_side.memory().map(|mem| Preamble::of(mem, call.about())).unwrap_or_default();
        self.out.clear();
        preamble.put(&mut self.out);
        call.put(&mut self.out);
        loop {
            if !self.out.is_empty() && !self.socket.send(&self.out) {
                return None;
            }
            self.out.clear();
            self.program.set_waits(true);
            let message = self.socket.receive_until(&mut self.into, || self.program.has_ended());
            self.program.set_waits(false);
            let mut message = Reader(message?);
            while let Some(first) = message.0.first() {
                if *first == DONE {
                    message.0 = &message.0[1..];
                    return C::Reply::take(&mut message);
                }
                carry_out(&mut program_side, &mut message, &mut self.out)?;
            }
        }
    }
}

/// Calls the hooks of a policy in the launcher; those of [`Never`] if the connection is closed.
#[derive(Clone)]
struct Remote(Arc<Mutex<Connection>>);

impl Remote {
    fn call<C: Call>(&self, access: Access<'_>, call: &C) -> Option<C::Reply> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).call(access, call)
    }

    fn start(self, mem: &mut dyn Memory) -> Result<Started> {
        let started = self.call(Access::Write(mem), &hook::Start {}).ok_or_else(no_launcher)?;
        let (own, wakes) = started.map_err(|why| Error::input("policy", why, ""))?;
        let connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = |index: u8| thread_of(&connection.threads, index);
        let threads: Option<_> = own.into_iter().map(thread).collect();
        let wakes: Option<_> =
            wakes.into_iter().map(|(index, at)| Some((thread(index)?, at))).collect();
        drop(connection);
        let (threads, wakes) = threads.zip(wakes).ok_or_else(no_launcher)?;
        Ok(Started { hooks: Box::new(self), threads, wakes })
    }
}

fn no_launcher() -> Error {
    Error::missing(
        "policy",
        "nearfar run, which runs the policy, does not answer",
        "start it again",
    )
}

/// Make the policy at the other end of `socket` for `mem`. Its base, a built-in policy for the hooks that it
/// does not declare, runs at this end.
///
/// # Errors
/// Those of the policy or its base; the connection is closed.
pub fn make(
    socket: Socket,
    settings: &Settings,
    mem: &mut dyn Memory,
    program: impl Program + 'static,
) -> Result<Made> {
    socket.set_receive_timeout(PROGRAM_CHECK);
    let remote = Remote(Arc::new(Mutex::new(Connection {
        socket,
        out: Vec::with_capacity(MAX_MESSAGE),
        into: vec![0; MAX_MESSAGE],
        threads: Vec::new(),
        program: Box::new(program),
        gone: false,
    })));
    let hello = hook::Hello { constants: Constants::of(mem) };
    let declared = remote.call(Access::Read(mem), &hello).ok_or_else(no_launcher)?;
    let rule = RemoteRule {
        remote: remote.clone(),
        hooks: declared.hooks,
        watch: declared.watch_unshadowed,
    };
    layered(&declared, settings, mem, rule, |mem| remote.start(mem))
}

impl Policy for Remote {
    fn place(&mut self, mem: &dyn Memory, page: Page, frames: u32) -> NodeId {
        let answer = self.call(Access::Read(mem), &hook::Place { page, frames });
        answer.unwrap_or_else(|| Never.place(mem, page, frames))
    }
    fn allocated(&mut self, mem: &mut dyn Memory, page: Page) {
        self.call(Access::Write(mem), &hook::Allocated { page });
    }
    fn released(&mut self, mem: &mut dyn Memory, page: Page, span: u32) {
        self.call(Access::Write(mem), &hook::Released { page, span });
    }
    fn hint_fault(&mut self, mem: &mut dyn Memory, page: Page, write: bool) {
        if self.call(Access::Write(mem), &hook::HintFault { page, write }).is_none() {
            Never.hint_fault(mem, page, write);
        }
    }
    fn write_fault(&mut self, mem: &mut dyn Memory, page: Page) {
        if self.call(Access::Write(mem), &hook::WriteFault { page }).is_none() {
            Never.write_fault(mem, page);
        }
    }
    fn sample(&mut self, mem: &mut dyn Memory, page: Page, at: Page, write: bool) {
        self.call(Access::Write(mem), &hook::Sample { page, at, write });
    }
    fn pressure(&mut self, mem: &mut dyn Memory, node: NodeId, tenant: Tenant) {
        self.call(Access::Write(mem), &hook::Pressure { node, tenant });
    }
    fn work(&mut self, mem: &mut dyn Memory, thread: Thread) -> Next {
        let thread = thread.index() as u8;
        self.call(Access::Write(mem), &hook::Work { thread }).unwrap_or(Next::Idle)
    }
}

/// The policy's rule for shadows, the far copies that promoted pages keep. For hooks that the
/// policy does not declare, NOMAD's own rule holds.
struct RemoteRule {
    remote: Remote,
    hooks: Hooks,
    watch: bool,
}

impl RemoteRule {
    fn call<C: Call>(&self, hook: Hooks, call: &C) -> Option<C::Reply> {
        if self.hooks.any(hook) { self.remote.call(Access::None, call) } else { None }
    }
}

impl ShadowRule for RemoteRule {
    fn keep_shadow(&mut self, page: Page) -> bool {
        let answer = self.call(Hooks::KEEP_SHADOW, &hook::KeepShadow { page });
        answer.unwrap_or_else(|| Always.keep_shadow(page))
    }
    fn promoted(&mut self, page: Page) {
        self.call(Hooks::PROMOTED, &hook::Promoted { page });
    }
    fn watch_unshadowed(&self) -> bool {
        self.watch
    }
    fn written(&mut self, page: Page) {
        self.call(Hooks::WRITTEN, &hook::Written { page });
    }
    fn demoting(&mut self, page: Page, dirty: bool) {
        self.call(Hooks::DEMOTING, &hook::Demoting { page, dirty });
    }
}
