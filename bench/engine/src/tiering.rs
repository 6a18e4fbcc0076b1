//! `tiering`: times a workload in the tiering engine, the generation of its accesses, and random reads.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use nearfar_hardware::Machine;
use nearfar_hardware::table::on_huge_pages;
use nearfar_kernel::tiering::{Settings, find, make};
use nearfar_study::tiering::engine::Block;
use nearfar_study::tiering::workload::{Mix, Shape, generated};
use nearfar_study::tiering::{Options, PolicySource, run as simulate};
use nearfar_trace::Result;
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::measure::Rounds;

pub const OPTIONS: &[&str] = &["--rounds", "--policy", "--scale"];

/// Reads of [`read_at_random`].
const READS: u64 = 100_000_000;

/// Read random bytes of a table. The reads are independent, so that as many are in flight as the
/// processor allows: an upper limit of the engine's rate on this machine.
fn read_at_random(table: &[u8]) -> u64 {
    let mut state = 0u64;
    let read = |_| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let random = (state ^ state >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        u64::from(table[((random >> 32) * table.len() as u64 >> 32) as usize])
    };
    (0..READS).map(read).sum()
}

/// Time the workload that the argument TRACE names: generating its accesses alone, generating and
/// simulating them under each policy, and random reads of a table as large as the peak memory of a run.
pub fn run(arguments: &Arguments) -> Result<Value> {
    let scale: f64 = arguments.option("--scale")?.unwrap_or(1.0);
    let shape = Shape {
        scrambled: true,
        hottest_first: false,
        mix: Mix::Write,
        rounds: 4, // after a warm-up round
        scale,
        huge: false,
        rss_gib: None,
        wss_gib: None,
    };
    let machine = Machine::load("cxl-a", Path::new("machines"))?;
    let mut options = Options::new(&machine, 1.0)?;
    options.scale = scale;
    options.threads = 1;
    let names: Vec<String> =
        arguments.list("--policy")?.unwrap_or_else(|| vec!["nomad".to_owned()]);
    let settings = Settings { scale, ..Settings::default() };

    let began = Instant::now();
    let workload = Arc::new(generated(arguments.name(), &shape)?);
    let prepare = began.elapsed().as_secs_f64();
    let accesses: u64 = workload.phases.iter().map(|phase| phase.accesses).sum();
    let (mut limit, mut generate) = (Rounds::default(), Rounds::default());
    let mut policies: Vec<_> = names.iter().map(|_| Rounds::default()).collect();
    let mut rows = Vec::new();
    for _ in 0..arguments.rounds()? {
        generate.time(|| {
            let mut sum = 0u64;
            let mut block = Block::default();
            for (index, phase) in workload.phases.iter().enumerate() {
                // Seed 1, thread 0.
                let mut source = workload.source(index, 1, 0)?;
                let mut left = phase.accesses;
                while left > 0 {
                    source.fill(&mut block, left.min(1 << 14) as usize)?;
                    left -= block.accesses.len() as u64;
                    let pages = block.accesses.iter().map(|access| access.page().number());
                    sum += pages.map(u64::from).sum::<u64>();
                }
            }
            Ok(std::hint::black_box(sum))
        })?;
        rows.clear();
        for (name, rounds) in names.iter().zip(&mut policies) {
            let foresees = find(name)?.foresees;
            let source = PolicySource {
                label: name.clone(),
                foresees,
                make: Box::new(|memory| make(name, &settings, memory)),
            };
            let (programs, sources) = (std::slice::from_ref(&workload), [source]);
            let found =
                rounds.time(|| simulate(&options, programs, &sources, &[1], &mut |_| Ok(())))?;
            rows.extend(found.rows);
        }
    }
    // 0 if the kernel does not say; then a byte for each page of the workload.
    let peak = policies.iter().map(Rounds::peak_bytes).max().unwrap_or(0);
    let table = on_huge_pages(vec![1u8; peak.max(workload.pages.into()) as usize]);
    for _ in 0..arguments.rounds()? {
        limit.time(|| Ok(std::hint::black_box(read_at_random(&table))))?;
    }
    let policies: serde_json::Map<String, Value> =
        names.into_iter().zip(policies.iter().map(Rounds::json)).collect();
    Ok(json!({
        "pages": workload.pages,
        "accesses": accesses,
        "prepare_seconds": prepare,
        "reads": READS,
        "table_bytes": table.len(),
        "limit": limit.json(),
        "generate": generate.json(),
        "policies": policies,
        "rows": rows,
    }))
}
