//! Tenants: the program, or several programs that share the machine.

use std::ops::Range;

use nearfar_kernel::tiering::{Memory, NodeId, Page, Tenant, Time};

use super::super::counters::{Counters, MAX_NODES, Program};
use super::World;

/// Frames, counters and clocks of a tenant.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    pub counters: Counters,
    /// Frames in use, by node.
    pub used: [u64; MAX_NODES],
    /// Frames of shadows, the old frames of promoted pages: current and peak.
    pub shadows: u64,
    pub shadows_peak: u64,
    /// Picoseconds of an access by node and [load, store] under the current traffic, with the processor time
    /// of [`Program::work`].
    pub cost: [[u64; 2]; MAX_NODES],
    /// Accesses until the last measurement of traffic, by node and [load, store].
    pub metered: [[u64; 2]; MAX_NODES],
    pub threads: Range<usize>,
    /// When the last of its ended threads ended.
    pub latest: Time,
    /// When its threads resume after a sleep.
    pub resumes: Time,
}

impl Account {
    pub fn all(programs: &[Program]) -> Vec<Self> {
        let mut next = 0;
        let account = |program: &Program| {
            let threads = next..next + program.parallel.max(1) as usize;
            next = threads.end;
            Self { threads, ..Self::default() }
        };
        programs.iter().map(account).collect()
    }

    /// Loads and stores of a node since the last measurement.
    pub fn since_metered(&self, node: usize) -> [u64; 2] {
        [0, 1].map(|kind| self.counters.accesses[node][kind] - self.metered[node][kind])
    }
}

impl World {
    /// The tenant of a page.
    #[inline]
    pub(super) fn owner(&self, page: Page) -> usize {
        match self.accounts.len() {
            1 => 0,
            _ => {
                let programs = &self.hardware.programs;
                programs.partition_point(|program| program.first <= page.number()).max(1) - 1
            }
        }
    }

    pub(super) fn account(&mut self, page: Page) -> &mut Account {
        let owner = self.owner(page);
        &mut self.accounts[owner]
    }

    pub(in crate::tiering) fn program(&self, page: Page) -> &Program {
        &self.hardware.programs[self.owner(page)]
    }

    pub(in crate::tiering) fn running_tenant(&self) -> usize {
        let current = self.current;
        self.accounts.iter().position(|account| account.threads.contains(&current)).unwrap_or(0)
    }

    pub(in crate::tiering) fn running_program(&self) -> &Program {
        &self.hardware.programs[self.running_tenant()]
    }

    /// See [`Account::cost`].
    pub(in crate::tiering) fn cost_of(&self, tenant: usize) -> &[[u64; 2]; MAX_NODES] {
        &self.accounts[tenant].cost
    }

    /// Update the counters of a page's tenant.
    pub(in crate::tiering) fn tally(&mut self, page: Page, count: impl FnOnce(&mut Counters)) {
        count(&mut self.account(page).counters);
    }

    /// Update the counters of a tenant.
    pub(in crate::tiering) fn tally_tenant(
        &mut self,
        tenant: usize,
        count: impl FnOnce(&mut Counters),
    ) {
        count(&mut self.accounts[tenant].counters);
    }

    pub fn counters_of(&self, tenant: usize) -> &Counters {
        &self.accounts[tenant].counters
    }

    /// The clock of a tenant: that of its slowest thread, or of the last that ended.
    pub fn clock_of(&self, tenant: usize) -> Time {
        let account = &self.accounts[tenant];
        match self.clocks_of(account.threads.clone()).min() {
            None | Some(Time::NEVER) => account.latest,
            Some(clock) => clock,
        }
    }

    /// When a tenant ended; `None` while any of its threads runs.
    pub(in crate::tiering) fn ended(&self, tenant: usize) -> Option<Time> {
        let account = &self.accounts[tenant];
        let mut clocks = self.clocks_of(account.threads.clone());
        clocks.all(|clock| clock == Time::NEVER).then_some(account.latest)
    }

    /// Resume the threads of an ended tenant at `time`.
    pub(in crate::tiering) fn resume(&mut self, tenant: usize, time: Time) {
        self.clocks[self.current] = self.clock;
        self.accounts[tenant].resumes = time;
        let threads = self.accounts[tenant].threads.clone();
        self.clocks[threads.clone()].fill(time);
        (self.current, self.clock) = (threads.start, time);
    }

    /// Frames of a tenant's shadows: current, and peak since [`reset_peak`](World::reset_peak).
    pub fn shadows(&self, tenant: usize) -> (u64, u64) {
        let account = &self.accounts[tenant];
        (account.shadows, account.shadows_peak)
    }

    /// Reset the peak of shadows to their current number.
    pub fn reset_peak(&mut self, tenant: usize) {
        let account = &mut self.accounts[tenant];
        account.shadows_peak = account.shadows;
    }

    pub(super) fn add_shadows(&mut self, page: Page, frames: u64) {
        let account = self.account(page);
        account.shadows += frames;
        account.shadows_peak = account.shadows_peak.max(account.shadows);
    }

    /// Frames of each node that a tenant uses, shadows and copies included.
    pub fn used_frames(&self, tenant: usize) -> Vec<u64> {
        self.accounts[tenant].used.into_iter().take(self.hardware.nodes.len()).collect()
    }

    /// A tenant's frames on the fastest node, without copies in progress.
    pub fn fast_pages(&self, tenant: usize) -> u64 {
        let of_tenant = |page: &Page| self.owner(*page) == tenant;
        let copies =
            self.copies.iter().filter(|(page, to)| **to == NodeId::FAST && of_tenant(page));
        self.accounts[tenant].used[NodeId::FAST.index()]
            - copies.map(|(page, _)| u64::from(self.span(*page))).sum::<u64>()
    }

    /// Check tenants' counters against each other and against the frames in use.
    ///
    /// # Errors
    /// A description of the difference.
    pub fn adds_up(&self) -> Result<(), String> {
        for (tenant, account) in self.accounts.iter().enumerate() {
            let count = &account.counters;
            if count.demotions != count.demotions_copied + count.demotions_remapped {
                return Err("demotions are not copied plus remapped".into());
            }
            let entered = count.fast_allocated + count.promotions;
            let left = count.fast_freed + count.demotions;
            // With more nodes, pages also move between the slower ones.
            if self.hardware.nodes.len() == 2 && entered - left != self.fast_pages(tenant) {
                return Err(format!("{entered} pages entered the fast node, {left} left it"));
            }
        }
        for node in NodeId::all(self.nodes()) {
            let tenants = (0..self.tenants()).map(|tenant| self.used(Tenant::new(tenant), node));
            if tenants.sum::<u64>() != self.capacity(node) - self.free(node) {
                return Err(format!("tenants' frames on {node:?} do not sum up"));
            }
        }
        Ok(())
    }
}
