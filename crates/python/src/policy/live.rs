//! Python policies in runs of real programs. Each process of the program has a policy object in the launcher,
//! and calls it over a socket.

use std::ffi::c_long;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nearfar_kernel::tiering::Memory;
use nearfar_kernel::tiering::layered::{Declared, Started};
use nearfar_kernel::tiering::nomad::ShadowRule;
use nearfar_live::remote::{PolicySource, Provider, Socket, serve};
use nearfar_trace::{Error, Result};
use pyo3::exceptions::PySystemExit;
use pyo3::prelude::*;
use pyo3::{PyTypeInfo as _, ffi};

use super::{Methods, Prepared, PyPolicy, PyRule, Raised, lock};

/// Maximum wait for running hooks after the run.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two checks for running hooks.
const POLL: Duration = Duration::from_millis(2);
/// Checks between two `SystemExit` exceptions in a hook that still runs.
const POLLS_PER_EXIT: u32 = 25;

/// Makes a policy object for each process.
pub(crate) struct Objects {
    make: Py<PyAny>,
    /// The object that was made to check the policy before the run; the first process uses it.
    first: Mutex<Option<Py<PyAny>>>,
    raised: Raised,
    first_failure: Mutex<Option<String>>,
    /// The run is over: exceptions of hooks are ignored.
    over: AtomicBool,
    /// Python identifiers of the threads that run hooks.
    threads: Mutex<Vec<c_long>>,
}

impl Objects {
    /// Objects from `make`, starting with `first`. The first exception is stored in `raised`.
    pub(crate) fn new(make: Py<PyAny>, first: Py<PyAny>, raised: Raised) -> Self {
        Self {
            make,
            first: Mutex::new(Some(first)),
            raised,
            first_failure: Mutex::new(None),
            over: AtomicBool::new(false),
            threads: Mutex::new(Vec::new()),
        }
    }

    /// End hooks that still run by `SystemExit`, because the interpreter cannot exit before them. Call it
    /// after all sockets are shut down.
    pub(crate) fn end(&self, py: Python<'_>) {
        self.over.store(true, Ordering::Release);
        let began = Instant::now();
        for check in 0.. {
            let threads = lock(&self.threads).clone();
            if threads.is_empty() || began.elapsed() > TIMEOUT {
                return;
            }
            let exit = PySystemExit::type_object_raw(py);
            // The first check raises nothing, because most hooks end by themselves.
            for thread in threads.into_iter().filter(|_| check % POLLS_PER_EXIT == 1) {
                // SAFETY: this thread holds the GIL, and `exit` is a class. Threads without Python are not
                // affected.
                unsafe { ffi::PyThreadState_SetAsyncExc(thread, exit.cast()) };
            }
            py.detach(|| thread::sleep(POLL));
        }
    }

    /// Register this thread. Returns its identifier.
    fn enter(&self) -> PyResult<c_long> {
        let ident = Python::attach(|py| {
            py.import("threading")?.getattr("get_ident")?.call0()?.extract::<u64>()
        })? as c_long;
        lock(&self.threads).push(ident);
        Ok(ident)
    }

    fn leave(&self, ident: c_long) {
        lock(&self.threads).retain(|other| *other != ident);
    }

    fn object(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let first = lock(&self.first).take();
        first.map_or_else(|| self.make.call0(py), Ok)
    }

    /// Record an exception of the policy of process `pid`. The first exception ends the run.
    fn fail(&self, error: PyErr, pid: u32) {
        let line = Python::attach(|py| {
            let (kind, value) = (error.get_type(py).name(), error.value(py).to_string());
            let kind = kind.map_or_else(|_| "an exception".to_owned(), |name| name.to_string());
            let value = value.lines().next().unwrap_or_default().to_owned();
            let what = if value.is_empty() { kind } else { format!("{kind}: {value}") };
            let line = format!("process {pid}: its policy raised {what}");
            // Users see only the traceback.
            let note = format!("The program was ended: {line}");
            let _ = error.value(py).call_method1("add_note", (note,));
            line
        });
        self.raised.note(error);
        lock(&self.first_failure).get_or_insert(line);
    }
}

impl Provider for Objects {
    fn serve(&self, socket: Socket, pid: u32) {
        match self.enter() {
            Err(error) => self.fail(error, pid),
            Ok(ident) => {
                self.run_policy(socket, pid);
                self.leave(ident);
            }
        }
    }

    fn failed(&self) -> Option<String> {
        lock(&self.first_failure).clone()
    }
}

impl Objects {
    fn run_policy(&self, socket: Socket, pid: u32) {
        let (gone, raised) = (Arc::new(AtomicBool::new(false)), Raised::default());
        let prepared =
            Python::attach(|py| Prepared::of(self.object(py)?.bind(py), &raised, Some(&gone)));
        match prepared {
            Err(error) => raised.note(error),
            Ok(Prepared { declared, hooks, rule }) => {
                let mut policy =
                    ProcessPolicy { declared, hooks: Some(hooks), rule, raised: raised.clone() };
                // Release the GIL while a hook waits for the program.
                let wait_hook = Box::new(|wait: &mut (dyn FnMut() + Send)| {
                    Python::attach(|py| py.detach(wait));
                });
                serve(socket, &mut policy, &gone, wait_hook);
            }
        }
        // Ignore the exception of a hook whose process, and so its memory, is gone.
        let ignored = gone.load(Ordering::Acquire) || self.over.load(Ordering::Acquire);
        if let Some(error) = raised.take().filter(|_| !ignored) {
            self.fail(error, pid);
        }
    }
}

/// The policy object of one process.
struct ProcessPolicy {
    declared: Declared,
    hooks: Option<Methods>,
    rule: PyRule,
    raised: Raised,
}

impl PolicySource for ProcessPolicy {
    fn declared(&self) -> Declared {
        self.declared.clone()
    }

    fn start(&mut self, mem: &mut dyn Memory) -> Result<Started> {
        let started_twice = || Error::input("policy", "was already started", "");
        PyPolicy::start(self.hooks.take().ok_or_else(started_twice)?, mem)
    }

    fn rule(&mut self) -> &mut dyn ShadowRule {
        &mut self.rule
    }

    fn failed(&self) -> bool {
        self.raised.failed()
    }
}
