"""Checks that what is stored cannot answer: what children really did, on all machines together."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from longshore.core.rows import TaskRow
from longshore.core.states import TaskState
from longshore.services.documents import Documents
from longshore.testing.simulation.answers import Answers
from longshore.testing.simulation.lives import Life
from longshore.testing.simulation.world import TENANT, World

_ALL = 100_000


async def judge(world: World, answers: Answers) -> None:
    """Add what is wrong to the world's breaches."""
    rows = await _rows(world)
    await answers.judge(world, rows)
    await world.spending.judge(world, rows)
    by_task: dict[str, list[Life]] = {}
    for life in world.lives.all:
        by_task.setdefault(life.task_id, []).append(life)
    for task_id, lives in by_task.items():
        _one_at_a_time(world, task_id, lives)
        _attempts_are_one(world, task_id, lives)
    for life, step in world.lives.done_again:
        if not life.machine_stood_still:
            text = f"{step} was kept, and attempt {life.attempt} has done it again"
            world.breach(5, life.task_id, text)
    for row in rows.values():
        await _completed_by_whom(world, row, by_task.get(row.id, []))


async def task_seconds(world: World) -> float:
    """For how long tasks were under way, all together."""
    rows = (await _rows(world)).values()
    ends = [(row.finished_at or row.updated_at) - row.spec.created_at for row in rows]
    return sum(end.total_seconds() for end in ends)


async def _rows(world: World) -> Mapping[str, TaskRow]:
    page = await world.backend.ledger.list_tasks(TENANT, limit=_ALL)
    return {row.id: row for row in page.items}


def _one_at_a_time(world: World, task_id: str, lives: list[Life]) -> None:
    for earlier, later in pairwise(lives):
        end = world.time() if earlier.ended is None else earlier.ended
        # Across a machine that stood still only the fence holds.
        if end > later.began and not (earlier.machine_stood_still or later.machine_stood_still):
            text = (
                f"attempt {earlier.attempt} ran until {end:.3f},"
                f" and attempt {later.attempt} began at {later.began:.3f}"
            )
            world.breach(10, task_id, text)


def _attempts_are_one(world: World, task_id: str, lives: list[Life]) -> None:
    lives = sorted(lives, key=lambda life: life.attempt)
    for name, numbers in (
        ("attempt", [life.attempt for life in lives]),
        ("fence", [life.fence for life in lives]),
    ):
        if any(second <= first for first, second in pairwise(numbers)):
            world.breach(2, task_id, f"children were given the {name}s {numbers}")


async def _completed_by_whom(world: World, row: TaskRow, lives: list[Life]) -> None:
    if row.state not in (TaskState.COMPLETED, TaskState.IN_REVIEW):
        return
    result = await Documents(world.backend.blobs).load(row.result)
    attempt = result["attempt"] if result else None
    if not any(life.attempt == attempt and life.succeeded for life in lives):
        world.breach(3, row.id, f"has the result of attempt {attempt}, which had none")
