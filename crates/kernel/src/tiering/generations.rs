//! The multi-generational LRU (MGLRU) of each node. If it is enabled, kswapd demotes in its order.
//!
//! Follows `mm/vmscan.c` of Linux 6.12 for mapped anonymous pages. A node's pages belong to up to four
//! generations. A new page enters the youngest. Aging (`try_to_inc_max_seq`) walks the page tables, moves
//! accessed pages to the youngest generation and starts a new one; it skips page tables in which few
//! accessed pages were found before (a Bloom filter in the kernel, exact here). kswapd takes pages
//! from the oldest generation; around an accessed page it looks for others (`lru_gen_look_around`). It
//! ages when two generations are left, or three of uneven size (`should_run_aging`). A migrated page
//! enters the youngest generation of its node if it was in one of the two youngest, otherwise the
//! second youngest (`lru_gen_add_folio`). Tiers of pages used through files are left out.

use nearfar_hardware::list::{self, Links};

use super::shares::may_demote;
use super::{Memory, NodeId, Page};

/// `MAX_NR_GENS`, `MIN_NR_GENS`.
const GENERATIONS: u64 = 4;
const MIN_GENERATIONS: u64 = 2;
/// `MIN_LRU_BATCH`: pages evicted together, and pages around an accessed one.
const BATCH: u32 = 64;
/// A table is walked again if at least one in this many pages was accessed.
const DENSITY: u32 = 8;
/// Pages of a page table.
const TABLE: u32 = 512;
/// Page tables that a step of aging walks.
const TABLES_PER_STEP: u32 = 64;

/// Layout of the word that [`Links`] has for each page: mask of the node's number + 1 (0: in no
/// generation), and shift of the generation's [`slot`].
const NODE: u32 = 0b111;
const GENERATION: u32 = 3;

#[derive(Clone, Debug)]
struct Node {
    lists: [list::List; GENERATIONS as usize],
    frames: [u64; GENERATIONS as usize],
    oldest: u64,
    youngest: u64,
    /// By page table: number of the walk that visits it next.
    next_walk: Vec<u64>,
    walks: u64,
    /// Where the walk in progress continues.
    walk: Option<Page>,
}

/// What a step of kswapd did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It scanned this many frames, and freed none.
    Scanned(u64),
    /// It demoted pages.
    Freed,
    /// The node has no pages.
    Empty,
}

/// The generations of all nodes.
#[derive(Clone, Debug)]
pub struct Generations {
    links: Links,
    nodes: Vec<Node>,
}

/// Index of a generation by its sequence number.
fn slot(generation: u64) -> usize {
    (generation % GENERATIONS) as usize
}

impl Generations {
    /// Empty generations for page numbers below `pages` on `nodes` nodes.
    pub fn new(pages: u32, nodes: u8) -> Self {
        let node = Node {
            lists: Default::default(),
            frames: [0; GENERATIONS as usize],
            oldest: 0,
            youngest: MIN_GENERATIONS + 1,
            next_walk: vec![0; pages.div_ceil(TABLE) as usize],
            walks: 0,
            walk: None,
        };
        Self { links: Links::new(pages as usize), nodes: vec![node; usize::from(nodes)] }
    }

    fn node_and_slot(&self, page: Page) -> Option<(usize, usize)> {
        let word = self.links[page.number()];
        let node = (word & NODE).checked_sub(1)?;
        Some((node as usize, (word >> GENERATION) as usize))
    }

    /// Put a page of `span` frames that has no generation into the youngest or the second youngest of
    /// `node`.
    pub fn add(&mut self, page: Page, span: u32, node: NodeId, youngest: bool) {
        let to = &mut self.nodes[node.index()];
        let generation = slot(to.youngest - u64::from(!youngest));
        self.links[page.number()] = node.index() as u32 + 1 | (generation as u32) << GENERATION;
        self.links.push(&mut to.lists[generation], page.number());
        to.frames[generation] += u64::from(span);
    }

    /// Take a page of `span` frames out of its generation.
    pub fn remove(&mut self, page: Page, span: u32) {
        if let Some((node, generation)) = self.node_and_slot(page) {
            let node = &mut self.nodes[node];
            self.links.remove(&mut node.lists[generation], page.number());
            self.links[page.number()] = 0;
            node.frames[generation] -= u64::from(span);
        }
    }

    /// Whether the page is in one of the two youngest generations of its node (`lru_gen_is_active`).
    pub fn is_active(&self, page: Page) -> bool {
        self.node_and_slot(page).is_some_and(|(node, generation)| {
            let youngest = self.nodes[node].youngest;
            generation == slot(youngest) || generation == slot(youngest - 1)
        })
    }

    fn move_to_youngest(&mut self, page: Page, span: u32, node: NodeId) {
        self.remove(page, span);
        self.add(page, span, node, /* youngest: */ true);
    }

    /// `should_run_aging`.
    fn should_age(&self, node: NodeId) -> bool {
        let node = &self.nodes[node.index()];
        if node.oldest + MIN_GENERATIONS != node.youngest {
            return node.oldest + MIN_GENERATIONS > node.youngest;
        }
        let total: u64 = node.frames.iter().sum();
        let (young, old) = (node.frames[slot(node.youngest)], node.frames[slot(node.oldest)]);
        young * MIN_GENERATIONS > total || old * (MIN_GENERATIONS + 2) < total
    }

    /// Walk some page tables; after the last one, start a generation. Returns the frames that count as
    /// scanned: those of the node at the end of a walk, none before.
    fn age(&mut self, mem: &mut dyn Memory, on: NodeId) -> u64 {
        let node = &mut self.nodes[on.index()];
        let mut next = node.walk.take().or_else(|| mem.next_mapped(Page::new(0)));
        for _ in 0..TABLES_PER_STEP {
            let Some(first) = next else { break };
            let table = first.number() / TABLE;
            let end = (table + 1) * TABLE;
            let walks = self.nodes[on.index()].walks;
            if walks == 0 || self.nodes[on.index()].next_walk[table as usize] == walks {
                self.rejuvenate_accessed(mem, on, (first, end), walks + 1);
            }
            next = (end < mem.page_limit()).then(|| mem.next_mapped(Page::new(end))).flatten();
        }
        let node = &mut self.nodes[on.index()];
        node.walk = next;
        if next.is_some() {
            return 0;
        }
        node.walks += 1;
        node.youngest += 1;
        node.frames.iter().sum()
    }

    /// Move the accessed pages of a part of a page table to the youngest generation. If there are enough
    /// of them, walk `next` visits the table.
    fn rejuvenate_accessed(
        &mut self,
        mem: &mut dyn Memory,
        on: NodeId,
        (first, end): (Page, u32),
        next: u64,
    ) {
        let (mut all, mut young) = (0, 0);
        let mut at = mem.next_mapped(first);
        while let Some(page) = at.filter(|page| page.number() < end) {
            let span = mem.span(page);
            at = mem.next_mapped(page.skip(span));
            if mem.node_of(page) == on {
                all += span;
                if mem.accessed(page) && mem.clear_accessed(page) {
                    young += span;
                    self.move_to_youngest(page, span, on);
                }
            }
        }
        if young * DENSITY >= all && young > 0 {
            self.nodes[on.index()].next_walk[(first.number() / TABLE) as usize] = next;
        }
    }

    /// A step of kswapd on a node: age, or `demote` the unaccessed pages of a batch of the oldest
    /// generation.
    pub fn shrink(
        &mut self,
        mem: &mut dyn Memory,
        on: NodeId,
        mut demote: impl FnMut(&mut dyn Memory, Page) -> bool,
    ) -> Step {
        if self.nodes[on.index()].frames.iter().all(|frames| *frames == 0) {
            return Step::Empty;
        }
        if self.nodes[on.index()].walk.is_some() || self.should_age(on) {
            return Step::Scanned(self.age(mem, on));
        }
        let (mut freed, mut scanned) = (false, 0);
        for _ in 0..BATCH {
            let node = &mut self.nodes[on.index()];
            let Some(page) = node.lists[slot(node.oldest)].oldest().map(Page::new) else {
                // `try_to_inc_min_seq`.
                node.oldest += 1;
                break;
            };
            let span = mem.span(page);
            scanned += u64::from(span);
            if mem.accessed(page) {
                let first = page.number() / BATCH * BATCH;
                let walks = self.nodes[on.index()].walks;
                self.rejuvenate_accessed(mem, on, (Page::new(first), first + BATCH), walks);
            } else if may_demote(mem, page) && demote(mem, page) {
                self.remove(page, span);
                self.add(page, span, mem.node_of(page), /* youngest: */ false);
                freed = true;
            } else {
                self.move_to_youngest(page, span, on);
            }
        }
        if freed { Step::Freed } else { Step::Scanned(scanned) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::none::Never;
    use super::super::testing::{COSTS, ReferenceMemory};
    use super::*;

    /// Pages 0 to 15 in the fast node, all in the oldest generation; some were accessed since.
    fn aged(accessed: &[u32]) -> (ReferenceMemory, Generations) {
        let mut memory = ReferenceMemory::new(COSTS, &[16, 32], 16, /* huge: */ false);
        let mut generations = Generations::new(16, 2);
        let mut policy = Never;
        for page in (0..16).map(Page::new) {
            memory.access(&mut policy, page, /* write: */ false).unwrap();
            generations.add(page, 1, NodeId::FAST, /* youngest: */ true);
            memory.clear_accessed(page);
        }
        while generations.nodes[0].frames[slot(generations.nodes[0].oldest)] == 0 {
            generations.shrink(&mut memory, NodeId::FAST, |_, _| false);
        }
        for page in accessed {
            memory.access(&mut policy, Page::new(*page), /* write: */ false).unwrap();
        }
        (memory, generations)
    }

    #[test]
    fn unaccessed_pages_are_demoted_oldest_first() {
        let (mut memory, mut generations) = aged(&[1, 2, 7]);
        let mut demoted = vec![];
        let slow = NodeId::new(1);
        let mut rounds = 0;
        while generations.nodes[1].frames.iter().sum::<u64>() == 0 {
            rounds += 1;
            assert!(rounds < 20);
            generations.shrink(&mut memory, NodeId::FAST, |memory, page| {
                demoted.push(page.number());
                memory.move_page(page, slow).is_ok()
            });
        }
        assert_eq!(demoted, [0, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert!(generations.is_active(Page::new(7)) && generations.is_active(Page::new(0)));
        assert_eq!(generations.nodes[0].frames.iter().sum::<u64>(), 3);
    }

    #[test]
    fn every_page_is_in_one_of_two_to_four_generations() {
        let (mut memory, mut generations) = aged(&[]);
        let mut policy = Never;
        for round in 0..300u32 {
            for page in 0..round % 5 {
                memory
                    .access(&mut policy, Page::new(page * round % 16), /* write: */ false)
                    .unwrap();
            }
            generations.shrink(&mut memory, NodeId::FAST, |memory, page| {
                page.number() % 3 == 0 && memory.move_page(page, NodeId::new(1)).is_ok()
            });
            let node = &generations.nodes[0];
            assert!((MIN_GENERATIONS - 1..GENERATIONS).contains(&(node.youngest - node.oldest)));
            let frames: u64 = generations.nodes.iter().flat_map(|node| node.frames).sum();
            assert_eq!(frames, 16);
        }
        assert!(generations.nodes[1].frames.iter().sum::<u64>() > 0);
    }
}
