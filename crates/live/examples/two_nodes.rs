//! A program with memory on two nodes, and a launcher for it. Needs a machine with two memory nodes, such as
//! a guest (`bench/numa-kernel/live.py`).
//!
//! * `two_nodes program MIB REFERENCES` makes REFERENCES references to MIB MiB of memory, checks the values
//!   that it reads, and prints the number of its pages on each node.
//! * `two_nodes hot MIB HOT SECONDS` writes MIB MiB of memory, reads the last HOT MiB for SECONDS s, and
//!   prints the number of these hot pages on each node.
//! * `two_nodes run LIBRARY FAST FAR POLICY COMMAND...` is `nearfar run` without Python.
//! * `two_nodes fill NODE MIB COMMAND...` runs a command while only MIB MiB of a node are free.
//!
//! Lines that begin with `@@` are for the script that started the example.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use nearfar_live::options::RunOptions;
use nearfar_live::setup::Setup;
use nearfar_live::supervise;
use nearfar_schema::{Given, Options as _};
use nearfar_trace::{Error, Result};

const PAGE: usize = 4096;
/// Number of words of each page that are written and read.
const WORDS: usize = 8;
/// Pause of the program: at the start until its memory is managed, near the end for observers.
const PAUSE: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["run", library, fast, far, policy, _, ..] => {
            run(library, fast, far, policy, &arguments[5..])
        }
        ["program", mib, references] => program(number(mib), number(references)),
        ["hot", mib, hot, seconds] => keep_hot(number(mib), number(hot), number(seconds)),
        ["fill", node, mib, _, ..] => fill(number(node), number(mib), &arguments[3..]),
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

fn setup(fast: &str, far: &str, policy: &str) -> Result<Setup> {
    let given = [("fast", fast), ("far", far), ("policy", policy), ("far_size", "64M")];
    let given = given.map(|(name, value)| (name.to_owned(), Given::from(value)));
    let options = RunOptions::read(&BTreeMap::from(given)).map_err(Error::refused)?;
    options.setup(BTreeMap::new())
}

/// Run a program. Print its summary, and the last numbers of its fast and far pages.
fn run(library: &str, fast: &str, far: &str, policy: &str, command: &[String]) -> Result<ExitCode> {
    let setup = setup(fast, far, policy)?;
    let mut last = [0; 4];
    let provider = None;
    let summary = supervise::run(&setup, Path::new(library), command, provider, |summary| {
        // At the program's end, its memory is gone.
        if summary.now[0] > 0 {
            last = summary.now;
        }
        true
    })?;
    println!("@@used {} {}", last[0], last[1]);
    println!("@@summary {}", serde_json::to_string(&summary).unwrap_or_default());
    Ok(ExitCode::from(summary.exit_code as u8))
}

/// Run a command while at most `mib` MiB of a node are free, or as few as the kernel allows.
fn fill(node: usize, mib: usize, command: &[String]) -> Result<ExitCode> {
    let meminfo = Path::new("/sys/devices/system/node").join(format!("node{node}/meminfo"));
    let fails = |what| move |error: io::Error| Error::io(Path::new("two_nodes"), what, &error);
    let free_mib = || -> Result<usize> {
        let text = fs::read_to_string(&meminfo).map_err(fails("reading meminfo"))?;
        // Such as `Node 0 MemFree:  123456 kB`.
        let line = text.lines().find(|line| line.contains("MemFree:")).unwrap_or_default();
        Ok(line.split_ascii_whitespace().nth(3).map_or(0, number) >> 10)
    };
    let (default, preferred, mask) = (0, 1, 1u64 << node);
    let prefer = |policy: i32, mask: *const u64| {
        // SAFETY: the kernel reads one bit less than the given number: those of `mask`.
        unsafe { libc::syscall(libc::SYS_set_mempolicy, policy, mask, 65) }
    };
    if prefer(preferred, &raw const mask) < 0 {
        return Err(fails("preferring a node")(io::Error::last_os_error()));
    }
    // The ballast is written, so it is resident: the guest has no swap.
    let (mut ballast, mut free, mut without_effect) = (Vec::new(), free_mib()?, 0);
    // Four tries, because ended processes may still be freeing memory.
    while free > mib && without_effect < 4 {
        ballast.push(vec![1u8; 4 << 20]);
        let now = free_mib()?;
        without_effect = if now < free { 0 } else { without_effect + 1 };
        free = now;
    }
    prefer(default, std::ptr::null());
    println!("@@left {free}");
    let status = Command::new(&command[0]).args(&command[1..]).status();
    let status = status.map_err(fails("running a command"))?;
    println!("@@left {}", free_mib()?);
    drop(ballast);
    Ok(ExitCode::from(status.code().unwrap_or(1) as u8))
}

/// Random references: the page, and for a write the value. Half of them are to a hot eighth of the pages,
/// which moves.
struct References {
    pages: usize,
    count: usize,
    step: usize,
    state: u64,
}

impl References {
    fn new(pages: usize, count: usize) -> Self {
        Self { pages, count, step: 0, state: 1 }
    }
}

impl Iterator for References {
    type Item = (usize, Option<u64>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.step == self.count {
            return None;
        }
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (any, eighth) = ((self.state >> 33) as usize, self.pages / 8);
        let hot = self.step / (self.count / 8).max(1) * eighth + any % eighth;
        let page = if self.state >> 63 == 0 { any } else { hot } % self.pages;
        self.step += 1;
        Some((page, (self.state >> 40 & 3 == 0).then_some(self.state >> 8)))
    }
}

/// Memory, and the version of each page: the number that was last written to it.
struct Memory {
    words: Vec<u64>,
    versions: Vec<u64>,
}

impl Memory {
    fn new(pages: usize) -> Self {
        Self { words: vec![0; pages * PAGE / 8], versions: vec![0; pages] }
    }

    fn word(page: usize, part: usize) -> usize {
        page * PAGE / 8 + part * (PAGE / 8 / WORDS)
    }

    /// Returns a checksum of the values read, or a description of a wrong one.
    fn refer(&mut self, references: References) -> std::result::Result<u64, String> {
        let mut sum = 0u64;
        for (page, write) in references {
            for part in 0..WORDS {
                let (found, written) = (self.words[Self::word(page, part)], self.versions[page]);
                if found != written * (part as u64 + 1) {
                    return Err(format!("page {page}, word {part}: {found}, written {written}"));
                }
                sum = sum.rotate_left(5) ^ found;
            }
            if let Some(version) = write {
                self.versions[page] = version;
                for part in 0..WORDS {
                    self.words[Self::word(page, part)] = version * (part as u64 + 1);
                }
            }
        }
        Ok(sum)
    }
}

fn program(mib: usize, references: usize) -> Result<ExitCode> {
    let pages = (mib << 20) / PAGE;
    let mut memory = Memory::new(pages);
    std::thread::sleep(PAUSE);
    match memory.refer(References::new(pages, references)) {
        Ok(sum) => println!("@@sum {sum:x}"),
        Err(wrong) => {
            println!("@@wrong {wrong}");
            return Ok(ExitCode::FAILURE);
        }
    }
    std::thread::sleep(PAUSE);
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
    std::thread::sleep(PAUSE);
    Ok(ExitCode::SUCCESS)
}

fn keep_hot(mib: usize, hot: usize, seconds: usize) -> Result<ExitCode> {
    let mut words = vec![0u64; (mib << 20) / 8];
    words.chunks_mut(PAGE / 8).enumerate().for_each(|(page, words)| words[0] = page as u64 + 1);
    std::thread::sleep(PAUSE);
    let hot = &words[words.len() - (hot << 20) / 8..];
    let (began, mut sum) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(seconds as u64) {
        sum = hot
            .chunks(PAGE / 8)
            .fold(sum, |sum: u64, page| sum.wrapping_add(std::hint::black_box(page[0])));
    }
    let pages: Vec<*const u64> = hot.chunks(PAGE / 8).map(<[u64]>::as_ptr).collect();
    let mut nodes = vec![-1i32; pages.len()];
    // SAFETY: both tables have the passed number of entries; without target nodes nothing is moved.
    let done = unsafe {
        let (pages, nodes) = (pages.as_ptr(), nodes.as_mut_ptr());
        libc::syscall(libc::SYS_move_pages, 0, hot.len() * 8 / PAGE, pages, 0, nodes, 0)
    };
    let on = |node: i32| nodes.iter().filter(|on| **on == node).count();
    println!("@@hot {} {} {sum:x}", on(0), on(1));
    Ok(if done == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
