//! Finds the addresses and offsets by which the plugin distinguishes the tasks of a Linux guest, in
//! its `/proc/kallsyms` and `/sys/kernel/btf/vmlinux`.

use std::sync::atomic::Ordering::Relaxed;

use crate::layout::Header;

/// Per-CPU variables to which `__switch_to` stores the current task, by architecture and version.
const CURRENT: [&str; 3] = ["pcpu_hot", "current_task", "__entry_task"];

/// What is known of the kernel so far; fields as in [`Tasks`](crate::layout::Tasks).
#[derive(Debug, Default)]
pub(super) struct Kernel {
    switch: Option<u64>,
    current: Option<u64>,
    offsets: Option<[u64; 3]>,
}

impl Kernel {
    /// Note the symbol of a line of `/proc/kallsyms`, or of a line `ADDRESS NAME`.
    pub fn symbol(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        let addr = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
        match words.last() {
            Some("__switch_to") => self.switch = addr,
            Some(name) if CURRENT.contains(&name) => self.current = addr,
            _ => {}
        }
    }

    pub fn types(&mut self, btf: &[u8]) {
        self.offsets = members(btf, "task_struct", ["pid", "tgid", "comm"]);
    }

    /// Have the plugin report tasks, if everything is known.
    pub fn enable_tasks(&self, header: &Header) {
        if let (Some(switch), Some(current), Some(offsets)) =
            (self.switch, self.current, self.offsets)
        {
            let tasks = &header.tasks;
            for (to, offset) in tasks.offsets.iter().zip(offsets) {
                to.store(offset, Relaxed);
            }
            tasks.current.store(current, Relaxed);
            tasks.switch.store(switch, Relaxed);
        }
    }
}

/// Kinds of types (`include/uapi/linux/btf.h`).
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FUNC_PROTO: u32 = 13;
const DATASEC: u32 = 15;
const ENUM64: u32 = 19;

/// Offsets in bytes of members of a structure, by the kernel's description of its types (BTF,
/// `Documentation/bpf/btf.rst`).
fn members<const N: usize>(btf: &[u8], structure: &str, names: [&str; N]) -> Option<[u64; N]> {
    let word = |at: usize| {
        let bytes = btf.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let field = |at: usize| word(at).map(|value| value as usize);
    if word(0)? & 0xffff != 0xeb9f {
        return None;
    }
    // Header: magic number, length of the header, offset and length of types, offset of strings.
    let head = field(4)?;
    let (types, types_end) = (head + field(8)?, head + field(8)? + field(12)?);
    let strings = head + field(16)?;
    let is_named = |name: usize, text: &str| {
        let at = strings + name;
        let bytes = btf.get(at..at + text.len() + 1);
        bytes.is_some_and(|bytes| &bytes[..text.len()] == text.as_bytes() && bytes[text.len()] == 0)
    };
    let mut at = types;
    while at < types_end {
        // A type: name, kind and number of members, size. A member: name, type, offset in bits.
        let (name, info) = (field(at)?, word(at + 4)?);
        let (kind, count) = (info >> 24 & 31, (info & 0xffff) as usize);
        at += 12;
        if kind == STRUCT && is_named(name, structure) {
            // With this flag, the upper 8 bits of an offset are the size of a bit field.
            let bits = if info >> 31 == 1 { (1 << 24) - 1 } else { u32::MAX };
            let offset = |name: &&str| {
                let mut members = (0..count).map(|index| at + 12 * index);
                let member = members.find(|at| field(*at).is_some_and(|n| is_named(n, name)))?;
                Some(u64::from(word(member + 8)? & bits) / 8)
            };
            let found: Option<Vec<u64>> = names.iter().map(offset).collect();
            return found?.try_into().ok();
        }
        at += match kind {
            // INT, VAR, DECL_TAG.
            1 | 14 | 17 => 4,
            ARRAY => 12,
            STRUCT | UNION | DATASEC | ENUM64 => 12 * count,
            ENUM | FUNC_PROTO => 8 * count,
            _ => 0,
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A description of types: `int`, an array, and two structures.
    fn btf() -> Vec<u8> {
        let strings = b"\0int\0other\0task_struct\0pid\0tgid\0comm\0";
        let name = |text: &str| {
            let at = strings
                .windows(text.len() + 1)
                .position(|w| w == [text.as_bytes(), b"\0"].concat());
            at.unwrap() as u32
        };
        let mut types: Vec<u32> = vec![name("int"), 1 << 24, 4, 32];
        types.extend([0, ARRAY << 24, 0, 1, 1, 16]);
        types.extend([name("other"), STRUCT << 24 | 1, 4, name("pid"), 1, 0]);
        types.extend([name("task_struct"), 1 << 31 | STRUCT << 24 | 3, 80]);
        types.extend([
            name("pid"),
            1,
            8 << 24 | 64 * 8,
            name("tgid"),
            1,
            68 * 8,
            name("comm"),
            2,
            48 * 8,
        ]);
        let bytes: Vec<u8> = types.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut btf = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, bytes.len(), bytes.len(), strings.len()] {
            btf.extend((word as u32).to_le_bytes());
        }
        [btf, bytes, strings.to_vec()].concat()
    }

    #[test]
    fn members_are_found_by_name() {
        let names = ["pid", "tgid", "comm"];
        assert_eq!(members(&btf(), "task_struct", names), Some([64, 68, 48]));
        assert_eq!(members(&btf(), "other", names), None);
        assert_eq!(members(&btf(), "none", names), None);
    }

    #[test]
    fn damaged_types_do_not_panic() {
        let whole = btf();
        for length in 0..whole.len() - 20 {
            let _ = members(&whole[..length], "task_struct", ["pid"]);
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            let _ = members(&damaged, "task_struct", ["pid"]);
        }
    }
}
