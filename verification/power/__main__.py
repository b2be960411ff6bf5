"""``python -m verification.power``: cut the power many times and print the violations."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from verification.power.campaign import Tally, record_workload, run_campaign, run_cuts

_REPORT_INTERVAL_S = 10.0


def main(arguments: list[str]) -> int:
    """Run the power cuts. Returns 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m verification.power", description=__doc__)
    parser.add_argument("--cuts", type=int, default=600, help="number of power cuts")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first recording")
    parser.add_argument("--cut", type=int, help="cut only at this operation of that recording")
    parser.add_argument(
        "--loss-seed", type=int, default=0, help="seed of what is lost of unsynced data"
    )
    options = parser.parse_args(arguments)
    started_at = time.monotonic()
    logging.disable()  # the services log each repair
    try:
        tally = _run(options)
    finally:
        logging.disable(logging.NOTSET)
    _print(tally, time.monotonic() - started_at)
    return 1 if tally.failures else 0


def _run(options: argparse.Namespace) -> Tally:
    tally = Tally()
    if options.cut is not None:
        run_cuts(record_workload(options.seed), [(options.cut, options.loss_seed)], tally)
        return tally
    reported_at = time.monotonic()
    for tally in run_campaign(options.cuts, seed=options.seed):
        if tally.failures:
            break
        if time.monotonic() - reported_at >= _REPORT_INTERVAL_S:
            reported_at = time.monotonic()
            sys.stderr.write(f"{tally.counts['power cuts']:,} of {options.cuts:,} power cuts\n")
    return tally


def _print(tally: Tally, seconds: float) -> None:
    lines = [f"{name:>24}: {number:,}" for name, number in tally.counts.items()]
    for failure in tally.failures:
        lines += [failure.command, *(f"  {violation}" for violation in failure.violations[:5])]
    lines.append(
        f"{tally.counts['power cuts']:,} power cuts in {seconds:.1f} s:"
        f" {len(tally.failures)} with violations"
    )
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
