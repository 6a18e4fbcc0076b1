//! Tests of machine files.

use std::path::Path;

use proptest::prelude::*;

use super::{Machine, MachineFile, builtin, schema};

/// A valid machine file.
const SMALL: &str = r#"
description = "a test"
[tlb.first]
entries = { value = 64, source = "s" }
hit_time = { value = "1ns", source = "s" }
[node.dram]
kind = "dram"
size = { value = "1GiB", source = "s" }
[node.dram.local]
read_latency = { value = "50ns", source = "s" }
[storage.disk.hdd]
seek = { value = "8ms", source = "s" }
rotation = { value = "6000rpm", source = "s" }
bandwidth = { value = "100MB/s", source = "s" }
[storage.fast.nvm]
k = { value = 10, source = "s" }
unit = { value = "512B", source = "s" }
[storage.ssd.nvme]
read_latency = { value = "10us", source = "s" }
write_latency = { value = "20us", source = "s" }
measured_at = { value = "4KiB", source = "s" }
unit = { value = "512B", source = "s" }
read_bandwidth = { value = "1GB/s", source = "s" }
write_bandwidth = { value = "500MB/s", source = "s" }
"#;

fn small() -> Machine {
    Machine::parse("test.toml", SMALL).unwrap()
}

/// The error for SMALL with `from` replaced by `to`.
fn refused(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "{from}");
    let error = Machine::parse("test.toml", &SMALL.replacen(from, to, 1)).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let line = error.to_string();
    assert!(!line.contains('\n'), "{line}");
    line
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * b.abs()
}

#[test]
fn times_follow_the_stated_formulas() {
    let machine = small();
    let times = machine.access_times().unwrap();
    assert_eq!((times.tlb_ns, times.dram_ns, times.stlb_ns), (1.0, 50.0, None));
    let disk = machine.storage("disk").unwrap();
    // 8 ms + half of 10 ms + 4096 B at 10 ns per byte.
    assert!(close(disk.io_ns(4096), 13e6 + 40_960.0));
    assert!(disk.io_ns(4096) / disk.io_ns(512) < 1.01, "flat while p is small");
    let fast = machine.storage("fast").unwrap();
    assert_eq!(fast.io_ns(512), 500.0);
    assert_eq!(fast.io_ns(513), 1000.0);
    assert_eq!(fast.io_ns(4096), 4000.0);
    assert_eq!(fast.write_ns(4096), 4000.0);
    let ssd = machine.storage("ssd").unwrap();
    assert!(close(ssd.io_ns(4096), 10_000.0));
    assert!(close(ssd.io_ns(8192), 10_000.0 + 4096.0));
    assert!(close(ssd.io_ns(512), 10_000.0 - 3584.0));
    assert!(close(ssd.io_ns(1), ssd.io_ns(512)));
    assert!(close(ssd.write_ns(8192), 20_000.0 + 2.0 * 4096.0));
    assert_eq!(machine.storages().unwrap().len(), 3);
    let error = machine.storage("fst").unwrap_err().to_string();
    assert!(error.contains("did you mean `fast`?") && error.contains("disk, fast, ssd"), "{error}");
}

#[test]
fn every_builtin_machine_serves_a_study() {
    assert!(builtin().len() >= 5);
    for (name, text) in builtin() {
        let machine = Machine::parse(name, text).unwrap();
        assert_eq!(machine.name, *name);
        assert!(machine.access_times().unwrap().dram_ns > machine.access_times().unwrap().tlb_ns);
        if machine.storage.is_empty() && machine.flash.is_none() && machine.topology.is_none() {
            // Without storage to page to, it must serve the tiering study.
            assert!(machine.nodes().unwrap().len() >= 2, "{name}");
            assert!(machine.kernel_costs(1.0).unwrap().page_migration > 0.0, "{name}");
        }
        for storage in machine.storages().unwrap() {
            let sizes: Vec<u64> = (9..=21).map(|power| 1 << power).collect();
            let times: Vec<f64> = sizes.iter().map(|p| storage.io_ns(*p)).collect();
            assert!(times.iter().all(|t| t.is_finite() && *t > 0.0), "{name} {storage:?}");
            assert!(times.windows(2).all(|w| w[0] <= w[1]), "{name} {storage:?}");
            assert!(sizes.iter().all(|p| storage.write_ns(*p) > 0.0), "{name} {storage:?}");
        }
        assert_eq!(Machine::load(name, Path::new("/nonexistent")).unwrap(), machine);
    }
}

#[test]
fn nvm_is_a_multiple_of_dram() {
    let machine = Machine::load("desktop-nvm", Path::new("")).unwrap();
    let dram = machine.access_times().unwrap().dram_ns;
    for (name, k) in [("nvm-1x", 1.0), ("nvm-10x", 10.0), ("nvm-100x", 100.0)] {
        let storage = machine.storage(name).unwrap();
        assert_eq!(storage.io_ns(512), k * dram);
        assert_eq!(storage.io_ns(1 << 20), k * dram * 2048.0);
    }
}

#[test]
fn errors_of_unknown_keys_suggest_the_nearest_key() {
    for (from, to, parts) in [
        ("entries", "entires", ["key tlb.first.entires", "did you mean `entries`?"]),
        (
            "entries",
            "entires",
            ["test.toml line 4", "keys here: entries, ways, large_entries, large_ways, hit_time"],
        ),
        ("[tlb.first]", "[tbl.first]", ["key tbl", "did you mean `tlb`?"]),
        ("seek =", "seak =", ["key storage.disk.hdd.seak", "did you mean `seek`?"]),
        ("disk.hdd", "disk.hd", ["unknown kind `hd`", "did you mean `hdd`?"]),
        ("kind = \"dram\"", "kind = \"drum\"", ["key node.dram.kind", "did you mean `dram`?"]),
        ("source = \"s\" }", "sauce = \"s\" }", ["`sauce`", "did you mean `source`?"]),
    ] {
        let message = refused(from, to);
        for part in parts {
            assert!(message.contains(part), "{message}");
        }
    }
}

#[test]
fn errors_of_invalid_values_contain_a_valid_example() {
    let hit = "hit_time = { value = \"1ns\", source = \"s\" }";
    for (to, part) in [
        ("hit_time = { value = 1, source = \"s\" }", "1 is a number without a unit"),
        ("hit_time = { value = nan, source = \"s\" }", "without a unit"),
        ("hit_time = { value = \"1\", source = \"s\" }", "without a unit"),
        ("hit_time = { value = \"-1ns\", source = \"s\" }", "negative"),
        ("hit_time = { value = \"9999999s\", source = \"s\" }", "out of range"),
        ("hit_time = { value = \"1GHz\", source = \"s\" }", "unknown unit `GHz`"),
        ("hit_time = { value = true, source = \"s\" }", "invalid type: boolean"),
        ("hit_time = \"1ns\"", "without a source"),
        ("hit_time = 1", "without a source"),
        ("hit_time = 1.5", "without a source"),
    ] {
        let message = refused(hit, to);
        assert!(message.contains(part), "{message}");
        assert!(message.contains("test.toml line 5 key tlb.first.hit_time"), "{message}");
        assert!(message.contains("\"50ns\""), "{message}");
    }
    for to in ["{ value = \"1ns\" }", "{ value = \"1ns\", source = \" \" }"] {
        let message = refused(hit, &format!("hit_time = {to}"));
        assert!(message.contains("no source; add source = "), "{message}");
        assert!(message.contains("key tlb.first.hit_time"), "{message}");
    }
    for value in ["0", "-4", "1.5", "\"64\"", "99999999999999"] {
        let message = refused("value = 64", &format!("value = {value}"));
        assert!(message.contains("key tlb.first.entries"), "{message}");
        assert!(message.contains("64"), "{message}");
    }
    for value in ["0", "-1", "nan", "inf", "1e300", "\"10\""] {
        let message = refused("value = 10,", &format!("value = {value},"));
        assert!(message.contains("key storage.fast.nvm.k"), "{message}");
    }
}

#[test]
fn contradictory_and_missing_keys_are_refused() {
    let message = refused("[tlb.first]", "[tlb.first]\nways = { value = 7, source = \"s\" }");
    assert!(message.contains("64 entries do not divide into sets of 7 ways"), "{message}");
    assert!(message.contains("line 4"), "{message}");
    let message = refused("value = \"10us\"", "value = \"3us\"");
    assert!(message.contains("storage.ssd.nvme.read_latency"), "{message}");
    let message = refused("value = \"50ns\"", "value = \"0ns\"");
    assert!(message.contains("must be above 0"), "{message}");
    let message = refused("[storage.fast.nvm]", "[storage.\"no good\".nvm]");
    assert!(message.contains("storage.no good"), "{message}");
    let message = refused("kind = \"dram\"", "kind = \"cxl\"");
    assert!(message.contains("storage.fast.nvm: is a multiple of DRAM"), "{message}");
    let message = refused("seek = { value = \"8ms\", source = \"s\" }", "");
    assert!(message.contains("`seek` is missing"), "{message}");
    assert!(message.contains("storage.disk.hdd"), "{message}");
    let message = refused("[storage.fast.nvm]", "[storage.fast.cxl]\n[storage.fast.nvm]");
    assert!(message.contains("storage.fast: takes exactly one kind"), "{message}");
    let message = refused("description = \"a test\"", "description = \"\"");
    assert!(message.contains("key description"), "{message}");
    let message = refused("[tlb.first]", "[tlb.first]\n[tlb.first]");
    assert!(message.contains("test.toml line 4"), "{message}");
    let error = Machine::parse("bare", "description = \"x\"").unwrap().access_times().unwrap_err();
    assert!(error.to_string().contains("machine bare: has no [tlb.first]"), "{error}");
}

#[test]
fn files_are_found_by_name_and_path() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    std::fs::write(&file, SMALL).unwrap();
    let by_name = Machine::load("mine", folder.path()).unwrap();
    assert_eq!(by_name.name, "mine");
    assert_eq!(Machine::load(file.to_str().unwrap(), Path::new("")).unwrap(), by_name);
    let error = Machine::load("nvmee", folder.path()).unwrap_err().to_string();
    assert!(error.contains("did you mean `nvme`?"), "{error}");
    let error = Machine::load("absent.toml", folder.path()).unwrap_err().to_string();
    assert!(error.contains("absent.toml"), "{error}");
    assert!(Machine::load(folder.path().to_str().unwrap(), Path::new("")).is_err());
    std::fs::write(&file, [0x64, 0xff]).unwrap();
    let error = Machine::load("mine", folder.path()).unwrap_err().to_string();
    assert!(error.contains("byte 1 is not UTF-8"), "{error}");
    assert!(Machine::load("", folder.path()).is_err());
}

#[test]
fn a_machine_is_unchanged_after_conversion_to_json_and_back() {
    for (name, text) in builtin() {
        let machine = Machine::parse(name, text).unwrap();
        let json = serde_json::to_string(&machine).unwrap();
        let again = MachineFile::from_json(name, &json).unwrap();
        assert_eq!(again.machine, machine);
        assert_eq!(Machine::parse(name, &again.text).unwrap(), machine);
    }
    let schema: serde_json::Value = serde_json::from_str(&schema()).unwrap();
    assert_eq!(schema["additionalProperties"], false);
    assert!(schema["properties"]["storage"].is_object());
}

/// SMALL with `key` overridden by `value`.
fn with(key: &str, value: &str) -> nearfar_trace::Result<MachineFile> {
    let file = MachineFile::parse("test.toml", &format!("{SMALL}# the end\n")).unwrap();
    file.with(&[(key.to_owned(), value.to_owned())])
}

#[test]
fn an_override_leaves_the_rest_of_the_file_unchanged() {
    for (key, value) in [
        ("node.dram.local.read_latency", "80ns"),
        // A level is omitted.
        ("node.dram.read_latency", "80ns"),
        ("storage.ssd.read_latency", "80us"),
        ("tlb.entries", "128"),
        ("storage.fast.k", "2.5"),
        // Optional keys, which the file does not have.
        ("cost.page_scan", "10ns"),
        ("tlb.first.ways", "4"),
        // Keys without a source.
        ("description", "another"),
        ("node.dram.kind", "dram"),
    ] {
        let set = with(key, value).unwrap_or_else(|e| panic!("{key}: {e}"));
        assert_eq!(set.set, [(key.to_owned(), value.to_owned())]);
        assert!(set.text.ends_with("# the end\n"), "{key}: {}", set.text);
        assert_eq!(Machine::parse("test.toml", &set.text).unwrap(), set.machine, "{key}");
        let sources = set.text.matches("given with --set").count();
        let has_source = !key.starts_with("description") && !key.ends_with("kind");
        assert_eq!(sources, usize::from(has_source), "{key}: {}", set.text);
    }
    let set = with("node.dram.read_latency", "80ns").unwrap();
    assert_eq!(set.machine.access_times().unwrap().dram_ns, 80.0);
    assert_eq!(set.machine.name, "test");
    let twice = set.with(&[("tlb.first.entries".into(), "8".into())]).unwrap();
    assert_eq!(twice.machine.access_times().unwrap().dram_ns, 80.0);
    assert_eq!(twice.set.len(), 2);
}

#[test]
fn a_storage_copied_from_another_machine_keeps_its_times() {
    let load = |name| MachineFile::load(name, Path::new("/nonexistent")).unwrap();
    let (host, other) = (load("nvme"), load("optane-ssd"));
    let both = host.with_storage_of(&other, "optane-ssd").unwrap();
    let names: Vec<String> =
        both.machine.storages().unwrap().into_iter().map(|storage| storage.name).collect();
    assert_eq!(names, ["nvme", "optane-ssd"]);
    let io = |file: &MachineFile| file.machine.storage("optane-ssd").unwrap().io_ns(4096);
    assert_eq!(io(&both), io(&other));
    assert_eq!(both.machine.name, "nvme");
    assert_eq!(MachineFile::parse("nvme", &both.text).unwrap().machine, both.machine);
    // A storage of the same name is replaced.
    let slow = other.with(&[("storage.optane-ssd.nvme.read_latency".into(), "1ms".into())]);
    let replaced = both.with_storage_of(&slow.unwrap(), "optane-ssd").unwrap();
    assert!(io(&replaced) > 10.0 * io(&both));
    let refused = host.with_storage_of(&other, "zip drive").unwrap_err().to_string();
    assert!(refused.contains("machine optane-ssd") && refused.contains("zip drive"), "{refused}");
}

#[test]
fn invalid_overrides_are_refused() {
    for (key, value, parts) in [
        ("tbl.first.entries", "8", ["unknown key `tbl`", "did you mean `tlb`?"]),
        ("node.dram.read_latecy", "8ns", ["--set node.dram.read_latecy=8ns", "`read_latency`?"]),
        ("node.drum.read_latency", "8ns", ["unknown key `drum`", "did you mean `dram`?"]),
        ("storage.disk.hd.seek", "8ms", ["unknown key `hd`", "did you mean `hdd`?"]),
        ("cache.l1d.size", "32KiB", ["unknown key `l1d`", "none is allowed here"]),
        ("node.dram.local", "8ns", ["is a section; set one of its keys", "read_latency"]),
        ("node.dram.local.read_latency.value", "8ns", ["unknown key `value`", "none is allowed"]),
        ("", "8", ["unknown key ``", "did you mean"]),
        ("node.dram.read_latency", "80", ["key node.dram.local.read_latency", "without a unit"]),
        ("node.dram.read_latency", "0ns", ["key node.dram.local.read_latency", "above 0"]),
        ("tlb.entries", "7.5", ["--set tlb.entries=7.5 key tlb.first.entries", "whole number"]),
        ("tlb.first.ways", "7", ["key tlb.first.ways", "do not divide into sets of 7 ways"]),
        ("node.dram.kind", "drum", ["key node.dram.kind", "did you mean `dram`?"]),
        ("cpu.ipc", "2", ["key cpu", "`clock` is missing"]),
    ] {
        let message = with(key, value).unwrap_err().to_string();
        assert!(message.starts_with("machine test --set "), "{message}");
        for part in parts {
            assert!(message.contains(part), "{key}={value}: {message}");
        }
    }
    let both = SMALL.replace(
        "[storage.disk",
        "[node.dram.remote]\nread_latency = { value = \"90ns\", source = \"s\" }\n[storage.disk",
    );
    let set = [("node.dram.read_latency".to_owned(), "8ns".to_owned())];
    let error = MachineFile::parse("x", &both).unwrap().with(&set).unwrap_err().to_string();
    assert!(error.contains("which read_latency? there is one in each of local, remote"), "{error}");
}

#[test]
fn cache_flash_and_cost_sections_are_read_strictly() {
    let flash = r#"
        description = "flash"
        [cache.l1d]
        size = { value = "32KiB", source = "s" }
        ways = { value = 8, source = "s" }
        line = { value = "64B", source = "s" }
        hit_time = { value = "1ns", source = "s" }
        [flash]
        channels = { value = 8, source = "s" }
        dies_per_channel = { value = 4, source = "s" }
        blocks_per_plane = { value = 1024, source = "s" }
        pages_per_block = { value = 256, source = "s" }
        page_size = { value = "4KiB", source = "s" }
        read = { value = "25us", source = "UMD (002)" }
        program = { value = "200us", source = "UMD (002)" }
        erase = { value = "1500us", source = "s" }
        over_provisioning = { value = 0.07, source = "s" }
        over_provisioning_definition = "(T-U)/U"
        gc_start_free = { value = 0.05, source = "s" }
        [cost]
        context_switch = { value = "1.07us", source = "s" }
    "#;
    let machine = Machine::parse("flash", flash).unwrap();
    assert_eq!(machine.flash.unwrap().read.value.ns(), 25_000.0);
    assert_eq!(machine.cost.unwrap().context_switch.unwrap().value.ns(), 1070.0);
    for (from, to, part) in [
        ("(T-U)/U", "T/U", "(T-U)/T"),
        ("0.05", "1.5", "flash.gc_start_free"),
        ("context_switch", "contextswitch", "did you mean `context_switch`?"),
        (
            "value = 8, source = \"s\" }\n        line",
            "value = 7, source = \"s\" }\n        line",
            "do not divide into sets of 7 ways",
        ),
    ] {
        assert!(flash.contains(from), "{from}");
        let error = Machine::parse("flash", &flash.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_refused(text in "\\PC{0,200}") {
        let _ = Machine::parse("fuzz", &text);
    }

    #[test]
    fn a_damaged_file_is_parsed_or_refused(
        at in 0usize..SMALL.len(),
        length in 0usize..30,
        patch in "[\\[\\]{}=\".a-z0-9 \n-]{0,12}",
    ) {
        let end = (at + length).min(SMALL.len());
        let text = format!("{}{patch}{}", &SMALL[..at], &SMALL[end..]);
        if let Err(error) = Machine::parse("fuzz", &text) {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }
}

#[test]
fn deep_nesting_is_refused() {
    for text in [
        "[".repeat(100_000),
        format!("a = {}", "[".repeat(100_000)),
        format!("a{}", ".a".repeat(100_000)),
        "a = {a = ".repeat(50_000),
    ] {
        assert!(Machine::parse("deep", &text).is_err());
    }
}

#[test]
fn machines_with_compressed_memory_read_files_from_their_disk() {
    let file = |name| MachineFile::load(name, Path::new("")).unwrap();
    let zram = file("zram");
    let times = |file: &MachineFile| {
        let storage = file.machine.storage("zram").unwrap();
        (storage.io_ns(4096), storage.files().io_ns(4096))
    };
    let (page, disk) = times(&zram);
    assert!(page < 10e3 && disk > 50e3);
    let hdd = file("desktop-hdd");
    let disk_of_hdd = hdd.machine.storages().unwrap().remove(0);
    assert_eq!(
        times(&hdd.with_storage_of(&zram, "zram").unwrap()),
        (page, disk_of_hdd.io_ns(4096))
    );
    let diskless = file("cxl-a");
    assert_eq!(times(&diskless.with_storage_of(&zram, "zram").unwrap()), (page, disk));

    let nested = zram.text.replace("files.nvme]", "files.zram.pages]");
    let error = Machine::parse("zram", &nested).unwrap_err().to_string();
    assert!(error.contains("files"), "{error}");
}
