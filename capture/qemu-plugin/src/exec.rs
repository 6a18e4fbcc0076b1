// SPDX-License-Identifier: GPL-2.0-or-later
//! `execve`: QEMU would let the host run the new program, unrecorded. So the plugin replaces the
//! process by QEMU with the new program itself, before QEMU sees the call.

use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::ptr::null;

use crate::layout::what;
use crate::recorder::Recorder;
use crate::stream::Stream;
use crate::{guest, syscall};

/// What the kernel would do with a file.
enum Program {
    /// Run it under this QEMU.
    Ours,
    /// Run this interpreter (with an argument, perhaps) on it.
    Script(Vec<u8>, Option<Vec<u8>>),
    /// Not for us: another architecture, or not a program at all.
    Other,
}

fn inspect(path: &[u8]) -> Option<Program> {
    let file = std::ffi::OsString::from_vec(path.to_vec());
    let mut head = Vec::new();
    File::open(file).ok()?.take(256).read_to_end(&mut head).ok()?;
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

/// The option of our own command line that loads this plugin.
fn plugin_option() -> Option<Vec<u8>> {
    let line = std::fs::read("/proc/self/cmdline").ok()?;
    let mut words = line.split(|&byte| byte == 0);
    words.find(|word| *word == b"-plugin")?;
    words.next().map(<[u8]>::to_vec)
}

/// Run the program that `execve(path, argv, envp)` names under this QEMU. Returns when that
/// cannot be done: QEMU then does what it would have done.
pub fn follow(stream: &mut Stream, path: u64, argv: u64, envp: u64) {
    if !Recorder::installed().is_some_and(Recorder::recording) {
        return;
    }
    let Some(named) = guest::text(path) else { return };
    let executable = |path: &[u8]| {
        CString::new(path).is_ok_and(|path| {
            // SAFETY: a C string.
            unsafe { libc::access(path.as_ptr(), libc::X_OK) == 0 }
        })
    };
    let mut lost = |name: &[u8]| stream.note(what::EXEC_LOST, name);
    let mut path = named.clone();
    if path == b"/proc/self/exe" {
        path = guest::program().into_bytes();
    }
    let (Some(mut arguments), Some(environment)) = (guest::texts(argv), guest::texts(envp)) else {
        return lost(&named);
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
            _ => return lost(&named),
        }
    }
    let Some(option) = plugin_option() else { return lost(&named) };
    let zeroth = if arguments.is_empty() { path.clone() } else { arguments.remove(0) };
    if path.starts_with(b"-") {
        path = [b"./".as_slice(), &path].concat();
    }
    let mut line: Vec<Vec<u8>> =
        vec![b"qemu".to_vec(), b"-plugin".to_vec(), option, b"-0".to_vec(), zeroth, path];
    line.extend(arguments);
    let strings = |list: Vec<Vec<u8>>| -> Vec<CString> {
        list.into_iter().filter_map(|text| CString::new(text).ok()).collect()
    };
    let (line, environment) = (strings(line), strings(environment));
    let pointers = |list: &[CString]| {
        list.iter().map(|text| text.as_ptr()).chain([null()]).collect::<Vec<_>>()
    };
    let (line, environment) = (pointers(&line), pointers(&environment));
    stream.note(what::EXEC, &named);
    // SAFETY: lists of C strings that end in null; the strings live until the end.
    unsafe { libc::execve(c"/proc/self/exe".as_ptr(), line.as_ptr(), environment.as_ptr()) };
    stream.note(what::EXEC_FAILED, &named);
    stream.note(what::EXEC_LOST, &named);
}
