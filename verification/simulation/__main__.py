"""``python -m verification.simulation``: many runs under faults, or one, and what came of them.

Each seed is one run of the real services on a simulated clock. The same seed gives the same run,
bit for bit. A run that fails is shrunk to the least that fails, and printed with the command that
repeats it. Nothing on this machine is touched.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from longshore.interfaces.cli.render.screen import (
    Column,
    console,
    print_json,
    print_pairs,
    print_table,
)
from verification.simulation.campaign import COMMAND, Tally, repeat_command, run_campaign, shrink
from verification.simulation.faults import Fault, FaultProfile, faults_of
from verification.simulation.run import RunReport, Scenario, run

_EPILOG = f"""\
examples:
  {COMMAND}                                 a thousand runs, on all cores
  {COMMAND} --seeds 200000 --from 1000      a night's work
  {COMMAND} --profile aws --seeds 2000      as on AWS
  {COMMAND} --seed 4711 --trace             one run, and all that happened in it
"""
_NO_ACTIONS = "none"
_MAX_SHRUNK = 3
_STOP_AFTER = 20
_OK, _FAILED = 0, 1

_Progress = Callable[[str], object]


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for; 1 if a run failed."""
    parser = _make_parser()
    asked = parser.parse_args(arguments)
    if asked.seed is not None:
        return _run_seed(parser, asked)
    for name, unused in (("actions", None), ("without", None), ("trace", False)):
        if getattr(asked, name) != unused:
            parser.error(f"--{name} is for one run: name it with --seed")
    return _run_campaign(asked)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--seeds", type=_at_least(1), default=1_000, metavar="N", help="how many runs [1000]")
    add(
        "--from",
        dest="first",
        type=_at_least(0),
        default=0,
        metavar="SEED",
        help="the seed of the first run [0]",
    )
    add(
        "--profile",
        choices=list(FaultProfile),
        type=FaultProfile,
        default=FaultProfile.DEFAULT,
        help="what the runs stand on: aws has its streams, functions and indexes",
    )
    add("--jobs", type=_at_least(1), metavar="N", help="how many processes at once [one a core]")
    add("--json", action="store_true", help="print what came of it for a program")
    add("--seed", type=_at_least(0), metavar="SEED", help="only this run")
    add(
        "--actions",
        type=_parse_actions,
        metavar="0,2,…",
        help=f"with --seed: of what people do in it, only these, or {_NO_ACTIONS!r}",
    )
    add(
        "--without",
        type=_parse_faults,
        metavar="FAULT,…",
        help="with --seed: faults that are left out, such as crash or message-dropped",
    )
    add("--trace", action="store_true", help="with --seed: print all that happened")
    return parser


def _run_seed(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    scenario = Scenario(
        seed=asked.seed,
        actions=asked.actions,
        without=asked.without or frozenset(),
        profile=asked.profile,
    )
    try:
        report = run(scenario, keep_trace=asked.trace)
    except IndexError:
        parser.error(f"--actions: run {asked.seed} has fewer acts than that")
    if asked.json:
        print_json(_report_document(report))
    else:
        for entry in report.trace:
            print(entry)
        print_pairs(
            [
                ("seed", str(asked.seed)),
                ("digest", report.digest),
                ("virtual time", f"{report.virtual_seconds:.1f} s"),
                ("tasks", str(report.tasks)),
                ("attempts", str(report.attempts)),
                ("faults", str(report.fault_counts.total())),
            ]
        )
        for violation in report.violations:
            print(violation)
    return _FAILED if report.violations else _OK


def _run_campaign(asked: argparse.Namespace) -> int:
    seeds = range(asked.first, asked.first + asked.seeds)
    with _progress() as tell:

        def progress(tally: Tally) -> None:
            failed = f", {len(tally.failed)} failed" if tally.failed else ""
            tell(f"{tally.runs} of {len(seeds)} runs{failed}")

        tally = run_campaign(
            seeds,
            profile=asked.profile,
            jobs=asked.jobs or os.cpu_count() or 1,
            progress=progress,
            stop_after=_STOP_AFTER,
        )
        shrunk = _shrink_failures(tally, tell)
    if asked.json:
        print_json(_tally_document(tally, shrunk))
    else:
        _print_tally(tally)
        for report in shrunk:
            print()
            _print_failure(report)
        if left := tally.failed[len(shrunk) :]:
            numbers = ", ".join(str(report.scenario.seed) for report in left)
            _print_stderr(f"{len(left)} more failed, with the seeds {numbers}")
    for seed in tally.nondeterministic_seeds:
        _print_stderr(f"seed {seed} gave two different runs: the simulator is at fault")
    for fault in tally.missing_faults:
        _print_stderr(f"in {tally.runs} runs it never happened that {fault.value}")
    return _OK if tally.clean else _FAILED


def _shrink_failures(tally: Tally, tell: _Progress) -> list[RunReport]:
    def smaller(report: RunReport) -> RunReport:
        seed = report.scenario.seed
        return shrink(report, progress=lambda runs: tell(f"making {seed} smaller: {runs} tries"))

    return [smaller(report) for report in tally.failed[:_MAX_SHRUNK]]


@contextmanager
def _progress() -> Iterator[_Progress]:
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda text: None
        return
    with screen.status("starting") as status:
        yield status.update


def _print_tally(tally: Tally) -> None:
    print_pairs(
        [
            ("runs", f"{tally.runs}, {tally.repeated} of them twice"),
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
            (_name(fault), str(tally.fault_counts[fault]), fault.value)
            for fault in faults_of(tally.profile)
        ],
    )


def _print_failure(report: RunReport) -> None:
    for violation in report.violations:
        print(violation)
    subject = report.violations[0].subject
    for entry in report.trace:
        if subject in entry.subject or "child" not in entry.action:
            print(f"  {entry}")
    print(f"repeat it: {repeat_command(report.scenario)} --trace")


def _print_stderr(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _tally_document(tally: Tally, shrunk: list[RunReport]) -> dict[str, Any]:
    return {
        "ok": tally.clean,
        "runs": tally.runs,
        "runTwice": tally.repeated,
        "unequalSeeds": tally.nondeterministic_seeds,
        "tasks": tally.tasks,
        "attempts": tally.attempts,
        "virtualHours": tally.virtual_seconds / 3600,
        "cpuSeconds": tally.cpu_seconds,
        "taskHoursPerCpuSecond": tally.task_hours_per_cpu_second,
        "faults": {_name(fault): times for fault, times in tally.fault_counts.items()},
        "faultsThatNeverHappened": [_name(fault) for fault in tally.missing_faults],
        "failedSeeds": [report.scenario.seed for report in tally.failed],
        "failures": [_report_document(report) for report in shrunk],
    }


def _report_document(report: RunReport) -> dict[str, Any]:
    return {
        "ok": not report.violations,
        "seed": report.scenario.seed,
        "repeat": repeat_command(report.scenario),
        "digest": report.digest,
        "violations": [
            {"invariant": one.invariant, "subject": one.subject, "text": one.text}
            for one in report.violations
        ],
        "trace": [str(entry) for entry in report.trace],
        "faults": {_name(fault): times for fault, times in report.fault_counts.items()},
    }


def _name(fault: Fault) -> str:
    return fault.name.lower().replace("_", "-")


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if (value := int(text)) < least:
            message = f"expected {least} or more, not {value}"
            raise argparse.ArgumentTypeError(message)
        return value

    return number


def _parse_actions(text: str) -> tuple[int, ...]:
    if text == _NO_ACTIONS:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        message = f"expected numbers like 0,2 or {_NO_ACTIONS!r}, not {text!r}"
        raise argparse.ArgumentTypeError(message) from None


def _parse_faults(text: str) -> frozenset[Fault]:
    names = {_name(fault): fault for fault in Fault}
    wanted = text.split(",") if text else []
    for name in wanted:
        if name not in names:
            message = f"no fault is called {name!r}; there are {', '.join(names)}"
            raise argparse.ArgumentTypeError(message)
    return frozenset(names[name] for name in wanted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
