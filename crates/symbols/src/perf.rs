//! Perf maps, which JIT compilers write to `/tmp/perf-PID.map`. Each line is a function: address
//! and size in hexadecimal digits, and name.

use std::path::Path;

use nearfar_trace::{Result, file};

/// Maximum bytes of a map, enough for tens of millions of functions.
const MAX_BYTES: u64 = 2 << 30;
/// Number of functions to check for an address, the last ones that start at or before it: functions may
/// be nested.
const NEAR: usize = 64;

/// The functions of a perf map.
#[derive(Clone, Debug, Default)]
pub struct PerfMap {
    /// Start, bytes, line number and name; sorted by the first two.
    functions: Vec<(u64, u64, usize, String)>,
}

impl PerfMap {
    /// Read a map. Malformed lines are skipped.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self::parse(&String::from_utf8_lossy(&file::read(path, "a perf map", MAX_BYTES)?)))
    }

    fn parse(text: &str) -> Self {
        let mut functions: Vec<_> = text
            .lines()
            .enumerate()
            .filter_map(|(number, line)| {
                let (start, rest) = line.split_once(' ')?;
                let (size, name) = rest.split_once(' ')?;
                let hex = |digits: &str| {
                    u64::from_str_radix(digits.strip_prefix("0x").unwrap_or(digits), 16).ok()
                };
                Some((hex(start)?, hex(size)?, number, name.trim().to_owned()))
            })
            .collect();
        functions.sort_unstable();
        Self { functions }
    }

    /// The function at an address; if there are several, the one written last.
    pub fn find(&self, addr: u64) -> Option<&str> {
        let after = self.functions.partition_point(|(start, ..)| *start <= addr);
        let near = &self.functions[after.saturating_sub(NEAR)..after];
        let candidates = near.iter().filter(|(start, size, ..)| addr - start < *size);
        candidates.max_by_key(|(_, _, number, _)| *number).map(|(.., name)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_function_at_an_address_counts() {
        let text =
            "1000 20 old\n0x1010 10 LazyCompile:*run a.js:3\nno line\nzz 4 bad\n1000 8 new\n";
        let map = PerfMap::parse(text);
        let names = [0xfff, 0x1000, 0x1007, 0x1008, 0x1010, 0x101f, 0x1020].map(|at| map.find(at));
        let run = Some("LazyCompile:*run a.js:3");
        assert_eq!(names, [None, Some("new"), Some("new"), Some("old"), run, run, None]);
    }
}
