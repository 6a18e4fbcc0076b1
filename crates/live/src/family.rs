//! All processes of a run, and how it is killed.
//!
//! Every process that was forked from a managed one has the run's shared file mapped, whoever its parent is by
//! now: so orphans are found as well.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::RawDir;

use crate::shared::{Block, NAME, NOBODY, Shared};

/// Time between two looks at processes that were killed, and how long they may take to end.
const LOOK: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(5);

/// Kill every process of a run but the caller and the launcher: those below `root`, and those that have its
/// file mapped. The root itself is spared.
///
/// The order keeps the promise that nobody reads what was never written. Managers are stopped first: a
/// process whose memory is managed cannot fork until its manager has read of it. Otherwise one that forks and
/// ends between the list of processes and the look at it would leave a child that nobody sees. A fork that its
/// manager has read of may still do that once, so nobody must be found twice. Managers and keepers are killed
/// last, as whoever touches a missing page waits while one of them holds a userfaultfd.
pub fn kill(shared: &Shared, root: u32) {
    let find = || {
        let mut found = descendants(root);
        found.extend(users_of(shared.inode()));
        without_servers(shared, &mut found);
        found.retain(|pid| *pid != root && is_alive(*pid));
        found
    };
    let end = Instant::now() + LONGEST;
    let wait_until_none = |pids: &[u32], holds: fn(u32) -> bool| {
        while pids.iter().any(|pid| holds(*pid)) && Instant::now() < end {
            thread::sleep(LOOK);
        }
    };
    let mut stopped: Vec<u32> = Vec::new();
    let mut found_nobody = 0;
    while found_nobody < 2 && Instant::now() < end {
        let mut managers = servers(shared, |block| &block.manager);
        managers.retain(|pid| !stopped.contains(pid));
        managers.iter().for_each(|pid| signal(*pid, libc::SIGSTOP));
        wait_until_none(&managers, is_running);
        let program = find();
        // Stopped before they are killed, as those that are not managed may fork.
        program.iter().for_each(|pid| signal(*pid, libc::SIGSTOP));
        program.iter().for_each(|pid| signal(*pid, libc::SIGKILL));
        wait_until_none(&program, is_alive);
        let is_quiet = managers.is_empty() && program.is_empty();
        found_nobody = if is_quiet { found_nobody + 1 } else { 0 };
        stopped.extend(managers);
    }
    let own = std::process::id();
    stopped
        .into_iter()
        .chain(servers(shared, |block| &block.keeper))
        .filter(|pid| *pid != own)
        .for_each(|pid| signal(pid, libc::SIGKILL));
}

/// The managers, or the keepers.
fn servers(shared: &Shared, of: fn(&Block) -> &AtomicU32) -> Vec<u32> {
    let pids = shared.claimed().map(|(_, _, block)| of(block).load(Ordering::Acquire));
    pids.filter(|pid| ![0, NOBODY].contains(pid)).collect()
}

/// The processes of the program that have the run's file mapped.
pub fn program(shared: &Shared) -> Vec<u32> {
    let mut found = users_of(shared.inode()).collect();
    without_servers(shared, &mut found);
    found
}

/// Leave out the caller, the launcher, managers and keepers. They are looked up after the others were found: a
/// program that has started meanwhile has a manager by then.
fn without_servers(shared: &Shared, found: &mut Vec<u32>) {
    let spared = [std::process::id(), shared.head().launcher.load(Ordering::Relaxed)];
    let [managers, keepers] =
        [servers(shared, |block| &block.manager), servers(shared, |block| &block.keeper)];
    found.retain(|pid| [&spared[..], &managers, &keepers].iter().all(|list| !list.contains(pid)));
}

fn signal(pid: u32, number: i32) {
    // SAFETY: a system call that takes numbers.
    unsafe { libc::kill(pid as i32, number) };
}

/// The words of a process's or thread's `stat` after the name.
pub(crate) fn stat(folder: &str) -> Option<String> {
    let text = fs::read_to_string(format!("{folder}/stat")).ok()?;
    Some(text.rsplit_once(") ")?.1.to_owned())
}

/// Whether a process is there and has not ended: its first thread may have ended before others.
pub fn is_alive(pid: u32) -> bool {
    let runs = |folder: &str| stat(folder).is_some_and(|words| !words.starts_with(['Z', 'X']));
    let tasks = format!("/proc/{pid}/task");
    runs(&format!("/proc/{pid}")) || numbers(&tasks).any(|task| runs(&format!("{tasks}/{task}")))
}

/// Whether a process has not stopped since it was sent SIGSTOP, and has not ended.
fn is_running(pid: u32) -> bool {
    stat(&format!("/proc/{pid}")).is_some_and(|words| !words.starts_with(['T', 't', 'Z', 'X']))
}

/// Whether this holds for any name in a folder that is a number; `None` if the folder cannot be read.
/// `read_dir` would take memory from libc: from a program that has ended, or whose lock somebody held when the
/// keeper was made.
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

/// The names in a folder that are numbers; fewer if it cannot be read to its end.
fn numbers(folder: &str) -> impl Iterator<Item = u32> + use<> {
    let mut found = Vec::new();
    any_number(folder, |number| {
        found.push(number);
        false
    });
    found.into_iter()
}

/// Those that have the run's file mapped to write to it; who only watches a run does not.
fn users_of(inode: u64) -> impl Iterator<Item = u32> {
    let inode = inode.to_string();
    numbers("/proc").filter(move |pid| {
        let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
        maps.split(|byte| *byte == b'\n').any(|line| {
            let Ok(line) = std::str::from_utf8(line) else { return false };
            line.ends_with(NAME) && {
                let mut words = line.split_ascii_whitespace().skip(1);
                words.next().is_some_and(|rights| rights.ends_with('s'))
                    && words.nth(2) == Some(inode.as_str())
            }
        })
    })
}

/// This process and all that come from it, parents first.
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

    /// A fork has what other tests have mapped, too: one kills at a time.
    static KILLS: Mutex<()> = Mutex::new(());

    #[test]
    fn all_that_come_from_a_process_are_killed() {
        let _alone = KILLS.lock().unwrap();
        let (shared, _file) = Shared::create().unwrap();
        let mut child = Command::new("sh").args(["-c", "sleep 100 & wait"]).spawn().unwrap();
        let mut family = descendants(child.id());
        while family.len() < 2 {
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
    fn an_orphan_is_found_by_the_file_and_who_watches_is_not() {
        let _alone = KILLS.lock().unwrap();
        let (shared, file) = Shared::create().unwrap();
        let _watched = Shared::map_to_read(&file).unwrap();
        // SAFETY: a fork whose child makes an orphan and ends; both only make system calls.
        let between = unsafe {
            let between = libc::fork();
            if between == 0 {
                if libc::fork() == 0 {
                    libc::pause();
                }
                libc::_exit(0);
            }
            libc::waitpid(between, std::ptr::null_mut(), 0);
            between
        };
        assert!(between > 0);
        let others = || users_of(shared.inode()).filter(|pid| *pid != std::process::id());
        let orphans: Vec<u32> = others().collect();
        assert_eq!(orphans.len(), 1, "{orphans:?}");
        kill(&shared, u32::MAX);
        assert!(!is_alive(orphans[0]) && others().next().is_none());
    }
}
