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

use crate::linux::{monotonic, wait};
use crate::program;
use crate::reaper;
use crate::remote::{Provider, Socket};
use crate::setup::{Setup, VARIABLE};
use crate::shared::{Block, Shared, State, copy_of, process_of};
use crate::{Counters, PAGE, family};

/// Longest time that a manager may not be heard of while it could run. It goes round ten times a second
/// at least.
const HANG: Duration = Duration::from_secs(2);
/// The same while it waits for its policy in the launcher, which neither answers nor asks: longer, as that
/// may have much to compute, and as many processes may wait for one interpreter.
const NO_ANSWER: Duration = Duration::from_secs(30);
const REAPER_GONE: &str = "the process that waits for its processes was killed";
/// How often it is looked whether managers that have ended were waited for, 1 ms apart.
const REAPED: u32 = 200;
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
    /// Processor time of the managers.
    pub manager_seconds: f64,
    /// What was resident when most was.
    #[serde(flatten)]
    pub resident: Resident,
    /// Seconds from start to end.
    pub seconds: f64,
    /// Processor time of the program and of its managers, user and system.
    pub cpu_seconds: [f64; 2],
    /// The program's exit code, or 128 and the signal.
    pub exit_code: i32,
    /// It has left a core file, in which pages that were far are missing.
    pub core_dumped: bool,
    /// Why the program was ended, if it was.
    pub why: Option<String>,
}

/// Private memory of all managed processes in RAM at a moment, and what of it is not counted as fast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Resident {
    /// All of it, the managers' own left out.
    pub resident_bytes: u64,
    /// The processes.
    pub resident_processes: u64,
    /// In mappings that are not managed: those that were there before the program's `main`.
    pub unmanaged_bytes: u64,
    /// Far pages that are held in memory: locked, shared with a child, or used for I/O.
    pub held_bytes: u64,
}

impl Resident {
    fn add(&mut self, block: &Block) {
        // A manager has the program's memory.
        let Some(bytes) = anonymous_bytes(block.manager.load(Ordering::Relaxed)) else { return };
        let own = block.own_bytes.load(Ordering::Relaxed);
        let [fast, _, window, _] = block.used();
        let bytes = bytes.saturating_sub(own);
        self.resident_bytes += bytes;
        self.resident_processes += 1;
        self.unmanaged_bytes += bytes.saturating_sub((fast + window) * PAGE as u64);
        self.held_bytes += block.held_pages.load(Ordering::Relaxed) * PAGE as u64;
    }
}

/// Resident private memory of a process.
fn anonymous_bytes(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let mut pages = text.split(' ').skip(1).map_while(|word| word.parse::<u64>().ok());
    let (resident, shared) = (pages.next()?, pages.next()?);
    Some(resident.saturating_sub(shared) * PAGE as u64)
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
    // What the library would find missing is said before anything runs.
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
    // Before what the user has it load.
    let mut libraries = library.as_os_str().to_owned();
    if let Some(more) = std::env::var_os("LD_PRELOAD").filter(|more| !more.is_empty()) {
        libraries.push(":");
        libraries.push(more);
    }
    child.env("LD_PRELOAD", libraries);
    shared.begin(&setup, monotonic());
    let (reapers, bell_end) = (Shared::map(&file).map_err(system)?, bell.as_raw_fd());
    // SAFETY: system calls between fork and exec.
    unsafe { child.pre_exec(move || reaper::split(reapers.head(), bell_end)) };
    let began = Instant::now();
    let child = child.spawn().map_err(|error| Error::io(&path, "starting", &error))?;
    let mut supervisor =
        Supervisor { shared, bell, images: BTreeMap::new(), provider, summary: Summary::default() };
    let before = processor_time();
    let watched = supervisor.watch(child, began, &mut progress);
    // What outlives the run has no policy from now on.
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

/// Calls the launcher: whoever writes to it is no victim of SIGPIPE if the launcher has ended, as with a pipe.
fn bell() -> IoResult<File> {
    // SAFETY: a system call that takes numbers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a descriptor that is nobody else's.
    Ok(unsafe { File::from_raw_fd(fd) })
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
    /// By block.
    images: BTreeMap<usize, Image>,
    provider: Option<Arc<dyn Provider>>,
    summary: Summary,
}

/// A process image that is managed.
#[derive(Default)]
struct Image {
    /// A copy of its userfaultfd.
    held: Option<OwnedFd>,
    /// Its manager, once that runs.
    manager: Option<OwnedFd>,
    silence: Silence,
    /// The way to it, if its policy is here.
    socket: Option<Socket>,
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
    /// Look at a block's thread at this moment.
    ///
    /// # Errors
    /// It hangs.
    fn check(&mut self, thread: &Thread, block: &Block) -> std::result::Result<(), String> {
        let (limit, hangs) = match block.waits() {
            true => (NO_ANSWER, "its policy has not answered for 30 s"),
            false => (HANG, "its manager has not been heard of for 2 s"),
        };
        let heard = block.heartbeat.load(Ordering::Relaxed);
        if self.hangs(thread, heard, monotonic(), limit) { Err(hangs.into()) } else { Ok(()) }
    }

    /// Look at it at this moment. Whether it hangs: a thread that the machine has no processor for does
    /// not, nor one that has little of one, nor one whose far tier is slow.
    fn hangs(&mut self, thread: &Thread, heard: u64, now: u64, limit: Duration) -> bool {
        let since = Duration::from_nanos(now.saturating_sub(self.seen));
        if heard != self.heard {
            *self = Self { heard, seen: now, used: thread.used, time: Duration::ZERO };
        } else if since >= LOOK {
            match thread.state {
                // It could run for as long as it had a processor.
                'R' => self.time += thread.used.saturating_sub(self.used).min(2 * since),
                // It waits for the kernel: a disk, or a long change of mappings.
                'D' | 'T' | 't' => {}
                _ if thread.in_transfer => {}
                // Who looks may have been without a processor as well.
                _ => self.time += since.min(2 * LOOK),
            }
            (self.seen, self.used) = (now, thread.used);
        }
        self.time >= limit
    }
}

impl Supervisor {
    fn watch(
        &mut self,
        mut reaper: Child,
        began: Instant,
        progress: &mut dyn FnMut(&Summary) -> bool,
    ) -> Result<()> {
        loop {
            self.wait_for_bell();
            // Refused when it has ended and SIGCHLD is ignored here.
            let reaped = reaper.try_wait().map_or(true, |ended| ended.is_some());
            let ended = self.shared.head().root_ended();
            let lost = (reaped && ended.is_none()).then(|| REAPER_GONE.to_owned());
            if let Some(why) = self.look().or(lost) {
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

    /// Whether a manager still serves children of a program that has ended.
    fn is_finishing(&self) -> bool {
        self.shared
            .claimed()
            .any(|(_, pid, block)| block.state() == State::Running && !family::is_alive(pid))
    }

    fn wait_for_bell(&mut self) {
        let mut poll = libc::pollfd { fd: self.bell.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the variable of this function.
        unsafe { libc::poll(&raw mut poll, 1, LOOK.as_millis() as i32) };
        let mut calls = [0; 8];
        let _ = self.bell.read(&mut calls);
    }

    /// Look at every process; why the program must end, if it must.
    fn look(&mut self) -> Option<String> {
        let mut why = self.provider.as_ref().and_then(|provider| provider.failed());
        let (mut used, mut resident) = ([0; 4], Resident::default());
        let claimed: Vec<(usize, u32)> =
            self.shared.claimed().map(|(index, pid, _)| (index, pid)).collect();
        for (index, pid) in claimed {
            if let Err(reason) = self.look_at(index, pid) {
                why.get_or_insert(format!("process {pid}: {reason}"));
            }
            let block = &self.shared.blocks()[index];
            if matches!(block.state(), State::Answered | State::Running) {
                let now = block.used();
                raise(&block.peak, now);
                used.iter_mut().zip(now).for_each(|(sum, number)| *sum += number);
                resident.add(block);
            }
        }
        self.sum_up(used, resident);
        why
    }

    /// Look at one process.
    ///
    /// # Errors
    /// Why the program must end.
    fn look_at(&mut self, index: usize, pid: u32) -> std::result::Result<(), String> {
        let block = &self.shared.blocks()[index];
        let image = self.images.entry(index).or_default();
        match block.state() {
            State::Ready => {
                image.held = copy_of(pid, block.descriptor.load(Ordering::Relaxed)).ok();
                block.set_state(State::Held);
            }
            State::Asking => {
                let socket = copy_of(pid, block.socket.load(Ordering::Relaxed));
                let sockets = socket.map(Socket::from).and_then(|s| Ok((s.again()?, s)));
                if let Some(provider) = self.provider.clone()
                    && let Ok((socket, kept)) = sockets
                {
                    image.socket = Some(kept);
                    thread::spawn(move || provider.serve(socket, pid));
                    block.set_waits(false);
                    block.set_state(State::Answered);
                } else if !family::is_alive(pid) {
                    block.set_state(State::Ended);
                }
            }
            // The program's only thread makes the policy.
            State::Answered => match Thread::read(pid) {
                Some(thread) => image.silence.check(&thread, block)?,
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
                    // It may have said so meanwhile.
                    return match block.state() {
                        State::Running => Err("its manager was killed".into()),
                        State::Failed => Err(block.why()),
                        _ => Ok(()),
                    };
                }
                if let Some(thread) = Thread::read(manager) {
                    image.silence.check(&thread, block)?;
                }
            }
            State::Failed => return Err(block.why()),
            // Its manager has written there for the last time, or there will never be one.
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

    fn sum_up(&mut self, used: [u64; 4], resident: Resident) {
        let (mut images, mut counters, mut manager_ns) = self.shared.head().past();
        for (_, _, block) in self.shared.claimed() {
            images += 1;
            for (sum, number) in counters.numbers_mut().zip(block.counters().numbers()) {
                *sum += number;
            }
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

    /// End the reaper, once it has waited for the managers that have ended.
    fn dismiss(&mut self, reaper: &mut Child) {
        let is_reaped = |pid: u32| pid == 0 || !Path::new(&format!("/proc/{pid}")).exists();
        for _ in 0..REAPED {
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

    /// Kill all that belongs to the run, and wait.
    fn kill(&mut self, reaper: &mut Child) {
        family::kill(&self.shared, reaper.id());
        self.dismiss(reaper);
    }
}

/// Make each at least what it is now; what they are then.
fn raise(peak: &[AtomicU64; 4], now: [u64; 4]) -> [u64; 4] {
    std::array::from_fn(|i| peak[i].fetch_max(now[i], Ordering::Relaxed).max(now[i]))
}

/// What `/proc` counts processor time in.
fn tick() -> Duration {
    // SAFETY: asks for a number.
    let hertz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Duration::from_secs(1) / hertz.max(1) as u32
}

/// A process's first thread, as `/proc` has it.
struct Thread {
    state: char,
    /// Processor time.
    used: Duration,
    /// It waits for reads or writes of the far tier's file.
    in_transfer: bool,
}

impl Thread {
    /// `None` if it is gone.
    fn read(pid: u32) -> Option<Self> {
        let folder = format!("/proc/{pid}/task/{pid}");
        let text = family::stat(&folder)?;
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let state = words.first()?.chars().next()?;
        let ticks = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
        let in_transfer = state == 'S' && {
            let call = fs::read_to_string(format!("{folder}/syscall")).unwrap_or_default();
            let number = call.split(' ').next().and_then(|word| word.parse().ok());
            number == Some(libc::SYS_io_uring_enter)
        };
        let used = tick() * (ticks(11)? + ticks(12)?) as u32;
        (!matches!(state, 'Z' | 'X')).then_some(Self { state, used, in_transfer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A supervisor of this process, which plays a manager.
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
    fn a_manager_that_is_not_heard_of_ends_the_program() {
        let mut supervisor = supervisor();
        assert_eq!(supervisor.look(), None);
        supervisor.images.get_mut(&0).unwrap().silence.time = HANG;
        assert!(supervisor.look().unwrap().contains("has not been heard of for 2 s"));
        // It waits for its policy, which may take longer.
        let block = &supervisor.shared.blocks()[0];
        let heard = block.heartbeat.load(Ordering::Relaxed);
        block.set_waits(true);
        block.heartbeat.store(heard, Ordering::Relaxed);
        assert_eq!(supervisor.look(), None);
        supervisor.images.get_mut(&0).unwrap().silence.time = NO_ANSWER;
        assert!(supervisor.look().unwrap().contains("its policy has not answered for 30 s"));
        supervisor.shared.blocks()[0].set_waits(false);
        // Heard of again.
        supervisor.shared.blocks()[0].heartbeat.store(monotonic(), Ordering::Relaxed);
        assert_eq!(supervisor.look(), None);
        // Killed.
        let mut killed = Command::new("true").spawn().unwrap();
        supervisor.images.get_mut(&0).unwrap().manager = process_of(killed.id()).ok();
        killed.wait().unwrap();
        assert!(supervisor.look().unwrap().contains("its manager was killed"));
        // It had nothing left to do.
        supervisor.shared.blocks()[0].manager.store(killed.id(), Ordering::Relaxed);
        supervisor.shared.blocks()[0].set_state(State::Ended);
        assert_eq!(supervisor.look(), None);
        assert_eq!((supervisor.shared.claimed().count(), supervisor.summary.images), (0, 1));
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
        assert_eq!(steps_until('R', false, 100, 5), Some(25));
        assert_eq!(steps_until('R', false, 50, 5), Some(45));
        assert_eq!(steps_until('R', false, 10, 5), None);
        assert_eq!(steps_until('R', false, 0, 5), None);
        assert_eq!(steps_until('S', true, 0, 5), None);
        assert_eq!(steps_until('D', false, 0, 1), None);
        assert_eq!(steps_until('T', false, 0, 1), None);
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
}
