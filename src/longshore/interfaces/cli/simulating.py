"""The body of ``longshore sim``: runs seeds, tells how far it is, and shows what failed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from longshore.errors import UsageError
from longshore.interfaces.cli.exits import ExitCode, say
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.screen import Column, console, print_json, print_pairs, print_table

if TYPE_CHECKING:
    from longshore.testing.simulation.campaign import Tally
    from longshore.testing.simulation.faults import Fault, Weather
    from longshore.testing.simulation.run import Report

_SHRUNK_AT_MOST = 3
_STOP_AFTER = 20
_NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line asks for."""

    seeds: range
    seed: int | None = None
    acts: str | None = None
    without: str | None = None
    weather: str = "any"
    trace: bool = False
    jobs: int | None = None


class _Progress(Protocol):
    def __call__(self, text: str) -> None: ...


def simulate(here: Here, asked: Asked) -> int:
    """Run what was asked for.

    Raises:
        UsageError: an option makes no sense, or not here.
    """
    if asked.seed is not None:
        return _one(here, asked, asked.seed)
    for name, given in (("--acts", asked.acts), ("--without", asked.without)):
        if given is not None:
            message = f"{name} is for one run: name it with --seed"
            raise UsageError(message)
    if asked.trace:
        message = "--trace is for one run: name it with --seed"
        raise UsageError(message)
    return _many(here, asked)


def _one(here: Here, asked: Asked, seed: int) -> int:
    from longshore.testing.simulation.run import Scenario, run

    scenario = Scenario(
        seed=seed,
        acts=_acts(asked.acts),
        without=_faults(asked.without),
        weather=_weather(asked.weather),
    )
    try:
        report = run(scenario, keep_trace=asked.trace)
    except IndexError:
        message = f"--acts: run {seed} has fewer acts than that"
        raise UsageError(message) from None
    if here.json:
        print_json(_report_document(report))
    else:
        for entry in report.trace:
            print(entry)
        print_pairs(
            [
                ("seed", str(seed)),
                ("digest", report.digest),
                ("virtual time", f"{report.virtual_seconds:.1f} s"),
                ("tasks", str(report.tasks)),
                ("attempts", str(report.attempts)),
                ("faults", str(report.happened.total())),
            ]
        )
        for breach in report.breaches:
            print(breach)
    return ExitCode.FAILED if report.breaches else ExitCode.OK


def _many(here: Here, asked: Asked) -> int:
    from longshore.testing.simulation.campaign import campaign

    jobs = asked.jobs or os.cpu_count() or 1
    with _progress() as tell:

        def progress(tally: Tally) -> None:
            failed = f", {len(tally.failed)} failed" if tally.failed else ""
            tell(f"{tally.runs} of {len(asked.seeds)} runs{failed}")

        tally = campaign(
            asked.seeds,
            weather=_weather(asked.weather),
            jobs=jobs,
            progress=progress,
            stop_after=_STOP_AFTER,
        )
        least = _least_of(tally, tell)
    if here.json:
        print_json(_tally_document(tally, least))
    else:
        _print_tally(tally)
        for report in least:
            print()
            _print_failure(report)
        if left := len(tally.failed) - len(least):
            seeds = ", ".join(str(one.scenario.seed) for one in tally.failed[len(least) :])
            say(f"longshore: {left} more failed, with the seeds {seeds}")
    for seed in tally.unequal:
        say(f"longshore: seed {seed} gave two different runs: the simulator is at fault")
    for fault in tally.never:
        say(f"longshore: in {tally.runs} runs it never happened that {fault.value}")
    return ExitCode.OK if tally.clean else ExitCode.FAILED


def _least_of(tally: Tally, tell: _Progress) -> list[Report]:
    from longshore.testing.simulation.shrinking import shrunk

    def smaller(report: Report) -> Report:
        seed = report.scenario.seed
        return shrunk(report, progress=lambda runs: tell(f"making {seed} smaller: {runs} tries"))

    return [smaller(report) for report in tally.failed[:_SHRUNK_AT_MOST]]


@contextmanager
def _progress() -> Iterator[_Progress]:
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda text: None
        return
    with screen.status("starting") as status:
        yield lambda text: status.update(text)


def _print_tally(tally: Tally) -> None:
    from longshore.testing.simulation.faults import faults_in

    print_pairs(
        [
            ("runs", f"{tally.runs}, {tally.twice} of them twice"),
            ("failed", str(len(tally.failed))),
            ("tasks", f"{tally.tasks} in {tally.attempts} attempts"),
            ("virtual time", f"{tally.virtual_seconds / 3600:.1f} hours"),
            ("CPU time", f"{tally.cpu_seconds:.1f} s"),
            ("seen", f"{tally.task_hours_per_cpu_second:.2f} task-hours per CPU second"),
        ]
    )
    print()
    print_table(
        [Column("FAULT"), Column("TIMES", right=True), Column("WHAT", flexible=True)],
        [
            (_name(fault), str(tally.happened[fault]), fault.value)
            for fault in faults_in(tally.weather)
        ],
    )


def _print_failure(report: Report) -> None:
    from longshore.testing.simulation.shrinking import repeat_command

    for breach in report.breaches:
        print(breach)
    subject = report.breaches[0].subject
    about = [entry for entry in report.trace if subject in entry.about or "child" not in entry.what]
    for entry in about:
        print(f"  {entry}")
    print(f"repeat it: {repeat_command(report.scenario)} --trace")


def _tally_document(tally: Tally, least: list[Report]) -> dict[str, Any]:
    return {
        "ok": tally.clean,
        "runs": tally.runs,
        "runTwice": tally.twice,
        "unequalSeeds": tally.unequal,
        "tasks": tally.tasks,
        "attempts": tally.attempts,
        "virtualHours": tally.virtual_seconds / 3600,
        "cpuSeconds": tally.cpu_seconds,
        "taskHoursPerCpuSecond": tally.task_hours_per_cpu_second,
        "faults": {_name(fault): times for fault, times in tally.happened.items()},
        "faultsThatNeverHappened": [_name(fault) for fault in tally.never],
        "failedSeeds": [report.scenario.seed for report in tally.failed],
        "failures": [_report_document(report) for report in least],
    }


def _report_document(report: Report) -> dict[str, Any]:
    from longshore.testing.simulation.shrinking import repeat_command

    return {
        "ok": not report.breaches,
        "seed": report.scenario.seed,
        "repeat": repeat_command(report.scenario),
        "digest": report.digest,
        "breaches": [
            {"invariant": one.invariant, "subject": one.subject, "text": one.text}
            for one in report.breaches
        ],
        "trace": [str(entry) for entry in report.trace],
        "faults": {_name(fault): times for fault, times in report.happened.items()},
    }


def _name(fault: Fault) -> str:
    return fault.name.lower().replace("_", "-")


def _acts(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    if text == _NONE:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        message = f"--acts: expected numbers like 0,2 or {_NONE!r}, not {text!r}"
        raise UsageError(message) from None


def _weather(text: str) -> Weather:
    from longshore.testing.simulation.faults import Weather

    try:
        return Weather(text)
    except ValueError:
        known = ", ".join(Weather)
        message = f"--weather: none is called {text!r}; there are {known}"
        raise UsageError(message) from None


def _faults(text: str | None) -> frozenset[Fault]:
    from longshore.testing.simulation.faults import Fault

    names = {_name(fault): fault for fault in Fault}
    wanted = text.split(",") if text else []
    unknown = [name for name in wanted if name not in names]
    if unknown:
        message = f"--without: no fault is called {unknown[0]!r}; there are {', '.join(names)}"
        raise UsageError(message)
    return frozenset(names[name] for name in wanted)
