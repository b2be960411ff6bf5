"""People: they submit, add, cancel, resume, replay, review, pause, and send nonsense."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from random import Random
from typing import assert_never

from longshore.core.budgets import Budget
from longshore.core.ids import job_id_of, task_id_of
from longshore.core.limits import RECEIVE_LIMIT
from longshore.core.messages import body_for
from longshore.core.rows import JobRow
from longshore.core.states import TaskState
from longshore.errors import BackendUnavailable, CommandRefused, Conflict, NotFound
from longshore.ports.queue import Outgoing
from longshore.testing.simulation.acts import (
    DEFINITIONS,
    MOST_JOBS,
    MOST_TASKS,
    QUEUES,
    Act,
    Add,
    Submit,
    Switch,
    Wish,
)
from longshore.testing.simulation.answers import Answers, Cancelled
from longshore.testing.simulation.deeds import Deed
from longshore.testing.simulation.faults import Fault
from longshore.testing.simulation.processes import Process
from longshore.testing.simulation.reviews import Reviews
from longshore.testing.simulation.world import TENANT, World

_CLIENT_TRIES = 8
_LOOKS = 6
_LOOK_EVERY = 5.0
_WORN_OUT = "worn-out"

Doing = Callable[[Process], Awaitable[None]]


class People:
    """Carry out what was drawn, each act from a process of its own that may die of it."""

    def __init__(self, world: World, process: Callable[[str], Process]) -> None:
        self.answers = Answers()
        self._reviews = Reviews(world, self.answers)
        self._calls: Counter[str] = Counter()  # by request id: how often it was submitted
        self._world = world
        self._process = process

    async def begin(self) -> None:
        """Store the definitions, before anything can go wrong."""
        for definition in DEFINITIONS:
            await self._world.backend.definitions.put(TENANT, definition)

    def all_of(self, acts: Sequence[Act]) -> list[asyncio.Task[None]]:
        """Begin all of it, each at its time; the tasks are done when it is."""
        return [
            self._world.begin(self._act(act, f"client-{number}.{copy}"))
            for number, act in enumerate(acts)
            for copy in range(2 if act.twice else 1)
        ]

    async def _act(self, act: Act, name: str) -> None:
        await asyncio.sleep(act.at)
        doing = self._doing(act)
        for number in range(_CLIENT_TRIES):
            process = self._process(f"{name}.{number}")
            answered = self._world.begin(self._safely(doing, process))
            await process.over.wait()
            if not process.dead and await answered:
                return
            await asyncio.sleep(2.0)

    async def _safely(self, doing: Doing, process: Process) -> bool:
        """Whether it was answered, be it with a refusal."""
        try:
            await doing(process)
        except BackendUnavailable as error:
            self._world.note(process.name, "no answer", str(error))
            return False
        except (Conflict, NotFound) as error:
            self._world.note(process.name, "refused", str(error))
            if isinstance(error, CommandRefused):
                self.answers.refused[process.name, error.row_id] = error.reason
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody was meant to see it
            if not process.dead:
                self._world.breach(0, process.name, f"a client was answered with {error!r}")
        finally:
            if not process.dead:
                process.end()
        return True

    def _doing(self, act: Act) -> Doing:
        match act:
            case Submit():
                return self._submit(act)
            case Add():
                return self._add(act)
            case Wish():
                return self._wish(act)
            case Switch():
                return self._switch(act)
            case _:
                assert_never(act)

    def _submit(self, act: Submit) -> Doing:
        async def submit(process: Process) -> None:
            self._calls[act.request_id] += 1
            accepted = await process.services.producer.submit(TENANT, act.request_id, act.document)
            self._world.did(process.name, Deed.SUBMIT, act.request_id)
            if accepted.job.id != job_id_of(TENANT, act.request_id):
                self._world.breach(9, act.request_id, f"became job {accepted.job.id}")
            alone = self._calls[act.request_id] == 1 and not accepted.created
            if alone and await self._untouched(accepted.job):
                self._world.breach(9, act.request_id, "was new, and yet is said to be known")
            self.answers.accepted[act.request_id] = act.document

        return submit

    async def _untouched(self, job: JobRow) -> bool:
        """Whether nobody has changed anything of the job: then its creation cannot be missed."""
        tasks = await self._world.backend.ledger.list_tasks(TENANT, job_id=job.id, limit=MOST_TASKS)
        return job.version == 1 and all(row.version == 1 for row in tasks.items)

    def _add(self, act: Add) -> Doing:
        job_id, which = job_id_of(TENANT, act.request_id), (act.request_id, act.addition_id)
        self.answers.added.setdefault(which, (act.document, False))

        async def add(process: Process) -> None:
            adding = process.services.adding
            added = await adding.add(TENANT, job_id, act.addition_id, act.document)
            self._world.did(process.name, Deed.ADD, act.addition_id)
            wanted = tuple(task["taskId"] for task in act.document["tasks"])
            if added.keys != wanted:
                self._world.breach(9, job_id, f"{act.addition_id} has added {added.keys}")
            self.answers.added[which] = (act.document, True)

        return add

    def _wish(self, act: Wish) -> Doing:
        job_id = job_id_of(TENANT, act.request_id)

        async def wish(process: Process) -> None:
            self._world.note(process.name, f"wants to {act.kind}", act.request_id)
            match act.kind:
                case "cancel":
                    await self._cancel(process, job_id)
                case "cancel task":
                    await self._cancel_task(process, job_id, self._world.chance(act.seed))
                case "replay":
                    await process.services.dead_letters.replay_matching(TENANT, by=process.name)
                    self._world.did(process.name, Deed.REPLAY, "everything")
                case "resume":
                    await self._resume(process, job_id)
                case "allow":
                    await self._allow(process, job_id, act.seed)
                case _:
                    # Two who review at once need not be of one mind.
                    own = self._world.chance(f"{act.seed} by {process.name}")
                    await self._review(process, job_id, own)

        return wish

    async def _cancel(self, process: Process, job_id: str) -> None:
        asked = self._world.time()
        await process.services.cancelling.cancel(job_id, by=process.name)
        self._world.did(process.name, Deed.CANCEL, job_id)
        self.answers.cancelled.append(Cancelled(asked, self._world.time(), job_id))

    async def _cancel_task(self, process: Process, job_id: str, rng: Random) -> None:
        open_ = [state for state in TaskState if not state.terminal]
        tasks = await _states(process, job_id, *open_) or await _states(process, job_id, *TaskState)
        if not tasks:
            return
        task_id, asked = rng.choice(tasks), self._world.time()
        try:
            row = await process.services.cancelling.cancel_task(TENANT, task_id, by=process.name)
        except CommandRefused:
            # It may have been cancelled, its answer lost, and resumed: then a later round is told.
            if not self._world.chronicle.resumed_since(job_id, asked, self._world.time()):
                raise
            return
        now = self._world.time()
        self._world.did(process.name, Deed.CANCEL_TASK, task_id)
        self.answers.cancelled.append(Cancelled(asked, now, job_id, task_id, row.round))
        await self._world.chronicle.answered(row, asked)

    async def _resume(self, process: Process, job_id: str) -> None:
        ended = await _states(process, job_id, TaskState.FAILED, TaskState.CANCELLED)
        if ended:
            resumed = await process.services.resuming.resume(job_id, ended, by=process.name)
            if resumed.tasks:
                self._world.did(process.name, Deed.RESUME, job_id)
            else:
                why = "; ".join(resumed.refused.values())
                self.answers.refused[process.name, job_id] = why

    async def _allow(self, process: Process, job_id: str, seed: str) -> None:
        """Two who ask by one request allow once."""
        budgeting, more = process.services.budgeting, Budget(usd=2.0)
        job = await process.services.backend.ledger.job(job_id)
        if job is not None and job.spec.budget:
            row = await budgeting.add_to_job(TENANT, job_id, more, by=process.name, request_id=seed)
            allowance = row.allowance
        else:
            parked = await _states(process, job_id, TaskState.PARKED)
            if not parked:
                return
            task = await budgeting.add_to_task(
                TENANT, parked[0], more, by=process.name, request_id=seed
            )
            allowance = task.allowance
        if allowance is None or allowance.requests.count(seed) != 1:
            self._world.breach(11, job_id, f"{seed} was allowed, and is not once in {allowance}")
        self._world.did(process.name, Deed.ALLOW, job_id)

    async def _review(self, process: Process, job_id: str, rng: Random) -> None:
        """Wait until there is something to review, but not for ever."""
        for _ in range(_LOOKS):
            if in_review := await _states(process, job_id, TaskState.IN_REVIEW):
                await self._reviews.of(process, in_review, rng)
                return
            await asyncio.sleep(_LOOK_EVERY)
            await process.awake()

    def _switch(self, act: Switch) -> Doing:
        async def switch(process: Process) -> None:
            pausing, asked = process.services.pausing, self._world.time()
            if act.pause:
                held = await pausing.pause(act.queue, by=process.name, reason="to look at it")
                self._world.did(process.name, Deed.PAUSE, f"{act.queue}, by {held.by}")
                self._world.pauses.answered(act.queue, asked)
                return
            ended = await pausing.resume(act.queue, by=process.name)
            if ended is not None and ended.until is None:
                self._world.did(process.name, Deed.END_PAUSE, f"{act.queue}, by {ended.by}")
                self._ended_once(ended.name, ended.by, process.name)

        return switch

    def _ended_once(self, queue: str, paused_by: str, by: str) -> None:
        earlier = self.answers.resumed.setdefault((queue, paused_by), by)
        if earlier != by:
            text = f"the pause of {paused_by} was ended by {earlier} and again by {by}"
            self._world.breach(0, queue, text)

    async def end_pauses(self, process: Process) -> None:
        """No pause is for ever: whatever is paused now is served again. Holds end by themselves."""
        for paused in await process.services.pausing.paused():
            if paused.until is not None:
                continue
            await process.services.pausing.resume(paused.name, by=process.name)
            self._world.note(process.name, "ends the pause of", paused.name)

    def poison(self, rng: Random) -> None:
        """Put something on the queue that makes no sense."""
        unknown = task_id_of(job_id_of(TENANT, "nobody"), "nothing")
        body = rng.choice(("nonsense", "{}", json.dumps({"requestId": unknown})))
        self._world.faults.count(Fault.POISON)
        self._world.note("somebody", "poison", body)
        message = Outgoing(queue=rng.choice(QUEUES), body=body)
        self._world.begin(self._world.backend.queue.send([message]))

    def wear_out(self, rng: Random) -> None:
        """Let a message of a task become a dead letter, whatever the task is doing."""
        self._world.begin(self._wear_out(rng))

    async def _wear_out(self, rng: Random) -> None:
        page = await self._world.backend.ledger.list_tasks(TENANT, limit=MOST_JOBS * MOST_TASKS)
        open_ = [row for row in page.items if not row.state.terminal]
        if not open_:
            return
        task_id = rng.choice(open_).id
        self._world.faults.count(Fault.WORN_OUT)
        self._world.note("somebody", "message worn out", task_id)
        # On a queue of its own, so that nobody else's messages wear out with it.
        queue, at_once = self._world.backend.queue, timedelta(0)
        await queue.send([Outgoing(queue=_WORN_OUT, body=body_for(task_id))])
        for _ in range(RECEIVE_LIMIT + 1):
            await queue.receive([_WORN_OUT], limit=1, hidden_for=at_once, wait=at_once)


async def _states(process: Process, job_id: str, *states: TaskState) -> list[str]:
    found = await process.services.backend.ledger.task_states(job_id)
    return [task_id_of(job_id, key) for key, state in found.items() if state in states]
