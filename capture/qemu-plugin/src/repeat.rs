// SPDX-License-Identifier: GPL-2.0-or-later
//! x86 string instructions with a repeat prefix. QEMU executes a block per iteration, and at the end
//! one more that only checks that the count is 0. That last block must not be recorded.
//!
//! The block of the first iteration is written at once, even if the count is 0. The block of a later
//! iteration is written only at its first reference: the last block has none.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;

use crate::recorder::Recorder;
use crate::{At, Recording, unpack_by_api};

/// A repeated instruction: its address, and the [`Recording::data`] of its references.
struct Instruction {
    addr: u64,
    data: u64,
}

/// A thread's last iteration.
#[derive(Clone, Copy, Default)]
struct Iteration {
    /// Address of the instruction.
    addr: u64,
    /// [`Recording::position`] after it. While the position is still this, the thread has recorded
    /// nothing else.
    position: u64,
    /// Encoded block of the next iteration until its first reference; 0 if none waits.
    next_block: u64,
}

thread_local! {
    static LAST: Cell<Iteration> = const { Cell::new(Iteration { addr: 0, position: 0, next_block: 0 }) };
}

static INSTRUCTIONS: Mutex<Option<HashMap<(u64, u64), usize>>> = Mutex::new(None);

/// The argument `data` of [`reference`] for the instruction at `addr` with [`Recording::data`] `data`.
/// Allocated once per instruction and never freed.
pub fn callback_data(addr: u64, data: u64) -> *mut c_void {
    let Ok(mut instructions) = INSTRUCTIONS.lock() else { return null_mut() };
    let instructions = instructions.get_or_insert_with(HashMap::new);
    let known = instructions.entry((addr, data)).or_insert_with(|| {
        std::ptr::from_ref(Box::leak(Box::new(Instruction { addr, data }))).expose_provenance()
    });
    std::ptr::with_exposed_provenance_mut(*known)
}

/// Called when a block begins that consists of one repeated instruction and is encoded as `word`.
pub extern "C" fn on_block<R: Recording>(vcpu: c_uint, word: *mut c_void) {
    let word = word as u64;
    let last = LAST.get();
    let Some(recorder) = Recorder::installed() else { return };
    // SAFETY: `on_vcpu_start` has opened `vcpu`, and QEMU calls this on its thread.
    if last.addr == recorder.decode(word).0 && last.position == unsafe { R::position(vcpu) } {
        LAST.set(Iteration { next_block: word, ..last });
    } else {
        // SAFETY: as above.
        unsafe { R::fetch(vcpu, word) };
    }
}

/// Called on a load or store of a repeated instruction. `data` is from [`callback_data`].
pub extern "C" fn reference<R: Recording>(vcpu: c_uint, info: u32, addr: u64, data: *mut c_void) {
    if data.is_null() {
        return;
    }
    // SAFETY: from `callback_data`, and never changed.
    let instruction = unsafe { &*data.cast::<Instruction>() };
    let last = LAST.get();
    // SAFETY: as in `on_block`.
    unsafe {
        let continues = last.addr == instruction.addr && last.position == R::position(vcpu);
        if last.next_block != 0 && continues {
            R::fetch(vcpu, last.next_block);
        }
        R::access(vcpu, unpack_by_api(info), At { addr, info }, instruction.data);
        let position = R::position(vcpu);
        LAST.set(Iteration { addr: instruction.addr, position, next_block: 0 });
    }
}
