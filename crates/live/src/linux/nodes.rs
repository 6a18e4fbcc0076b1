//! Memory nodes: where new frames are allocated, and where a page is.

/// Maximum number of nodes of a kernel.
const NODES: usize = 1024;
/// Policies of `include/uapi/linux/mempolicy.h`. Both fall back to other nodes.
const PREFERRED: i32 = 1;
const PREFERRED_MANY: i32 = 5;

type Mask = [u64; NODES / 64];

fn mask(nodes: &[u32]) -> Mask {
    let mut mask = [0; NODES / 64];
    for node in nodes.iter().filter(|node| (**node as usize) < NODES) {
        mask[*node as usize / 64] |= 1 << (node % 64);
    }
    mask
}

/// The far tier's node, and those of fast memory.
#[derive(Debug)]
pub(super) struct Nodes {
    far: u32,
    fast: Mask,
    /// Whether the thread that makes requests prefers the far node; `None` if unknown.
    prefers_far: Option<bool>,
}

impl Nodes {
    pub(super) fn new(far: u32, fast: &[u32]) -> Self {
        Self { far, fast: mask(fast), prefers_far: None }
    }

    /// Allocate the frames of this thread's requests on the far node or on the fast nodes, if there is room.
    pub(super) fn prefer(&mut self, far: bool) {
        if self.prefers_far == Some(far) {
            return;
        }
        let (policy, mask) =
            if far { (PREFERRED, mask(&[self.far])) } else { (PREFERRED_MANY, self.fast) };
        // SAFETY: the kernel reads one bit less than the given number.
        let done = unsafe {
            libc::syscall(libc::SYS_set_mempolicy, policy, mask.as_ptr(), NODES as u64 + 1)
        };
        // On an error the previous policy remains. Callers check where the frames are.
        self.prefers_far = (done == 0).then_some(far);
    }

    /// Whether the page at this address is on the far tier's node.
    pub(super) fn is_far(&self, at: *const u8) -> bool {
        let (mut node, none) = (-1i32, std::ptr::null::<i32>());
        // SAFETY: without a target, it only writes the node of the page of this process.
        let done = unsafe {
            libc::syscall(libc::SYS_move_pages, 0, 1u64, &raw const at, none, &raw mut node, 0)
        };
        done >= 0 && u32::try_from(node) == Ok(self.far)
    }
}
