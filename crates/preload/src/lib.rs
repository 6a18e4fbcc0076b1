//! The library that `nearfar run` loads into a program.
//!
//! Before the program's `main`, it starts the **manager**, a separate process that shares the program's
//! memory ([`process`]) and moves pages of it to and from the far tier. Memory that is mapped by then stays
//! unmanaged; later mappings are managed.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nearfar_live::far::{self, Slow};
use nearfar_live::linux::{Linux, Owner, StandIns, copy_of};
use nearfar_live::remote::{self, Socket};
use nearfar_live::setup::{Setup, VARIABLE};
use nearfar_live::shared::{Block, CALL, Shared, State};
use nearfar_live::{AROUND, Manager, World};

use crate::process::{Parts, stack};

mod arena;
mod keeper;
mod manage;
mod process;
mod remap;

#[global_allocator]
static ARENA: arena::Arena = arena::Arena::new();

/// The memory shared with the launcher. Not in the arena (this library's heap): the [`keeper`], a forked
/// process, has no copy of the arena.
static SHARED: OnceLock<Shared> = OnceLock::new();

/// Number of stand-ins: threads that keep the processor of a thread busy while it waits for a page (`--epf`).
/// Usually more than a program has running threads.
const STAND_INS: usize = 16;

/// Run by the dynamic linker before the program's own code.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    // Without the variable, the program is not managed.
    let Ok(text) = std::env::var(VARIABLE) else { return };
    if let Err(why) = begin(&text) {
        eprintln!("nearfar: {why}");
        // SAFETY: ends the process before the program has done anything.
        unsafe { libc::_exit(3) };
    }
}

fn begin(setup: &str) -> Result<(), String> {
    let program_fds = descriptors();
    let setup = Setup::from_text(setup)?;
    let launcher_fd = |fd| copy_of(setup.launcher, fd);
    let shared = match launcher_fd(setup.shared).and_then(|file| Shared::map(&file)) {
        Ok(shared) => SHARED.get_or_init(|| shared),
        Err(error) => match error.raw_os_error() {
            // nearfar run has ended, and this program has outlived it.
            Some(libc::ESRCH | libc::EBADF) => return Ok(()),
            Some(libc::EPERM) => {
                // SAFETY: a system call without arguments.
                let user = unsafe { libc::geteuid() };
                let may = "may not use userfaultfd: it needs the capability CAP_SYS_PTRACE";
                return Err(format!("the program now runs as user {user}, who {may}"));
            }
            _ => return Err(format!("nearfar run cannot be reached: {error}")),
        },
    };
    let pid = std::process::id();
    // A block is the part of the shared memory for one process image.
    let block = shared.claim(pid).ok_or("the run has too many processes (4,096)")?;
    let block = &shared.blocks()[block];
    let owner = Owner::this_process().map_err(|error| format!("this process: {error}"))?;

    // nearfar moves base pages: the first move of a part of a huge page would split it.
    // SAFETY: a system call that takes numbers.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };

    let sizes = setup.sizes();
    let text = |error: nearfar_live::Error| error.to_string();
    let mut kernel = Linux::open(sizes.parking()).map_err(text)?;
    let (_, tier, argument) = far::find(&setup.far).map_err(text)?;
    let mut store = (tier.make)(argument, sizes.far.min(u32::MAX.into()) as u32).map_err(text)?;
    if tier.is_mapped {
        kernel.use_node(argument).map_err(text)?;
    }
    if setup.far_latency_ns > 0 {
        store = Box::new(Slow::new(store, setup.far_latency_ns));
    }
    block.descriptor.store(kernel.descriptor() as u32, Ordering::Relaxed);
    kernel.set_heartbeat(&block.heartbeat);
    let stacks = process::Stacks::new()?;
    let mut stand_ins = Vec::new();
    // With `all`, every waiting thread sleeps, and needs no stand-in.
    if setup.epf != "all" {
        let (all, threads) = StandIns::new(STAND_INS);
        kernel.use_stand_ins(all);
        for thread in threads {
            stand_ins.push((stack(process::STAND_IN_STACK)?, thread));
        }
    }
    let doorbell = kernel.doorbell();
    kernel.exclude_all().map_err(text)?;
    let world = World::new(kernel, store, sizes);
    // Set the state and wait until the launcher changes it. False if the launcher has ended: the program is
    // not managed.
    let is_acknowledged = |state| {
        block.set_state(state);
        let Ok(bell) = launcher_fd(setup.bell) else { return false };
        if File::from(bell).write_all(&CALL).is_err() {
            return false;
        }
        while block.state() == state {
            if shared.head().ended().is_some() || launcher_fd(setup.shared).is_err() {
                return false;
            }
            pause(100_000);
        }
        true
    };
    let manager = if setup.remote {
        let (ours, launchers) = Socket::pair().map_err(|error| error.to_string())?;
        block.socket.store(launchers.as_raw_fd() as u32, Ordering::Relaxed);
        if !is_acknowledged(State::Connecting) {
            return Ok(());
        }
        drop(launchers);
        let owner = Owner::this_process().map_err(|error| format!("this process: {error}"))?;
        let program = Watched { block, owner, next_look: Instant::now() };
        Manager::with(world, AROUND, |world| remote::make(ours, &setup.settings(), world, program))
    } else {
        Manager::new(world, &setup.policy, &setup.settings(), AROUND)
    };
    let manager = manager.map_err(text)?;
    let manager = manager.with_epf(nearfar_kernel::epf::parse(&setup.epf)?);

    // Nothing is managed before the launcher has a copy of the userfaultfd: if this process lost the only
    // one, missing pages would read as zeros.
    if !is_acknowledged(State::Ready) {
        return Ok(());
    }
    let opened: Vec<RawFd> =
        descriptors().into_iter().filter(|fd| !program_fds.contains(fd)).collect();
    let launcher = (setup.launcher, setup.bell);
    remap::prepare(doorbell);
    process::start(Parts {
        stacks,
        manager,
        owner,
        shared,
        block,
        launcher,
        program_fds,
        stand_ins,
    })?;
    for fd in opened {
        // SAFETY: opened above; the manager has its own table of descriptors by now.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

/// Checks the program while the manager waits for a policy in the launcher.
struct Watched {
    block: &'static Block,
    owner: Owner,
    next_look: Instant,
}

impl remote::Program for Watched {
    fn set_waits(&mut self, waits: bool) {
        self.block.set_waits(waits);
    }
    fn has_ended(&mut self) -> bool {
        let now = Instant::now();
        if now < self.next_look {
            return false;
        }
        self.next_look = now + Duration::from_nanos(manage::BEAT_NS);
        self.owner.memory_is_unused()
    }
}

fn pause(nanoseconds: i64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds };
    // SAFETY: reads the variable of this function.
    unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) };
}

fn descriptors() -> Vec<RawFd> {
    let Ok(folder) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let names = folder.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let all: Vec<RawFd> = names.collect();
    // The descriptor of the folder is closed by now.
    // SAFETY: returns the flags of a descriptor.
    all.into_iter().filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0).collect()
}
