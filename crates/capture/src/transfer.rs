//! Accesses of the kernel on behalf of the program: to the page cache, and to the program's buffers.
//!
//! A page of the page cache has no address in the program. Each extent (1 TiB) of a file therefore
//! gets a synthetic range of kernel addresses, announced by a region event `file`. The address of a
//! page is the start of that range plus its offset in the extent.

use std::collections::HashMap;

use nearfar_trace::{Batch, Kind, RegionEvent, RegionKind};

use crate::expand::Position;
use crate::layout::{NO_FILE, Transfer};

/// First address of file ranges. On all supported architectures, the upper half is the kernel's.
pub const KERNEL: u64 = 1 << 63;
/// log2 of the bytes of an extent.
const EXTENT_SHIFT: u32 = 40;
const EXTENTS: u64 = 1 << (63 - EXTENT_SHIFT);
const PAGE: u64 = 4096;
/// Maximum bytes that Linux moves per call (`MAX_RW_COUNT`).
const MAX_BYTES: u64 = 0x7fff_f000;
/// At this number of names, all are dropped: nearly every name is used right after it is set.
const MAX_NAMES: usize = 1 << 16;

/// Files by device and inode.
#[derive(Debug, Default)]
pub struct Files {
    names: HashMap<(u64, u64), String>,
    /// Number of the range, by device, inode and extent.
    extents: HashMap<(u64, u64, u64), u64>,
}

impl Files {
    pub fn set_name(&mut self, device: u64, inode: u64, name: String) {
        if self.names.len() >= MAX_NAMES {
            self.names.clear();
        }
        self.names.insert((device, inode), name);
    }

    /// The synthetic address of byte `offset` of a file. Announces new ranges in `events`.
    fn address(
        &mut self,
        file: (u64, u64),
        offset: u64,
        thread: u32,
        events: &mut Vec<RegionEvent>,
    ) -> u64 {
        let extent = offset >> EXTENT_SHIFT;
        let unused = self.extents.len() as u64 % EXTENTS;
        let number = *self.extents.entry((file.0, file.1, extent)).or_insert_with(|| {
            events.push(RegionEvent {
                thread,
                event: RegionKind::File,
                addr: KERNEL + (unused << EXTENT_SHIFT),
                length: 1 << EXTENT_SHIFT,
                offset: extent << EXTENT_SHIFT,
                prot: "rw-s".into(),
                name: self.names.get(&file).cloned().unwrap_or_default(),
                device: file.0,
                inode: file.1,
                ..RegionEvent::default()
            });
            unused
        });
        KERNEL + (number << EXTENT_SHIFT) + (offset & ((1 << EXTENT_SHIFT) - 1))
    }

    /// Append the records of one transfer (a system call that moves bytes), one file page after
    /// another, each with its loads before its stores. [`Transfer`] describes `words`. Returns false,
    /// and appends nothing, if no system call can have caused these words.
    pub fn expand(
        &mut self,
        words: &[u64],
        position: &mut Position,
        out: &mut Batch,
        events: &mut Vec<RegionEvent>,
    ) -> bool {
        let Some((fixed, buffers)) = words.split_at_checked(Transfer::Fixed as usize) else {
            return false;
        };
        let write = fixed[Transfer::Write as usize] != 0;
        let file = (fixed[Transfer::Device as usize], fixed[Transfer::Inode as usize]);
        let offset = fixed[Transfer::Offset as usize];
        let bytes = fixed[Transfer::Bytes as usize];
        if bytes > MAX_BYTES {
            return false;
        }
        let (file_kind, buffer_kind) = if write {
            (Kind::KernelStore, Kind::KernelLoad)
        } else {
            (Kind::KernelLoad, Kind::KernelStore)
        };
        let mut buffers = Buffers { left: buffers, done: 0 };
        let mut at = 0;
        while at < bytes {
            let step = if file.0 == NO_FILE {
                bytes
            } else {
                (PAGE - (offset.wrapping_add(at) % PAGE)).min(bytes - at)
            };
            let copy = |position: &mut Position, out: &mut Batch, buffers: &mut Buffers| {
                let mut left = step;
                while left > 0 {
                    let Some((addr, size)) = buffers.next(left) else { break };
                    position.push_kernel(buffer_kind, addr, size, out);
                    left -= u64::from(size);
                }
            };
            if write {
                copy(position, out, &mut buffers);
            }
            if file.0 != NO_FILE {
                let addr = self.address(file, offset.wrapping_add(at), position.thread, events);
                position.push_kernel(file_kind, addr, step as u16, out);
            }
            if !write {
                copy(position, out, &mut buffers);
            }
            at += step;
        }
        true
    }
}

/// The program's buffers (pairs of address and length), split at pages.
struct Buffers<'a> {
    left: &'a [u64],
    /// Bytes of the first buffer that were returned.
    done: u64,
}

impl Buffers<'_> {
    /// The next range of at most `limit` bytes, within one page: address and size.
    fn next(&mut self, limit: u64) -> Option<(u64, u16)> {
        while let [addr, length, rest @ ..] = self.left {
            if self.done < *length {
                let addr = addr.wrapping_add(self.done);
                let size = (PAGE - addr % PAGE).min(length - self.done).min(limit);
                self.done += size;
                return Some((addr, size as u16));
            }
            (self.left, self.done) = (rest, 0);
        }
        None
    }
}
