//! The launcher's end: a memory that is elsewhere, and a policy that answers for it.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nearfar_kernel::tiering::layered::{Declared, Started};
use nearfar_kernel::tiering::nomad::ShadowRule;
use nearfar_kernel::tiering::{
    Capability, Commit, Context, DropReason, Limit, Memory, NodeId, Page, Policy, Refused, Request,
    Tenant, Thread, Time,
};
use nearfar_trace::Result as Made;

use super::Socket;
use super::messages::request::{
    ArmHint, Batch, BeginCopy, ClearAccessed, CommitCopy, DisarmHint, DropShadow, Latency, Limits,
    Look, MovePage, RemapToShadow, SampleEvery, Spawn, Split, TenantOf, Tenants, Unprotect, Used,
    Wake, Walk, WriteProtect,
};
use super::messages::{After, Call, Constants, DONE, Free, Known, Moment, Threads, hook};
use super::socket::LONGEST;
use super::wire::{Reader, Wire};

/// Requests of a batch that go into one message.
const BATCH: usize = 4096;
/// Bytes of requests without an answer after which they are sent.
const FULL: usize = LONGEST / 2;

/// A policy for one process.
pub trait Offer {
    /// What it says of itself.
    fn declared(&self) -> Declared;
    /// Begin, for this memory.
    ///
    /// # Errors
    /// What it lacks.
    fn start(&mut self, mem: &mut dyn Memory) -> Made<Started>;
    /// What it says to NOMAD, if it has declared that.
    fn rule(&mut self) -> &mut dyn ShadowRule;
    /// Whether it has failed, and is not to be asked any more.
    fn failed(&self) -> bool {
        false
    }
}

/// How to wait for a message: the caller's work is done inside, and nothing of the policy's is touched.
pub type Around = Box<dyn Fn(&mut (dyn FnMut() + Send))>;

/// Answer for the memory at the other end of `socket` until there is nobody, or the policy has failed.
/// `gone` is set once there is nobody; `around` is where it waits while a hook runs.
pub fn serve(socket: Socket, offer: &mut dyn Offer, gone: &Arc<AtomicBool>, around: Around) {
    let mut mem = Served::new(socket, Arc::clone(gone), around);
    let mut policy = None;
    let mut message = vec![0; LONGEST];
    let mut answer = Vec::new();
    while let Some(received) = mem.remote.get_mut().socket.receive(&mut message) {
        let mut reader = Reader(received);
        let Some(moment) = Moment::take(&mut reader) else { break };
        mem.begin(moment);
        answer.clear();
        answer.push(DONE);
        let mut host = Host { offer: &mut *offer, policy: &mut policy, mem: &mut mem };
        let understood = hook::call(&mut host, &mut reader, &mut answer);
        if offer.failed() {
            // Who has called goes on waiting: its program is about to be ended.
            return;
        }
        if understood.is_none() || !mem.end(&answer) {
            break;
        }
    }
    gone.store(true, Ordering::Release);
}

/// What hooks are called with.
pub(super) struct Host<'a> {
    pub(super) offer: &'a mut dyn Offer,
    pub(super) policy: &'a mut Option<Box<dyn Policy>>,
    pub(super) mem: &'a mut Served,
}

impl Host<'_> {
    /// The policy, once it has begun, and the memory.
    pub(super) fn both(&mut self) -> Option<(&mut dyn Policy, &mut dyn Memory)> {
        Some((&mut **self.policy.as_mut()?, self.mem))
    }

    pub(super) fn start(&mut self) -> Result<Threads, String> {
        let Started { hooks, threads, wakes } =
            self.offer.start(self.mem).map_err(|error| error.to_string())?;
        *self.policy = Some(hooks);
        let number = |thread: Thread| thread.index() as u8;
        let wakes = wakes.into_iter().map(|(thread, at)| (number(thread), at));
        Ok((threads.into_iter().map(number).collect(), wakes.collect()))
    }
}

/// A memory that is elsewhere.
///
/// While a hook runs nothing else changes the memory. So what was looked at is so until an action is
/// carried out, and of the page of that action, and of free frames, its answer says what is so afterwards.
/// An action that answers nothing is sent together with what comes next.
pub(super) struct Served {
    constants: Constants,
    now: Time,
    threads: Vec<Thread>,
    remote: RefCell<Distant>,
}

struct Distant {
    socket: Socket,
    gone: Arc<AtomicBool>,
    around: Around,
    out: Vec<u8>,
    into: Vec<u8>,
    free: Free,
    /// The last page that was looked at or acted on.
    last: Option<(Page, Known)>,
    /// All mappings that begin at these page numbers, in order.
    walk: (std::ops::Range<u32>, Vec<(Page, Known)>),
}

impl Distant {
    /// Nobody is there any more: nothing is mapped, and every action is refused.
    fn lost<T>(&mut self) -> Option<T> {
        self.gone.store(true, Ordering::Release);
        self.out.clear();
        self.forget();
        None
    }

    fn forget(&mut self) {
        self.last = None;
        self.walk.0 = 0..0;
    }

    fn send(&mut self) -> bool {
        let sent = self.socket.send(&self.out);
        self.out.clear();
        sent
    }

    /// Request something that answers nothing.
    fn tell<C: Call<Reply = ()>>(&mut self, call: &C) {
        if self.gone.load(Ordering::Acquire) {
            return;
        }
        call.put(&mut self.out);
        if self.out.len() > FULL && !self.send() {
            self.lost::<()>();
        }
    }

    fn ask<C: Call>(&mut self, call: &C) -> Option<C::Reply> {
        if self.gone.load(Ordering::Acquire) {
            return None;
        }
        call.put(&mut self.out);
        let mut answer = None;
        if self.send() {
            let Self { socket, into, around, .. } = self;
            around(&mut || {
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
        self.forget();
        let (outcome, (free, known)) = answer?;
        self.free = free;
        self.last = Some((page, known));
        Some(outcome)
    }

    fn walked(&self, page: Page) -> Option<usize> {
        let (range, pages) = &self.walk;
        let inside = range.contains(&page.number());
        inside.then(|| pages.partition_point(|(other, _)| *other < page))
    }

    fn look(&mut self, page: Page) -> Known {
        if let Some((last, known)) = self.last
            && last == page
        {
            return known;
        }
        if let Some(at) = self.walked(page) {
            let found = self.walk.1.get(at).filter(|(other, _)| *other == page);
            return found.map_or(Known::NOTHING, |(_, known)| *known);
        }
        let Some(known) = self.ask(&Look { page }) else { return Known::NOTHING };
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

impl Served {
    fn new(socket: Socket, gone: Arc<AtomicBool>, around: Around) -> Self {
        let remote = Distant {
            socket,
            gone,
            around,
            out: Vec::with_capacity(LONGEST),
            into: vec![0; LONGEST],
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

    pub(super) fn set_constants(&mut self, constants: Constants) {
        self.constants = constants;
    }

    pub(super) fn thread(&self, index: u8) -> Option<Thread> {
        self.threads.iter().copied().find(|thread| thread.index() == usize::from(index))
    }

    fn begin(&mut self, Moment { now, free, page }: Moment) {
        self.now = now;
        let remote = self.remote.get_mut();
        remote.forget();
        (remote.free, remote.last) = (free, page);
    }

    /// The hook is over, with this answer; whether there is somebody to hear it.
    fn end(&mut self, answer: &[u8]) -> bool {
        let remote = self.remote.get_mut();
        remote.out.extend_from_slice(answer);
        !remote.gone.load(Ordering::Acquire) && remote.send()
    }

    fn ask<C: Call>(&self, call: &C) -> Option<C::Reply> {
        self.remote.borrow_mut().ask(call)
    }

    fn look(&self, page: Page) -> Known {
        self.remote.borrow_mut().look(page)
    }

    fn act<T, C: Call<Reply = (T, After)>>(&mut self, page: Page, call: &C) -> Option<T> {
        self.remote.get_mut().act(page, call)
    }

    fn tried<C>(&mut self, page: Page, call: &C) -> Result<(), Refused>
    where
        C: Call<Reply = (Result<(), Refused>, After)>,
    {
        self.act(page, call).unwrap_or(Err(Refused::State))
    }
}

impl Memory for Served {
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
        self.tried(page, &ArmHint { page })
    }
    fn disarm_hint(&mut self, page: Page) {
        let remote = self.remote.get_mut();
        remote.tell(&DisarmHint { page });
        remote.forget();
    }
    fn write_protect(&mut self, page: Page) -> Result<(), Refused> {
        self.tried(page, &WriteProtect { page })
    }
    fn unprotect(&mut self, page: Page) -> Result<(), Refused> {
        self.tried(page, &Unprotect { page })
    }

    fn move_page(&mut self, page: Page, to: NodeId) -> Result<(), Refused> {
        self.tried(page, &MovePage { page, to })
    }
    fn begin_copy(&mut self, page: Page, to: NodeId, wake: Thread) -> Result<(), Refused> {
        let wake = wake.index() as u8;
        self.tried(page, &BeginCopy { page, to, wake })
    }
    fn commit_copy(&mut self, page: Page, keep_shadow: bool) -> Result<Commit, Refused> {
        self.act(page, &CommitCopy { page, keep_shadow }).unwrap_or(Err(Refused::State))
    }
    fn remap_to_shadow(&mut self, page: Page) -> Result<(), Refused> {
        self.tried(page, &RemapToShadow { page })
    }
    fn drop_shadow(&mut self, page: Page, why: DropReason) -> Result<(), Refused> {
        self.tried(page, &DropShadow { page, why })
    }
    fn split(&mut self, page: Page) -> Result<(), Refused> {
        self.tried(page, &Split { page })
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
        remote.forget();
    }

    fn spawn(&mut self, name: &'static str, context: Context) -> Thread {
        let index = self.ask(&Spawn { name: name.to_owned(), context });
        let thread = Thread::new(index.unwrap_or(0), name);
        self.threads.push(thread);
        thread
    }
    fn wake(&mut self, thread: Thread) {
        self.remote.get_mut().tell(&Wake { thread: thread.index() as u8 });
    }
    fn sample_every(&mut self, loads: u64, stores: u64) {
        self.remote.get_mut().tell(&SampleEvery { loads, stores });
    }
}
