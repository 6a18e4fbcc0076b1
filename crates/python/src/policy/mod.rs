//! A tiering policy written in Python: an object with the hooks of
//! `nearfar_kernel::tiering::Policy`, and the memory it may act on.
//!
//! What the object does not define is done by its `base`, a built-in policy, or by the trait's
//! defaults. On the base `nomad` it may also decide which promoted pages keep a shadow.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nearfar_kernel::tiering::nomad::{Nomad, ShadowRule};
use nearfar_kernel::tiering::{
    DropReason, Made, Memory, Next, NodeId, Page, Policy, Settings, Tenant, Thread, Time, check,
    make,
};
use nearfar_trace::{Error, Result};
use pyo3::prelude::*;

mod memory;

use memory::with_memory;
pub(crate) use memory::{MemoryHandle, ThreadHandle};

/// The first exception of a run; after it the object is not called any more.
#[derive(Clone, Default)]
pub(crate) struct Raised(Arc<(AtomicBool, Mutex<Option<PyErr>>)>);

impl Raised {
    pub(crate) fn note(&self, error: PyErr) {
        self.0.1.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.0.0.store(true, Ordering::Release);
    }

    fn failed(&self) -> bool {
        self.0.0.load(Ordering::Acquire)
    }

    /// The exception, once.
    pub(crate) fn take(&self) -> Option<PyErr> {
        self.0.1.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// An error, to end the run, once there is an exception.
    pub(crate) fn stop(&self) -> Result<()> {
        if self.failed() { Err(Error::cancelled()) } else { Ok(()) }
    }
}

/// The hooks that a Python object defines.
struct Hooks {
    raised: Raised,
    handle: Py<MemoryHandle>,
    methods: Vec<(&'static str, Py<PyAny>)>,
}

impl Hooks {
    fn of(object: &Bound<'_, PyAny>, names: &[&'static str], raised: &Raised) -> PyResult<Hooks> {
        let mut methods = Vec::new();
        for name in names {
            if let Some(method) = object.getattr_opt(*name)?
                && method.is_callable()
            {
                methods.push((*name, method.unbind()));
            }
        }
        let handle =
            MemoryHandle { borrowed: Mutex::new(None), spawned: Mutex::new(Some(Vec::new())) };
        let handle = Py::new(object.py(), handle)?;
        Ok(Hooks { raised: raised.clone(), handle, methods })
    }

    fn method(&self, name: &str) -> Option<&Py<PyAny>> {
        self.methods.iter().find(|(known, _)| *known == name).map(|(_, method)| method)
    }

    /// Run `call`; an exception is kept, and ends the run.
    fn guarded<T>(&self, call: impl FnOnce(Python<'_>) -> PyResult<T>) -> Option<T> {
        if self.raised.failed() {
            return None;
        }
        Python::attach(call).map_err(|error| self.raised.note(error)).ok()
    }

    /// Call the hook `name` with the memory and `arguments`; `None` if it is not defined. `Some`
    /// of an answer, or of nothing if it raised.
    fn with_memory<T>(
        &self,
        name: &str,
        mem: &mut dyn Memory,
        call: impl FnOnce(Python<'_>, &Py<PyAny>, &Py<MemoryHandle>) -> PyResult<T>,
    ) -> Option<Option<T>> {
        let method = self.method(name)?;
        let handle = self.handle.get();
        Some(self.guarded(|py| with_memory(handle, mem, || call(py, method, &self.handle))))
    }
}

/// What a Python policy may define.
const HOOKS: [&str; 10] = [
    "start",
    "place",
    "allocated",
    "released",
    "hint_fault",
    "write_fault",
    "sample",
    "pressure",
    "work",
    "foresee",
];
/// What a Python policy on the base `nomad` may define.
const RULES: [&str; 4] = ["keep_shadow", "promoted", "written", "demoting"];

/// A policy that calls a Python object.
pub(crate) struct PyPolicy {
    hooks: Hooks,
    base: Option<Box<dyn Policy>>,
    /// The object's own threads, by the index of each.
    threads: HashMap<usize, Py<ThreadHandle>>,
}

/// NOMAD's shadow rule in Python.
struct PyRule {
    hooks: Hooks,
    watch: bool,
}

impl ShadowRule for PyRule {
    fn keep_shadow(&mut self, page: Page) -> bool {
        let Some(method) = self.hooks.method("keep_shadow") else { return true };
        let answer = |py: Python<'_>| method.call1(py, (page.number(),))?.is_truthy(py);
        self.hooks.guarded(answer).unwrap_or(true)
    }

    fn promoted(&mut self, page: Page) {
        if let Some(method) = self.hooks.method("promoted") {
            self.hooks.guarded(|py| method.call1(py, (page.number(),)));
        }
    }

    fn watch_unshadowed(&self) -> bool {
        self.watch
    }

    fn written(&mut self, page: Page) {
        if let Some(method) = self.hooks.method("written") {
            self.hooks.guarded(|py| method.call1(py, (page.number(),)));
        }
    }

    fn demoting(&mut self, page: Page, dirty: bool) {
        if let Some(method) = self.hooks.method("demoting") {
            self.hooks.guarded(|py| method.call1(py, (page.number(), dirty)));
        }
    }
}

/// The policy of a Python object, made for `mem`. Its class attribute `base` names a built-in policy
/// or is None; `watch_unshadowed` is NOMAD's. Its hook `start` makes its threads and returns their
/// first wake-ups.
pub(crate) fn policy(
    object: &Bound<'_, PyAny>,
    settings: &Settings,
    raised: &Raised,
    mem: &mut dyn Memory,
) -> PyResult<Made> {
    let hooks = Hooks::of(object, &HOOKS, raised)?;
    let rules = Hooks::of(object, &RULES, raised)?;
    let base = match object.getattr_opt("base")? {
        Some(name) => name.extract::<Option<String>>()?,
        None => None,
    };
    if !rules.methods.is_empty() && base.as_deref() != Some("nomad") {
        let defined: Vec<_> = rules.methods.iter().map(|(name, _)| *name).collect();
        return Err(crate::raise(Error::input(
            "policy",
            format!("{} is only asked on the base `nomad`", defined.join(", ")),
            "set base = \"nomad\" in the class",
        )));
    }
    let made = match base {
        Some(name) if !rules.methods.is_empty() => {
            let watch = match object.getattr_opt("watch_unshadowed")? {
                Some(value) => value.is_truthy()?,
                None => false,
            };
            check(&name, settings)
                .and_then(|_| Nomad::make(settings, mem, PyRule { hooks: rules, watch }))
                .map(Some)
        }
        Some(name) => make(&name, settings, mem).map(Some),
        None => Ok(None),
    };
    let (base, mut wakes) = made.map_err(crate::raise)?.unzip();
    let wakes = wakes.get_or_insert_default();
    let mut policy = PyPolicy { hooks, base, threads: HashMap::new() };
    wakes.extend(policy.start(object.py(), mem)?);
    Ok((Box::new(policy), std::mem::take(wakes)))
}

fn nanoseconds(ns: f64) -> Time {
    Time::from_ps((ns.max(0.0) * 1e3) as u64)
}

impl PyPolicy {
    /// Call the object's `start`; when which of its threads runs first.
    fn start(&mut self, py: Python<'_>, mem: &mut dyn Memory) -> PyResult<Vec<(Thread, Time)>> {
        type First = Option<Vec<(Py<ThreadHandle>, f64)>>;
        let now = mem.now();
        let handle = self.hooks.handle.get();
        let first = match self.hooks.method("start") {
            Some(method) => with_memory(handle, mem, || {
                method.call1(py, (&self.hooks.handle,))?.extract::<First>(py)
            })?,
            None => None,
        };
        let spawned = handle.spawned.lock().unwrap_or_else(PoisonError::into_inner).take();
        let spawned = spawned.unwrap_or_default().into_iter();
        self.threads = spawned.map(|thread| (thread.get().thread.index(), thread)).collect();
        let at = |(thread, ns): (Py<ThreadHandle>, f64)| {
            (thread.get().thread, now.plus(nanoseconds(ns)))
        };
        Ok(first.unwrap_or_default().into_iter().map(at).collect())
    }
}

impl Policy for PyPolicy {
    fn place(&mut self, mem: &dyn Memory, page: Page, frames: u32) -> NodeId {
        // A look only: what a placement may ask for is counted out beforehand.
        if let Some(method) = self.hooks.method("place") {
            let free: Vec<u64> = NodeId::all(mem.nodes()).map(|node| mem.free(node)).collect();
            let node = self
                .hooks
                .guarded(|py| method.call1(py, (page.number(), free, frames))?.extract::<u8>(py));
            return NodeId::new(node.unwrap_or(0).min(mem.nodes() - 1));
        }
        match &mut self.base {
            Some(base) => base.place(mem, page, frames),
            None => NodeId::all(mem.nodes())
                .find(|node| mem.free(*node) >= u64::from(frames))
                .unwrap_or(NodeId::FAST),
        }
    }

    fn allocated(&mut self, mem: &mut dyn Memory, page: Page) {
        let call = |py: Python<'_>, method: &Py<PyAny>, memory: &Py<MemoryHandle>| {
            method.call1(py, (memory, page.number())).map(|_| ())
        };
        if let (None, Some(base)) = (self.hooks.with_memory("allocated", mem, call), &mut self.base)
        {
            base.allocated(mem, page);
        }
    }

    fn released(&mut self, mem: &mut dyn Memory, page: Page, span: u32) {
        // The base keeps pages in tables of its own: it is notified in any case.
        if let Some(base) = &mut self.base {
            base.released(mem, page, span);
        }
        let call = |py: Python<'_>, method: &Py<PyAny>, memory: &Py<MemoryHandle>| {
            method.call1(py, (memory, page.number(), span)).map(|_| ())
        };
        self.hooks.with_memory("released", mem, call);
    }

    fn hint_fault(&mut self, mem: &mut dyn Memory, page: Page, write: bool) {
        let call = |py: Python<'_>, method: &Py<PyAny>, memory: &Py<MemoryHandle>| {
            method.call1(py, (memory, page.number(), write)).map(|_| ())
        };
        match (self.hooks.with_memory("hint_fault", mem, call), &mut self.base) {
            (None, Some(base)) => base.hint_fault(mem, page, write),
            (Some(Some(())), _) => {}
            // Not defined, or it raised: let the program go on.
            _ => mem.disarm_hint(page),
        }
    }

    fn write_fault(&mut self, mem: &mut dyn Memory, page: Page) {
        let call = |py: Python<'_>, method: &Py<PyAny>, memory: &Py<MemoryHandle>| {
            method.call1(py, (memory, page.number())).map(|_| ())
        };
        match (self.hooks.with_memory("write_fault", mem, call), &mut self.base) {
            (None, Some(base)) => base.write_fault(mem, page),
            (Some(Some(())), _) => {}
            _ => {
                let _ = mem.drop_shadow(page, DropReason::Written);
                let _ = mem.unprotect(page);
            }
        }
    }

    fn sample(&mut self, mem: &mut dyn Memory, page: Page, at: Page, write: bool) {
        let call = |py: Python<'_>, method: &Py<PyAny>, memory: &Py<MemoryHandle>| {
            method.call1(py, (memory, page.number(), at.number(), write)).map(|_| ())
        };
        if let (None, Some(base)) = (self.hooks.with_memory("sample", mem, call), &mut self.base) {
            base.sample(mem, page, at, write);
        }
    }

    fn pressure(&mut self, mem: &mut dyn Memory, node: NodeId, tenant: Tenant) {
        let call = |py: Python<'_>, method: &Py<PyAny>, memory: &Py<MemoryHandle>| {
            method.call1(py, (memory, node.index(), tenant.index())).map(|_| ())
        };
        if let (None, Some(base)) = (self.hooks.with_memory("pressure", mem, call), &mut self.base)
        {
            base.pressure(mem, node, tenant);
        }
    }

    fn work(&mut self, mem: &mut dyn Memory, thread: Thread) -> Next {
        let Some(own) = self.threads.get(&thread.index()) else {
            return self.base.as_mut().map_or(Next::Idle, |base| base.work(mem, thread));
        };
        let call = |py: Python<'_>, method: &Py<PyAny>, memory: &Py<MemoryHandle>| {
            method.call1(py, (memory, own))?.extract::<Option<f64>>(py)
        };
        match self.hooks.with_memory("work", mem, call).flatten().flatten() {
            None => Next::Idle,
            Some(0.0) => Next::Again,
            Some(ns) => Next::At(mem.now().plus(nanoseconds(ns))),
        }
    }

    fn foresee(&mut self, mem: &mut dyn Memory, counts: &[u32]) {
        let call = |py: Python<'_>, method: &Py<PyAny>, memory: &Py<MemoryHandle>| {
            method.call1(py, (memory, counts.to_vec())).map(|_| ())
        };
        if let (None, Some(base)) = (self.hooks.with_memory("foresee", mem, call), &mut self.base) {
            base.foresee(mem, counts);
        }
    }
}
