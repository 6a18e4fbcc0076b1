// SPDX-License-Identifier: GPL-2.0-or-later
//! System emulation: the references of a whole virtual machine, by guest-physical address.
//! References of its kernel are recognised by the address of their code.
//!
//! Until the receiver requests records ([`Header::record`](crate::layout::Header::record)), no code
//! is instrumented, so that the machine boots as fast as without the plugin. Then the plugin is
//! reset: QEMU discards all translated code.
//!
//! The machine's RAM is one mapping of this process, of a file that the receiver made. The host
//! address that QEMU reports for a reference therefore gives its offset in RAM.

use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::fs;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

use qemu_plugin_sys as qemu;

use crate::layout::{PAGE_SHIFT, SIZE_SHIFT, STORE, TASK_NAME, now, what};
use crate::recorder::{Recorder, end_process, futex_wait, in_background};
use crate::stream::Stream;
use crate::{
    At, NO_REGS, OnBlock, OnReference, Part, READ_WRITE, Recording, on_translation, unpack_by_api,
};

const PAGE: u64 = 1 << PAGE_SHIFT;

/// The machine's RAM: `low_bytes` from guest-physical address `low`, and the rest of its `bytes` from
/// `high`.
#[derive(Clone, Copy, Debug)]
pub struct Ram {
    bytes: u64,
    low: u64,
    low_bytes: u64,
    high: u64,
}

impl Ram {
    /// Parse `BYTES:LOW:LOW_BYTES:HIGH`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(':').map(|word| word.parse().ok());
        let mut next = || words.next().flatten();
        Some(Self { bytes: next()?, low: next()?, low_bytes: next()?, high: next()? })
    }

    /// The guest-physical address of byte `offset` of RAM; `None` beyond the end.
    fn address(&self, offset: u64) -> Option<u64> {
        match offset {
            _ if offset >= self.bytes => None,
            _ if offset < self.low_bytes => Some(self.low + offset),
            _ => Some(self.high + (offset - self.low_bytes)),
        }
    }

    /// Offset in RAM of a guest-physical address, if `bytes` bytes from there are in RAM.
    fn offset(&self, addr: u64, bytes: u64) -> Option<u64> {
        let low = addr.checked_sub(self.low)?;
        let (offset, end) = if low < self.low_bytes {
            (low, self.low_bytes.min(self.bytes))
        } else {
            (self.low_bytes.checked_add(addr.checked_sub(self.high)?)?, self.bytes)
        };
        (offset.checked_add(bytes)? <= end).then_some(offset)
    }
}

/// The machine's RAM and its host address; known once recording has begun.
struct Machine {
    ram: Ram,
    base: u64,
}

static RAM: OnceLock<Ram> = OnceLock::new();
static MACHINE: OnceLock<Machine> = OnceLock::new();
/// QEMU's number for this plugin.
static ID: AtomicU64 = AtomicU64::new(0);
/// Recording has begun, or is about to.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// Whether QEMU emulates a whole machine.
pub fn is_on() -> bool {
    RAM.get().is_some()
}

/// Wait in the background until the receiver requests records.
///
/// # Safety
/// To be called while QEMU installs the plugin as number `id`.
pub unsafe fn install(id: qemu::qemu_plugin_id_t, ram: Ram) {
    let _ = RAM.set(ram);
    ID.store(id, Relaxed);
    // SAFETY: contract of this function, and the callbacks have the types that QEMU expects.
    unsafe {
        qemu::qemu_plugin_register_vcpu_init_cb(id, Some(on_processor));
        qemu::qemu_plugin_register_vcpu_resume_cb(id, Some(on_resume));
    }
    // Register the callback for translations late, because it would slow down the boot.
    in_background(move || {
        let Some(recorder) = Recorder::installed() else { return };
        while recorder.header().record.load(Acquire) == 0 {
            futex_wait(&recorder.header().record, 0, 1000);
        }
        // SAFETY: QEMU takes its lock.
        unsafe { qemu::qemu_plugin_register_vcpu_tb_trans_cb(id, Some(before_recording)) };
    });
}

extern "C" fn on_processor(_: qemu::qemu_plugin_id_t, vcpu: c_uint) {
    if let Some(recorder) = Recorder::installed() {
        recorder.open(vcpu);
        recorder.started();
    }
}

extern "C" fn on_resume(_: qemu::qemu_plugin_id_t, _: c_uint) {
    begin_if_requested();
}

extern "C" fn before_recording(_: qemu::qemu_plugin_id_t, _: *mut qemu::qemu_plugin_tb) {
    begin_if_requested();
}

/// Begin to record if the receiver has requested it: QEMU removes all callbacks and all translated
/// code, then calls [`instrument`].
fn begin_if_requested() {
    let requested = |recorder: &Recorder| recorder.header().record.load(Acquire) != 0;
    if Recorder::installed().is_some_and(requested) && !BEGUN.swap(true, Relaxed) {
        // SAFETY: QEMU calls this on the thread of a virtual CPU.
        unsafe { qemu::qemu_plugin_reset(ID.load(Relaxed), Some(instrument)) };
    }
}

extern "C" fn instrument(id: qemu::qemu_plugin_id_t) {
    let (Some(recorder), Some(ram)) = (Recorder::installed(), RAM.get()) else { return };
    let Some(base) = base_of_ram() else { fail("its RAM is not mapped") };
    let _ = MACHINE.set(Machine { ram: *ram, base });
    // SAFETY: the callback has the type that QEMU expects.
    unsafe { qemu::qemu_plugin_register_vcpu_tb_trans_cb(id, Some(on_translation)) };
    recorder.header().recording.store(1, Release);
    recorder.ring_bell();
}

/// Host address of the machine's RAM.
fn base_of_ram() -> Option<u64> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.contains("/memfd:nearfar-vm "))?;
    u64::from_str_radix(line.split('-').next()?, 16).ok()
}

/// End QEMU: its records would be wrong.
fn fail(why: &str) -> ! {
    eprintln!("nearfar plugin: cannot record this machine: {why}; Debian's QEMU 7.2 is tested");
    end_process();
    std::process::abort()
}

/// The guest-physical address of an instruction's first byte; `None` if it is not in RAM.
///
/// # Safety
/// `instruction` is valid.
pub unsafe fn code(instruction: *mut qemu::qemu_plugin_insn) -> Option<u64> {
    // SAFETY: contract of this function.
    let host = unsafe { qemu::qemu_plugin_insn_haddr(instruction) } as u64;
    let machine = MACHINE.get()?;
    machine.ram.address(host.wrapping_sub(machine.base))
}

/// Whether an instruction at `addr` is in the same page as `part`, the instructions before it.
pub fn continues(part: &Part, addr: Option<u64>) -> bool {
    match (part.addr, addr) {
        (Some(start), Some(addr)) => start / PAGE == addr / PAGE,
        (start, addr) => start.is_none() && addr.is_none(),
    }
}

/// Whether code at a virtual address is the kernel's: Linux has the upper half, on x86-64 and
/// aarch64. Firmware counts as a program.
pub fn is_kernel(addr: u64) -> bool {
    addr >> 63 != 0
}

/// QEMU's `struct qemu_plugin_hwaddr` (plugins/api.c), if the address is in memory.
#[repr(C)]
struct HostAddress {
    is_device: bool,
    is_store: bool,
    host: u64,
}

/// The guest-physical address of a reference that has just been made; `None` if it is not in RAM.
#[inline(always)]
fn locate(info: u32, addr: u64) -> Option<u64> {
    // SAFETY: only callbacks of references call this function; QEMU allows the call in them.
    let hwaddr = unsafe { qemu::qemu_plugin_get_hwaddr(info, addr) };
    let machine = MACHINE.get()?;
    if hwaddr.is_null() {
        return None;
    }
    // SAFETY: as QEMU 7.2 defines it, which `check` verifies.
    let HostAddress { is_device, host, .. } = unsafe { hwaddr.cast::<HostAddress>().read() };
    if is_device {
        return None;
    }
    let offset = host.wrapping_sub(machine.base);
    if CHECKS.load(Relaxed) < MAX_CHECKS {
        check(hwaddr, offset, machine);
    }
    machine.ram.address(offset)
}

/// Maximum bytes of `__switch_to`.
const SWITCH_BYTES: u64 = 0x800;
/// Maximum bytes of a `struct task_struct`.
const TASK_BYTES: u64 = 1 << 15;

/// Register a callback for an instruction of `__switch_to`, which may switch tasks; ignore others.
///
/// # Safety
/// To be called while QEMU translates the instruction.
pub unsafe fn instrument_switch(recorder: &Recorder, instruction: *mut qemu::qemu_plugin_insn) {
    let start = recorder.header().tasks.switch.load(Relaxed);
    // SAFETY: contract of this function, and the callback has the type that QEMU expects.
    unsafe {
        let addr = qemu::qemu_plugin_insn_vaddr(instruction);
        if start != 0 && addr.wrapping_sub(start) < SWITCH_BYTES {
            let data = std::ptr::null_mut();
            qemu::qemu_plugin_register_vcpu_mem_cb(
                instruction,
                Some(switch),
                NO_REGS,
                READ_WRITE,
                data,
            );
        }
    }
}

/// Called on a load or store by `__switch_to`: if it makes another task current, report that task.
extern "C" fn switch(vcpu: c_uint, info: u32, addr: u64, _: *mut c_void) {
    let Some(recorder) = Recorder::installed() else { return };
    let tasks = &recorder.header().tasks;
    // Size and kind of the reference, as in records.
    let word = unpack_by_api(info);
    // The variable of the current task has 8 bytes, and the same offset in a page for every CPU.
    if word & STORE == 0
        || word >> SIZE_SHIFT & 7 != 3
        || !(addr ^ tasks.current.load(Relaxed)).is_multiple_of(PAGE)
    {
        return;
    }
    let Some(variable) = locate(info, addr) else { return };
    // The variable and the tasks are in the kernel's direct map of RAM.
    let map_offset = addr.wrapping_sub(variable);
    let Some(task) = read::<8>(variable).map(u64::from_le_bytes) else { return };
    let before = CURRENT.get();
    // The previous task may have called `execve` since, which changes its name.
    let renamed = read_task(recorder, before.addr).filter(|task| task.name != before.name);
    let next = read_task(recorder, task.wrapping_sub(map_offset)).unwrap_or_default();
    CURRENT.set(next);
    for Task { pid, process, name, .. } in renamed.into_iter().chain([next]) {
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(TASK_NAME);
        // SAFETY: QEMU calls this on the thread of `vcpu`; no other handle exists.
        unsafe { Stream::of(vcpu) }.event(&[what::TASK, pid, process, now()], &name[..end]);
    }
}

#[derive(Clone, Copy, Default)]
struct Task {
    /// Guest-physical address of its `struct task_struct`; 0 if it is not known.
    addr: u64,
    /// The kernel's `pid`, of the thread.
    pid: u64,
    /// The kernel's `tgid`.
    process: u64,
    name: [u8; TASK_NAME],
}

thread_local! {
    /// The current task of this virtual CPU.
    static CURRENT: Cell<Task> =
        const { Cell::new(Task { addr: 0, pid: 0, process: 0, name: [0; TASK_NAME] }) };
}

/// The task at a guest-physical address.
fn read_task(recorder: &Recorder, addr: u64) -> Option<Task> {
    let offsets = &recorder.header().tasks.offsets;
    let [pid, process, name] =
        offsets.each_ref().map(|at| addr.wrapping_add(at.load(Relaxed) % TASK_BYTES));
    let number = |at| read::<4>(at).map(|bytes| u64::from(u32::from_le_bytes(bytes)));
    let task = Task { addr, pid: number(pid)?, process: number(process)?, name: read(name)? };
    (addr != 0).then_some(task)
}

/// The bytes at a guest-physical address, if they are in RAM.
fn read<const BYTES: usize>(addr: u64) -> Option<[u8; BYTES]> {
    let machine = MACHINE.get()?;
    let at = machine.base + machine.ram.offset(addr, BYTES as u64)?;
    // SAFETY: within the mapping of RAM; any bytes are valid. The guest may write them meanwhile.
    Some(unsafe { std::ptr::with_exposed_provenance::<[u8; BYTES]>(at as usize).read_volatile() })
}

/// Number of references whose addresses are compared with those that QEMU's API gives.
const MAX_CHECKS: u64 = 1 << 12;
static CHECKS: AtomicU64 = AtomicU64::new(0);
/// The API's address of the first byte of RAM, plus 1; 0 if unknown.
static FIRST_BYTE: AtomicU64 = AtomicU64::new(0);

/// End QEMU if its API contradicts `offset`: then [`HostAddress`] is not QEMU's structure.
#[cold]
fn check(hwaddr: *mut qemu::qemu_plugin_hwaddr, offset: u64, machine: &Machine) {
    CHECKS.fetch_add(1, Relaxed);
    if offset >= machine.ram.bytes {
        return;
    }
    // SAFETY: valid until the callback returns.
    let is_device = unsafe { qemu::qemu_plugin_hwaddr_is_io(hwaddr) };
    // SAFETY: as above.
    let number = if is_device { 0 } else { unsafe { qemu::qemu_plugin_hwaddr_phys_addr(hwaddr) } };
    let first = number.wrapping_sub(offset).wrapping_add(1);
    let known =
        FIRST_BYTE.compare_exchange(0, first, Relaxed, Relaxed).unwrap_or_else(|first| first);
    if is_device || known != 0 && known != first {
        fail("QEMU's structures differ from those expected");
    }
}

/// Records as `R` does, with guest-physical addresses.
pub struct Physical<R>(R);

impl<R: Recording> Recording for Physical<R> {
    fn data(index: u64, count: u64) -> u64 {
        R::data(index, count)
    }
    #[inline(always)]
    unsafe fn access(vcpu: c_uint, word: u64, at: At, data: u64) {
        let bytes = 1 << (word >> SIZE_SHIFT & 7);
        let first = PAGE - at.addr % PAGE;
        if bytes > first {
            // SAFETY: contract of the trait.
            return unsafe { crossing::<R>(vcpu, word, at, data) };
        }
        // SAFETY: as above.
        unsafe { within_page::<R>(vcpu, word, at, data) };
    }
    #[inline(always)]
    unsafe fn fetch(vcpu: c_uint, word: u64) {
        // SAFETY: contract of the trait.
        unsafe { R::fetch(vcpu, word) };
    }
    unsafe fn position(vcpu: c_uint) -> u64 {
        // SAFETY: contract of the trait.
        unsafe { R::position(vcpu) }
    }
    fn reference() -> OnReference {
        crate::reference_by::<Self>
    }
    fn block(recorder: &Recorder, word: u64, count: u64) -> (OnBlock, u64) {
        R::block(recorder, word, count)
    }
    fn zeroed() -> OnBlock {
        R::zeroed()
    }
}

/// A reference to one page.
///
/// # Safety
/// That of [`Recording::access`].
#[inline(always)]
unsafe fn within_page<R: Recording>(vcpu: c_uint, word: u64, at: At, data: u64) {
    match locate(at.info, at.addr) {
        // SAFETY: contract of this function.
        Some(addr) => unsafe { R::access(vcpu, word, At { addr, ..at }, data) },
        None => not_in_ram(),
    }
}

/// A reference that crosses a page boundary: record a reference to each page, with the bytes there
/// rounded down to a power of two.
///
/// # Safety
/// That of [`Recording::access`].
#[cold]
unsafe fn crossing<R: Recording>(vcpu: c_uint, word: u64, at: At, data: u64) {
    let bytes = 1 << (word >> SIZE_SHIFT & 7);
    let first = PAGE - at.addr % PAGE;
    for (addr, bytes) in [(at.addr, first), (at.addr + first, bytes - first)] {
        let word = word & !(7 << SIZE_SHIFT) | u64::from(bytes.ilog2()) << SIZE_SHIFT;
        // SAFETY: contract of this function.
        unsafe { within_page::<R>(vcpu, word, At { addr, ..at }, data) };
    }
}

/// Count a reference to a device's memory or to firmware.
#[cold]
fn not_in_ram() {
    if let Some(recorder) = Recorder::installed() {
        recorder.header().device_references.fetch_add(1, Relaxed);
    }
}
