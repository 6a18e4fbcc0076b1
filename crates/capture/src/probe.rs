//! What a capture needs, and whether this machine has it (`nearfar doctor`).

use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use nearfar_trace::Error;
use serde::Serialize;

use crate::program::{ARCHS, qemu};
use crate::shared::{Shared, memory_file};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Requirement {
    pub name: String,
    /// Whether it exists and works.
    pub available: bool,
    /// What was found, or what is wrong.
    pub why: String,
    /// What to do if it is not available, otherwise empty.
    pub fix: String,
}

impl Requirement {
    fn new(name: &str, found: Result<String, (String, &str)>) -> Self {
        let (available, why, fix) = match found {
            Ok(why) => (true, why, String::new()),
            Err((why, fix)) => (false, why, fix.to_owned()),
        };
        Self { name: name.to_owned(), available, why, fix }
    }
}

/// Check each QEMU, the shared library `plugin`, and shared memory.
pub fn probe(plugin: &Path) -> Vec<Requirement> {
    let mut requirements: Vec<Requirement> =
        ARCHS.into_iter().map(|arch| emulator(arch, plugin)).collect();
    requirements.push(Requirement::new(
        "capture plugin",
        match plugin.metadata() {
            Ok(meta) => Ok(format!("{} ({} bytes)", plugin.display(), meta.len())),
            Err(e) => Err((format!("{}: {e}", plugin.display()), "make plugin")),
        },
    ));
    requirements.push(Requirement::new(
        "shared memory",
        // No flags for the plugin, which does not run.
        match Shared::create(0) {
            Ok(_) => Ok("memfd_create works".into()),
            Err(e) => Err((e.to_string(), "raise the limits (`ulimit -v unlimited -f unlimited`)")),
        },
    ));
    requirements
}

fn emulator(arch: &str, plugin: &Path) -> Requirement {
    let name = format!("qemu-{arch}");
    let fix = "apt-get install qemu-user";
    let Ok(path) = qemu(arch) else {
        return Requirement::new(&name, Err(("not in PATH".into(), fix)));
    };
    let run =
        |arguments: &[&str]| Command::new(&path).args(arguments).stdin(Stdio::null()).output();
    let version = match run(&["--version"]) {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.lines().next().unwrap_or("unknown version").to_owned()
        }
        Err(e) => return Requirement::new(&name, Err((format!("{}: {e}", path.display()), fix))),
    };
    // Without its argument, the plugin prints a known message and refuses to load. A QEMU
    // without plugins, or with another API version, prints something else.
    let option = plugin.to_string_lossy().replace(',', ",,");
    let message = run(&["-plugin", &option, "/proc/self/exe"])
        .map(|output| String::from_utf8_lossy(&output.stderr).into_owned())
        .unwrap_or_default();
    let accepted = message.contains("nearfar plugin:");
    Requirement::new(
        &name,
        if accepted {
            Ok(format!("{version}, accepts the plugin"))
        } else if plugin.is_file() {
            let why = message.lines().next().unwrap_or("no answer").to_owned();
            Err((
                format!("{version}, refuses the plugin: {why}"),
                "install Debian's qemu-user 7.2 or newer",
            ))
        } else {
            Ok(format!("{version}, not tried: the plugin is not built"))
        },
    )
}

/// Bytes of a `PageDesc`, which QEMU before 8.0 keeps for each mapped page: three words.
const PAGE_ENTRY: u64 = 24;

/// Bytes of the entry that the QEMU at `emulator` keeps for each mapped page. `None` if its version
/// is unknown, or is 8.0 or newer, which keeps no such entries.
pub(crate) fn page_entry(emulator: &Path) -> Option<u64> {
    let output = Command::new(emulator).arg("--version").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let major = text.split_once("version ")?.1.split('.').next()?.parse::<u32>().ok()?;
    (major < 8).then_some(PAGE_ENTRY)
}

/// Why a process was ended before it mapped `bytes`: QEMU has no memory for its page entries.
pub(crate) fn no_room(bytes: u64) -> String {
    let gib = bytes as f64 / f64::from(1 << 30);
    format!(
        "a process was ended before it mapped {gib:.0} GiB, for which this QEMU would take {:.1} \
         GiB of memory; let it reserve less, or use QEMU 8.0 or newer",
        gib * PAGE_ENTRY as f64 / 4096.0
    )
}

/// The error of a QEMU that ended before the program began.
pub(crate) fn not_started(emulator: &Path, status: ExitStatus, interrupted: bool) -> Error {
    if interrupted {
        return Error::cancelled();
    }
    let place = emulator.display().to_string();
    let what = format!("could not start the program ({status}); QEMU's message is above");
    Error::input(place, what, "`nearfar doctor` says whether this QEMU accepts plugins")
}

/// Bytes that `dc zva` zeroes under the aarch64 QEMU at `emulator`: runs a program of three
/// instructions that exits with `DCZID_EL0`. `None` if it cannot run or `dc zva` is disabled.
pub(crate) fn zeroed_block(emulator: &Path) -> Option<u64> {
    const CODE: [u32; 3] = [
        0xd53b_00e0, // mrs x0, dczid_el0
        0xd280_0ba8, // mov x8, #93 (exit)
        0xd400_0001, // svc #0
    ];
    const BASE: u64 = 0x40_0000;
    /// Bytes of the ELF header and one program header.
    const HEADERS: u64 = 64 + 56;
    let size = HEADERS + 4 * CODE.len() as u64;
    let mut program = b"\x7fELF\x02\x01\x01".to_vec();
    program.resize(16, 0);
    // ELF header: an aarch64 program (`e_type` 2, `e_machine` 183) with one segment; its code starts
    // after the headers.
    for half in [2, 183] {
        program.extend(u16::to_le_bytes(half));
    }
    // `e_version`; then `e_entry`, `e_phoff` and `e_shoff`; then `e_flags`.
    program.extend(1u32.to_le_bytes());
    program.extend([BASE + HEADERS, 64, 0].iter().flat_map(|word| word.to_le_bytes()));
    program.extend(0u32.to_le_bytes());
    // Sizes and numbers: this header, program headers, section headers.
    for half in [64, 56, 1, 0, 0, 0] {
        program.extend(u16::to_le_bytes(half));
    }
    // The segment (`PT_LOAD`): the whole file, readable and executable (`PF_R | PF_X`).
    program.extend([1u32, 5].iter().flat_map(|word| word.to_le_bytes()));
    program.extend([0, BASE, BASE, size, size, 4096].iter().flat_map(|word| word.to_le_bytes()));
    program.extend(CODE.iter().flat_map(|code| code.to_le_bytes()));
    // An empty file, without flags.
    let mut file = memory_file(c"nearfar-zva", 0, 0).ok()?;
    file.write_all(&program).ok()?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let mut command = Command::new(emulator);
    command.arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let register = command.status().ok()?.code()?;
    // Bit 4: `dc zva` is disabled. Bits 0 to 3: log2 of the number of 4-byte words that it zeroes.
    (register & 16 == 0).then_some(4 << (register & 15))
}
