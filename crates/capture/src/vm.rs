//! A virtual machine under QEMU's system emulation: its options, its console, and the port by which
//! the guest controls recording.
//!
//! The guest writes lines to the virtio port `nearfar`:
//!
//! * `region FIRST-LAST NAME`: guest-physical addresses (hexadecimal) that have a name, such as a
//!   line of `/proc/iomem`; before `start`.
//! * `symbol ADDRESS NAME`, as in `/proc/kallsyms`, and `btf BYTES`, followed by the contents of
//!   `/sys/kernel/btf/vmlinux`: needed to distinguish tasks; before `start`.
//! * `start`: begin to record. The guest waits for a line in return.
//! * `stop STATUS`: end recording, then the machine. STATUS is the exit status of the command.

mod guest;
mod ports;
mod tasks;

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nearfar_trace::{Error, Result};

use crate::program::find;
use crate::shared::memory_file;
pub(crate) use guest::Guest;
pub(crate) use ports::{Ports, Reports};

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
    pub cpus: u64,
    /// When recording begins.
    pub start: VmStart,
    /// Maximum time from the start of QEMU until recording begins.
    pub boot_timeout: Duration,
}

/// The QEMU for an architecture, and its options.
struct Machine {
    /// Debian's package of the QEMU.
    package: &'static str,
    processor: &'static str,
    machine: &'static str,
    /// Guest-physical address at which RAM begins.
    low: u64,
    /// Maximum bytes of RAM from there; the rest begins at 4 GiB.
    max_low: u64,
}

const GIB: u64 = 1 << 30;

fn emulator_name(arch: &str) -> String {
    format!("qemu-system-{arch}")
}

fn machine(arch: &str) -> Machine {
    match arch {
        "aarch64" => Machine {
            package: "qemu-system-arm",
            processor: "neoverse-n1",
            machine: "virt",
            low: GIB,
            max_low: u64::MAX,
        },
        _ => Machine {
            package: "qemu-system-x86",
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

    /// The guest-physical address of byte `offset` of RAM.
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

    /// The plugin's argument `ram`, from which it computes [`Self::address`].
    fn plugin_argument(&self) -> String {
        let low = machine(self.arch).low;
        format!("ram={}:{low}:{}:{}", self.memory, self.low_bytes(), 4 * GIB)
    }

    /// Its description in the trace.
    pub(crate) fn describe(&self) -> String {
        let memory = self.memory / (1 << 20);
        let noun = if self.cpus == 1 { "processor" } else { "processors" };
        format!(
            "{} with the nearfar plugin: a virtual machine with {memory} MiB and {} {noun}; \
             addresses are guest-physical",
            emulator_name(self.arch),
            self.cpus
        )
    }
}

/// The connections to a virtual machine that is about to run, and QEMU's ends of console and port,
/// which are closed once it runs.
pub(crate) type Connections = (Ports, [OwnedFd; 2]);

fn connect(memory: u64) -> io::Result<Connections> {
    let (console, guest_console) = UnixStream::pair()?;
    let (port, guest_port) = UnixStream::pair()?;
    let ram = memory_file(c"nearfar-vm", 0, memory)?;
    let ports = Ports { console, port, ram, reports: Reports::default() };
    Ok((ports, [guest_console.into(), guest_port.into()]))
}

impl Vm {
    pub(crate) fn emulator(&self) -> Result<PathBuf> {
        let name = emulator_name(self.arch);
        find(Path::new(&name)).map_err(|_| {
            let fix = format!("apt-get install {}", machine(self.arch).package);
            Error::missing(name, "is not installed", fix)
        })
    }

    /// The command that runs it, with this option of `-plugin`.
    pub(crate) fn command(&self, emulator: &Path, plugin: &str) -> Result<(Command, Connections)> {
        let (ports, guest) = connect(self.memory).map_err(|e| {
            let what = format!("cannot connect a virtual machine: {e}");
            Error::input("memory", what, "check the limits (`ulimit -n`, `ulimit -f`)")
        })?;
        let Machine { processor, machine, .. } = machine(self.arch);
        let [console, port] = guest.each_ref().map(AsRawFd::as_raw_fd);
        let ram = format!("/proc/{}/fd/{}", std::process::id(), ports.ram.as_raw_fd());
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
        Ok((command, (ports, guest)))
    }
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

    pub(super) fn vm(arch: &'static str, memory: u64) -> Vm {
        Vm {
            arch,
            disk: None,
            kernel: None,
            initrd: None,
            append: String::new(),
            memory,
            cpus: 1,
            start: VmStart::Boot,
            boot_timeout: Duration::ZERO,
        }
    }

    #[test]
    fn x86_ram_beyond_two_gib_begins_at_four_gib() {
        let small = vm("x86_64", GIB);
        assert_eq!((small.ranges(), small.address(5)), (vec![(0, GIB)], 5));
        let large = vm("x86_64", 6 * GIB);
        assert_eq!(large.ranges(), [(0, 2 * GIB), (4 * GIB, 4 * GIB)]);
        assert_eq!([2 * GIB - 1, 2 * GIB].map(|at| large.address(at)), [2 * GIB - 1, 4 * GIB]);
        assert_eq!(vm("aarch64", 6 * GIB).ranges(), [(GIB, 6 * GIB)]);
    }
}
