//! The window of a far tier that stores pages: a FIFO of the far pages that are in the program's memory.

use std::collections::VecDeque;

use nearfar_kernel::tiering::{Page, Refused, Time};

use super::workers::REST;
use super::{PageFlags, World};
use crate::Kernel;

/// Maximum number of stuck pages that are retried at once.
const RETRIES: usize = 32;

/// The window. Its queues may contain pages that have left it since; its counts exclude these.
#[derive(Debug)]
pub(crate) struct Window {
    /// Oldest first.
    pub(super) pages: VecDeque<Page>,
    pub(super) count: u64,
    /// Maximum number of pages that are not stuck.
    pub(super) limit: u64,
    /// Pages that could not be evicted. They do not count towards the limit: otherwise only the newest page,
    /// not yet referenced, might be left to evict.
    pub(super) stuck: VecDeque<Page>,
    pub(super) stuck_count: u64,
    /// Earliest time of the next attempt to evict the stuck pages.
    retry_at: Time,
}

impl Window {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            pages: VecDeque::new(),
            count: 0,
            limit,
            stuck: VecDeque::new(),
            stuck_count: 0,
            retry_at: Time::default(),
        }
    }

    pub(crate) fn has_stuck(&self) -> bool {
        !self.stuck.is_empty()
    }
}

impl<K: Kernel> World<K> {
    /// Add a far page that is in the program's memory now.
    pub(super) fn enter_window(&mut self, page: Page) {
        self.window.count += 1;
        self.window.pages.push_back(page);
    }

    /// Remove a page that is stored now, or no longer far.
    pub(super) fn leave_window(&mut self, page: Page) {
        self.window.count -= 1;
        if self.pages.state(page).has(PageFlags::STUCK) {
            self.window.stuck_count -= 1;
            self.pages.set(page, PageFlags::STUCK, false);
        }
    }

    pub(super) fn in_window(&self, page: Page) -> bool {
        let state = self.pages.state(page);
        !self.far_is_mapped && state.is_far() && !state.is_stored()
    }

    /// Store a page of the window.
    pub(super) fn evict(&mut self, page: Page) -> Result<(), Refused> {
        self.store(page)?;
        self.leave_window(page);
        Ok(())
    }

    /// Evict the oldest pages of the window while it is over its limit.
    pub(crate) fn trim_window(&mut self) {
        if self.window.has_stuck() && self.event.now >= self.window.retry_at {
            for _ in 0..self.window.stuck.len().min(RETRIES) {
                let Some(page) = self.window.stuck.pop_front() else { break };
                if self.pages.state(page).has(PageFlags::STUCK) && self.evict(page).is_err() {
                    self.window.stuck.push_back(page);
                }
            }
            self.window.retry_at = self.event.now.plus(REST.0);
        }
        while self.window.count - self.window.stuck_count > self.window.limit {
            let Some(page) = self.window.pages.pop_front() else { break };
            let may_leave = self.in_window(page) && !self.pages.state(page).has(PageFlags::STUCK);
            if may_leave && self.evict(page).is_err() {
                if self.event.again {
                    // The kernel refuses requests for the moment: retry the page at the next trim.
                    self.window.pages.push_front(page);
                    break;
                }
                self.pages.set(page, PageFlags::STUCK, true);
                self.window.stuck_count += 1;
                self.window.stuck.push_back(page);
            }
        }
        // Most entries are of pages that have left the window.
        if self.window.pages.len() as u64 > 4 * (self.window.limit + 16) {
            let mut pages = std::mem::take(&mut self.window.pages);
            pages.retain(|page| self.in_window(*page));
            self.window.pages = pages;
        }
    }
}
