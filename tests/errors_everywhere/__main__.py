"""Every error at each single call, or by each way to it: ``python -m tests.errors_everywhere``."""

import argparse
import multiprocessing
import os
import sys

from tests.errors_everywhere.matrix import Depth, Trial, run_trial, summarise, trials

_CHUNK = 8


def _run_trial(trial: Trial) -> tuple[Trial, list[str]]:
    return trial, run_trial(trial)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.errors_everywhere", description=__doc__)
    names = [depth.name.lower() for depth in Depth]
    parser.add_argument("--depth", choices=names, default=Depth.CALLS.name.lower())
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--part", default="1/1", help="such as 2/10: the second tenth")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    depth = Depth[options.depth.upper()]
    chosen = trials(depth)[part - 1 :: parts]
    sys.stdout.write(f"{depth.value}: {len(chosen):,} runs\n")
    sys.stdout.flush()
    with multiprocessing.Pool(options.processes) as pool:
        summary = summarise(pool.imap_unordered(_run_trial, chosen, chunksize=_CHUNK))
    sys.stdout.write("\n".join([*summary.failures, str(summary), ""]))
    return 1 if summary.failures else 0


if __name__ == "__main__":
    sys.exit(main())
