"""Every error at each single call, or by each way to it: ``python -m tests.errors_everywhere``."""

import argparse
import multiprocessing
import os
import sys

from tests.errors_everywhere.matrix import Case, Depth, cases, summed_up, tried

_CHUNK = 8


def _tried(case: Case) -> tuple[Case, list[str]]:
    return case, tried(case)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.errors_everywhere", description=__doc__)
    names = [depth.name.lower() for depth in Depth]
    parser.add_argument("--depth", choices=names, default=Depth.CALLS.name.lower())
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--part", default="1/1", help="such as 2/10: the second tenth")
    wanted = parser.parse_args()
    part, parts = map(int, wanted.part.split("/"))
    depth = Depth[wanted.depth.upper()]
    chosen = cases(depth)[part - 1 :: parts]
    sys.stdout.write(f"{depth.value}: {len(chosen):,} runs\n")
    sys.stdout.flush()
    with multiprocessing.Pool(wanted.processes) as pool:
        summary = summed_up(pool.imap_unordered(_tried, chosen, chunksize=_CHUNK))
    sys.stdout.write("\n".join([*summary.failures, str(summary), ""]))
    return 1 if summary.failures else 0


if __name__ == "__main__":
    sys.exit(main())
