"""Agents that do not fit into memory together come one after the other, and none is lost."""

import os
from pathlib import Path

from longshore.core.tasks.states import TaskState
from longshore.execution.forkserver.linux import descendants
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
        sizes = {one: size for one, size in below.items() if process_name(one) in PARTS}
        at_once.append([process_name(one) for one in sizes].count("claude"))
        seen.append(sizes)
        return text("done", gate="first" if len(seen) == 1 else "others")

    flags = {"worker.concurrency": len(KEYS), "agent.memory_ceiling": CEILING}
    async with open_harness(tmp_path, [look], flags=flags) as stage:
        stage.api.release("others")
        await stage.define(options={"prompt": "Do it."})
        await stage.submit(*({"taskId": key, "name": "agent-task"} for key in KEYS))
        # All are claimed while one of them works: who waits for room keeps its place.
        await stage.api.wait_for_requests(1)
        await wait_until(lambda: all_held(stage))
        assert len(seen) == 1
        stage.api.release("first")

        await stage.wait_finished(*KEYS)

        for key in KEYS:
            row = await stage.row(key)
            assert (row.state, row.attempt) == (TaskState.COMPLETED, 1), row.failure
        assert at_once == [1] * len(KEYS)
        assert max(sum(sizes.values()) for sizes in seen) < CEILING, seen


async def all_held(stage: AgentHarness) -> bool:
    rows = [await stage.row(key) for key in KEYS]
    return all(row.lease is not None for row in rows)
