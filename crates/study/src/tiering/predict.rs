//! A workload as `nearfar run` would see it, told to its [`Predictor`].

use std::sync::Arc;

use nearfar_live::predict::Predictor;
use nearfar_trace::Result;

use super::engine::{Access, Block, End};
use super::workload::Prepared;

/// Accesses read at a time.
const BLOCK: usize = 1 << 14;

/// References that a run of the workload makes, its pages once before it begins among them.
pub fn references(workload: &Prepared) -> u64 {
    let phases = workload.phases.iter().map(|phase| phase.accesses).sum::<u64>();
    u64::from(workload.mapped) + phases
}

/// Let the predictor see the whole workload. `on_progress` is given the accesses so far and may stop.
///
/// # Errors
/// The trace cannot be read; why the run would be ended; the error of `on_progress`.
pub fn predict(
    workload: &Arc<Prepared>,
    seed: u64,
    predictor: &mut Predictor,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let mut seen = 0;
    for page in 0..workload.mapped {
        predictor.reference(page, true)?;
    }
    let mut block = Block::default();
    for (phase, what) in workload.phases.iter().enumerate() {
        predictor.sleep(what.sleep)?;
        let mut source = workload.source(phase, seed)?;
        let mut left = what.accesses;
        while left > 0 {
            source.fill(&mut block, left.min(BLOCK as u64) as usize)?;
            if block.accesses.is_empty() {
                break;
            }
            left = left.saturating_sub(block.accesses.len() as u64);
            tell(predictor, &block)?;
            seen += block.accesses.len() as u64;
            on_progress(seen)?;
        }
    }
    Ok(())
}

fn tell(predictor: &mut Predictor, block: &Block) -> Result<()> {
    let mut ends = block.ends.iter().peekable();
    for (at, access) in block.accesses.iter().enumerate() {
        while let Some((_, end)) = ends.next_if(|(before, _)| *before <= at) {
            give_back(predictor, *end)?;
        }
        match access.page() {
            Access::ZEROS => predictor.elsewhere(1),
            page => predictor.reference(page.number(), access.write())?,
        }
    }
    ends.try_for_each(|(_, end)| give_back(predictor, *end))
}

fn give_back(predictor: &mut Predictor, end: End) -> Result<()> {
    match end {
        End::Page(page) => predictor.release(page.number(), 1),
        End::Pages(first, count) => predictor.release(first.number(), count),
        // A translation costs nothing here.
        End::Translation(_) => Ok(()),
    }
}
