// SPDX-License-Identifier: GPL-2.0-or-later
//! aarch64 `dc zva`, which zeroes a block of memory. QEMU implements it with `memset`, which
//! plugins do not see, and version 1 of the plugin API does not expose registers.
//!
//! The address is therefore read from QEMU's CPU state. Generated code holds the address of that
//! structure in a reserved register (`TCG_AREG0`), and all guest registers are in memory after a
//! `dc zva`, which is a call out of generated code. The layout is verified first, at a system call,
//! whose number and arguments the API does expose.

use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

use qemu_plugin_sys as qemu;

use crate::layout::{SIZE_SHIFT, STORE, what};
use crate::sample::Sample;
use crate::stream::Stream;
use crate::{ADDR_MASK, AllReferences, At, NO_REGS, Recording};

/// Bytes that the instruction zeroes; 0 if unknown.
static BLOCK_BYTES: AtomicU64 = AtomicU64::new(0);
/// Whether the layout of the CPU state is as expected.
static VERIFIED: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

/// Offset of the registers x0, x1, ... in `CPUARMState`: they follow 16 registers of 4 bytes.
const REGISTERS: usize = 64;
/// Bits of a register number in the data of a callback.
const NUMBER_BITS: u32 = 5;
/// Maximum bytes per record: a cache line.
const LINE: u64 = 64;
const LINE_SHIFT: u64 = LINE.trailing_zeros() as u64;

thread_local! {
    /// Address of this thread's CPU state, when last seen.
    static CPU_STATE: Cell<usize> = const { Cell::new(0) };
}

pub fn set_block_bytes(bytes: Option<u64>) {
    BLOCK_BYTES.store(bytes.filter(|bytes| bytes.is_power_of_two()).unwrap_or(0), Relaxed);
}

fn register(cpu_state: usize, number: usize) -> u64 {
    let addr = cpu_state + REGISTERS + number * 8;
    // SAFETY: within QEMU's structure, which is much larger and lives as long as its thread.
    unsafe { std::ptr::with_exposed_provenance::<u64>(addr).read() }
}

/// Register a callback for the `dc zva` that is instruction `index` of `count` in `block`.
/// `reference_data` is that of [`Recording::data`], and `number` is the instruction's register.
///
/// # Safety
/// To be called while QEMU translates `block`, which has this instruction.
pub unsafe fn instrument<R: Recording>(
    block: *mut qemu::qemu_plugin_tb,
    index: usize,
    count: usize,
    number: u8,
    reference_data: u64,
) {
    // SAFETY: contract of this function.
    unsafe {
        let last = index + 1 == count;
        let at = qemu::qemu_plugin_tb_get_insn(block, if last { index } else { index + 1 });
        // Called before the next instruction, when the register is unchanged. Without a next
        // instruction, the stores are not seen.
        let callback = if last { unseen } else { R::zeroed() };
        // Shift the low part to make room for the number of the register.
        let low = (reference_data & ADDR_MASK) << NUMBER_BITS;
        let data = (reference_data & !ADDR_MASK | low | u64::from(number)) as *mut c_void;
        qemu::qemu_plugin_register_vcpu_insn_exec_cb(at, Some(callback), NO_REGS, data);
    }
}

/// Register a callback that records the CPU state's address before a system call, for [`verify_layout`].
///
/// # Safety
/// To be called while QEMU translates the instruction.
pub unsafe fn instrument_call(instruction: *mut qemu::qemu_plugin_insn) {
    if VERIFIED.load(Relaxed) != UNKNOWN {
        return;
    }
    // SAFETY: contract of this function.
    unsafe {
        let data = std::ptr::null_mut();
        qemu::qemu_plugin_register_vcpu_insn_exec_cb(instruction, Some(called), NO_REGS, data);
    }
}

/// Verify the layout at a system call: its number is in x8, its arguments in x0 to x5.
pub fn verify_layout(number: i64, arguments: &[u64; 6]) {
    let cpu_state = CPU_STATE.get();
    if cpu_state != 0 && VERIFIED.load(Relaxed) == UNKNOWN {
        let mut arguments = arguments.iter().enumerate();
        let same = register(cpu_state, 8) == number as u64
            && arguments.all(|(i, argument)| register(cpu_state, i) == *argument);
        VERIFIED.store(if same { YES } else { NO }, Relaxed);
    }
}

/// Report, once, that some stores are not seen.
extern "C" fn unseen(vcpu: c_uint, _: *mut c_void) {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if !REPORTED.swap(true, Relaxed) {
        // SAFETY: QEMU calls this on the thread of `vcpu`, which has been opened.
        unsafe { Stream::of(vcpu) }.note(what::UNSEEN, b"dc zva");
    }
}

extern "C" fn at_call(_: c_uint, _: *mut c_void, cpu_state: usize) {
    CPU_STATE.set(cpu_state);
}

/// Called after a `dc zva`. `data` is as [`instrument`] encodes it.
extern "C" fn at_zero<R: Recording>(vcpu: c_uint, data: *mut c_void, cpu_state: usize) {
    let (data, bytes) = (data as u64, BLOCK_BYTES.load(Relaxed));
    if VERIFIED.load(Relaxed) != YES || bytes == 0 {
        return unseen(vcpu, std::ptr::null_mut());
    }
    let addr = register(cpu_state, (data & 31) as usize) & !(bytes - 1);
    let (line, shift) =
        if bytes < LINE { (bytes, bytes.trailing_zeros().into()) } else { (LINE, LINE_SHIFT) };
    for at in (addr..addr + bytes).step_by(line as usize) {
        let (word, at) = (STORE | shift << SIZE_SHIFT, At { addr: at, info: 0 });
        // SAFETY: as in `unseen`.
        unsafe { R::access(vcpu, word, at, data & !ADDR_MASK | (data & ADDR_MASK) >> NUMBER_BITS) };
    }
}

/// Trampolines for calls from generated code: pass the CPU state, which is in a register outside of
/// the calling convention, as the third argument.
macro_rules! with_cpu_state {
    ($name:ident, $to:path) => {
        #[unsafe(naked)]
        pub extern "C" fn $name(_: c_uint, _: *mut c_void) {
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!("mov rdx, rbp", "jmp {}", sym $to);
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!("mov x2, x19", "b {}", sym $to);
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            compile_error!("which register is TCG_AREG0 of this host?");
        }
    };
}

with_cpu_state!(zeroed, at_zero::<AllReferences>);
with_cpu_state!(zeroed_in_sample, at_zero::<Sample>);
with_cpu_state!(called, at_call);
