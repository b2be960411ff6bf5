"""What an agent task costs beyond the SDK itself, and how much memory many of them take.

The model answers at once, so this measures the cost that every task has, above all the start of the
command line. The floor sends the same prompt to the same model, in turns with Longshore. It is the
minimum if each task has its own process: a process with the SDK loaded, a fork of it, and the SDK's
query.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks import agent_memory
from benchmarks.agent_harness import AgentHarness, fake_model, start_harness
from benchmarks.figures import Figure, under
from benchmarks.harness import scratch
from benchmarks.processes import tree_cpu_s
from benchmarks.scale import Scale
from benchmarks.worker_process import ROOT, clean_environment

MAX_PERCENT = 10.0  # beyond the floor

_BARE = (sys.executable, "-m", "benchmarks.bare_agents")
# To the claim; to the query, with child, folders and gateway; to its end; to the outcome seen.
_PARTS = ("queue_ms", "child_ms", "query_ms", "outcome_ms")
_DONE = {"kind": "text", "text": "done"}
# After the outcome the child's processes are reaped, and the next child is prepared.
_IDLE_S = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """By one task, in milliseconds."""

    wall: float
    cpu: float
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """All tasks; ours and those of the floor are pairs."""

    first: Cost  # of ours: it waits until the SDK is loaded
    ours: list[Cost] = field(default_factory=list)
    forked: list[Cost] = field(default_factory=list)
    fresh: list[Cost] = field(default_factory=list)


def measure(scale: Scale) -> Iterator[Figure]:
    """Time first, then memory."""
    missing = _missing()
    if missing:
        yield Figure(name="agents.wall", unit="ms", value=None, note=missing)
        return
    with scratch() as folder:
        turns = asyncio.run(_turns(folder, scale))
    yield _beyond("agents.wall", turns, lambda spent: spent.wall, _parts(turns))
    yield _beyond("agents.cpu", turns, lambda spent: spent.cpu, {})
    yield _against_fresh(turns)
    yield from agent_memory.measure(scale)


def _missing() -> str:
    if find_spec("claude_agent_sdk") is None:
        return "needs the extra 'agent'"
    return "" if Path("/proc/self/smaps_rollup").exists() else "needs Linux's /proc"


async def _turns(folder: Path, scale: Scale) -> Turns:
    with fake_model(folder, _DONE) as url, _template(url) as forked:
        async with start_harness(folder / "data", url) as stage:
            turns = Turns(first=await _ours(stage, "first"))
            await asyncio.to_thread(forked)  # its first is not counted either
            for number in range(scale.rounds):
                turns.fresh.append(await asyncio.to_thread(_fresh, url))
                for again in range(scale.agents):
                    turns.forked.append(await asyncio.to_thread(forked))
                    turns.ours.append(await _ours(stage, f"agent-{number}-{again}"))
    return turns


async def _ours(harness: AgentHarness, name: str) -> Cost:
    used_s, began, began_at = tree_cpu_s(harness.worker_pid), time.perf_counter(), time.time()
    (task_id,) = await harness.submit(name)
    row = await harness.wait_completed(task_id)
    wall_s, ended_at = time.perf_counter() - began, time.time()
    await asyncio.sleep(_IDLE_S)
    used_s = tree_cpu_s(harness.worker_pid) - used_s
    assert row.started_at is not None
    query = await harness.query_times(task_id)
    moments = (began_at, row.started_at.timestamp(), *query, ended_at)
    lasted_ms = (1000 * (then - when) for when, then in pairwise(moments))
    return Cost(
        wall=1000 * wall_s, cpu=1000 * used_s, parts=dict(zip(_PARTS, lasted_ms, strict=True))
    )


@contextlib.contextmanager
def _template(url: str) -> Iterator[Callable[[], Cost]]:
    """A process that has the SDK loaded; gives what asks in a fork of it."""
    process = subprocess.Popen(
        (*_BARE, url),
        cwd=ROOT,
        env=clean_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    request, answer = process.stdin, process.stdout

    def ask() -> Cost:
        request.write("\n")
        request.flush()
        spent = json.loads(answer.readline())
        return Cost(wall=1000 * spent["seconds"], cpu=1000 * spent["cpu_s"])

    try:
        assert answer.readline(), "the floor ended"
        yield ask
    finally:
        request.close()
        process.wait()
        answer.close()


def _fresh(url: str) -> Cost:
    """One question by a process that was started for it."""
    began = time.perf_counter()
    process = subprocess.Popen((*_BARE, url, "--once"), cwd=ROOT, env=clean_environment())
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, "the floor was not answered"
    wall = 1000 * (time.perf_counter() - began)
    return Cost(wall=wall, cpu=1000 * (used.ru_utime + used.ru_stime))


def _parts(turns: Turns) -> dict[str, float]:
    return {name: median(spent.parts[name] for spent in turns.ours) for name in _PARTS}


def _beyond(
    name: str, turns: Turns, of: Callable[[Cost], float], details: dict[str, float]
) -> Figure:
    ours, floor = [of(spent) for spent in turns.ours], [of(spent) for spent in turns.forked]
    percents = [100 * item / other for item, other in zip(ours, floor, strict=True)]
    beyond = median(percents) - 100
    return Figure(
        name=name,
        unit="ms",
        value=median(ours),
        spread=(min(ours), max(ours)),
        floor=median(floor),
        percent=median(percents),
        percent_spread=(min(percents), max(percents)),
        target=under(MAX_PERCENT, beyond, f"% beyond a fork that asks: {beyond:.1f} %"),
        details={"tasks": len(ours), "floor_least": min(floor), **details},
    )


def _against_fresh(turns: Turns) -> Figure:
    """The same as the first figure, against those who start a process for each task."""
    ours = [spent.wall for spent in turns.ours]
    floor = median(spent.wall for spent in turns.fresh)
    return Figure(
        name="agents.wall_fresh",
        unit="ms",
        value=median(ours),
        floor=floor,
        percent=100 * median(ours) / floor,
        details={
            "first_ms": turns.first.wall,
            "floor_cpu_ms": median(spent.cpu for spent in turns.fresh),
        },
        note="the floor loads the SDK for each task; our first task of a worker waits for that",
    )
