//! A virtual machine under QEMU's system emulation: its options, its console, and the port by which
//! the guest says what to record.
//!
//! The guest writes lines to the virtio port `nearfar`:
//!
//! * `region FIRST-LAST NAME`: guest-physical addresses (hexadecimal) that have a name, such as a
//!   line of `/proc/iomem`; before `start`.
//! * `symbol ADDRESS NAME`, as in `/proc/kallsyms`, and `btf BYTES`, followed by the contents of
//!   `/sys/kernel/btf/vmlinux`: what it takes to tell tasks apart; before `start`.
//! * `start`: what follows is to be recorded. The guest waits for a line in return.
//! * `stop STATUS`: the end of that, and the exit status of the command. The machine then ends.

mod tasks;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32};
use std::thread::sleep;
use std::time::Duration;

use nearfar_trace::{Error, Result};

use crate::program::find;
use crate::shared::Shared;
use tasks::Kernel;

/// Maximum bytes of the description of a kernel's types.
const MAX_TYPES: u64 = 64 << 20;

/// What recording of a virtual machine waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmStart {
    /// Nothing: the boot is recorded as well.
    Boot,
    /// The guest's `start`.
    Marker,
    /// A text on the console.
    Console(String),
}

/// A virtual machine to capture.
#[derive(Clone, Debug)]
pub struct Vm {
    /// One of [`crate::program::ARCHS`].
    pub arch: &'static str,
    /// Its disk, which is not written.
    pub disk: Option<PathBuf>,
    /// Its kernel; without one, the disk boots.
    pub kernel: Option<PathBuf>,
    /// The initial file system of that kernel.
    pub initrd: Option<PathBuf>,
    /// The parameters of that kernel.
    pub append: String,
    /// Bytes of RAM.
    pub memory: u64,
    /// Number of processors.
    pub cpus: u64,
    /// When recording begins.
    pub start: VmStart,
    /// How long that may take.
    pub boot: Duration,
}

/// QEMU's processor and machine, where its RAM begins, and how much of it is there at most; the rest
/// is above 4 GiB.
struct Machine {
    processor: &'static str,
    machine: &'static str,
    low: u64,
    max_low: u64,
}

const GIB: u64 = 1 << 30;

/// Debian's package of the QEMU for each architecture.
const PACKAGES: [(&str, &str); 2] = [("x86_64", "qemu-system-x86"), ("aarch64", "qemu-system-arm")];

/// The name of the QEMU for an architecture.
fn emulator_name(arch: &str) -> String {
    format!("qemu-system-{arch}")
}

fn machine(arch: &str) -> Machine {
    match arch {
        "aarch64" => {
            Machine { processor: "neoverse-n1", machine: "virt", low: GIB, max_low: u64::MAX }
        }
        _ => Machine {
            processor: "max",
            machine: "q35,max-ram-below-4g=2G",
            low: 0,
            max_low: 2 * GIB,
        },
    }
}

impl Vm {
    fn low_bytes(&self) -> u64 {
        self.memory.min(machine(self.arch).max_low)
    }

    /// The guest-physical address of this byte of RAM.
    fn address(&self, offset: u64) -> u64 {
        match offset.checked_sub(self.low_bytes()) {
            None => machine(self.arch).low + offset,
            Some(above) => 4 * GIB + above,
        }
    }

    /// The ranges of its RAM, by guest-physical address: start and bytes.
    pub(crate) fn ranges(&self) -> Vec<(u64, u64)> {
        let low = self.low_bytes();
        let ranges = [(self.address(0), low), (4 * GIB, self.memory - low)];
        ranges.into_iter().filter(|range| range.1 > 0).collect()
    }

    /// The argument of the plugin ([`Self::address`]).
    fn plugin_argument(&self) -> String {
        let low = machine(self.arch).low;
        format!("ram={}:{low}:{}:{}", self.memory, self.low_bytes(), 4 * GIB)
    }

    /// What the trace says of it.
    pub(crate) fn describe(&self) -> String {
        let memory = self.memory / (1 << 20);
        format!(
            "{} with the nearfar plugin: a virtual machine with {memory} MiB and {} processors, by \
             guest-physical address",
            emulator_name(self.arch),
            self.cpus
        )
    }
}

/// What the guest has said so far.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// Recording is to begin.
    begin: AtomicBool,
    /// Recording is to end.
    end: AtomicBool,
    /// Exit status of the command, or -1.
    status: AtomicI32,
    text: Mutex<Text>,
}

/// Texts of the guest.
#[derive(Debug, Default)]
struct Text {
    /// The last line of the console.
    line: String,
    /// Why its kernel panicked.
    panic: Option<String>,
    /// Named addresses: first, last and name.
    regions: Vec<(u64, u64, String)>,
}

impl Signals {
    /// Whether recording is to begin.
    pub fn begins(&self) -> bool {
        self.begin.load(Acquire)
    }

    /// Whether recording is to end.
    pub fn ends(&self) -> bool {
        self.end.load(Acquire)
    }

    /// The exit status of the command, if it has ended.
    pub fn status(&self) -> Option<i32> {
        self.ends().then(|| self.status.load(Relaxed))
    }

    fn text<R>(&self, f: impl FnOnce(&mut Text) -> R) -> R {
        f(&mut self.text.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// The last line of the console.
    pub fn last_line(&self) -> String {
        self.text(|text| text.line.clone())
    }

    /// Why the kernel panicked, if it did.
    pub fn panic(&self) -> Option<String> {
        self.text(|text| text.panic.clone())
    }

    /// Named addresses: first, last and name.
    pub fn regions(&self) -> Vec<(u64, u64, String)> {
        self.text(|text| text.regions.clone())
    }
}

/// The connections to a virtual machine that is about to run.
pub(crate) struct Connections {
    console: UnixStream,
    port: UnixStream,
    ram: File,
    /// Those of QEMU; to be dropped once it runs.
    guest: [OwnedFd; 2],
}

impl Connections {
    fn new(memory: u64) -> io::Result<Self> {
        let (console, guest_console) = UnixStream::pair()?;
        let (port, guest_port) = UnixStream::pair()?;
        let guest = [guest_console.into(), guest_port.into()];
        Ok(Self { console, port, ram: memory_file(memory)?, guest })
    }

    /// QEMU runs.
    pub fn started(self) -> Ports {
        Ports { console: self.console, port: self.port, ram: self.ram, signals: Signals::default() }
    }
}

impl Vm {
    /// Its QEMU.
    pub(crate) fn emulator(&self) -> Result<PathBuf> {
        let name = emulator_name(self.arch);
        find(Path::new(&name)).map_err(|_| {
            let package = PACKAGES.iter().find(|known| known.0 == self.arch);
            let fix = format!("apt-get install {}", package.map_or("", |known| known.1));
            Error::missing(name, "is not installed", fix)
        })
    }

    /// The command that runs it, with this option of `-plugin`.
    pub(crate) fn command(&self, emulator: &Path, plugin: &str) -> Result<(Command, Connections)> {
        let connections = Connections::new(self.memory).map_err(|e| {
            let what = format!("cannot connect a virtual machine: {e}");
            Error::input("memory", what, "check the limits (`ulimit -n`, `ulimit -f`)")
        })?;
        let Machine { processor, machine, .. } = machine(self.arch);
        let [console, port] = connections.guest.each_ref().map(AsRawFd::as_raw_fd);
        let ram = format!("/proc/{}/fd/{}", std::process::id(), connections.ram.as_raw_fd());
        let size = format!("{}M", self.memory >> 20);
        let backend = format!("memory-backend-file,id=ram,mem-path={ram},size={size},share=on");
        let mut command = Command::new(emulator);
        command.args(["-no-user-config", "-nodefaults", "-nic", "none", "-no-reboot"]);
        command.args(["-display", "none", "-accel", "tcg,thread=multi", "-cpu", processor]);
        command.args(["-machine", &format!("{machine},memory-backend=ram"), "-object", &backend]);
        command.args(["-m", &size, "-smp", &self.cpus.to_string()]);
        command.args(["-chardev", &format!("socket,id=console,fd={console}")]);
        command.args(["-serial", "chardev:console", "-device", "virtio-serial-pci"]);
        command.args(["-chardev", &format!("socket,id=nearfar,fd={port}")]);
        command.args(["-device", "virtserialport,chardev=nearfar,name=nearfar"]);
        if let Some(disk) = &self.disk {
            let format = disk_format(disk)?;
            let file = disk.display().to_string().replace(',', ",,");
            command.args(["-drive", &format!("file={file},format={format},if=virtio,snapshot=on")]);
        }
        for (option, file) in [("-kernel", &self.kernel), ("-initrd", &self.initrd)] {
            if let Some(file) = file {
                File::open(file).map_err(|e| Error::io(file, "cannot read", &e))?;
                command.arg(option).arg(file);
            }
        }
        if self.kernel.is_some() {
            command.arg("-append").arg(&self.append);
        }
        command.arg("-plugin").arg(format!("{plugin},{}", self.plugin_argument()));
        command.stdin(Stdio::null());
        let inherit = move || {
            for number in [console, port] {
                // SAFETY: a system call that a child may make between fork and exec.
                if unsafe { libc::fcntl(number, libc::F_SETFD, 0) } != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        };
        // SAFETY: `inherit` neither allocates nor takes locks.
        unsafe { command.pre_exec(inherit) };
        Ok((command, connections))
    }
}

/// The connections to a virtual machine that runs.
pub(crate) struct Ports {
    console: UnixStream,
    port: UnixStream,
    ram: File,
    pub signals: Signals,
}

impl Ports {
    /// Copy the console to standard output, until QEMU has ended.
    pub fn watch_console(&self, shared: &Shared, start: &VmStart) {
        let awaited = match start {
            VmStart::Console(text) => Some(text.as_bytes()),
            _ => None,
        };
        let (mut bytes, mut line) = ([0; 4096], Vec::new());
        while let Ok(read @ 1..) = (&self.console).read(&mut bytes) {
            // Nobody may be there to read it.
            let mut out = io::stdout().lock();
            let _ = out.write_all(&bytes[..read]).and_then(|()| out.flush());
            for &byte in &bytes[..read] {
                match byte {
                    b'\n' => line.clear(),
                    b'\r' => continue,
                    _ => line.push(byte),
                }
                // A prompt has no end of line.
                if awaited.is_some_and(|text| line.ends_with(text)) {
                    self.signals.begin.store(true, Release);
                    shared.ring_bell();
                }
            }
            self.note(&line);
        }
    }

    /// Note the present line of the console.
    fn note(&self, line: &[u8]) {
        if line.is_empty() {
            return;
        }
        let line = String::from_utf8_lossy(line).into_owned();
        self.signals.text(|text| {
            if let Some((_, why)) = line.split_once("Kernel panic - not syncing: ") {
                text.panic = Some(why.to_owned());
            }
            text.line = line;
        });
    }

    /// Obey the guest's lines, until QEMU has ended.
    pub fn watch_port(&self, shared: &Shared, start: &VmStart) {
        let (mut from, mut line) = (BufReader::new(&self.port), String::new());
        let mut kernel = Kernel::default();
        while matches!(from.read_line(&mut line), Ok(1..)) {
            match line.trim_end().split_once(' ').unwrap_or((line.trim_end(), "")) {
                ("region", range) => {
                    if let Some(region) = region(range) {
                        self.signals.text(|text| text.regions.push(region));
                    }
                }
                ("symbol", symbol) => kernel.symbol(symbol),
                ("btf", bytes) => {
                    let bytes = bytes.parse().unwrap_or(0u64).min(MAX_TYPES);
                    let mut types = Vec::new();
                    if from.by_ref().take(bytes).read_to_end(&mut types).is_ok() {
                        kernel.types(&types);
                    }
                }
                ("start", _) => {
                    if *start == VmStart::Marker {
                        kernel.ask(shared.header());
                        self.signals.begin.store(true, Release);
                        shared.ring_bell();
                        self.wait_for_recording(shared);
                    }
                    let _ = (&self.port).write_all(b"go\n");
                }
                ("stop", status) => {
                    self.signals.status.store(status.trim().parse().unwrap_or(-1), Relaxed);
                    self.signals.end.store(true, Release);
                    shared.ring_bell();
                }
                _ => {}
            }
            line.clear();
        }
    }

    /// Wait until the machine is recorded. Input wakes its idle processors, which then notice that
    /// they are to be.
    fn wait_for_recording(&self, shared: &Shared) {
        let header = shared.header();
        while header.recording.load(Acquire) == 0 && header.stop.load(Relaxed) == 0 {
            let asked = header.record.load(Acquire) != 0;
            if asked && (&self.port).write_all(b".").is_err() {
                return;
            }
            sleep(Duration::from_millis(if asked { 20 } else { 1 }));
        }
    }

    /// Guest-physical addresses of the RAM that the machine has touched: start and bytes.
    pub fn touched(&self, vm: &Vm) -> io::Result<Vec<(u64, u64)>> {
        let mut ranges = Vec::new();
        let seek = |at: u64, what| {
            // SAFETY: seeks in an open file of ours.
            u64::try_from(unsafe { libc::lseek(self.ram.as_raw_fd(), at.cast_signed(), what) })
                .map_err(|_| io::Error::last_os_error())
        };
        let mut at = 0;
        // There is no data beyond the last.
        while let Ok(start) = seek(at, libc::SEEK_DATA) {
            let end = seek(start, libc::SEEK_HOLE)?;
            let middle = end.min(vm.low_bytes().max(start));
            for (start, end) in [(start, middle), (middle, end)] {
                if start < end {
                    ranges.push((vm.address(start), end - start));
                }
            }
            at = end;
        }
        Ok(ranges)
    }
}

/// Parse `FIRST-LAST NAME`, with an optional colon before the name, as in `/proc/iomem`.
fn region(text: &str) -> Option<(u64, u64, String)> {
    let (range, name) = text.trim().split_once(' ')?;
    let (first, last) = range.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (first, last) = (number(first)?, number(last)?);
    let name = name.trim_start_matches([' ', ':']);
    (first <= last && last < 1 << 47 && !name.is_empty()).then(|| (first, last, name.to_owned()))
}

/// A file of zeros in memory. Untouched pages take no memory.
fn memory_file(bytes: u64) -> io::Result<File> {
    // SAFETY: the name is a C string; the descriptor is checked.
    let fd = unsafe { libc::memfd_create(c"nearfar-vm".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and not shared.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(bytes)?;
    Ok(file)
}

/// QEMU's name for the format of a disk image.
fn disk_format(disk: &Path) -> Result<&'static str> {
    let mut start = [0; 4];
    let mut file = File::open(disk).map_err(|e| Error::io(disk, "cannot read", &e))?;
    let read = file.read(&mut start).map_err(|e| Error::io(disk, "cannot read", &e))?;
    if read == 0 {
        let place = disk.display().to_string();
        return Err(Error::input(place, "is empty", "give a disk image (qcow2 or raw)"));
    }
    Ok(if &start == b"QFI\xfb" { "qcow2" } else { "raw" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(arch: &'static str, memory: u64) -> Vm {
        Vm {
            arch,
            disk: None,
            kernel: None,
            initrd: None,
            append: String::new(),
            memory,
            cpus: 1,
            start: VmStart::Boot,
            boot: Duration::ZERO,
        }
    }

    #[test]
    fn ram_beyond_two_gib_is_above_the_hole() {
        let small = vm("x86_64", GIB);
        assert_eq!((small.ranges(), small.address(5)), (vec![(0, GIB)], 5));
        let large = vm("x86_64", 6 * GIB);
        assert_eq!(large.ranges(), [(0, 2 * GIB), (4 * GIB, 4 * GIB)]);
        assert_eq!([2 * GIB - 1, 2 * GIB].map(|at| large.address(at)), [2 * GIB - 1, 4 * GIB]);
        assert_eq!(vm("aarch64", 6 * GIB).ranges(), [(GIB, 6 * GIB)]);
    }

    #[test]
    fn regions_are_lines_of_iomem() {
        let found = region("  01000000-01ffffff : Kernel code");
        assert_eq!(found, Some((0x100_0000, 0x1ff_ffff, "Kernel code".into())));
        for wrong in ["", "1-2", "2-1 name", "x-y name", "0-ffffffffffffffff name"] {
            assert_eq!(region(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn touched_ram_is_found_on_both_sides_of_the_hole() {
        let vm = vm("x86_64", 3 * GIB);
        let ram = memory_file(vm.memory).unwrap();
        let write = |at: u64, bytes: usize| {
            std::os::unix::fs::FileExt::write_all_at(&ram, &vec![1; bytes], at).unwrap();
        };
        write(8192, 1);
        write(2 * GIB - 4096, 8192);
        let (console, port) = UnixStream::pair().unwrap();
        let ports = Ports { console, port, ram, signals: Signals::default() };
        let expected = [(8192, 4096), (2 * GIB - 4096, 4096), (4 * GIB, 4096)];
        assert_eq!(ports.touched(&vm).unwrap(), expected);
    }
}
