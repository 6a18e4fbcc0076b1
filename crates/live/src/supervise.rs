//! The launcher: starts the program, holds its userfaultfd, and ends it if its manager cannot go on.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Result as IoResult};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nearfar_trace::{Error, Result};
use serde::Serialize;

use crate::Counters;
use crate::far;
use crate::linux::{Linux, monotonic};
use crate::program;
use crate::remote::{Provider, Socket};
use crate::setup::{Setup, VARIABLE};
use crate::shared::{Shared, State, copy_of};

/// Longest time that a manager may not be heard of while it could run. It goes round ten times a second
/// at least.
const HANG: Duration = Duration::from_secs(2);
/// The same while it waits for its policy in the launcher, which neither answers nor asks: longer, as that
/// may have much to compute, and as many processes may wait for one interpreter.
const NO_ANSWER: Duration = Duration::from_secs(30);
/// How often the supervisor looks without being called.
const LOOK: Duration = Duration::from_millis(100);

/// What a run came to, or has come to so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// All processes' counters.
    pub counters: Counters,
    /// Process images that were managed.
    pub images: u64,
    /// Most pages in use at once, of all processes at the moments looked at: fast, far, in the window.
    pub peak: [u64; 3],
    /// Most bytes of the far tier.
    pub far_bytes: u64,
    /// Used at the last look: pages as above, bytes of the far tier.
    pub now: [u64; 4],
    /// Processor time of the managers; of each up to some 40 ms before its end.
    pub manager_seconds: f64,
    /// Seconds from start to end.
    pub seconds: f64,
    /// Processor time of the program and of its managers, user and system.
    pub cpu_seconds: [f64; 2],
    /// The program's exit code, or 128 and the signal.
    pub exit_code: i32,
    /// Why the program was ended, if it was.
    pub why: Option<String>,
}

/// Run `command` with the library at `library`; `progress` hears of it a few times a second, and ends
/// it by answering no. `provider` has the policy of each process where the setup says that the launcher has
/// it; a program whose policy fails is ended.
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
    let path = program::check(name)?;
    // What the library would find missing is said before anything runs.
    Linux::open(1)?;
    let (_, tier, argument) = far::find(&setup.far)?;
    (tier.make)(argument, 1)?;
    let system = |error| Error::io(Path::new("run"), "preparing", &error);
    let (shared, file) = Shared::create().map_err(system)?;
    let (bell, far_end) = pipe().map_err(system)?;
    let setup = Setup {
        launcher: std::process::id(),
        shared: file.as_raw_fd() as u32,
        bell: far_end.as_raw_fd() as u32,
        ..setup.clone()
    };
    let mut child = Command::new(&path);
    child.arg0(name).args(&command[1..]).env(VARIABLE, setup.to_text());
    // Before what the user has it load.
    let mut libraries = library.as_os_str().to_owned();
    if let Some(more) = std::env::var_os("LD_PRELOAD").filter(|more| !more.is_empty()) {
        libraries.push(":");
        libraries.push(more);
    }
    child.env("LD_PRELOAD", libraries);
    // SAFETY: one system call between fork and exec.
    unsafe {
        child.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    shared.begin(&setup, monotonic());
    let began = Instant::now();
    let child = child.spawn().map_err(|error| Error::io(&path, "starting", &error))?;
    let mut supervisor = Supervisor {
        shared,
        bell: File::from(bell),
        held: BTreeMap::new(),
        silences: BTreeMap::new(),
        provider,
        sockets: BTreeMap::new(),
        summary: Summary::default(),
    };
    let before = processor_time();
    let watched = supervisor.watch(child, began, &mut progress);
    // What outlives the run has no policy from now on.
    supervisor.sockets.values().for_each(Socket::shut_down);
    let mut summary = supervisor.summary;
    supervisor.shared.head().end(summary.exit_code, summary.why.as_deref());
    watched?;
    summary.seconds = began.elapsed().as_secs_f64();
    let after = processor_time();
    summary.cpu_seconds = [after[0] - before[0], after[1] - before[1]];
    Ok(summary)
}

fn pipe() -> IoResult<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: writes two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: descriptors that are nobody else's.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// User and system seconds of children that have ended.
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
    /// Userfaultfds, by block. They stay open until the run is over.
    held: BTreeMap<usize, Option<OwnedFd>>,
    /// By block.
    silences: BTreeMap<usize, Silence>,
    provider: Option<Arc<dyn Provider>>,
    /// The way to those whose policy is here, by block.
    sockets: BTreeMap<usize, Socket>,
    summary: Summary,
}

/// How long a manager has not been heard of.
#[derive(Default)]
struct Silence {
    /// Its last heartbeat, nanoseconds.
    heard: u64,
    /// When it was looked at last, and what its thread had used then.
    seen: u64,
    used: Duration,
    /// Time in which it could have run and was not heard of.
    time: Duration,
}

impl Silence {
    /// Look at it at this moment. Whether it hangs: a thread that the machine has no processor for does
    /// not, nor one that has little of one, nor one whose far tier is slow.
    fn hangs(&mut self, thread: &Thread, heard: u64, now: u64, limit: Duration) -> bool {
        let since = Duration::from_nanos(now.saturating_sub(self.seen));
        if heard != self.heard {
            *self = Self { heard, seen: now, used: thread.used, time: Duration::ZERO };
        } else if since >= LOOK {
            if thread.state == 'R' {
                // It could run for as long as it had a processor.
                self.time += thread.used.saturating_sub(self.used).min(2 * since);
            } else if !thread.in_transfer {
                // Who looks may have been without a processor as well.
                self.time += since.min(2 * LOOK);
            }
            (self.seen, self.used) = (now, thread.used);
        }
        self.time >= limit
    }
}

impl Supervisor {
    fn watch(
        &mut self,
        mut child: Child,
        began: Instant,
        progress: &mut dyn FnMut(&Summary) -> bool,
    ) -> Result<()> {
        let root = child.id();
        loop {
            self.wait_for_bell();
            if let Some(why) = self.look() {
                self.end(root, &mut child);
                self.summary.why = Some(why);
                self.summary.exit_code = 128 + libc::SIGKILL;
                return Ok(());
            }
            self.summary.seconds = began.elapsed().as_secs_f64();
            if !progress(&self.summary) {
                self.end(root, &mut child);
                return Ok(());
            }
            let ended =
                child.try_wait().map_err(|error| Error::io(Path::new("run"), "waiting", &error))?;
            if let Some(status) = ended {
                let _ = self.look();
                self.summary.exit_code =
                    status.code().unwrap_or(128 + status.signal().unwrap_or(0));
                return Ok(());
            }
        }
    }

    fn wait_for_bell(&mut self) {
        let mut poll = libc::pollfd { fd: self.bell.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the variable of this function.
        unsafe { libc::poll(&raw mut poll, 1, LOOK.as_millis() as i32) };
        let mut calls = [0; 64];
        while self.bell.read(&mut calls).is_ok_and(|read| read > 0) {}
    }

    /// Look at every process; why the program must end, if it must.
    fn look(&mut self) -> Option<String> {
        let mut counters = Counters::default();
        let (mut used, mut images, mut manager_ns) = ([0; 4], 0, 0);
        let mut why = self.provider.as_ref().and_then(|provider| provider.failed());
        for (index, pid, block) in self.shared.claimed() {
            images += 1;
            manager_ns += block.manager_ns.load(Ordering::Relaxed);
            for (sum, number) in counters.numbers_mut().zip(block.counters().numbers()) {
                *sum += number;
            }
            match block.state() {
                State::Ready => {
                    self.held.entry(index).or_insert_with(|| {
                        copy_of(pid, block.descriptor.load(Ordering::Relaxed)).ok()
                    });
                    block.set_state(State::Held);
                }
                State::Asking => {
                    let socket = copy_of(pid, block.socket.load(Ordering::Relaxed));
                    let socket = socket.map(Socket::from);
                    if let Some(provider) = self.provider.clone()
                        && let Ok((socket, kept)) =
                            socket.and_then(|socket| Ok((socket.again()?, socket)))
                    {
                        self.sockets.insert(index, kept);
                        thread::spawn(move || provider.serve(socket, pid));
                        block.set_waits(false);
                        block.set_state(State::Answered);
                    } else if Thread::read(pid, pid).is_none() {
                        block.set_state(State::Ended);
                    }
                }
                state @ (State::Answered | State::Running) => {
                    let now = block.used();
                    raise(&block.peak, now);
                    let manager = match state {
                        // The program's only thread makes it.
                        State::Answered => pid,
                        _ => block.manager.load(Ordering::Relaxed),
                    };
                    match Thread::read(pid, manager) {
                        // It has ended, or runs another program.
                        None => {
                            block.set_state(State::Ended);
                            self.sockets.remove(&index);
                        }
                        Some(Thread { state: 'T' | 't', .. }) => {}
                        Some(thread) => {
                            let heard = block.heartbeat.load(Ordering::Relaxed);
                            let (limit, hangs) = match block.waits() {
                                true => (NO_ANSWER, "its policy has not answered for 30 s"),
                                false => (HANG, "its manager has not been heard of for 2 s"),
                            };
                            let silence = self.silences.entry(index).or_default();
                            if silence.hangs(&thread, heard, monotonic(), limit) {
                                why.get_or_insert(format!("process {pid}: {hangs}"));
                            }
                        }
                    }
                    for (sum, number) in used.iter_mut().zip(now) {
                        *sum += number;
                    }
                }
                State::Failed => {
                    why.get_or_insert(format!("process {pid}: {}", block.why()));
                }
                State::Held if Thread::read(pid, pid).is_none() => block.set_state(State::Ended),
                State::Free | State::Held | State::Ended => {}
            }
        }
        let peak = raise(&self.shared.head().peak, used);
        let summary = &mut self.summary;
        (summary.counters, summary.images, summary.now) = (counters, images, used);
        (summary.peak, summary.far_bytes) = ([peak[0], peak[1], peak[2]], peak[3]);
        summary.manager_seconds = manager_ns as f64 / 1e9;
        why
    }

    /// Kill all processes of the program, children before parents, and wait.
    fn end(&mut self, root: u32, child: &mut Child) {
        // Stopped first, so that none makes another meanwhile.
        let mut known = Vec::new();
        loop {
            let family = descendants(root);
            let new: Vec<u32> = family.into_iter().filter(|pid| !known.contains(pid)).collect();
            if new.is_empty() {
                break;
            }
            for pid in &new {
                signal(*pid, libc::SIGSTOP);
            }
            known.extend(new);
        }
        for pid in known.iter().rev() {
            signal(*pid, libc::SIGKILL);
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Make each at least what it is now; what they are then.
fn raise(peak: &[AtomicU64; 4], now: [u64; 4]) -> [u64; 4] {
    std::array::from_fn(|i| peak[i].fetch_max(now[i], Ordering::Relaxed).max(now[i]))
}

fn signal(pid: u32, number: i32) {
    // SAFETY: a system call that takes numbers.
    unsafe { libc::kill(pid as i32, number) };
}

/// What `/proc` counts processor time in.
fn tick() -> Duration {
    // SAFETY: asks for a number.
    let hertz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Duration::from_secs(1) / hertz.max(1) as u32
}

/// A thread, as `/proc` has it.
struct Thread {
    state: char,
    /// Processor time.
    used: Duration,
    /// It waits for a read or a write of the far tier's file.
    in_transfer: bool,
}

impl Thread {
    /// `None` if it is gone.
    fn read(pid: u32, thread: u32) -> Option<Self> {
        let folder = format!("/proc/{pid}/task/{thread}");
        let text = fs::read_to_string(format!("{folder}/stat")).ok()?;
        let words: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let state = words.first()?.chars().next()?;
        let ticks = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
        let in_transfer = matches!(state, 'D' | 'S') && {
            let call = fs::read_to_string(format!("{folder}/syscall")).unwrap_or_default();
            match call.split(' ').next().and_then(|word| word.parse().ok()) {
                Some(libc::SYS_pread64 | libc::SYS_pwrite64) => state == 'D',
                // It waits there for nothing else.
                Some(libc::SYS_io_uring_enter) => true,
                _ => false,
            }
        };
        let used = tick() * (ticks(11)? + ticks(12)?) as u32;
        (!matches!(state, 'Z' | 'X')).then_some(Self { state, used, in_transfer })
    }
}

/// This process and all that come from it, parents first.
fn descendants(root: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let text = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent = text
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_ascii_whitespace().nth(1)?.parse().ok());
        if let Some(parent) = parent {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut family = vec![root];
    let mut at = 0;
    while at < family.len() {
        family.extend(children.get(&family[at]).into_iter().flatten());
        at += 1;
    }
    family
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A supervisor of this thread, which plays a manager.
    fn supervisor() -> Supervisor {
        let (shared, _) = Shared::create().unwrap();
        let pid = std::process::id();
        let block = &shared.blocks()[shared.claim(pid).unwrap()];
        // SAFETY: a system call without arguments.
        block.manager.store(unsafe { libc::gettid() } as u32, Ordering::Relaxed);
        block.heartbeat.store(monotonic(), Ordering::Relaxed);
        block.set_state(State::Running);
        let (bell, _) = pipe().unwrap();
        Supervisor {
            shared,
            bell: File::from(bell),
            held: BTreeMap::new(),
            silences: BTreeMap::new(),
            provider: None,
            sockets: BTreeMap::new(),
            summary: Summary::default(),
        }
    }

    #[test]
    fn a_manager_that_is_not_heard_of_ends_the_program() {
        let mut supervisor = supervisor();
        assert_eq!(supervisor.look(), None);
        let silence = supervisor.silences.get_mut(&0).unwrap();
        silence.time = HANG;
        assert!(supervisor.look().unwrap().contains("has not been heard of for 2 s"));
        // It waits for its policy, which may take longer.
        let block = &supervisor.shared.blocks()[0];
        let heard = block.heartbeat.load(Ordering::Relaxed);
        block.set_waits(true);
        block.heartbeat.store(heard, Ordering::Relaxed);
        assert_eq!(supervisor.look(), None);
        supervisor.silences.get_mut(&0).unwrap().time = NO_ANSWER;
        assert!(supervisor.look().unwrap().contains("its policy has not answered for 30 s"));
        supervisor.shared.blocks()[0].set_waits(false);
        // Heard of again.
        supervisor.shared.blocks()[0].heartbeat.store(monotonic(), Ordering::Relaxed);
        assert_eq!(supervisor.look(), None);
        // One whose thread is gone has ended, or runs another program, which is no fault.
        supervisor.shared.blocks()[0].manager.store(u32::MAX / 2, Ordering::Relaxed);
        assert_eq!(supervisor.look(), None);
        assert_eq!(supervisor.shared.blocks()[0].state(), State::Ended);
    }

    #[test]
    fn time_without_a_processor_or_in_a_transfer_is_no_silence() {
        let steps_until = |state: char, in_transfer: bool, runs: u64, heard_until: u64| {
            let (mut silence, mut used) = (Silence::default(), Duration::ZERO);
            (1..100).find(|step| {
                used += Duration::from_millis(runs);
                let thread = Thread { state, used, in_transfer };
                silence.hangs(&thread, heard_until.min(*step), step * 100_000_000, HANG)
            })
        };
        // In steps of a tenth of a second.
        assert_eq!(steps_until('S', false, 0, 5), Some(25));
        assert_eq!(steps_until('D', false, 0, 1), Some(21));
        assert_eq!(steps_until('R', false, 100, 5), Some(25));
        assert_eq!(steps_until('R', false, 50, 5), Some(45));
        assert_eq!(steps_until('R', false, 10, 5), None);
        assert_eq!(steps_until('R', false, 0, 5), None);
        assert_eq!(steps_until('D', true, 0, 5), None);
        assert_eq!(steps_until('S', false, 0, 100), None);
    }

    #[test]
    fn a_manager_that_cannot_go_on_says_why() {
        let mut supervisor = supervisor();
        let counters = Counters { promotions: 3, ..Counters::default() };
        supervisor.shared.blocks()[0].publish(&counters);
        supervisor.shared.blocks()[0].fail("the far tier burns");
        let why = supervisor.look().unwrap();
        assert_eq!(why, format!("process {}: the far tier burns", std::process::id()));
        assert_eq!((supervisor.summary.counters, supervisor.summary.images), (counters, 1));
    }

    #[test]
    fn all_that_come_from_a_process_are_found() {
        let mut child = Command::new("sh").args(["-c", "sleep 100 & wait"]).spawn().unwrap();
        let mut family = descendants(child.id());
        while family.len() < 2 {
            std::thread::yield_now();
            family = descendants(child.id());
        }
        assert_eq!(family[0], child.id());
        for pid in family.iter().rev() {
            signal(*pid, libc::SIGKILL);
        }
        child.wait().unwrap();
    }
}
