//! Checks whether a program can run under nearfar: the dynamic linker must start it.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nearfar_trace::{Error, Result};

use crate::far;
use crate::linux::Linux;
use crate::setup::Setup;

/// Find the program `name` as a shell does, and check whether nearfar's library can be loaded into it.
///
/// # Errors
/// The program does not exist, is static, or runs with another user's rights.
pub fn check(name: &str) -> Result<PathBuf> {
    let path = find(name).ok_or_else(|| {
        Error::input(name, "no such program", "give the command after --, as in a shell")
    })?;
    check_file(&path, 4)?;
    Ok(path)
}

/// Check whether `name` can run with `setup`: the program, userfaultfd, the far tier.
///
/// # Errors
/// As [`check`]; userfaultfd is not available; the far tier cannot be made.
pub fn check_all(setup: &Setup, name: &str) -> Result<PathBuf> {
    let path = check(name)?;
    Linux::open(1)?;
    let (_, tier, argument) = far::find(&setup.far)?;
    (tier.make)(argument, 1)?;
    Ok(path)
}

fn find(name: &str) -> Option<PathBuf> {
    let runs = |path: &Path| {
        path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| runs(path));
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| runs(path))
}

/// Follows at most `interpreters` `#!` lines.
fn check_file(path: &Path, interpreters: u32) -> Result<()> {
    let shown = path.display().to_string();
    let refuse = |what: &str, fix: &str| Err(Error::input(shown.clone(), what, fix));
    let io = |error: std::io::Error| Error::io(path, "reading", &error);
    let mut file = File::open(path).map_err(io)?;
    if file.metadata().map_err(io)?.permissions().mode() & 0o6000 != 0 {
        return refuse(
            "runs with another user's rights, so no library can be loaded into it",
            "run it as that user, from a copy without the set-user-ID bit",
        );
    }
    let mut head = Vec::new();
    file.by_ref().take(4096).read_to_end(&mut head).map_err(io)?;
    if let Some(rest) = head.strip_prefix(b"#!") {
        let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let words = String::from_utf8_lossy(line);
        let mut words = words.split_ascii_whitespace();
        let interpreter = match words.next() {
            // The interpreter is the program that env runs.
            Some(env) if env.ends_with("/env") => {
                words.find(|word| !word.starts_with('-')).and_then(find)
            }
            Some(path) => Some(PathBuf::from(path)),
            None => None,
        };
        return match interpreter {
            Some(path) if interpreters > 0 => check_file(&path, interpreters - 1),
            _ => refuse("names an interpreter that does not exist", "look at its first line"),
        };
    }
    // 64-bit, little-endian.
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return refuse("is no 64-bit program for this machine", "give the program itself");
    }
    let Some(head) = head.first_chunk::<58>() else {
        return refuse("is cut short", "give a whole program");
    };
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |high, low| high << 8 | u64::from(*low));
    // `e_phoff`, `e_phentsize`, `e_phnum`: elf(5).
    let (table, size, count) = (number(&head[32..40]), number(&head[54..56]), number(&head[56..]));
    // Real programs have about a dozen headers.
    for index in 0..count.min(256) {
        let mut kind = [0; 4];
        let entry = table.saturating_add(index * size);
        if file.read_exact_at(&mut kind, entry).is_ok() && u32::from_le_bytes(kind) == 3 {
            // `PT_INTERP` names the dynamic linker.
            return Ok(());
        }
    }
    refuse(
        "is a static program, so no library can be loaded into it",
        "build it dynamically (Go: -buildmode=pie -linkmode=external, or CGO_ENABLED=1)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(name: &str) -> String {
        check(name).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn a_program_that_cannot_run_is_refused_with_a_reason() {
        assert!(check("sh").is_ok() && check("/bin/sh").is_ok());
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str, content: &[u8], mode| {
            let path = folder.path().join(name);
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            path.to_str().unwrap().to_owned()
        };
        assert!(refusal("no-such-program-here").contains("no such program"));
        assert!(refusal(&make("plain", b"x", 0o644)).contains("no such program"));
        assert!(refusal(&make("text", b"x", 0o755)).contains("no 64-bit program"));
        let mut elf = vec![0u8; 64];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        assert!(refusal(&make("static", &elf, 0o755)).contains("static program"));
        assert!(refusal(&make("other", b"x", 0o4755)).contains("rights"));
        assert!(check(&make("script", b"#!/bin/sh\n", 0o755)).is_ok());
        assert!(check(&make("env", b"#!/usr/bin/env -S sh -e\n", 0o755)).is_ok());
        assert!(refusal(&make("broken", b"#!\n", 0o755)).contains("interpreter"));
        let recursive = make("own", b"", 0o755);
        std::fs::write(&recursive, format!("#!{recursive}\n")).unwrap();
        assert!(refusal(&recursive).contains("interpreter"));
    }
}
