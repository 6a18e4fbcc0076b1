//! Finds the program of a command and the QEMU that it needs.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nearfar_trace::{Error, Result};

nearfar_schema::choices! {
    /// Architecture of a program.
    pub enum Arch: "architecture" {
        /// from the program's ELF header
        Auto = "auto",
        /// x86-64 only
        X86 = "x86_64",
        /// aarch64 only
        Arm = "aarch64",
    }
}

/// Supported architectures, as in `qemu-NAME`.
pub const ARCHS: [&str; 2] = ["x86_64", "aarch64"];

/// ELF machines: `e_machine`, class (1: 32 bits, 2: 64 bits), byte order (1: little-endian, 2: big)
/// and QEMU's name.
const MACHINES: [(u16, u8, u8, &str); 13] = [
    (62, 2, 1, "x86_64"),
    (183, 2, 1, "aarch64"),
    (183, 2, 2, "aarch64_be"),
    (3, 1, 1, "i386"),
    (62, 1, 1, "x86_64 (x32)"),
    (40, 1, 1, "arm"),
    (243, 2, 1, "riscv64"),
    (243, 1, 1, "riscv32"),
    (21, 2, 1, "ppc64le"),
    (21, 2, 2, "ppc64"),
    (22, 2, 2, "s390x"),
    (258, 2, 1, "loongarch64"),
    (8, 2, 1, "mips64el"),
];

/// A command, resolved for QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Architecture, one of [`ARCHS`].
    pub arch: &'static str,
    /// The ELF file to load.
    pub file: PathBuf,
    /// The program's `argv`.
    pub arguments: Vec<OsString>,
}

/// The program `name`: the path itself if it contains a slash, otherwise the first in `PATH`.
pub fn find(name: &Path) -> Result<PathBuf> {
    let place = || name.display().to_string();
    if name.as_os_str().as_bytes().contains(&b'/') {
        let meta = std::fs::metadata(name)
            .map_err(|e| Error::input(place(), format!("cannot be run: {e}"), "check the path"))?;
        if !meta.is_file() {
            return Err(Error::input(place(), "is not a program", "name the program's file"));
        }
        if meta.permissions().mode() & 0o111 == 0 {
            return Err(Error::input(
                place(),
                "is not executable",
                "chmod +x it, or check the path",
            ));
        }
        return Ok(name.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_executable = |file: &PathBuf| {
        file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(is_executable);
    found.ok_or_else(|| {
        Error::input(place(), "no such program in PATH", "check its name, or give its path")
    })
}

/// Find the program of `command`, following `#!` lines.
///
/// # Errors
/// There is no such program, or it has another architecture than `wanted`.
pub fn resolve(command: &[OsString], wanted: Arch) -> Result<Program> {
    let Some(name) = command.first() else {
        return Err(Error::input("command", "is empty", "put the program after `--`"));
    };
    let wanted = match wanted {
        Arch::Auto => None,
        named => Some(named.name()),
    };
    let mut file = find(Path::new(name))?;
    let mut arguments = command.to_vec();
    for _ in 0..5 {
        let place = file.display().to_string();
        let mut open = File::open(&file).map_err(|e| Error::io(&file, "cannot read", &e))?;
        let mut head = Vec::new();
        open.by_ref()
            .take(512)
            .read_to_end(&mut head)
            .map_err(|e| Error::io(&file, "cannot read", &e))?;
        if let Some(line) = head.strip_prefix(b"#!") {
            let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii();
            let cut = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
            let (interpreter, argument) = line.split_at(cut);
            let interpreter = OsString::from_vec(interpreter.to_vec());
            let argument = argument.trim_ascii();
            let rest = arguments.split_off(1);
            arguments = vec![interpreter.clone()];
            if !argument.is_empty() {
                arguments.push(OsString::from_vec(argument.to_vec()));
            }
            arguments.push(file.into_os_string());
            arguments.extend(rest);
            file = find(Path::new(&interpreter)).map_err(|_| {
                let what = format!("its interpreter {} cannot be run", interpreter.display());
                Error::input(&place, what, "fix the `#!` line, or install the interpreter")
            })?;
            continue;
        }
        let arch = arch_of(&head, &place)?;
        if let Some(wanted) = wanted.filter(|wanted| *wanted != arch) {
            let what = format!("is a program for {arch}, not {wanted}");
            return Err(Error::input(place, what, format!("give --arch {arch} or leave it out")));
        }
        check_loader(&open, &head, arch, &place)?;
        return Ok(Program { arch, file, arguments });
    }
    Err(Error::input(
        name.display().to_string(),
        "too many levels of `#!` lines",
        "name the interpreter",
    ))
}

/// The architecture of the ELF header `head`.
fn arch_of(head: &[u8], place: &str) -> Result<&'static str> {
    if !head.starts_with(b"\x7fELF") || head.len() < 64 {
        let fix = "give an ELF program, or a script whose first line names its interpreter";
        return Err(Error::input(place, "is neither an ELF program nor a `#!` script", fix));
    }
    let (class, order) = (head[4], head[5]);
    let half = |at: usize| {
        let bytes = [head[at], head[at + 1]];
        if order == 2 { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) }
    };
    // `e_type`: `ET_EXEC` or `ET_DYN`. Below, `half(18)` is `e_machine`.
    if !matches!(half(16), 2 | 3) {
        let what = "is an ELF file, but not a program (object file or core dump)";
        return Err(Error::input(place, what, "give the linked program"));
    }
    let known =
        MACHINES.iter().find(|(machine, c, o, _)| (*machine, *c, *o) == (half(18), class, order));
    let Some((.., name)) = known else {
        let what =
            format!("is a program for ELF machine {}, {} bits", half(18), 32 * u32::from(class));
        return Err(Error::input(place, what, "only x86_64 and aarch64 can be captured"));
    };
    ARCHS.into_iter().find(|arch| arch == name).ok_or_else(|| {
        let what = format!("is a program for {name}: it needs qemu-{name}");
        Error::input(place, what, "only x86_64 and aarch64 can be captured; rebuild it for one")
    })
}

/// Check that the program's dynamic loader exists, because QEMU's own message is obscure.
fn check_loader(file: &File, head: &[u8], arch: &str, place: &str) -> Result<()> {
    let u64_at = |bytes: &[u8], at: usize| {
        bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
    };
    // `e_phoff`, `e_phentsize` and `e_phnum`.
    let (table, each, count) =
        (u64_at(head, 32), u64::from(u64_at(head, 54) as u16), u64_at(head, 56) as u16);
    for index in 0..u64::from(count) {
        let mut entry = [0; 56];
        let at = table.saturating_add(index * each);
        if file.read_exact_at(&mut entry, at).is_err() {
            break;
        }
        /// `PT_INTERP`.
        const INTERPRETER: u32 = 3;
        // `p_offset` and `p_filesz`; `p_type` is in the first 4 bytes.
        let (offset, length) = (u64_at(&entry, 8), u64_at(&entry, 32));
        if u64_at(&entry, 0) as u32 != INTERPRETER || !(2..4096).contains(&length) {
            continue;
        }
        let mut name = vec![0; length as usize - 1];
        if file.read_exact_at(&mut name, offset).is_err() {
            break;
        }
        let loader = PathBuf::from(OsString::from_vec(name));
        let prefix = std::env::var_os("QEMU_LD_PREFIX")
            .map_or_else(|| PathBuf::from(format!("/etc/qemu-binfmt/{arch}")), PathBuf::from);
        let under = prefix.join(loader.strip_prefix("/").unwrap_or(&loader));
        if !loader.exists() && !under.exists() {
            let fix = match arch {
                "aarch64" => {
                    "apt-get install libc6-arm64-cross, then set QEMU_LD_PREFIX=/usr/aarch64-linux-gnu"
                }
                _ => "install the program's C library, or point QEMU_LD_PREFIX at its system root",
            };
            let what = format!("its loader {} does not exist", loader.display());
            return Err(Error::missing(place, what, fix));
        }
    }
    Ok(())
}

/// The QEMU for `arch`.
pub fn qemu(arch: &str) -> Result<PathBuf> {
    find(Path::new(&format!("qemu-{arch}"))).map_err(|_| {
        Error::missing(format!("qemu-{arch}"), "is not installed", "apt-get install qemu-user")
    })
}
