//! Memory and threads as a Python policy sees them.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use nearfar_kernel::tiering::{
    Capability, Commit, Context, DropReason, Memory, NodeId, Page, Refused, Request, Tenant, Thread,
};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt as _;

use super::lock;

/// A borrowed memory without its lifetime; see [`with_memory`].
pub(super) struct BorrowedMemory(NonNull<dyn Memory + 'static>);

// SAFETY: the pointer is used only with the mutex held, so never by two threads at once, and only until
// `EndBorrow` removes it, which waits for the mutex.
unsafe impl Send for BorrowedMemory {}

/// Memory as a Python policy sees it. It can only be used while a hook runs. Pages and nodes are numbers;
/// node 0 is the fastest. Times are in nanoseconds.
#[pyclass(frozen, name = "Memory", module = "nearfar._engine")]
pub(crate) struct MemoryHandle {
    borrowed: Mutex<Option<BorrowedMemory>>,
    /// Threads made during the hook `start`; `None` afterwards.
    pub(super) spawned: Mutex<Option<Vec<Py<ThreadHandle>>>>,
    /// Set once the memory of the real process no longer exists; `None` in a simulation.
    gone: Option<Arc<AtomicBool>>,
}

/// Maximum number of threads that a Python policy spawns, without those of its base policy.
const MAX_THREADS: usize = 64;

/// A kernel thread of a Python policy; made by `Memory.spawn`.
#[pyclass(frozen, eq, hash, name = "Thread", module = "nearfar._engine")]
#[derive(Debug)]
pub(crate) struct ThreadHandle {
    pub(super) thread: Thread,
    #[pyo3(get)]
    name: String,
}

impl PartialEq for ThreadHandle {
    fn eq(&self, other: &Self) -> bool {
        self.thread == other.thread
    }
}

impl std::hash::Hash for ThreadHandle {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.thread.index().hash(state);
    }
}

#[pymethods]
impl ThreadHandle {
    fn __repr__(&self) -> String {
        format!("Thread({:?})", self.name)
    }
}

/// Let `handle` borrow `mem` while `hook` runs.
pub(super) fn with_memory<T>(
    handle: &MemoryHandle,
    mem: &mut dyn Memory,
    hook: impl FnOnce() -> T,
) -> T {
    /// Ends the borrow, even when the hook unwinds.
    struct EndBorrow<'a>(&'a MemoryHandle);
    impl std::ops::Drop for EndBorrow<'_> {
        fn drop(&mut self) {
            *self.0.lock() = None;
        }
    }
    let pointer: NonNull<dyn Memory + '_> = NonNull::from(mem);
    // SAFETY: only the lifetime changes. `EndBorrow` removes the pointer before this function returns,
    // so before the borrow of `mem` ends.
    let pointer: NonNull<dyn Memory + 'static> = unsafe { std::mem::transmute(pointer) };
    *handle.lock() = Some(BorrowedMemory(pointer));
    let _end = EndBorrow(handle);
    hook()
}

impl MemoryHandle {
    pub(super) fn new(gone: Option<Arc<AtomicBool>>) -> Self {
        Self { borrowed: Mutex::new(None), spawned: Mutex::new(Some(Vec::new())), gone }
    }

    /// Releases the GIL while it waits, because the lock's holder may wait for the GIL.
    fn lock(&self) -> MutexGuard<'_, Option<BorrowedMemory>> {
        match self.borrowed.try_lock() {
            Ok(borrowed) => borrowed,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                Python::attach(|py| self.borrowed.lock_py_attached(py))
                    .unwrap_or_else(PoisonError::into_inner)
            }
        }
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut dyn Memory) -> T) -> PyResult<T> {
        let mut borrowed = self.lock();
        let result = match borrowed.as_mut() {
            // SAFETY: the pointer is set only while `with_memory` holds the borrow, and the lock makes this
            // the only use of it.
            Some(borrowed) => use_it(unsafe { borrowed.0.as_mut() }),
            None => {
                return Err(PyRuntimeError::new_err("memory can only be used while a hook runs"));
            }
        };
        // Checked after the use, because a call during which the program ends returns a default value.
        if self.gone.as_ref().is_some_and(|gone| gone.load(Ordering::Acquire)) {
            return Err(PyRuntimeError::new_err("the program has ended"));
        }
        Ok(result)
    }

    fn page(mem: &dyn Memory, number: u32) -> Option<Page> {
        (number < mem.page_limit()).then(|| Page::new(number))
    }

    /// Read a property of a page; `otherwise` if no mapping begins at this page number.
    fn look<T>(&self, page: u32, otherwise: T, of: fn(&dyn Memory, Page) -> T) -> PyResult<T> {
        self.with(|mem| match Self::page(mem, page) {
            Some(page) if mem.mapped(page) => of(mem, page),
            _ => otherwise,
        })
    }

    /// An action on a page. Returns whether it was carried out.
    fn act(
        &self,
        page: u32,
        action: impl FnOnce(&mut dyn Memory, Page) -> std::result::Result<(), Refused>,
    ) -> PyResult<bool> {
        self.with(|mem| Self::page(mem, page).is_some_and(|page| action(mem, page).is_ok()))
    }

    /// Actions on many pages. Returns for each whether it was carried out.
    fn batch(
        &self,
        pages: &[u32],
        request: impl Fn(&dyn Memory, Page) -> Option<Request>,
    ) -> PyResult<Vec<bool>> {
        self.with(|mem| {
            let requests = |number: &u32| request(mem, Self::page(mem, *number)?);
            let requests: Vec<Option<Request>> = pages.iter().map(requests).collect();
            let valid: Vec<Request> = requests.iter().flatten().copied().collect();
            let mut outcomes = Vec::new();
            mem.batch(&valid, &mut outcomes);
            let mut outcomes = outcomes.into_iter();
            let outcome = |request: Option<Request>| request.and_then(|_| outcomes.next());
            requests.into_iter().map(outcome).map(|outcome| outcome == Some(Ok(()))).collect()
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
    /// Upper bound of page numbers, few of which may ever be mapped.
    fn page_limit(&self) -> PyResult<u32> {
        self.with(|mem| mem.page_limit())
    }
    /// The first mapping that begins at this page number or after it, or None.
    fn next_mapped(&self, page: u32) -> PyResult<Option<u32>> {
        self.with(|mem| mem.next_mapped(Page::new(page)).map(Page::number))
    }
    /// The supported ones of accessed-bits, dirty-bits, samples and far-is-mapped.
    fn capabilities(&self) -> PyResult<Vec<&'static str>> {
        let has = |mem: &mut dyn Memory| {
            let all = Capability::ALL.into_iter().filter(|(_, capability)| mem.has(*capability));
            all.map(|(name, _)| name).collect()
        };
        self.with(has)
    }
    /// The current latency of a load from a node in nanoseconds; None if it is unknown.
    fn loaded_latency(&self, node: u8) -> PyResult<Option<f64>> {
        self.with(|mem| Some(mem.loaded_latency(Self::node(mem, node)?)?.ps() as f64 / 1e3))
    }
    fn tenants(&self) -> PyResult<u16> {
        self.with(|mem| mem.tenants())
    }
    /// The tenant to which a page is charged.
    fn tenant_of(&self, page: u32) -> PyResult<usize> {
        self.with(|mem| mem.tenant_of(Page::new(page)).index())
    }
    /// Frames of a node that a tenant holds.
    fn used(&self, tenant: u16, node: u8) -> PyResult<u64> {
        let tenant = Tenant::new(tenant);
        self.with(|mem| Self::node(mem, node).map_or(0, |node| mem.used(tenant, node)))
    }
    /// Protected and maximum frames of a tenant on a node.
    fn limit(&self, tenant: u16, node: u8) -> PyResult<(u64, u64)> {
        self.with(|mem| {
            let limit = Self::node(mem, node).map(|node| mem.limit(Tenant::new(tenant), node));
            limit.map_or((0, 0), |limit| (limit.low, limit.max))
        })
    }
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
    fn accessed(&self, page: u32) -> PyResult<bool> {
        self.look(page, false, |mem, page| mem.accessed(page))
    }
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
    /// The node of the page's shadow (its copy on a slower node), or None.
    fn shadow_of(&self, page: u32) -> PyResult<Option<u8>> {
        self.look(page, None, |mem, page| mem.shadow_of(page).map(|node| node.index() as u8))
    }
    /// Clear the accessed bit. Returns its previous value.
    fn clear_accessed(&self, page: u32) -> PyResult<bool> {
        self.with(|mem| Self::page(mem, page).is_some_and(|page| mem.clear_accessed(page)))
    }
    /// Make the next reference a hint fault; False if that is not possible.
    fn arm_hint(&self, page: u32) -> PyResult<bool> {
        self.act(page, |mem, page| mem.arm_hint(page))
    }
    /// Let references complete without a hint fault.
    fn disarm_hint(&self, page: u32) -> PyResult<()> {
        self.with(|mem| {
            if let Some(page) = Self::page(mem, page) {
                mem.disarm_hint(page);
            }
        })
    }
    /// Make the next write a write-protect fault; False if that is not possible.
    fn write_protect(&self, page: u32) -> PyResult<bool> {
        self.act(page, |mem, page| mem.write_protect(page))
    }
    /// Let writes complete; False while the page has a shadow.
    fn unprotect(&self, page: u32) -> PyResult<bool> {
        self.act(page, |mem, page| mem.unprotect(page))
    }
    /// Move a page while the program waits; False if that is not possible.
    fn move_page(&self, page: u32, to: u8) -> PyResult<bool> {
        self.act(page, |mem, page| mem.move_page(page, Self::node(mem, to).ok_or(Refused::State)?))
    }
    /// Move pages as with `move_page`, but cheaper if the memory supports it. Returns for each whether it was
    /// moved.
    fn move_pages(&self, pages: Vec<u32>, to: u8) -> PyResult<Vec<bool>> {
        self.batch(&pages, |mem, page| Some(Request::Move(page, Self::node(mem, to)?)))
    }
    /// Arm pages as with `arm_hint`. Returns for each whether it was armed.
    fn arm_hints(&self, pages: Vec<u32>) -> PyResult<Vec<bool>> {
        self.batch(&pages, |_, page| Some(Request::ArmHint(page)))
    }
    /// Start to copy a page that stays mapped, and wake a thread when the copy is complete; False if that is
    /// not possible.
    fn begin_copy(&self, page: u32, to: u8, wake: &ThreadHandle) -> PyResult<bool> {
        self.act(page, |mem, page| {
            mem.begin_copy(page, Self::node(mem, to).ok_or(Refused::State)?, wake.thread)
        })
    }
    /// End the copy: True if the page has moved; False if it was written meanwhile or cannot be moved; None
    /// if there is no complete copy.
    fn commit_copy(&self, page: u32, keep_shadow: bool) -> PyResult<Option<bool>> {
        self.with(|mem| {
            let done = mem.commit_copy(Self::page(mem, page)?, keep_shadow).ok()?;
            Some(done == Commit::Done)
        })
    }
    /// Map a page to its shadow, which demotes it without a copy; False if it has none.
    fn remap_to_shadow(&self, page: u32) -> PyResult<bool> {
        self.act(page, |mem, page| mem.remap_to_shadow(page))
    }
    /// Free a page's shadow, because of a write or to reclaim its frame; False if it has none.
    fn drop_shadow(&self, page: u32, written: bool) -> PyResult<bool> {
        let why = if written { DropReason::Written } else { DropReason::Reclaimed };
        self.act(page, |mem, page| mem.drop_shadow(page, why))
    }
    /// Split a huge page into base pages; False if it is a base page.
    fn split(&self, page: u32) -> PyResult<bool> {
        self.act(page, |mem, page| mem.split(page))
    }
    /// Create an idle kernel thread of the policy; only in `start`.
    fn spawn(&self, py: Python<'_>, name: String) -> PyResult<Py<ThreadHandle>> {
        let mut spawned = lock(&self.spawned);
        let Some(spawned) = spawned.as_mut() else {
            return Err(PyRuntimeError::new_err("threads are made in `start`"));
        };
        if spawned.len() >= MAX_THREADS {
            return Err(PyValueError::new_err(format!("at most {MAX_THREADS} threads")));
        }
        // `spawn` takes only static names; the handle has the name that the policy gave.
        let thread = self.with(|mem| mem.spawn("python", Context::Kernel))?;
        let handle = Py::new(py, ThreadHandle { thread, name })?;
        spawned.push(handle.clone_ref(py));
        Ok(handle)
    }
    /// Wake an idle thread.
    fn wake(&self, thread: &ThreadHandle) -> PyResult<()> {
        self.with(|mem| mem.wake(thread.thread))
    }
    /// Sample every `loads`-th load miss and every `stores`-th stored cache line; 0 for none.
    fn sample_every(&self, loads: u64, stores: u64) -> PyResult<()> {
        // The simulator counts down in i64.
        self.with(|mem| mem.sample_every(loads.min(1 << 62), stores.min(1 << 62)))
    }
}
