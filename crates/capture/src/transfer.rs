//! What the kernel touches for the program: pages of files, and the program's buffers.
//!
//! A page of the page cache has no address in the program. Each file (each tebibyte of it) is
//! given an invented range of kernel addresses, announced as a region of kind `file`; the address
//! of a page is the start of that range plus the offset in the file.

use std::collections::HashMap;

use nearfar_trace::{Batch, Kind, RegionEvent, RegionKind};

use crate::expand::Position;
use crate::layout::{NO_FILE, Transfer};

/// First invented address: the upper half belongs to the kernel on every architecture here.
pub const KERNEL: u64 = 1 << 63;
const EXTENT_SHIFT: u32 = 40;
const EXTENTS: u64 = 1 << (63 - EXTENT_SHIFT);
const PAGE: u64 = 4096;
/// Most bytes that Linux moves in a call (`MAX_RW_COUNT`).
const MAX_BYTES: u64 = 0x7fff_f000;
/// Names that are kept: what comes next is nearly always a transfer of the file that was named last.
const MAX_NAMES: usize = 1 << 16;

/// Files by device and inode.
#[derive(Debug, Default)]
pub struct Files {
    names: HashMap<(u64, u64), String>,
    extents: HashMap<(u64, u64, u64), u64>,
}

impl Files {
    /// Note the name of a file.
    pub fn name(&mut self, device: u64, inode: u64, name: String) {
        if self.names.len() >= MAX_NAMES {
            self.names.clear();
        }
        self.names.insert((device, inode), name);
    }

    /// The invented address of byte `offset` of a file; new ranges are added to `events`.
    fn address(
        &mut self,
        file: (u64, u64),
        offset: u64,
        thread: u32,
        events: &mut Vec<RegionEvent>,
    ) -> u64 {
        let extent = offset >> EXTENT_SHIFT;
        let fresh = self.extents.len() as u64 % EXTENTS;
        let number = *self.extents.entry((file.0, file.1, extent)).or_insert_with(|| {
            events.push(RegionEvent {
                at: 0,
                thread,
                event: RegionKind::File,
                addr: KERNEL + (fresh << EXTENT_SHIFT),
                length: 1 << EXTENT_SHIFT,
                offset: extent << EXTENT_SHIFT,
                prot: "rw-s".into(),
                name: self.names.get(&file).cloned().unwrap_or_default(),
                device: file.0,
                inode: file.1,
                to: 0,
            });
            fresh
        });
        KERNEL + (number << EXTENT_SHIFT) + (offset & ((1 << EXTENT_SHIFT) - 1))
    }

    /// Append the records of one transfer: page by page of the file, first what is read, then
    /// what is written. `words` are those after the control word. False where they are of no call
    /// that there can be; they make no record then.
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
        let (of_file, of_buffer) = if write {
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
                    position.push_kernel(of_buffer, addr, size, out);
                    left -= u64::from(size);
                }
            };
            if write {
                copy(position, out, &mut buffers);
            }
            if file.0 != NO_FILE {
                let addr = self.address(file, offset.wrapping_add(at), position.thread, events);
                position.push_kernel(of_file, addr, step as u16, out);
            }
            if !write {
                copy(position, out, &mut buffers);
            }
            at += step;
        }
        true
    }
}

/// The user's buffers, cut at pages.
struct Buffers<'a> {
    left: &'a [u64],
    done: u64,
}

impl Buffers<'_> {
    /// The next piece of at most `most` bytes: address and size, within one page.
    fn next(&mut self, most: u64) -> Option<(u64, u16)> {
        while let [addr, length, rest @ ..] = self.left {
            if self.done < *length {
                let addr = addr.wrapping_add(self.done);
                let size = (PAGE - addr % PAGE).min(length - self.done).min(most);
                self.done += size;
                return Some((addr, size as u16));
            }
            (self.left, self.done) = (rest, 0);
        }
        None
    }
}
