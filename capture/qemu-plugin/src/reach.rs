// SPDX-License-Identifier: GPL-2.0-or-later
//! Keeps accessible the files that recording needs after an `execve`: the shared memory, the plugin,
//! QEMU and its libraries.
//!
//! The next program inherits descriptors of the shared memory and the plugin, opened at the `execve`.
//! After a program has changed its user, root directory or capabilities, it may be unable to open
//! these files. Before the change, descriptors are therefore opened and held, at high numbers, which
//! programs seldom use.

use std::ffi::CString;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use crate::{recorder, syscall};

/// Device and inode.
type Identity = (u64, u64);

/// A file to pass to the next program.
struct File {
    path: CString,
    /// Access mode for `open`.
    access: i32,
    identity: Identity,
    /// The descriptor held, or -1.
    held: AtomicI32,
}

struct Resources {
    memory: File,
    plugin: File,
    /// Further arguments of the plugin, each after a comma.
    arguments: String,
}

static RESOURCES: OnceLock<Resources> = OnceLock::new();
/// QEMU and its libraries.
static IMAGE: OnceLock<Vec<(PathBuf, Identity)>> = OnceLock::new();

/// Held descriptors start at this number, or `ROOM` below the limit of descriptors if that is less.
const HIGH: u64 = 1020;
/// Distance of the held descriptors from a limit of descriptors below `HIGH + ROOM`.
const ROOM: u64 = 8;

/// Store paths and descriptors of the shared memory and the plugin (-1 unless the previous program
/// passed them on), and further `arguments`. Returns a descriptor of the shared memory.
pub fn install(memory: (&str, i32), plugin: (&str, i32), arguments: String) -> io::Result<OwnedFd> {
    let file = |(path, held): (&str, i32), access| -> io::Result<File> {
        let path = CString::new(path)?;
        let identity = if held < 0 {
            identity(open(&path, access)?.as_raw_fd())?
        } else {
            // SAFETY: changes a descriptor of ours.
            unsafe { libc::fcntl(held, libc::F_SETFD, libc::FD_CLOEXEC) };
            identity(held)?
        };
        Ok(File { path, access, identity, held: AtomicI32::new(held) })
    };
    let (memory, plugin) = (file(memory, libc::O_RDWR)?, file(plugin, libc::O_RDONLY)?);
    let fd = memory.open()?;
    let _ = RESOURCES.set(Resources { memory, plugin, arguments });
    release_descriptors();
    Ok(fd)
}

/// Store the files of QEMU's code, except the plugin.
pub fn set_image(files: impl Iterator<Item = String>) {
    let plugin = RESOURCES.get().map(|resources| resources.plugin.identity);
    let files = files.filter_map(|p| Some((PathBuf::from(&p), identity_of_path(p.as_ref())?)));
    let _ = IMAGE.set(files.filter(|(_, identity)| Some(*identity) != plugin).collect());
}

/// Hold descriptors, before the program changes which files it may open.
pub fn hold_descriptors() {
    let Some(resources) = RESOURCES.get() else { return };
    for file in [&resources.memory, &resources.plugin] {
        if !file.is_held()
            && let Ok(fd) = file.open_path()
        {
            let high = duplicate_high(&fd, libc::F_DUPFD_CLOEXEC);
            file.held.store(high.map_or(-1, OwnedFd::into_raw_fd), Relaxed);
        }
    }
}

/// Release the held descriptors if the next program can open the files by their paths.
pub fn release_descriptors() {
    let Some(resources) = RESOURCES.get() else { return };
    let _unprivileged = Unprivileged::new();
    let files = [&resources.memory, &resources.plugin];
    if files.map(File::open_path).iter().all(Result::is_ok) {
        for file in files.into_iter().filter(|file| file.is_held()) {
            // SAFETY: a descriptor of ours.
            unsafe { libc::close(file.held.swap(-1, Relaxed)) };
        }
    }
}

/// Clears the effective capabilities of the calling thread until dropped, so that it can open only
/// what the next program can: unless the user is root, a program usually starts without capabilities.
pub struct Unprivileged(Option<[u32; 6]>);

/// `struct __user_cap_header_struct` of the calling thread, version 3 (64-bit capabilities).
const CAPABILITY_HEADER: [u32; 2] = [0x2008_0522, 0];

impl Unprivileged {
    pub fn new() -> Self {
        // Effective, permitted and inheritable: the low 32 bits, then the high ones.
        let mut sets = [0; 6];
        // SAFETY: writes six words.
        let read = unsafe {
            libc::geteuid() != 0
                && libc::syscall(libc::SYS_capget, &CAPABILITY_HEADER, sets.as_mut_ptr()) == 0
        };
        if !read || (sets[0], sets[3]) == (0, 0) {
            return Self(None);
        }
        Self::set([0, sets[1], sets[2], 0, sets[4], sets[5]]);
        Self(Some(sets))
    }

    fn set(sets: [u32; 6]) {
        // SAFETY: reads six words. Permitted capabilities can be restored.
        unsafe { libc::syscall(libc::SYS_capset, &CAPABILITY_HEADER, sets.as_ptr()) };
    }
}

impl Drop for Unprivileged {
    fn drop(&mut self) {
        if let Some(sets) = self.0 {
            Self::set(sets);
        }
    }
}

/// What is passed to the next program.
pub struct Handover {
    /// Of plugin and shared memory, kept open until the `execve`.
    _descriptors: [OwnedFd; 2],
    /// The option of QEMU that loads the plugin.
    pub option: String,
}

/// Open the files that the next program needs; `None` if one is inaccessible or was replaced.
pub fn prepare_handover() -> Option<Handover> {
    let resources = RESOURCES.get()?;
    let same = |(path, identity): &(PathBuf, Identity)| identity_of_path(path) == Some(*identity);
    if !IMAGE.get()?.iter().all(same) {
        return None;
    }
    let high = |file: &File| duplicate_high(&file.open().ok()?, libc::F_DUPFD);
    let descriptors = [high(&resources.plugin)?, high(&resources.memory)?];
    let [plugin, memory] = descriptors.each_ref().map(AsRawFd::as_raw_fd);
    let text = |file: &File| file.path.to_string_lossy().replace(',', ",,");
    let from = format!("/proc/self/fd/{plugin}");
    let option = format!(
        "{from},plugin={},shm={},descriptors={plugin}:{memory},process={}{}",
        text(&resources.plugin),
        text(&resources.memory),
        recorder::process_id(),
        resources.arguments
    );
    // Test the path by which QEMU opens the plugin.
    open(&CString::new(from).ok()?, libc::O_RDONLY).ok()?;
    Some(Handover { _descriptors: descriptors, option })
}

impl File {
    fn is_held(&self) -> bool {
        let held = self.held.load(Relaxed);
        // The program may have closed it and opened another file.
        held >= 0 && identity(held).is_ok_and(|identity| identity == self.identity)
    }

    /// Open the file by its path; fails if the path now leads to another file.
    fn open_path(&self) -> io::Result<OwnedFd> {
        let fd = open(&self.path, self.access)?;
        if identity(fd.as_raw_fd()).is_ok_and(|identity| identity == self.identity) {
            return Ok(fd);
        }
        Err(io::ErrorKind::NotFound.into())
    }

    /// A new descriptor of the file: of the held one, or else by its path.
    fn open(&self) -> io::Result<OwnedFd> {
        if !self.is_held() {
            return self.open_path();
        }
        // SAFETY: only creates a descriptor.
        owned(unsafe { libc::fcntl(self.held.load(Relaxed), libc::F_DUPFD_CLOEXEC, 0) })
    }
}

/// Duplicate a descriptor to a high number, with a `command` of `fcntl`.
fn duplicate_high(fd: &OwnedFd, command: i32) -> Option<OwnedFd> {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: writes at most an `rlimit`, and all of it if it succeeds.
    let max = unsafe {
        match libc::getrlimit(libc::RLIMIT_NOFILE, limit.as_mut_ptr()) {
            0 => limit.assume_init().rlim_cur,
            _ => 0,
        }
    };
    let from = [HIGH.min(max.saturating_sub(ROOM)), 3];
    // SAFETY: only creates a descriptor.
    let duplicate = |from: u64| owned(unsafe { libc::fcntl(fd.as_raw_fd(), command, from) }).ok();
    from.into_iter().find_map(duplicate)
}

fn open(path: &CString, access: i32) -> io::Result<OwnedFd> {
    // SAFETY: a C string.
    owned(unsafe { libc::open(path.as_ptr(), access | libc::O_CLOEXEC) })
}

/// The result of a system call that returns a new descriptor.
fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and not shared.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn identity(fd: i32) -> io::Result<Identity> {
    let stat = syscall::fstat(fd).ok_or_else(io::Error::last_os_error)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// The file at a path, if this process may read it.
fn identity_of_path(path: &Path) -> Option<Identity> {
    let meta = fs::File::open(path).and_then(|file| file.metadata()).ok()?;
    Some((meta.dev(), meta.ino()))
}
