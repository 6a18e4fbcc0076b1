//! Whether each way to capture is there, for `nearfar doctor`.

use std::io::Write;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path as File;
use std::process::{Command, Stdio};

use serde::Serialize;

use crate::program::{ARCHS, qemu};
use crate::shared::Shared;

/// One thing that capturing needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Path {
    /// Name of it.
    pub name: String,
    /// Whether it is there and works.
    pub available: bool,
    /// What was found, or what is wrong.
    pub why: String,
    /// What to do when it is not available, else empty.
    pub fix: String,
}

impl Path {
    fn new(name: &str, found: Result<String, (String, &str)>) -> Self {
        let (available, why, fix) = match found {
            Ok(why) => (true, why, String::new()),
            Err((why, fix)) => (false, why, fix.to_owned()),
        };
        Self { name: name.to_owned(), available, why, fix }
    }
}

/// Look at every QEMU, at the plugin (its shared library at `plugin`) and at shared memory.
pub fn probe(plugin: &File) -> Vec<Path> {
    let mut found: Vec<Path> = ARCHS.into_iter().map(|arch| emulator(arch, plugin)).collect();
    found.push(Path::new(
        "capture plugin",
        match plugin.metadata() {
            Ok(meta) => Ok(format!("{} ({} bytes)", plugin.display(), meta.len())),
            Err(e) => Err((format!("{}: {e}", plugin.display()), "make plugin")),
        },
    ));
    found.push(Path::new(
        "shared memory",
        match Shared::create(0) {
            Ok(_) => Ok("memfd_create works".into()),
            Err(e) => Err((e.to_string(), "raise the limits (`ulimit -v unlimited -f unlimited`)")),
        },
    ));
    found
}

fn emulator(arch: &str, plugin: &File) -> Path {
    let name = format!("qemu-{arch}");
    let fix = "apt-get install qemu-user";
    let Ok(path) = qemu(arch) else {
        return Path::new(&name, Err(("not in PATH".into(), fix)));
    };
    let run =
        |arguments: &[&str]| Command::new(&path).args(arguments).stdin(Stdio::null()).output();
    let version = match run(&["--version"]) {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.lines().next().unwrap_or("unknown version").to_owned()
        }
        Err(e) => return Path::new(&name, Err((format!("{}: {e}", path.display()), fix))),
    };
    // Loaded without its argument, the plugin says so and refuses; a QEMU without plugins, or
    // with another version of their interface, has something else to say.
    let option = plugin.to_string_lossy().replace(',', ",,");
    let said = run(&["-plugin", &option, "/proc/self/exe"])
        .map(|output| String::from_utf8_lossy(&output.stderr).into_owned())
        .unwrap_or_default();
    let accepted = said.contains("nearfar plugin:");
    Path::new(
        &name,
        if accepted {
            Ok(format!("{version}, accepts the plugin"))
        } else if plugin.is_file() {
            let why = said.lines().next().unwrap_or("no answer").to_owned();
            Err((
                format!("{version}, refuses the plugin: {why}"),
                "install Debian's qemu-user 7.2 or newer",
            ))
        } else {
            Ok(format!("{version}, not tried: the plugin is not built"))
        },
    )
}

/// Bytes that `dc zva` zeroes as the QEMU for aarch64 at `emulator` does it: a program of three
/// instructions exits with what the processor says of it (`DCZID_EL0`). `None` when it cannot be run.
pub(crate) fn zeroed_block(emulator: &File) -> Option<u64> {
    const CODE: [u32; 3] = [
        0xd53b_00e0, // mrs x0, dczid_el0
        0xd280_0ba8, // mov x8, #93 (exit)
        0xd400_0001, // svc #0
    ];
    const BASE: u64 = 0x40_0000;
    const HEAD: u64 = 120;
    let size = HEAD + 4 * CODE.len() as u64;
    let mut program = b"\x7fELF\x02\x01\x01".to_vec();
    program.resize(16, 0);
    // ELF header: a program for aarch64 that starts after its headers, one of which is a segment.
    for half in [2, 183] {
        program.extend(u16::to_le_bytes(half));
    }
    program.extend(1u32.to_le_bytes());
    program.extend([BASE + HEAD, 64, 0].iter().flat_map(|word| word.to_le_bytes()));
    program.extend(0u32.to_le_bytes());
    for half in [64, 56, 1, 0, 0, 0] {
        program.extend(u16::to_le_bytes(half));
    }
    // The segment: all of the file, to be read and executed.
    program.extend([1u32, 5].iter().flat_map(|word| word.to_le_bytes()));
    program.extend([0, BASE, BASE, size, size, 4096].iter().flat_map(|word| word.to_le_bytes()));
    program.extend(CODE.iter().flat_map(|code| code.to_le_bytes()));
    // SAFETY: the name is a C string; the descriptor is checked.
    let fd = unsafe { libc::memfd_create(c"nearfar-zva".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    // SAFETY: just opened, and nobody else's.
    let mut file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.write_all(&program).ok()?;
    let path = format!("/proc/{}/fd/{fd}", std::process::id());
    let mut command = Command::new(emulator);
    command.arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let answer = command.status().ok()?.code()?;
    // Bit 4: the program may not use it.
    (answer & 16 == 0).then_some(4 << (answer & 15))
}
