//! Thread indices for formats that identify threads by the kernel's thread ids.

use rustc_hash::FxHashMap;

use super::Bad;

/// Maximum threads in a trace: more mean a damaged file.
pub(super) const MAX_THREADS: usize = 1 << 20;

/// Numbers threads in order of first appearance.
#[derive(Debug, Default)]
pub(super) struct Threads {
    index: FxHashMap<u64, u32>,
    processes: Vec<u32>,
    last: Option<(u64, u32)>,
}

impl Threads {
    /// The index of the thread `id` of process `process` (0: unknown).
    pub fn index(&mut self, id: u64, process: u32) -> Result<u32, Bad> {
        if let Some((last, index)) = self.last
            && last == id
        {
            return Ok(index);
        }
        let index = match self.index.get(&id) {
            Some(&index) => index,
            None => {
                if self.processes.len() == MAX_THREADS {
                    return Err("more than 1048576 threads".into());
                }
                let index = self.processes.len() as u32;
                self.index.insert(id, index);
                self.processes.push(process);
                index
            }
        };
        self.last = Some((id, index));
        Ok(index)
    }

    /// Process number by thread index.
    pub fn processes(&self) -> &[u32] {
        &self.processes
    }
}
