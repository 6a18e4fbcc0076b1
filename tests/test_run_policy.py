"""``nearfar run`` of real programs under policies written in Python."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capturing import needs_cc
from conftest import HANG
from nearfar import live
from nearfar.errors import NearfarError
from nearfar.tiering import Policy
from tiers import needs_userfaultfd

HERE = Path(__file__).parent
#: Hashes argv[1] MiB of text repeatedly until the folder MARKS holds argv[2] files; then once more,
#: also in a fork.
PROGRAM = """
import hashlib, os, random, sys
draw = random.Random(1)
texts = [draw.randbytes(1000) * 1049 for _ in range(int(sys.argv[1]))]
def digest():
    whole = hashlib.sha256()
    for text in texts: whole.update(text)
    return whole.hexdigest()
seen = {digest()}
while len(os.listdir(os.environ["MARKS"])) < int(sys.argv[2]): seen.add(digest())
child = os.fork()
if child == 0:
    print("child", digest(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
texts[0] = b"x"
print("parent", seen, digest())
"""
#: The policy that most tests use or derive from. It promotes a page at its second hint fault and
#: demotes the oldest. After 100 promotions, an object makes a file in the folder MARKS.
POLICY = """
import json, os, sys
from collections import deque
from nearfar import live
from nearfar.tiering import Policy


class Second(Policy):
    made = []

    def __init__(self):
        self.made.append(self)
        self.faults, self.works, self.threads, self.pages, self.wrong = 0, 0, set(), 0, 0
        self.can, self.promotions = [], 0

    def start(self, memory):
        self.fast, self.once = deque(), set()
        self.demoter = memory.spawn("demoter")
        self.can = memory.capabilities()
        return [(self.demoter, 1_000_000)]

    def allocated(self, memory, page):
        self.pages += 1
        if memory.node_of(page) == 0:
            self.fast.append(page)

    def released(self, memory, page, span):
        self.once.discard(page)
        self.wrong += memory.mapped(page)

    def hint_fault(self, memory, page, write):
        self.faults += 1
        self.wrong += not memory.hint_armed(page)
        if page in self.once and memory.move_page(page, 0):
            self.once.discard(page)
            self.fast.append(page)
            self.promotions += 1
            if self.promotions == 100:
                self.mark()
            self.wrong += memory.node_of(page) != 0 or memory.hint_armed(page)
        else:
            self.once.add(page)
        memory.disarm_hint(page)
        memory.wake(self.demoter)

    def mark(self):
        open(os.path.join(os.environ["MARKS"], str(id(self))), "w").close()

    def pressure(self, memory, node, tenant):
        self.demote(memory, 32 if node == 0 else 0)

    def demote(self, memory, count):
        oldest = [self.fast.popleft() for _ in range(min(count, len(self.fast)))]
        oldest = [page for page in oldest if memory.mapped(page) and memory.node_of(page) == 0]
        free = memory.free(0)
        moved = memory.move_pages(oldest, 1)
        self.wrong += memory.free(0) != free + sum(moved)
        self.fast.extend(page for page, done in zip(oldest, moved) if not done)

    def work(self, memory, thread):
        self.works += 1
        self.threads.add(thread.name)
        self.demote(memory, memory.capacity(0) // 20 - memory.free(0))
"""
#: Appended to a policy: runs a program under CLASS, and prints the outcome and the objects' counts.
RUN = """
words, options = json.loads(sys.argv[1])
done = live.run(words, policy=CLASS, **options)
names = ("faults", "works", "pages", "promotions", "wrong", "can")
seen = [{name: getattr(one, name) for name in names} | {"threads": sorted(one.threads)}
        for one in Second.made]
print(json.dumps([json.loads(done.to_json()), seen]), file=sys.stderr)
"""


@pytest.fixture(autouse=True)
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder MARKS, named in the environment of all processes."""
    folder = tmp_path / "marks"
    folder.mkdir()
    monkeypatch.setenv("MARKS", str(folder))
    return folder


def program(size: int, marks: int) -> list[str]:
    """The command of PROGRAM."""
    return [sys.executable, "-c", PROGRAM, str(size), str(marks)]


def launch(
    words: list[str], policy: str = POLICY, chosen: str = "Second", **options: object
) -> subprocess.CompletedProcess[str]:
    """Run a program under the policy class or object ``chosen``, in a process of its own."""
    script = policy + RUN.replace("CLASS", chosen)
    arguments = json.dumps([words, {"fast": "12M", "far": "shm", **options}])
    return subprocess.run(
        [sys.executable, "-c", script, arguments], capture_output=True, text=True, timeout=HANG
    )


def run(
    words: list[str], policy: str = POLICY, chosen: str = "Second", **options: object
) -> tuple[str, live.Outcome, list[dict[str, Any]]]:
    """The program's output, the outcome, and the counts of each policy object."""
    done = launch(words, policy, chosen, **options)
    assert done.returncode == 0, done.stderr
    outcome, seen = json.loads(done.stderr[done.stderr.index("[{") :])
    return done.stdout, live.Outcome(**outcome), seen


def alone(words: list[str]) -> str:
    """The output of a program by itself."""
    return subprocess.run(words, capture_output=True, text=True, timeout=HANG, check=True).stdout


@needs_userfaultfd
@pytest.mark.parametrize("chosen", ["Second", "Second()"])
def test_a_program_and_its_fork_read_what_they_wrote(chosen: str) -> None:
    output, outcome, seen = run(program(16, 1), chosen=chosen)
    assert output == alone(program(16, 0)) and outcome.exit_code == 0 and outcome.why is None
    counted = outcome.counters
    assert counted["promotions"] >= 100 and counted["demotions_copied"] > 0
    # The first fault of a page does not promote: it passes through the window.
    assert counted["window_faults"] >= counted["promotions"] and counted["forks"] == 1
    assert outcome.run["options"]["policy"] == outcome.rows[0]["policy"] == "second"
    if chosen == "Second":
        # A fork is not a new process image.
        assert len(seen) == outcome.images == 1
        (one,) = seen
        # A fault during which the process ends is not counted.
        assert 0 <= one["faults"] - counted["hint_faults"] <= 1 and one["wrong"] == 0
        assert one["pages"] and one["works"] and one["threads"] == ["demoter"]
        assert one["can"] == ["accessed-bits"]


@needs_userfaultfd
def test_each_process_has_an_object_of_its_own() -> None:
    shell = '"$@" & "$@" & wait; exit 7'
    output, outcome, seen = run(["sh", "-c", shell, "sh", *program(30, 2)], fast="20M")
    lines = alone(program(30, 0)).splitlines()
    assert sorted(output.splitlines()) == sorted(2 * lines) and outcome.exit_code == 7
    assert len(seen) == outcome.images == 3
    assert sum(one["promotions"] >= 100 for one in seen) == 2
    more = sum(one["faults"] for one in seen) - outcome.counters["hint_faults"]
    assert 0 <= more <= 2
    assert not any(one["wrong"] for one in seen)


@needs_userfaultfd
def test_a_program_may_close_all_descriptors() -> None:
    script = textwrap.dedent("""
        import os, sys
        os.dup2(1, 1000)
        os.closerange(0, 1000)
        os.closerange(1001, 100000)
        data = bytearray(range(256)) * (16 << 12)
        found = set()
        while len(os.listdir(os.environ["MARKS"])) < int(sys.argv[1]) or not found:
            found.add(sum(data[::4099]))
        os.write(1000, f"{len(os.listdir('/proc/self/fd'))} {found}".encode())
    """)
    words = [sys.executable, "-c", script]
    output, outcome, (one,) = run([*words, "1"])
    assert output == alone([*words, "0"]) and outcome.exit_code == 0
    assert one["promotions"] >= 100 and one["wrong"] == 0


@needs_userfaultfd
@needs_cc
def test_no_page_is_wrong(tmp_path: Path, build: Callable[..., Path]) -> None:
    soak = build((HERE / "soak.c").read_text(), "-pthread")
    # Repeated, as on a busy machine the program may end before its 100th promotion.
    shell = 'while test -z "$(ls "$MARKS")"; do "$@" || exit; done'
    words = ["sh", "-c", shell, "sh", str(soak), "16", "10000", "3", str(tmp_path / "read")]
    output, outcome, seen = run(words, fast="6M")
    assert set(output.splitlines()) == {"0 pages were wrong"} and outcome.exit_code == 0
    for what in ("promotions", "demotions_copied", "released", "forks"):
        assert outcome.counters[what] > 0, (what, outcome.counters)
    assert not any(one["wrong"] for one in seen)


@needs_userfaultfd
def test_rules_on_the_base_nomad_are_called() -> None:
    """The built-in policy NOMAD calls the object's rules."""
    policy = POLICY + textwrap.dedent("""
        class Second(Policy):
            name = "rules"
            base = "nomad"
            watch_unshadowed = True
            made = []

            def __init__(self):
                self.made.append(self)
                self.kept, self.threads = [], []
                self.faults = self.works = self.pages = self.wrong = self.can = self.promotions = 0

            def keep_shadow(self, page):
                self.kept.append(page)
                return page % 2 == 0

            def promoted(self, page):
                self.pages += 1
                if self.pages == 100:
                    open(os.path.join(os.environ["MARKS"], "rules"), "w").close()

            def written(self, page):
                self.works += 1
    """)
    output, outcome, (one,) = run(program(24, 1), policy, knobs={"scan_delay": "10ms"})
    assert output == alone(program(24, 0)) and outcome.exit_code == 0
    counted = outcome.counters
    assert 0 < counted["shadow_copies"] < counted["promotions"]
    # Hooks of the last promotions are not called if the program ends meanwhile.
    assert 0 <= counted["promotions"] - one["pages"] < 512
    assert outcome.run["options"]["knobs"] == {"scan_delay": "10ms"}


@needs_userfaultfd
@pytest.mark.parametrize("hook", ["__init__", "start", "allocated", "hint_fault", "work"])
def test_an_exception_ends_the_program(hook: str) -> None:
    policy = POLICY + textwrap.dedent(f"""
        class Broken(Second):
            def {hook}(self, *arguments):
                return 1 // 0
    """)
    shell = 'sleep 1000 > /dev/null 2>&1 & "$@"; echo survived'
    done = launch(["sh", "-c", shell, "sh", *program(24, 1000)], policy, "Broken")
    assert done.returncode == 1 and done.stdout == ""
    assert f", in {hook}\n" in done.stderr and "ZeroDivisionError: " in done.stderr
    if hook != "__init__":
        says = [line for line in done.stderr.splitlines() if "The program was ended" in line]
        assert len(says) == 1 and "its policy raised ZeroDivisionError: " in says[0], done.stderr


@needs_userfaultfd
@pytest.mark.parametrize("does", ["memory.next_mapped(0); memory.disarm_hint(0)", "pass"])
def test_a_program_that_ends_during_a_hook_is_no_error(does: str) -> None:
    """The hook's calls on the released memory have no effect, and the hook is ended."""
    policy = POLICY + textwrap.dedent(f"""
        class Busy(Second):
            def work(self, memory, thread):
                self.mark()
                while True:
                    {does}
    """)
    script = 'while test -z "$(ls "$MARKS")"; do :; done; echo over'
    output, outcome, _ = run(["sh", "-c", script], policy, "Busy")
    assert output == "over\n" and outcome.exit_code == 0 and outcome.why is None


@needs_userfaultfd
def test_other_threads_may_query_memory_during_a_hook() -> None:
    policy = POLICY + textwrap.dedent("""
        import threading

        class Keeps(Second):
            def start(self, memory):
                self.memory = memory
                return super().start(memory)

            def allocated(self, memory, page):
                assert memory is self.memory
                # Three threads query the memory at once while the hook waits for them.
                found = []
                look = lambda: found.append(memory.node_of(page))
                threads = [threading.Thread(target=look) for _ in range(3)]
                [thread.start() for thread in threads]
                here = memory.node_of(page)
                [thread.join() for thread in threads]
                self.wrong += found != [here] * 3
                super().allocated(memory, page)
                self.mark()
    """)
    _, outcome, (one,) = run(program(1, 1), policy, "Keeps")
    assert outcome.exit_code == 0 and one["pages"] > 0 and one["wrong"] == 0


class Foresees(Policy):
    """Needs future references, which a live run does not know."""

    def foresee(self, memory: object, counts: list[int]) -> None:
        """Never called."""


class Based(Policy):
    """Has a base that needs samples, which a live run does not have."""

    base = "memtis"


class Ruled(Policy):
    """Has a rule that its base does not call."""

    base = "tpp"

    def keep_shadow(self, page: int) -> bool:
        """Never called."""
        return True


class Named(Policy):
    """Has a name of two lines."""

    name = "a\nb"


@needs_userfaultfd
@pytest.mark.parametrize(("policy", "knobs", "says"), [
    (Foresees, {}, "needs future references"),
    (Based, {}, "samples"),
    (Ruled, {}, "only called on the base `nomad`"),
    (Named, {}, "a single line of text"),
    (type("Based", (Policy,), {"base": "nomad"}), {"notise": 1}, "no such knob"),
])  # fmt: skip
def test_policies_that_cannot_run_live_are_refused_in_one_line(
    policy: type[Policy], knobs: dict[str, int], says: str
) -> None:
    with pytest.raises(NearfarError) as caught:
        live.run(["true"], fast="4M", policy=policy, knobs=knobs)
    assert says in str(caught.value) and "\n" not in str(caught.value)
