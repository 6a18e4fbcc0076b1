//! Lines of `/proc/PID/maps`.

/// A mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapsLine<'a> {
    pub start: u64,
    /// Exclusive.
    pub end: u64,
    /// Such as `rw-p`.
    pub rights: [u8; 4],
    /// The file's inode number; 0 for none.
    pub inode: u64,
    /// A file, or a name such as `[heap]`; empty for most memory.
    pub name: &'a str,
}

impl<'a> MapsLine<'a> {
    /// Parse a line such as `55d8c6f0c000-55d8c6f2d000 rw-p 00000000 00:00 0    [heap]`. Does not allocate.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = std::str::from_utf8(line).ok()?.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        Some(Self {
            start: address(start)?,
            end: address(end)?,
            rights: fields.next()?.as_bytes().try_into().ok()?,
            inode: fields.nth(2)?.parse().ok()?,
            name: fields.next().unwrap_or_default().trim(),
        })
    }

    /// All lines of a file. Does not allocate.
    pub fn all(text: &'a [u8]) -> impl Iterator<Item = Self> {
        text.split(|byte| *byte == b'\n').filter_map(Self::parse)
    }

    /// Whether it is private, writable and of no file: heap, anonymous `mmap`, stacks of threads.
    pub fn is_private_memory(&self) -> bool {
        let [b'r', b'w', _, b'p'] = self.rights else { return false };
        let name = self.name;
        self.inode == 0 && (name.is_empty() || name == "[heap]" || name.starts_with("[anon"))
    }
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
        let lines: Vec<_> = MapsLine::all(text).collect();
        let managed: Vec<_> = lines.iter().map(|line| line.is_private_memory()).collect();
        assert_eq!(managed, [true, true, false, false, false, true, false, false]);
        assert_eq!((lines[0].start, lines[0].end), (0x55d8_c6f0_c000, 0x55d8_c6f2_d000));
        assert_eq!((lines[3].inode, lines[3].name), (2049, "/dev/zero (deleted)"));
    }

    #[test]
    fn this_process_has_mappings() {
        let text = std::fs::read("/proc/self/maps").unwrap();
        assert!(MapsLine::all(&text).any(|line| line.is_private_memory()));
        assert_eq!(MapsLine::all(&text).count(), text.split(|byte| *byte == b'\n').count() - 1);
    }
}
