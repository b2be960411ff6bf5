"""People who review: they look at a result, think, and decide about what they have seen."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from longshore.core.rows import TaskRow
from longshore.core.states import TaskState
from longshore.errors import CommandRefused
from longshore.testing.simulation.answers import Answers
from longshore.testing.simulation.deeds import Deed
from longshore.testing.simulation.processes import Process
from longshore.testing.simulation.world import TENANT, World

_LONGEST_THOUGHT = 20.0


class Reviews:
    """What reviewers do, and whether what they are told is true."""

    def __init__(self, world: World, answers: Answers) -> None:
        self._world = world
        self._answers = answers

    async def of(self, process: Process, task_ids: Sequence[str], rng: Random) -> None:
        """Decide about these tasks, one after the other."""
        for task_id in task_ids:
            try:
                await self._decide(process, task_id, rng)
            except CommandRefused as refused:
                self._world.note(process.name, "refused", str(refused))
                self._answers.refused[process.name, task_id] = refused.reason

    async def _decide(self, process: Process, task_id: str, rng: Random) -> None:
        approves, says_which, thinks = rng.random() < 0.6, rng.random() < 0.7, rng.random()
        row = await process.services.backend.ledger.task(task_id)
        if row is None or row.state is not TaskState.IN_REVIEW:
            return
        if thinks < 0.5:
            await asyncio.sleep(2 * thinks * _LONGEST_THOUGHT)
            await process.awake()
        seen = row.attempt if says_which else None
        if approves:
            await self._approve(process, task_id, seen)
        else:
            await self._send_back(process, task_id, seen)

    async def _approve(self, process: Process, task_id: str, seen: int | None) -> None:
        asked, who = self._world.time(), process.name
        row = await process.services.reviewing.approve(TENANT, task_id, by=who, attempt=seen)
        self._world.did(who, Deed.APPROVE, f"{task_id}/{row.attempt}")
        self._is_of_what_was_seen(row, seen)
        self._answers.approved[task_id] = row.attempt
        await self._world.chronicle.answered(row, asked)

    async def _send_back(self, process: Process, task_id: str, seen: int | None) -> None:
        who, words = process.name, f"once more, please ({process.name})"
        row = await process.services.reviewing.request_revision(
            TENANT, task_id, by=who, feedback=words, attempt=seen
        )
        self._world.did(who, Deed.SEND_BACK, task_id)
        if seen is not None:
            self._answers.sent_back[task_id] = max(seen, self._answers.sent_back.get(task_id, 0))
        if row.feedback != words:
            self._world.breach(1, task_id, f"was sent back with the words {words!r}, which it lost")

    def _is_of_what_was_seen(self, row: TaskRow, seen: int | None) -> None:
        if seen is not None and row.attempt != seen:
            text = f"attempt {seen} was to be approved, and attempt {row.attempt} is"
            self._world.breach(4, row.id, text)
