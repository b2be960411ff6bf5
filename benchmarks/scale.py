"""How much is measured: enough for steady medians, or just enough to see that everything runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The numbers that make a run long or short."""

    rounds: int  # of floor and ours in turns
    single: int  # operations of one caller, each with its own fsync
    shared: int  # operations of many callers together
    bulk: int  # tasks of the one large job
    noops: int  # tasks that end at once, without a child
    children: int  # tasks with a child process
    forks: int  # children that cost a fork or less
    submits: int  # to an idle worker, one after the other
    idle_s: float  # how long an idle worker is watched
    starts: int  # of the command line
    wide: tuple[int, ...]  # sizes of jobs that are compared, the smallest first
    stores: tuple[int, int]  # jobs in the two stores that are compared
    asks: int  # of each kind, at each store
    agents: int  # tasks of agents in a round
    agents_waiting: int  # tasks of agents that are there at once, for fewer places


FULL = Scale(
    rounds=5,
    single=300,
    shared=7_680,
    bulk=10_000,
    noops=1_000,
    children=30,
    forks=300,
    submits=200,
    idle_s=10.0,
    starts=5,
    wide=(100, 1_000, 10_000),
    stores=(1_000, 1_000_000),
    asks=200,
    agents=6,
    agents_waiting=20,
)
QUICK = Scale(
    rounds=2,
    single=20,
    shared=512,
    bulk=500,
    noops=40,
    children=4,
    forks=8,
    submits=5,
    idle_s=1.0,
    starts=1,
    wide=(20, 40),
    stores=(1_000, 2_000),
    asks=5,
    agents=1,
    agents_waiting=4,
)
