//! A tiering policy written in Python: an object with the hooks of
//! `nearfar_kernel::tiering::Policy`, and the memory it may act on.
//!
//! What the object does not define is done by its `base`, a built-in policy, or by the trait's
//! defaults. On the base `nomad` it may also decide which promoted pages keep a shadow.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nearfar_kernel::tiering::nomad::{Nomad, ShadowRule};
use nearfar_kernel::tiering::{
    Commit, Context, Drop, Memory, Next, NodeId, Page, Policy, Refused, Settings, Thread,
    ThreadSpec, Time, make,
};
use nearfar_trace::{Error, Result};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

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

/// A borrowed memory without its lifetime; see [`lend`].
struct Lent(NonNull<dyn Memory + 'static>);

// SAFETY: the pointer is used only between `lend`'s two locks, on the thread that lends, or by a
// Python thread that the hook waits for; never by two at once, as the mutex is held meanwhile.
unsafe impl Send for Lent {}

/// Memory as a Python policy sees it. It may be used while a hook runs, not afterwards. Pages and
/// nodes are numbers; node 0 is the fastest. Times are nanoseconds.
#[pyclass(frozen, name = "Memory", module = "nearfar._engine")]
pub(crate) struct MemoryHandle(Mutex<Option<Lent>>);

/// Let `handle` stand for `mem` while `hook` runs.
fn lend<T>(handle: &MemoryHandle, mem: &mut dyn Memory, hook: impl FnOnce() -> T) -> T {
    /// Takes the memory back, even when the hook unwinds.
    struct Back<'a>(&'a MemoryHandle);
    impl std::ops::Drop for Back<'_> {
        fn drop(&mut self) {
            *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
    let pointer: NonNull<dyn Memory + '_> = NonNull::from(mem);
    // SAFETY: only the lifetime changes. `Back` removes the pointer before this function returns,
    // so before the borrow of `mem` ends.
    let pointer: NonNull<dyn Memory + 'static> = unsafe { std::mem::transmute(pointer) };
    *handle.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Lent(pointer));
    let _back = Back(handle);
    hook()
}

impl MemoryHandle {
    fn with<T>(&self, use_it: impl FnOnce(&mut dyn Memory) -> T) -> PyResult<T> {
        let mut lent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match lent.as_mut() {
            // SAFETY: the pointer is there only while `lend` holds the borrow, and the lock makes
            // this the only use of it.
            Some(lent) => Ok(use_it(unsafe { lent.0.as_mut() })),
            None => Err(PyRuntimeError::new_err("memory is only there while a hook runs")),
        }
    }

    fn page(mem: &dyn Memory, number: u32) -> Option<Page> {
        (number < mem.pages()).then(|| Page::new(number))
    }

    /// A look at a mapped page; `otherwise` for a number that is none.
    fn look<T>(&self, page: u32, otherwise: T, of: fn(&dyn Memory, Page) -> T) -> PyResult<T> {
        self.with(|mem| match Self::page(mem, page) {
            Some(page) if mem.mapped(page) => of(mem, page),
            _ => otherwise,
        })
    }

    /// An action on a page; whether it was carried out.
    fn act(
        &self,
        page: u32,
        action: impl FnOnce(&mut dyn Memory, Page) -> std::result::Result<(), Refused>,
    ) -> PyResult<bool> {
        self.with(|mem| Self::page(mem, page).is_some_and(|page| action(mem, page).is_ok()))
    }

    /// An action that is never refused.
    fn set(&self, page: u32, action: impl FnOnce(&mut dyn Memory, Page)) -> PyResult<()> {
        self.with(|mem| {
            if let Some(page) = Self::page(mem, page) {
                action(mem, page);
            }
        })
    }

    fn node(mem: &dyn Memory, node: u8) -> Option<NodeId> {
        (node < mem.nodes()).then(|| NodeId::new(node))
    }
}

#[pymethods]
impl MemoryHandle {
    /// When the current event began, in nanoseconds.
    fn now(&self) -> PyResult<u64> {
        self.with(|mem| mem.now().ps() / 1000)
    }
    /// Page numbers are below this.
    fn pages(&self) -> PyResult<u32> {
        self.with(|mem| mem.pages())
    }
    /// Number of nodes.
    fn nodes(&self) -> PyResult<u8> {
        self.with(|mem| mem.nodes())
    }
    /// Frames of a node.
    fn capacity(&self, node: u8) -> PyResult<u64> {
        self.with(|mem| Self::node(mem, node).map_or(0, |node| mem.capacity(node)))
    }
    /// Free frames of a node.
    fn free(&self, node: u8) -> PyResult<u64> {
        self.with(|mem| Self::node(mem, node).map_or(0, |node| mem.free(node)))
    }
    /// Whether a mapping begins at this page number.
    fn mapped(&self, page: u32) -> PyResult<bool> {
        self.look(page, false, |_, _| true)
    }
    /// The node of a page.
    fn node_of(&self, page: u32) -> PyResult<u8> {
        self.look(page, 0, |mem, page| mem.node_of(page).index() as u8)
    }
    /// Frames of the mapping: 1, or 512 for a huge page.
    fn span(&self, page: u32) -> PyResult<u32> {
        self.look(page, 1, |mem, page| mem.span(page))
    }
    /// The accessed bit.
    fn accessed(&self, page: u32) -> PyResult<bool> {
        self.look(page, false, |mem, page| mem.accessed(page))
    }
    /// The dirty bit.
    fn dirty(&self, page: u32) -> PyResult<bool> {
        self.look(page, false, |mem, page| mem.dirty(page))
    }
    /// Whether the next reference is a hint fault.
    fn hint_armed(&self, page: u32) -> PyResult<bool> {
        self.look(page, false, |mem, page| mem.hint_armed(page))
    }
    /// Whether the next write is a write-protect fault.
    fn write_protected(&self, page: u32) -> PyResult<bool> {
        self.look(page, false, |mem, page| mem.write_protected(page))
    }
    /// The node of the page's shadow, or None.
    fn shadow_of(&self, page: u32) -> PyResult<Option<u8>> {
        self.look(page, None, |mem, page| mem.shadow_of(page).map(|node| node.index() as u8))
    }
    /// Clear the accessed bit and say what it was.
    fn clear_accessed(&self, page: u32) -> PyResult<bool> {
        self.with(|mem| Self::page(mem, page).is_some_and(|page| mem.clear_accessed(page)))
    }
    /// Let the next reference be a hint fault.
    fn arm_hint(&self, page: u32) -> PyResult<()> {
        self.set(page, |mem, page| mem.arm_hint(page))
    }
    /// Let references go through.
    fn disarm_hint(&self, page: u32) -> PyResult<()> {
        self.set(page, |mem, page| mem.disarm_hint(page))
    }
    /// Let the next write be a write-protect fault.
    fn write_protect(&self, page: u32) -> PyResult<()> {
        self.set(page, |mem, page| mem.write_protect(page))
    }
    /// Let writes go through; False while the page has a shadow.
    fn unprotect(&self, page: u32) -> PyResult<bool> {
        self.act(page, |mem, page| mem.unprotect(page))
    }
    /// Move a page while the program waits; False if that cannot be.
    fn move_page(&self, page: u32, to: u8) -> PyResult<bool> {
        self.act(page, |mem, page| mem.move_page(page, Self::node(mem, to).ok_or(Refused::State)?))
    }
    /// Begin to copy a page that stays mapped; False if that cannot be.
    fn begin_copy(&self, page: u32, to: u8) -> PyResult<bool> {
        self.act(page, |mem, page| mem.begin_copy(page, Self::node(mem, to).ok_or(Refused::State)?))
    }
    /// End the copy: True when the page has moved, False when it was written meanwhile, None when
    /// it was not being copied.
    fn commit_copy(&self, page: u32, keep_shadow: bool) -> PyResult<Option<bool>> {
        self.with(|mem| {
            let done = mem.commit_copy(Self::page(mem, page)?, keep_shadow).ok()?;
            Some(done == Commit::Done)
        })
    }
    /// Map a page to its shadow; False if it has none.
    fn remap_to_shadow(&self, page: u32) -> PyResult<bool> {
        self.act(page, |mem, page| mem.remap_to_shadow(page))
    }
    /// Free a page's shadow, because of a write or for its frame; False if it has none.
    fn drop_shadow(&self, page: u32, written: bool) -> PyResult<bool> {
        let why = if written { Drop::Written } else { Drop::Reclaimed };
        self.act(page, |mem, page| mem.drop_shadow(page, why))
    }
    /// Make a huge page base pages; False if it is none.
    fn split(&self, page: u32) -> PyResult<bool> {
        self.act(page, |mem, page| mem.split(page))
    }
    /// Let an idle thread run.
    fn wake(&self, thread: u8) -> PyResult<()> {
        self.with(|mem| mem.wake(Thread(thread)))
    }
    /// Sample every so-many-th line loaded, and stored; 0 for none.
    fn sample_every(&self, loads: u64, stores: u64) -> PyResult<()> {
        self.with(|mem| mem.sample_every(loads.min(1 << 62), stores.min(1 << 62)))
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
        let handle = Py::new(object.py(), MemoryHandle(Mutex::new(None)))?;
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
        Some(self.guarded(|py| lend(handle, mem, || call(py, method, &self.handle))))
    }
}

/// What a Python policy may define.
const HOOKS: [&str; 9] = [
    "start",
    "place",
    "allocated",
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
    threads: Vec<ThreadSpec>,
    base: Option<Box<dyn Policy>>,
    /// Threads of the base come first.
    base_threads: usize,
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

/// The policy of a Python object. Its class attribute `base` names a built-in policy or is None;
/// `threads` names its own threads; `watch_unshadowed` is NOMAD's.
pub(crate) fn policy(
    object: &Bound<'_, PyAny>,
    settings: &Settings,
    raised: &Raised,
) -> PyResult<Box<dyn Policy>> {
    let hooks = Hooks::of(object, &HOOKS, raised)?;
    let rules = Hooks::of(object, &RULES, raised)?;
    let text = |name: &str| match object.getattr_opt(name)? {
        Some(value) if !value.is_none() => value.extract::<Option<String>>(),
        _ => Ok(None),
    };
    let name = text("base")?;
    if !rules.methods.is_empty() && name.as_deref() != Some("nomad") {
        let defined: Vec<_> = rules.methods.iter().map(|(name, _)| *name).collect();
        return Err(crate::raise(Error::input(
            "policy",
            format!("{} is only asked on the base `nomad`", defined.join(", ")),
            "set base = \"nomad\" in the class",
        )));
    }
    let base: Option<Box<dyn Policy>> = match name {
        Some(name) if !rules.methods.is_empty() => {
            // `make` also checks the names of the knobs.
            make(&name, settings).map_err(crate::raise)?;
            let watch = match object.getattr_opt("watch_unshadowed")? {
                Some(value) => value.is_truthy()?,
                None => false,
            };
            let rule = PyRule { hooks: rules, watch };
            Some(Box::new(Nomad::new(settings, rule).map_err(crate::raise)?))
        }
        Some(name) => Some(make(&name, settings).map_err(crate::raise)?),
        None => None,
    };
    let own: Vec<String> = match object.getattr_opt("threads")? {
        Some(names) => names.extract()?,
        None => Vec::new(),
    };
    if own.len() > 64 {
        let what = format!("{} threads", own.len());
        return Err(crate::raise(Error::input("policy", what, "name at most 64")));
    }
    let mut threads = base.as_ref().map_or_else(Vec::new, |base| base.threads());
    let base_threads = threads.len();
    let spec = ThreadSpec { name: "python", context: Context::Kernel };
    threads.extend(own.iter().map(|_| spec));
    Ok(Box::new(PyPolicy { hooks, threads, base, base_threads }))
}

fn nanoseconds(ns: f64) -> Time {
    Time::from_ps((ns.max(0.0) * 1e3) as u64)
}

impl Policy for PyPolicy {
    fn threads(&self) -> Vec<ThreadSpec> {
        self.threads.clone()
    }

    fn start(&mut self, mem: &mut dyn Memory) -> Vec<(Thread, Time)> {
        let mut first = self.base.as_mut().map_or_else(Vec::new, |base| base.start(mem));
        let answer = self.hooks.with_memory("start", mem, |py, method, memory| {
            method.call1(py, (memory,))?.extract::<Option<Vec<(u8, f64)>>>(py)
        });
        for (thread, ns) in answer.flatten().flatten().unwrap_or_default() {
            let thread = usize::from(thread) + self.base_threads;
            first.push((Thread(thread as u8), mem.now().plus(nanoseconds(ns))));
        }
        first
    }

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
                let _ = mem.drop_shadow(page, Drop::Written);
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

    fn pressure(&mut self, mem: &mut dyn Memory, node: NodeId) {
        let call = |py: Python<'_>, method: &Py<PyAny>, memory: &Py<MemoryHandle>| {
            method.call1(py, (memory, node.index())).map(|_| ())
        };
        if let (None, Some(base)) = (self.hooks.with_memory("pressure", mem, call), &mut self.base)
        {
            base.pressure(mem, node);
        }
    }

    fn work(&mut self, mem: &mut dyn Memory, thread: Thread) -> Next {
        let index = usize::from(thread.0);
        if let Some(base) = self.base.as_mut().filter(|_| index < self.base_threads) {
            return base.work(mem, thread);
        }
        let own = index - self.base_threads;
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
