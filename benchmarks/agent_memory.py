"""Memory of agents that wait in a queue: however many there are, they take no more than they may.

A worker that could run many at once is given a ceiling with room for a few. While it works them
off, the memory of all processes of its attempts is added up, again and again: the child, the
command line of the SDK, and all processes that it has started. Shared memory counts once: a
command line that has just forked to run a tool would otherwise count twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.agent_harness import AgentHarness, fake_model, start_harness
from benchmarks.figures import Figure, under
from benchmarks.harness import scratch
from benchmarks.processes import children_of_all, name_of, pss_kib, rss_kib
from benchmarks.scale import Scale
from longshore.settings.model import AgentSettings

_SLOTS, _FITTING_AGENTS = 8, 3
_POLL_S = 0.05
_LIMIT_S = 300.0
_AT_WORK = "longshore-task"
_MIB = 2**20
_TURNS = 5
_STEPS: list[dict[str, Any]] = [
    *[
        {"kind": "tool_use", "name": "Bash", "input": {"command": f"echo {n}"}}
        for n in range(_TURNS)
    ],
    {"kind": "text", "text": "done"},
]


class Peaks:
    """The most that was seen, in MiB."""

    def __init__(self) -> None:
        self.together = self.together_rss = self.single = 0.0
        self.at_once = self.samples = 0

    def sample(self, worker: int) -> None:
        """Take a sample."""
        children = children_of_all()
        attempts = _attempts(worker, children)
        agents = [_sizes(_below(item, children)) for item in attempts]
        # While processes are listed, one may end and the next start: only those that still have
        # memory afterwards ran at once.
        running = [item for item in attempts if _sizes([item])[0]]
        self.samples += 1
        self.at_once = max(self.at_once, len(running))
        self.together = max(self.together, sum(pss for pss, _ in agents))
        self.together_rss = max(self.together_rss, sum(rss for _, rss in agents))
        self.single = max([self.single, *(pss for pss, _ in agents)])


def measure(scale: Scale) -> Iterator[Figure]:
    """The most of all together, and the most of one, with the setting that must fit it."""
    expected = AgentSettings().memory_per_agent / _MIB
    with scratch() as folder:
        peaks = asyncio.run(_run_tasks(folder, scale.agents_waiting))
    yield Figure(
        name="agents.memory",
        unit="MiB",
        value=peaks.together,
        target=under(_FITTING_AGENTS * expected, peaks.together, "MiB, the ceiling"),
        details={
            "shared_each_time": peaks.together_rss,
            "tasks": scale.agents_waiting,
            "slots": _SLOTS,
            "fitting_agents": _FITTING_AGENTS,
            "most_at_once": peaks.at_once,
            "samples": peaks.samples,
        },
    )
    yield Figure(
        name="agents.memory_per_agent",
        unit="MiB",
        value=peaks.single,
        target=under(expected, peaks.single, "MiB, agent.memory_per_agent"),
        details={"turns": _TURNS + 1},
    )


async def _run_tasks(folder: Path, tasks: int) -> Peaks:
    ceiling = str(_FITTING_AGENTS * AgentSettings().memory_per_agent)
    with fake_model(folder, *_STEPS) as url:
        async with (
            asyncio.timeout(_LIMIT_S),
            start_harness(
                folder / "data",
                url,
                allowed=("Bash",),
                LONGSHORE_WORKER_CONCURRENCY=str(_SLOTS),
                LONGSHORE_AGENT_MEMORY_CEILING=ceiling,
            ) as stage,
        ):
            return await _watched(stage, await stage.submit("memory", tasks))


async def _watched(harness: AgentHarness, task_ids: Sequence[str]) -> Peaks:
    peaks, ended = Peaks(), asyncio.gather(*map(harness.wait_completed, task_ids))
    while not ended.done():
        await asyncio.to_thread(peaks.sample, harness.worker_pid)
        await asyncio.sleep(_POLL_S)
    await ended
    return peaks


def _attempts(worker: int, children: dict[int, list[int]]) -> list[int]:
    return [item for item in _below(worker, children) if name_of(item) == _AT_WORK]


def _below(top: int, children: dict[int, list[int]]) -> list[int]:
    result = [top]
    for item in result:
        result += children[item]
    return result


def _sizes(family: Sequence[int]) -> tuple[float, float]:
    """What a family takes: with its part of what is shared, and with all of that."""
    pss = rss = 0.0
    for item in family:
        with contextlib.suppress(OSError):  # it has gone since
            pss, rss = pss + pss_kib(item) / 1024, rss + rss_kib(item) / 1024
    return pss, rss
