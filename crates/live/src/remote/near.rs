//! The program's end: a policy whose hooks are answered by the launcher.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nearfar_kernel::tiering::layered::{Hooks, Started, layered};
use nearfar_kernel::tiering::nomad::{Always, ShadowRule};
use nearfar_kernel::tiering::none::Never;
use nearfar_kernel::tiering::{Made, Memory, Next, NodeId, Page, Policy, Settings, Tenant, Thread};
use nearfar_trace::{Error, Result};

use super::Socket;
use super::messages::hook;
use super::messages::request::{Near, Sight, carry_out};
use super::messages::{Call, Constants, DONE, Moment};
use super::socket::LONGEST;
use super::wire::{Reader, Wire};

/// How often, while a hook runs, it is asked whether the program is still there.
const LOOK_UP: Duration = Duration::from_millis(100);

/// The program whose memory the policy manages.
pub trait Program: Send {
    /// The manager begins or ends to wait for the launcher.
    fn waits(&mut self, waits: bool);
    /// Whether nobody uses the memory any more. A hook that runs is then ended.
    fn has_ended(&mut self) -> bool;
}

/// The way to the launcher, and how far a call is.
struct Line {
    socket: Socket,
    out: Vec<u8>,
    into: Vec<u8>,
    threads: Vec<Thread>,
    program: Box<dyn Program>,
    /// Nobody is at the other end any more, or nobody needs an answer: hooks are not called.
    gone: bool,
}

impl Line {
    /// Call a hook and carry out what is requested until it answers; `None` if there is nobody.
    fn call<C: Call>(&mut self, sight: Sight<'_>, call: &C) -> Option<C::Reply> {
        if self.gone {
            return None;
        }
        let answer = self.exchange(sight, call);
        self.gone = answer.is_none();
        if self.gone {
            // The launcher hears that, and ends the hook.
            self.socket.shut_down();
        }
        answer
    }

    fn exchange<C: Call>(&mut self, sight: Sight<'_>, call: &C) -> Option<C::Reply> {
        let mut near = Near { sight, threads: &mut self.threads };
        let moment = near.look().map(|mem| Moment::of(mem, call.about())).unwrap_or_default();
        self.out.clear();
        moment.put(&mut self.out);
        call.put(&mut self.out);
        loop {
            if !self.out.is_empty() && !self.socket.send(&self.out) {
                return None;
            }
            self.out.clear();
            self.program.waits(true);
            let message = self.socket.receive_unless(&mut self.into, || self.program.has_ended());
            self.program.waits(false);
            let mut message = Reader(message?);
            while let Some(first) = message.0.first() {
                if *first == DONE {
                    message.0 = &message.0[1..];
                    return C::Reply::take(&mut message);
                }
                carry_out(&mut near, &mut message, &mut self.out)?;
            }
        }
    }
}

/// The hooks of a policy in the launcher. When that is gone, what [`Policy`] does by default.
#[derive(Clone)]
struct Remote(Arc<Mutex<Line>>);

impl Remote {
    fn call<C: Call>(&self, sight: Sight<'_>, call: &C) -> Option<C::Reply> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).call(sight, call)
    }

    fn start(self, mem: &mut dyn Memory) -> Result<Started> {
        let started = self.call(Sight::Act(mem), &hook::Start {}).ok_or_else(not_there)?;
        let (own, wakes) = started.map_err(|why| Error::input("policy", why, ""))?;
        let line = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = |index: u8| {
            line.threads.iter().copied().find(|thread| thread.index() == usize::from(index))
        };
        let threads: Option<_> = own.into_iter().map(thread).collect();
        let wakes: Option<_> =
            wakes.into_iter().map(|(index, at)| Some((thread(index)?, at))).collect();
        drop(line);
        let (threads, wakes) = threads.zip(wakes).ok_or_else(not_there)?;
        Ok(Started { hooks: Box::new(self), threads, wakes })
    }
}

fn not_there() -> Error {
    Error::missing("policy", "nearfar run, which has it, does not answer", "start it again")
}

/// Put the policy at the other end of `socket` in charge of `mem`, its base at this end.
///
/// # Errors
/// What it says against this memory, or the base does; there is nobody at the other end.
pub fn make(
    socket: Socket,
    settings: &Settings,
    mem: &mut dyn Memory,
    program: impl Program + 'static,
) -> Result<Made> {
    socket.look_up_every(LOOK_UP);
    let remote = Remote(Arc::new(Mutex::new(Line {
        socket,
        out: Vec::with_capacity(LONGEST),
        into: vec![0; LONGEST],
        threads: Vec::new(),
        program: Box::new(program),
        gone: false,
    })));
    let hello = hook::Hello { constants: Constants::of(mem) };
    let declared = remote.call(Sight::Look(mem), &hello).ok_or_else(not_there)?;
    let rule = RemoteRule {
        remote: remote.clone(),
        hooks: declared.hooks,
        watch: declared.watch_unshadowed,
    };
    layered(&declared, settings, mem, rule, |mem| remote.start(mem))
}

impl Policy for Remote {
    fn place(&mut self, mem: &dyn Memory, page: Page, frames: u32) -> NodeId {
        let answer = self.call(Sight::Look(mem), &hook::Place { page, frames });
        answer.unwrap_or_else(|| Never.place(mem, page, frames))
    }
    fn allocated(&mut self, mem: &mut dyn Memory, page: Page) {
        self.call(Sight::Act(mem), &hook::Allocated { page });
    }
    fn released(&mut self, mem: &mut dyn Memory, page: Page, span: u32) {
        self.call(Sight::Act(mem), &hook::Released { page, span });
    }
    fn hint_fault(&mut self, mem: &mut dyn Memory, page: Page, write: bool) {
        if self.call(Sight::Act(mem), &hook::HintFault { page, write }).is_none() {
            Never.hint_fault(mem, page, write);
        }
    }
    fn write_fault(&mut self, mem: &mut dyn Memory, page: Page) {
        if self.call(Sight::Act(mem), &hook::WriteFault { page }).is_none() {
            Never.write_fault(mem, page);
        }
    }
    fn sample(&mut self, mem: &mut dyn Memory, page: Page, at: Page, write: bool) {
        self.call(Sight::Act(mem), &hook::Sample { page, at, write });
    }
    fn pressure(&mut self, mem: &mut dyn Memory, node: NodeId, tenant: Tenant) {
        self.call(Sight::Act(mem), &hook::Pressure { node, tenant });
    }
    fn work(&mut self, mem: &mut dyn Memory, thread: Thread) -> Next {
        let thread = thread.index() as u8;
        self.call(Sight::Act(mem), &hook::Work { thread }).unwrap_or(Next::Idle)
    }
}

/// NOMAD's questions about shadows, of which those that are not declared are answered as NOMAD does.
struct RemoteRule {
    remote: Remote,
    hooks: Hooks,
    watch: bool,
}

impl RemoteRule {
    fn call<C: Call>(&self, hook: Hooks, call: &C) -> Option<C::Reply> {
        let asked = self.hooks.any(hook);
        if asked { self.remote.call(Sight::Nothing, call) } else { None }
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
