//! Tests that an output has one writer at a time, and what it may replace.

use std::fs;
use std::sync::Barrier;

use tempfile::TempDir;

use super::*;

fn request<'a>(
    path: &'a Path,
    form: &Form,
    force: bool,
    inputs: &'a [PathBuf],
) -> OutputRequest<'a> {
    OutputRequest { path, form: form.clone(), force, inputs }
}

fn folder() -> Form {
    Form::Folder(TRACE.to_owned())
}

fn names(of: &TempDir) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(of)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Write `number` to three files, or to three lines of a file.
fn fill(output: &Output, number: usize) {
    let text = number.to_string();
    match output.form {
        Form::File => fs::write(output.temporary(), format!("{text}\n{text}\n{text}\n")).unwrap(),
        Form::Folder(_) => [TRACE, "a", "b"].iter().for_each(|name| {
            std::thread::yield_now();
            fs::write(output.temporary().join(name), format!("{text}\n")).unwrap();
        }),
    }
}

fn content(path: &Path) -> String {
    if path.is_file() {
        return fs::read_to_string(path).unwrap();
    }
    [TRACE, "a", "b"].iter().map(|name| fs::read_to_string(path.join(name)).unwrap()).collect()
}

#[test]
fn concurrent_writers_write_a_whole_output_or_are_refused() {
    const WRITERS: usize = 6;
    for form in [Form::File, folder()] {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("out");
        let mut refused = 0;
        for round in 0..4000 {
            // On a busy machine, writers seldom overlap: go on until one is refused.
            if round >= 40 && refused > 0 {
                break;
            }
            let all = Barrier::new(WRITERS);
            let (form, path, all) = (&form, &path, &all);
            let write = |number: usize| -> Result<()> {
                all.wait();
                let mut output = Output::claim(&request(path, form, true, &[]))?;
                fill(&output, number);
                output.commit()
            };
            let done: Vec<Result<()>> = std::thread::scope(|scope| {
                let writers: Vec<_> = (0..WRITERS)
                    .map(|number| scope.spawn(move || write(round * 100 + number)))
                    .collect();
                writers.into_iter().map(|writer| writer.join().unwrap()).collect()
            });
            assert!(done.iter().any(Result::is_ok), "{done:?}");
            for error in done.iter().filter_map(|done| done.as_ref().err()) {
                assert!(error.to_string().contains("another command is writing it"), "{error}");
                refused += 1;
            }
            let text = content(path);
            let lines: Vec<_> = text.lines().collect();
            assert!(lines.len() == 3 && lines.iter().all(|line| *line == lines[0]), "{text:?}");
            assert_eq!(names(&place), ["out"]);
        }
        assert!(refused > 0, "they never met");
    }
}

#[test]
fn without_force_a_file_created_meanwhile_is_not_replaced() {
    for form in [Form::File, folder()] {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("out");
        let mut output = Output::claim(&request(&path, &form, false, &[])).unwrap();
        fill(&output, 1);
        fs::write(&path, "theirs").unwrap();
        assert!(output.commit().unwrap_err().to_string().contains("exists already"));
        assert!(output.rename().unwrap_err().to_string().contains("cannot rename into place"));
        drop(output);
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
        assert_eq!(names(&place), ["out"]);
    }
}

#[test]
fn leftovers_of_a_killed_writer_are_replaced_and_links_not_followed() {
    let place = tempfile::tempdir().unwrap();
    let (path, temporary) = (place.path().join("out"), place.path().join(".out.partial"));
    let other = place.path().join("other");
    fs::write(&other, "theirs").unwrap();
    for form in [Form::File, folder()] {
        for left in 0..3 {
            match left {
                0 => fs::write(&temporary, "old").unwrap(),
                1 => fs::create_dir_all(temporary.join("old")).unwrap(),
                _ => std::os::unix::fs::symlink(&other, &temporary).unwrap(),
            }
            let mut output = Output::claim(&request(&path, &form, false, &[])).unwrap();
            fill(&output, left);
            output.commit().unwrap();
            assert_eq!(content(&path), format!("{left}\n").repeat(3));
            folder::remove(&path).unwrap();
        }
    }
    assert_eq!(
        (names(&place), fs::read_to_string(&other).unwrap()),
        (vec!["other".into()], "theirs".into())
    );
}

#[test]
fn force_never_replaces_inputs_files_of_traces_or_special_files() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    for name in ["a.trace", "runs/one", "full", "empty", "sub"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    for name in [
        "a.trace/trace.json",
        "a.trace/part-00000.parquet",
        "runs/one/run.json",
        "full/file",
        "table.csv",
    ] {
        fs::write(at(name), "x").unwrap();
    }
    fs::hard_link(at("table.csv"), at("second name")).unwrap();
    std::os::unix::fs::symlink(at("a.trace"), at("link")).unwrap();
    std::os::unix::fs::symlink("/dev/null", at("null")).unwrap();
    let inputs = [at("table.csv"), at("runs/one"), at("link")];
    let run = Form::Folder("run.json".to_owned());
    let cases = [
        ("a.trace/part-00000.parquet", Form::File, "is inside the trace"),
        ("a.trace/new.html", Form::File, "is inside the trace"),
        ("link/new.html", Form::File, "is inside the trace"),
        ("a.trace/sub/new", run.clone(), "is inside the trace"),
        ("a.trace", folder(), "is an input itself"),
        ("link", folder(), "is an input itself"),
        ("table.csv", Form::File, "is an input itself"),
        ("second name", Form::File, "is an input itself"),
        ("sub/../table.csv", Form::File, "is an input itself"),
        ("runs/one/page.html", Form::File, "is inside the input"),
        ("runs", run.clone(), "contains the input"),
        ("full", run.clone(), "is not a result"),
        ("full", folder(), "is not a trace"),
        ("full", Form::File, "is a folder"),
        ("null", Form::File, "not a regular file"),
        ("no/where", Form::File, "no folder"),
        ("..", run.clone(), "is no file name"),
    ];
    for (name, form, expected) in cases {
        let path = at(name);
        let error = request(&path, &form, true, &inputs).check().unwrap_err().to_string();
        assert!(error.contains(expected), "{name}: {error}");
        assert!(Output::claim(&request(&path, &form, true, &inputs)).is_err());
    }
    for (name, form) in [("empty", run.clone()), ("new/run", run), ("new.html", Form::File)] {
        let path = at(name);
        Output::claim(&request(&path, &form, true, &inputs)).unwrap().commit().unwrap();
    }
    assert_eq!(fs::read_to_string(at("a.trace/part-00000.parquet")).unwrap(), "x");
}

#[test]
fn a_folder_that_takes_no_files_is_not_reported_as_busy() {
    let path = Path::new("/proc/out");
    for form in [folder(), Form::File] {
        let error = Output::claim(&request(path, &form, true, &[])).unwrap_err();
        assert!(error.to_string().contains("does not accept new files"), "{error}");
    }
}

#[test]
fn a_trace_written_in_place_is_locked() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("out");
    for replaced in [false, true] {
        let mut first = Output::claim(&request(&path, &folder(), true, &[])).unwrap();
        fill(&first, 1);
        assert_eq!(first.rename_early().unwrap().is_some(), replaced);
        let second = Output::claim(&request(&path, &folder(), true, &[]));
        assert!(second.unwrap_err().to_string().contains("another command is writing it"));
        drop(first);
        let mut third = Output::claim(&request(&path, &folder(), true, &[])).unwrap();
        fill(&third, 3);
        third.commit().unwrap();
        assert_eq!(content(&path), "3\n3\n3\n");
    }
    assert_eq!(names(&place), [".out.replaced", "out"]);
}
