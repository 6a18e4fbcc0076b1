//! `ssd`: times a trace on the DRAM-interface SSD. `flash`: times the flash simulation of a full drive
//! under constant garbage collection.

use std::path::Path;

use nearfar_hardware::Machine;
use nearfar_hardware::flash::{
    Array, Command, Ftl, Geometry, Op, Overwrite, Precondition, Step, Times,
};
use nearfar_study::ssd::options::Host;
use nearfar_study::ssd::simulate::cell;
use nearfar_study::ssd::{Options, Replay};
use nearfar_trace::generate::rng::Rng;
use nearfar_trace::{Error, Result};
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::measure::Rounds;

pub const OPTIONS: &[&str] = &["--rounds", "--share", "--epf"];
pub const FLASH_OPTIONS: &[&str] = &["--rounds", "--requests"];

/// State of the drive before the study.
const USED: Precondition =
    Precondition { sequential: 0.6, random: 0.5, overwrite: Overwrite::Drawn, seed: 1 };

/// The machine of UMD, the DRAM-interface SSD of paper 002.
fn umd() -> Result<Machine> {
    Machine::load("umd", Path::new("machines"))
}

/// Run the study for each `--epf` (embedded page fault) policy; device DRAM: `--share` of the footprint.
pub fn run(arguments: &Arguments) -> Result<Value> {
    let reader = arguments.open()?;
    let pages: u64 = reader.info().pages_by_kinds.values().sum();
    let share: f64 = arguments.option("--share")?.unwrap_or(0.7);
    let dram = (pages as f64 * share) as u64 * 4096;
    let epf = arguments.list("--epf")?.unwrap_or_else(|| vec!["none".to_owned()]);
    let machine = umd()?;
    // `None`: no disk, so that reading files takes no time.
    let host = Host::new(&machine, None)?;
    let options = Options::new(&epf, &[dram], host, USED, Replay::default())?;
    let mut rounds: Vec<_> = options.settings.iter().map(|_| Rounds::default()).collect();
    let mut rows = Vec::new();
    for _ in 0..arguments.rounds()? {
        rows.clear();
        for (setting, rounds) in options.settings.iter().zip(&mut rounds) {
            let (found, _) =
                rounds.time(|| cell(&reader, &machine, &options, setting, &mut |_| Ok(())))?;
            rows.push(found);
        }
    }
    let policies: serde_json::Map<String, Value> =
        epf.into_iter().zip(rounds.iter().map(Rounds::json)).collect();
    Ok(json!({
        "records": reader.info().records, "pages": pages, "policies": policies, "rows": rows,
    }))
}

/// Simulate `--requests` requests for random pages, a third of them reads, on a full drive: address
/// translation, garbage collection, and the time of each command on its die. The trace is not used.
pub fn flash(arguments: &Arguments) -> Result<Value> {
    let machine = umd()?;
    let geometry = Geometry::new(&machine)?;
    let times = Times::new(&machine)?;
    let requests: u64 = arguments.option("--requests")?.unwrap_or(1_000_000);
    let mut work = Rounds::default();
    let mut answer = json!({});
    for _ in 0..arguments.rounds()? {
        let mut ftl = Ftl::new(geometry.clone());
        // Full, and overwritten once, so that writes trigger garbage collection from the start.
        Precondition { sequential: 1.0, random: 1.0, overwrite: Overwrite::Drawn, seed: 1 }
            .apply(&mut ftl);
        let mut array = Array::new(&geometry);
        let mut rng = Rng::new(7);
        let (mut steps, mut erases, mut end, mut done) = (Vec::new(), 0u64, 0, 0u64);
        work.time(|| {
            let (mut now, mut under_way) = (0, 0u32);
            for request in 0..requests {
                steps.clear();
                let page = rng.below(u64::from(geometry.user_pages)) as u32;
                let mut run = |command: Command| {
                    erases += u64::from(command.op == Op::Erase);
                    times.steps(command, &mut steps);
                };
                if request % 3 == 0 {
                    ftl.read(page).map(&mut run);
                } else {
                    ftl.write(page, &mut run);
                }
                // Moving one page into the drive's DRAM and one out of it takes 50 ns each.
                Step::Delay { ns: 100 }.append(&mut steps);
                array.submit(now, &steps);
                under_way += 1;
                // The host keeps at most 32 requests in flight.
                while under_way == 32 {
                    now = array.next_event().unwrap_or(now);
                    array.step();
                    while array.finished().is_some() {
                        under_way -= 1;
                        done += 1;
                    }
                }
            }
            while array.step() {}
            while let Some((time, _)) = array.finished() {
                end = time;
                done += 1;
            }
            Ok(())
        })?;
        if done != requests {
            return Err(Error::input("flash", format!("{done} of {requests} requests done"), ""));
        }
        ftl.verify();
        let tally = ftl.tally();
        answer = json!({
            "requests": requests,
            "commands": tally.reads() + tally.programs() + erases,
            "collections": tally.collections,
            "write_amplification": tally.write_amplification(),
            "simulated_seconds": end as f64 / 1e9,
        });
    }
    answer["work"] = work.json();
    Ok(answer)
}
