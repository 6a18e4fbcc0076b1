//! `nearfar-bench COMMAND TRACE [--option value ...]`: times the engine in one process, over several
//! rounds, and prints one JSON object. `bench/run.py` calls it.

mod arguments;
mod decode;
mod fenwick;
mod lru;
mod measure;
mod ssd;
mod study;
mod tiering;
mod view;

use std::process::ExitCode;

use arguments::Arguments;
use nearfar_trace::{Error, Result};
use serde_json::Value;

/// The allocator of the Python module, so that timings apply to what users run.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A command: its name, its options, and its function.
type Command = (&'static str, &'static [&'static str], fn(&Arguments) -> Result<Value>);

const COMMANDS: &[Command] = &[
    ("decode", decode::OPTIONS, decode::run),
    ("study", study::OPTIONS, study::run),
    ("lru", lru::OPTIONS, lru::run),
    ("tiering", tiering::OPTIONS, tiering::run),
    ("ssd", ssd::OPTIONS, ssd::run),
    ("flash", ssd::FLASH_OPTIONS, ssd::flash),
    ("view", view::OPTIONS, view::run),
];

fn run() -> Result<Value> {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_default();
    let Some((_, options, run)) = COMMANDS.iter().find(|command| command.0 == name) else {
        let names: Vec<_> = COMMANDS.iter().map(|command| command.0).collect();
        let fix = format!("choose one of {}", names.join(", "));
        return Err(Error::input("nearfar-bench", format!("no command `{name}`"), fix));
    };
    run(&Arguments::parse(words, options)?)
}

fn main() -> ExitCode {
    match run() {
        Ok(answer) => {
            println!("{answer}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("nearfar-bench: error: {error}");
            ExitCode::from(error.exit_code() as u8)
        }
    }
}
