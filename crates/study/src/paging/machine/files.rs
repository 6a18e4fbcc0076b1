//! How long a thread waits for pages of files.

use std::collections::VecDeque;

use nearfar_hardware::Storage;
use nearfar_kernel::readahead::Fetch;

use super::SMALL;

/// Maximum number of pending requests; beyond it, the oldest is dropped.
const MAX_PENDING: usize = 64;

/// The requests of a thread to a storage. Threads do not compete for the storage.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// Completion time of the last request.
    busy_ns: f64,
    /// Number and completion time of requests.
    pending: VecDeque<(u32, f64)>,
    /// Waiting time of the thread so far.
    pub waited_ns: f64,
}

impl Files {
    /// Apply a fetch. `now_ns` is the time of the thread so far, without its waits for files.
    pub fn fetch(&mut self, fetch: Fetch, now_ns: f64, storage: &Storage) {
        let disk = storage.files();
        let now = now_ns + self.waited_ns;
        if let Some(request) = fetch.submitted {
            let bytes = u64::from(request.pages) << SMALL;
            self.busy_ns = disk.read_done_ns(now, self.busy_ns, bytes, request.follows);
            if self.pending.len() == MAX_PENDING {
                self.pending.pop_front();
            }
            self.pending.push_back((request.number, self.busy_ns));
        }
        // Requests of other threads count as done.
        let position = |number| self.pending.iter().position(|(pending, _)| *pending == number);
        if let Some((_, done)) =
            fetch.awaited.and_then(position).and_then(|at| self.pending.remove(at))
        {
            self.waited_ns += (done - now).max(0.0);
        }
    }
}
