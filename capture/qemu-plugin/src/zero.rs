// SPDX-License-Identifier: GPL-2.0-or-later
//! aarch64 `dc zva`, which zeroes a block of memory. QEMU does it with `memset` and tells no plugin,
//! and the first edition of the plugin interface does not tell registers.
//!
//! So the address is read where QEMU keeps the registers of its processor: generated code has that
//! structure's address in a register of its own (`TCG_AREG0`), and all registers are in memory after
//! a `dc zva`, which is a call out of generated code. Before any of it is believed, it is checked at
//! a system call, whose number and arguments the interface tells: they must be where we look.

use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

use qemu_plugin_sys as qemu;

use crate::layout::{SIZE_SHIFT, STORE, what};
use crate::stream::Stream;
use crate::{ADDR_MASK, NO_REGS};

/// Bytes of a block; 0 when nobody knows.
static BLOCK: AtomicU64 = AtomicU64::new(0);
/// Whether registers are where we look for them.
static TRUSTED: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

/// Where `CPUARMState` has the registers x0, x1, ...: after 16 of 4 bytes.
const REGISTERS: usize = 64;
/// What a record says at most: a cache line.
const LINE: u64 = 64;
const LINE_SHIFT: u64 = LINE.trailing_zeros() as u64;

thread_local! {
    /// The structure of this thread's processor, when last seen.
    static PROCESSOR: Cell<usize> = const { Cell::new(0) };
}

/// Take the size of a block.
pub fn blocks_of(bytes: Option<u64>) {
    BLOCK.store(bytes.filter(|bytes| bytes.is_power_of_two()).unwrap_or(0), Relaxed);
}

fn register(processor: usize, number: usize) -> u64 {
    let place = processor + REGISTERS + number * 8;
    // SAFETY: within QEMU's structure, which is larger by far and is there as long as its thread.
    unsafe { std::ptr::with_exposed_provenance::<u64>(place).read() }
}

/// Have the instruction with index `index` of `count` in `block` watched; `word` is its index,
/// shifted into place, and `number` its register.
///
/// # Safety
/// QEMU translates the block now, and it has the instruction.
pub unsafe fn watch(
    block: *mut qemu::qemu_plugin_tb,
    index: usize,
    count: usize,
    number: u8,
    word: u64,
) {
    // SAFETY: says the caller.
    unsafe {
        let last = index + 1 == count;
        let at = qemu::qemu_plugin_tb_get_insn(block, if last { index } else { index + 1 });
        // What comes next finds the register as it was. Where nothing does, nobody can look.
        let callback: extern "C" fn(c_uint, *mut c_void) = if last { unseen } else { zeroed };
        let data = (word | u64::from(number)) as *mut c_void;
        qemu::qemu_plugin_register_vcpu_insn_exec_cb(at, Some(callback), NO_REGS, data);
    }
}

/// Have a system call watched, for the check.
///
/// # Safety
/// QEMU translates the instruction now.
pub unsafe fn watch_call(instruction: *mut qemu::qemu_plugin_insn) {
    if TRUSTED.load(Relaxed) != UNKNOWN {
        return;
    }
    // SAFETY: says the caller.
    unsafe {
        let nothing = std::ptr::null_mut();
        qemu::qemu_plugin_register_vcpu_insn_exec_cb(instruction, Some(calls), NO_REGS, nothing);
    }
}

/// QEMU is about to do a system call: its number is in x8, its arguments in x0 to x5.
pub fn check(number: i64, arguments: &[u64; 6]) {
    let processor = PROCESSOR.get();
    if processor != 0 && TRUSTED.load(Relaxed) == UNKNOWN {
        let arguments = arguments.iter().enumerate();
        let same = register(processor, 8) == number as u64
            && arguments.into_iter().all(|(i, argument)| register(processor, i) == *argument);
        TRUSTED.store(if same { YES } else { NO }, Relaxed);
    }
}

/// Say, once, that some are not seen.
extern "C" fn unseen(vcpu: c_uint, _: *mut c_void) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Relaxed) {
        // SAFETY: QEMU calls this on the thread of `vcpu`, which has been opened.
        unsafe { Stream::of(vcpu) }.note(what::UNSEEN, b"dc zva");
    }
}

/// A system call comes.
extern "C" fn at_call(_: c_uint, _: *mut c_void, processor: usize) {
    PROCESSOR.set(processor);
}

/// A `dc zva` has been done; `data` is its index, and the number of its register.
extern "C" fn at_zero(vcpu: c_uint, data: *mut c_void, processor: usize) {
    let (data, bytes) = (data as u64, BLOCK.load(Relaxed));
    if TRUSTED.load(Relaxed) != YES || bytes == 0 {
        return unseen(vcpu, std::ptr::null_mut());
    }
    let addr = register(processor, (data & 31) as usize) & !(bytes - 1);
    let (line, shift) =
        if bytes < LINE { (bytes, bytes.trailing_zeros().into()) } else { (LINE, LINE_SHIFT) };
    // SAFETY: as in `unseen`.
    let mut stream = unsafe { Stream::of(vcpu) };
    for at in (addr..addr + bytes).step_by(line as usize) {
        stream.put(STORE | shift << SIZE_SHIFT | data & !31 | at & ADDR_MASK);
    }
}

/// Calls of generated code, which has the processor's structure in a register that no convention
/// knows of: it becomes the third argument.
macro_rules! with_processor {
    ($name:ident, $to:ident) => {
        #[unsafe(naked)]
        extern "C" fn $name(_: c_uint, _: *mut c_void) {
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!("mov rdx, rbp", "jmp {}", sym $to);
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!("mov x2, x19", "b {}", sym $to);
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            compile_error!("which register is TCG_AREG0 of this host?");
        }
    };
}

with_processor!(zeroed, at_zero);
with_processor!(calls, at_call);
