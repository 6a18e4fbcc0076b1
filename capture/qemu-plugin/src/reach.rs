// SPDX-License-Identifier: GPL-2.0-or-later
//! What the next program of this process needs to be recorded as well: the shared memory, the plugin,
//! QEMU and its libraries.
//!
//! The first two are opened when they are needed, and the next program has them by descriptor. One
//! that gives up its user, its root or its capabilities may not be able to open them any more: from
//! just before that they are held, with numbers that programs seldom come to.

use std::ffi::CString;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use crate::{recorder, syscall};

/// Which file something is: device and inode.
type Identity = (u64, u64);

/// A file that is handed on.
struct File {
    path: CString,
    /// For `open`.
    access: i32,
    identity: Identity,
    /// Descriptor that is held; -1 for none.
    held: AtomicI32,
}

struct Needs {
    memory: File,
    plugin: File,
    /// Further arguments of the plugin.
    more: String,
}

static NEEDS: OnceLock<Needs> = OnceLock::new();
/// QEMU and its libraries.
static IMAGE: OnceLock<Vec<(PathBuf, Identity)>> = OnceLock::new();

/// Descriptors are held from here on, or from a little below the limit.
const HIGH: u64 = 1020;
/// Numbers left for them below the limit.
const ROOM: u64 = 8;

/// Note what is needed: paths of the shared memory and the plugin, with the descriptors of them that
/// the program before this one has handed on (else -1), and `more` arguments. Answers the memory.
pub fn install(memory: (&str, i32), plugin: (&str, i32), more: String) -> io::Result<OwnedFd> {
    let file = |(path, held): (&str, i32), access| -> io::Result<File> {
        let path = CString::new(path)?;
        let fd = if held < 0 { open(&path, access)? } else { held };
        let identity = identity(fd);
        if held < 0 {
            close(fd);
        } else {
            // SAFETY: changes a descriptor that is ours.
            unsafe { libc::fcntl(held, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
        Ok(File { path, access, identity: identity?, held: AtomicI32::new(held) })
    };
    let (memory, plugin) = (file(memory, libc::O_RDWR)?, file(plugin, libc::O_RDONLY)?);
    let fd = memory.open()?;
    let _ = NEEDS.set(Needs { memory, plugin, more });
    release();
    // SAFETY: just opened, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Note of which files QEMU was made; the plugin is one of them.
pub fn image(files: impl Iterator<Item = String>) {
    let plugin = NEEDS.get().map(|needs| needs.plugin.identity);
    let files = files.filter_map(|path| Some((PathBuf::from(&path), of(path.as_ref())?)));
    let _ = IMAGE.set(files.filter(|(_, identity)| Some(*identity) != plugin).collect());
}

/// The program is about to change what it may open: hold what is needed.
pub fn hold() {
    let Some(needs) = NEEDS.get() else { return };
    for file in [&needs.memory, &needs.plugin] {
        if !file.is_held()
            && let Ok(fd) = file.path_opens()
        {
            let high = raise(fd, libc::F_DUPFD_CLOEXEC);
            close(fd);
            file.held.store(high.unwrap_or(-1), Relaxed);
        }
    }
}

/// Hold no more what can be opened, by the next program as well.
pub fn release() {
    let Some(needs) = NEEDS.get() else { return };
    let _unprivileged = Unprivileged::new();
    let files = [&needs.memory, &needs.plugin];
    let opened = files.map(File::path_opens);
    opened.iter().flatten().for_each(|fd| close(*fd));
    if opened.iter().all(Result::is_ok) {
        files.iter().filter(|file| file.is_held()).for_each(|file| {
            close(file.held.swap(-1, Relaxed));
        });
    }
}

/// While it lasts, the calling thread has no capabilities, as a program of a user other than root
/// begins: what can be opened now, it can open, too.
pub struct Unprivileged(Option<[u32; 6]>);

/// `struct __user_cap_header_struct` of the calling thread, for the capabilities of 64 bits.
const CAPABILITIES: [u32; 2] = [0x2008_0522, 0];

impl Unprivileged {
    pub fn new() -> Self {
        // Effective, permitted and inheritable, 32 at a time.
        let mut sets = [0; 6];
        // SAFETY: writes so many words; the other only asks.
        let some = unsafe {
            libc::geteuid() != 0
                && libc::syscall(libc::SYS_capget, &CAPABILITIES, sets.as_mut_ptr()) == 0
        };
        if !some || (sets[0], sets[3]) == (0, 0) {
            return Self(None);
        }
        Self::set([0, sets[1], sets[2], 0, sets[4], sets[5]]);
        Self(Some(sets))
    }

    fn set(sets: [u32; 6]) {
        // SAFETY: reads so many words; what is permitted can be had again.
        unsafe { libc::syscall(libc::SYS_capset, &CAPABILITIES, sets.as_ptr()) };
    }
}

impl Drop for Unprivileged {
    fn drop(&mut self) {
        if let Some(sets) = self.0 {
            Self::set(sets);
        }
    }
}

/// What is handed on to the next program; closed when it is dropped.
pub struct Handed {
    /// Of the plugin and the shared memory.
    descriptors: [i32; 2],
    /// The option of QEMU that loads the plugin.
    pub option: String,
}

impl Drop for Handed {
    fn drop(&mut self) {
        self.descriptors.iter().for_each(|fd| close(*fd));
    }
}

/// Make ready what the next program needs; `None` where it is out of reach.
pub fn hand_on() -> Option<Handed> {
    let needs = NEEDS.get()?;
    let same = |(path, identity): &(PathBuf, Identity)| of(path) == Some(*identity);
    if !IMAGE.get()?.iter().all(same) {
        return None;
    }
    let mut handed = Handed { descriptors: [-1; 2], option: String::new() };
    for (file, to) in [&needs.plugin, &needs.memory].into_iter().zip(&mut handed.descriptors) {
        let fd = file.open().ok()?;
        let high = raise(fd, libc::F_DUPFD);
        close(fd);
        *to = high?;
    }
    let [plugin, memory] = handed.descriptors;
    let text = |file: &File| file.path.to_string_lossy().replace(',', ",,");
    let from = format!("/proc/self/fd/{plugin}");
    handed.option = format!(
        "{from},plugin={},shm={},descriptors={plugin}:{memory},process={}{}",
        text(&needs.plugin),
        text(&needs.memory),
        recorder::process(),
        needs.more
    );
    // QEMU opens the plugin by this name.
    close(open(&CString::new(from).ok()?, libc::O_RDONLY).ok()?);
    Some(handed)
}

impl File {
    fn is_held(&self) -> bool {
        let held = self.held.load(Relaxed);
        // The program can have closed it, and opened something else.
        held >= 0 && identity(held).is_ok_and(|identity| identity == self.identity)
    }

    /// Open it where its path leads.
    fn path_opens(&self) -> io::Result<i32> {
        let fd = open(&self.path, self.access)?;
        if identity(fd).is_ok_and(|identity| identity == self.identity) {
            return Ok(fd);
        }
        close(fd);
        Err(io::ErrorKind::NotFound.into())
    }

    /// A new descriptor of it.
    fn open(&self) -> io::Result<i32> {
        if !self.is_held() {
            return self.path_opens();
        }
        // SAFETY: makes a descriptor.
        answer(unsafe { libc::fcntl(self.held.load(Relaxed), libc::F_DUPFD_CLOEXEC, 0) })
    }
}

/// Duplicate a descriptor, by this command of `fcntl`, to a high number.
fn raise(fd: i32, command: i32) -> Option<i32> {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: writes an `rlimit`, all of it when it succeeds.
    let most = unsafe {
        match libc::getrlimit(libc::RLIMIT_NOFILE, limit.as_mut_ptr()) {
            0 => limit.assume_init().rlim_cur,
            _ => 0,
        }
    };
    let from = [HIGH.min(most.saturating_sub(ROOM)), 3];
    // SAFETY: makes a descriptor.
    from.iter().map(|from| unsafe { libc::fcntl(fd, command, *from) }).find(|high| *high >= 0)
}

fn open(path: &CString, access: i32) -> io::Result<i32> {
    // SAFETY: a C string.
    answer(unsafe { libc::open(path.as_ptr(), access | libc::O_CLOEXEC) })
}

fn answer(fd: i32) -> io::Result<i32> {
    if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(fd) }
}

fn close(fd: i32) {
    // SAFETY: a descriptor of ours, or none.
    unsafe { libc::close(fd) };
}

fn identity(fd: i32) -> io::Result<Identity> {
    let stat = syscall::status(fd).ok_or_else(io::Error::last_os_error)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Which file there is at a path, if this process may read it.
fn of(path: &Path) -> Option<Identity> {
    let meta = fs::File::open(path).and_then(|file| file.metadata()).ok()?;
    Some((meta.dev(), meta.ino()))
}
