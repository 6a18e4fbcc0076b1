//! Entry points of the fuzz targets (`fuzz/`) and of the tests that replay their corpora. They parse
//! user text and panic if a parser panics or returns an error that is not one line.

use std::str::FromStr;

use nearfar_hardware::tlb::TlbSpec;
use nearfar_hardware::units::{Bandwidth, Size, Time};
use nearfar_trace::Error;

use crate::tiering::{Settings, check};
use crate::{epf, replacement};

/// Check the knobs of a tiering policy: its name on the first line of `text`, `knob=value` on the
/// others. Returns whether they are valid at full [scale](Settings::scale) and at 1/64.
pub fn knobs(text: &str) -> bool {
    let mut lines = text.lines();
    let name = lines.next().unwrap_or_default();
    let values = lines.filter_map(|line| line.split_once('='));
    let values = values.map(|(knob, value)| (knob.to_owned(), value.to_owned())).collect();
    [1.0, 1.0 / 64.0].into_iter().all(|scale| {
        let settings = Settings { values: Clone::clone(&values), scale };
        one_line(check(name, &settings).map(drop))
    })
}

/// Parse `text` as each notation of the command line. Returns whether any accepts it.
pub fn words(text: &str) -> bool {
    let accepts =
        |read: Result<(), String>| one_line(read.map_err(|what| Error::input("text", what, "")));
    // An array, so that every parser runs.
    [
        accepts(Size::parse(text).map(drop)),
        accepts(Time::parse(text).map(drop)),
        accepts(Bandwidth::parse(text).map(drop)),
        accepts(TlbSpec::from_str(text).map(drop)),
        accepts(epf::parse(text).map(drop)),
        replacement::find(text).is_some(),
    ]
    .contains(&true)
}

fn one_line(read: Result<(), Error>) -> bool {
    if let Err(error) = &read {
        let text = error.to_string();
        assert!(!text.is_empty() && text.lines().count() == 1, "{text:?}");
    }
    read.is_ok()
}
