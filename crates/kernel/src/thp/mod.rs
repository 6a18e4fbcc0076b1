//! Transparent huge pages: which page sizes the kernel's settings give to private memory.
//!
//! From `mm/huge_memory.c` and `mm/memory.c` of Linux 6.18: `__thp_vma_allowable_orders` combines a
//! size's setting (`/sys/kernel/mm/transparent_hugepage/hugepages-*kB/enabled`) with the advice of an
//! area (`madvise`). A fault takes the largest allowed page that lies in the area and overlaps no
//! mapped page (`do_huge_pmd_anonymous_page`, then `alloc_anon_folio`). [`khugepaged`] merges small
//! pages later; [`reclaim`] splits large pages, and swaps.

pub mod khugepaged;
pub mod reclaim;

use nearfar_schema::{Entry, Given, Value, units};

/// log2 of the 4 KiB pages in a huge page of 2 MiB.
pub const HUGE: u32 = 9;
/// Number of page sizes from 4 KiB to 2 MiB.
pub const ORDERS: usize = HUGE as usize + 1;

/// A program's advice about huge pages in an area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Advice {
    /// Nothing.
    #[default]
    None,
    /// `MADV_HUGEPAGE`.
    Huge,
    /// `MADV_NOHUGEPAGE`.
    NoHuge,
}

/// Where a page size may be used: the content of its file `enabled`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// Nowhere.
    #[default]
    Never,
    /// In areas with [`Advice::Huge`].
    Madvise,
    /// Everywhere except in areas with [`Advice::NoHuge`].
    Always,
}

impl When {
    const NAMES: [(&'static str, When); 3] =
        [("never", When::Never), ("madvise", When::Madvise), ("always", When::Always)];

    /// Whether an area with this advice may have pages of this size.
    pub fn allows(self, advice: Advice) -> bool {
        match advice {
            Advice::None => self == When::Always,
            Advice::Huge => self != When::Never,
            Advice::NoHuge => false,
        }
    }
}

/// Settings of the kernel, with the name by which they are chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The name: one of [`NAMED`], or sizes such as `64K=always+2M=madvise`.
    pub name: String,
    sizes: [When; ORDERS],
    /// Whether a fault that finds no free block compacts memory, in areas with [`Advice::Huge`]
    /// (`defrag` is `madvise`, the default). Other faults take smaller pages.
    pub compacts: bool,
    /// Whether a write to the huge zero page splits it, as before Linux 6.13 (`do_huge_pmd_wp_page`).
    /// Since then, the write allocates a huge page (`do_huge_zero_wp_pmd`).
    pub splits_zero: bool,
}

/// Named policies: name, description, where 2 MiB pages are used, and [`Policy::compacts`].
pub const NAMED: [(&str, &str, When, bool); 4] = [
    ("never", "4 KiB pages only", When::Never, false),
    ("madvise", "2 MiB pages where the program advises them (MADV_HUGEPAGE)", When::Madvise, true),
    ("always", "2 MiB pages everywhere", When::Always, true),
    (
        "defer",
        "2 MiB pages everywhere, but no fault compacts memory for one (`defrag` is `defer`)",
        When::Always,
        false,
    ),
];

impl Policy {
    /// One page size everywhere, 2^`order` small pages; 4 KiB for 0.
    pub fn only(order: u32) -> Self {
        let mut sizes = [When::Never; ORDERS];
        sizes[order as usize] = When::Always;
        Self { name: String::new(), sizes, compacts: true, splits_zero: false }
    }

    /// The page sizes in use, in bytes, each with the content of its file `enabled`.
    pub fn words(&self) -> impl Iterator<Item = (u64, &'static str)> + '_ {
        let used = self.sizes.iter().enumerate().filter(|(_, when)| **when != When::Never);
        used.filter_map(|(order, when)| {
            let (word, _) = When::NAMES.iter().find(|(_, known)| known == when)?;
            Some((4096 << order, *word))
        })
    }

    /// Whether an area with this advice has pages of this order.
    #[inline]
    pub fn allows(&self, order: u32, advice: Advice) -> bool {
        order > 0 && self.sizes[order as usize].allows(advice)
    }

    /// Parse a policy.
    ///
    /// # Errors
    /// What is wrong, and what to write.
    pub fn parse(text: &str) -> Result<Self, String> {
        let name = text.to_owned();
        if let Some((_, _, when, compacts)) = NAMED.iter().find(|(known, ..)| *known == text) {
            let mut sizes = [When::Never; ORDERS];
            sizes[HUGE as usize] = *when;
            return Ok(Self { name, sizes, compacts: *compacts, splits_zero: false });
        }
        let known: Vec<&str> = NAMED.iter().map(|(name, ..)| *name).collect();
        let wrong = |part: &str| {
            format!(
                "{part:?} is no policy; give {}, or sizes from 16K to 2M such as \
                 64K=always+2M=madvise",
                known.join(", ")
            )
        };
        let mut sizes = [When::Never; ORDERS];
        for part in text.split('+') {
            let (size, when) = part.split_once('=').ok_or_else(|| wrong(part))?;
            let bytes = units::parse_bytes(size.trim()).map_err(|_| wrong(part))?;
            let order = bytes.trailing_zeros().wrapping_sub(12);
            let (_, when) = *When::NAMES
                .iter()
                .find(|(known, _)| *known == when.trim())
                .ok_or_else(|| wrong(part))?;
            // The kernel has no anonymous pages of 8 KiB (`THP_ORDERS_ALL_ANON`).
            if !bytes.is_power_of_two() || !(2..=HUGE).contains(&order) {
                return Err(wrong(part));
            }
            sizes[order as usize] = when;
        }
        Ok(Self { name, sizes, compacts: true, splits_zero: false })
    }
}

impl Value for Policy {
    const METAVAR: &'static str = "POLICY";
    fn python() -> String {
        "str".into()
    }
    fn open() -> bool {
        // Sizes such as `64K=always` are valid too.
        true
    }
    fn choices() -> Vec<Entry> {
        let entry = |&(name, what, ..): &(&'static str, &str, When, bool)| Entry {
            name,
            what: what.to_owned(),
        };
        NAMED.iter().map(entry).collect()
    }
    fn read(given: &Given) -> Result<Self, String> {
        match given {
            Given::Text(text) => Self::parse(text),
            _ => Err("is no policy; give a name such as always".into()),
        }
    }
    fn plain(&self) -> serde_json::Value {
        self.name.clone().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_has_its_own_setting() {
        let policy = Policy::parse("64K=always+2M=madvise").unwrap();
        assert!(policy.allows(4, Advice::None) && policy.allows(4, Advice::Huge));
        assert!(!policy.allows(4, Advice::NoHuge) && !policy.allows(5, Advice::Huge));
        assert!(!policy.allows(HUGE, Advice::None) && policy.allows(HUGE, Advice::Huge));
        for wrong in ["", "alwayz", "8K=always", "4M=always", "48K=always", "64K", "64K=perhaps"] {
            assert!(Policy::parse(wrong).unwrap_err().contains("is no policy"), "{wrong}");
        }
    }
}
