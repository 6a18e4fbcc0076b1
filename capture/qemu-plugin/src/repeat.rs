// SPDX-License-Identifier: GPL-2.0-or-later
//! x86 string instructions with a repeat prefix. QEMU runs one turn of them at a time, and once more
//! to find that the count is 0: that one is no instruction, as the processor sees it.
//!
//! A turn that is reached by the turn before it is written down with its first reference. The one
//! without turns, which is reached from elsewhere, is written at once.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;

use crate::stream::Stream;
use crate::{ADDR_MASK, by_api};

/// A repeated instruction: its address and the index of it in its block, shifted into place.
struct Place {
    addr: u64,
    index: u64,
}

/// A thread's last turn.
#[derive(Clone, Copy, Default)]
struct Turn {
    /// Which instruction.
    addr: u64,
    /// How far the stream was after it: nothing else has happened while it is there.
    position: u64,
    /// The word of the block of the next turn, if that has begun.
    begun: u64,
}

thread_local! {
    static TURN: Cell<Turn> = const { Cell::new(Turn { addr: 0, position: 0, begun: 0 }) };
}

static PLACES: Mutex<Option<HashMap<(u64, u64), usize>>> = Mutex::new(None);

/// What [`reference`] is given for the instruction at `addr`; each is made once, and stays.
pub fn place(addr: u64, index: u64) -> *mut c_void {
    let Ok(mut places) = PLACES.lock() else { return null_mut() };
    let places = places.get_or_insert_with(HashMap::new);
    let made = places.entry((addr, index)).or_insert_with(|| {
        std::ptr::from_ref(Box::leak(Box::new(Place { addr, index }))).expose_provenance()
    });
    std::ptr::with_exposed_provenance_mut(*made)
}

/// A block starts that is such an instruction alone. `word` is its ready-made control word.
pub extern "C" fn starts(vcpu: c_uint, word: *mut c_void) {
    // SAFETY: QEMU calls this on the thread of `vcpu`, which has been opened.
    let mut stream = unsafe { Stream::of(vcpu) };
    let word = word as u64;
    let turn = TURN.get();
    if turn.addr == word & ADDR_MASK && turn.position == stream.position() {
        TURN.set(Turn { begun: word, ..turn });
    } else {
        stream.put(word);
    }
}

/// A load or store of such an instruction.
pub extern "C" fn reference(vcpu: c_uint, info: u32, addr: u64, place: *mut c_void) {
    if place.is_null() {
        return;
    }
    // SAFETY: made by `place`, and never changed.
    let place = unsafe { &*place.cast::<Place>() };
    // SAFETY: as in `starts`.
    let mut stream = unsafe { Stream::of(vcpu) };
    let turn = TURN.get();
    if turn.begun != 0 && turn.addr == place.addr && turn.position == stream.position() {
        stream.put(turn.begun);
    }
    stream.put(by_api(info) | place.index | (addr & ADDR_MASK));
    TURN.set(Turn { addr: place.addr, position: stream.position(), begun: 0 });
}
