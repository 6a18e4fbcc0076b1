//! Whether each way to capture is there, for `nearfar doctor`.

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
