// SPDX-License-Identifier: GPL-2.0-or-later
//! Instructions whose references need special treatment, because of how QEMU reports them.

/// How an instruction's references are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One by one.
    Ordinary,
    /// May load and store at once.
    Atomic,
    /// aarch64 `stxr` and the like.
    StoreExclusive,
    /// x86 string instruction with a repeat prefix.
    Repeat,
    /// aarch64 `dc zva`, with the number of the register that holds the address.
    Zero(u8),
    /// aarch64 `svc`, at which the plugin verifies the layout of QEMU's CPU state for [`Kind::Zero`].
    Call,
}

/// Classify the instruction `code` of ELF machine `machine` (62: x86-64, otherwise aarch64).
pub fn kind(machine: u16, code: &[u8]) -> Kind {
    match (machine, code) {
        (62, _) => x86(code),
        (_, &[a, b, c, d]) => aarch64(u32::from_le_bytes([a, b, c, d])),
        _ => Kind::Ordinary,
    }
}

fn x86(code: &[u8]) -> Kind {
    let (mut locked, mut repeated) = (false, false);
    for &byte in code {
        match byte {
            0xf0 => locked = true,
            0xf2 | 0xf3 => repeated = true,
            // Size, segment and REX prefixes.
            0x66 | 0x67 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0x40..=0x4f => {}
            // String instructions: `movs`, `cmps`; `stos`, `lods`, `scas`.
            0xa4..=0xa7 | 0xaa..=0xaf if repeated => return Kind::Repeat,
            // `xchg` locks without the prefix.
            0x86 | 0x87 => return Kind::Atomic,
            _ => break,
        }
    }
    if locked { Kind::Atomic } else { Kind::Ordinary }
}

fn aarch64(code: u32) -> Kind {
    // Arm Architecture Reference Manual, C4.1: loads and stores, exclusive and ordered; atomic
    // memory operations; system instructions.
    let exclusive = code & 0x3f00_0000 == 0x0800_0000;
    // Neither ordered (bit 23) nor a load (bit 22); bit 21 set with bit 31 clear is a compare and
    // swap of a pair.
    let stores = exclusive && code & 0x00c0_0000 == 0 && code & 0x8020_0000 != 0x0020_0000;
    if code & 0xffff_ffe0 == 0xd50b_7420 {
        Kind::Zero((code & 31) as u8)
    } else if code & 0xffe0_001f == 0xd400_0001 {
        Kind::Call
    } else if stores {
        Kind::StoreExclusive
    } else if exclusive || code & 0x3b20_0c00 == 0x3820_0000 {
        Kind::Atomic
    } else {
        Kind::Ordinary
    }
}
