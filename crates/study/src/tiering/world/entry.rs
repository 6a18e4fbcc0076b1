//! A page-table entry: the complete state of a page in one byte, so that every query takes one
//! memory access.
//!
//! Two bits are the page's node, two the node of its shadow: the frame from which it was promoted, on a
//! slower node. So shadow node 0 means no shadow. Both are stored complemented, so that 0 is the impossible
//! pair (3, 3), which stands for a page that is not mapped. The other four bits are flags.

use nearfar_kernel::tiering::NodeId;

pub type Entry = u8;

/// The entry of a page that is not mapped; no other entry is 0.
pub const NONE: Entry = 0;
const NODE_MASK: Entry = 0b11;
const SHADOW_SHIFT: u32 = 2;
pub const ACCESSED: Entry = 1 << 4;
pub const DIRTY: Entry = 1 << 5;
/// The next access takes a hint fault.
pub const ARMED: Entry = 1 << 6;
/// The next store takes a write-protect fault.
pub const PROTECTED: Entry = 1 << 7;
pub const FLAGS: Entry = ACCESSED | DIRTY | ARMED | PROTECTED;

/// The entry of a page on `node`, perhaps with a shadow on a slower node, without flags.
#[inline]
pub const fn at(node: NodeId, shadow: Option<NodeId>) -> Entry {
    let shadow = match shadow {
        Some(shadow) => shadow.index() as Entry,
        None => 0,
    };
    !(node.index() as Entry | shadow << SHADOW_SHIFT) & !FLAGS
}

/// The node of a mapped page.
#[inline]
pub const fn node(entry: Entry) -> NodeId {
    NodeId::new(!entry & NODE_MASK)
}

/// The node of the shadow, if the page has one.
#[inline]
pub const fn shadow(entry: Entry) -> Option<NodeId> {
    match !entry >> SHADOW_SHIFT & NODE_MASK {
        0 => None,
        _ if entry == NONE => None,
        shadow => Some(NodeId::new(shadow)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_shadow_and_flags_round_trip() {
        assert_eq!(shadow(NONE), None);
        for on in NodeId::all(4) {
            let slower = NodeId::all(4).filter(|node| *node > on);
            for held in std::iter::once(None).chain(slower.map(Some)) {
                for flags in [0, ACCESSED, DIRTY | ARMED, PROTECTED, FLAGS] {
                    let entry = at(on, held) | flags;
                    assert_ne!(entry, NONE);
                    assert_eq!((node(entry), shadow(entry), entry & FLAGS), (on, held, flags));
                }
            }
        }
    }
}
