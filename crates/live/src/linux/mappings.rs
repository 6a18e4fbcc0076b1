//! `/proc/self/maps`.

use crate::{Range, Va};

/// A line of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) range: Range,
    /// Private, writable and of no file: the heap, what `mmap` and `malloc` make, stacks of threads.
    pub(super) is_private_memory: bool,
}

/// All lines. Takes no memory.
pub(super) fn all(text: &[u8]) -> impl Iterator<Item = Line> {
    text.split(|byte| *byte == b'\n')
        .filter_map(|line| std::str::from_utf8(line).ok().and_then(read))
}

/// `55d8c6f0c000-55d8c6f2d000 rw-p 00000000 00:00 0                          [heap]`
fn read(line: &str) -> Option<Line> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    let range = Range::new(Va::of(address(from)?), Va::of(address(to)?));
    let protection = words.next()?;
    let inode = words.nth(2)?;
    let name = words.next().unwrap_or("");
    let named = name.is_empty() || name == "[heap]" || name.starts_with("[anon");
    let is_private_memory =
        protection.starts_with("rw") && protection.ends_with('p') && inode == "0" && named;
    Some(Line { range, is_private_memory })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_memory_is_managed() {
        let text = b"\
55d8c6f0c000-55d8c6f2d000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000021000 rw-p 00000000 00:00 0
7f0000021000-7f0004000000 ---p 00000000 00:00 0
7f1000000000-7f1000100000 rw-s 00000000 00:01 2049                       /dev/zero (deleted)
7f2000000000-7f2000001000 rw-p 00001000 fe:00 12345                      /lib/libc.so.6
7f3000000000-7f3000001000 rw-p 00000000 00:00 0                          [anon:glibc: malloc]
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
7ffd00100000-7ffd00101000 r-xp 00000000 00:00 0                          [vdso]
nonsense
";
        let lines: Vec<_> = all(text).collect();
        let managed: Vec<_> = lines.iter().map(|line| line.is_private_memory).collect();
        assert_eq!(managed, [true, true, false, false, false, true, false, false]);
        assert_eq!(lines[0].range, Range::new(Va::new(0x55d8c6f0c), Va::new(0x55d8c6f2d)));
    }

    #[test]
    fn this_process_has_mappings() {
        let text = std::fs::read("/proc/self/maps").unwrap();
        assert!(all(&text).any(|line| line.is_private_memory));
        assert_eq!(all(&text).count(), text.split(|byte| *byte == b'\n').count() - 1);
    }
}
