//! The launcher's end of the socket: runs a policy for the memory of the program, which is another process.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nearfar_kernel::tiering::layered::{Declared, Started};
use nearfar_kernel::tiering::nomad::ShadowRule;
use nearfar_kernel::tiering::{
    Capability, Commit, Context, DropReason, Limit, Memory, NodeId, Page, Policy, Refused, Request,
    Tenant, Thread, Time,
};

use super::Socket;
use super::messages::request::{
    ArmHint, Batch, BeginCopy, ClearAccessed, CommitCopy, DisarmHint, DropShadow, Latency, Limits,
    Look, MovePage, RemapToShadow, SampleEvery, Spawn, Split, TenantOf, Tenants, Unprotect, Used,
    Wake, Walk, WriteProtect,
};
use super::messages::{
    After, Call, Constants, DONE, Free, PageInfo, Preamble, Threads, hook, thread_of,
};
use super::socket::MAX_MESSAGE;
use super::wire::{Reader, Wire};

/// Maximum number of requests of a batch in one message.
const BATCH: usize = 4096;
/// Buffered requests without a reply are sent once they exceed this number of bytes.
const FULL: usize = MAX_MESSAGE / 2;

/// A policy for one process.
pub trait PolicySource {
    fn declared(&self) -> Declared;
    /// Start the policy for this memory.
    ///
    /// # Errors
    /// Why it cannot run.
    fn start(&mut self, mem: &mut dyn Memory) -> nearfar_trace::Result<Started>;
    /// Its shadow rule for NOMAD. Called only if it declares a hook of the rule.
    fn rule(&mut self) -> &mut dyn ShadowRule;
    /// Whether it has failed, and must not be called any more.
    fn failed(&self) -> bool {
        false
    }
}

/// Calls a function that waits for a message, for example without the interpreter's lock. The function does
/// not touch the policy.
pub type WaitHook = Box<dyn Fn(&mut (dyn FnMut() + Send))>;

/// Run the policy for the memory at the other end of `socket` until the socket is closed or the policy has
/// failed. Sets `gone` when the socket is closed. Waits for replies within a hook through `wait_hook`.
pub fn serve(
    socket: Socket,
    source: &mut dyn PolicySource,
    gone: &Arc<AtomicBool>,
    wait_hook: WaitHook,
) {
    let mut mem = RemoteMemory::new(socket, Arc::clone(gone), wait_hook);
    let mut policy = None;
    let mut message = vec![0; MAX_MESSAGE];
    let mut answer = Vec::new();
    while let Some(received) = mem.remote.get_mut().socket.receive(&mut message) {
        let mut reader = Reader(received);
        let Some(preamble) = Preamble::take(&mut reader) else { break };
        mem.begin(preamble);
        answer.clear();
        answer.push(DONE);
        let mut host = Host { source: &mut *source, policy: &mut policy, mem: &mut mem };
        let valid = hook::call(&mut host, &mut reader, &mut answer);
        if source.failed() {
            // Send no reply: the program is about to be killed.
            return;
        }
        if valid.is_none() || !mem.end(&answer) {
            break;
        }
    }
    gone.store(true, Ordering::Release);
}

/// The state of [`serve`] while a hook is called.
pub(super) struct Host<'a> {
    pub(super) source: &'a mut dyn PolicySource,
    pub(super) policy: &'a mut Option<Box<dyn Policy>>,
    pub(super) mem: &'a mut RemoteMemory,
}

impl Host<'_> {
    /// Call the policy; `None` before it is started.
    pub(super) fn with_policy<R>(
        &mut self,
        act: impl FnOnce(&mut dyn Policy, &mut dyn Memory) -> R,
    ) -> Option<R> {
        Some(act(&mut **self.policy.as_mut()?, self.mem))
    }

    pub(super) fn start(&mut self) -> Result<Threads, String> {
        let Started { hooks, threads, wakes } =
            self.source.start(self.mem).map_err(|error| error.to_string())?;
        *self.policy = Some(hooks);
        let number = |thread: Thread| thread.index() as u8;
        let wakes = wakes.into_iter().map(|(thread, at)| (number(thread), at));
        Ok((threads.into_iter().map(number).collect(), wakes.collect()))
    }
}

/// The memory in the other process.
///
/// While a hook runs, nothing else changes the memory. So page states are cached until an action, whose reply
/// has the new state of its page and the free frames. An action without a reply is buffered.
pub(super) struct RemoteMemory {
    pub(super) constants: Constants,
    now: Time,
    threads: Vec<Thread>,
    remote: RefCell<Connection>,
}

struct Connection {
    socket: Socket,
    gone: Arc<AtomicBool>,
    wait_hook: WaitHook,
    out: Vec<u8>,
    into: Vec<u8>,
    free: Free,
    /// The last page that was read or changed.
    last: Option<(Page, PageInfo)>,
    /// The latest walk: a range of page numbers, and all mapped pages in it, in order.
    walk: (std::ops::Range<u32>, Vec<(Page, PageInfo)>),
}

impl Connection {
    /// Record that the connection is closed: no page is mapped any more, and every action is refused.
    fn lost<T>(&mut self) -> Option<T> {
        self.gone.store(true, Ordering::Release);
        self.out.clear();
        self.clear_cache();
        None
    }

    fn clear_cache(&mut self) {
        self.last = None;
        self.walk.0 = 0..0;
    }

    fn send(&mut self) -> bool {
        let sent = self.socket.send(&self.out);
        self.out.clear();
        sent
    }

    /// Buffer a request without a reply.
    fn post<C: Call<Reply = ()>>(&mut self, call: &C) {
        if self.gone.load(Ordering::Acquire) {
            return;
        }
        call.put(&mut self.out);
        if self.out.len() > FULL && !self.send() {
            self.lost::<()>();
        }
    }

    /// Send a request and wait for its reply.
    fn ask<C: Call>(&mut self, call: &C) -> Option<C::Reply> {
        if self.gone.load(Ordering::Acquire) {
            return None;
        }
        call.put(&mut self.out);
        let mut answer = None;
        if self.send() {
            let Self { socket, into, wait_hook, .. } = self;
            wait_hook(&mut || {
                answer = socket.receive(into).map(<[u8]>::len);
            });
        }
        let Some(length) = answer else { return self.lost() };
        match C::Reply::take(&mut Reader(&self.into[..length])) {
            None => self.lost(),
            reply => reply,
        }
    }

    fn act<T, C: Call<Reply = (T, After)>>(&mut self, page: Page, call: &C) -> Option<T> {
        let answer = self.ask(call);
        self.clear_cache();
        let (outcome, (free, known)) = answer?;
        self.free = free;
        self.last = Some((page, known));
        Some(outcome)
    }

    /// The index of the first page from `page` on in the latest walk; `None` if `page` is outside its range.
    fn walked(&self, page: Page) -> Option<usize> {
        let (range, pages) = &self.walk;
        let inside = range.contains(&page.number());
        inside.then(|| pages.partition_point(|(other, _)| *other < page))
    }

    fn look(&mut self, page: Page) -> PageInfo {
        if let Some((last, known)) = self.last
            && last == page
        {
            return known;
        }
        if let Some(at) = self.walked(page) {
            let found = self.walk.1.get(at).filter(|(other, _)| *other == page);
            return found.map_or(PageInfo::UNMAPPED, |(_, known)| *known);
        }
        let Some(known) = self.ask(&Look { page }) else { return PageInfo::UNMAPPED };
        self.last = Some((page, known));
        known
    }

    fn next(&mut self, from: Page) -> Option<Page> {
        if let Some(at) = self.walked(from)
            && let Some((page, _)) = self.walk.1.get(at)
        {
            return Some(*page);
        }
        let pages = self.ask(&Walk { from })?;
        let last = pages.last().map(|(page, _)| *page)?;
        self.walk = (from.number()..last.skip(1).number(), pages);
        self.walk.1.first().map(|(page, _)| *page)
    }
}

impl RemoteMemory {
    fn new(socket: Socket, gone: Arc<AtomicBool>, wait_hook: WaitHook) -> Self {
        let remote = Connection {
            socket,
            gone,
            wait_hook,
            out: Vec::with_capacity(MAX_MESSAGE),
            into: vec![0; MAX_MESSAGE],
            free: Free::default(),
            last: None,
            walk: (0..0, Vec::new()),
        };
        Self {
            constants: Constants::default(),
            now: Time::default(),
            threads: Vec::new(),
            remote: RefCell::new(remote),
        }
    }

    pub(super) fn thread(&self, index: u8) -> Option<Thread> {
        thread_of(&self.threads, index)
    }

    fn begin(&mut self, Preamble { now, free, page }: Preamble) {
        self.now = now;
        let remote = self.remote.get_mut();
        remote.clear_cache();
        (remote.free, remote.last) = (free, page);
    }

    /// Send the hook's result. Returns false if the connection is closed.
    fn end(&mut self, answer: &[u8]) -> bool {
        let remote = self.remote.get_mut();
        remote.out.extend_from_slice(answer);
        !remote.gone.load(Ordering::Acquire) && remote.send()
    }

    fn ask<C: Call>(&self, call: &C) -> Option<C::Reply> {
        self.remote.borrow_mut().ask(call)
    }

    fn look(&self, page: Page) -> PageInfo {
        self.remote.borrow_mut().look(page)
    }

    fn act<T, C: Call<Reply = (T, After)>>(&mut self, page: Page, call: &C) -> Option<T> {
        self.remote.get_mut().act(page, call)
    }

    fn attempt<C>(&mut self, page: Page, call: &C) -> Result<(), Refused>
    where
        C: Call<Reply = (Result<(), Refused>, After)>,
    {
        self.act(page, call).unwrap_or(Err(Refused::State))
    }
}

impl Memory for RemoteMemory {
    fn now(&self) -> Time {
        self.now
    }
    fn page_limit(&self) -> u32 {
        self.constants.page_limit
    }
    fn next_mapped(&self, from: Page) -> Option<Page> {
        self.remote.borrow_mut().next(from)
    }
    fn nodes(&self) -> u8 {
        self.constants.nodes
    }
    fn capacity(&self, node: NodeId) -> u64 {
        self.constants.capacity[node.index()]
    }
    fn free(&self, node: NodeId) -> u64 {
        self.remote.borrow().free[node.index()]
    }
    fn loaded_latency(&self, node: NodeId) -> Option<Time> {
        self.ask(&Latency { node })?
    }
    fn has(&self, capability: Capability) -> bool {
        self.constants.has(capability)
    }
    fn tenants(&self) -> u16 {
        self.ask(&Tenants {}).unwrap_or(1)
    }
    fn tenant_of(&self, page: Page) -> Tenant {
        self.ask(&TenantOf { page }).unwrap_or(Tenant::ONLY)
    }
    fn used(&self, tenant: Tenant, node: NodeId) -> u64 {
        self.ask(&Used { tenant, node }).unwrap_or(0)
    }
    fn limit(&self, tenant: Tenant, node: NodeId) -> Limit {
        self.ask(&Limits { tenant, node }).unwrap_or(Limit { low: 0, max: 0 })
    }

    fn mapped(&self, page: Page) -> bool {
        self.look(page).mapped
    }
    fn node_of(&self, page: Page) -> NodeId {
        self.look(page).node
    }
    fn span(&self, page: Page) -> u32 {
        self.look(page).span
    }
    fn accessed(&self, page: Page) -> bool {
        self.look(page).accessed
    }
    fn dirty(&self, page: Page) -> bool {
        self.look(page).dirty
    }
    fn hint_armed(&self, page: Page) -> bool {
        self.look(page).armed
    }
    fn write_protected(&self, page: Page) -> bool {
        self.look(page).protected
    }
    fn shadow_of(&self, page: Page) -> Option<NodeId> {
        self.look(page).shadow
    }

    fn clear_accessed(&mut self, page: Page) -> bool {
        self.act(page, &ClearAccessed { page }).unwrap_or(false)
    }
    fn arm_hint(&mut self, page: Page) -> Result<(), Refused> {
        self.attempt(page, &ArmHint { page })
    }
    fn disarm_hint(&mut self, page: Page) {
        let remote = self.remote.get_mut();
        remote.post(&DisarmHint { page });
        remote.clear_cache();
    }
    fn write_protect(&mut self, page: Page) -> Result<(), Refused> {
        self.attempt(page, &WriteProtect { page })
    }
    fn unprotect(&mut self, page: Page) -> Result<(), Refused> {
        self.attempt(page, &Unprotect { page })
    }

    fn move_page(&mut self, page: Page, to: NodeId) -> Result<(), Refused> {
        self.attempt(page, &MovePage { page, to })
    }
    fn begin_copy(&mut self, page: Page, to: NodeId, wake: Thread) -> Result<(), Refused> {
        let wake = wake.index() as u8;
        self.attempt(page, &BeginCopy { page, to, wake })
    }
    fn commit_copy(&mut self, page: Page, keep_shadow: bool) -> Result<Commit, Refused> {
        self.act(page, &CommitCopy { page, keep_shadow }).unwrap_or(Err(Refused::State))
    }
    fn remap_to_shadow(&mut self, page: Page) -> Result<(), Refused> {
        self.attempt(page, &RemapToShadow { page })
    }
    fn drop_shadow(&mut self, page: Page, why: DropReason) -> Result<(), Refused> {
        self.attempt(page, &DropShadow { page, why })
    }
    fn split(&mut self, page: Page) -> Result<(), Refused> {
        self.attempt(page, &Split { page })
    }
    fn batch(&mut self, requests: &[Request], outcomes: &mut Vec<Result<(), Refused>>) {
        outcomes.clear();
        let remote = self.remote.get_mut();
        for part in requests.chunks(BATCH) {
            match remote.ask(&Batch { requests: part.to_vec() }) {
                Some((done, free)) => {
                    outcomes.extend(done);
                    remote.free = free;
                }
                None => outcomes.extend(part.iter().map(|_| Err(Refused::State))),
            }
        }
        remote.clear_cache();
    }

    fn spawn(&mut self, name: &'static str, context: Context) -> Thread {
        let index = self.ask(&Spawn { name: name.to_owned(), context });
        let thread = Thread::new(index.unwrap_or(0), name);
        self.threads.push(thread);
        thread
    }
    fn wake(&mut self, thread: Thread) {
        self.remote.get_mut().post(&Wake { thread: thread.index() as u8 });
    }
    fn sample_every(&mut self, loads: u64, stores: u64) {
        self.remote.get_mut().post(&SampleEvery { loads, stores });
    }
}
