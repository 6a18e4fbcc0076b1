//! The options of `nearfar capture`.

use std::path::PathBuf;
use std::time::Duration;

use nearfar_schema::{Bytes, Command as Declared, Count, Given, List, Options as _, Value, none};
use nearfar_trace::{Error, Result};
use serde_json::Value as Json;

use crate::program::Arch;
use crate::sample::Rate;
use crate::schedule::{Signal, Start, Stop, TimeSpan};
use crate::vm::{Vm, VmStart};

/// How long a virtual machine may boot, by default.
const BOOT: Duration = Duration::from_secs(15 * 60);

nearfar_schema::options! {
    /// The options of `nearfar capture`, as given.
    pub struct Request {
        /// Record instruction fetches, one for each block of straight-line code.
        fetch: bool = true,
        /// Record pages that are already resident when recording starts, as accesses of the kernel.
        resident: bool = true,
        /// Start recording this long after the program starts. Earlier mappings are known, but not
        /// which of their pages were touched.
        start_after: Option<TimeSpan> = none("at program start"),
        /// Start recording when nearfar receives this signal.
        #[metavar = "SIGNAL"]
        start_on: Option<Signal> = none("at program start"),
        /// Stop recording after this time, or after this many records; the program keeps running.
        stop_after: Option<Stop> = none("at program exit"),
        /// Skip this many records first.
        skip_refs: Count<0, { 1 << 63 }> = 0,
        /// Stop recording after this many records; the program keeps running.
        max_refs: Option<Count<1>> = none("no limit"),
        /// Architecture of the program or virtual machine.
        arch: Arch = "auto",
        /// Record child processes as well.
        follow_forks: bool = false,
        /// Record only this share of the program's pages, such as 1%; recording is then several times as
        /// fast. `nearfar paging` (with 95 % intervals) and `nearfar size` use such a trace; other studies
        /// need a whole one. `auto` lowers the share as the program grows.
        sample: Option<Rate> = none("every page"),
        /// Seed of the sample: another one selects other pages.
        #[metavar = "SEED"]
        sample_seed: Count = 0,
        /// Boot this disk image (qcow2 or raw) and record the whole virtual machine, its kernel
        /// included, by guest-physical address. The image is not changed.
        #[metavar = "DISK"]
        vm: Option<String> = none("a program is recorded"),
        /// Instead of a disk, boot a small Debian that apt downloads, and run the command in it.
        vm_image: Option<VmImage> = none("a program is recorded"),
        /// Memory of the virtual machine.
        memory: Option<Bytes> = none("512M"),
        /// Number of processors of the virtual machine.
        cpus: Option<Count<1, 64>> = none("1"),
        /// Kernel to boot, instead of the disk's boot loader.
        #[metavar = "FILE"]
        kernel: Option<String> = none("the disk boots"),
        /// Initial file system (initrd) for --kernel.
        #[metavar = "FILE"]
        initrd: Option<String> = none("no file"),
        /// Command line for the kernel of --kernel.
        append: Option<String> = none("nothing"),
        /// When the recording of a virtual machine begins: `boot`; `marker`, when the guest writes `start` to
        /// its port `nearfar`; or `console:TEXT`, when its console shows this text.
        start: Option<VmStart> = none("marker with --vm-image, otherwise boot"),
        /// Record each task of --vm-image as a thread, instead of each virtual processor.
        by_task: bool = false,
        /// Maximum time from boot to the start of recording.
        boot_timeout: Option<TimeSpan> = none("15min"),
        /// Debian packages to install in --vm-image.
        #[metavar = "NAMES"]
        packages: Option<List<String>> = none("busybox"),
        /// Files or folders to copy into --vm-image: PATH, copied to /work, or PATH=GUEST, copied
        /// to the path GUEST.
        #[metavar = "PATH[=GUEST]"]
        put: Option<List<String>> = none("nothing"),
    }
}

nearfar_schema::choices! {
    /// Images that nearfar builds.
    pub enum VmImage: "image" {
        /// Debian's kernel for clouds, and busybox
        Debian = "debian",
    }
}

impl Value for VmStart {
    const METAVAR: &'static str = "WHEN";
    fn python() -> String {
        "str".into()
    }
    fn read(given: &Given) -> Result<Self, String> {
        match given.to_string().split_once(':') {
            None if given == &"boot".into() => Ok(Self::Boot),
            None if given == &"marker".into() => Ok(Self::Marker),
            Some(("console", text)) if !text.is_empty() => Ok(Self::Console(text.into())),
            _ => {
                let given = given.shown();
                Err(format!(
                    "'{given}' is not a start condition; write boot, marker or console:TEXT"
                ))
            }
        }
    }
    fn plain(&self) -> Json {
        match self {
            Self::Boot => "boot".into(),
            Self::Marker => "marker".into(),
            Self::Console(text) => format!("console:{text}").into(),
        }
    }
}

/// Smallest memory of a virtual machine, and the unit of its size.
const MIN_MEMORY: u64 = 64 << 20;
const MIB: u64 = 1 << 20;

impl Request {
    /// The virtual machine to record, if any.
    ///
    /// # Errors
    /// An option is missing, or makes no sense without a virtual machine or with it.
    pub fn virtual_machine(&self) -> Result<Option<Vm>> {
        // With `--vm-image`, the caller has set `kernel`.
        if self.vm.is_none() && self.kernel.is_none() {
            let given = [
                ("--memory", self.memory.is_some()),
                ("--cpus", self.cpus.is_some()),
                ("--initrd", self.initrd.is_some()),
                ("--append", self.append.is_some()),
                ("--start", self.start.is_some()),
                ("--boot-timeout", self.boot_timeout.is_some()),
                ("--packages", self.packages.is_some()),
                ("--put", self.put.is_some()),
                ("--by-task", self.by_task),
            ];
            return match given.iter().find(|(_, given)| *given) {
                None => Ok(None),
                Some((option, _)) => Err(Error::input(
                    *option,
                    "is for virtual machines",
                    "give --vm DISK or --vm-image debian as well",
                )),
            };
        }
        let arch = match (self.arch, std::env::consts::ARCH) {
            (Arch::Arm, _) | (Arch::Auto, "aarch64") => Arch::Arm.name(),
            _ => Arch::X86.name(),
        };
        if self.follow_forks {
            let what = "is for programs: a virtual machine is recorded with all its processes";
            return Err(Error::input("--follow-forks", what, "leave it out"));
        }
        if arch == Arch::Arm.name() && self.kernel.is_none() {
            let what = "an aarch64 machine needs a kernel";
            return Err(Error::input("--vm", what, "give --kernel, and --initrd if it has one"));
        }
        if self.kernel.is_none() && (self.initrd.is_some() || self.append.is_some()) {
            let option = if self.initrd.is_some() { "--initrd" } else { "--append" };
            return Err(Error::input(option, "needs a kernel", "give --kernel as well"));
        }
        let memory = self.memory.map_or(512 << 20, |bytes| bytes.0);
        if memory < MIN_MEMORY || !memory.is_multiple_of(MIB) {
            let what = "is not a memory size for a virtual machine";
            return Err(Error::input("--memory", what, "give whole MiB, at least 64M"));
        }
        let marker = self.vm_image.is_some();
        let default = if marker { VmStart::Marker } else { VmStart::Boot };
        Ok(Some(Vm {
            arch,
            disk: self.vm.as_ref().map(PathBuf::from),
            kernel: self.kernel.as_ref().map(PathBuf::from),
            initrd: self.initrd.as_ref().map(PathBuf::from),
            append: self.append.clone().unwrap_or_default(),
            memory,
            cpus: self.cpus.map_or(1, |count| count.0),
            start: self.start.clone().unwrap_or(default),
            boot_timeout: self.boot_timeout.as_ref().map_or(BOOT, TimeSpan::time),
        }))
    }

    /// What recording waits for, how long it lasts, and its maximum number of records.
    ///
    /// # Errors
    /// Two options set the same limit.
    pub fn limits(&self) -> Result<(Option<Start>, Option<TimeSpan>, Option<u64>)> {
        let start = match (&self.start_after, self.start_on) {
            (Some(_), Some(_)) => return Err(conflict("--start-on", "--start-after")),
            (Some(wait), None) => Some(Start::After(wait.clone())),
            (None, signal) => signal.map(Start::On),
        };
        let max = self.max_refs.map(|count| count.0);
        match (&self.stop_after, max) {
            (Some(Stop::Records(_)), Some(_)) => Err(conflict("--stop-after", "--max-refs")),
            (Some(Stop::Records(records)), None) => Ok((start, None, Some(*records))),
            (Some(Stop::Time(wait)), _) => Ok((start, Some(wait.clone()), max)),
            (None, _) => Ok((start, None, max)),
        }
    }
}

fn conflict(option: &str, other: &str) -> Error {
    Error::input(option, format!("conflicts with {other}"), "give only one of them")
}

/// The declaration of the command.
pub const COMMAND: Declared = Declared { name: "capture", options: Request::specs, tables: &[] };
