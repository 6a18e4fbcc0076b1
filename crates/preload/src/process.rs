//! The manager serves the program's page faults, from a separate process that shares the program's memory.
//!
//! A thread of the program would end with the program, and close the userfaultfds of children that still
//! lack pages: the children would read zeros. So the manager is created with `CLONE_VM` and without
//! `CLONE_THREAD`: a process with the program's address space, but its own descriptors, signals, limits,
//! credentials and session. It survives exit, kill and exec of the program, and adds no thread to it.
//!
//! libc cannot create such a process. The process needs thread-local memory, which only `pthread_create`
//! allocates. So a thread creates the process and ends, but is never joined: libc does not free its
//! thread-local memory, which the process uses.

use std::fs::File;
use std::io::Error;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use libc::{c_int, c_void};
use nearfar_live::Manager;
use nearfar_live::linux::{Linux, Owner, StandInThread, block_all_signals};
use nearfar_live::shared::{Block, Shared, State};

use crate::{keeper, manage, pause};

/// Bytes of the stacks of the manager and of the thread that starts it.
const STACK: usize = 1 << 20;
/// Bytes of the stack of the intermediate process, which creates the manager.
const SMALL_STACK: usize = 1 << 14;
/// Bytes of the stack of a stand-in: a thread that keeps a processor busy while another waits for a page.
pub(crate) const STAND_IN_STACK: usize = 1 << 15;

/// The state with which the manager starts.
pub(crate) struct Parts {
    pub(crate) stacks: Stacks,
    pub(crate) manager: Manager<Linux>,
    pub(crate) owner: Owner,
    pub(crate) shared: &'static Shared,
    /// The part of `shared` for this process image.
    pub(crate) block: &'static Block,
    /// The PID of the launcher (`nearfar run`), and its eventfd.
    pub(crate) launcher: (u32, u32),
    /// The program's descriptors, which the manager must close.
    pub(crate) program_fds: Vec<RawFd>,
    /// Stand-ins to start, each with its stack.
    pub(crate) stand_ins: Vec<(*mut c_void, StandInThread)>,
}

pub(crate) struct Stacks {
    thread: *mut c_void,
    intermediate: *mut c_void,
    manager: *mut c_void,
}

impl Stacks {
    pub(crate) fn new() -> Result<Self, String> {
        let (thread, intermediate, manager) = (stack(STACK)?, stack(SMALL_STACK)?, stack(STACK)?);
        Ok(Self { thread, intermediate, manager })
    }
}

/// Allocate a stack with all pages present.
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

/// The progress of the start: 0, then an error number or [`RUNNING`].
static STATUS: AtomicI32 = AtomicI32::new(0);
const RUNNING: i32 = -1;
/// The IDs of the thread that creates the manager, and of the manager.
static THREAD: AtomicU32 = AtomicU32::new(0);
static MANAGER: AtomicI32 = AtomicI32::new(0);

/// Start the manager. It runs when this returns.
pub(crate) fn start(parts: Parts) -> Result<(), String> {
    let failed = start_thread(parts.stacks.thread, Box::into_raw(Box::new(parts)));
    if failed != 0 {
        return Err(format!("starting a thread: {}", Error::from_raw_os_error(failed)));
    }
    loop {
        let manager = MANAGER.load(Ordering::Acquire);
        // SAFETY: sends no signal, only checks whether the process exists.
        let is_gone = manager > 0 && unsafe { libc::kill(manager, 0) } < 0;
        match STATUS.load(Ordering::Acquire) {
            0 if is_gone => return Err("its manager was killed".into()),
            0 => pause(20_000),
            RUNNING => return Ok(()),
            number => {
                let error = Error::from_raw_os_error(number);
                return Err(format!("starting the manager: {error}"));
            }
        }
    }
}

/// Start the thread with all signals blocked, as the processes that it creates inherit the mask.
fn start_thread(stack: *mut c_void, parts: *mut Parts) -> c_int {
    // SAFETY: variables of this function, written before they are read; nothing else uses the stack, and the
    // thread owns `parts`.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let (mut attributes, mut thread) = (std::mem::zeroed(), std::mem::zeroed());
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setstack(&raw mut attributes, stack, STACK);
        let id = &raw mut thread;
        let failed = libc::pthread_create(id, &raw const attributes, thread_main, parts.cast());
        libc::pthread_attr_destroy(&raw mut attributes);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut());
        failed
    }
}

/// Create the manager through another process, so that it is no child of the program.
extern "C" fn thread_main(parts: *mut c_void) -> *mut c_void {
    // SAFETY: from `start`, for this thread; system calls, and a stack that nothing else uses.
    unsafe {
        THREAD.store(libc::gettid() as u32, Ordering::Release);
        let stack = top((*parts.cast::<Parts>()).stacks.intermediate, SMALL_STACK);
        // Without an exit signal, which the program would notice.
        let flags = libc::CLONE_VM | libc::CLONE_VFORK;
        let intermediate = libc::clone(intermediate_main, stack, flags, parts);
        if intermediate < 0 {
            STATUS.store(last_error(), Ordering::Release);
        } else {
            libc::waitpid(intermediate, null_mut(), libc::__WCLONE);
            if MANAGER.load(Ordering::Acquire) == 0 {
                // The intermediate process was killed, unless it has set an error.
                let order = (Ordering::AcqRel, Ordering::Acquire);
                let _ = STATUS.compare_exchange(0, libc::EIO, order.0, order.1);
            }
        }
    }
    null_mut()
}

extern "C" fn intermediate_main(parts: *mut c_void) -> c_int {
    // SAFETY: as above.
    unsafe {
        let stack = top((*parts.cast::<Parts>()).stacks.manager, STACK);
        match libc::clone(manager_main, stack, libc::CLONE_VM, parts) {
            -1 => STATUS.store(last_error(), Ordering::Release),
            manager => MANAGER.store(manager, Ordering::Release),
        }
    }
    0
}

fn last_error() -> i32 {
    Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

extern "C" fn manager_main(parts: *mut c_void) -> c_int {
    // SAFETY: a box of this type, which this process owns.
    let parts = *unsafe { Box::from_raw(parts.cast::<Parts>()) };
    let Parts { manager, owner, shared, block, launcher, program_fds, stand_ins, .. } = parts;
    // This process uses the thread's thread-local memory, so it waits until the thread has ended.
    let thread = THREAD.load(Ordering::Acquire);
    block_all_signals();
    // SAFETY: system calls that take numbers, and names that end in zero.
    unsafe {
        while libc::syscall(libc::SYS_tgkill, owner.pid(), thread, 0) == 0 {
            pause(10_000);
        }
        // Signals to the program's group or terminal, its folder and its core files are not for this process.
        libc::setsid();
        libc::chdir(c"/".as_ptr());
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::prctl(libc::PR_SET_NAME, c"nearfar-manage".as_ptr());
        // The default slack of 50 us would delay pages that arrive in 25 us.
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
    }
    close_all(&program_fds);
    // Fails if the program was killed: the launcher has freed its block.
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
    for (stack, thread) in stand_ins {
        let flags = libc::CLONE_VM
            | libc::CLONE_FS
            | libc::CLONE_FILES
            | libc::CLONE_SIGHAND
            | libc::CLONE_THREAD
            | libc::CLONE_SYSVSEM;
        let thread = Box::into_raw(Box::new(thread)).cast();
        // SAFETY: a stack that nothing else uses. The thread shares this one's thread-local memory, but does
        // not use it.
        if unsafe { libc::clone(stand_in_main, top(stack, STAND_IN_STACK), flags, thread) } < 0 {
            STATUS.store(last_error(), Ordering::Release);
            keeper.release();
            exit(1);
        }
    }
    std::panic::set_hook(Box::new(move |panic| {
        block.fail(&format!("its manager has failed: {panic}").replace('\n', " "));
        exit(101);
    }));
    // Never dropped: zstd would free memory with the program's allocator, which is unusable by then.
    let mut manager = ManuallyDrop::new(manager);
    manage::publish(&manager, block);
    if !block.change_state(State::Held, State::Running) {
        keeper.release();
        exit(1);
    }
    STATUS.store(RUNNING, Ordering::Release);
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

/// End this process with all its threads and without cleanup. A return would end only this thread.
fn exit(code: c_int) -> ! {
    // SAFETY: ends this process; the keeper holds the userfaultfds of children.
    unsafe { libc::_exit(code) }
}

/// Close the program's descriptors, and open `/dev/null` as 0 to 2.
fn close_all(program_fds: &[RawFd]) {
    // SAFETY: descriptors of this process's table.
    unsafe {
        for fd in program_fds {
            libc::close(*fd);
        }
        let Ok(null) = File::options().read(true).write(true).open("/dev/null") else { return };
        for fd in 0..3 {
            if libc::fcntl(fd, libc::F_GETFD) < 0 {
                libc::dup2(null.as_raw_fd(), fd);
            }
        }
        if null.as_raw_fd() < 3 {
            std::mem::forget(null);
        }
    }
}

extern "C" fn stand_in_main(thread: *mut c_void) -> c_int {
    // SAFETY: a box of this type from `manager_main`, which this thread owns.
    let thread = *unsafe { Box::from_raw(thread.cast::<StandInThread>()) };
    thread.run()
}
