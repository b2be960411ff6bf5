"""``python -m verification.simulation``: simulate many runs under faults, or repeat one run.

Each seed is one run of the real services on a simulated clock. The same seed gives the same run,
bit for bit. A run that fails is shrunk to a smaller run that fails too, and printed with the
command that repeats it. Nothing is written to this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verification.simulation.campaign import COMMAND, Tally, repeat_command, run_campaign, shrink
from verification.simulation.faults import Fault, FaultProfile, faults_of
from verification.simulation.run import RunReport, Scenario, run

_EPILOG = f"""\
examples:
  {COMMAND}                                 a thousand runs, on all cores
  {COMMAND} --seeds 200000 --from 1000      many more
  {COMMAND} --profile aws --seeds 2000      faults of AWS
  {COMMAND} --seed 4711 --trace             one run with its trace
"""
_NO_ACTIONS = "none"
_MAX_SHRUNK = 3
_STOP_AFTER = 20
_REPORT_INTERVAL_S = 10.0
_OK, _FAILED = 0, 1


def main(arguments: Sequence[str]) -> int:
    """Carry out the command. Returns 1 if a run failed."""
    parser = _make_parser()
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _run_seed(parser, options)
    for name, unused in (("actions", None), ("without", None), ("trace", False)):
        if getattr(options, name) != unused:
            parser.error(f"--{name} needs --seed")
    return _run_campaign(options)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--seeds", type=_at_least(1), default=1_000, metavar="N", help="number of runs [1000]")
    add(
        "--from",
        dest="first",
        type=_at_least(0),
        default=0,
        metavar="SEED",
        help="seed of the first run [0]",
    )
    add(
        "--profile",
        choices=list(FaultProfile),
        type=FaultProfile,
        default=FaultProfile.DEFAULT,
        help="the simulated backend: aws has streams, functions and indexes",
    )
    add("--jobs", type=_at_least(1), metavar="N", help="number of processes [one per core]")
    add("--json", action="store_true", help="print the result as JSON")
    add("--seed", type=_at_least(0), metavar="SEED", help="run only this seed")
    add(
        "--actions",
        type=_parse_actions,
        metavar="0,2,…",
        help=f"with --seed: run only these client actions, or {_NO_ACTIONS!r}",
    )
    add(
        "--without",
        type=_parse_faults,
        metavar="FAULT,…",
        help="with --seed: leave out these faults, such as crash or message-dropped",
    )
    add("--trace", action="store_true", help="with --seed: print the trace")
    return parser


def _run_seed(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    scenario = Scenario(
        seed=options.seed,
        actions=options.actions,
        without=options.without or frozenset(),
        profile=options.profile,
    )
    try:
        report = run(scenario, keep_trace=options.trace)
    except IndexError:
        parser.error(f"--actions: run {options.seed} has fewer actions")
    if options.json:
        _print_json(_report_document(report))
    else:
        for entry in report.trace:
            print(entry)
        _print_pairs(
            {
                "seed": options.seed,
                "digest": report.digest,
                "virtual time": f"{report.virtual_seconds:.1f} s",
                "tasks": report.tasks,
                "attempts": report.attempts,
                "faults": report.fault_counts.total(),
            }
        )
        for violation in report.violations:
            print(violation)
    return _FAILED if report.violations else _OK


def _run_campaign(options: argparse.Namespace) -> int:
    seeds = range(options.first, options.first + options.seeds)
    progress = _Progress()
    tally = run_campaign(
        seeds,
        profile=options.profile,
        jobs=options.jobs or os.cpu_count() or 1,
        progress=lambda tally: progress.show(
            f"{tally.runs} of {len(seeds)} runs, {len(tally.failed)} failed"
        ),
        stop_after=_STOP_AFTER,
    )
    shrunk = [
        shrink(report, progress=lambda runs: progress.show(f"shrinking: {runs} runs"))
        for report in tally.failed[:_MAX_SHRUNK]
    ]
    if options.json:
        _print_json(_tally_document(tally, shrunk))
    else:
        _print_tally(tally)
        for report in shrunk:
            print()
            _print_failure(report)
        if left := tally.failed[len(shrunk) :]:
            numbers = ", ".join(str(report.scenario.seed) for report in left)
            _print_stderr(f"{len(left)} more runs failed: seeds {numbers}")
    for seed in tally.nondeterministic_seeds:
        _print_stderr(f"seed {seed} gave two different runs: a bug of the simulator")
    for fault in tally.missing_faults:
        _print_stderr(f"the fault {_name(fault)} never occurred in {tally.runs} runs")
    _print_stderr(
        f"{'OK' if tally.clean else 'FAILED'}: {tally.runs} runs from seed {options.first}"
        f" ({options.profile} profile), {len(tally.failed)} failed"
    )
    return _OK if tally.clean else _FAILED


class _Progress:
    """Prints a line of progress every few seconds."""

    def __init__(self) -> None:
        self._shown_at = time.monotonic()

    def show(self, text: str) -> None:
        if time.monotonic() - self._shown_at >= _REPORT_INTERVAL_S:
            self._shown_at = time.monotonic()
            _print_stderr(text)


def _print_tally(tally: Tally) -> None:
    for fault in faults_of(tally.profile):
        print(f"{_name(fault):22} {tally.fault_counts[fault]:9,}  {fault.value}")
    print()
    _print_pairs(
        {
            "runs": f"{tally.runs}, {tally.repeated} of them twice",
            "failed": len(tally.failed),
            "tasks": f"{tally.tasks} in {tally.attempts} attempts",
            "virtual time": f"{tally.virtual_seconds / 3600:.1f} hours",
            "CPU time": f"{tally.cpu_seconds:.1f} s",
            "rate": f"{tally.task_hours_per_cpu_second:.2f} task-hours per CPU second",
        }
    )


def _print_pairs(values: Mapping[str, object]) -> None:
    for name, value in values.items():
        print(f"{name:14} {value}")


def _print_json(document: Mapping[str, Any]) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False))


def _print_failure(report: RunReport) -> None:
    for violation in report.violations:
        print(violation)
    subject = report.violations[0].subject
    for entry in report.trace:
        if subject in entry.subject or "child" not in entry.action:
            print(f"  {entry}")
    print(f"repeat: {repeat_command(report.scenario)} --trace")


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
            {
                "invariant": violation.invariant,
                "subject": violation.subject,
                "text": violation.text,
            }
            for violation in report.violations
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
    chosen = text.split(",") if text else []
    for name in chosen:
        if name not in names:
            message = f"unknown fault {name!r}; the faults are {', '.join(names)}"
            raise argparse.ArgumentTypeError(message)
    return frozenset(names[name] for name in chosen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
