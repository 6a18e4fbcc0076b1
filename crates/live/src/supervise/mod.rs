//! The launcher: starts the program, holds copies of its userfaultfds, and kills the run if a manager
//! (the process that serves the page faults of a process image) fails.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Result as IoResult};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nearfar_trace::{Error, Result};

use self::hang::{HangDetector, ThreadStat};
pub use self::summary::{Resident, Summary};
use crate::family;
use crate::linux::{copy_of, monotonic, owned, process_of, wait};
use crate::program;
use crate::reaper;
use crate::remote::{Provider, Socket};
use crate::setup::{Setup, VARIABLE};
use crate::shared::{Shared, State};

mod hang;
mod summary;

/// Why a run is killed if its reaper has ended.
const REAPER_GONE: &str = "the process that waits for the program's processes was killed";
/// Maximum number of checks, 1 ms apart, whether the reaper has waited for all ended managers and keepers
/// (which hold the userfaultfds open if a manager is killed).
const REAP_CHECKS: u32 = 200;
/// Maximum time between two checks of all processes.
const POLL: Duration = Duration::from_millis(100);

/// Run `command` with nearfar's library at `library`. `progress` is called at least ten times a second, and
/// kills the run by returning false. `provider` runs the policies in this process if `setup.remote`: if
/// one fails, the run is killed.
///
/// # Errors
/// The program cannot be run or started.
pub fn run(
    setup: &Setup,
    library: &Path,
    command: &[String],
    provider: Option<Arc<dyn Provider>>,
    mut progress: impl FnMut(&Summary) -> bool,
) -> Result<Summary> {
    let name = command.first().ok_or_else(|| {
        Error::input(
            "run",
            "no command",
            "give it after --, as in `nearfar run --fast 64M -- sort big`",
        )
    })?;
    // Report missing requirements before anything runs.
    let path = program::check_all(setup, name)?;
    let system = |error| Error::io(Path::new("run"), "preparing", &error);
    let (shared, file) = Shared::create().map_err(system)?;
    let bell = bell().map_err(system)?;
    let setup = Setup {
        launcher: std::process::id(),
        shared: file.as_raw_fd() as u32,
        bell: bell.as_raw_fd() as u32,
        ..setup.clone()
    };
    let mut child = Command::new(&path);
    child.arg0(name).args(&command[1..]).env(VARIABLE, setup.to_text());
    // nearfar's library precedes the user's own.
    let mut libraries = library.as_os_str().to_owned();
    if let Some(more) = std::env::var_os("LD_PRELOAD").filter(|more| !more.is_empty()) {
        libraries.push(":");
        libraries.push(more);
    }
    child.env("LD_PRELOAD", libraries);
    shared.begin(&setup, monotonic());
    let (reaper_shared, bell_end) = (Shared::map(&file).map_err(system)?, bell.as_raw_fd());
    // SAFETY: system calls between fork and exec.
    unsafe { child.pre_exec(move || reaper::split(reaper_shared.head(), bell_end)) };
    let began = Instant::now();
    let child = child.spawn().map_err(|error| Error::io(&path, "starting", &error))?;
    let mut supervisor =
        Supervisor { shared, bell, images: BTreeMap::new(), provider, summary: Summary::default() };
    let before = processor_time();
    let watched = supervisor.watch(child, began, &mut progress);
    // Processes that outlive the run continue without a policy.
    supervisor
        .images
        .values()
        .filter_map(|image| image.socket.as_ref())
        .for_each(Socket::shut_down);
    let mut summary = supervisor.summary;
    supervisor.shared.head().end(summary.exit_code, summary.why.as_deref());
    watched?;
    summary.seconds = began.elapsed().as_secs_f64();
    let after = processor_time();
    summary.cpu_seconds = [after[0] - before[0], after[1] - before[1]];
    Ok(summary)
}

/// An eventfd that wakes the launcher. Unlike with a pipe, a write raises no SIGPIPE if the launcher has
/// ended.
fn bell() -> IoResult<File> {
    // SAFETY: a system call that takes numbers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    owned(fd.into()).map(File::from)
}

/// User and system processor time of children that have ended, in seconds.
fn processor_time() -> [f64; 2] {
    // SAFETY: a struct of numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: writes to the variable of this function.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    [usage.ru_utime, usage.ru_stime].map(|time| time.tv_sec as f64 + time.tv_usec as f64 / 1e6)
}

struct Supervisor {
    shared: Shared,
    bell: File,
    /// By index in [`Shared::blocks`].
    images: BTreeMap<usize, Image>,
    provider: Option<Arc<dyn Provider>>,
    summary: Summary,
}

/// A managed process image.
#[derive(Default)]
struct Image {
    /// A copy of its userfaultfd.
    held: Option<OwnedFd>,
    /// A pidfd of its manager, once the manager runs.
    manager: Option<OwnedFd>,
    hang: HangDetector,
    /// The socket to the process, if its policy runs in the launcher.
    socket: Option<Socket>,
}

impl Supervisor {
    fn watch(
        &mut self,
        mut reaper: Child,
        began: Instant,
        progress: &mut dyn FnMut(&Summary) -> bool,
    ) -> Result<()> {
        loop {
            wait([Some(self.bell.as_raw_fd())], POLL.as_nanos() as u64);
            let _ = self.bell.read(&mut [0; 8]);
            // `try_wait` fails if SIGCHLD is ignored and the reaper has ended.
            let reaped = reaper.try_wait().map_or(true, |ended| ended.is_some());
            let ended = self.shared.head().root_ended();
            let lost = (reaped && ended.is_none()).then(|| REAPER_GONE.to_owned());
            if let Some(why) = self.check_all().or(lost) {
                self.kill(&mut reaper);
                self.summary.why = Some(why);
                self.summary.exit_code = 128 + libc::SIGKILL;
                return Ok(());
            }
            self.summary.seconds = began.elapsed().as_secs_f64();
            if !progress(&self.summary) {
                self.kill(&mut reaper);
                return Ok(());
            }
            if let Some(status) = ended
                && !self.is_finishing()
            {
                self.summary.exit_code =
                    status.code().unwrap_or(128 + status.signal().unwrap_or(0));
                self.summary.core_dumped = status.core_dumped();
                self.dismiss(&mut reaper);
                return Ok(());
            }
        }
    }

    /// Whether a manager still runs whose process has ended: it may still serve forked children.
    fn is_finishing(&self) -> bool {
        self.shared
            .claimed()
            .any(|(_, pid, block)| block.state() == State::Running && !family::is_alive(pid))
    }

    /// Check every process. Returns why the run must be killed, if it must.
    fn check_all(&mut self) -> Option<String> {
        let mut why = self.provider.as_ref().and_then(|provider| provider.failed());
        let (mut used, mut resident) = ([0; 4], Resident::default());
        let claimed: Vec<(usize, u32)> =
            self.shared.claimed().map(|(index, pid, _)| (index, pid)).collect();
        for (index, pid) in claimed {
            if let Err(reason) = self.check(index, pid) {
                why.get_or_insert(format!("process {pid}: {reason}"));
            }
            let block = &self.shared.blocks()[index];
            if matches!(block.state(), State::Connected | State::Running) {
                let now = block.used();
                raise(&block.peak, now);
                used.iter_mut().zip(now).for_each(|(sum, number)| *sum += number);
                resident.add(block);
            }
        }
        self.summarize(used, resident);
        why
    }

    /// Check one process. An error says why the run must be killed.
    fn check(&mut self, index: usize, pid: u32) -> std::result::Result<(), String> {
        let block = &self.shared.blocks()[index];
        let image = self.images.entry(index).or_default();
        match block.state() {
            State::Ready => {
                image.held = copy_of(pid, block.descriptor.load(Ordering::Relaxed)).ok();
                block.set_state(State::Held);
            }
            State::Connecting => {
                let socket = copy_of(pid, block.socket.load(Ordering::Relaxed));
                let sockets = socket.map(Socket::from).and_then(|s| Ok((s.try_clone()?, s)));
                if let Some(provider) = self.provider.clone()
                    && let Ok((socket, kept)) = sockets
                {
                    image.socket = Some(kept);
                    thread::spawn(move || provider.serve(socket, pid));
                    block.set_waits(false);
                    block.set_state(State::Connected);
                } else if !family::is_alive(pid) {
                    block.set_state(State::Ended);
                }
            }
            // There is no manager yet: the process's only thread starts the policy.
            State::Connected => match ThreadStat::read(pid) {
                Some(thread) => image.hang.check(&thread, block)?,
                None => block.set_state(State::Ended),
            },
            State::Held if !family::is_alive(pid) => {
                block.change_state(State::Held, State::Ended);
            }
            State::Running => {
                let manager = block.manager.load(Ordering::Relaxed);
                if image.manager.is_none() {
                    image.manager = process_of(manager).ok();
                }
                let is_gone =
                    image.manager.as_ref().is_none_or(|fd| wait([Some(fd.as_raw_fd())], 0)[0]);
                if is_gone {
                    // The manager may have changed the state before it ended.
                    return match block.state() {
                        State::Running => Err("its manager was killed".into()),
                        State::Failed => Err(block.why()),
                        _ => Ok(()),
                    };
                }
                if let Some(thread) = ThreadStat::read(manager) {
                    image.hang.check(&thread, block)?;
                }
            }
            State::Failed => return Err(block.why()),
            // Free the block once its manager cannot write to it any more.
            state @ (State::Ended | State::Free) => {
                let manager = block.manager.load(Ordering::Acquire);
                let has_ended = state == State::Ended && manager != 0 && !family::is_alive(manager);
                if has_ended || (!family::is_alive(pid) && block.give_up()) {
                    self.images.remove(&index);
                    self.shared.retire(index);
                }
            }
            State::Held => {}
        }
        Ok(())
    }

    fn summarize(&mut self, used: [u64; 4], resident: Resident) {
        let (mut images, mut counters, mut manager_ns) = self.shared.head().past();
        for (_, _, block) in self.shared.claimed() {
            images += 1;
            counters.add(&block.counters());
            manager_ns += block.manager_ns.load(Ordering::Relaxed);
        }
        let peak = raise(&self.shared.head().peak, used);
        let summary = &mut self.summary;
        (summary.counters, summary.images, summary.now) = (counters, images, used);
        (summary.peak, summary.far_bytes) = ([peak[0], peak[1], peak[2]], peak[3]);
        summary.manager_seconds = manager_ns as f64 / 1e9;
        if resident.resident_bytes > summary.resident.resident_bytes {
            summary.resident = resident;
        }
    }

    /// Kill the reaper once it has waited for all ended managers and keepers, or after [`REAP_CHECKS`].
    fn dismiss(&mut self, reaper: &mut Child) {
        let is_reaped = |pid: u32| pid == 0 || !Path::new(&format!("/proc/{pid}")).exists();
        for _ in 0..REAP_CHECKS {
            // The first of the descendants is the reaper itself.
            let all_reaped =
                self.shared.claimed().all(|(_, pid, block)| {
                    let servers = [&block.manager, &block.keeper];
                    family::is_alive(pid)
                        || servers.iter().all(|server| is_reaped(server.load(Ordering::Relaxed)))
                }) && family::descendants(reaper.id()).into_iter().skip(1).all(family::is_alive);
            if all_reaped || reaper.try_wait().is_ok_and(|ended| ended.is_some()) {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        let _ = reaper.kill();
        let _ = reaper.wait();
    }

    /// Kill all processes of the run, and wait for them.
    fn kill(&mut self, reaper: &mut Child) {
        family::kill(&self.shared, reaper.id());
        self.dismiss(reaper);
    }
}

/// Raise each peak to the current value. Returns the peaks.
fn raise(peak: &[AtomicU64; 4], now: [u64; 4]) -> [u64; 4] {
    std::array::from_fn(|i| peak[i].fetch_max(now[i], Ordering::Relaxed).max(now[i]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Counters;

    /// The supervisor of a run in which this process is the program and its manager.
    fn supervisor() -> Supervisor {
        let (shared, _) = Shared::create().unwrap();
        let pid = std::process::id();
        let block = &shared.blocks()[shared.claim(pid).unwrap()];
        block.manager.store(pid, Ordering::Relaxed);
        block.heartbeat.store(monotonic(), Ordering::Relaxed);
        block.set_state(State::Running);
        Supervisor {
            shared,
            bell: bell().unwrap(),
            images: BTreeMap::new(),
            provider: None,
            summary: Summary::default(),
        }
    }

    #[test]
    fn a_run_is_killed_if_a_manager_hangs_or_is_killed() {
        let mut supervisor = supervisor();
        assert_eq!(supervisor.check_all(), None);
        supervisor.images.get_mut(&0).unwrap().hang.time = hang::HANG;
        assert!(supervisor.check_all().unwrap().contains("has sent no heartbeat for 2 s"));
        // A policy may take longer.
        let block = &supervisor.shared.blocks()[0];
        let heard = block.heartbeat.load(Ordering::Relaxed);
        block.set_waits(true);
        block.heartbeat.store(heard, Ordering::Relaxed);
        assert_eq!(supervisor.check_all(), None);
        supervisor.images.get_mut(&0).unwrap().hang.time = hang::POLICY_HANG;
        assert!(supervisor.check_all().unwrap().contains("its policy has not answered for 30 s"));
        supervisor.shared.blocks()[0].set_waits(false);
        supervisor.shared.blocks()[0].heartbeat.store(monotonic(), Ordering::Relaxed);
        assert_eq!(supervisor.check_all(), None);
        // A killed manager.
        let mut killed = Command::new("true").spawn().unwrap();
        supervisor.images.get_mut(&0).unwrap().manager = process_of(killed.id()).ok();
        killed.wait().unwrap();
        assert!(supervisor.check_all().unwrap().contains("its manager was killed"));
        // A manager that had finished before it was killed.
        supervisor.shared.blocks()[0].manager.store(killed.id(), Ordering::Relaxed);
        supervisor.shared.blocks()[0].set_state(State::Ended);
        assert_eq!(supervisor.check_all(), None);
        assert_eq!((supervisor.shared.claimed().count(), supervisor.summary.images), (0, 1));
    }

    #[test]
    fn the_reason_of_a_failed_manager_is_reported() {
        let mut supervisor = supervisor();
        let counters = Counters { promotions: 3, ..Counters::default() };
        supervisor.shared.blocks()[0].publish(&counters);
        supervisor.shared.blocks()[0].fail("the far tier burns");
        let why = supervisor.check_all().unwrap();
        assert_eq!(why, format!("process {}: the far tier burns", std::process::id()));
        assert_eq!((supervisor.summary.counters, supervisor.summary.images), (counters, 1));
    }
}
