//! The messages between the program's end and the launcher's end of the socket. Each is declared once for
//! both: its fields, its reply, and how the receiver handles it.
//!
//! The program's end, which has the memory, calls a hook of the policy, which runs at the launcher's end.
//! Until the hook returns, the launcher's end may send messages with one or more requests about the memory,
//! of which only the last may have a reply. Its final message ends with [`DONE`] and the hook's result.

use nearfar_kernel::tiering::layered::Declared;
use nearfar_kernel::tiering::{Capability, Memory, Next, NodeId, Page, Refused, Thread, Time};

use super::wire::{Reader, Wire, fields};

/// The indices of a policy's threads, and the time of the first run of each that does not start idle.
pub(super) type Threads = (Vec<u8>, Vec<(u8, Time)>);

/// The thread of this index.
pub(super) fn thread_of(threads: &[Thread], index: u8) -> Option<Thread> {
    threads.iter().copied().find(|thread| thread.index() == usize::from(index))
}

/// The tag before a hook's result, in place of a request's tag.
pub(super) const DONE: u8 = 0;
/// Maximum number of nodes of a memory.
const NODES: usize = 4;
/// Maximum number of pages in a reply to [`Walk`](request::Walk). Many pages take little longer than one.
const WALK_PAGES: usize = 128;

/// The state of a page, as the methods of [`Memory`] return it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageInfo {
    pub(super) mapped: bool,
    pub(super) node: NodeId,
    pub(super) span: u32,
    pub(super) accessed: bool,
    pub(super) dirty: bool,
    pub(super) armed: bool,
    pub(super) protected: bool,
    pub(super) shadow: Option<NodeId>,
}

impl PageInfo {
    pub(super) const UNMAPPED: Self = Self {
        mapped: false,
        node: NodeId::FAST,
        span: 1,
        accessed: false,
        dirty: false,
        armed: false,
        protected: false,
        shadow: None,
    };

    pub(super) fn of(mem: &dyn Memory, page: Page) -> Self {
        Self {
            mapped: mem.mapped(page),
            node: mem.node_of(page),
            span: mem.span(page),
            accessed: mem.accessed(page),
            dirty: mem.dirty(page),
            armed: mem.hint_armed(page),
            protected: mem.write_protected(page),
            shadow: mem.shadow_of(page),
        }
    }
}

/// Free frames of each node.
pub(super) type Free = [u64; NODES];

fn free(mem: &dyn Memory) -> Free {
    by_node(mem, |node| mem.free(node))
}

fn by_node(mem: &dyn Memory, of: impl Fn(NodeId) -> u64) -> [u64; NODES] {
    let mut all = [0; NODES];
    for (number, node) in all.iter_mut().zip(NodeId::all(mem.nodes())) {
        *number = of(node);
    }
    all
}

/// After an action: free frames, and the state of its page.
pub(super) type After = (Free, PageInfo);

/// The constant properties of a memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Constants {
    pub(super) page_limit: u32,
    pub(super) nodes: u8,
    pub(super) capacity: [u64; NODES],
    /// In the order of [`Capability::ALL`].
    has: [bool; Capability::ALL.len()],
}

impl Constants {
    pub(super) fn of(mem: &dyn Memory) -> Self {
        Self {
            page_limit: mem.page_limit(),
            nodes: mem.nodes(),
            capacity: by_node(mem, |node| mem.capacity(node)),
            has: Capability::ALL.map(|(_, capability)| mem.has(capability)),
        }
    }

    pub(super) fn has(&self, capability: Capability) -> bool {
        let all = Capability::ALL.iter().zip(self.has);
        all.into_iter().any(|((_, known), has)| *known == capability && has)
    }
}

/// Sent before each hook: the time, and what the hook will most likely read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Preamble {
    pub(super) now: Time,
    pub(super) free: Free,
    pub(super) page: Option<(Page, PageInfo)>,
}

impl Preamble {
    pub(super) fn of(mem: &dyn Memory, about: Option<Page>) -> Self {
        let page = about.map(|page| (page, PageInfo::of(mem, page)));
        Self { now: mem.now(), free: free(mem), page }
    }
}

fields! {
    PageInfo { mapped, node, span, accessed, dirty, armed, protected, shadow }
    Constants { page_limit, nodes, capacity, has }
    Preamble { now, free, page }
}

/// A message with a reply.
pub(super) trait Call {
    type Reply: Wire;
    /// Write the tag and the fields.
    fn put(&self, into: &mut Vec<u8>);
    /// The page whose state the hook will most likely read.
    fn about(&self) -> Option<Page> {
        None
    }
}

/// Declare messages: their fields, the page that they are about, their reply, and the expression that
/// computes the reply. In the expression, `?` rejects an invalid message.
macro_rules! calls {
    (
        $(#[$doc:meta])*
        fn $answer:ident($side:ident: $context:ty);
        $($(#[$what:meta])*
        $name:ident { $($field:ident: $type:ty),* } $(about $page:ident)? -> $reply:ty = $act:expr;)*
    ) => {
        enum Tag { Done, $($name),* }
        const _: () = assert!(Tag::Done as u8 == super::DONE);

        $($(#[$what])*
        #[derive(Debug)]
        pub(in super::super) struct $name { $(pub(in super::super) $field: $type),* }

        impl Call for $name {
            type Reply = $reply;
            fn put(&self, into: &mut Vec<u8>) {
                (Tag::$name as u8).put(into);
                $(self.$field.put(into);)*
            }
            $(fn about(&self) -> Option<Page> {
                Some(self.$page)
            })?
        })*

        $(#[$doc])*
        pub(in super::super) fn $answer(
            $side: $context,
            from: &mut Reader<'_>,
            answer: &mut Vec<u8>,
        ) -> Option<()> {
            let tag = u8::take(from)?;
            $(if tag == Tag::$name as u8 {
                $(let $field = <$type>::take(from)?;)*
                let reply: $reply = $act;
                reply.put(answer);
                return Some(());
            })*
            None
        }
    };
}

/// Requests of the launcher's end about the memory.
pub(super) mod request {
    use nearfar_kernel::tiering::{Commit, Context, DropReason, Limit, Request, Tenant};

    use super::*;

    /// How a hook may access the memory.
    pub(in super::super) enum Access<'a> {
        None,
        Read(&'a dyn Memory),
        /// Read, and perform actions.
        Write(&'a mut dyn Memory),
    }

    /// The program's end.
    pub(in super::super) struct ProgramSide<'a, 'b> {
        pub(in super::super) access: Access<'a>,
        /// The threads that the policy has spawned.
        pub(in super::super) threads: &'b mut Vec<Thread>,
    }

    impl ProgramSide<'_, '_> {
        pub(in super::super) fn memory(&self) -> Option<&dyn Memory> {
            match &self.access {
                Access::None => None,
                Access::Read(mem) => Some(*mem),
                Access::Write(mem) => Some(&**mem),
            }
        }

        fn memory_mut(&mut self) -> Option<&mut dyn Memory> {
            match &mut self.access {
                Access::Write(mem) => Some(&mut **mem),
                Access::None | Access::Read(_) => None,
            }
        }

        /// Act on a page. Returns the outcome and the state afterwards.
        fn action<T>(
            &mut self,
            page: Page,
            act: impl FnOnce(&mut dyn Memory) -> T,
        ) -> Option<(T, After)> {
            let mem = self.memory_mut()?;
            let outcome = act(mem);
            Some((outcome, (free(mem), PageInfo::of(mem, page))))
        }

        fn walk(&self, from: Page) -> Option<Vec<(Page, PageInfo)>> {
            let (mem, mut pages, mut next) = (self.memory()?, Vec::with_capacity(WALK_PAGES), from);
            while pages.len() < WALK_PAGES
                && let Some(page) = mem.next_mapped(next)
            {
                pages.push((page, PageInfo::of(mem, page)));
                next = page.skip(1);
            }
            Some(pages)
        }

        fn spawn(&mut self, name: String, context: Context) -> Option<u8> {
            // Leaked: a policy spawns few threads, once.
            let thread = self.memory_mut()?.spawn(String::leak(name), context);
            self.threads.push(thread);
            Some(thread.index() as u8)
        }
    }

    calls! {
        /// Carry out a request; `None` if it is invalid.
        fn carry_out(program: &mut ProgramSide<'_, '_>);

        Look { page: Page } -> PageInfo = PageInfo::of(program.memory()?, page);
        /// The first mapped pages from page `from` on, at most [`WALK_PAGES`].
        Walk { from: Page } -> Vec<(Page, PageInfo)> = program.walk(from)?;
        Latency { node: NodeId } -> Option<Time> = program.memory()?.loaded_latency(node);
        Tenants {} -> u16 = program.memory()?.tenants();
        TenantOf { page: Page } -> Tenant = program.memory()?.tenant_of(page);
        Used { tenant: Tenant, node: NodeId } -> u64 = program.memory()?.used(tenant, node);
        Limits { tenant: Tenant, node: NodeId } -> Limit = program.memory()?.limit(tenant, node);

        ClearAccessed { page: Page } -> (bool, After)
            = program.action(page, |mem| mem.clear_accessed(page))?;
        ArmHint { page: Page } -> (Result<(), Refused>, After)
            = program.action(page, |mem| mem.arm_hint(page))?;
        WriteProtect { page: Page } -> (Result<(), Refused>, After)
            = program.action(page, |mem| mem.write_protect(page))?;
        Unprotect { page: Page } -> (Result<(), Refused>, After)
            = program.action(page, |mem| mem.unprotect(page))?;
        MovePage { page: Page, to: NodeId } -> (Result<(), Refused>, After)
            = program.action(page, |mem| mem.move_page(page, to))?;
        BeginCopy { page: Page, to: NodeId, wake: u8 } -> (Result<(), Refused>, After) = {
            let wake = thread_of(program.threads, wake)?;
            program.action(page, |mem| mem.begin_copy(page, to, wake))?
        };
        CommitCopy { page: Page, keep_shadow: bool } -> (Result<Commit, Refused>, After)
            = program.action(page, |mem| mem.commit_copy(page, keep_shadow))?;
        RemapToShadow { page: Page } -> (Result<(), Refused>, After)
            = program.action(page, |mem| mem.remap_to_shadow(page))?;
        DropShadow { page: Page, why: DropReason } -> (Result<(), Refused>, After)
            = program.action(page, |mem| mem.drop_shadow(page, why))?;
        Split { page: Page } -> (Result<(), Refused>, After)
            = program.action(page, |mem| mem.split(page))?;
        Batch { requests: Vec<Request> } -> (Vec<Result<(), Refused>>, Free) = {
            let (mem, mut outcomes) = (program.memory_mut()?, Vec::new());
            mem.batch(&requests, &mut outcomes);
            (outcomes, free(mem))
        };

        Spawn { name: String, context: Context } -> u8 = program.spawn(name, context)?;
        DisarmHint { page: Page } -> () = program.memory_mut()?.disarm_hint(page);
        Wake { thread: u8 } -> () = {
            let thread = thread_of(program.threads, thread)?;
            program.memory_mut()?.wake(thread);
        };
        SampleEvery { loads: u64, stores: u64 } -> ()
            = program.memory_mut()?.sample_every(loads, stores);
    }
}

/// Hooks that the program's end calls.
pub(super) mod hook {
    use nearfar_kernel::tiering::Tenant;

    use super::super::serve::Host;
    use super::*;

    calls! {
        /// Call a hook of the policy; `None` if the message is invalid.
        fn call(host: &mut Host<'_>);

        /// The first message: the memory's constants, and the policy's declaration.
        Hello { constants: Constants } -> Declared = {
            host.mem.constants = constants;
            host.source.declared()
        };
        /// Start the policy. The error says why it cannot run.
        Start {} -> Result<Threads, String> = host.start();

        Place { page: Page, frames: u32 } -> NodeId
            = host.with_policy(|policy, mem| policy.place(mem, page, frames))?;
        Allocated { page: Page } about page -> ()
            = host.with_policy(|policy, mem| policy.allocated(mem, page))?;
        Released { page: Page, span: u32 } -> ()
            = host.with_policy(|policy, mem| policy.released(mem, page, span))?;
        HintFault { page: Page, write: bool } about page -> ()
            = host.with_policy(|policy, mem| policy.hint_fault(mem, page, write))?;
        WriteFault { page: Page } about page -> ()
            = host.with_policy(|policy, mem| policy.write_fault(mem, page))?;
        Sample { page: Page, at: Page, write: bool } about page -> ()
            = host.with_policy(|policy, mem| policy.sample(mem, page, at, write))?;
        Pressure { node: NodeId, tenant: Tenant } -> ()
            = host.with_policy(|policy, mem| policy.pressure(mem, node, tenant))?;
        Work { thread: u8 } -> Next = {
            let thread = host.mem.thread(thread)?;
            host.with_policy(|policy, mem| policy.work(mem, thread))?
        };

        // The policy's rule for shadows of pages.
        KeepShadow { page: Page } -> bool = host.source.rule().keep_shadow(page);
        Promoted { page: Page } -> () = host.source.rule().promoted(page);
        Written { page: Page } -> () = host.source.rule().written(page);
        Demoting { page: Page, dirty: bool } -> () = host.source.rule().demoting(page, dirty);
    }
}
