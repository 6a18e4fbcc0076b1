"""Chaos: kill processes of a program under ``nearfar run`` at random moments.

The program ``ends.c`` forks children and grandchildren, one child execs, and all processes verify
their memory and report. A round kills one of them, one of nearfar's helpers, or the launcher. Then

* no process has read wrong data;
* every process but the victim has reported, or standard error says why it was ended (unless the
  launcher was killed);
* nearfar ends other processes only if the victim is a process of nearfar;
* all processes end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ends
from chaos_commands import Broken, children, command

FARS = ("zstd", "lz4", "shm", "file")
POLICIES = ("ssp", "tpp", "none", "nomad", "autonuma")
#: SIGKILL, which no process can handle, is twice as likely.
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV)
#: Of prctl(2): orphaned descendants become children of this process.
SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Victim:
    """A process that may be killed: kind, process id, id of the process or thread to signal."""

    kind: str
    process: int
    target: int


def victims(launcher: int, results: Path) -> list[Victim]:
    """Every process of the run, and nearfar's helpers."""
    names = {pid: name for name, pid in ends.Reports.of(results).processes.items()}
    kinds = ("program", "child", "grandchild")
    found = [Victim("launcher", launcher, launcher)]
    for pid in children(os.getpid()):
        if pid == launcher:
            continue
        own = [Victim(kind, pid, task) for kind, task in ends.own(pid)]
        found += own
        if not own or own[0].target != pid:
            # A process without a name has yet to become the program or a helper of nearfar.
            kind = kinds[min(names[pid].count("."), 2)] if pid in names else "beginner"
            found.append(Victim(kind, pid, pid))
    return found


@dataclass
class Round:
    """One run of the program."""

    program: Path
    folder: Path
    draw: random.Random
    options: list[str]

    def start(self) -> int:
        """Start the run; returns the launcher's process id."""
        for stray in self.folder.iterdir():
            stray.unlink()
        words = ["run", *self.options, "--", str(self.program), "tree", "6", str(self.results)]
        words.append(str(self.draw.randrange(1 << 30)))
        pid = os.fork()
        if pid == 0:
            command(words, self.folder, self.said, None, contextlib.nullcontext())
        return pid

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def said(self) -> Path:
        return self.folder / "said"

    def wait_for_moment(self, launcher: int, seconds: float) -> None:
        """Wait a random part of ``seconds``, or until shortly after a random fork."""
        until = time.monotonic() + self.draw.uniform(0, 1) * seconds
        forks = self.draw.randrange(1, 7) if self.draw.random() < 0.4 else 0
        while time.monotonic() < until:
            if os.waitid(os.P_PID, launcher, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return
            if forks and len(ends.Reports.of(self.results).makers) >= forks:
                time.sleep(self.draw.uniform(0, 0.003))
                return
            time.sleep(0.0005 if forks else min(0.005, max(0.0, until - time.monotonic())))

    def kill(self, launcher: int) -> Victim:
        """Kill a random process of a random kind."""
        found = victims(launcher, self.results)
        kind = self.draw.choice(sorted({one.kind for one in found}))
        victim = self.draw.choice([one for one in found if one.kind == kind])
        own = victim.kind in ends.OWN.values()
        number = signal.SIGKILL if own else self.draw.choice(SIGNALS)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim.target, number)
        return victim

    def wait(self) -> dict[int, int]:
        """Wait until all processes end; returns exit codes of children and adopted orphans."""
        codes = {}
        end = time.monotonic() + ends.PATIENCE
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return codes
            if pid:
                codes[pid] = os.waitstatus_to_exitcode(status)
                continue
            if time.monotonic() > end:
                left = children(os.getpid())
                for one in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(one, signal.SIGKILL)
                raise Broken(f"processes run on: {left}")
            time.sleep(0.002)

    def check(self, victim: Victim | None, launcher: int, codes: dict[int, int]) -> str:
        """Check the reports, standard error and exit code; returns how the run ended."""
        said = self.said.read_text(errors="replace") if self.said.exists() else ""
        reports = ends.Reports.of(self.results)
        reasons = ends.without_summary(said)
        lost = reports.lost()
        if reports.wrong:
            raise Broken(f"read wrong: {reports.wrong}; lost {lost}; {reasons}")
        if stray := [line for line in reasons if not line.startswith("nearfar: ")]:
            raise Broken(f"said: {stray}")
        kind = victim.kind if victim else None
        if reasons and kind not in ("launcher", "beginner", *ends.OWN.values()):
            raise Broken(f"ended, though nothing of nearfar's was killed: {reasons}")
        if kind == "launcher":
            return "no launcher"
        if reasons:
            # 0: the launcher had ended and left orphans; 3: the program had not begun.
            if codes.get(launcher) not in (0, 3, 137):
                raise Broken(f"exit code {codes.get(launcher)}: {reasons}")
            return "ended with a line"
        if victim is not None:
            lost -= self.excused(victim, reports)
        if lost:
            ways = {name: codes.get(reports.processes[name] or 0) for name in sorted(lost)}
            raise Broken(f"lost, and nothing was said; how they ended: {ways}")
        if kind in (None, "child", "grandchild") and codes.get(launcher) != 0:
            raise Broken(f"exit code {codes.get(launcher)}")
        return f"{len(reports.ended)} of {len(reports.processes)} reported"

    def excused(self, victim: Victim, reports: ends.Reports) -> set[str]:
        """Names that need not have reported: the victim's, and children that had not begun."""
        names = {name for name, pid in reports.processes.items() if pid == victim.process}
        if not names and victim.kind in ends.OWN.values():
            return set()
        unborn = {name for name, pid in reports.processes.items() if pid is None}
        made = {name for name in unborn if reports.makers[name] == victim.process}
        return names | made if names else unborn


def rounds(folder: Path, number: int, seed: int, far: str | None) -> Iterator[tuple[str, bool]]:
    """A line for each round, and whether its checks passed; the first round kills nothing."""
    program = folder / "ends"
    # Processes that begin after the launcher's death would wait 20 s in vain for far pages.
    flags = ["-O1", "-pthread", "-DPATIENCE=2"]
    subprocess.run(["cc", *flags, "-o", program, ends.SOURCE], check=True)
    work = folder / "work"
    work.mkdir()
    longest = 0.0
    for at in range(number + 1):
        draw = random.Random(f"{seed} run {far} {at}")
        tier, policy = far or FARS[at % len(FARS)], draw.choice(POLICIES)
        argument = f"file:{work / 'far'}" if tier == "file" else tier
        fast = f"{draw.randrange(1, 4)}M"
        run = Round(program, work, draw, ["--fast", fast, "--far", argument, "--policy", policy])
        began = time.monotonic()
        launcher = run.start()
        victim, moment = None, 0.0
        try:
            if at > 0:
                run.wait_for_moment(launcher, 1.1 * longest)
                moment = time.monotonic() - began
                victim = run.kill(launcher)
            codes = run.wait()
            longest = min(max(longest, time.monotonic() - began), 1.0)
            answer, well = run.check(victim, launcher, codes), True
        except Broken as broken:
            answer, well = f"BROKEN: {broken}", False
        what = f"{victim.kind} killed after {moment:.3f} s" if victim else "nobody killed"
        seconds = time.monotonic() - began
        yield f"{tier}, {policy}, {fast}: {what}: {answer} ({seconds:.2f} s)", well


def main(number: int, seed: int, far: str | None) -> int:
    """Run ``number`` rounds; returns 1 if a check failed."""
    if shutil.which("cc") is None:
        print("run: no C compiler", flush=True)
        return 0
    broken = 0
    libc = ctypes.CDLL(None)
    libc.prctl(SET_CHILD_SUBREAPER, 1)
    with tempfile.TemporaryDirectory(prefix="nearfar-chaos-") as scratch:
        for answer, well in rounds(Path(scratch), number, seed, far):
            print(f"run: {answer}", flush=True)
            broken += not well
    libc.prctl(SET_CHILD_SUBREAPER, 0)
    if broken:
        print(f"run: {broken} of {number} rounds broken", flush=True)
    return int(broken > 0)
