//! Names of addresses: what was mapped where at the moment, by process.
//!
//! With region events, a page has the name of the mapping it lies in. Without any (imported and
//! generated traces), touched 2 MiB blocks that adjoin make one region, named by its addresses.

use std::collections::HashMap;

use nearfar_trace::hash::PageMap;
use nearfar_trace::{RegionEvent, RegionKind};
use rustc_hash::FxHashMap;

use crate::ranges::Ranges;

/// The region of addresses outside every mapping.
pub const UNNAMED: &str = "(unnamed)";
const PAGE_SHIFT: u32 = 12;
/// log2 of the 4 KiB pages in a 2 MiB block.
const BLOCK_SHIFT: u32 = 9;
/// First page of the upper half: page caches of files, shared by all processes.
const KERNEL: u64 = 1 << (63 - PAGE_SHIFT);

/// Gives pages region ids.
pub enum Names {
    /// From region events.
    Mapped(Box<Mapped>),
    /// By 2 MiB block; merged into regions at the end.
    Blocks(PageMap<u32>),
}

impl Names {
    /// Names for a trace with these events, in any order.
    pub fn new(mut events: Vec<RegionEvent>) -> Self {
        use RegionKind as K;
        if !events.iter().any(|e| matches!(e.event, K::Map | K::Brk | K::File)) {
            return Names::Blocks(PageMap::default());
        }
        events.sort_by_key(|event| event.at);
        let mut mapped = Mapped {
            events: events.into_iter().peekable(),
            names: Vec::new(),
            ids: HashMap::new(),
            spaces: FxHashMap::default(),
            files: Ranges::default(),
        };
        mapped.id(UNNAMED, false);
        Names::Mapped(Box::new(mapped))
    }

    /// Number of the record before which the next event happened.
    pub fn next_event(&mut self) -> u64 {
        match self {
            Names::Mapped(mapped) => mapped.events.peek().map_or(u64::MAX, |event| event.at),
            Names::Blocks(_) => u64::MAX,
        }
    }

    /// Apply the events up to record number `at`. `process_of` gives a thread's process; `running`
    /// is the process of the last record: a fork inherits its mappings.
    pub fn advance(&mut self, at: u64, process_of: impl Fn(u32) -> u32, running: u32) {
        if let Names::Mapped(mapped) = self {
            while let Some(event) = mapped.events.next_if(|event| event.at <= at) {
                mapped.apply(&event, process_of(event.thread), running);
            }
        }
    }

    /// The region of `page` as `process` sees it now.
    pub fn region(&mut self, process: u32, page: u64) -> u32 {
        match self {
            Names::Mapped(mapped) => mapped.find(process, page),
            Names::Blocks(blocks) => {
                let fresh = blocks.len() as u32;
                *blocks.entry(page >> BLOCK_SHIFT).or_insert(fresh)
            }
        }
    }

    /// For every region id, the number of the final region it is part of; and, for mapped ones,
    /// the names of the final regions.
    pub fn finish(self) -> (Vec<u32>, Vec<Option<String>>) {
        match self {
            Names::Mapped(mapped) => {
                let ids = (0..mapped.names.len() as u32).collect();
                (ids, mapped.names.into_iter().map(|name| Some(name.text)).collect())
            }
            Names::Blocks(blocks) => {
                let mut ordered: Vec<(u64, u32)> = blocks.into_iter().collect();
                ordered.sort_unstable();
                let mut merged = vec![0; ordered.len()];
                let (mut regions, mut last) = (0, None);
                for (block, id) in ordered {
                    if last.is_none_or(|last| last + 1 != block) {
                        regions += 1;
                    }
                    merged[id as usize] = regions - 1;
                    last = Some(block);
                }
                (merged, vec![None; regions as usize])
            }
        }
    }
}

struct Name {
    text: String,
    anonymous: bool,
}

/// Mappings by process, kept up to date by events.
pub struct Mapped {
    events: std::iter::Peekable<std::vec::IntoIter<RegionEvent>>,
    names: Vec<Name>,
    ids: HashMap<String, u32>,
    spaces: FxHashMap<u32, Ranges<u32>>,
    files: Ranges<u32>,
}

impl Mapped {
    fn id(&mut self, text: &str, anonymous: bool) -> u32 {
        if let Some(&id) = self.ids.get(text) {
            return id;
        }
        let id = self.names.len() as u32;
        self.names.push(Name { text: text.to_owned(), anonymous });
        self.ids.insert(text.to_owned(), id);
        id
    }

    fn apply(&mut self, event: &RegionEvent, process: u32, running: u32) {
        match event.event {
            RegionKind::Map
            | RegionKind::Brk
            | RegionKind::File
            | RegionKind::Unmap
            | RegionKind::Move => {}
            RegionKind::Exec | RegionKind::Exit => {
                self.spaces.remove(&process);
                return;
            }
            RegionKind::Fork | RegionKind::Vfork => {
                // In traces of schema 1 it is the child that is named.
                let (parent, child) = match event.to {
                    0 => (running, process),
                    child => (process, child as u32),
                };
                if child != parent {
                    let copy = self.spaces.get(&parent).cloned().unwrap_or_default();
                    self.spaces.insert(child, copy);
                }
                return;
            }
            RegionKind::DontNeed
            | RegionKind::Free
            | RegionKind::Remove
            | RegionKind::ThreadStart
            | RegionKind::ThreadExit => return,
        }
        let Some(more) = event.length.checked_sub(1) else { return };
        let first = event.addr >> PAGE_SHIFT;
        let last = event.addr.saturating_add(more) >> PAGE_SHIFT;
        let id = match event.event {
            RegionKind::File => {
                let name = if event.name.is_empty() { "unnamed file" } else { &event.name };
                let id = self.id(&format!("page cache: {name}"), false);
                self.files.map(first, last, id);
                return;
            }
            RegionKind::Unmap => None,
            RegionKind::Move => {
                let by = (event.to >> PAGE_SHIFT).wrapping_sub(first);
                self.spaces.entry(process).or_default().shift(first, last, by, |id| id);
                return;
            }
            _ if !event.name.is_empty() => Some(self.id(&event.name, false)),
            RegionKind::Brk => Some(self.id("[heap]", false)),
            _ => {
                // As the kernel does, anonymous memory that adjoins some is one with it.
                let space = self.spaces.entry(process).or_default();
                let near = [first.checked_sub(1), last.checked_add(1)].into_iter().flatten();
                let near = near.filter_map(|page| space.find(page));
                let joined = near.into_iter().find(|&id| self.names[id as usize].anonymous);
                Some(match joined {
                    Some(id) => id,
                    None => self.id(&format!("(anonymous) {:#x}", event.addr), true),
                })
            }
        };
        let space = self.spaces.entry(process).or_default();
        match id {
            Some(id) if event.event == RegionKind::Brk => {
                // The event gives the whole heap, which may have shrunk.
                space.retain(|known| known != id);
                space.map(first, last, id);
            }
            Some(id) => space.map(first, last, id),
            None => space.unmap(first, last),
        }
    }

    fn find(&self, process: u32, page: u64) -> u32 {
        let own = self.spaces.get(&process).and_then(|space| space.find(page));
        let found = if page >= KERNEL { self.files.find(page).or(own) } else { own };
        found.unwrap_or(0)
    }
}
