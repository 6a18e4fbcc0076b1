//! Read-ahead of files: which pages one request reads, and which are prefetched.
//!
//! Follows `mm/readahead.c` and `mm/filemap.c` of Linux 6.12 with the usual window of 128 KiB
//! (`read_ahead_kb`). Each file has one state for system calls and one for mappings:
//!
//! * **System calls.** A read at the start of a file, or after the previous one, opens a window of 4
//!   pages. A miss with fewer than two cached pages right before it reads one page. An access to the
//!   marked page of a window (`PG_readahead`) prefetches the next window, which is twice as large, up
//!   to the maximum.
//! * **Mappings.** A fault reads the 32 pages around it and marks the page after three quarters of
//!   them. A mapping with over a hundred more misses than hits reads single pages.
//!
//! Not modelled: the end of a file, beyond which nothing is read; calls that read several pages at
//! once at random; several descriptors of one file; `posix_fadvise` and `madvise`; eviction.

use rustc_hash::{FxHashMap, FxHashSet};

/// Pages of the largest window.
const MAX: u64 = 32;
/// `get_init_ra_size`: pages of a stream's first window if a call reads one page.
const FIRST: u64 = 4;
/// `MMAP_LOTSAMISS`: misses of a mapping, less its hits, above which single pages are read.
const MANY_MISSES: u32 = 100;
/// Maximum count of misses less hits.
const MAX_MISSES: u32 = 10 * MANY_MISSES;

/// How a page of a file is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// By a system call.
    Call,
    /// Through a mapping.
    Mapped,
}

/// Pages that are read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Identifies the request.
    pub number: u32,
    pub pages: u32,
    /// Whether it starts where the previous request for the file ended.
    pub follows: bool,
}

/// What an access causes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetch {
    /// The request that the access submits.
    pub submitted: Option<Request>,
    /// The request that reads the accessed page, unless an earlier access already waited for it.
    pub awaited: Option<u32>,
}

#[derive(Clone, Copy, Default)]
struct Window {
    start: u64,
    pages: u64,
    /// `async_size`: pages from the marked page to the end of the window.
    ahead: u64,
}

impl Window {
    fn marked(self) -> u64 {
        self.start + self.pages - self.ahead
    }

    /// `get_next_ra_size`.
    fn next_pages(pages: u64) -> u64 {
        if pages < MAX / 16 { 4 * pages } else { (2 * pages).min(MAX) }
    }
}

#[derive(Default)]
struct File {
    /// The request of each cached page; `None` for pages that were written and not read.
    cached: FxHashMap<u64, Option<u32>>,
    marks: FxHashSet<u64>,
    call: Window,
    mapped: Window,
    /// The last page that a call read.
    previous: Option<u64>,
    misses: u32,
    /// The page after the last request.
    end: Option<u64>,
}

/// Read-ahead of all files, with unlimited memory.
#[derive(Default)]
pub struct Readahead {
    files: FxHashMap<u32, File>,
    requests: u32,
    /// Requests that no access waited for yet.
    pending: FxHashSet<u32>,
}

impl Readahead {
    /// A system call writes a page, without reading it first.
    pub fn write(&mut self, file: u32, page: u64) {
        self.files.entry(file).or_default().cached.entry(page).or_default();
    }

    pub fn access(&mut self, file: u32, page: u64, access: Access) -> Fetch {
        let known = self.files.entry(file).or_default();
        let is_cached = known.cached.contains_key(&page);
        let window = match (access, is_cached) {
            (_, true) => known.hit(page, access),
            (Access::Call, false) => Some(known.call_miss(page)),
            (Access::Mapped, false) => Some(known.mapped_miss(page)),
        };
        if access == Access::Call {
            known.previous = Some(page);
        }
        let submitted = window.and_then(|window| known.submit(window, self.requests));
        if let Some(Request { number, .. }) = submitted {
            self.requests += 1;
            self.pending.insert(number);
        }
        let request = known.cached.get(&page).copied().flatten();
        let awaited = request.filter(|request| self.pending.remove(request));
        Fetch { submitted, awaited }
    }
}

impl File {
    /// Cached pages right before `page`, at most [`MAX`].
    fn history(&self, page: u64) -> u64 {
        let before =
            (1..=MAX.min(page)).take_while(|back| self.cached.contains_key(&(page - back)));
        before.count() as u64
    }

    /// Access to a cached page: the next window if the page is marked.
    fn hit(&mut self, page: u64, access: Access) -> Option<Window> {
        if access == Access::Mapped {
            self.misses = self.misses.saturating_sub(1);
        }
        if !self.marks.remove(&page) {
            return None;
        }
        let (window, requested) = match access {
            Access::Call => (&mut self.call, 1),
            Access::Mapped => (&mut self.mapped, MAX),
        };
        if page == window.marked() {
            let pages = Window::next_pages(window.pages);
            *window = Window { start: window.start + window.pages, pages, ahead: pages };
        } else {
            // The mark of another stream: its window ends at the first page that is not cached.
            let ahead = (1..=MAX).find(|ahead| !self.cached.contains_key(&(page + ahead)))?;
            let pages = Window::next_pages(ahead + requested);
            *window = Window { start: page + ahead, pages, ahead: pages };
        }
        Some(*window)
    }

    fn call_miss(&mut self, page: u64) -> Window {
        let sequential = self.previous.is_some_and(|previous| page.wrapping_sub(previous) <= 1);
        if page == 0 || sequential {
            self.call = Window { start: page, pages: FIRST, ahead: FIRST - 1 };
            return self.call;
        }
        let history = self.history(page);
        if history <= 1 {
            // A random read leaves the window of a stream in the same file unchanged.
            return Window { start: page, pages: 1, ahead: 0 };
        }
        // Cached from the start of the file: probably a read of the whole file.
        let cached = if history == page { 2 * history } else { history };
        self.call = Window { start: page, pages: (cached + 1).min(MAX), ahead: 1 };
        self.call
    }

    fn mapped_miss(&mut self, page: u64) -> Window {
        self.misses = (self.misses + 1).min(MAX_MISSES);
        if self.misses > MANY_MISSES {
            return Window { start: page, pages: 1, ahead: 0 };
        }
        let start = page.saturating_sub(MAX / 2);
        self.mapped = Window { start, pages: MAX, ahead: MAX / 4 };
        self.mapped
    }

    /// Read the pages of a window that are not cached.
    fn submit(&mut self, window: Window, number: u32) -> Option<Request> {
        let end = window.start + window.pages;
        let missing: Vec<u64> =
            (window.start..end).filter(|page| !self.cached.contains_key(page)).collect();
        let (first, last) = (*missing.first()?, *missing.last()?);
        if window.ahead > 0 && missing.contains(&window.marked()) {
            self.marks.insert(window.marked());
        }
        let follows = self.end.replace(last + 1) == Some(first);
        let pages = missing.len() as u32;
        self.cached.extend(missing.into_iter().map(|page| (page, Some(number))));
        Some(Request { number, pages, follows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of the request that each access submits, and the request that it waits for.
    fn run(pages: impl IntoIterator<Item = u64>, access: Access) -> Vec<(u32, Option<u32>)> {
        let mut files = Readahead::default();
        let pages = pages.into_iter();
        let fetches = pages.map(|page| files.access(7, page, access));
        fetches
            .map(|fetch| (fetch.submitted.map_or(0, |request| request.pages), fetch.awaited))
            .collect()
    }

    /// The accesses that submit a request or wait.
    fn events(
        pages: impl IntoIterator<Item = u64>,
        access: Access,
    ) -> Vec<(usize, u32, Option<u32>)> {
        let all = run(pages, access).into_iter().enumerate();
        all.filter(|(_, fetch)| *fetch != (0, None))
            .map(|(at, (pages, on))| (at, pages, on))
            .collect()
    }

    #[test]
    fn sequential_calls_prefetch_windows() {
        let expected = [
            (0, 4, Some(0)),
            (1, 8, None),
            (4, 16, Some(1)),
            (12, 32, Some(2)),
            (28, 32, Some(3)),
            (60, 32, Some(4)),
        ];
        assert_eq!(events(0..80, Access::Call), expected);
    }

    #[test]
    fn sequential_faults_read_around_and_then_prefetch() {
        let expected = [(0, 32, Some(0)), (24, 32, None), (32, 32, Some(1)), (64, 32, Some(2))];
        assert_eq!(events(0..90, Access::Mapped), expected);
        // In the middle of a file, half of the window is before the fault.
        let mut files = Readahead::default();
        assert_eq!(files.access(0, 1000, Access::Mapped).submitted.map(|r| r.pages), Some(32));
        assert_eq!(files.access(0, 984, Access::Mapped), Fetch::default());
        assert_eq!(files.access(0, 983, Access::Mapped).submitted.map(|r| r.pages), Some(17));
    }

    #[test]
    fn random_calls_and_faults_after_100_misses_read_single_pages() {
        let far = |count: u64| (1..=count).map(|at| at * 1000);
        assert!(run(far(50), Access::Call).iter().all(|fetch| fetch.0 == 1));
        let pages: Vec<u32> = run(far(150), Access::Mapped).iter().map(|fetch| fetch.0).collect();
        assert_eq!(pages, [[32; 100].as_slice(), &[1; 50]].concat());
    }

    #[test]
    fn a_stream_is_recognised_by_the_pages_before_it() {
        let mut files = Readahead::default();
        for page in [100, 200, 101, 201, 102] {
            let pages = files.access(0, page, Access::Call).submitted.map(|request| request.pages);
            // Two cached pages before 102 open a window of three.
            assert_eq!(pages, Some(if page == 102 { 3 } else { 1 }), "{page}");
        }
        // The marked page prefetches the next window.
        assert_eq!(files.access(0, 104, Access::Call).submitted.map(|r| r.pages), Some(6));
    }

    #[test]
    fn written_pages_are_not_read() {
        let mut files = Readahead::default();
        (0..6).for_each(|page| files.write(3, page));
        assert_eq!(files.access(3, 2, Access::Call), Fetch::default());
        // All 6 pages before page 6 are cached, so the window has 2 x 6 + 1 pages.
        let next = files.access(3, 6, Access::Call);
        assert_eq!(next.submitted.map(|request| request.pages), Some(13));
        // Writes to file 3 do not affect file 4.
        assert_eq!(
            files.access(4, 2, Access::Call).submitted.map(|request| request.pages),
            Some(1)
        );
    }

    #[test]
    fn requests_know_whether_they_follow_the_previous_one() {
        let mut files = Readahead::default();
        let mut follows = Vec::new();
        for page in (0..40).chain([500, 40]) {
            follows.extend(files.access(0, page, Access::Call).submitted.map(|r| r.follows));
        }
        // Requests submitted by accesses to pages 0, 1, 4, 12, 28 and 500.
        assert_eq!(follows, [false, true, true, true, true, false]);
    }
}
