//! What is captured, a program or a virtual machine, and the QEMU command that runs it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nearfar_trace::{Error, Result};

use crate::probe::{page_entry, zeroed_block};
use crate::program::{Arch, Program, qemu, resolve};
use crate::vm::{Connections, Vm};

pub(crate) enum Target<'a> {
    Program(Program),
    Vm(&'a Vm),
}

pub(crate) struct Launch {
    pub command: Command,
    pub emulator: PathBuf,
    /// Connections to a virtual machine; `None` for a program.
    pub connections: Option<Connections>,
}

impl<'a> Target<'a> {
    /// The virtual machine if there is one, or else the program of `command`.
    ///
    /// # Errors
    /// There is no such program.
    pub fn new(command: &[OsString], arch: Arch, vm: Option<&'a Vm>) -> Result<Self> {
        vm.map_or_else(|| resolve(command, arch).map(Self::Program), |vm| Ok(Self::Vm(vm)))
    }

    pub fn arch(&self) -> &'static str {
        match self {
            Self::Program(program) => program.arch,
            Self::Vm(vm) => vm.arch,
        }
    }

    /// Its description in the trace.
    pub fn describe(&self) -> String {
        match self {
            Self::Program(program) => format!("qemu-{} with the nearfar plugin", program.arch),
            Self::Vm(vm) => vm.describe(),
        }
    }

    /// The command that runs it, with this option of `-plugin`.
    ///
    /// # Errors
    /// QEMU is not installed, or a file of the virtual machine cannot be read.
    pub fn launch(self, plugin: String) -> Result<Launch> {
        match self {
            Self::Program(program) => of_program(program, plugin),
            Self::Vm(vm) => {
                let emulator = vm.emulator()?;
                let (command, connections) = vm.command(&emulator, &plugin)?;
                Ok(Launch { command, emulator, connections: Some(connections) })
            }
        }
    }
}

fn of_program(program: Program, mut plugin: String) -> Result<Launch> {
    let emulator = qemu(program.arch)?;
    if program.arch == "aarch64"
        && let Some(bytes) = zeroed_block(&emulator)
    {
        plugin.push_str(&format!(",zva={bytes}"));
    }
    // QEMU before 8.0 keeps an entry for each mapped page: the plugin ends a program before a mapping
    // that needs too much memory for them.
    if let Some(bytes) = page_entry(&emulator) {
        plugin.push_str(&format!(",entry={bytes}"));
    }
    let (name, rest) = program
        .arguments
        .split_first()
        .ok_or_else(|| Error::input("command", "is empty", "put the program after `--`"))?;
    let mut command = Command::new(&emulator);
    command.arg0(format!("qemu-{}", program.arch));
    command.arg("-plugin").arg(plugin).arg("-0").arg(name);
    // A relative path could begin with a dash.
    command.arg(if program.file.is_absolute() {
        program.file
    } else {
        Path::new(".").join(program.file)
    });
    command.args(rest);
    Ok(Launch { command, emulator, connections: None })
}

/// Have the program killed when this process ends, however it ends: unrecorded, the program would
/// run on at a fraction of its speed.
pub(crate) fn kill_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let set_signal = move || {
        // SAFETY: both are system calls that a child may make between fork and exec.
        unsafe {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // This process may have ended before the call.
            if libc::getppid() as u32 != parent {
                libc::_exit(1);
            }
        }
        Ok(())
    };
    // SAFETY: `set_signal` neither allocates nor takes locks.
    unsafe { command.pre_exec(set_signal) };
}

/// Whether a process that is not our child has ended, perhaps as a zombie.
pub(crate) fn has_ended(pid: u32) -> bool {
    let Ok(stat) = fs::read(format!("/proc/{pid}/stat")) else { return true };
    // `PID (NAME) STATE ...`; the name may contain any bytes.
    let stat = String::from_utf8_lossy(&stat);
    let after = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    matches!(after.as_bytes().first(), None | Some(b'Z' | b'X'))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::io::Read as _;
    use std::os::unix::ffi::OsStrExt as _;
    use std::process::Stdio;

    use super::*;

    #[test]
    fn a_process_whose_name_is_not_utf8_has_not_ended_until_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(OsStr::from_bytes(b"sh\xff"));
        std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
        let mut command = Command::new(&program);
        command.args(["-c", "echo; read line"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Its name changes shortly after `spawn`.
        child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let name = fs::read(format!("/proc/{}/comm", child.id())).unwrap();
        let ended_early = has_ended(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(name, b"sh\xff\n");
        assert!(!ended_early);
        assert!(has_ended(child.id()));
    }
}
