"""Rounds: floor, ours, floor, ours …, so that what slows the machine down meets both."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.figures import Comparison, per_commit
from benchmarks.harness import Scenario, run
from benchmarks.probes import TimingProbe
from benchmarks.replay import Recording


def compare(
    operations: int,
    rounds: int,
    *,
    ours: Callable[[], TimingProbe],
    floor: Callable[[], TimingProbe],
) -> Comparison:
    """Take turns, the floor first."""
    pairs = [(floor(), ours()) for _ in range(rounds)]
    return Comparison(
        operations=operations,
        floors=[floor for floor, _ in pairs],
        ours=[ours for _, ours in pairs],
    )


def compare_writes(
    scenario: Scenario, operations: int, rounds: int, *, regroup: bool = True
) -> Comparison:
    """A scenario against the bare writing of what it writes.

    With ``regroup`` the floor puts as much into a commit as ours did on average in the rounds so
    far, and syncs each; without, its commits are those of the recording.
    """
    recording = run(scenario, Recording())
    # The recording's own groups are no measure: tracing slows the writer down, so they are larger.
    done = [run(scenario, TimingProbe())]

    def ours() -> TimingProbe:
        done.append(run(scenario, TimingProbe()))
        return done[-1]

    def floor() -> TimingProbe:
        if not regroup:
            return recording.replay(recording.counted)
        return recording.replay(recording.regroup(operations / per_commit(operations, done)))

    return compare(operations, rounds, ours=ours, floor=floor)
