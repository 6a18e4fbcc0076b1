//! Names of addresses: the mappings of each process at the current position in the trace.
//!
//! With region events, a page has the name of its mapping. Without events (imported and generated
//! traces), adjacent touched 2 MiB blocks make one region, named by its addresses.

use std::collections::HashMap;

use nearfar_trace::hash::PageMap;
use nearfar_trace::ranges::Ranges;
use nearfar_trace::{Reader, RegionEvent, RegionKind, Result};
use rustc_hash::FxHashMap;

/// The region of addresses outside every mapping.
pub const UNNAMED: &str = "(unnamed)";
const PAGE_SHIFT: u32 = 12;
/// log2 of the 4 KiB pages in a 2 MiB block.
const BLOCK_SHIFT: u32 = 9;
/// First page of the kernel's half of the address space, where traces have the page caches of files,
/// shared by all processes.
const KERNEL: u64 = 1 << (63 - PAGE_SHIFT);

/// The region ids of pages, at the current position in the trace.
pub struct Names {
    regions: Regions,
    processes: FxHashMap<u32, u32>,
    /// Number of the record after the next event; `u64::MAX` if there is none.
    pub next_event: u64,
    /// The process of the last record.
    pub process: u32,
}

enum Regions {
    /// From region events.
    Mapped(Box<Mapped>),
    /// By 2 MiB block; merged into regions at the end.
    Blocks(PageMap<u32>),
}

impl Names {
    pub fn new(reader: &Reader) -> Result<Self> {
        use RegionKind as K;
        let threads = &reader.info().threads;
        let mut names = Self {
            regions: Regions::Blocks(PageMap::default()),
            processes: threads.iter().map(|thread| (thread.index, thread.process)).collect(),
            next_event: u64::MAX,
            process: threads.first().map_or(0, |thread| thread.process),
        };
        let mut events = reader.regions()?;
        if events.iter().any(|e| matches!(e.event, K::Map | K::Brk | K::File)) {
            events.sort_by_key(|event| event.at);
            names.next_event = events[0].at;
            let mut mapped = Mapped {
                events: events.into_iter().peekable(),
                names: Vec::new(),
                name_ids: HashMap::new(),
                mappings: Vec::new(),
                mapping_ids: HashMap::new(),
                spaces: FxHashMap::default(),
                files: Ranges::default(),
                programs: vec![String::new()],
                program_of: FxHashMap::default(),
            };
            // Name 0 and mapping 0 stand for addresses outside every mapping.
            let unnamed = mapped.name_id(UNNAMED, false);
            mapped.mapping_id(unnamed, None);
            names.regions = Regions::Mapped(Box::new(mapped));
        }
        Ok(names)
    }

    pub fn process_of(&self, thread: u32) -> u32 {
        self.processes.get(&thread).copied().unwrap_or(0)
    }

    /// Apply the events before record number `at`. Returns whether there were any.
    #[inline]
    pub fn advance(&mut self, at: u64) -> bool {
        let due = self.next_event <= at;
        if due {
            self.apply_events(at);
        }
        due
    }

    #[cold]
    fn apply_events(&mut self, at: u64) {
        let Regions::Mapped(mapped) = &mut self.regions else { return };
        while let Some(event) = mapped.events.next_if(|event| event.at <= at) {
            let process = self.processes.get(&event.thread).copied().unwrap_or(0);
            mapped.apply(&event, process, self.process);
        }
        self.next_event = mapped.events.peek().map_or(u64::MAX, |event| event.at);
    }

    /// Switch to the thread of a record. Returns whether the process changes.
    pub fn switch_to(&mut self, thread: u32) -> bool {
        let process = self.process_of(thread);
        std::mem::replace(&mut self.process, process) != process
    }

    /// The current region of a page.
    pub fn region(&mut self, page: u64) -> u32 {
        match &mut self.regions {
            Regions::Mapped(mapped) => {
                mapped.mappings[mapped.find(self.process, page) as usize].name
            }
            Regions::Blocks(blocks) => {
                let new = blocks.len() as u32;
                *blocks.entry(page >> BLOCK_SHIFT).or_insert(new)
            }
        }
    }

    /// The code that is currently mapped at `addr`.
    pub fn code(&mut self, addr: u64) -> Code {
        let (page, process) = (addr >> PAGE_SHIFT, self.process);
        match &self.regions {
            Regions::Mapped(mapped) => {
                let mapping = &mapped.mappings[mapped.find(process, page) as usize];
                Code {
                    region: mapping.name,
                    offset: mapping.bias.map(|bias| addr.wrapping_add(bias)),
                    program: mapped.program_of.get(&process).copied().unwrap_or(0),
                }
            }
            Regions::Blocks(_) => Code { region: self.region(page), offset: None, program: 0 },
        }
    }

    /// Names of programs, by [`Code::program`]; that of the first program is empty.
    pub fn programs(&self) -> &[String] {
        match &self.regions {
            Regions::Mapped(mapped) => &mapped.programs,
            Regions::Blocks(_) => &[],
        }
    }

    /// The final region of every region id, and the name of every final region; `None` without region
    /// events.
    pub fn finish(self) -> (Vec<u32>, Vec<Option<String>>) {
        match self.regions {
            Regions::Mapped(mapped) => {
                let ids = (0..mapped.names.len() as u32).collect();
                (ids, mapped.names.into_iter().map(|name| Some(name.text)).collect())
            }
            Regions::Blocks(blocks) => {
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

/// A piece of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Code {
    /// Region id.
    pub region: u32,
    /// File offset, if the region is a file.
    pub offset: Option<u64>,
    /// Index in [`Names::programs`] of the program that ran the code.
    pub program: u32,
}

struct Name {
    text: String,
    anonymous: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Mapping {
    /// Region id.
    name: u32,
    /// File offset minus address, modulo 2^64; `None` for anonymous memory.
    bias: Option<u64>,
}

/// Mappings by process, updated by events.
struct Mapped {
    events: std::iter::Peekable<std::vec::IntoIter<RegionEvent>>,
    names: Vec<Name>,
    name_ids: HashMap<String, u32>,
    mappings: Vec<Mapping>,
    mapping_ids: HashMap<Mapping, u32>,
    /// Mapping ids by process and page.
    spaces: FxHashMap<u32, Ranges<u32>>,
    /// Mapping ids of page caches of files, by page.
    files: Ranges<u32>,
    programs: Vec<String>,
    program_of: FxHashMap<u32, u32>,
}

impl Mapped {
    fn name_id(&mut self, text: &str, anonymous: bool) -> u32 {
        if let Some(&id) = self.name_ids.get(text) {
            return id;
        }
        let id = self.names.len() as u32;
        self.names.push(Name { text: text.to_owned(), anonymous });
        self.name_ids.insert(text.to_owned(), id);
        id
    }

    fn mapping_id(&mut self, name: u32, bias: Option<u64>) -> u32 {
        let mapping = Mapping { name, bias };
        let new = self.mappings.len() as u32;
        let id = *self.mapping_ids.entry(mapping).or_insert(new);
        if id == new {
            self.mappings.push(mapping);
        }
        id
    }

    fn set_program(&mut self, process: u32, program: &str) {
        let known = self.programs.iter().position(|known| known == program);
        let id = known.unwrap_or_else(|| {
            self.programs.push(program.to_owned());
            self.programs.len() - 1
        });
        self.program_of.insert(process, id as u32);
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
                if event.event == RegionKind::Exec {
                    self.set_program(process, &event.name);
                }
                return;
            }
            RegionKind::Fork | RegionKind::Vfork => {
                // In traces of schema 1, `to` is 0 and the event's thread is the child's.
                let (parent, child) = match event.to {
                    0 => (running, process),
                    child => (process, child as u32),
                };
                if child != parent {
                    let copy = self.spaces.get(&parent).cloned().unwrap_or_default();
                    self.spaces.insert(child, copy);
                    if let Some(&program) = self.program_of.get(&parent) {
                        self.program_of.insert(child, program);
                    }
                }
                return;
            }
            RegionKind::DontNeed
            | RegionKind::Free
            | RegionKind::Remove
            | RegionKind::Lock
            | RegionKind::Unlock
            | RegionKind::Huge
            | RegionKind::NoHuge
            | RegionKind::Collapse
            | RegionKind::ThpDisable
            | RegionKind::Idle
            | RegionKind::ThreadStart
            | RegionKind::ThreadExit => return,
        }
        let Some(more) = event.length.checked_sub(1) else { return };
        let first = event.addr >> PAGE_SHIFT;
        let last = event.addr.saturating_add(more) >> PAGE_SHIFT;
        let id = match event.event {
            RegionKind::File => {
                let name = if event.name.is_empty() { "unnamed file" } else { &event.name };
                let name = self.name_id(&format!("page cache: {name}"), false);
                let id = self.mapping_id(name, None);
                self.files.map(first, last, id);
                return;
            }
            RegionKind::Unmap => None,
            RegionKind::Move => {
                let by = (event.to >> PAGE_SHIFT).wrapping_sub(first);
                self.shift(process, (first, last), by);
                return;
            }
            _ if !event.name.is_empty() => {
                let name = self.name_id(&event.name, false);
                let of_file = event.event == RegionKind::Map && event.name.starts_with('/');
                Some((name, of_file.then(|| event.offset.wrapping_sub(event.addr))))
            }
            RegionKind::Brk => Some((self.name_id("[heap]", false), None)),
            _ => {
                // Like the kernel, join adjacent anonymous memory.
                let space = self.spaces.entry(process).or_default();
                let near = [first.checked_sub(1), last.checked_add(1)].into_iter().flatten();
                let near = near.filter_map(|page| space.find(page));
                let mut names = near.map(|id| self.mappings[id as usize].name);
                let joined = names.find(|&name| self.names[name as usize].anonymous);
                let name = match joined {
                    Some(name) => name,
                    None => self.name_id(&format!("(anonymous) {:#x}", event.addr), true),
                };
                Some((name, None))
            }
        };
        let id = id.map(|(name, bias)| self.mapping_id(name, bias));
        let space = self.spaces.entry(process).or_default();
        match id {
            Some(id) if event.event == RegionKind::Brk => {
                // Replace the whole heap, which may have shrunk.
                space.retain(|known| known != id);
                space.map(first, last, id);
            }
            Some(id) => space.map(first, last, id),
            None => space.unmap(first, last),
        }
    }

    /// Move mappings `by` pages.
    fn shift(&mut self, process: u32, (first, last): (u64, u64), by: u64) {
        let ids: Vec<u32> = match self.spaces.get(&process) {
            Some(space) => space.within(first, last).map(|(_, _, id)| id).collect(),
            None => return,
        };
        let moved: FxHashMap<u32, u32> = ids
            .into_iter()
            .map(|id| {
                let Mapping { name, bias } = self.mappings[id as usize];
                let bias = bias.map(|bias| bias.wrapping_sub(by << PAGE_SHIFT));
                (id, self.mapping_id(name, bias))
            })
            .collect();
        let space = self.spaces.entry(process).or_default();
        space.shift(first, last, by, |id| moved.get(&id).copied().unwrap_or(id));
    }

    fn find(&self, process: u32, page: u64) -> u32 {
        let mapped = self.spaces.get(&process).and_then(|space| space.find(page));
        let file = if page >= KERNEL { self.files.find(page) } else { None };
        file.or(mapped).unwrap_or(0)
    }
}
