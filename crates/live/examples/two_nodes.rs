//! A program in two memory nodes, and what starts it: for a machine with two of them, such as a guest
//! (`bench/numa-kernel/live.py`).
//!
//! `two_nodes run LIBRARY FAST FAR POLICY COMMAND...` is `nearfar run` without Python; `two_nodes program
//! MIB REFERENCES` refers to so much memory, checks what it reads, and says on which nodes its pages are.
//! Lines that begin with `@@` are for the script that started it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use nearfar_live::options::Asked;
use nearfar_live::supervise;
use nearfar_schema::{Given, Options as _};
use nearfar_trace::{Error, Result};

const PAGE: usize = 4096;
/// Words of a page that are written and read.
const WORDS: usize = 8;
/// How long the program does nothing: until its memory is found, and at its end, so that it is seen from
/// outside.
const STILL: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["run", library, fast, far, policy, _, ..] => {
            run(library, fast, far, policy, &arguments[5..])
        }
        ["program", mib, references] => program(number(mib), number(references)),
        _ => Err(Error::input("two_nodes", "not like this", "see the source")),
    };
    done.unwrap_or_else(|error| {
        eprintln!("two_nodes: {error}");
        ExitCode::from(2)
    })
}

fn number(text: &str) -> usize {
    text.parse().unwrap_or(0)
}

/// Run a program, and print what it came to and what it had in use last.
fn run(library: &str, fast: &str, far: &str, policy: &str, command: &[String]) -> Result<ExitCode> {
    let given = [("fast", fast), ("far", far), ("policy", policy), ("far_size", "96M")];
    let given = given.map(|(name, value)| (name.to_owned(), Given::from(value)));
    let asked = Asked::read(&BTreeMap::from(given)).map_err(Error::refused)?;
    let setup = asked.setup(BTreeMap::new())?;
    let mut last = [0; 4];
    let summary = supervise::run(&setup, Path::new(library), command, None, |summary| {
        if summary.now[0] > 0 {
            last = summary.now;
        }
        true
    })?;
    println!("@@used {} {}", last[0], last[1]);
    println!("@@summary {}", serde_json::to_string(&summary).unwrap_or_default());
    Ok(ExitCode::from(summary.exit_code as u8))
}

/// Refer to pages at random, half of the references to an eighth of them, which moves; a quarter of them
/// writes.
fn program(mib: usize, references: usize) -> Result<ExitCode> {
    let pages = (mib << 20) / PAGE;
    let mut memory = vec![0u64; pages * PAGE / 8];
    let mut versions = vec![0u64; pages];
    std::thread::sleep(STILL);
    let (mut state, mut sum) = (1u64, 0u64);
    let word = |page: usize, word: usize| page * PAGE / 8 + word * (PAGE / 8 / WORDS);
    for step in 0..references {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let any = (state >> 33) as usize;
        let hot = step / (references / 8).max(1) * (pages / 8) + any % (pages / 8);
        let page = if state >> 63 == 0 { any } else { hot } % pages;
        for part in 0..WORDS {
            let found = memory[word(page, part)];
            if found != versions[page] * (part as u64 + 1) {
                println!("@@wrong page {page}, word {part}: {found}, written {}", versions[page]);
                return Ok(ExitCode::FAILURE);
            }
            sum = sum.rotate_left(5) ^ found;
        }
        if state >> 40 & 3 == 0 {
            versions[page] = state >> 8;
            for part in 0..WORDS {
                memory[word(page, part)] = versions[page] * (part as u64 + 1);
            }
        }
    }
    println!("@@sum {sum:x}");
    std::thread::sleep(STILL);
    let maps = fs::read_to_string("/proc/self/numa_maps").unwrap_or_default();
    let mut nodes = [0usize; 2];
    for mapping in maps.lines().filter(|line| line.contains(" anon=")) {
        for (node, pages) in nodes.iter_mut().enumerate() {
            let key = format!("N{node}=");
            let found = mapping.split(' ').find_map(|part| part.strip_prefix(&key));
            *pages += found.map_or(0, number);
        }
    }
    println!("@@nodes {} {}", nodes[0], nodes[1]);
    std::thread::sleep(STILL);
    Ok(ExitCode::SUCCESS)
}
