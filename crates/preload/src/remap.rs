//! Wraps `mremap`, for memory that would be one mapping if the manager did not register it with userfaultfd.
//!
//! If the program maps a part of a mapping anew with `MAP_FIXED`, the manager registers the part some 20 ms
//! later. Until then the kernel has several mappings instead of one; if the part is written meanwhile, they
//! stay separate. `mremap` refuses more than one mapping. So this library references a page, the
//! **doorbell**: its fault makes the manager register new memory at once. Then the call is repeated. If that
//! fails too, the mappings are moved one by one.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use libc::{c_int, c_void, size_t};
use nearfar_live::linux::MapsLine;

/// The managed process, and the address of its doorbell. A child of fork is not managed.
static MANAGED: AtomicI32 = AtomicI32::new(0);
static DOORBELL: AtomicU64 = AtomicU64::new(0);

/// Maximum number of mappings that one call moves.
const MAX_PARTS: usize = 64;
/// Maximum number of reads of the list of mappings. A read misses mappings that are merged meanwhile.
const READINGS: usize = 5;

/// Record this process and the address of its doorbell.
pub(crate) fn prepare(doorbell: u64) {
    // SAFETY: a system call without arguments.
    MANAGED.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    DOORBELL.store(doorbell, Ordering::Relaxed);
}

/// As in libc, where the last argument is variadic. Does not allocate.
#[unsafe(no_mangle)]
extern "C" fn mremap(
    old: *mut c_void,
    old_size: size_t,
    new_size: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    // SAFETY: a system call without arguments.
    let is_managed = unsafe { libc::getpid() } == MANAGED.load(Ordering::Relaxed);
    let ring = || {
        let doorbell = DOORBELL.load(Ordering::Relaxed) as *const u8;
        // SAFETY: a page of the library. The read waits until the manager maps a frame there.
        unsafe { doorbell.read_volatile() };
    };
    // Linux 6.17 and later move several mappings at once to a given address, but no registered ones: the call
    // fails at the first of these, after moving those before it (`remap_move` in mm/mremap.c).
    if is_managed && flags & libc::MREMAP_FIXED != 0 {
        ring();
    }
    let done = call(old.addr(), old_size, new_size, flags, new.addr());
    // SAFETY: this thread's error number.
    let is_fault = unsafe { *libc::__errno_location() == libc::EFAULT };
    if done != libc::MAP_FAILED || !is_fault || !is_managed {
        return done;
    }
    ring();
    let done = call(old.addr(), old_size, new_size, flags, new.addr());
    if done != libc::MAP_FAILED {
        return done;
    }
    match move_parts(old.addr(), old_size, new_size, flags, new.addr()) {
        Some(at) => at as *mut c_void,
        None => {
            // SAFETY: this thread's error number.
            unsafe { *libc::__errno_location() = libc::EFAULT };
            libc::MAP_FAILED
        }
    }
}

fn call(old: usize, old_size: usize, new_size: usize, flags: c_int, new: usize) -> *mut c_void {
    // SAFETY: a system call with the caller's arguments, for which the caller is responsible.
    unsafe { libc::syscall(libc::SYS_mremap, old, old_size, new_size, flags, new) as *mut c_void }
}

/// Move several mappings with equal rights. Returns their new address.
fn move_parts(
    old: usize,
    old_size: usize,
    new_size: usize,
    flags: c_int,
    new: usize,
) -> Option<usize> {
    let page = |size: usize| size.checked_next_multiple_of(4096);
    let (old_size, new_size) = (page(old_size)?, page(new_size)?);
    let may_move = flags & !libc::MREMAP_FIXED == libc::MREMAP_MAYMOVE;
    let is_fixed = flags & libc::MREMAP_FIXED != 0;
    // The kernel shrinks several mappings itself.
    if new_size < old_size || (flags != 0 && !may_move) {
        return None;
    }
    let mut parts: [Range<usize>; MAX_PARTS] = std::array::from_fn(|_| 0..0);
    let range = old..old.checked_add(old_size)?;
    let count = (0..READINGS).find_map(|_| find_parts(range.clone(), &mut parts))?;
    let (last, before) = parts[..count].split_last()?;
    let grown = last.len() + new_size - old_size;
    if !may_move {
        let done = call(last.start, last.len(), grown, 0, 0);
        return (done != libc::MAP_FAILED).then_some(old);
    }
    let target = if is_fixed { new } else { reserve(new_size)? };
    let fixed = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let to = |part: &Range<usize>| target + (part.start - old);
    // Move the last part first: only this can fail, as it may need more memory.
    if call(last.start, last.len(), grown, fixed, to(last)) == libc::MAP_FAILED {
        return None;
    }
    for part in before {
        if call(part.start, part.len(), part.len(), fixed, to(part)) == libc::MAP_FAILED {
            // The program would not know the address of the parts that were moved.
            std::process::abort();
        }
    }
    Some(target)
}

fn reserve(size: usize) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { libc::mmap(null_mut(), size, libc::PROT_NONE, flags, -1, 0) };
    (start != libc::MAP_FAILED).then_some(start.addr())
}

/// Find the mappings in a range, and return their number. `None` unless they are private memory of no file,
/// without gaps, and have the same rights.
fn find_parts(range: Range<usize>, parts: &mut [Range<usize>; MAX_PARTS]) -> Option<usize> {
    let (mut count, mut next, mut first_rights) = (0, range.start, None);
    let complete = each_mapping(|MapsLine { start, end, rights, inode, .. }| {
        let (start, end) = (start as usize, end as usize);
        // Mappings that are merged meanwhile may be seen again, as a part of a larger one.
        if end <= next || start >= range.end {
            return true;
        }
        let fits = start <= next
            && *first_rights.get_or_insert(rights) == rights
            && inode == 0
            && rights[3] == b'p';
        if !fits || count == MAX_PARTS {
            return false;
        }
        parts[count] = next..end.min(range.end);
        next = parts[count].end;
        count += 1;
        true
    });
    (complete && next == range.end).then_some(count)
}

/// Call `act` with each mapping until it returns false. Returns whether all were read. Names may be cut off.
fn each_mapping(mut act: impl FnMut(MapsLine<'_>) -> bool) -> bool {
    let Ok(mut file) = File::open("/proc/self/maps") else { return false };
    let (mut buffer, mut line, mut length) = ([0u8; 4096], [0u8; 128], 0);
    loop {
        let Ok(read) = file.read(&mut buffer) else { return false };
        if read == 0 {
            return true;
        }
        for byte in &buffer[..read] {
            if *byte != b'\n' {
                // What does not fit is the end of the mapping's name.
                if length < line.len() {
                    line[length] = *byte;
                    length += 1;
                }
                continue;
            }
            let parsed = MapsLine::parse(&line[..length]);
            length = 0;
            if !parsed.is_none_or(&mut act) {
                return false;
            }
        }
    }
}
