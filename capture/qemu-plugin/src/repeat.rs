// SPDX-License-Identifier: GPL-2.0-or-later
//! x86 string instructions with a repeat prefix. QEMU executes them once per iteration, and once
//! more to find that the count is 0, which is not an instruction for the processor.
//!
//! An iteration that follows another one of the same instruction is written with its first
//! reference. A first iteration is written at once, even if the count is 0.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;

use crate::stream::Stream;
use crate::{ADDR_MASK, unpack_by_api};

/// A repeated instruction: its address, and its index in its block, shifted into instruction.
struct Instruction {
    addr: u64,
    index: u64,
}

/// A thread's last iteration.
#[derive(Clone, Copy, Default)]
struct Iteration {
    /// Address of the instruction.
    addr: u64,
    /// Position of the stream after it: unchanged as long as the thread does nothing else.
    position: u64,
    /// Word of the next iteration's block, if that has next_block; otherwise 0.
    next_block: u64,
}

thread_local! {
    static LAST: Cell<Iteration> = const { Cell::new(Iteration { addr: 0, position: 0, next_block: 0 }) };
}

static INSTRUCTIONS: Mutex<Option<HashMap<(u64, u64), usize>>> = Mutex::new(None);

/// The data for [`reference`] of the instruction at `addr`. Allocated once per instruction and
/// never freed.
pub fn instruction(addr: u64, index: u64) -> *mut c_void {
    let Ok(mut instructions) = INSTRUCTIONS.lock() else { return null_mut() };
    let instructions = instructions.get_or_insert_with(HashMap::new);
    let data = instructions.entry((addr, index)).or_insert_with(|| {
        std::ptr::from_ref(Box::leak(Box::new(Instruction { addr, index }))).expose_provenance()
    });
    std::ptr::with_exposed_provenance_mut(*data)
}

/// Called when a block begins that consists of one such instruction. `word` is its encoded word.
pub extern "C" fn on_block(vcpu: c_uint, word: *mut c_void) {
    // SAFETY: QEMU calls this on the thread of `vcpu`, which has been opened.
    let mut stream = unsafe { Stream::of(vcpu) };
    let word = word as u64;
    let last = LAST.get();
    if last.addr == word & ADDR_MASK && last.position == stream.position() {
        LAST.set(Iteration { next_block: word, ..last });
    } else {
        stream.put(word);
    }
}

/// Called on a load or store of such an instruction.
pub extern "C" fn reference(vcpu: c_uint, info: u32, addr: u64, data: *mut c_void) {
    if data.is_null() {
        return;
    }
    // SAFETY: from `instruction`, and never changed.
    let instruction = unsafe { &*data.cast::<Instruction>() };
    // SAFETY: as in `on_block`.
    let mut stream = unsafe { Stream::of(vcpu) };
    let last = LAST.get();
    if last.next_block != 0 && last.addr == instruction.addr && last.position == stream.position() {
        stream.put(last.next_block);
    }
    stream.put(unpack_by_api(info) | instruction.index | (addr & ADDR_MASK));
    LAST.set(Iteration { addr: instruction.addr, position: stream.position(), next_block: 0 });
}
