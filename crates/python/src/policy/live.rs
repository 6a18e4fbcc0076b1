//! Python policies of a run of a real program: each of its processes has an object of its own, here in the
//! launcher, which answers over a socket.

use std::ffi::c_long;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nearfar_kernel::tiering::Memory;
use nearfar_kernel::tiering::layered::{Declared, Started};
use nearfar_kernel::tiering::nomad::ShadowRule;
use nearfar_live::remote::{Offer, Provider, Socket, serve};
use nearfar_trace::{Error, Result};
use pyo3::exceptions::PySystemExit;
use pyo3::prelude::*;
use pyo3::{PyTypeInfo as _, ffi};

use super::{Methods, Prepared, PyPolicy, PyRule, Raised};

/// How long hooks that go on when the run is over are waited for, how often it is looked, and after how
/// many looks they are told again: they may have something to do before they end.
const LAST: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(2);
const LOOKS: u32 = 25;

/// Makes an object for each process.
pub(crate) struct Objects {
    make: Py<PyAny>,
    /// One that was made to see what it is.
    first: Mutex<Option<Py<PyAny>>>,
    raised: Raised,
    why: Mutex<Option<String>>,
    /// The run is over: what a hook raises after that is nothing.
    over: AtomicBool,
    /// Python's numbers of the threads that answer.
    threads: Mutex<Vec<c_long>>,
}

impl Objects {
    /// Those that `make` makes, beginning with `first`; an exception is kept in `raised`.
    pub(crate) fn new(make: Py<PyAny>, first: Py<PyAny>, raised: Raised) -> Self {
        Self {
            make,
            first: Mutex::new(Some(first)),
            raised,
            why: Mutex::new(None),
            over: AtomicBool::new(false),
            threads: Mutex::new(Vec::new()),
        }
    }

    /// The run is over, and the program's end of every socket shut: hooks that go on all the same are
    /// ended by an exception, as the interpreter may be about to end, which it cannot while they run.
    pub(crate) fn end(&self, py: Python<'_>) {
        self.over.store(true, Ordering::Release);
        let began = Instant::now();
        for look in 0.. {
            let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if threads.is_empty() || began.elapsed() > LAST {
                return;
            }
            let exit = PySystemExit::type_object_raw(py);
            // Most end by themselves.
            for thread in threads.into_iter().filter(|_| look % LOOKS == 1) {
                // SAFETY: attached, and a class; nothing happens to a thread that runs no Python.
                unsafe { ffi::PyThreadState_SetAsyncExc(thread, exit.cast()) };
            }
            py.detach(|| thread::sleep(LOOK));
        }
    }

    /// A thread begins to answer; its number.
    fn enter(&self) -> PyResult<c_long> {
        let ident = Python::attach(|py| {
            py.import("threading")?.getattr("get_ident")?.call0()?.extract::<u64>()
        })? as c_long;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(ident);
        Ok(ident)
    }

    fn leave(&self, ident: c_long) {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| *other != ident);
    }

    fn object(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        first.map_or_else(|| self.make.call0(py), Ok)
    }

    /// The policy of this process has raised an exception: the first of the run ends it.
    fn fail(&self, error: PyErr, pid: u32) {
        let line = Python::attach(|py| {
            let (kind, value) = (error.get_type(py).name(), error.value(py).to_string());
            let kind = kind.map_or_else(|_| "an exception".to_owned(), |name| name.to_string());
            let value = value.lines().next().unwrap_or_default().to_owned();
            let what = if value.is_empty() { kind } else { format!("{kind}: {value}") };
            let line = format!("process {pid}: its policy raised {what}");
            // The traceback that people see says what became of the program.
            let note = format!("The program was ended: {line}");
            let _ = error.value(py).call_method1("add_note", (note,));
            line
        });
        self.raised.note(error);
        self.why.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(line);
    }
}

impl Provider for Objects {
    fn serve(&self, socket: Socket, pid: u32) {
        match self.enter() {
            Err(error) => self.fail(error, pid),
            Ok(ident) => {
                self.answer(socket, pid);
                self.leave(ident);
            }
        }
    }

    fn failed(&self) -> Option<String> {
        self.why.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Objects {
    fn answer(&self, socket: Socket, pid: u32) {
        let (gone, raised) = (Arc::new(AtomicBool::new(false)), Raised::default());
        let prepared =
            Python::attach(|py| Prepared::of(self.object(py)?.bind(py), &raised, Some(&gone)));
        match prepared {
            Err(error) => raised.note(error),
            Ok(Prepared { declared, hooks, rule }) => {
                let mut own = Own { declared, hooks: Some(hooks), rule, raised: raised.clone() };
                // Others run while a hook waits for the program.
                let around = Box::new(|wait: &mut (dyn FnMut() + Send)| {
                    Python::attach(|py| py.detach(wait));
                });
                serve(socket, &mut own, &gone, around);
            }
        }
        // What a hook raises as its program has ended in the middle of it is nothing.
        let nothing = gone.load(Ordering::Acquire) || self.over.load(Ordering::Acquire);
        if let Some(error) = raised.take().filter(|_| !nothing) {
            self.fail(error, pid);
        }
    }
}

/// The object of one process.
struct Own {
    declared: Declared,
    hooks: Option<Methods>,
    rule: PyRule,
    raised: Raised,
}

impl Offer for Own {
    fn declared(&self) -> Declared {
        self.declared.clone()
    }

    fn start(&mut self, mem: &mut dyn Memory) -> Result<Started> {
        let again = || Error::input("policy", "has begun before", "");
        PyPolicy::start(self.hooks.take().ok_or_else(again)?, mem)
    }

    fn rule(&mut self) -> &mut dyn ShadowRule {
        &mut self.rule
    }

    fn failed(&self) -> bool {
        self.raised.failed()
    }
}
