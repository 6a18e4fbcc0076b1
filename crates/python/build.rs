//! Generates lists that embed `workloads/*.toml` and `papers/*/*.toml`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../..");
    embed(&[root.join("workloads")], "workloads.rs", false);
    let papers = root.join("papers");
    println!("cargo::rerun-if-changed={}", papers.display());
    embed(&entries(&papers, Path::is_dir), "papers.rs", true);
}

/// The sorted paths in `folder` for which `wanted` is true.
fn entries(folder: &Path, wanted: fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| wanted(path))
        .collect();
    paths.sort();
    paths
}

/// Write `&[(name, text), ...]` of the folders' TOML files to `output` in `OUT_DIR`. If `nested`, names are
/// `FOLDER/NAME`.
fn embed(folders: &[PathBuf], output: &str, nested: bool) {
    let mut list = String::from("&[\n");
    for folder in folders {
        println!("cargo::rerun-if-changed={}", folder.display());
        for path in entries(folder, |path| path.extension().is_some_and(|e| e == "toml")) {
            println!("cargo::rerun-if-changed={}", path.display());
            let mut name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if nested {
                let outer = folder.file_name().unwrap_or_default().to_string_lossy();
                name = format!("{outer}/{name}");
            }
            let path = path.canonicalize().unwrap_or(path);
            let _ = writeln!(list, "    ({name:?}, include_str!({path:?})),");
        }
    }
    list.push(']');
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join(output);
    fs::write(&out, list).unwrap_or_else(|e| panic!("{}: {e}", out.display()));
}
