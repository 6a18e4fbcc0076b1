"""Import and export from Python and the command line; the parsers' own tests are in Rust."""

from __future__ import annotations

import gzip
import json
import lzma
import struct
import zipfile
from pathlib import Path

import pytest

from capturing import info
from conftest import DATA, Run, refused
from nearfar import exporter, importer


def test_every_export_format_can_be_imported():
    assert set(exporter.formats()) <= set(importer.formats())


def test_help_has_the_formats(nearfar: Run):
    for command, formats in (("import", importer.formats()), ("export", exporter.formats())):
        shown = "".join(nearfar(command, "--help").stdout.split())  # names wrap at hyphens
        assert f"--formatNAMEFormatofthefile.Oneof:{','.join(formats)}." in shown


def test_perf_samples_are_marked_as_sampled(tmp_path):
    exact = importer.import_trace(DATA / "small.lackey", tmp_path / "exact.trace")
    assert info(exact)["source"]["sampled"] is False
    trace = importer.import_trace(DATA / "small.perf-script", tmp_path / "p.trace")
    assert info(trace)["source"]["sampled"] is True
    assert info(trace)["threads"][0]["process"] > 1


def test_a_folder_of_drmemtrace_is_imported(tmp_path, nearfar: Run):
    """DynamoRIO writes a file of (type, size, address) per thread into the folder ``trace``."""
    entries = [(25, 0, 7), (22, 4, 1), (24, 4, 9), (28, 2, 50), (10, 4, 0x1000), (0, 0, 0x2000)]
    folder = tmp_path / "drmemtrace.app.9.dir" / "trace"
    folder.mkdir(parents=True)
    for thread in (1, 2):
        entries[1] = (22, 4, thread)
        packed = b"".join(struct.pack("<HHQ", *entry) for entry in entries)
        with zipfile.ZipFile(folder / f"app.{thread}.trace.zip", "w") as archive:
            archive.writestr("chunk.0000", packed)
    done = nearfar("import", folder.parent, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = info(tmp_path / "drmemtrace.app.9.trace")
    assert found["records_by_kind"] == {"load": 2, "fetch": 2}
    assert [thread["process"] for thread in found["threads"]] == [9, 9]
    done = nearfar("import", folder, "--format", "lackey", cwd=tmp_path)
    refused(done, "is a folder, and lackey is a single file")


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_compressed_input_is_read_from_standard_input(tmp_path, pack, nearfar: Run):
    packed = pack((DATA / "small.lackey").read_bytes())
    done = nearfar("import", "-", "--json", stdin=packed, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plain = importer.import_trace(DATA / "small.lackey", tmp_path / "plain.trace")
    assert json.loads(done.stdout)["info"]["records"] == info(plain)["records"]
    assert (tmp_path / "stdin.trace" / "trace.json").is_file()


def test_a_bad_record_is_one_clear_line_and_leaves_nothing(tmp_path, nearfar: Run):
    bad = tmp_path / "bad.din"
    bad.write_text("r 1000 4\nr zzz 4\n")
    done = nearfar("import", bad, cwd=tmp_path)
    refused(done, f" {bad}: line 2, byte 9: bad dinero record", "--skip-bad")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.din"]
    done = nearfar("import", bad, "--skip-bad", 1, cwd=tmp_path)
    assert done.returncode == 0 and "1 bad records skipped" in done.stdout
    assert info(tmp_path / "bad.trace")["source"]["skipped_records"] == 1


@pytest.mark.parametrize(
    ("content", "args", "says"),
    [
        (b"", [], "empty: no records"),
        (b"hello\n", [], "--format: lackey"),
        (b"PK\x03\x04", [], "damaged or cut-off zip stream"),
        (b"r 10 4\n", ["--format", "nope"], "choose one of lackey"),
        (b"r 10 4\n", ["--object-bytes", "4"], "holds addresses, not object ids"),
        (b"r 10 4\n", ["--max-refs", "0"], "--max-refs: 0 is out of range"),
        (b"r 10 4\n", ["--object-bytes", "0"], "--object-bytes: '0' is not a size"),
        (b"r 10 4\n", ["--max-refs", str(10**30)], "--max-refs"),
        (b"r 10 4\n", ["--skip-bad", "-1"], "--skip-bad"),
        (gzip.compress(b"r 10 4\n" * 9, mtime=0)[:-4], [], "damaged or cut-off gzip stream"),
        (b"r ffffffffffffffff 2\n", [], "past the end of the address space"),
        (b"r 10 0\n", [], "a size of 0 bytes is not a reference"),
    ],
)
def test_bad_input_is_an_error_and_leaves_nothing(tmp_path, content, args, says, nearfar: Run):
    refused(nearfar("import", "-", *args, stdin=content, cwd=tmp_path), says)
    assert list(tmp_path.iterdir()) == []


def test_the_default_output_is_named_after_the_input():
    names = {"-": "stdin", "runs/app.din.gz": "app", "app.zst": "app", "x/y.champsim.xz": "y",
             "app.7.trace.zip": "app.7", "run/app.7.dir": "app.7"}  # fmt: skip
    for source, stem in names.items():
        assert importer.default_out(source) == Path(f"{stem}.trace")


def test_text_formats_are_exported_to_standard_output(tmp_path, nearfar: Run):
    trace = importer.import_trace(DATA / "small.lackey", tmp_path / "t.trace")
    done = nearfar(
        "export", trace, "--format", "csv", "-o", "-", "--kinds", "load", "--max-refs", 3
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "addr,kind,size,thread,instr" and len(lines) == 4
    assert all(",load," in line for line in lines[1:])
    done = nearfar("export", trace, "--format", "oracle-general", "-o", "-")
    refused(done, "name a file with -o")
    done = nearfar("export", trace, "--format", "csv", "-o", "-", "--max-refs", 0)
    refused(done, "--max-refs: 0 is out of range")
    done = nearfar("export", trace, "--format", "csv", "-o", "-", "--kinds", "lode")
    refused(done, "no kind 'lode'; choose one of load,")


def test_oracle_general_is_what_libcachesim_reads(tmp_path):
    libcachesim = pytest.importorskip("libcachesim")
    trace = importer.import_trace(DATA / "small.lackey", tmp_path / "t.trace")
    count = exporter.export_trace(trace, tmp_path / "t.oracleGeneral", format="oracle-general")
    reader = libcachesim.TraceReader(
        str(tmp_path / "t.oracleGeneral"), trace_type=libcachesim.TraceType.ORACLE_GENERAL_TRACE
    )
    requests = list(reader)
    assert len(requests) == count
    assert len({request.obj_id for request in requests}) == sum(
        info(trace)["pages_by_kinds"].values()
    )
