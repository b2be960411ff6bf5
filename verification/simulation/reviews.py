"""People who review: they look at a result, think, and decide about what they have seen."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.errors import CommandRefused
from verification.simulation.actions import ActionKind
from verification.simulation.answers import Answers
from verification.simulation.processes import Process
from verification.simulation.simulation import TENANT, Simulation

_MAX_REVIEW_S = 20.0


class Reviewers:
    """What reviewers do, and whether what they are told is true."""

    def __init__(self, simulation: Simulation, answers: Answers) -> None:
        self._simulation = simulation
        self._answers = answers

    async def review(self, process: Process, task_ids: Sequence[str], rng: Random) -> None:
        """Decide about these tasks, one after the other."""
        for task_id in task_ids:
            try:
                await self._decide(process, task_id, rng)
            except CommandRefused as refused:
                self._simulation.record(process.name, "refused", str(refused))
                self._answers.refused[process.name, task_id] = refused.reason

    async def _decide(self, process: Process, task_id: str, rng: Random) -> None:
        approves, says_which, thinks = rng.random() < 0.6, rng.random() < 0.7, rng.random()
        row = await process.services.backend.ledger.get_task(task_id)
        if row is None or row.state is not TaskState.IN_REVIEW:
            return
        if thinks < 0.5:
            await asyncio.sleep(2 * thinks * _MAX_REVIEW_S)
            await process.wait_until_running()
        seen = row.attempt if says_which else None
        if approves:
            await self._approve(process, task_id, seen)
        else:
            await self._request_revision(process, task_id, seen)

    async def _approve(self, process: Process, task_id: str, seen: int | None) -> None:
        asked, who = self._simulation.time(), process.name
        row = await process.services.review_decisions.approve(TENANT, task_id, by=who, attempt=seen)
        self._simulation.record_action(who, ActionKind.APPROVE, f"{task_id}/{row.attempt}")
        self._check_reviewed_attempt(row, seen)
        self._answers.approved[task_id] = row.attempt
        await self._simulation.history.on_answered(row, asked)

    async def _request_revision(self, process: Process, task_id: str, seen: int | None) -> None:
        who, words = process.name, f"once more, please ({process.name})"
        row = await process.services.review_decisions.revise(
            TENANT, task_id, by=who, feedback=words, attempt=seen
        )
        self._simulation.record_action(who, ActionKind.REQUEST_REVISION, task_id)
        if seen is not None:
            self._answers.revisions_requested[task_id] = max(
                seen, self._answers.revisions_requested.get(task_id, 0)
            )
        if row.feedback != words:
            self._simulation.report_violation(
                1, task_id, f"was sent back with the words {words!r}, which it lost"
            )

    def _check_reviewed_attempt(self, row: TaskRow, seen: int | None) -> None:
        if seen is not None and row.attempt != seen:
            text = f"attempt {seen} was to be approved, and attempt {row.attempt} is"
            self._simulation.report_violation(4, row.id, text)
