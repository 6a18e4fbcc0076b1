//! A study in parts is the study.

use std::path::Path;

use nearfar_hardware::Machine;
use nearfar_hardware::processor::Processor;
use nearfar_schema::Choice;
use nearfar_trace::KindSet;
use proptest::prelude::*;

use super::super::machine::tests::processor;
use super::lives::{PROCESSES, steps, trace};
use super::*;

fn options(pages: &[u64], policy: &str, lifetimes: bool) -> Options {
    let memory = [MemorySize::Fraction(0.3), MemorySize::Fraction(1.0), MemorySize::Bytes(70_000)];
    let (tlb, policy) = ("3".parse().unwrap(), Choice::of(policy).unwrap());
    let options =
        Options::new(pages.to_vec(), memory.to_vec(), tlb, policy, ClockInsert::Set, KindSet::ALL);
    Options { lifetimes, threads: 1, min_frames: 2, prefetch_pages: 8, ..options.unwrap() }
}

fn count(reader: &Reader, options: &Options, processors: &[Option<Processor>]) -> StudyPart {
    let storages = Machine::load("nvme", Path::new("")).unwrap().storages().unwrap();
    let hosts = processors.iter().map(|processor| Some((processor.as_ref()?, &*storages)));
    StudyPart::new(reader, options, hosts, &mut |_| Ok(())).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Whichever page sizes each part has, and in whichever order the parts come; by way of JSON.
    #[test]
    fn parts_make_the_whole(
        steps in steps(),
        policy in prop::sample::select(vec!["clock", "lru", "linux"]),
        lifetimes in any::<bool>(),
        on_machine in any::<bool>(),
        places in prop::collection::vec(0usize..3, 6),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let reader = trace(&steps, &PROCESSES, folder.path());
        prop_assume!(reader.info().records > 0);
        let (pages, processors) = if on_machine {
            (&PAGES[3..], vec![Some(processor(None)), None, Some(processor(Some(12)))])
        } else {
            (&PAGES[..], vec![None])
        };
        let all = options(pages, policy, lifetimes);
        let whole = count(&reader, &all, &processors);
        // Every page size in a pass of its own.
        let passes = Options { max_memory: 0, ..all.clone() };
        prop_assert_eq!(&count(&reader, &passes, &processors), &whole);
        let mut parts = Vec::new();
        for place in 0..3 {
            let own = pages.iter().zip(&places).filter(|(_, at)| **at == place);
            let own: Vec<u64> = own.map(|(page, _)| *page).collect();
            if !own.is_empty() {
                let part = count(&reader, &all.clone().only(&own), &processors);
                let text = serde_json::to_string(&part).unwrap();
                parts.push(serde_json::from_str::<StudyPart>(&text).unwrap());
            }
        }
        prop_assert_eq!(&StudyPart::join(parts).unwrap(), &whole);
    }
}

#[test]
fn parts_of_different_traces_are_refused() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let record =
        Record { addr: 0x40_0000, kind: nearfar_trace::Kind::Load, size: 8, thread: 0, instr: 1 };
    let parts = [(1, 512), (2, 4096)].map(|(records, page)| {
        let reader = store(&vec![record; records], folders[records - 1].path());
        count(&reader, &options(&[page], "clock", true), &[None])
    });
    assert!(StudyPart::join(parts).unwrap_err().to_string().contains("different traces"));
    assert!(StudyPart::join([]).unwrap_err().to_string().contains("there are none"));
}
