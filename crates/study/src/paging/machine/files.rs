//! How long a thread waits for pages of files.

use std::collections::VecDeque;

use nearfar_hardware::Storage;
use nearfar_kernel::readahead::Fetch;

use super::SMALL;

/// Requests that may be under way; the oldest is read when there are more.
const MANY: usize = 64;

/// The requests of a thread to a storage. Threads do not compete for it.
#[derive(Clone, Debug, Default)]
pub struct Files {
    busy_ns: f64,
    /// Requests by number, and when they are done.
    pending: VecDeque<(u32, f64)>,
    /// How long the thread waited so far.
    pub waited_ns: f64,
}

impl Files {
    /// Apply a fetch, `now_ns` after the thread began, without its waits.
    pub fn fetch(&mut self, fetch: Fetch, now_ns: f64, storage: &Storage) {
        let disk = storage.files();
        let now = now_ns + self.waited_ns;
        if let Some(request) = fetch.submitted {
            let bytes = u64::from(request.pages) << SMALL;
            self.busy_ns = disk.read_done_ns(now, self.busy_ns, bytes, request.follows);
            if self.pending.len() == MANY {
                self.pending.pop_front();
            }
            self.pending.push_back((request.number, self.busy_ns));
        }
        // A request of another thread is taken as done.
        let own = |number| self.pending.iter().position(|(pending, _)| *pending == number);
        if let Some((_, done)) = fetch.awaited.and_then(own).and_then(|at| self.pending.remove(at))
        {
            self.waited_ns += (done - now).max(0.0);
        }
    }
}
