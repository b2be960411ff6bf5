"""Checks of a finished run: what children really did, and whether each answer was true."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from longshore.core.events.types import TaskReleased
from longshore.core.ids import job_id_of, task_id_of
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.services.reads import iter_history
from longshore.services.spill import DocumentStore
from verification.simulation.history import AttemptRecord
from verification.simulation.simulation import TENANT, Simulation

_ALL_ROWS = 100_000
_WORKER_IS_GONE = "its process is gone"
_REVIEWABLE = (TaskState.COMPLETED, TaskState.IN_REVIEW)


async def check_run(simulation: Simulation, answers: Answers) -> None:
    """Report the violations of a finished run."""
    rows = await _rows(simulation)
    last_rows = {**simulation.removed_tasks, **rows}
    await answers.check(simulation, last_rows)
    await simulation.spending.check(simulation, last_rows)
    by_task: dict[str, list[AttemptRecord]] = {}
    for record in simulation.attempt_records.all:
        by_task.setdefault(record.task_id, []).append(record)
    for task_id, records in by_task.items():
        _check_no_overlap(simulation, task_id, records)
        _check_attempt_numbers(simulation, task_id, records)
    for record, step in simulation.attempt_records.repeated_steps:
        if not record.machine_paused:
            text = f"{step} was saved, but attempt {record.attempt} ran it again"
            simulation.report_violation(5, record.task_id, text)
    for row in rows.values():
        await _check_result_owner(simulation, row, by_task.get(row.id, []))
        await _check_counted(simulation, row, by_task.get(row.id, []))


async def task_seconds(simulation: Simulation) -> float:
    """The total duration of all tasks."""
    rows = (await _rows(simulation)).values()
    ends = [(row.finished_at or row.updated_at) - row.spec.created_at for row in rows]
    return sum(end.total_seconds() for end in ends)


async def _rows(simulation: Simulation) -> Mapping[str, TaskRow]:
    page = await simulation.backend.ledger.list_tasks(TENANT, limit=_ALL_ROWS)
    return {row.id: row for row in page.items}


def _check_no_overlap(simulation: Simulation, task_id: str, records: list[AttemptRecord]) -> None:
    for earlier, later in pairwise(records):
        end = simulation.time() if earlier.ended_at is None else earlier.ended_at
        # Across a paused machine, only the fence protects.
        if end > later.started_at and not (earlier.machine_paused or later.machine_paused):
            text = (
                f"attempt {earlier.attempt} ran until {end:.3f},"
                f" but attempt {later.attempt} began at {later.started_at:.3f}"
            )
            simulation.report_violation(10, task_id, text)


def _check_attempt_numbers(
    simulation: Simulation, task_id: str, records: list[AttemptRecord]
) -> None:
    records = sorted(records, key=lambda record: record.attempt)
    for name, numbers in (
        ("attempt", [record.attempt for record in records]),
        ("fence", [record.fence for record in records]),
    ):
        if any(second <= first for first, second in pairwise(numbers)):
            simulation.report_violation(2, task_id, f"children got the {name}s {numbers}")


async def _check_counted(
    simulation: Simulation, row: TaskRow, records: list[AttemptRecord]
) -> None:
    """What had begun when its worker died uses an attempt."""
    begun = {record.attempt for record in records}
    async for event in iter_history(simulation.backend.events, TENANT, f"TASK#{row.id}"):
        body = event.body
        if not isinstance(body, TaskReleased) or not body.reason.endswith(_WORKER_IS_GONE):
            continue
        if body.attempt_number in begun:
            text = f"attempt {body.attempt_number} had begun, but was released as if it had not"
            simulation.report_violation(11, row.id, text)


async def _check_result_owner(
    simulation: Simulation, row: TaskRow, records: list[AttemptRecord]
) -> None:
    if row.state not in (TaskState.COMPLETED, TaskState.IN_REVIEW):
        return
    result = await DocumentStore(simulation.backend.blobs).load(row.result)
    attempt = result["attempt"] if result else None
    if not any(record.attempt == attempt and record.succeeded for record in records):
        simulation.report_violation(
            3, row.id, f"has the result of attempt {attempt}, which did not succeed"
        )


@dataclass(frozen=True, slots=True)
class CancelAnswer:
    """A client was answered that a task or a job is cancelled or will be."""

    requested_at: float
    answered_at: float
    job_id: str
    task_id: str | None = None
    round: int = 0  # of the task


@dataclass(slots=True)
class Answers:
    """All answers of a run; an answer is a promise."""

    accepted: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # by request id
    # By request and addition: the document, and whether the addition was answered.
    added: dict[tuple[str, str], tuple[Mapping[str, Any], bool]] = field(default_factory=dict)
    refused: dict[tuple[str, str], str] = field(default_factory=dict)  # by client, and job or task
    cancelled: list[CancelAnswer] = field(default_factory=list)
    approved: dict[str, int] = field(default_factory=dict)  # by task: the attempt
    revisions_requested: dict[str, int] = field(default_factory=dict)  # by task: the attempt
    pauses_ended: dict[tuple[str, str], str] = field(
        default_factory=dict
    )  # by queue and pauser: who resumed it

    async def check(self, simulation: Simulation, rows: Mapping[str, TaskRow]) -> None:
        """Report answers that were not true."""
        self._check_accepted(simulation, rows)
        self._check_additions(simulation, rows)
        await self._check_refusals(simulation)
        for cancelled in self.cancelled:
            _check_cancelled(simulation, cancelled, rows)
        for task_id, attempt in self.approved.items():
            row = rows[task_id]
            if row.state is not TaskState.COMPLETED or row.attempt != attempt:
                text = f"attempt {attempt} was approved, but {row.attempt} is {row.state}"
                simulation.report_violation(4, task_id, text)
        for task_id, attempt in self.revisions_requested.items():
            row = rows[task_id]
            if row.state in _REVIEWABLE and row.attempt <= attempt:
                text = f"attempt {attempt} was sent back, but {row.attempt} is {row.state}"
                simulation.report_violation(4, task_id, text)

    def _check_accepted(self, simulation: Simulation, rows: Mapping[str, TaskRow]) -> None:
        for request_id, document in self.accepted.items():
            for task in document["tasks"]:
                task_id = task_id_of(job_id_of(TENANT, request_id), task["taskId"])
                if task_id not in rows:
                    simulation.report_violation(1, task_id, "was accepted, but does not exist")

    def _check_additions(self, simulation: Simulation, rows: Mapping[str, TaskRow]) -> None:
        for (request_id, addition_id), (document, answered) in self.added.items():
            job_id = job_id_of(TENANT, request_id)
            ids = [task_id_of(job_id, task["taskId"]) for task in document["tasks"]]
            stored = [task_id for task_id in ids if task_id in rows]
            if len(stored) < len(ids) and (answered or stored):
                simulation.report_violation(1, addition_id, f"of {ids} only {stored} exist")

    async def _check_refusals(self, simulation: Simulation) -> None:
        """A refusal changes nothing: the refused client is not in the history."""
        page = await simulation.backend.events.query(TENANT, limit=_ALL_ROWS)
        for event in page.items:
            by = str(getattr(event.body, "by", ""))
            if (why := self.refused.get((by, event.entity_id))) is not None:
                text = f"{by} was refused ({why}), but there is its {event.type}"
                simulation.report_violation(14, event.entity_id, text)


def _check_cancelled(
    simulation: Simulation, cancelled: CancelAnswer, rows: Mapping[str, TaskRow]
) -> None:
    """A cancelled task starts no attempt unless it is resumed, and it ends."""
    history, task_id = simulation.history, cancelled.task_id
    for claim in history.claims:
        if claim.at <= cancelled.answered_at or claim.job_id != cancelled.job_id:
            continue
        if task_id is None:
            resumed = history.was_resumed(claim.job_id, cancelled.requested_at, claim.at)
        else:
            resumed = (claim.task_id, claim.round) != (task_id, cancelled.round)
        if not resumed:
            text = f"is cancelled, but attempt {claim.attempt} starts at {claim.at:.3f}"
            simulation.report_violation(1, claim.task_id, text)
    if task_id is not None and rows[task_id].round == cancelled.round:
        state = rows[task_id].state
        if not state.terminal:
            simulation.report_violation(1, task_id, f"was cancelled, but is {state}")
