// SPDX-License-Identifier: GPL-2.0-or-later
//! Ends a program before a mapping for which QEMU's own tables would take too much memory.
//!
//! Before version 8.0, QEMU's user mode fills in an entry for each page of a mapping
//! (`page_set_flags` in `accel/tcg/translate-all.c`), even if the program only reserves addresses:
//! 6 GiB of memory for each TiB. The plugin's argument `entry=` is the size of an entry.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use crate::recorder::{self, Recorder};

/// Bytes of QEMU's tables for each mapped page; 0 if it has no such tables.
static ENTRY_BYTES: AtomicU64 = AtomicU64::new(0);
/// Start and end of the large mappings so far, whose entries QEMU keeps.
static LARGE: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());
/// Mappings below this are not checked.
const LARGE_BYTES: u64 = 1 << 30;

pub fn set_entry_bytes(bytes: u64) {
    ENTRY_BYTES.store(bytes, Relaxed);
}

/// Called before a range is mapped, at `addr` if that is not 0. Ends this process if QEMU's tables
/// for the range would take more than half of the memory that is available.
pub fn check(addr: u64, bytes: u64) {
    if bytes < LARGE_BYTES {
        return;
    }
    let within = |&(start, end): &(u64, u64)| start <= addr && addr.saturating_add(bytes) <= end;
    if LARGE.try_lock().is_ok_and(|large| large.iter().any(within)) {
        return;
    }
    let table = (bytes / 4096).saturating_mul(ENTRY_BYTES.load(Relaxed));
    if let Some(recorder) = Recorder::installed()
        && available().is_some_and(|available| table > available / 2)
    {
        recorder.header().reservation.store(bytes, SeqCst);
        recorder::end_process();
    }
}

/// Called after a range was mapped.
pub fn mapped(addr: u64, bytes: u64) {
    if bytes >= LARGE_BYTES
        && let Ok(mut large) = LARGE.try_lock()
    {
        large.push((addr, addr.saturating_add(bytes)));
    }
}

/// Bytes that this process can still allocate, by the machine's memory and the limits of its control
/// groups. Page cache counts as free.
fn available() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok()?;
    let machine = 1024 * value(&machine, "MemAvailable:")?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let groups = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_v1 = controllers.split(',').any(|name| name == "memory");
        (is_v1 || controllers.is_empty()).then_some((is_v1, path))
    });
    let left = groups.flat_map(|(is_v1, path)| {
        let ancestors = Path::new(path).ancestors();
        ancestors.filter_map(move |group| left_in_group(is_v1, group))
    });
    Some(left.fold(machine, u64::min))
}

/// Bytes left below the limit of a control group; `None` without a limit.
fn left_in_group(is_v1: bool, group: &Path) -> Option<u64> {
    let (root, limit, used, prefix) = match is_v1 {
        true => ("memory/", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        false => ("", "memory.max", "memory.current", ""),
    };
    let folder = Path::new("/sys/fs/cgroup").join(root).join(group.strip_prefix("/").ok()?);
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let (limit, used) = (number(limit)?, number(used)?);
    let stat = read("memory.stat").unwrap_or_default();
    let cache = ["inactive_file", "active_file"];
    let cache = cache.iter().filter_map(|name| value(&stat, &format!("{prefix}{name}")));
    Some(limit.saturating_sub(used.saturating_sub(cache.sum())))
}

/// The number after `name` at the beginning of a line.
fn value(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(char::is_whitespace));
    let (_, rest) = lines.find(|(first, _)| *first == name)?;
    rest.split_whitespace().next()?.parse().ok()
}
