// SPDX-License-Identifier: GPL-2.0-or-later
//! Follows `execve`: QEMU would let the host run the new program, unrecorded. The plugin therefore
//! executes another QEMU with the new program, before QEMU handles the call.

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

/// What a file is to `execve`.
enum Program {
    /// An ELF file of QEMU's target.
    Ours,
    /// A script (`#!`): interpreter, and argument if there is one.
    Script(Vec<u8>, Option<Vec<u8>>),
    /// A program of another architecture, or no program.
    Other,
    NotRegular,
}

/// `None` if the file cannot be read.
fn inspect(path: &[u8]) -> Option<Program> {
    let name = std::ffi::OsString::from_vec(path.to_vec());
    // Do not block on a pipe without a writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(name).ok()?;
    if !file.metadata().ok()?.is_file() {
        return Some(Program::NotRegular);
    }
    let mut head = Vec::new();
    // `BINPRM_BUF_SIZE` of Linux.
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

/// Run the program of an `execve` under this QEMU. Returns if that fails; QEMU then proceeds with the
/// call.
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
    // Clear capabilities while files are opened: the new program may have none.
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
            // The interpreter may be a script too, four deep (execve(2)).
            Some(Program::Script(interpreter, argument)) if depth < 4 => {
                let rest = arguments.split_off(arguments.len().min(1));
                arguments = vec![interpreter.clone()];
                arguments.extend(argument);
                arguments.push(path);
                arguments.extend(rest);
                path = interpreter;
            }
            Some(Program::NotRegular) => return,
            None => return lost(lost::UNREADABLE),
            _ => return lost(lost::OTHER),
        }
    }
    let Some(handover) = reach::prepare_handover() else { return lost(lost::INACCESSIBLE) };
    let argv0 = if arguments.is_empty() { path.clone() } else { arguments.remove(0) };
    // QEMU would take it for an option.
    if path.starts_with(b"-") {
        path = [b"./".as_slice(), &path].concat();
    }
    let mut line: Vec<Vec<u8>> =
        ["qemu", "-plugin", &handover.option, "-0"].map(|word| word.as_bytes().to_vec()).to_vec();
    line.extend([argv0, path]);
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
