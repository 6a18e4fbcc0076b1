//! Pages, nodes, tenants and times.

/// Bytes of a frame, and of a base page.
pub const FRAME: u64 = 4096;
/// Frames of a huge page.
pub const HUGE: u32 = 512;

/// The number of a base page in the program's address space. A huge page is identified by its first
/// base page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Page(u32);

impl Page {
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    pub const fn number(self) -> u32 {
        self.0
    }

    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The page `span` numbers further on, where a walk continues.
    #[must_use]
    pub const fn skip(self, span: u32) -> Page {
        Page(self.0.saturating_add(span))
    }
}

/// A memory node. Node 0 is the fastest and local to the program's processor; higher numbers are
/// slower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u8);

impl NodeId {
    pub const FAST: NodeId = NodeId(0);

    pub const fn new(number: u8) -> Self {
        Self(number)
    }

    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The next slower node, to which pages are demoted, if any.
    pub fn slower(self, nodes: u8) -> Option<NodeId> {
        (self.0 + 1 < nodes).then(|| NodeId(self.0 + 1))
    }

    /// All of `nodes`, fastest first.
    pub fn all(nodes: u8) -> impl Iterator<Item = NodeId> {
        (0..nodes).map(NodeId)
    }
}

/// The owner of a page: a container, a virtual machine, or the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(u16);

impl Tenant {
    /// The tenant of a memory with a single tenant.
    pub const ONLY: Tenant = Tenant(0);

    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A time since the start, or a duration, in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(u64);

impl Time {
    pub const NEVER: Time = Time(u64::MAX);

    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }

    pub const fn ps(self) -> u64 {
        self.0
    }

    /// This time plus `span`. [`Time::NEVER`] stays the same.
    #[must_use]
    pub const fn plus(self, span: Time) -> Time {
        Time(self.0.saturating_add(span.0))
    }

    /// The time since `earlier`; 0 if that is later.
    #[must_use]
    pub const fn since(self, earlier: Time) -> Time {
        Time(self.0.saturating_sub(earlier.0))
    }
}
