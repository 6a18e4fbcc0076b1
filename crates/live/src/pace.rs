//! How often the manager looks for memory that the program has mapped.

/// Shortest and longest time from one look to the next, nanoseconds, where a look costs little.
const INTERVAL_NS: (u64, u64) = (20_000_000, 40_000_000);
/// A look takes at most 1/SHARE of the time.
const SHARE: u64 = 50;

/// Nanoseconds to the next look after one that took `took_ns` and has `found` something; `last_ns` were
/// between it and the one before. The list of mappings is read as a whole, so a program with tens of
/// thousands of them is looked at more seldom.
#[must_use]
pub fn next_look_ns(last_ns: u64, found: bool, took_ns: u64) -> u64 {
    let (shortest, longest) = INTERVAL_NS;
    let wanted = if found { shortest } else { last_ns.saturating_mul(2).clamp(shortest, longest) };
    wanted.max(took_ns.saturating_mul(SHARE - 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn new_memory_is_looked_for_soon_where_that_costs_little() {
        assert_eq!(next_look_ns(0, false, 0), 20_000_000);
        assert_eq!(next_look_ns(20_000_000, false, 100_000), 40_000_000);
        assert_eq!(next_look_ns(40_000_000, true, 100_000), 20_000_000);
        // A list of 60,000 mappings; then it is short again.
        assert_eq!(next_look_ns(20_000_000, true, 40_000_000), 49 * 40_000_000);
        assert_eq!(next_look_ns(1_960_000_000, false, 100_000), 40_000_000);
    }

    proptest! {
        #[test]
        fn looks_take_a_fiftieth_at_most(last: u64, found: bool, took in 0..1u64 << 50) {
            let next = next_look_ns(last, found, took);
            prop_assert!(u128::from(took) * 50 <= u128::from(took) + u128::from(next));
            prop_assert!(next >= INTERVAL_NS.0);
            prop_assert!(took > 800_000 || next <= INTERVAL_NS.1);
        }
    }
}
