"""What each guard is for: it is removed from a copy of the service or the client, and the harness must notice.

For each guard one small edit of the source, made in a copy that nothing else uses; then the scenario or test that is to
catch it runs against that copy. First each of these runs against a copy without any edit, where it must find nothing,
on each transport. What is guarded is the same for both, so the guards are removed beneath one and the other in turn.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .common import Options, Report, Scenario
from .fleet import REPOSITORY

SERVICE, CLIENT = Path("service/pd_handoff_server"), Path("clients/python/pd_handoff")
SECONDS = 300
"""Given to one scenario or test."""

SOAK = ("tests.faults", "soak", "--short", "--rounds", "450")
CLOCK = ("tests.faults", "clock", "--short")
ISOLATION = ("tests.faults", "isolation", "--short")
NETWORK = ("tests.faults", "network", "--short")
HISTORY = ("tests.faults", "history", "--short")
DESCRIPTORS = ("tests.faults", "descriptors", "--short")
WEB_PROXIES = ("tests.faults", "web-proxies", "--short")
FORKS = ("tests.faults", "forks", "--short")
NAMES = ("tests.faults", "names", "--short")
PYTEST = ("pytest", "-q", "-p", "no:cacheprovider", "--no-header")
CRASHES = (
    *PYTEST,
    "tests/persistence/test_crash_points.py::test_death_at_any_moment_leaves_a_call_done_or_not_done",
)


@dataclass(frozen=True)
class Guard:
    """One guard and how it is removed.

    Attributes:
        name: of what it guards.
        directory: of the package.
        found: a regular expression of the guard, wherever it stands in that directory.
        instead: what takes its place.
        caught_by: the module to run, with its arguments.
        short: removed in the short form, too.
        package: of the service or of the client.
    """

    name: str
    directory: str
    found: str
    instead: str
    caught_by: tuple[str, ...] = SOAK
    short: bool = False
    package: Path = SERVICE

    def remove(self, copy: Path) -> None:
        """Edit the copy. Raises LookupError when the guard is not where it was."""
        found = 0
        for path in sorted((copy / self.package.name / self.directory).glob("*.py")):
            edited, count = re.subn(self.found, self.instead, path.read_text())
            if count:
                path.write_text(edited)
            found += count
        if not found:
            raise LookupError(f"{self.name}: {self.directory} has nothing like {self.found}")


GUARDS = (
    Guard(
        "a token must be equal, not merely of a live key",
        "lifecycle",
        r"if live is not None and live\.token == token:",
        "if live is not None:",
        short=True,
    ),
    Guard(
        "a row must be of the generation that is read",
        "arena",
        r"if written != generation or not 0 < size",
        "if not 0 < size",
    ),
    Guard(
        "a row must match its checksum",
        "arena",
        r"if zlib\.crc32\(image, slot\) != checksum:",
        "if False:",
    ),
    Guard(
        "a row must be of the slot that is read",
        "arena",
        r"zlib\.crc32\(image, slot\)",
        "zlib.crc32(image)",
    ),
    Guard(
        "a freed row is scrubbed",
        "arena",
        r"rows\[body : body \+ size\] = self\._zeros\[:size\]",
        "pass",
    ),
    Guard(
        "what readers see never changes (compared with the row)",
        "store",
        r"if self\._read_row\(holder\) != draft\.image:",
        "if False:",
    ),
    Guard(
        "a repeated Put of what has ended must have its digest",
        "store",
        r"elif draft\.digest\(\) != holder\.digest:",
        "elif False:",
    ),
    Guard(
        "an ended hand-off leaves a tombstone",
        "lifecycle",
        r"self\._bury\(tombstone\)",
        "pass",
    ),
    Guard(
        "the first terminal state wins (Abort after the last reader)",
        "lifecycle",
        r"if live\.state is CONSUMED:\n(\s+)return False",
        r"if False:\n\1return False",
    ),
    Guard(
        "a lower attempt is refused beside a higher one",
        "lifecycle",
        r"if spec\.attempt < live\.attempt:",
        "if False:",
    ),
    Guard(
        "the row is written before the hand-off is published",
        "store",
        r"(self\._arena\.write\((\w+)\.slot, \2\.generation, draft\))(\n\s+)(self\._lifecycle\.publish\(\2\))",
        r"\4\3\1",
        CRASHES,
    ),
    Guard(
        "a consumed record can be read again, should its answer be lost",
        "lifecycle",
        r"handoff\.deadline = deadline = ([\w.()]+) \+ self\.policy\.consumed_grace",
        r"handoff.deadline = deadline = \1",
        NETWORK,
    ),
    Guard(
        "leases count by a clock that nobody sets",
        "lifecycle",
        r"staticmethod\(time\.monotonic_ns\)",
        "staticmethod(time.time_ns)",
        CLOCK,
    ),
    Guard(
        "fences are shared out by namespace",
        "lifecycle",
        r"surplus = self\._order\.surplus\(\)",
        "surplus = self._order.first()",
        ISOLATION,
    ),
    Guard(
        "the bound on unread answers is looked at before a record is read for a call that waited",
        "handlers",
        r"(refused = (?:None if self\._call is None else )?)self\._unread\.over\(self\._call\)",
        r"\1None",
        (*PYTEST, "tests/bounds/test_unread.py::test_a_batch_holds_nothing_while_it_waits_and_its_share_from_then_on"),
    ),
    Guard(
        "one allowance bounds the events that callers cause",
        "telemetry",
        r"held_back = self\._allowance\.take\(\)",
        "held_back = 0",
        ISOLATION,
    ),
    Guard(
        "a lease ends when its time is over",
        "lifecycle",
        r"(self\._end\(handoff, Outcome\.EXPIRED)",
        r"handoff.state is RESERVED or \1",
        (*PYTEST, "tests/unit/service/test_store.py::test_everything_ends_by_the_timer_alone"),
    ),
    Guard(
        "a read learns how the newest attempt ended",
        "lifecycle",
        r"if ended is not None and ended\.attempt >= attempt and \(live",
        "if ended is not None and ended.attempt < attempt and (live",
        HISTORY,
    ),
    Guard(
        "a descriptor is held back for the files of tokens and roles",
        "access",
        r" or not _SPARE\.give_back\(\)",
        "",
        DESCRIPTORS,
    ),
    Guard(
        "a wait that a proxy cut is no outage",
        "_calls",
        r" and \(yield from self\._was_cut\(outage, error\)\)",
        " and False",
        WEB_PROXIES,
        package=CLIENT,
    ),
    Guard(
        "a child process ends no hand-off of its parent",
        "_calls",
        r"if os\.getpid\(\) != self\._process:",
        "if False:",
        FORKS,
        package=CLIENT,
    ),
    Guard(
        "a name is looked up again within the retry budget",
        "_transport",
        r'"grpc\.dns_min_time_between_resolutions_ms": 500',
        '"grpc.dns_min_time_between_resolutions_ms": 600_000',
        NAMES,
        package=CLIENT,
    ),
)


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `noticed`, and by what first sentence."""

    noticed: bool
    sentence: str


def attempt(directory: Path, guard: Guard | None, caught_by: tuple[str, ...]) -> Outcome:
    """Run a scenario or test against a copy without this guard. Raises LookupError, RuntimeError."""
    copy = directory / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    _copy(copy)
    if guard is not None:
        guard.remove(copy)
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    for package in (SERVICE.name, CLIENT.name):
        shown = _run(["-c", f"import {package} as package; print(package.__file__)"], environment).stdout.strip()
        if not shown.startswith(str(copy)):
            raise RuntimeError(f"the copy is not what runs, but {shown}")
    done = _run(["-m", *caught_by], environment)
    if done.returncode == 0:
        return Outcome(False, "")
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
    told = [line for line in lines if line.startswith(("FAULT", "E ", "AssertionError", "tests.support.failures"))]
    if done.returncode != 1 or not told:
        raise RuntimeError(f"{caught_by} ended with {done.returncode}: {lines[-3:]}")
    return Outcome(True, told[0].removeprefix("FAULT").removeprefix("E ").strip())


def _copy(directory: Path) -> None:
    for package in (SERVICE, CLIENT):
        shutil.copytree(REPOSITORY / package, directory / package.name, ignore=shutil.ignore_patterns("__pycache__"))


def _run(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def run(options: Options) -> Report:
    """Every guard; in the short form that each is where it was, and one of them removed."""
    report = Report()
    chosen = [guard for guard in GUARDS if guard.short or not options.short]
    if options.short:
        copy = options.directory / "all"
        _copy(copy)
        for guard in GUARDS:
            try:
                guard.remove(copy)
            except LookupError as missing:
                report.fault(str(missing))
            report.count("guards found")
    else:
        for caught_by in dict.fromkeys(guard.caught_by for guard in GUARDS):
            outcome = attempt(options.directory, None, caught_by)
            report.expect(not outcome.noticed, f"{' '.join(caught_by)} fails with every guard: {outcome.sentence}")
            report.count("runs with every guard in place")
    for guard, transport in zip(chosen, itertools.cycle(options.transports), strict=False):
        try:
            outcome = attempt(options.directory, guard, _on(transport, guard.caught_by))
        except (LookupError, RuntimeError, subprocess.TimeoutExpired) as failed:
            report.fault(f"{guard.name}: {failed}")
            continue
        ending = "caught" if outcome.noticed else "NOT CAUGHT"
        options.say(f"| {guard.name} | {_title(guard)} | {ending}: {outcome.sentence[:110]} |")
        report.expect(outcome.noticed, f"not noticed: {guard.name}")
        report.count("guards removed and noticed")
    return report


def _on(transport: str, caught_by: tuple[str, ...]) -> tuple[str, ...]:
    return (*caught_by, "--transport", transport) if caught_by[0] == "tests.faults" else caught_by


def _title(guard: Guard) -> str:
    return guard.caught_by[1] if guard.caught_by[0] == "tests.faults" else guard.caught_by[-1].rpartition("/")[2]


SCENARIO = Scenario("guards", "guards removed from a copy of the packages, one by one: each must be noticed", run)
