//! The manager as a process of its own that shares the program's memory.
//!
//! As a thread of the program it would end with it, and with it the userfaultfds of children that still lack
//! pages: they would read zeros. So it is made with `CLONE_VM` and without `CLONE_THREAD`: a process whose
//! address space is the program's, with descriptors, signals, limits, rights and a session of its own. Neither
//! exit, kill nor exec of the program end it, and the program has no thread that it does not know of.
//!
//! libc cannot make such a process. It needs thread-local memory, which only `pthread_create` makes. So a
//! thread is started that is never joined; it makes the process, which has that thread's thread-local memory,
//! and ends. libc keeps the memory of a thread that nobody has joined.

use std::fs::File;
use std::io::Error;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use libc::{c_int, c_void};
use nearfar_live::Manager;
use nearfar_live::linux::{Linux, Owner, Post};
use nearfar_live::shared::{Block, Shared, State};

use crate::{keeper, manage, pause};

/// Bytes of the stacks: of the manager, of the thread and the process that make it, and of stand-ins.
const STACK: usize = 1 << 20;
const SMALL_STACK: usize = 1 << 14;
pub(crate) const STAND_IN_STACK: usize = 1 << 15;

/// What the manager starts with.
pub(crate) struct Parts {
    pub(crate) manager: Manager<Linux>,
    pub(crate) owner: Owner,
    pub(crate) shared: &'static Shared,
    pub(crate) block: &'static Block,
    /// The launcher's process, and its eventfd, which calls it.
    pub(crate) launcher: (u32, u32),
    /// The program's descriptors, which the manager must not hold open.
    pub(crate) theirs: Vec<RawFd>,
    /// Stand-ins to start, each with its stack.
    pub(crate) posts: Vec<(*mut c_void, Post)>,
}

/// The stacks, all there.
pub(crate) struct Stacks {
    thread: *mut c_void,
    between: *mut c_void,
    manager: *mut c_void,
}

impl Stacks {
    pub(crate) fn new() -> Result<Self, String> {
        Ok(Self { thread: stack(STACK)?, between: stack(SMALL_STACK)?, manager: stack(STACK)? })
    }
}

/// A stack of so many bytes, all of it there.
pub(crate) fn stack(bytes: usize) -> Result<*mut c_void, String> {
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_POPULATE,
    );
    // SAFETY: a new mapping at an address of the kernel's choice.
    let stack = unsafe { libc::mmap(null_mut(), bytes, protection, flags, -1, 0) };
    if stack == libc::MAP_FAILED {
        return Err(Error::last_os_error().to_string());
    }
    Ok(stack)
}

fn top(stack: *mut c_void, bytes: usize) -> *mut c_void {
    stack.wrapping_byte_add(bytes)
}

/// How far the start is: 0, then an error number or [`RUNS`].
static STATUS: AtomicI32 = AtomicI32::new(0);
const RUNS: i32 = -1;
/// The thread that makes the process, and the process.
static THREAD: AtomicU32 = AtomicU32::new(0);
static MANAGER: AtomicI32 = AtomicI32::new(0);

struct Start {
    stacks: Stacks,
    parts: Parts,
}

/// Start the manager; it runs when this returns.
pub(crate) fn start(stacks: Stacks, parts: Parts) -> Result<(), String> {
    let (stack, start) = (stacks.thread, Box::new(Start { stacks, parts }));
    let failed = spawn(stack, Box::into_raw(start));
    if failed != 0 {
        return Err(format!("starting a thread: {}", Error::from_raw_os_error(failed)));
    }
    loop {
        let manager = MANAGER.load(Ordering::Acquire);
        // SAFETY: no signal, only whether there is such a process.
        let is_gone = manager > 0 && unsafe { libc::kill(manager, 0) } < 0;
        match STATUS.load(Ordering::Acquire) {
            0 if is_gone => return Err("its manager was killed".into()),
            0 => pause(20_000),
            RUNS => return Ok(()),
            number => {
                let error = Error::from_raw_os_error(number);
                return Err(format!("starting the manager: {error}"));
            }
        }
    }
}

/// Start the thread, with all signals blocked: what it makes has them blocked as well.
fn spawn(stack: *mut c_void, start: *mut Start) -> c_int {
    // SAFETY: variables of this function, written before they are read; the stack is nobody else's,
    // and what `start` points to is the thread's from here on.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let (mut attributes, mut thread) = (std::mem::zeroed(), std::mem::zeroed());
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setstack(&raw mut attributes, stack, STACK);
        let made = &raw mut thread;
        let failed = libc::pthread_create(made, &raw const attributes, make, start.cast());
        libc::pthread_attr_destroy(&raw mut attributes);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut());
        failed
    }
}

/// The thread. It makes the manager by a process between them, so that this is no child of the program's.
extern "C" fn make(start: *mut c_void) -> *mut c_void {
    // SAFETY: made by `start` for this thread; system calls, and a stack that is nobody else's.
    unsafe {
        THREAD.store(libc::gettid() as u32, Ordering::Release);
        let stack = top((*start.cast::<Start>()).stacks.between, SMALL_STACK);
        // The program is not told of its end: it has no signal.
        let between = libc::clone(make_manager, stack, libc::CLONE_VM | libc::CLONE_VFORK, start);
        if between < 0 {
            STATUS.store(last_error(), Ordering::Release);
        } else {
            libc::waitpid(between, null_mut(), libc::__WCLONE);
            if MANAGER.load(Ordering::Acquire) == 0 {
                // Killed itself, unless it has said why.
                let (unset, lost) = (0, libc::EIO);
                let order = Ordering::AcqRel;
                let _ = STATUS.compare_exchange(unset, lost, order, Ordering::Acquire);
            }
        }
    }
    null_mut()
}

extern "C" fn make_manager(start: *mut c_void) -> c_int {
    // SAFETY: as above.
    unsafe {
        let stack = top((*start.cast::<Start>()).stacks.manager, STACK);
        match libc::clone(run, stack, libc::CLONE_VM, start) {
            -1 => STATUS.store(last_error(), Ordering::Release),
            manager => MANAGER.store(manager, Ordering::Release),
        }
    }
    0
}

fn last_error() -> i32 {
    Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// The manager.
extern "C" fn run(start: *mut c_void) -> c_int {
    // SAFETY: a box of this type, which is this process's from here on.
    let Start { parts, .. } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    let Parts { manager, owner, shared, block, launcher, theirs, posts } = parts;
    // Its thread-local memory is the thread's, until that has ended.
    let thread = THREAD.load(Ordering::Acquire);
    // SAFETY: system calls that take numbers, a set of signals, and names that end in zero.
    unsafe {
        let all = u64::MAX;
        let none = null_mut::<u64>();
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, none, 8);
        while libc::syscall(libc::SYS_tgkill, owner.pid(), thread, 0) == 0 {
            pause(10_000);
        }
        // What is sent to the program's group or terminal is not for this process, and neither are its
        // folder and its core files.
        libc::setsid();
        libc::chdir(c"/".as_ptr());
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::prctl(libc::PR_SET_NAME, c"nearfar-manage".as_ptr());
        // A page that comes in 25 us is not to be waited for for 50 more.
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
    }
    close_all(&theirs);
    // The launcher takes back the block of a program that was killed before this.
    if !block.take(owner.pid(), std::process::id()) {
        exit(1);
    }
    let keeper = match keeper::start(shared, block, launcher) {
        Ok(keeper) => keeper,
        Err(error) => {
            STATUS.store(error.raw_os_error().unwrap_or(libc::EIO), Ordering::Release);
            exit(1);
        }
    };
    for (stack, post) in posts {
        let flags = libc::CLONE_VM
            | libc::CLONE_FS
            | libc::CLONE_FILES
            | libc::CLONE_SIGHAND
            | libc::CLONE_THREAD
            | libc::CLONE_SYSVSEM;
        let post = Box::into_raw(Box::new(post)).cast();
        // SAFETY: a stack that is nobody else's. The thread has this one's thread-local memory, which it does
        // not use.
        if unsafe { libc::clone(stand_in, top(stack, STAND_IN_STACK), flags, post) } < 0 {
            STATUS.store(last_error(), Ordering::Release);
            keeper.release();
            exit(1);
        }
    }
    std::panic::set_hook(Box::new(move |panic| {
        block.fail(&format!("its manager has failed: {panic}").replace('\n', " "));
        exit(101);
    }));
    // Never dropped: zstd would free memory of the program's allocator, which nobody may use any more.
    let mut manager = ManuallyDrop::new(manager);
    manage::publish(&manager, block);
    if !block.change_state(State::Held, State::Running) {
        keeper.release();
        exit(1);
    }
    STATUS.store(RUNS, Ordering::Release);
    let done = manage::manage(&mut manager, owner, block);
    match &done {
        Ok(()) => {
            keeper.release();
            block.set_state(State::Ended);
        }
        Err(why) => block.fail(why),
    }
    exit(done.is_err().into())
}

/// End this process with all its threads, which a return would not, and without more.
fn exit(code: c_int) -> ! {
    // SAFETY: ends this process; the keeper holds what children wait at.
    unsafe { libc::_exit(code) }
}

/// Close the program's descriptors; 0 to 2 are nowhere.
fn close_all(theirs: &[RawFd]) {
    // SAFETY: descriptors of this process's own table.
    unsafe {
        for fd in theirs {
            libc::close(*fd);
        }
        let Ok(nowhere) = File::options().read(true).write(true).open("/dev/null") else { return };
        for fd in 0..3 {
            if libc::fcntl(fd, libc::F_GETFD) < 0 {
                libc::dup2(nowhere.as_raw_fd(), fd);
            }
        }
        if nowhere.as_raw_fd() < 3 {
            std::mem::forget(nowhere);
        }
    }
}

extern "C" fn stand_in(post: *mut c_void) -> c_int {
    // SAFETY: made by `run` of a box of this type, for this thread.
    let post = *unsafe { Box::from_raw(post.cast::<Post>()) };
    post.take()
}
