//! Tests of the runtime on the model of the kernel, sequential and interleaved.

mod alone;
mod interleaved;
mod sequential;

use std::io::Write as _;
use std::sync::Arc;
use std::thread::JoinHandle;

use nearfar_kernel::tiering::layered::{Declared, Hooks, Started};
use nearfar_kernel::tiering::nomad::{Always, ShadowRule};
use nearfar_kernel::tiering::testing::conformance::Make;
use nearfar_kernel::tiering::{Context, Made, Memory, Settings, Thread, make};

use crate::far::{Far, Fault, Slow};
use crate::remote::{self, PolicySource, Socket, serve};
use crate::{PAGE, Sizes, Slot};

/// Report that a test, or a part of it, is not run.
pub(crate) fn not_run(why: &str) {
    // Not `eprintln`, which the test harness captures.
    let (test, mut stderr) = (std::thread::current(), std::io::stderr());
    let _ = writeln!(stderr, "{}: not run: {why}", test.name().unwrap_or_default());
}

/// A far tier of at most `limit` pages in vectors.
#[derive(Debug, Default)]
pub(crate) struct Plain {
    pages: Vec<Option<Vec<u8>>>,
    limit: usize,
}

impl Plain {
    /// Its pages are ready at once or, if `slow`, after at least 700 ns.
    pub(crate) fn of(limit: usize, slow: bool) -> Box<dyn Far> {
        let plain = Box::new(Self { pages: Vec::new(), limit });
        if slow { Box::new(Slow::new(plain, 700)) } else { plain }
    }
}

impl Far for Plain {
    fn store(&mut self, page: &[u8]) -> Result<Slot, Fault> {
        let free = self.pages.iter().position(Option::is_none);
        let slot = free.unwrap_or(self.pages.len());
        if slot >= self.limit {
            return Err(Fault::Full);
        }
        if slot == self.pages.len() {
            self.pages.push(None);
        }
        self.pages[slot] = Some(page.to_vec());
        Ok(Slot::new(slot as u32))
    }

    fn load(&mut self, slot: Slot, page: &mut [u8]) -> Result<(), Fault> {
        let held = self.pages.get(slot.index()).and_then(Option::as_ref);
        page.copy_from_slice(held.unwrap_or_else(|| panic!("{slot:?} is free")));
        Ok(())
    }

    fn free(&mut self, slot: Slot) {
        let held = self.pages[slot.index()].take();
        assert!(held.is_some(), "{slot:?} is freed twice");
    }

    fn bytes(&self) -> u64 {
        (self.pages.iter().flatten().count() * PAGE) as u64
    }
}

/// A policy that declares all hooks, for the other end of a socket.
pub(crate) struct FullPolicy {
    make: Option<Make>,
    rule: Always,
}

impl FullPolicy {
    pub(crate) fn new(make: Make) -> Self {
        Self { make: Some(make), rule: Always }
    }

    pub(crate) fn named(name: &str, settings: &Settings) -> Self {
        let (name, settings) = (name.to_owned(), settings.clone());
        Self::new(Box::new(move |mem| make(&name, &settings, mem)))
    }
}

impl PolicySource for FullPolicy {
    fn declared(&self) -> Declared {
        Declared { hooks: Hooks::POLICY, ..Declared::default() }
    }
    fn start(&mut self, mem: &mut dyn Memory) -> nearfar_trace::Result<Started> {
        let make = self.make.take().expect("it is started once");
        let (hooks, wakes) = make(mem)?;
        // All threads spawned before this one are the policy's.
        let count = mem.spawn("last", Context::Kernel).index();
        let threads = (0..count).map(|index| Thread::new(index as u8, "")).collect();
        Ok(Started { hooks, threads, wakes })
    }
    fn rule(&mut self) -> &mut dyn ShadowRule {
        &mut self.rule
    }
}

/// Run a policy in a new thread. Returns the program's end of the socket to it.
pub(crate) fn serve_in_thread(
    mut source: Box<dyn PolicySource + Send>,
) -> (Socket, JoinHandle<()>) {
    let (ours, theirs) = Socket::pair().unwrap();
    let thread = std::thread::spawn(move || {
        serve(theirs, &mut *source, &Arc::default(), Box::new(|wait| wait()));
    });
    (ours, thread)
}

/// A program that never ends.
pub(crate) struct Endless;

impl remote::Program for Endless {
    fn set_waits(&mut self, _: bool) {}
    fn has_ended(&mut self) -> bool {
        false
    }
}

/// Makes the built-in policy `name`, which runs at the other end of a socket.
pub(crate) fn make_remote(
    name: &str,
    settings: &Settings,
) -> impl FnOnce(&mut dyn Memory) -> nearfar_trace::Result<Made> + use<> {
    let (source, settings) = (FullPolicy::named(name, settings), settings.clone());
    move |mem| remote::make(serve_in_thread(Box::new(source)).0, &settings, mem, Endless)
}

/// Sizes at which few pages reach all states.
fn sizes(fast: u64, far: u64, window: u64, far_is_mapped: bool) -> Sizes {
    Sizes { fast, far, window, spare: 2, pages: 4 * 512, far_is_mapped }
}
