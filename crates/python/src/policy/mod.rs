//! Tiering policies written in Python: an object with the hooks of `nearfar_kernel::tiering::Policy`, and the
//! memory on which it acts.
//!
//! Hooks that the object does not define are those of its `base`, a built-in policy, or the trait's defaults
//! ([`layered`]). With the base `nomad`, the object may also decide which promoted pages keep a shadow. With
//! a real program, the object runs in the launcher, and its base in the program ([`live`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nearfar_kernel::tiering::layered::{Declared, Hooks, Started, layered};
use nearfar_kernel::tiering::nomad::ShadowRule;
use nearfar_kernel::tiering::none::Never;
use nearfar_kernel::tiering::{
    Made, Memory, Next, NodeId, Page, Policy, Settings, Tenant, Thread, Time,
};
use nearfar_trace::{Error, Result};
use pyo3::call::PyCallArgs;
use pyo3::prelude::*;

pub(crate) mod live;
mod memory;

use memory::with_memory;
pub(crate) use memory::{MemoryHandle, ThreadHandle};

/// Lock a mutex, also after a panic of another thread.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first exception of a run, after which the object is not called any more.
#[derive(Clone, Default)]
pub(crate) struct Raised(Arc<(AtomicBool, Mutex<Option<PyErr>>)>);

impl Raised {
    pub(crate) fn note(&self, error: PyErr) {
        lock(&self.0.1).get_or_insert(error);
        self.0.0.store(true, Ordering::Release);
    }

    fn failed(&self) -> bool {
        self.0.0.load(Ordering::Acquire)
    }

    pub(crate) fn take(&self) -> Option<PyErr> {
        lock(&self.0.1).take()
    }

    /// Return the error that ends the run, if there is an exception.
    pub(crate) fn stop(&self) -> Result<()> {
        if self.failed() { Err(Error::cancelled()) } else { Ok(()) }
    }
}

/// The methods of a Python object that define hooks.
struct Methods {
    raised: Raised,
    handle: Py<MemoryHandle>,
    methods: Vec<(&'static str, Py<PyAny>)>,
}

impl Methods {
    fn of(
        object: &Bound<'_, PyAny>,
        hooks: impl IntoIterator<Item = &'static str>,
        raised: &Raised,
        gone: Option<&Arc<AtomicBool>>,
    ) -> PyResult<Self> {
        let mut methods = Vec::new();
        for name in hooks {
            methods.push((name, object.getattr(name)?.unbind()));
        }
        let handle = Py::new(object.py(), MemoryHandle::new(gone.cloned()))?;
        Ok(Self { raised: raised.clone(), handle, methods })
    }

    fn method(&self, name: &str) -> Option<&Py<PyAny>> {
        self.methods.iter().find(|(known, _)| *known == name).map(|(_, method)| method)
    }

    /// Run `call`. An exception is stored and ends the run.
    fn guarded<T>(&self, call: impl FnOnce(Python<'_>) -> PyResult<T>) -> Option<T> {
        if self.raised.failed() {
            return None;
        }
        Python::attach(call).map_err(|error| self.raised.note(error)).ok()
    }

    /// Call the hook `name` with `args`, without the memory. `None` if it is not defined or raised.
    fn call<A: for<'py> PyCallArgs<'py>>(&self, name: &str, args: A) -> Option<Py<PyAny>> {
        let method = self.method(name)?;
        self.guarded(|py| method.call1(py, args))
    }

    /// Call the hook `name` with the memory. `None` if it is not defined or raised.
    fn with_memory<T>(
        &self,
        name: &str,
        mem: &mut dyn Memory,
        call: impl FnOnce(Python<'_>, &Py<PyAny>, &Py<MemoryHandle>) -> PyResult<T>,
    ) -> Option<T> {
        let method = self.method(name)?;
        let handle = self.handle.get();
        self.guarded(|py| with_memory(handle, mem, || call(py, method, &self.handle)))
    }
}

/// The method that is called once, before the hooks.
const START: &str = "start";

/// Names of the methods that nearfar calls.
#[pyfunction]
pub(crate) fn policy_hooks() -> Vec<&'static str> {
    [START].iter().chain(Hooks::NAMES).copied().collect()
}

/// NOMAD's shadow rule in Python.
struct PyRule {
    methods: Methods,
    watch: bool,
}

impl ShadowRule for PyRule {
    fn keep_shadow(&mut self, page: Page) -> bool {
        let Some(method) = self.methods.method("keep_shadow") else { return true };
        let keeps = |py: Python<'_>| method.call1(py, (page.number(),))?.is_truthy(py);
        self.methods.guarded(keeps).unwrap_or(true)
    }

    fn promoted(&mut self, page: Page) {
        self.methods.call("promoted", (page.number(),));
    }

    fn watch_unshadowed(&self) -> bool {
        self.watch
    }

    fn written(&mut self, page: Page) {
        self.methods.call("written", (page.number(),));
    }

    fn demoting(&mut self, page: Page, dirty: bool) {
        self.methods.call("demoting", (page.number(), dirty));
    }
}

/// The declaration of a Python object: its class attribute `base` is the name of a built-in policy or None;
/// `watch_unshadowed` is that of [`ShadowRule`].
pub(crate) fn declared(object: &Bound<'_, PyAny>) -> PyResult<Declared> {
    let base = match object.getattr_opt("base")? {
        Some(name) => name.extract::<Option<String>>()?,
        None => None,
    };
    let watch_unshadowed = match object.getattr_opt("watch_unshadowed")? {
        Some(value) => value.is_truthy()?,
        None => false,
    };
    Ok(Declared { base, hooks: Hooks::named(|name| defines(object, name)), watch_unshadowed })
}

fn defines(object: &Bound<'_, PyAny>, hook: &str) -> bool {
    object.getattr_opt(hook).is_ok_and(|found| found.is_some_and(|found| found.is_callable()))
}

/// A Python object before its start.
struct Prepared {
    declared: Declared,
    hooks: Methods,
    rule: PyRule,
}

impl Prepared {
    /// `gone` is set once the memory of the real process no longer exists.
    fn of(
        object: &Bound<'_, PyAny>,
        raised: &Raised,
        gone: Option<&Arc<AtomicBool>>,
    ) -> PyResult<Self> {
        let declared = declared(object)?;
        let start = defines(object, START).then_some(START);
        let hooks = declared.hooks.names().chain(start);
        let rule = declared.hooks.names().filter(|name| Hooks::RULE.names().any(|r| r == *name));
        Ok(Self {
            hooks: Methods::of(object, hooks, raised, gone)?,
            rule: PyRule {
                methods: Methods::of(object, rule, raised, gone)?,
                watch: declared.watch_unshadowed,
            },
            declared,
        })
    }
}

/// Make the policy of a Python object for `mem`. Its hook `start` makes its threads and returns their first
/// wake-ups. An exception is stored in `raised`.
pub(crate) fn policy(
    object: &Bound<'_, PyAny>,
    settings: &Settings,
    raised: &Raised,
    mem: &mut dyn Memory,
) -> Result<Made> {
    let prepared =
        Prepared::of(object, raised, None).map_err(|error| store_exception(error, raised))?;
    let Prepared { declared, hooks, rule } = prepared;
    layered(&declared, settings, mem, rule, |mem| PyPolicy::start(hooks, mem))
}

pub(crate) fn store_exception(error: PyErr, raised: &Raised) -> Error {
    let text = error.to_string();
    raised.note(error);
    Error::input("policy", text, "")
}

fn nanoseconds(ns: f64) -> Time {
    Time::from_ps((ns.max(0.0) * 1e3) as u64)
}

/// A started Python object.
struct PyPolicy {
    methods: Methods,
    /// Its threads, by index.
    threads: HashMap<usize, Py<ThreadHandle>>,
}

impl PyPolicy {
    fn start(methods: Methods, mem: &mut dyn Memory) -> Result<Started> {
        type First = Option<Vec<(Py<ThreadHandle>, f64)>>;
        let (now, handle) = (mem.now(), methods.handle.get());
        let first = match methods.method(START) {
            Some(method) => Python::attach(|py| {
                with_memory(handle, mem, || {
                    method.call1(py, (&methods.handle,))?.extract::<First>(py)
                })
            })
            .map_err(|error| store_exception(error, &methods.raised))?,
            None => None,
        };
        let spawned = lock(&handle.spawned).take();
        let spawned = spawned.unwrap_or_default();
        let at = |(thread, ns): (Py<ThreadHandle>, f64)| {
            (thread.get().thread, now.plus(nanoseconds(ns)))
        };
        let wakes = first.unwrap_or_default().into_iter().map(at).collect();
        let threads = spawned.iter().map(|thread| thread.get().thread).collect();
        let by_index = |thread: Py<ThreadHandle>| (thread.get().thread.index(), thread);
        let policy = Self { methods, threads: spawned.into_iter().map(by_index).collect() };
        Ok(Started { hooks: Box::new(policy), threads, wakes })
    }
}

impl Policy for PyPolicy {
    fn place(&mut self, mem: &dyn Memory, page: Page, frames: u32) -> NodeId {
        // The method gets the free frames instead of the memory, which a placement may not change.
        let Some(method) = self.methods.method("place") else {
            return Never.place(mem, page, frames);
        };
        let free: Vec<u64> = NodeId::all(mem.nodes()).map(|node| mem.free(node)).collect();
        let node = self
            .methods
            .guarded(|py| method.call1(py, (page.number(), free, frames))?.extract::<u8>(py));
        NodeId::new(node.unwrap_or(0).min(mem.nodes() - 1))
    }

    fn allocated(&mut self, mem: &mut dyn Memory, page: Page) {
        self.methods.with_memory("allocated", mem, |py, method, memory| {
            method.call1(py, (memory, page.number()))
        });
    }

    fn released(&mut self, mem: &mut dyn Memory, page: Page, span: u32) {
        self.methods.with_memory("released", mem, |py, method, memory| {
            method.call1(py, (memory, page.number(), span))
        });
    }

    fn hint_fault(&mut self, mem: &mut dyn Memory, page: Page, write: bool) {
        let done = self.methods.with_memory("hint_fault", mem, |py, method, memory| {
            method.call1(py, (memory, page.number(), write))
        });
        if done.is_none() {
            // The hook raised: let the program continue.
            Never.hint_fault(mem, page, write);
        }
    }

    fn write_fault(&mut self, mem: &mut dyn Memory, page: Page) {
        let done = self.methods.with_memory("write_fault", mem, |py, method, memory| {
            method.call1(py, (memory, page.number()))
        });
        if done.is_none() {
            Never.write_fault(mem, page);
        }
    }

    fn sample(&mut self, mem: &mut dyn Memory, page: Page, at: Page, write: bool) {
        self.methods.with_memory("sample", mem, |py, method, memory| {
            method.call1(py, (memory, page.number(), at.number(), write))
        });
    }

    fn pressure(&mut self, mem: &mut dyn Memory, node: NodeId, tenant: Tenant) {
        self.methods.with_memory("pressure", mem, |py, method, memory| {
            method.call1(py, (memory, node.index(), tenant.index()))
        });
    }

    fn work(&mut self, mem: &mut dyn Memory, thread: Thread) -> Next {
        let Some(thread) = self.threads.get(&thread.index()) else { return Next::Idle };
        let next = self.methods.with_memory("work", mem, |py, method, memory| {
            method.call1(py, (memory, thread))?.extract::<Option<f64>>(py)
        });
        match next.flatten() {
            None => Next::Idle,
            Some(0.0) => Next::Again,
            Some(ns) => Next::At(mem.now().plus(nanoseconds(ns))),
        }
    }

    fn foresee(&mut self, mem: &mut dyn Memory, counts: &[u32]) {
        self.methods.with_memory("foresee", mem, |py, method, memory| {
            method.call1(py, (memory, counts.to_vec()))
        });
    }
}
