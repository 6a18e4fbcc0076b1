//! Reads a guest's console, and the lines that the guest writes to its virtio port (see [`super`]).

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32};
use std::thread::sleep;
use std::time::Duration;

use super::tasks::Kernel;
use super::{Vm, VmStart};
use crate::shared::Shared;

/// Maximum bytes of a line of a guest; the rest of a longer one is another line.
const MAX_LINE: u64 = 4096;
/// Maximum number of named address ranges.
const MAX_REGIONS: usize = 1024;
/// Maximum bytes of the BTF (description of types) of a kernel.
const MAX_TYPES: u64 = 64 << 20;

/// What the guest has reported so far.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// Recording is to begin.
    begin: AtomicBool,
    /// Recording is to end.
    end: AtomicBool,
    /// Exit status of the command; -1 if the guest did not report a number.
    status: AtomicI32,
    text: Mutex<Text>,
}

/// Texts from the guest.
#[derive(Debug, Default)]
struct Text {
    /// The last line of the console.
    line: String,
    /// Why its kernel panicked.
    panic: Option<String>,
    /// Named address ranges: first and last address, and name.
    regions: Vec<(u64, u64, String)>,
}

impl Reports {
    pub fn begins(&self) -> bool {
        self.begin.load(Acquire)
    }

    pub fn ends(&self) -> bool {
        self.end.load(Acquire)
    }

    /// The exit status of the command, or -1, if it has ended.
    pub fn status(&self) -> Option<i32> {
        self.ends().then(|| self.status.load(Relaxed))
    }

    fn text<R>(&self, f: impl FnOnce(&mut Text) -> R) -> R {
        f(&mut self.text.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Note the present line of the console.
    fn note(&self, line: &[u8]) {
        if line.is_empty() {
            return;
        }
        let line = String::from_utf8_lossy(line).into_owned();
        self.text(|text| {
            if let Some((_, why)) = line.split_once("Kernel panic - not syncing: ") {
                text.panic = Some(why.to_owned());
            }
            text.line = line;
        });
    }

    /// What the trace lacks, if anything, given whether recording has `begun` and was `stopped`.
    pub fn lacks(&self, vm: &Vm, begun: bool, stopped: bool) -> Option<String> {
        let (panic, line) = self.text(|text| (text.panic.clone(), text.line.clone()));
        if let Some(why) = panic {
            return Some(format!("the kernel of the virtual machine panicked: {why}"));
        }
        if !begun {
            let seconds = vm.boot_timeout.as_secs();
            let what =
                format!("nothing is recorded: recording did not begin within {seconds} s of boot");
            let start = match &vm.start {
                VmStart::Console(text) => format!("the console was to show '{text}'"),
                _ => "waiting for the guest to write `start`".to_owned(),
            };
            return Some(format!("{what} ({start}); the console's last line: '{line}'"));
        }
        let ended = vm.start == VmStart::Marker && !self.ends() && !stopped;
        ended.then(|| "the virtual machine ended before the guest wrote `stop`".to_owned())
    }

    pub fn regions(&self) -> Vec<(u64, u64, String)> {
        self.text(|text| text.regions.clone())
    }
}

/// The connections to a running virtual machine.
pub(crate) struct Ports {
    pub(super) console: UnixStream,
    pub(super) port: UnixStream,
    pub(super) ram: File,
    pub reports: Reports,
}

impl Ports {
    /// Copy the console to standard output until QEMU has ended. The text of `start` begins recording.
    pub fn watch_console(&self, shared: &Shared, start: &VmStart) {
        let awaited = match start {
            VmStart::Console(text) => Some(text.as_bytes()),
            _ => None,
        };
        let (mut bytes, mut line) = ([0; 4096], Vec::new());
        while let Ok(read @ 1..) = (&self.console).read(&mut bytes) {
            // Ignore errors: standard output may be closed.
            let mut out = io::stdout().lock();
            let _ = out.write_all(&bytes[..read]).and_then(|()| out.flush());
            for &byte in &bytes[..read] {
                match byte {
                    b'\n' => {
                        self.reports.note(&line);
                        line.clear();
                    }
                    b'\r' => {}
                    _ => line.push(byte),
                }
                // Do not wait for a newline: a prompt has none.
                if awaited.is_some_and(|text| line.ends_with(text)) {
                    self.reports.begin.store(true, Release);
                    shared.ring_bell();
                }
            }
            self.reports.note(&line);
        }
    }

    /// Execute the commands that the guest writes, until QEMU has ended.
    pub fn watch_port(&self, shared: &Shared, start: &VmStart) {
        let (mut from, mut line) = (BufReader::new(&self.port), String::new());
        let mut kernel = Kernel::default();
        while matches!(from.by_ref().take(MAX_LINE).read_line(&mut line), Ok(1..)) {
            match line.trim_end().split_once(' ').unwrap_or((line.trim_end(), "")) {
                ("region", range) => self.reports.text(|text| {
                    if text.regions.len() < MAX_REGIONS {
                        text.regions.extend(region(range));
                    }
                }),
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
                        kernel.enable_tasks(shared.header());
                        self.reports.begin.store(true, Release);
                        shared.ring_bell();
                        self.wait_for_recording(shared);
                    }
                    let _ = (&self.port).write_all(b"go\n");
                }
                ("stop", status) => {
                    self.reports.status.store(status.trim().parse().unwrap_or(-1), Relaxed);
                    self.reports.end.store(true, Release);
                    shared.ring_bell();
                }
                _ => {}
            }
            line.clear();
        }
    }

    /// Wait until the plugin records. A virtual processor begins this when it runs, so write to the
    /// port to wake idle ones.
    fn wait_for_recording(&self, shared: &Shared) {
        let header = shared.header();
        while header.recording.load(Acquire) == 0 && header.stop.load(Relaxed) == 0 {
            let requested = header.record.load(Acquire) != 0;
            if requested && (&self.port).write_all(b".").is_err() {
                return;
            }
            sleep(Duration::from_millis(if requested { 20 } else { 1 }));
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
        // Beyond the last data, `SEEK_DATA` fails.
        while let Ok(start) = seek(at, libc::SEEK_DATA) {
            let end = seek(start, libc::SEEK_HOLE)?;
            // RAM beyond `low_bytes` has addresses from 4 GiB.
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

/// Parse `FIRST-LAST NAME`, with an optional colon before the name, as in `/proc/iomem`. `None` if it
/// is malformed or reaches 2^47.
fn region(text: &str) -> Option<(u64, u64, String)> {
    let (range, name) = text.trim().split_once(' ')?;
    let (first, last) = range.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (first, last) = (number(first)?, number(last)?);
    let name = name.trim_start_matches([' ', ':']);
    (first <= last && last < 1 << 47 && !name.is_empty()).then(|| (first, last, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::memory_file;
    use crate::vm::{GIB, tests::vm};

    #[test]
    fn regions_are_lines_of_iomem() {
        let found = region("  01000000-01ffffff : Kernel code");
        assert_eq!(found, Some((0x100_0000, 0x1ff_ffff, "Kernel code".into())));
        for wrong in ["", "1-2", "2-1 name", "x-y name", "0-ffffffffffffffff name"] {
            assert_eq!(region(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn touched_ram_is_found_below_two_gib_and_above_four_gib() {
        let vm = vm("x86_64", 3 * GIB);
        let ram = memory_file(c"test", 0, vm.memory).unwrap();
        let write = |at: u64, bytes: usize| {
            std::os::unix::fs::FileExt::write_all_at(&ram, &vec![1; bytes], at).unwrap();
        };
        write(8192, 1);
        write(2 * GIB - 4096, 8192);
        let (console, port) = UnixStream::pair().unwrap();
        let ports = Ports { console, port, ram, reports: Reports::default() };
        let expected = [(8192, 4096), (2 * GIB - 4096, 4096), (4 * GIB, 4096)];
        assert_eq!(ports.touched(&vm).unwrap(), expected);
    }
}
