//! Finds and kills the processes of a run: those of the program, their managers (which serve page faults) and
//! keepers (which hold the userfaultfds open if a manager is killed).
//!
//! Every process that was forked from a managed one maps the run's shared file, so orphans are found too.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::RawDir;

use crate::linux::MapsLine;
use crate::shared::{Block, NAME, NOBODY, Shared};

/// Time between two checks of killed processes, and how long they may take to end.
const POLL: Duration = Duration::from_millis(1);
const TIMEOUT: Duration = Duration::from_secs(5);

/// Kill every process of a run except the caller, the launcher and `root` (`u32::MAX`: none): the descendants
/// of `root`, and those that map the run's file.
///
/// The order guarantees that no process reads a wrong byte. Managers are stopped first: a managed process
/// cannot complete a fork until its manager has read userfaultfd's message about it. Otherwise a process that
/// forks and ends after the list of processes was made would leave an unlisted child. A message that was read
/// just before the stop still allows one such fork, so the list must be empty twice. Managers and keepers are
/// killed last: while one of them holds a userfaultfd, a reference to a missing page waits.
pub fn kill(shared: &Shared, root: u32) {
    let find = || {
        let mut pids = descendants(root);
        pids.extend(users_of(shared.inode()));
        without_servers(shared, &mut pids);
        pids.retain(|pid| *pid != root && is_alive(*pid));
        pids
    };
    let end = Instant::now() + TIMEOUT;
    let wait_until_none = |pids: &[u32], holds: fn(u32) -> bool| {
        while pids.iter().any(|pid| holds(*pid)) && Instant::now() < end {
            thread::sleep(POLL);
        }
    };
    let mut stopped: Vec<u32> = Vec::new();
    let mut empty_lists = 0;
    while empty_lists < 2 && Instant::now() < end {
        let mut managers = servers(shared, |block| &block.manager);
        managers.retain(|pid| !stopped.contains(pid));
        managers.iter().for_each(|pid| signal(*pid, libc::SIGSTOP));
        wait_until_none(&managers, is_running);
        let program = find();
        // Stop all before killing any, because unmanaged processes may fork.
        program.iter().for_each(|pid| signal(*pid, libc::SIGSTOP));
        program.iter().for_each(|pid| signal(*pid, libc::SIGKILL));
        wait_until_none(&program, is_alive);
        let is_quiet = managers.is_empty() && program.is_empty();
        empty_lists = if is_quiet { empty_lists + 1 } else { 0 };
        stopped.extend(managers);
    }
    let this_pid = std::process::id();
    stopped
        .into_iter()
        .chain(servers(shared, |block| &block.keeper))
        .filter(|pid| *pid != this_pid)
        .for_each(|pid| signal(pid, libc::SIGKILL));
}

/// The PIDs of the managers or of the keepers, whichever `of` selects.
fn servers(shared: &Shared, of: fn(&Block) -> &AtomicU32) -> Vec<u32> {
    let pids = shared.claimed().map(|(_, _, block)| of(block).load(Ordering::Acquire));
    pids.filter(|pid| ![0, NOBODY].contains(pid)).collect()
}

/// The processes of the program that map the run's file.
pub fn program(shared: &Shared) -> Vec<u32> {
    let mut pids = users_of(shared.inode()).collect();
    without_servers(shared, &mut pids);
    pids
}

/// Remove the caller, the launcher, managers and keepers from `pids`. Managers are listed after `pids`, so
/// that one which started meanwhile is not taken for a process of the program.
fn without_servers(shared: &Shared, pids: &mut Vec<u32>) {
    let spared = [std::process::id(), shared.head().launcher.load(Ordering::Relaxed)];
    let [managers, keepers] =
        [servers(shared, |block| &block.manager), servers(shared, |block| &block.keeper)];
    pids.retain(|pid| [&spared[..], &managers, &keepers].iter().all(|list| !list.contains(pid)));
}

fn signal(pid: u32, number: i32) {
    // SAFETY: a system call that takes numbers.
    unsafe { libc::kill(pid as i32, number) };
}

/// The fields of `stat` after the name (state, parent's PID, ...), of the process or thread with this folder
/// in `/proc`.
pub(crate) fn stat(folder: &str) -> Option<String> {
    let text = fs::read(format!("{folder}/stat")).ok()?;
    // The name may contain any bytes.
    Some(String::from_utf8_lossy(&text).rsplit_once(") ")?.1.to_owned())
}

/// Whether a process has a thread that has not ended. Its main thread may have ended before others.
pub fn is_alive(pid: u32) -> bool {
    let runs = |folder: &str| stat(folder).is_some_and(|words| !words.starts_with(['Z', 'X']));
    let tasks = format!("/proc/{pid}/task");
    runs(&format!("/proc/{pid}")) || numbers(&tasks).any(|task| runs(&format!("{tasks}/{task}")))
}

/// Whether a process has neither stopped nor ended.
fn is_running(pid: u32) -> bool {
    stat(&format!("/proc/{pid}")).is_some_and(|words| !words.starts_with(['T', 't', 'Z', 'X']))
}

/// Whether `holds` is true for a name in the folder that is a number. `None` if the folder cannot be read.
/// Unlike `read_dir`, it does not use libc's allocator, which belongs to the program: the program may have
/// ended, or may have held the allocator's lock when the keeper was created.
pub(crate) fn any_number(folder: &str, mut holds: impl FnMut(u32) -> bool) -> Option<bool> {
    let folder = File::open(folder).ok()?;
    let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
    let mut entries = RawDir::new(folder.as_fd(), &mut buffer);
    while let Some(entry) = entries.next() {
        let name = entry.ok()?.file_name().to_str().ok().and_then(|name| name.parse().ok());
        if name.is_some_and(&mut holds) {
            return Some(true);
        }
    }
    Some(false)
}

/// The names in a folder that are numbers, as far as the folder can be read.
fn numbers(folder: &str) -> impl Iterator<Item = u32> + use<> {
    let mut numbers = Vec::new();
    any_number(folder, |number| {
        numbers.push(number);
        false
    });
    numbers.into_iter()
}

/// The processes that map the run's file with `MAP_SHARED`. Viewers use `MAP_PRIVATE`.
fn users_of(inode: u64) -> impl Iterator<Item = u32> {
    numbers("/proc").filter(move |pid| {
        let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
        MapsLine::all(&maps)
            .any(|line| line.rights[3] == b's' && line.inode == inode && line.name == NAME)
    })
}

/// `root` and its descendants, parents first.
pub(crate) fn descendants(root: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for pid in numbers("/proc") {
        let parent =
            stat(&format!("/proc/{pid}")).and_then(|words| words.split(' ').nth(1)?.parse().ok());
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
    use std::process::Command;
    use std::sync::Mutex;

    use super::*;

    /// A forked child maps the files of other tests too, so only one test kills at a time.
    static KILLS: Mutex<()> = Mutex::new(());

    #[test]
    fn all_descendants_are_killed() {
        let _alone = KILLS.lock().unwrap();
        let (shared, _file) = Shared::create().unwrap();
        // The name of a process need not be UTF-8.
        let script = r"(printf '\377' >/proc/self/comm; sleep 100; :) & wait";
        let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let mut family = descendants(child.id());
        while family.len() < 3 {
            thread::yield_now();
            family = descendants(child.id());
        }
        assert_eq!(family[0], child.id());
        kill(&shared, child.id());
        assert!(!is_alive(family[1]));
        child.wait().unwrap();
        assert!(!family.iter().any(|pid| is_alive(*pid)));
    }

    #[test]
    fn an_orphan_is_found_by_the_file_and_a_viewer_is_not() {
        let _alone = KILLS.lock().unwrap();
        let (shared, file) = Shared::create().unwrap();
        let _watched = Shared::map_to_read(&file).unwrap();
        // SAFETY: a fork whose child makes an orphan and ends; both only make system calls.
        let parent = unsafe {
            let parent = libc::fork();
            if parent == 0 {
                if libc::fork() == 0 {
                    libc::pause();
                }
                libc::_exit(0);
            }
            libc::waitpid(parent, std::ptr::null_mut(), 0);
            parent
        };
        assert!(parent > 0);
        let others = || users_of(shared.inode()).filter(|pid| *pid != std::process::id());
        let orphans: Vec<u32> = others().collect();
        assert_eq!(orphans.len(), 1, "{orphans:?}");
        kill(&shared, u32::MAX);
        assert!(!is_alive(orphans[0]) && others().next().is_none());
    }
}
