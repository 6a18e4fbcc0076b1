// SPDX-License-Identifier: GPL-2.0-or-later
//! `execve`: QEMU would let the host run the new program, unrecorded. Before QEMU handles the call,
//! the plugin therefore executes another QEMU with the new program.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::ptr::null;

use crate::layout::{lost, what};
use crate::recorder::Recorder;
use crate::stream::Stream;
use crate::{guest, reach, syscall};

/// What the kernel does with a file on `execve`.
enum Program {
    /// Run it under this QEMU.
    Ours,
    /// Run this interpreter on it, perhaps with an argument.
    Script(Vec<u8>, Option<Vec<u8>>),
    /// Run it natively (another architecture), or fail (not a program).
    Other,
    /// Fail: not a regular file.
    NotAFile,
}

/// The program at `path`; `None` if it cannot be read.
fn inspect(path: &[u8]) -> Option<Program> {
    let name = std::ffi::OsString::from_vec(path.to_vec());
    // Do not block on a pipe without a writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(name).ok()?;
    if !file.metadata().ok()?.is_file() {
        return Some(Program::NotAFile);
    }
    let mut head = Vec::new();
    file.take(256).read_to_end(&mut head).ok()?;
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|&byte| byte == b'\n').next()?.trim_ascii();
        let space = line.iter().position(|byte| byte.is_ascii_whitespace());
        let (interpreter, argument) = line.split_at(space.unwrap_or(line.len()));
        let argument = Some(argument.trim_ascii().to_vec()).filter(|text| !text.is_empty());
        return Some(Program::Script(interpreter.to_vec(), argument));
    }
    let machine = head.get(18..20).map(|m| u16::from_le_bytes([m[0], m[1]]));
    let ours = head.starts_with(b"\x7fELF\x02\x01") && machine == Some(syscall::machine());
    Some(if ours { Program::Ours } else { Program::Other })
}

/// Run the program of `execve(path, argv, envp)` under this QEMU. Returns if that fails; QEMU then
/// proceeds with the call.
pub fn follow(stream: &mut Stream, path: u64, argv: u64, envp: u64) {
    if !Recorder::installed().is_some_and(Recorder::recording) {
        return;
    }
    let Some(name) = guest::text(path) else { return };
    let executable = |path: &[u8]| {
        CString::new(path).is_ok_and(|path| {
            // SAFETY: a C string.
            unsafe { libc::access(path.as_ptr(), libc::X_OK) == 0 }
        })
    };
    // Without capabilities until dropped: the new program may have none to open these files.
    let unprivileged = reach::Unprivileged::new();
    let mut lost = |why| stream.event(&[what::EXEC_LOST, why], &name);
    let mut path = name.clone();
    if path == b"/proc/self/exe" {
        path = guest::program().into_bytes();
    }
    let (Some(mut arguments), Some(environment)) = (guest::texts(argv), guest::texts(envp)) else {
        return lost(lost::ARGUMENTS);
    };
    for depth in 0.. {
        if !executable(&path) {
            return;
        }
        match inspect(&path) {
            Some(Program::Ours) => break,
            Some(Program::Script(interpreter, argument)) if depth < 4 => {
                let rest = arguments.split_off(arguments.len().min(1));
                arguments = vec![interpreter.clone()];
                arguments.extend(argument);
                arguments.push(path);
                arguments.extend(rest);
                path = interpreter;
            }
            Some(Program::NotAFile) => return,
            None => return lost(lost::UNREADABLE),
            _ => return lost(lost::OTHER),
        }
    }
    // Descriptors of the plugin and the shared memory, which the next QEMU needs.
    let Some(handover) = reach::prepare_handover() else { return lost(lost::REACH) };
    let zeroth = if arguments.is_empty() { path.clone() } else { arguments.remove(0) };
    if path.starts_with(b"-") {
        path = [b"./".as_slice(), &path].concat();
    }
    let mut line: Vec<Vec<u8>> =
        ["qemu", "-plugin", &handover.option, "-0"].map(|word| word.as_bytes().to_vec()).to_vec();
    line.extend([zeroth, path]);
    line.extend(arguments);
    let strings = |list: Vec<Vec<u8>>| -> Vec<CString> {
        list.into_iter().filter_map(|text| CString::new(text).ok()).collect()
    };
    let (line, environment) = (strings(line), strings(environment));
    let pointers = |list: &[CString]| {
        list.iter().map(|text| text.as_ptr()).chain([null()]).collect::<Vec<_>>()
    };
    let (line, environment) = (pointers(&line), pointers(&environment));
    drop(unprivileged);
    stream.note(what::EXEC, &name);
    // SAFETY: lists of C strings that end in null; the strings outlive the call.
    unsafe { libc::execve(c"/proc/self/exe".as_ptr(), line.as_ptr(), environment.as_ptr()) };
    stream.note(what::EXEC_FAILED, &name);
    stream.event(&[what::EXEC_LOST, lost::START], &name);
}
