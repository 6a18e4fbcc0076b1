//! Prices and settings for tests in the plain memory: a few pages, a few hundred references.

use nearfar_trace::Result;

use super::plain::Prices;
use super::{Settings, Time, find};

/// Prices at which copies are slow enough for writes to come between.
pub const PRICES: Prices = Prices {
    access: Time::from_ps(500_000),
    hint_fault: Time::from_ps(800_000),
    write_fault: Time::from_ps(900_000),
    entry: Time::from_ps(20_000),
    copy: Time::from_ps(1_300_000),
    migrate: Time::from_ps(1_100_000),
    wake: Time::from_ps(1_000_000),
};

/// Settings that make a toy of a policy: everything happens within a few hundred references.
///
/// # Errors
/// No such policy.
pub fn toy(name: &str) -> Result<Settings> {
    let wanted = [
        ("scan_size", "32KiB"),
        ("scan_period_min", "60us"),
        ("scan_period_max", "240us"),
        ("scan_floor", "20us"),
        ("scan_delay", "10us"),
        ("min_free", "4KiB"),
        ("pagevec", "3"),
        ("batch", "4"),
        ("mpq_size", "4"),
        ("run_pages", "3"),
        ("run_passes", "2"),
        ("hot_threshold", "40us"),
        ("rate_window", "50us"),
        ("rate_limit", "24KiB"),
        ("adjust_period", "100us"),
        ("load_period", "3"),
        ("store_period", "5"),
        ("cooling_samples", "60"),
        ("adapt_samples", "15"),
        ("migrate_period", "30us"),
        ("demote_least", "4KiB"),
        ("promote_least", "8KiB"),
        ("demote_most", "8KiB"),
        ("promote_most", "16KiB"),
    ];
    let known = (find(name)?.knobs)();
    let values = wanted.iter().filter(|(key, _)| known.iter().any(|knob| knob.name == *key));
    Ok(Settings {
        values: values.map(|(key, value)| ((*key).into(), (*value).into())).collect(),
        scale: 1.0,
    })
}
