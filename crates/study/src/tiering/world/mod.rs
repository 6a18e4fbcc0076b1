//! The simulated machine: page table, frames, TLB, and the costs of actions.
//!
//! The page table takes a byte per page ([`entry`]). Frames are counted, not numbered, because which
//! frame a page has makes no difference here. Time is in picoseconds.
//!
//! A shadow is the old frame of a promoted page (its master), kept on a slower node (NOMAD).

use nearfar_hardware::table::on_huge_pages;
use nearfar_kernel::tiering::{Action, Context, HUGE, Memory, NodeId, Page, Refused, Thread, Time};
use rustc_hash::FxHashMap;

use super::counters::{Hardware, MAX_NODES};
use super::tlb::Tlb;

mod cost;
pub(super) mod entry;
mod memory;
mod tenants;
mod threads;

use entry::Entry;
use tenants::Account;
use threads::Load;

/// A thread of the policy.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    pub thread: Thread,
    pub context: Context,
    pub due: Time,
    /// Share of each node's bandwidth that its last step used, and until when.
    busy: [f64; MAX_NODES],
    busy_until: Time,
}

#[derive(Clone, Debug)]
pub struct World {
    pub(super) entries: Vec<Entry>,
    /// Destinations of pages that are being copied.
    copies: FxHashMap<Page, NodeId>,
    /// A bit for each aligned group of 512 pages that is one huge page; empty without huge pages.
    pub(super) huge: Vec<u64>,
    /// One for each simulated thread of the program.
    pub(super) tlbs: Vec<Tlb>,
    hardware: Hardware,
    capacity: [u64; MAX_NODES],
    free: [u64; MAX_NODES],
    accounts: Vec<Account>,
    pub(super) workers: Vec<Worker>,
    /// Index of the worker that runs; `None`: the program runs.
    pub(super) running: Option<usize>,
    /// The clock of the program's current thread.
    pub(super) clock: Time,
    /// The clocks of the program's threads; the slot of the current one is stale.
    clocks: Vec<Time>,
    pub(super) current: usize,
    load: Load,
    /// When the current event (such as a fault, or a step of a worker) began.
    pub(super) event: Time,
    /// Cost of the current event so far, picoseconds.
    charged: f64,
    /// Picoseconds for which a kernel thread, with copies in its current step, has kept each node busy.
    moved: [f64; MAX_NODES],
    /// Copies begun in the current event, and the threads to wake when they are complete.
    begun: Vec<(Page, Thread)>,
    /// Actions cost no time: set while the policy is given the future accesses.
    pub(super) free_of_charge: bool,
    /// Picoseconds of a load by node, with the current traffic.
    latency: [u64; MAX_NODES],
    /// Picoseconds of a page walk.
    pub(super) walk: u64,
    /// Share of each node's bandwidth that the program uses.
    program_busy: [f64; MAX_NODES],
    /// When bandwidth was last measured.
    metered: Time,
    /// Sampling period of loads and of stores, in cache lines; 0 = no samples.
    pub(super) period: [u64; 2],
    /// Cache lines until the next sample of a load, and of a store.
    pub(super) left: [i64; 2],
    /// Log of all actions, if enabled.
    pub log: Option<Vec<(Time, Action)>>,
}

/// Whether a page is part of a huge page, by the bits of [`World::huge`].
#[inline]
fn is_huge(huge: &[u64], page: Page) -> bool {
    let group = page.index() / HUGE as usize;
    huge.get(group / 64).is_some_and(|word| word >> (group % 64) & 1 == 1)
}

/// The mapping that a base page belongs to, by the bits of [`World::huge`].
#[inline]
pub(super) fn mapping(huge: &[u64], at: Page) -> Page {
    if is_huge(huge, at) { Page::new(at.number() / HUGE * HUGE) } else { at }
}

impl World {
    /// An empty machine with page numbers below `pages` and this many frames on each node.
    pub fn new(hardware: Hardware, frames: &[u64], pages: u32) -> Self {
        let mut capacity = [0; MAX_NODES];
        for (slot, frames) in capacity.iter_mut().zip(frames) {
            *slot = *frames;
        }
        let accounts = Account::all(&hardware.programs);
        let threads = accounts.last().map_or(1, |account| account.threads.end);
        let mut world = Self {
            // Huge pages of the host, not simulated ones.
            entries: on_huge_pages(vec![0; pages as usize]),
            copies: FxHashMap::default(),
            huge: Vec::new(),
            tlbs: vec![Tlb::new(hardware.tlb_entries); threads],
            clocks: vec![Time::default(); threads],
            current: 0,
            load: Load::default(),
            walk: hardware.costs.page_walk as u64,
            hardware,
            capacity,
            free: capacity,
            accounts,
            workers: Vec::new(),
            running: None,
            clock: Time::default(),
            event: Time::default(),
            charged: 0.0,
            moved: [0.0; MAX_NODES],
            begun: Vec::new(),
            free_of_charge: false,
            latency: [0; MAX_NODES],
            program_busy: [0.0; MAX_NODES],
            metered: Time::default(),
            period: [0; 2],
            left: [i64::MAX; 2],
            log: None,
        };
        world.update_costs();
        world
    }

    /// Let pages be mapped as huge pages from now on.
    pub fn use_huge_pages(&mut self) {
        self.huge = vec![0; self.entries.len().div_ceil(HUGE as usize).div_ceil(64)];
    }

    pub(super) fn hardware(&self) -> &Hardware {
        &self.hardware
    }

    fn is_huge(&self, page: Page) -> bool {
        is_huge(&self.huge, page)
    }

    #[inline]
    pub(super) fn mapping_of(&self, at: Page) -> Page {
        mapping(&self.huge, at)
    }

    /// The entry of a page; [`entry::NONE`] if it is not mapped.
    #[inline]
    fn entry(&self, page: Page) -> Entry {
        self.entries.get(page.index()).copied().unwrap_or(entry::NONE)
    }

    fn get(&self, page: Page, bit: Entry) -> bool {
        self.entry(page) & bit != 0
    }

    /// Set and clear bits of a mapped page; false for any other.
    fn change(&mut self, page: Page, set: Entry, clear: Entry) -> bool {
        match self.entries.get_mut(page.index()) {
            Some(entry) if *entry != entry::NONE => {
                *entry = *entry & !clear | set;
                true
            }
            _ => false,
        }
    }

    fn note(&mut self, action: Action) {
        if let Some(log) = &mut self.log {
            log.push((self.event, action));
        }
    }

    fn take(&mut self, page: Page, node: NodeId, frames: u64) -> Result<(), Refused> {
        let free = self.free.get_mut(node.index()).ok_or(Refused::State)?;
        *free = free.checked_sub(frames).ok_or(Refused::NoFrame)?;
        self.account(page).used[node.index()] += frames;
        Ok(())
    }

    fn release(&mut self, page: Page, node: NodeId, frames: u64) {
        self.free[node.index()] += frames;
        self.account(page).used[node.index()] -= frames;
    }

    /// Whether no page of this group is mapped, so that it can become a huge page.
    pub(super) fn group_is_free(&self, head: Page) -> bool {
        self.next_mapped(head).is_none_or(|next| next >= head.skip(HUGE))
    }

    /// Map a page for the first time on `node`. Returns false if the node is full.
    pub(super) fn map(&mut self, page: Page, node: NodeId, huge: bool) -> bool {
        let frames = if huge { u64::from(HUGE) } else { 1 };
        if self.take(page, node, frames).is_err() {
            return false;
        }
        if huge {
            let group = page.index() / HUGE as usize;
            self.huge[group / 64] |= 1 << (group % 64);
        }
        self.entries[page.index()] = entry::at(node, None);
        if node == NodeId::FAST {
            self.tally(page, |count| count.fast_allocated += frames);
        }
        true
    }

    /// Remove a mapping with its shadow and copy in progress. Returns its number of base pages.
    pub(super) fn unmap(&mut self, page: Page) -> u32 {
        let span = self.span(page);
        self.free_shadow(page);
        if let Some(node) = self.copies.remove(&page) {
            self.release(page, node, span.into());
        }
        let node = self.node_of(page);
        self.release(page, node, span.into());
        if node == NodeId::FAST {
            self.tally(page, |count| count.fast_freed += u64::from(span));
        }
        self.entries[page.index()] = entry::NONE;
        if let Some(word) = self.huge.get_mut(page.index() / HUGE as usize / 64) {
            *word &= !(1 << (page.index() / HUGE as usize % 64));
        }
        self.flush_tlbs(page);
        // The cost of reading or changing one page-table entry.
        self.charge(self.hardware.costs.page_scan);
        span
    }

    fn copy_node(&self, page: Page) -> Option<NodeId> {
        self.copies.get(&page).copied()
    }

    /// The node and number of frames of a page, if it is mapped and not being copied.
    fn movable(&self, page: Page) -> Result<(NodeId, u64), Refused> {
        if !self.mapped(page) {
            return Err(Refused::State);
        }
        if self.copy_node(page).is_some() {
            return Err(Refused::Busy);
        }
        Ok((self.node_of(page), u64::from(self.span(page))))
    }

    /// Count a promotion or demotion.
    fn count_move(&mut self, page: Page, from: NodeId, to: NodeId, frames: u64) {
        let up = to < from;
        self.tally(page, |count| match up {
            true => count.promotions += frames,
            false => count.demotions += frames,
        });
    }

    fn free_shadow(&mut self, page: Page) -> Option<u64> {
        let entry = self.entry(page);
        let node = entry::shadow(entry)?;
        let frames = u64::from(self.span(page));
        self.entries[page.index()] = entry::at(entry::node(entry), None) | entry & entry::FLAGS;
        self.account(page).shadows -= frames;
        self.release(page, node, frames);
        Some(frames)
    }

    /// Check the invariants that hold between events; reads the whole page table.
    ///
    /// # Errors
    /// A description of the violated invariant.
    pub fn check(&self) -> Result<(), String> {
        let mut counted = vec![([0; MAX_NODES], 0); self.accounts.len()];
        for number in 0..self.entries.len() as u32 {
            let page = Page::new(number);
            if !self.mapped(page) {
                if self.copy_node(page).is_some() {
                    return Err(format!("{page:?} is not mapped and is being copied"));
                }
                continue;
            }
            let span = u64::from(self.span(page));
            let (used, shadows) = &mut counted[self.owner(page)];
            used[self.node_of(page).index()] += span;
            if let Some(node) = self.shadow_of(page) {
                used[node.index()] += span;
                *shadows += span;
                let clean = self.write_protected(page) && !self.dirty(page);
                if node <= self.node_of(page) || !clean {
                    return Err(format!("{page:?}: a shadow of a master that may change"));
                }
            }
            if let Some(node) = self.copy_node(page) {
                used[node.index()] += span;
            }
        }
        for ((used, shadows), account) in counted.iter().zip(&self.accounts) {
            if *used != account.used {
                return Err(format!(
                    "{used:?} frames in the page table, {:?} in the account",
                    account.used
                ));
            }
            if *shadows != account.shadows {
                return Err(format!(
                    "{shadows} shadows in the page table, {} in the account",
                    account.shadows
                ));
            }
        }
        self.adds_up()
    }
}
