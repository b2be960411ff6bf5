"""Checks that what is stored cannot answer: what children really did, on all machines together."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.services.spill import DocumentStore
from verification.simulation.answers import Answers
from verification.simulation.attempt_records import AttemptRecord
from verification.simulation.simulation import TENANT, Simulation

_ALL_ROWS = 100_000


async def check_run(simulation: Simulation, answers: Answers) -> None:
    """Add what is wrong to the world's breaches."""
    rows = await _rows(simulation)
    await answers.check(simulation, rows)
    await simulation.spending.check(simulation, rows)
    by_task: dict[str, list[AttemptRecord]] = {}
    for life in simulation.attempt_records.all:
        by_task.setdefault(life.task_id, []).append(life)
    for task_id, lives in by_task.items():
        _check_no_overlap(simulation, task_id, lives)
        _check_attempt_numbers(simulation, task_id, lives)
    for life, step in simulation.attempt_records.repeated_steps:
        if not life.machine_paused:
            text = f"{step} was kept, and attempt {life.attempt} has done it again"
            simulation.report_violation(5, life.task_id, text)
    for row in rows.values():
        await _check_result_owner(simulation, row, by_task.get(row.id, []))


async def task_seconds(simulation: Simulation) -> float:
    """For how long tasks were under way, all together."""
    rows = (await _rows(simulation)).values()
    ends = [(row.finished_at or row.updated_at) - row.spec.created_at for row in rows]
    return sum(end.total_seconds() for end in ends)


async def _rows(simulation: Simulation) -> Mapping[str, TaskRow]:
    page = await simulation.backend.ledger.list_tasks(TENANT, limit=_ALL_ROWS)
    return {row.id: row for row in page.items}


def _check_no_overlap(simulation: Simulation, task_id: str, records: list[AttemptRecord]) -> None:
    for earlier, later in pairwise(records):
        end = simulation.time() if earlier.ended_at is None else earlier.ended_at
        # Across a machine that stood still only the fence holds.
        if end > later.started_at and not (earlier.machine_paused or later.machine_paused):
            text = (
                f"attempt {earlier.attempt} ran until {end:.3f},"
                f" and attempt {later.attempt} began at {later.started_at:.3f}"
            )
            simulation.report_violation(10, task_id, text)


def _check_attempt_numbers(
    simulation: Simulation, task_id: str, records: list[AttemptRecord]
) -> None:
    records = sorted(records, key=lambda life: life.attempt)
    for name, numbers in (
        ("attempt", [life.attempt for life in records]),
        ("fence", [life.fence for life in records]),
    ):
        if any(second <= first for first, second in pairwise(numbers)):
            simulation.report_violation(2, task_id, f"children were given the {name}s {numbers}")


async def _check_result_owner(
    simulation: Simulation, row: TaskRow, records: list[AttemptRecord]
) -> None:
    if row.state not in (TaskState.COMPLETED, TaskState.IN_REVIEW):
        return
    result = await DocumentStore(simulation.backend.blobs).load(row.result)
    attempt = result["attempt"] if result else None
    if not any(life.attempt == attempt and life.succeeded for life in records):
        simulation.report_violation(
            3, row.id, f"has the result of attempt {attempt}, which had none"
        )
