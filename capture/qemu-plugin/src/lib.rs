// SPDX-License-Identifier: GPL-2.0-or-later
//! QEMU TCG plugin (API version 1): writes every executed block and every load and store of a
//! program, or of a virtual machine ([`vm`]), as 64-bit words to memory shared with the capture
//! process, the *receiver*. `layout.rs` defines the words.
//!
//! Arguments:
//!
//! * `shm=PATH`: the file of the shared memory.
//! * `plugin=PATH`: this plugin.
//! * `descriptors=PLUGIN:MEMORY`: descriptors of these two files, inherited through an `execve` ([`reach`]).
//! * `process=NUMBER`: pid of this process in the receiver's namespace.
//! * `zva=BYTES`: the bytes that an aarch64 `dc zva` zeroes.
//! * `entry=BYTES`: the bytes that QEMU's tables take for each mapped page ([`reserve`]).
//! * `ram=BYTES:LOW:LOW_BYTES:HIGH`: the RAM of a virtual machine, and where it is ([`vm::Ram`]).

mod exec;
mod guest;
mod instruction;
#[path = "../../../crates/capture/src/layout.rs"]
#[allow(dead_code)]
mod layout;
mod reach;
mod recorder;
mod repeat;
mod reserve;
mod sample;
mod seen;
mod stream;
mod syscall;
mod vm;
mod zero;

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use qemu_plugin_sys as qemu;

use instruction::Kind;
use layout::{BLOCK, INDEX_SHIFT, KERNEL, KERNEL_BLOCK, SIZE_SHIFT, STORE};
use recorder::Recorder;
use stream::Stream;
use vm::Physical;

/// Version of the plugin API that this is built for; QEMU reads this symbol.
// SAFETY: the name is unique.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static qemu_plugin_version: c_int = qemu::QEMU_PLUGIN_VERSION as c_int;

const NO_REGS: qemu::qemu_plugin_cb_flags = qemu::qemu_plugin_cb_flags::QEMU_PLUGIN_CB_NO_REGS;
const READ_WRITE: qemu::qemu_plugin_mem_rw = qemu::qemu_plugin_mem_rw::QEMU_PLUGIN_MEM_RW;

/// What callbacks record: [`AllReferences`] or [`sample::Sample`].
///
/// # Safety
/// Call the unsafe functions only on the thread of `vcpu`, after [`Recorder::open`] of `vcpu`, without
/// holding a [`Stream`], and only those of the implementation that is in use.
trait Recording {
    /// Data for the callback of a reference, from the `index` of its instruction, shifted into
    /// place, and the `count` of instructions of its block.
    fn data(index: u64, count: u64) -> u64;
    /// A load or store. `word` lacks the address, and the index of the instruction, which is in
    /// `data`.
    unsafe fn access(vcpu: c_uint, word: u64, at: At, data: u64);
    /// A block begins that is encoded as `word`.
    unsafe fn fetch(vcpu: c_uint, word: u64);
    /// A number that changes with every block and reference of `vcpu`.
    unsafe fn position(vcpu: c_uint) -> u64;
    /// The callback for most references, if QEMU packs `info` as expected.
    fn reference() -> OnReference;
    /// The callback for a block that is encoded as `word`, and its data.
    fn block(recorder: &Recorder, word: u64, count: u64) -> (OnBlock, u64);
    /// The callback for `dc zva` ([`zero`]).
    fn zeroed() -> OnBlock;
}

/// A load or store, as QEMU reports it.
#[derive(Clone, Copy)]
pub struct At {
    addr: u64,
    /// `qemu_plugin_meminfo_t`.
    info: u32,
}

type OnBlock = extern "C" fn(c_uint, *mut c_void);
type OnReference = extern "C" fn(c_uint, u32, u64, *mut c_void);

/// Every block and every reference.
struct AllReferences;

impl Recording for AllReferences {
    fn data(index: u64, _: u64) -> u64 {
        index
    }
    #[inline(always)]
    unsafe fn access(vcpu: c_uint, word: u64, at: At, data: u64) {
        // SAFETY: contract of the trait.
        unsafe { Stream::of(vcpu) }.put(word | at.addr & ADDR_MASK | data);
    }
    #[inline(always)]
    unsafe fn fetch(vcpu: c_uint, word: u64) {
        // SAFETY: as above.
        unsafe { Stream::of(vcpu) }.put(word);
    }
    #[inline(always)]
    unsafe fn position(vcpu: c_uint) -> u64 {
        // SAFETY: as above.
        unsafe { Stream::of(vcpu) }.position()
    }
    fn reference() -> OnReference {
        reference_by::<Self>
    }
    fn block(_: &Recorder, word: u64, _: u64) -> (OnBlock, u64) {
        (on_block, word)
    }
    fn zeroed() -> OnBlock {
        zero::zeroed
    }
}

/// Called when a block begins that is encoded as `word`.
extern "C" fn on_block(vcpu: c_uint, word: *mut c_void) {
    // SAFETY: `on_vcpu_start` has opened `vcpu`, and QEMU calls this on its thread.
    unsafe { AllReferences::fetch(vcpu, word as u64) };
}

/// Called on a load or store. `data` is that of [`Recording::data`].
extern "C" fn reference_by<R: Recording>(vcpu: c_uint, info: u32, addr: u64, data: *mut c_void) {
    // SAFETY: as in `on_block`; only callbacks of the `R` in use are registered.
    unsafe { R::access(vcpu, unpack_fast(info), At { addr, info }, data as u64) };
}

/// Like [`reference_by`], for a QEMU that packs `info` in another way.
extern "C" fn reference_by_api<R: Recording>(
    vcpu: c_uint,
    info: u32,
    addr: u64,
    data: *mut c_void,
) {
    // SAFETY: as in `reference_by`.
    unsafe { R::access(vcpu, unpack_by_api(info), At { addr, info }, data as u64) };
}

/// Like [`reference_by`], for an instruction that loads and stores at once: if the program has
/// several threads, QEMU makes one call for both.
extern "C" fn atomic_reference<R: Recording>(
    vcpu: c_uint,
    info: u32,
    addr: u64,
    data: *mut c_void,
) {
    let (word, at) = (unpack_by_api(info), At { addr, info });
    // SAFETY: as in `reference_by`.
    unsafe {
        if loads_and_stores(info) {
            R::access(vcpu, word & !STORE, at, data as u64);
        }
        R::access(vcpu, word, at, data as u64);
    }
}

/// Like [`reference_by`], for a store exclusive (`stxr`): QEMU emulates it by a compare-and-exchange,
/// but the instruction only stores.
extern "C" fn exclusive_store<R: Recording>(vcpu: c_uint, info: u32, addr: u64, data: *mut c_void) {
    let word = unpack_by_api(info);
    if word & STORE != 0 {
        // SAFETY: as in `reference_by`.
        unsafe { R::access(vcpu, word, At { addr, info }, data as u64) };
    }
}

/// Whether `info` is a load and a store in one, of which the API reports only the store.
fn loads_and_stores(info: u32) -> bool {
    FAST_UNPACK.load(Relaxed) && info >> 16 & 3 == 3
}

const ADDR_MASK: u64 = (1 << layout::ADDR_BITS) - 1;

/// Unpack size and direction from `info` as QEMU 7.2 packs it, without two calls into QEMU. Used if
/// [`is_packed_as_expected`].
#[inline(always)]
fn unpack_fast(info: u32) -> u64 {
    ((u64::from(info >> 4) & 7) << SIZE_SHIFT) | ((u64::from(info >> 17) & 1) * STORE)
}

fn unpack_by_api(info: u32) -> u64 {
    // SAFETY: these only read the bits of `info`.
    let (shift, store) =
        unsafe { (qemu::qemu_plugin_mem_size_shift(info), qemu::qemu_plugin_mem_is_store(info)) };
    ((u64::from(shift) & 7) << SIZE_SHIFT) | (u64::from(store) * STORE)
}

fn is_packed_as_expected() -> bool {
    let infos = (0..8u32).flat_map(|size| (0..4u32).map(move |rw| size << 4 | rw << 16));
    infos.flat_map(|info| [info, info | 0xf]).all(|info| unpack_fast(info) == unpack_by_api(info))
}

static FAST_UNPACK: AtomicBool = AtomicBool::new(false);
static STARTED: AtomicBool = AtomicBool::new(false);
static BLOCKS: Mutex<Option<HashMap<(u64, u64), u32>>> = Mutex::new(None);

/// Index of a block in the shared table, for a block that does not fit a word. A block that is translated
/// again gets the same index, so that the table grows with the program's code and not with its run time.
fn block_index(recorder: &Recorder, addr: u64, bytes: u64, instructions: u64) -> u32 {
    let shape = instructions << 32 | bytes;
    let Ok(mut guard) = BLOCKS.lock() else { return 0 };
    let known = guard.get_or_insert_with(HashMap::new);
    *known.entry((addr, shape)).or_insert_with(|| recorder.add_block(addr, shape))
}

extern "C" fn on_translation(_: qemu::qemu_plugin_id_t, block: *mut qemu::qemu_plugin_tb) {
    let Some(recorder) = Recorder::installed() else { return };
    if !vm::is_on() && !STARTED.swap(true, Relaxed) {
        recorder.started();
        // SAFETY: the first thread translates the first block, outside of other callbacks.
        guest::report_mappings(&mut unsafe { Stream::of(0) });
    }
    // SAFETY: the block is valid.
    unsafe {
        match (vm::is_on(), sample::is_on()) {
            (false, false) => instrument::<AllReferences>(recorder, block),
            (false, true) => instrument::<sample::Sample>(recorder, block),
            (true, false) => instrument::<Physical<AllReferences>>(recorder, block),
            (true, true) => instrument::<Physical<sample::Sample>>(recorder, block),
        }
    }
}

/// A block, or in a virtual machine the part of a block that lies in one page.
struct Part {
    /// Index of its first instruction.
    first: usize,
    /// Number of instructions.
    count: usize,
    /// Address of its code; `None` if that is not in the RAM of the virtual machine.
    addr: Option<u64>,
    bytes: u64,
}

/// The parts of a block.
///
/// # Safety
/// To be called while QEMU translates `block`.
unsafe fn parts(block: *mut qemu::qemu_plugin_tb) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::with_capacity(2);
    // SAFETY: contract of this function, and every index is below the number of instructions.
    unsafe {
        for index in 0..qemu::qemu_plugin_tb_n_insns(block) {
            let instruction = qemu::qemu_plugin_tb_get_insn(block, index);
            let bytes = qemu::qemu_plugin_insn_size(instruction) as u64;
            let addr = match vm::is_on() {
                true => vm::code(instruction),
                false => Some(qemu::qemu_plugin_insn_vaddr(instruction)),
            };
            match parts.last_mut() {
                Some(part) if !vm::is_on() || vm::continues(part, addr) => {
                    part.count += 1;
                    part.bytes += bytes;
                }
                _ => parts.push(Part { first: index, count: 1, addr, bytes }),
            }
        }
    }
    parts
}

impl Part {
    /// The word that encodes it; `None` outside of RAM if it has too many instructions for a word.
    fn word(&self, recorder: &Recorder, kernel: bool) -> Option<u64> {
        let (bytes, count) = (self.bytes, self.count as u64);
        let Some(addr) = self.addr else { return layout::count_only_word(count) };
        let addr = if kernel { addr | KERNEL_BLOCK } else { addr };
        let word = layout::block_word(addr, bytes, count);
        Some(word.unwrap_or_else(|| BLOCK | u64::from(block_index(recorder, addr, bytes, count))))
    }
}

/// Register the callbacks of a block.
///
/// # Safety
/// To be called while QEMU translates `block`.
unsafe fn instrument<R: Recording>(recorder: &Recorder, block: *mut qemu::qemu_plugin_tb) {
    let fast = FAST_UNPACK.load(Relaxed);
    let ordinary = if fast { R::reference() } else { reference_by_api::<R> };
    // SAFETY: contract of this function, and every index is below the number of instructions.
    unsafe {
        let kernel = vm::is_on() && vm::is_kernel(qemu::qemu_plugin_tb_vaddr(block));
        let instructions = qemu::qemu_plugin_tb_n_insns(block);
        for part in parts(block) {
            let (mut is_repeat, mut at) = (false, part.addr.unwrap_or(0));
            for index in part.first..part.first + part.count {
                let instruction = qemu::qemu_plugin_tb_get_insn(block, index);
                let size = qemu::qemu_plugin_insn_size(instruction);
                let bits = ((index - part.first) as u64 & layout::INDEX_MASK) << INDEX_SHIFT;
                let bits = if kernel { bits | KERNEL } else { bits };
                let mut data = R::data(bits, part.count as u64) as *mut c_void;
                let code = qemu::qemu_plugin_insn_data(instruction).cast::<u8>();
                let code = std::slice::from_raw_parts(code, size);
                let callback = match instruction::kind(syscall::machine(), code) {
                    Kind::Ordinary => ordinary,
                    Kind::Atomic => atomic_reference::<R>,
                    Kind::StoreExclusive => exclusive_store::<R>,
                    Kind::Repeat => {
                        let addr = if kernel { at | KERNEL_BLOCK } else { at };
                        data = repeat::callback_data(addr, data as u64);
                        is_repeat = part.count == 1;
                        repeat::reference::<R>
                    }
                    Kind::Zero(register) => {
                        zero::instrument::<R>(block, index, instructions, register, data as u64);
                        ordinary
                    }
                    Kind::Call => {
                        zero::instrument_call(instruction);
                        ordinary
                    }
                };
                at += size as u64;
                if kernel {
                    vm::instrument_switch(recorder, instruction);
                }
                qemu::qemu_plugin_register_vcpu_mem_cb(
                    instruction,
                    Some(callback),
                    NO_REGS,
                    READ_WRITE,
                    data,
                );
            }
            let Some(word) = part.word(recorder, kernel) else { continue };
            let (begins, data): (OnBlock, u64) = match is_repeat {
                true => (repeat::on_block::<R>, word),
                false => R::block(recorder, word, part.count as u64),
            };
            let data = data as *mut c_void;
            if part.first == 0 {
                qemu::qemu_plugin_register_vcpu_tb_exec_cb(block, Some(begins), NO_REGS, data);
            } else {
                let first = qemu::qemu_plugin_tb_get_insn(block, part.first);
                qemu::qemu_plugin_register_vcpu_insn_exec_cb(first, Some(begins), NO_REGS, data);
            }
        }
    }
}

extern "C" fn on_vcpu_start(_: qemu::qemu_plugin_id_t, vcpu: c_uint) {
    if let Some(recorder) = Recorder::installed() {
        recorder.open(vcpu);
    }
}

extern "C" fn on_vcpu_end(_: qemu::qemu_plugin_id_t, vcpu: c_uint) {
    // SAFETY: `on_vcpu_start` has opened `vcpu`, and QEMU calls this on its thread.
    unsafe { Stream::of(vcpu) }.close();
}

extern "C" fn after_fork_in_child() {
    if let Some(recorder) = Recorder::installed() {
        recorder.after_fork_in_child();
    }
}

/// Called by QEMU when it loads the plugin. A result other than 0 stops QEMU with a message.
///
/// # Safety
/// All pointers must be valid.
// SAFETY: the name is unique.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: qemu::qemu_plugin_id_t,
    info: *const qemu::qemu_info_t,
    argc: c_int,
    argv: *mut *mut c_char,
) -> c_int {
    // SAFETY: QEMU passes valid pointers, and the callbacks have the types that it expects.
    unsafe {
        let target = CStr::from_ptr((*info).target_name).to_str().unwrap_or("");
        let words = || {
            (0..argc as usize).filter_map(|index| CStr::from_ptr(*argv.add(index)).to_str().ok())
        };
        let argument = |name: &str| words().find_map(|word| word.strip_prefix(name));
        let (Some(path), Some(plugin)) = (argument("shm="), argument("plugin=")) else {
            eprintln!("nearfar plugin: no shm=PATH argument; start it with `nearfar capture`");
            return 1;
        };
        let ram = argument("ram=").and_then(vm::Ram::parse);
        if (*info).system_emulation != ram.is_some() || !syscall::set_target(target) {
            eprintln!("nearfar plugin: only for qemu-x86_64 and qemu-aarch64, or their systems");
            return 1;
        }
        let number = |text: &str| text.parse().ok();
        let passed = argument("descriptors=").and_then(|text| text.split_once(':'));
        let passed = passed.and_then(|(plugin, memory)| number(plugin).zip(number(memory)));
        let (plugin_fd, memory_fd) = passed.unwrap_or((-1, -1));
        if let Some(process) = argument("process=").and_then(|text| text.parse().ok()) {
            recorder::set_process_id(process);
        }
        let extra = ["zva=", "entry="];
        let extra = extra.iter().filter_map(|name| Some(format!(",{name}{}", argument(name)?)));
        let extra = extra.collect();
        let memory = reach::install((path, memory_fd), (plugin, plugin_fd), extra);
        match memory.and_then(Recorder::install) {
            Ok(recorder) => {
                recorder.watch();
                if let Err(error) = sample::install(recorder) {
                    eprintln!("nearfar plugin: cannot map a table for --sample: {error}");
                    return 1;
                }
            }
            Err(error) => {
                eprintln!("nearfar plugin: cannot use {path}: {error}");
                return 1;
            }
        }
        FAST_UNPACK.store(is_packed_as_expected(), Relaxed);
        if let Some(ram) = ram {
            vm::install(id, ram);
            return 0;
        }
        reach::set_image(guest::record_host_mappings());
        zero::set_block_bytes(argument("zva=").and_then(|text| text.parse().ok()));
        let entry = argument("entry=").and_then(|text| text.parse().ok());
        reserve::set_entry_bytes(entry.unwrap_or(0));
        libc::pthread_atfork(Some(syscall::before_fork), None, Some(after_fork_in_child));
        qemu::qemu_plugin_register_vcpu_init_cb(id, Some(on_vcpu_start));
        qemu::qemu_plugin_register_vcpu_exit_cb(id, Some(on_vcpu_end));
        qemu::qemu_plugin_register_vcpu_tb_trans_cb(id, Some(on_translation));
        qemu::qemu_plugin_register_vcpu_syscall_cb(id, Some(syscall::on_call));
        qemu::qemu_plugin_register_vcpu_syscall_ret_cb(id, Some(syscall::on_return));
    }
    0
}
