//! `mremap` over what would be one mapping without the manager.
//!
//! A part of a mapping that the program renews by `MAP_FIXED` is managed some 20 ms later than the rest. Until
//! then the kernel has several mappings where it would have one, and if the part is written meanwhile it stays
//! so; `mremap` refuses more than one. So the manager is asked to look at once, and the call is made again; if
//! that does not help, the mappings are moved one by one.

use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use libc::{c_int, c_void, size_t};

/// The process that has a manager, and where it is called. A child of fork has none.
static MANAGED: AtomicI32 = AtomicI32::new(0);
static DOORBELL: AtomicU64 = AtomicU64::new(0);

/// Most mappings that are moved for one call.
const MAX_PARTS: usize = 64;
/// How often the list of mappings is read: while it is read, the manager may join some, which it then lacks.
const READINGS: usize = 5;

/// Remember this process, and the address at which its manager is called.
pub(crate) fn prepare(doorbell: u64) {
    // SAFETY: a system call without arguments.
    MANAGED.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    DOORBELL.store(doorbell, Ordering::Relaxed);
}

/// As in libc, which declares the last argument as one that may be missing. It takes no memory.
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
    let look = || {
        let doorbell = DOORBELL.load(Ordering::Relaxed) as *const u8;
        // SAFETY: a page of the library's own, which the manager gives to who refers to it.
        unsafe { doorbell.read_volatile() };
    };
    // Linux from 6.17 on moves several mappings at once, if to a given place: what is not managed yet, and
    // then refuses what is, with a part moved (`remap_move` in mm/mremap.c).
    if is_managed && flags & libc::MREMAP_FIXED != 0 {
        look();
    }
    let done = call(old.addr(), old_size, new_size, flags, new.addr());
    // SAFETY: this thread's error number.
    let is_fault = unsafe { *libc::__errno_location() == libc::EFAULT };
    if done != libc::MAP_FAILED || !is_fault || !is_managed {
        return done;
    }
    look();
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
    // SAFETY: a system call with the caller's arguments, which answers for what it asks.
    unsafe { libc::syscall(libc::SYS_mremap, old, old_size, new_size, flags, new) as *mut c_void }
}

/// The same for several mappings that differ in nothing; where they are then.
fn move_parts(
    old: usize,
    old_size: usize,
    new_size: usize,
    flags: c_int,
    new: usize,
) -> Option<usize> {
    let page = |size: usize| size.checked_next_multiple_of(4096);
    let (old_size, new_size) = (page(old_size)?, page(new_size)?);
    let moves = flags & !libc::MREMAP_FIXED == libc::MREMAP_MAYMOVE;
    let is_fixed = flags & libc::MREMAP_FIXED != 0;
    // Making it smaller needs no other place: the kernel does that itself.
    if new_size < old_size || (flags != 0 && !moves) {
        return None;
    }
    let mut parts: [Range<usize>; MAX_PARTS] = std::array::from_fn(|_| 0..0);
    let range = old..old.checked_add(old_size)?;
    let count = (0..READINGS).find_map(|_| find_parts(range.clone(), &mut parts))?;
    let (last, before) = parts[..count].split_last()?;
    let grown = last.len() + new_size - old_size;
    if !moves {
        let done = call(last.start, last.len(), grown, 0, 0);
        return (done != libc::MAP_FAILED).then_some(old);
    }
    let target = if is_fixed { new } else { reserve(new_size)? };
    let fixed = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let to = |part: &Range<usize>| target + (part.start - old);
    // The last first: only that can fail, as it may need more memory.
    if call(last.start, last.len(), grown, fixed, to(last)) == libc::MAP_FAILED {
        return None;
    }
    for part in before {
        if call(part.start, part.len(), part.len(), fixed, to(part)) == libc::MAP_FAILED {
            // Nothing that was moved may be where the program does not know of it.
            std::process::abort();
        }
    }
    Some(target)
}

/// Address space of this size.
fn reserve(size: usize) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { libc::mmap(null_mut(), size, libc::PROT_NONE, flags, -1, 0) };
    (start != libc::MAP_FAILED).then_some(start.addr())
}

/// The mappings in a range, if they are private memory of no file, leave no gap, and have the same rights.
fn find_parts(range: Range<usize>, parts: &mut [Range<usize>; MAX_PARTS]) -> Option<usize> {
    let (mut count, mut next, mut rights) = (0, range.start, None);
    let whole = each_mapping(|start, end, its_rights, inode| {
        // The manager may join mappings meanwhile: what was seen is then seen again, as a part of more.
        if end <= next || start >= range.end {
            return true;
        }
        let known = *rights.get_or_insert(its_rights);
        let fits = start <= next && known == its_rights && inode == 0 && its_rights[3] == b'p';
        if !fits || count == MAX_PARTS {
            return false;
        }
        parts[count] = next..end.min(range.end);
        next = parts[count].end;
        count += 1;
        true
    });
    (whole && next == range.end).then_some(count)
}

/// Call `act` with start, end, rights and inode of each mapping until it returns false; whether it never did.
fn each_mapping(mut act: impl FnMut(usize, usize, [u8; 4], u64) -> bool) -> bool {
    // SAFETY: a name that ends in zero.
    let file = unsafe { libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return false;
    }
    let (mut buffer, mut line, mut length, mut whole) = ([0u8; 4096], [0u8; 128], 0, true);
    'all: loop {
        // SAFETY: as many bytes as there are in the buffer.
        let read = unsafe { libc::read(file, buffer.as_mut_ptr().cast(), buffer.len()) };
        if read <= 0 {
            whole &= read == 0;
            break;
        }
        for byte in &buffer[..read as usize] {
            if *byte != b'\n' {
                // What is beyond is the mapping's name.
                if length < line.len() {
                    line[length] = *byte;
                    length += 1;
                }
                continue;
            }
            let parsed = std::str::from_utf8(&line[..length]).ok().and_then(parse);
            length = 0;
            let Some((start, end, rights, inode)) = parsed else { continue };
            if !act(start, end, rights, inode) {
                whole = false;
                break 'all;
            }
        }
    }
    // SAFETY: the descriptor of above.
    unsafe { libc::close(file) };
    whole
}

/// `7f0000000000-7f0000021000 rw-p 00000000 00:00 0`
fn parse(line: &str) -> Option<(usize, usize, [u8; 4], u64)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let rights = words.next()?.as_bytes().try_into().ok()?;
    Some((address(start)?, address(end)?, rights, words.nth(2)?.parse().ok()?))
}
