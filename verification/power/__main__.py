"""``python -m verification.power``: cut the power, many times, and print what was found."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from verification.power.campaign import Tally, record_workload, run_campaign, run_cuts


def main(arguments: list[str]) -> int:
    """Run; 1 if something that was promised was not kept."""
    parser = argparse.ArgumentParser(prog="python -m verification.power", description=__doc__)
    parser.add_argument("--cuts", type=int, default=600, help="how often to cut the power")
    parser.add_argument("--seed", type=int, default=0, help="of the first recording")
    parser.add_argument("--cut", type=int, help="only at this operation of that recording")
    parser.add_argument(
        "--loss-seed", type=int, default=0, help="what becomes of what was not synced"
    )
    asked = parser.parse_args(arguments)
    began = time.monotonic()
    logging.disable()  # what the services say of their repairs
    try:
        tally = _run(asked)
    finally:
        logging.disable(logging.NOTSET)
    _print(tally, time.monotonic() - began)
    return 1 if tally.failures else 0


def _run(asked: argparse.Namespace) -> Tally:
    tally = Tally()
    if asked.cut is not None:
        run_cuts(record_workload(asked.seed), [(asked.cut, asked.loss_seed)], tally)
        return tally
    for tally in run_campaign(asked.cuts, seed=asked.seed):
        if tally.failures:
            break
    return tally


def _print(tally: Tally, seconds: float) -> None:
    lines = [f"{name:>24}: {number:,}" for name, number in tally.counts.items()]
    lines += [f"{'seconds':>24}: {seconds:.1f}", f"{'failures':>24}: {len(tally.failures)}"]
    for failure in tally.failures:
        lines += [failure.command, *(f"  {breach}" for breach in failure.violations[:5])]
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
