"""``nearfar run``: small runs of real programs, and rare uses of memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from capturing import needs_cc
from conftest import Run, refused
from nearfar import live
from tiers import needs_userfaultfd, run

HERE = Path(__file__).parent
ARRAYS = """
import hashlib, numpy
draw = numpy.random.default_rng(1)
values = draw.integers(0, 1 << 40, 600_000)
order = numpy.argsort(values, kind="stable")
for array in (values[order], order, values[::-1][order]):
    print(hashlib.sha256(numpy.ascontiguousarray(array)).hexdigest())
"""
#: This program and QUERIES sleep, to end only after their memory is managed.
FORKS = """
import hashlib, os, random, time
draw = random.Random(1)
texts = [bytearray(draw.randbytes(1000) * 500) for _ in range(24)]
time.sleep(0.3)
def say(*words):
    whole = hashlib.sha256()
    for text in texts: whole.update(text)
    os.write(1, (" ".join(map(str, words)) + " " + whole.hexdigest() + chr(10)).encode())
for number in range(3):
    child = os.fork()
    for text in texts[number::3]:
        text[number::4096] = bytes([7 + (child == 0)]) * len(text[number::4096])
    say(number, child == 0)
    if child == 0:
        # A child of the child, with both still there.
        again = os.fork()
        say("again", again == 0)
        if again: os.waitpid(again, 0)
        os._exit(0)
    os.waitpid(child, 0)
say("end")
"""
QUERIES = """
pragma cache_size = -65536;
create table word (number integer primary key, text text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 15000)
  insert into word select i, hex(i * 7919 % 65536) || printf('%060d', i) from n;
.shell sleep 0.3
create index by_text on word (text);
.shell sleep 0.3
delete from word where number % 11 = 0;
select count(*), sum(number), max(text) from word where text > '34';
pragma integrity_check;
"""
TEMPLATES = """
#include <map>
#include <string>
#include <vector>
std::map<std::string, std::vector<std::map<int, std::string>>> all;
int main() { all["a"].push_back({{1, "b"}}); return all.size(); }
"""
JAVA = """
import java.util.*;
class Sorted {
  public static void main(String[] words) {
    Random draw = new Random(1);
    List<String> all = new ArrayList<>();
    long sum = 0;
    for (int round = 0; round < 4; round++) {
      for (int number = 0; number < 40000; number++) all.add(Long.toString(draw.nextLong(), 36));
      Collections.sort(all);
      for (String text : all) sum = 31 * sum + text.hashCode();
      all.subList(0, 20000).clear();
      System.gc();
    }
    System.out.println(sum);
  }
}
"""


def needs(name: str) -> None:
    """Skip where there is no such program."""
    if shutil.which(name) is None:
        pytest.skip(f"no {name}")


def same(words: list[str], fast: str, *, sort: bool = False, **options: object) -> live.Outcome:
    """Check that the program prints the same as without nearfar; return the outcome."""
    alone = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    output, outcome = run(*words, fast=fast, **options)
    # Parallel processes print in any order.
    lines = (sorted(alone.splitlines()), sorted(output.splitlines())) if sort else (alone, output)
    assert lines[0] == lines[1] and outcome.exit_code == 0
    counters = outcome.counters
    assert counters["demotions_copied"] > 100 and counters["far_loads"] > 100, counters
    return outcome


@needs_userfaultfd
def test_sorted_arrays_are_the_same() -> None:
    same([sys.executable, "-c", ARRAYS], "8M", far="lz4")


@needs_userfaultfd
def test_forks_of_forks_keep_their_data() -> None:
    outcome = same([sys.executable, "-c", FORKS], "4M", sort=True, policy="nomad")
    assert outcome.counters["forks"] >= 2


@needs_userfaultfd
def test_a_database_answers_the_same(tmp_path: Path) -> None:
    needs("sqlite3")
    script = tmp_path / "queries.sql"
    script.write_text(QUERIES)
    words = ["sqlite3", ":memory:", f".read {script}"]
    outcome = same(words, "2M", far=f"file:{tmp_path / 'far'}", policy="ssp")
    assert outcome.counters["promotions"] > 0 and outcome.far_bytes > 2 << 20
    assert outcome.fast_bytes < 1.6 * (2 << 20)
    assert not list(tmp_path.glob("far*"))


@needs_userfaultfd
def test_a_compiler_compiles_the_same(tmp_path: Path) -> None:
    needs("g++")
    source = tmp_path / "templates.cc"
    source.write_text(TEMPLATES)
    same(["g++", "-std=c++17", "-S", "-o", "-", str(source)], "12M", policy="tpp")


@needs_userfaultfd
def test_a_collector_collects_the_same(tmp_path: Path) -> None:
    needs("java")
    needs("javac")
    source = tmp_path / "Sorted.java"
    source.write_text(JAVA)
    subprocess.run(["javac", "-J-XX:TieredStopAtLevel=1", "-d", tmp_path, source], check=True)
    java = ["java", "-Xmx48m", "-Xshare:off", "-XX:TieredStopAtLevel=1", "-cp"]
    same([*java, str(tmp_path), "Sorted"], "16M")


@needs_userfaultfd
@needs_cc
@pytest.mark.parametrize("kind", ["huge", "locked", "closed", "spawned", "own-faults"])
def test_no_page_is_wrong_in_rare_cases(kind: str, build: Callable[..., Path]) -> None:
    """Huge pages, `mlock`, all descriptors closed, `vfork`, a userfaultfd of the program's own."""
    program = build((HERE / "corners.c").read_text(), "-pthread")
    # On a busy machine, the program can end before its memory is managed.
    for _ in range(5):
        output, outcome = run(str(program), kind, "16", fast="4M")
        assert output == "0 pages were wrong\n" and outcome.exit_code == 0
        seen = outcome.counters
        if seen["far_loads"] > 0 or kind == "own-faults":
            break
    # Memory with a userfaultfd of the program is left alone.
    assert (seen["far_loads"] > 0) == (kind != "own-faults"), seen
    assert (seen["pinned"] > 0) or kind != "locked", seen


@needs_userfaultfd
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_user_needs_the_right_to_use_userfaultfd(nearfar: Run) -> None:
    needs("setpriv")
    other = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    right = ["--inh-caps=+sys_ptrace", "--ambient-caps=+sys_ptrace"]
    words = "id -u; seq 200000 | sort -R --random-source=/dev/zero | sort -n | tail -1"
    out, outcome = run(*other, *right, "sh", "-c", words, fast="4M")
    assert out.split() == ["65534", "200000"] and outcome.exit_code == 0
    assert outcome.counters["demotions_copied"] > 100
    done = nearfar("run", "--fast", "4M", "--", *other, "sh", "-c", "echo no")
    assert (done.returncode, done.stdout) == (3, "")
    assert "user 65534, who may not use userfaultfd" in done.stderr.splitlines()[0]


@needs_userfaultfd
@needs_cc
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_a_set_user_id_program_is_not_managed(nearfar: Run, build: Callable[..., Path]) -> None:
    """It is refused as the command; started by another program, it runs unmanaged."""
    source = '#include <stdio.h>\n#include <unistd.h>\nint main() { printf("%d\\n", geteuid()); }'
    program = build(source)
    os.chown(program, 65534, 65534)
    program.chmod(0o4755)
    refused(nearfar("run", "--fast", "4M", "--", program), "another user's rights")
    output, outcome = run("sh", "-c", f"{program}; echo more", fast="4M")
    assert output == "65534\nmore\n" and outcome.images == 1
