//! The library that `nearfar run` loads into a program.
//!
//! Before the program's `main` it starts a thread, the manager, which has all signals blocked, its own
//! memory, stack and descriptors, and never uses the program's. Everything that is mapped by then is
//! left alone; what the program maps later is managed.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nearfar_live::far::{self, Slow};
use nearfar_live::linux::{Linux, Post, StandIns};
use nearfar_live::remote::{self, Socket};
use nearfar_live::setup::{Setup, VARIABLE};
use nearfar_live::shared::{Block, Shared, State, copy_of};
use nearfar_live::{AROUND, Kernel, Manager, Turn, World};

mod arena;
mod users;

#[global_allocator]
static ARENA: arena::Arena = arena::Arena::new();

/// Bytes of the manager's stack.
const STACK: usize = 1 << 20;
/// Threads that keep processors busy for those that wait there (`--epf`), and bytes of their stacks. More
/// than a program has that can run at once, as a rule.
const STAND_INS: usize = 16;
const STAND_IN_STACK: usize = 1 << 15;
/// Shortest and longest time from one look for new memory to the next.
const LOOK_NS: (u64, u64) = (20_000_000, 40_000_000);
/// How long the manager waits for messages before it says that it is there.
const BEAT_NS: u64 = 100_000_000;

static MANAGER_IS_SEPARATE: AtomicBool = AtomicBool::new(false);

/// Run by the dynamic linker before the program's own code.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    // Without the variable this is not ours to do.
    let Ok(text) = std::env::var(VARIABLE) else { return };
    if let Err(why) = begin(&text) {
        eprintln!("nearfar: {why}");
        // SAFETY: ends the process before the program has done anything.
        unsafe { libc::_exit(3) };
    }
}

struct Parts {
    manager: Manager<Linux>,
    shared: Arc<Shared>,
    block: usize,
    /// The program's descriptors, which the manager must not hold open.
    theirs: Vec<RawFd>,
}

fn begin(text: &str) -> Result<(), String> {
    let theirs = descriptors();
    let setup = Setup::from_text(text)?;
    let theirs_of = |fd| copy_of(setup.launcher, fd);
    let shared = match theirs_of(setup.shared).and_then(|file| Shared::map(&file)) {
        Ok(shared) => Arc::new(shared),
        Err(error) => match error.raw_os_error() {
            // nearfar run has ended, and something that it started has outlived it.
            Some(libc::ESRCH | libc::EBADF) => return Ok(()),
            Some(libc::EPERM) => {
                // SAFETY: a system call without arguments.
                let user = unsafe { libc::geteuid() };
                let may = "may not use userfaultfd: it needs the capability CAP_SYS_PTRACE";
                return Err(format!("the program has become that of user {user}, who {may}"));
            }
            _ => return Err(format!("nearfar run cannot be reached: {error}")),
        },
    };
    let pid = std::process::id();
    let block = shared.claim(pid).ok_or("the program has run too many programs")?;

    // Its unit is the base page: a huge page would be taken apart by the first request for a part of it.
    // SAFETY: a system call that takes numbers.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };

    let sizes = setup.sizes();
    let say = |error: nearfar_live::Error| error.to_string();
    let mut kernel = Linux::open(sizes.lot()).map_err(say)?;
    let (_, tier, argument) = far::find(&setup.far).map_err(say)?;
    let mut store = (tier.make)(argument, sizes.far.min(u32::MAX.into()) as u32).map_err(say)?;
    if tier.is_mapped {
        kernel.use_node(argument).map_err(say)?;
    }
    if setup.far_latency_ns > 0 {
        store = Box::new(Slow::new(store, setup.far_latency_ns));
    }
    let claimed = &shared.blocks()[block];
    claimed.descriptor.store(kernel.descriptor() as u32, Ordering::Relaxed);
    let stack = stack(STACK)?;
    let mut posts = Vec::new();
    if setup.epf != "all" {
        let (stand_ins, all) = StandIns::new(STAND_INS);
        kernel.stand_in_by(stand_ins);
        for post in all {
            posts.push((self::stack(STAND_IN_STACK)?, post));
        }
    }
    users::prepare();
    kernel.exclude_all();
    let world = World::new(kernel, store, sizes);
    let until_answered = |state| {
        claimed.set_state(state);
        theirs_of(setup.bell)
            .and_then(|bell| File::from(bell).write_all(b"\n"))
            .map_err(|error| format!("nearfar run cannot be reached: {error}"))?;
        let mut patience = 50_000;
        while claimed.state() == state {
            patience -= 1;
            if patience == 0 {
                return Err("nearfar run does not answer".to_owned());
            }
            pause(100_000);
        }
        Ok(())
    };
    let manager = if setup.remote {
        let (ours, launchers) = Socket::pair().map_err(|error| error.to_string())?;
        claimed.socket.store(launchers.as_raw_fd() as u32, Ordering::Relaxed);
        until_answered(State::Asking)?;
        drop(launchers);
        let waiting = Arc::clone(&shared);
        let waits = move |waits| waiting.blocks()[block].set_waits(waits);
        Manager::with(world, AROUND, |world| remote::make(ours, &setup.settings(), world, waits))
    } else {
        Manager::new(world, &setup.policy, &setup.settings(), AROUND)
    };
    let manager = manager.map_err(say)?;
    let manager = manager.with_epf(nearfar_kernel::epf::parse(&setup.epf)?);

    // Nothing is managed before somebody else holds the descriptor: without it, missing pages would
    // read as zeros if this process lost it.
    until_answered(State::Ready)?;

    let ours: Vec<RawFd> = descriptors().into_iter().filter(|fd| !theirs.contains(fd)).collect();
    spawn(stack, STACK, run, Box::new(Parts { manager, shared, block, theirs }))?;
    for (stack, post) in posts {
        spawn(stack, STAND_IN_STACK, stand_in, Box::new(post))?;
    }
    while !MANAGER_IS_SEPARATE.load(Ordering::Acquire) {
        pause(20_000);
    }
    for fd in ours {
        // SAFETY: opened above; the manager has its own table of descriptors by now.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

fn pause(nanoseconds: i64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds };
    // SAFETY: reads the variable of this function.
    unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) };
}

/// The descriptors that are open.
fn descriptors() -> Vec<RawFd> {
    let Ok(folder) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let names = folder.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let all: Vec<RawFd> = names.collect();
    // The one of the folder is closed by now.
    // SAFETY: asks for a descriptor's flags, if it is one.
    all.into_iter().filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0).collect()
}

/// A stack of so many bytes, all of it there.
fn stack(bytes: usize) -> Result<*mut libc::c_void, String> {
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_POPULATE,
    );
    // SAFETY: a new mapping at an address of the kernel's choice.
    let stack = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if stack == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error().to_string());
    }
    Ok(stack)
}

/// Start a thread on a stack of so many bytes, with all signals blocked.
fn spawn<T>(
    stack: *mut libc::c_void,
    bytes: usize,
    run: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
    parts: Box<T>,
) -> Result<(), String> {
    let raw = Box::into_raw(parts);
    // SAFETY: variables of this function, written before they are read; the stack is nobody else's,
    // and what `raw` points to is the thread's from here on.
    let failed = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let (mut attributes, mut thread) = (std::mem::zeroed(), std::mem::zeroed());
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setstack(&raw mut attributes, stack, bytes);
        libc::pthread_attr_setdetachstate(&raw mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let failed = libc::pthread_create(&raw mut thread, &raw const attributes, run, raw.cast());
        libc::pthread_attr_destroy(&raw mut attributes);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        failed
    };
    if failed == 0 { Ok(()) } else { Err(std::io::Error::from_raw_os_error(failed).to_string()) }
}

extern "C" fn stand_in(post: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: made by `spawn` of a box of this type, for this thread; a name that ends in zero.
    let post = unsafe {
        libc::prctl(libc::PR_SET_NAME, c"nearfar-wait".as_ptr());
        *Box::from_raw(post.cast::<Post>())
    };
    post.take()
}

extern "C" fn run(parts: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: made by `spawn` of a box of this type, for this thread.
    let Parts { manager, shared, block, theirs } = *unsafe { Box::from_raw(parts.cast::<Parts>()) };
    let block = &shared.blocks()[block];
    // SAFETY: numbers and a name that ends in zero.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"nearfar".as_ptr());
        // A page that comes in 25 us is not to be waited for for 50 more.
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
        if libc::unshare(libc::CLONE_FILES) == 0 {
            for fd in theirs {
                libc::close(fd);
            }
        }
        block.manager.store(libc::gettid() as u32, Ordering::Relaxed);
    }
    let mut manager = manager;
    beat(&manager, block);
    block.set_state(State::Running);
    MANAGER_IS_SEPARATE.store(true, Ordering::Release);
    let why = manage(&mut manager, block);
    block.fail(&why);
    // The supervisor kills the program, and children that wait for their pages before: so what they
    // wait at stays open here.
    pause(999_999_999);
    for _ in 0..4 {
        pause(999_999_999);
    }
    std::process::abort()
}

fn beat(manager: &Manager<Linux>, block: &Block) {
    let world = &manager.world;
    block.heartbeat.store(world.kernel().now_ns(), Ordering::Relaxed);
    let ([fast, far], window) = world.used();
    for (word, number) in block.used.iter().zip([fast, far, window, world.far_bytes()]) {
        word.store(number, Ordering::Relaxed);
    }
    block.publish(&world.counters);
}

/// Go round until it cannot go on; why.
fn manage(manager: &mut Manager<Linux>, block: &Block) -> String {
    let (mut look, mut every) = (0, LOOK_NS.0);
    let mut rounds = 0u32;
    loop {
        let turn = match manager.turn() {
            Ok(turn) => turn,
            Err(why) => return why,
        };
        // Every time: the program may end at any moment, and with it this thread.
        beat(manager, block);
        rounds = rounds.wrapping_add(1);
        if turn == Turn::Busy && !rounds.is_multiple_of(64) {
            continue;
        }
        let now = manager.world.kernel().now_ns();
        if now >= look {
            block.manager_ns.store(thread_time(), Ordering::Relaxed);
            let found = manager.discover();
            every = if found { LOOK_NS.0 } else { (2 * every).min(LOOK_NS.1) };
            look = manager.world.kernel().now_ns() + every;
        }
        if let Turn::Until(due) = turn {
            let until = due.min(look).min(now + BEAT_NS).saturating_sub(now);
            manager.world.kernel().wait(manager.world.far_descriptor(), until);
        }
    }
}

/// Processor time of this thread, nanoseconds.
fn thread_time() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the variable of this function.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
