//! Memory that a program locks (`mlock`), which the kernel cannot reclaim.

use nearfar_trace::ranges::Ranges;
use nearfar_trace::{RegionEvent, RegionKind};
use rustc_hash::FxHashMap;

use super::PAGE;

/// Peak locked bytes of all processes together. `process_of` returns the process of a thread.
pub fn peak(events: &[RegionEvent], process_of: impl Fn(u32) -> u32) -> u64 {
    let mut spaces: FxHashMap<u32, Ranges<()>> = FxHashMap::default();
    let mut peak = 0;
    for event in events {
        let Some(more) = event.length.checked_sub(1) else {
            if matches!(event.event, RegionKind::Exec | RegionKind::Exit) {
                spaces.remove(&process_of(event.thread));
            }
            continue;
        };
        let (first, last) = (event.addr / PAGE, event.addr.saturating_add(more) / PAGE);
        let space = spaces.entry(process_of(event.thread)).or_default();
        match event.event {
            RegionKind::Lock => {
                space.map(first, last, ());
                let pages = |space: &Ranges<()>| -> u64 {
                    space.within(0, u64::MAX).map(|(first, last, ())| last - first + 1).sum()
                };
                peak = peak.max(spaces.values().map(pages).sum());
            }
            RegionKind::Unlock | RegionKind::Unmap | RegionKind::Map => space.unmap(first, last),
            RegionKind::Move => {
                space.shift(first, last, (event.to / PAGE).wrapping_sub(first), |()| ());
            }
            _ => {}
        }
    }
    peak * PAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(event: RegionKind, thread: u32, addr: u64, length: u64) -> RegionEvent {
        RegionEvent { event, thread, addr, length, to: 0x90_0000, ..<_>::default() }
    }

    #[test]
    fn locked_memory_counts_until_it_is_unlocked_or_unmapped() {
        use RegionKind::{Exit, Lock, Map, Move, Unlock, Unmap};
        let of = |steps: &[(RegionKind, u32, u64, u64)]| {
            let events =
                steps.iter().map(|&(kind, thread, addr, len)| event(kind, thread, addr, len));
            peak(&events.collect::<Vec<_>>(), |thread| thread)
        };
        assert_eq!(of(&[(Lock, 0, 0x1000, 0x3000), (Lock, 0, 0x2000, 0x3000)]), 0x4000);
        assert_eq!(of(&[(Lock, 0, 0x1000, 0x2000), (Unlock, 0, 0, 1 << 62)]), 0x2000);
        for gone in [Unlock, Unmap, Map] {
            let steps = [(Lock, 0, 0x1000, 0x2000), (gone, 0, 0x1000, 0x1000)];
            assert_eq!(of(&[&steps[..], &[(Lock, 0, 0x8000, 0x1000)]].concat()), 0x2000);
        }
        // Moved memory stays locked, each process counts, and a process that exits unlocks.
        let moved = [(Lock, 0, 0x1000, 0x2000), (Move, 0, 0x1000, 0x2000)];
        assert_eq!(of(&[&moved[..], &[(Lock, 1, 0x1000, 0x1000)]].concat()), 0x3000);
        let ended = [(Lock, 0, 0x1000, 0x2000), (Exit, 0, 0, 0), (Lock, 1, 0x1000, 0x1000)];
        assert_eq!(of(&ended), 0x2000);
    }
}
