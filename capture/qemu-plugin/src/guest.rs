// SPDX-License-Identifier: GPL-2.0-or-later
//! The guest's memory as seen from inside QEMU: reads that cannot fault, and the initial mappings.

use std::ffi::CStr;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use qemu_plugin_sys as qemu;

use crate::layout::{SHARED, what};
use crate::recorder::Recorder;
use crate::stream::Stream;
use crate::syscall;

/// Host address of guest address 0. QEMU chooses 0 for ordinary programs.
static BASE: AtomicU64 = AtomicU64::new(0);
/// Ranges that QEMU had mapped before it loaded the guest.
static HOST: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

struct Range {
    start: u64,
    end: u64,
    /// Read 1, write 2, execute 4 (as for `mmap`), and [`SHARED`].
    prot: u64,
    offset: u64,
    device: u64,
    inode: u64,
    name: String,
}

/// Read `/proc/self/maps`: `START-END rwxp OFFSET MAJOR:MINOR INODE  PATH`.
fn host_mappings() -> Vec<Range> {
    let text = fs::read("/proc/self/maps").unwrap_or_default();
    let parse = |line: &str| -> Option<Range> {
        let (bounds, rest) = line.split_once(' ')?;
        let (start, end) = bounds.split_once('-')?;
        let mut fields = rest.splitn(5, ' ');
        let (prot, offset) = (fields.next()?.as_bytes(), fields.next()?);
        let (major, minor) = fields.next()?.split_once(':')?;
        let number = |text: &str| u32::from_str_radix(text, 16).ok();
        let inode = fields.next()?.parse().ok()?;
        let name = fields.next().unwrap_or("").trim().to_owned();
        let bit = |index: usize| u64::from(prot.get(index).is_some_and(|&c| c != b'-'));
        Some(Range {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            prot: bit(0)
                | bit(1) << 1
                | bit(2) << 2
                | if prot.get(3) == Some(&b's') { SHARED } else { 0 },
            device: libc::makedev(number(major)?, number(minor)?),
            inode,
            offset: u64::from_str_radix(offset, 16).ok()?,
            name,
        })
    };
    String::from_utf8_lossy(&text).lines().filter_map(parse).collect()
}

/// Note QEMU's own mappings, before it loads the guest. Returns the files of QEMU's code.
pub fn record_host_mappings() -> impl Iterator<Item = String> {
    let ranges = host_mappings();
    if let Ok(mut host) = HOST.lock() {
        *host = ranges.iter().map(|range| (range.start, range.end)).collect();
    }
    let code = ranges.into_iter().filter(|range| range.prot & 4 != 0);
    code.map(|range| range.name).filter(|name| name.starts_with('/'))
}

/// Path of the guest program.
pub fn program() -> String {
    // SAFETY: QEMU returns a string that the caller frees, or null.
    unsafe {
        let path = qemu::qemu_plugin_path_to_binary();
        if path.is_null() {
            return String::new();
        }
        let text = CStr::from_ptr(path).to_string_lossy().into_owned();
        libc::free(path.cast_mut().cast());
        fs::canonicalize(&text).map_or(text, |path| path.to_string_lossy().into_owned())
    }
}

/// Report the guest's mappings. To be called when guest code is first translated, before it runs.
pub fn report_mappings(stream: &mut Stream) {
    let program = program();
    // SAFETY: only returns a number.
    let code = unsafe { qemu::qemu_plugin_start_code() };
    let all = host_mappings();
    // If the program's text is not at its guest address `code`, the difference is the base.
    let at_code =
        |range: &&Range| range.name == program && (range.start..range.end).contains(&code);
    if !all.iter().any(|range| at_code(&range))
        && let Some(text) = all.iter().find(|range| range.name == program && range.prot & 4 != 0)
    {
        BASE.store(text.start.wrapping_sub(code & !0xfff), Relaxed);
    }
    let base = BASE.load(Relaxed);
    if let Some(recorder) = Recorder::installed() {
        recorder.header().base.store(base, Relaxed);
    }
    let host = HOST.lock().map(|host| host.clone()).unwrap_or_default();
    // QEMU places the guest below its own image; new ranges above the image are QEMU's.
    let qemu_path = fs::read_link("/proc/self/exe").unwrap_or_default();
    let ceiling = all
        .iter()
        .filter(|range| qemu_path.as_os_str() == range.name.as_str())
        .map(|range| range.start)
        .min()
        .unwrap_or(u64::MAX);
    let overlaps = |range: &Range| host.iter().any(|&(s, e)| range.start < e && s < range.end);
    let guest: Vec<&Range> = all
        .iter()
        .filter(|range| !overlaps(range) && (range.name == program || range.start < ceiling))
        .filter(|range| range.prot != 0)
        .collect();
    let stack = guest
        .iter()
        .filter(|range| range.name.is_empty() && range.prot & 2 != 0)
        .max_by_key(|range| range.end - range.start)
        .map(|range| range.start);
    // The events follow what other threads have recorded so far, and precede what they record later.
    stream.begin_fence();
    let mut before: Option<(u64, String)> = None;
    let mut heap = 0;
    for range in guest {
        let name = match &before {
            _ if !range.name.is_empty() => range.name.clone(),
            // A nameless range directly after a file's is its `.bss`.
            Some((end, name)) if *end == range.start => name.clone(),
            _ if stack == Some(range.start) => "[stack]".to_owned(),
            _ => String::new(),
        };
        // From `stat`, as in the other events: on an overlay file system, `maps` shows another
        // device.
        let (device, inode) = match range.inode {
            0 => (0, 0),
            inode => fs::metadata(&range.name)
                .map_or((range.device, inode), |meta| (meta.dev(), meta.ino())),
        };
        // QEMU maps code without execute permission, and together with adjacent data: split the
        // range at code segments.
        let bytes = range.end - range.start;
        let mut from = 0;
        let segments = code_segments(&range.name).unwrap_or_default();
        for (to, code) in split_at_code(&segments, range.offset, bytes) {
            let fixed = [
                what::MAP,
                (range.start + from).wrapping_sub(base),
                to - from,
                range.offset + from,
                range.prot | if code { 4 } else { 0 },
                device,
                inode,
            ];
            stream.event(&fixed, name.as_bytes());
            from = to;
        }
        if name == program {
            heap = range.end.wrapping_sub(base);
        }
        before = Some((range.end, name)).filter(|(_, name)| name.starts_with('/'));
    }
    // In QEMU, the heap begins at the end of the program's `.bss`.
    if heap != 0 {
        syscall::begin_heap(stream, heap);
    }
    stream.end_fence();
}

/// Split a mapping of `bytes` of a file, from `offset`, at the bounds of code `segments`. Returns the
/// end of each part, in bytes from the start of the mapping, and whether the part is code.
fn split_at_code(segments: &[(u64, u64)], offset: u64, bytes: u64) -> Vec<(u64, bool)> {
    let end = offset.saturating_add(bytes);
    let bounds = segments.iter().flat_map(|&(start, end)| [start, end]);
    let mut ends: Vec<u64> = bounds.filter(|&at| offset < at && at < end).chain([end]).collect();
    ends.sort_unstable();
    ends.dedup();
    let is_code = |last: u64| segments.iter().any(|&(start, end)| (start..end).contains(&last));
    ends.into_iter().map(|end| (end - offset, is_code(end - 1))).collect()
}

/// File offsets of the executable segments of a 64-bit little-endian ELF file, extended to whole
/// pages. `None` for another file.
fn code_segments(path: &str) -> Option<Vec<(u64, u64)>> {
    const LOAD: u64 = 1;
    const EXECUTE: u64 = 1;
    if !path.starts_with('/') {
        return None;
    }
    let file = fs::File::open(path).ok()?;
    let read = |at: u64, length: usize| {
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, at).ok().map(|()| bytes)
    };
    let number = |bytes: &[u8], at: usize, length: usize| {
        bytes[at..at + length].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
    };
    let header = read(0, 64).filter(|header| header.starts_with(b"\x7fELF\x02\x01"))?;
    // `e_phoff`, `e_phentsize` and `e_phnum`.
    let (at, size, count) =
        (number(&header, 32, 8), number(&header, 54, 2), number(&header, 56, 2));
    if size < 56 {
        return None;
    }
    let mut segments = Vec::new();
    for index in 0..count {
        // `p_type` is at 0, `p_flags` at 4, `p_offset` at 8, `p_filesz` at 32.
        let entry = read(at.checked_add(index * size)?, 56)?;
        if number(&entry, 0, 4) == LOAD && number(&entry, 4, 4) & EXECUTE != 0 {
            let offset = number(&entry, 8, 8);
            let end = offset.checked_add(number(&entry, 32, 8))?;
            segments.push((offset & !0xfff, end.checked_next_multiple_of(4096)?));
        }
    }
    Some(segments)
}

/// Fill `into` from guest memory. Returns false if part of it is not readable.
pub fn read(addr: u64, into: &mut [u8]) -> bool {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec {
        iov_base: addr.wrapping_add(BASE.load(Relaxed)) as *mut _,
        iov_len: into.len(),
    };
    // The kernel checks every page, whereas a plain load could fault.
    // SAFETY: writes at most `into.len()` bytes to `into`.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    read == into.len() as isize
}

/// Read `count` 8-byte words of guest memory.
pub fn words(addr: u64, count: usize) -> Option<Vec<u64>> {
    let mut bytes = vec![0; count * 8];
    read(addr, &mut bytes).then(|| {
        bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap_or([0; 8])))
            .collect()
    })
}

/// Read a C string of guest memory, without the null byte. `None` if it is unreadable or longer than
/// 1 MiB.
pub fn text(addr: u64) -> Option<Vec<u8>> {
    let mut found = Vec::new();
    let mut at = addr;
    while found.len() < 1 << 20 {
        let step = (4096 - (at & 4095)) as usize;
        let mut page = vec![0; step];
        if !read(at, &mut page) {
            return None;
        }
        if let Some(end) = page.iter().position(|&byte| byte == 0) {
            found.extend_from_slice(&page[..end]);
            return Some(found);
        }
        found.extend_from_slice(&page);
        at += step as u64;
    }
    None
}

/// Read a null-terminated array of strings, such as `argv`. Empty if `addr` is 0.
pub fn texts(addr: u64) -> Option<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    let mut at = addr;
    while addr != 0 && found.len() < 1 << 16 {
        match words(at, 1)?[0] {
            0 => break,
            pointer => found.push(text(pointer)?),
        }
        at += 8;
    }
    Some(found)
}
