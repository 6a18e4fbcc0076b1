//! The view of a run from another process.
//!
//! The launcher holds the file of [`Shared`], so its user or root can open it through `/proc/PID/fd` and read
//! what the managers publish. This does not disturb the run.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use nearfar_trace::{Error, Result};
use serde::Serialize;

use crate::linux::{monotonic, process_of, wait};
use crate::shared::{Block, NAME, Shared, State};
use crate::{Counters, PAGE};

nearfar_schema::columns! {
    /// A process of a run that is under way, or the whole run.
    pub struct Row {
        /// Process; null for the whole run.
        pid: Option<u32>,
        /// Command line of the process; for the whole run, that of `nearfar run`.
        command: String,
        /// Fast memory in use.
        fast_bytes: u64 ["bytes"] as "fast",
        /// Maximum sampled fast memory in use.
        fast_peak_bytes: u64 ["bytes"] as "fast peak",
        /// Maximum fast memory (`--fast`); for the whole run, the sum over all processes.
        budget_bytes: u64 ["bytes"] as "budget",
        /// Memory in the far tier before compression, with shadows (copies of promoted pages).
        far_pages_bytes: u64 ["bytes"] as "far",
        /// Maximum sampled memory in the far tier.
        far_pages_peak_bytes: u64 ["bytes"] as "far peak",
        /// Bytes that the far tier uses, after compression.
        far_bytes: u64 ["bytes"] as "far takes",
        /// Far pages mapped without a promotion (the window).
        window_bytes: u64 ["bytes"] as "window",
        /// Faults served, of every kind.
        faults: u64,
        /// Pages moved from the far tier to fast memory.
        promotions: u64,
        /// Pages moved to the far tier, by a copy or by reuse of their shadow.
        demotions: u64,
        /// Hint faults. A reference may cause several: under TPP, it faults again until its page is active.
        hint_faults: u64,
        /// First writes to pages with a shadow.
        shadow_faults: u64,
        /// Copies of pages aborted because the program wrote the page meanwhile.
        aborts: u64,
        /// Faults that mapped a far page without a promotion; the page enters the window.
        window_faults: u64 as "let through",
        /// Processor time of nearfar's manager, which serves the faults.
        manager_seconds: f64 ["s"] as "manager time",
        /// Faults per second since the previous snapshot; null in the first.
        faults_per_second: Option<f64> ["per s"] as "faults/s",
        /// Promotions per second since the previous snapshot; null in the first.
        promotions_per_second: Option<f64> ["per s"] as "promotions/s",
        /// Demotions per second since the previous snapshot; null in the first.
        demotions_per_second: Option<f64> ["per s"] as "demotions/s",
        /// Processors that nearfar's manager used since the previous snapshot (1: one core); null
        /// in the first.
        manager_share: Option<f64> as "manager",
    }
    keys [pid]
    metrics []
    seed []
}

/// The state of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// PID of the launcher.
    pub launcher: u32,
    /// Seconds since the run began.
    pub seconds: f64,
    pub policy: String,
    pub far: String,
    /// Fast memory of each process.
    pub fast_bytes: u64,
    /// Size limit of the far tier of each process.
    pub far_size_bytes: u64,
    /// Number of process images so far, including those that have ended.
    pub images: u64,
    /// Whether the run is over.
    pub is_over: bool,
    /// Exit code, if the run is over and its launcher was not killed.
    pub exit_code: Option<i32>,
    /// Why the run was killed, if it was.
    pub why: Option<String>,
    /// The whole run, and each running process.
    pub rows: Vec<Row>,
}

/// Counts from which rates are computed.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    counters: Counters,
    manager_ns: u64,
}

impl Counts {
    fn of(block: &Block) -> Self {
        Self { counters: block.counters(), manager_ns: block.manager_ns.load(Ordering::Relaxed) }
    }

    fn add(&mut self, other: Self) {
        self.counters.add(&other.counters);
        self.manager_ns += other.manager_ns;
    }

    fn demotions(&self) -> u64 {
        self.counters.demotions_copied + self.counters.demotions_remapped
    }
}

/// A run that is under way.
#[derive(Debug)]
pub struct Watched {
    launcher: u32,
    command: String,
    /// The launcher's pidfd, readable once the launcher has ended.
    process: OwnedFd,
    shared: Shared,
    /// The previous snapshot: its time, the total counts, and the counts by block (a process image's
    /// part of the shared memory).
    last: Option<(u64, Counts, BTreeMap<usize, Counts>)>,
}

impl Watched {
    /// Find the run of a launcher or of a managed process; without a PID, the only run.
    ///
    /// # Errors
    /// There is no such run; it is another user's or of another version; there are several.
    pub fn find(pid: Option<u32>) -> Result<Self> {
        let place = pid.map_or("watch".to_owned(), |pid| format!("watch {pid}"));
        let refused = |what: &str, fix: &str| Error::input(place.clone(), what, fix);
        if let Some(pid) = pid
            && !Path::new(&format!("/proc/{pid}")).exists()
        {
            return Err(refused("no such process; it may have ended", ""));
        }
        let (mut found, mut has_other_version) = (Vec::new(), false);
        for (launcher, opened) in Self::opened() {
            match opened {
                Ok(run) if pid.is_none_or(|pid| run.has(pid)) => found.push(run),
                Ok(_) => {}
                Err(error) => {
                    let here = pid.is_none_or(|pid| pid == launcher);
                    has_other_version |= here && error.kind() == io::ErrorKind::InvalidData;
                }
            }
        }
        if found.len() > 1 {
            let all: Vec<String> =
                found.iter().map(|run| format!("{} ({})", run.launcher, run.command)).collect();
            let what = format!("there are {} runs: {}", all.len(), all.join(", "));
            return Err(refused(&what, "name one: nearfar watch PID"));
        }
        if let Some(run) = found.pop() {
            return Ok(run);
        }
        Err(match pid {
            Some(_) if has_other_version => {
                refused("is of another version of nearfar", "watch it with that version")
            }
            None if has_other_version => refused(
                "the run belongs to another version of nearfar",
                "watch it with that version",
            ),
            None => refused("no `nearfar run` of this user is under way", ""),
            Some(pid) if fs::read_dir(format!("/proc/{pid}/fd")).is_err() => {
                refused("is another user's process", "become that user, or root")
            }
            Some(_) => refused(
                "is neither `nearfar run` nor a program that it manages",
                "`nearfar watch` without a PID finds the run",
            ),
        })
    }

    /// The launchers of all runs of this user, and their command lines.
    pub fn all() -> Vec<(u32, String)> {
        let runs = Self::opened().filter_map(|(_, opened)| opened.ok());
        runs.map(|run| (run.launcher, run.command)).collect()
    }

    fn opened() -> impl Iterator<Item = (u32, io::Result<Self>)> {
        files().into_iter().map(|(pid, path)| (pid, Self::open(pid, &path)))
    }

    /// Open the file at `path`, which the launcher holds.
    ///
    /// # Errors
    /// `InvalidData` for a run of another version; any other error if there is no run.
    fn open(launcher: u32, path: &Path) -> io::Result<Self> {
        // The pidfd first, so that the PID cannot be reused before the file is opened.
        let process = process_of(launcher)?;
        let file = File::open(path)?;
        // The file has the name of a run, so another size or magic number is that of another version.
        let shared = Shared::map_to_read(&file).map_err(|error| match error.raw_os_error() {
            Some(libc::EBADF | libc::EPROTO) => io::ErrorKind::InvalidData.into(),
            _ => error,
        })?;
        // A starting program holds the file too, for a moment.
        let head = shared.head();
        if head.launcher.load(Ordering::Relaxed) != launcher || head.ended().is_some() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Self { launcher, command: command_of(launcher), process, shared, last: None })
    }

    /// Whether this is the launcher, the reaper, or a managed process.
    fn has(&self, pid: u32) -> bool {
        let runs = |(_, process, block): (_, u32, &Block)| process == pid && is_running(block);
        let reaper = self.shared.head().reaper.load(Ordering::Relaxed);
        [self.launcher, reaper].contains(&pid) || self.shared.claimed().any(runs)
    }

    pub fn is_over(&self) -> bool {
        wait([Some(self.process.as_raw_fd())], 0)[0] || self.shared.head().ended().is_some()
    }

    /// The current state, with rates since the previous snapshot.
    pub fn snapshot(&mut self) -> Snapshot {
        self.snapshot_at(monotonic())
    }

    fn snapshot_at(&mut self, now: u64) -> Snapshot {
        let is_over = self.is_over();
        let head = self.shared.head();
        let setup = head.setup();
        let seconds = |from: u64| now.saturating_sub(from) as f64 / 1e9;
        let last = self.last.take();
        let since = last.as_ref().map(|(when, ..)| seconds(*when));
        let (all_before, before) = last.map(|(_, all, counts)| (all, counts)).unzip();
        let before: BTreeMap<usize, Counts> = before.unwrap_or_default();
        let (mut counts, mut used, mut rows) = (BTreeMap::new(), [0; 4], Vec::new());
        let (past_images, counters, manager_ns) = head.past();
        let mut images = past_images;
        let mut all = Counts { counters, manager_ns };
        for (index, pid, block) in self.shared.claimed() {
            let now_counts = Counts::of(block);
            let counts_before = before.get(&index).copied().unwrap_or_default();
            counts.insert(index, now_counts);
            all.add(now_counts);
            images += 1;
            if is_over || !is_running(block) {
                continue;
            }
            let process_used = block.used();
            used.iter_mut().zip(process_used).for_each(|(sum, number)| *sum += number);
            let peak = at_least(&block.peak, process_used);
            let mut row = row(now_counts, counts_before, since, process_used, peak);
            (row.pid, row.command) = (Some(pid), command_of(pid));
            row.budget_bytes = setup.fast;
            rows.push(row);
        }
        let mut total =
            row(all, all_before.unwrap_or_default(), since, used, at_least(&head.peak, used));
        total.command.clone_from(&self.command);
        total.budget_bytes = setup.fast * rows.len() as u64;
        rows.insert(0, total);
        self.last = Some((now, all, counts));
        let (exit_code, why) = head.ended().unzip();
        Snapshot {
            launcher: self.launcher,
            seconds: seconds(head.began.load(Ordering::Relaxed)),
            policy: setup.policy,
            far: setup.far,
            fast_bytes: setup.fast,
            far_size_bytes: setup.far_size,
            images,
            is_over,
            exit_code,
            why: why.flatten(),
            rows,
        }
    }
}

/// Whether the program of this block exists. If its manager fails, it exists until it is killed.
fn is_running(block: &Block) -> bool {
    matches!(block.state(), State::Held | State::Running | State::Failed)
}

/// The peak including the current value, which the launcher may not have sampled yet.
fn at_least(peak: &[AtomicU64; 4], now: [u64; 4]) -> [u64; 4] {
    std::array::from_fn(|i| peak[i].load(Ordering::Relaxed).max(now[i]))
}

/// A row without process and command.
fn row(now: Counts, before: Counts, since: Option<f64>, used: [u64; 4], peak: [u64; 4]) -> Row {
    let bytes = |pages: u64| pages * PAGE as u64;
    let rate = |what: fn(&Counts) -> u64| {
        let change = what(&now).saturating_sub(what(&before)) as f64;
        since.filter(|since| *since > 0.0).map(|since| change / since)
    };
    let counters = &now.counters;
    Row {
        pid: None,
        command: String::new(),
        fast_bytes: bytes(used[0]),
        fast_peak_bytes: bytes(peak[0]),
        budget_bytes: 0,
        far_pages_bytes: bytes(used[1]),
        far_pages_peak_bytes: bytes(peak[1]),
        far_bytes: used[3],
        window_bytes: bytes(used[2]),
        faults: counters.faults,
        promotions: counters.promotions,
        demotions: now.demotions(),
        hint_faults: counters.hint_faults,
        shadow_faults: counters.shadow_faults,
        aborts: counters.aborts,
        window_faults: counters.window_faults,
        manager_seconds: now.manager_ns as f64 / 1e9,
        faults_per_second: rate(|counts| counts.counters.faults),
        promotions_per_second: rate(|counts| counts.counters.promotions),
        demotions_per_second: rate(Counts::demotions),
        manager_share: rate(|counts| counts.manager_ns).map(|share| share / 1e9),
    }
}

/// The files of all runs that this user may open, and the PIDs of their holders.
fn files() -> Vec<(u32, PathBuf)> {
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        for file in fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            if fs::read_link(file.path()).is_ok_and(|link| link == Path::new(NAME)) {
                found.push((pid, file.path()));
            }
        }
    }
    found
}

/// The command line of a process; empty if it has ended.
fn command_of(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = bytes.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    words.collect::<Vec<_>>().join(" ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::Setup;

    /// A run in which this process is the launcher and the program. Returns the index of its block.
    fn run() -> (Shared, OwnedFd, usize) {
        let (shared, file) = Shared::create().unwrap();
        let launcher = std::process::id();
        let setup = Setup { launcher, fast: 4 << 20, policy: "ssp".into(), ..Setup::default() };
        shared.begin(&setup, monotonic());
        let block = shared.claim(launcher).unwrap();
        shared.blocks()[block].set_state(State::Running);
        (shared, file, block)
    }

    fn open(file: &OwnedFd) -> io::Result<Watched> {
        let pid = std::process::id();
        Watched::open(pid, Path::new(&format!("/proc/{pid}/fd/{}", file.as_raw_fd())))
    }

    #[test]
    fn a_snapshot_has_what_managers_publish_and_its_rates() {
        let (shared, file, block) = run();
        let mut watched = open(&file).unwrap();
        assert!(watched.has(std::process::id()) && !watched.has(u32::MAX / 2));
        let block = &shared.blocks()[block];
        let mut counters = Counters { faults: 10, demotions_copied: 1, ..Counters::default() };
        block.publish(&counters);
        let first = watched.snapshot_at(1_000_000_000);
        assert_eq!(first.rows.len(), 2);
        assert_eq!((first.rows[0].faults, first.rows[0].faults_per_second), (10, None));

        (counters.faults, counters.demotions_remapped) = (40, 6);
        block.publish(&counters);
        block.manager_ns.store(500_000_000, Ordering::Relaxed);
        block.used[0].store(100, Ordering::Relaxed);
        block.peak[0].store(300, Ordering::Relaxed);
        // A program that has started since the first snapshot.
        let more = &shared.blocks()[shared.claim(1).unwrap()];
        more.set_state(State::Running);
        more.publish(&Counters { faults: 2, ..Counters::default() });
        let second = watched.snapshot_at(3_000_000_000);
        let [whole, own, more] = &second.rows[..] else { panic!("{second:?}") };
        assert_eq!((whole.faults, own.faults, more.faults), (42, 40, 2));
        assert_eq!(own.faults_per_second, Some(15.0));
        assert_eq!((own.demotions, own.demotions_per_second), (7, Some(3.0)));
        assert_eq!((whole.faults_per_second, more.faults_per_second), (Some(16.0), Some(1.0)));
        assert_eq!(own.manager_share, Some(0.25));
        assert_eq!((own.fast_bytes, own.fast_peak_bytes), (100 << 12, 300 << 12));
        assert_eq!((own.budget_bytes, whole.budget_bytes), (4 << 20, 8 << 20));
        assert_eq!((second.images, second.policy.as_str(), second.is_over), (2, "ssp", false));

        // The counts of an ended process stay in the total.
        block.set_state(State::Ended);
        let third = watched.snapshot_at(4_000_000_000);
        assert_eq!((third.rows.len(), third.rows[0].faults, third.images), (2, 42, 2));
        assert_eq!(third.rows[0].faults_per_second, Some(0.0));
        shared.head().end(7, None);
        let last = watched.snapshot_at(5_000_000_000);
        assert!(watched.is_over() && last.is_over && last.rows.len() == 1);
        assert_eq!((last.exit_code, last.rows[0].faults), (Some(7), 42));
        assert_eq!(open(&file).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_process_without_a_run_is_refused() {
        let (shared, file, _) = run();
        shared.head().launcher.store(1, Ordering::Relaxed);
        assert_eq!(open(&file).unwrap_err().kind(), io::ErrorKind::NotFound);
        let other = tempfile::tempfile().unwrap();
        assert_eq!(open(&other.into()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        for (pid, says) in [(u32::MAX / 2, "no such process"), (1, "watch 1: is ")] {
            let text = Watched::find(Some(pid)).unwrap_err().to_string();
            assert!(text.contains(says) && !text.contains('\n'), "{text}");
        }
    }
}
