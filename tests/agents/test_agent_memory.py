"""Agents that do not fit into memory together come one after the other, and none is lost."""

import os
from pathlib import Path

from longshore.core.tasks.states import TaskState
from longshore.execution.process_table import descendants
from tests.acceptance.conftest import wait_until
from tests.agents.harness import AgentHarness, open_harness, process_name, scenario
from verification.messages_api import Request, text
from verification.messages_api.script import ReadyStep

MIB = 2**20
CEILING = 400 * MIB
KEYS = ("a", "b", "c")
PARTS = ("claude", "longshore-task")


@scenario
async def test_queued_agents_stay_below_the_ceiling_and_keep_their_leases(tmp_path: Path) -> None:
    seen: list[dict[int, int]] = []
    at_once: list[int] = []

    def look(_request: Request) -> ReadyStep:
        below = descendants(os.getpid())
        sizes = {item: size for item, size in below.items() if process_name(item) in PARTS}
        at_once.append([process_name(item) for item in sizes].count("claude"))
        seen.append(sizes)
        return text("done", gate="first" if len(seen) == 1 else "others")

    flags = {"worker.concurrency": len(KEYS), "agent.memory_ceiling": CEILING}
    async with open_harness(tmp_path, [look], flags=flags) as harness:
        harness.api.release("others")
        await harness.define(options={"prompt": "Do it."})
        await harness.submit(*({"taskId": key, "name": "agent-task"} for key in KEYS))
        # All are claimed while one of them works: who waits for room keeps its place.
        await harness.api.wait_for_requests(1)
        await wait_until(lambda: all_held(harness))
        assert len(seen) == 1
        harness.api.release("first")

        await harness.wait_finished(*KEYS)

        for key in KEYS:
            row = await harness.row(key)
            assert (row.state, row.attempt) == (TaskState.COMPLETED, 1), row.failure
        assert at_once == [1] * len(KEYS)
        assert max(sum(sizes.values()) for sizes in seen) < CEILING, seen


async def all_held(harness: AgentHarness) -> bool:
    rows = [await harness.row(key) for key in KEYS]
    return all(row.lease is not None for row in rows)
